"""The model that tests of training begin with."""

from pathlib import Path

import pytest

import mlxbert
from tests.helpers.tiny import CONFIG, save


@pytest.fixture(scope="session")
def base(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of a tiny model with weights that can be trained."""
    folder = tmp_path_factory.mktemp("base")
    model = mlxbert.new_model({**CONFIG, "initializer_range": 0.15}, save(folder / "vocabulary"))
    return mlxbert.save(model, folder / "tiny")
