"""A hub with a tiny model, and a machine that has not yet fetched it."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.helpers.fake_hub import FakeHub, Files, files_of, serve
from tests.helpers.hub_machine import NAME, Machine
from tests.helpers.program import tiny_model


@pytest.fixture(scope="package")
def tiny(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tiny_model(tmp_path_factory.mktemp("models") / "tiny")


@pytest.fixture(scope="package")
def files(tiny: Path) -> Files:
    return files_of(tiny)


@pytest.fixture(params=[pytest.param(None, marks=pytest.mark.slow, id="served")])
def hub(files: Files) -> Iterator[FakeHub]:
    with serve() as hub:
        hub.add(NAME, files)
        yield hub


@pytest.fixture
def machine(hub: FakeHub, tmp_path: Path) -> Machine:
    return Machine(hub, tmp_path / "home")
