"""Models that many tests share."""

from pathlib import Path

import pytest

import mlxbert
from tests.tiny import save


@pytest.fixture(scope="session")
def builtin() -> mlxbert.Model:
    """The built-in model."""
    return mlxbert.load("builtin", dtype="float32", device="cpu")


@pytest.fixture(scope="session")
def tiny_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of a tiny random model with all heads."""
    return save(tmp_path_factory.mktemp("tiny") / "model")


@pytest.fixture
def tiny(tiny_folder: Path) -> mlxbert.Model:
    """A tiny random model with all heads, loaded afresh."""
    return mlxbert.load(str(tiny_folder), dtype="float32", device="cpu")
