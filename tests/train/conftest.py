"""The model that tests of training begin with."""

from collections.abc import Iterator
from pathlib import Path

import pytest

import mlxbert
from mlxbert.train.scores import metrics
from tests.helpers.tiny import CONFIG, save


@pytest.fixture(scope="package", autouse=True)
def few_resamples() -> Iterator[None]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(metrics, "RESAMPLES", 100)
        yield


@pytest.fixture(scope="session")
def base(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("base")
    config = {**CONFIG, "initializer_range": 0.15, "num_hidden_layers": 1}
    model = mlxbert.new_model(config, save(folder / "vocabulary"))
    return mlxbert.save(model, folder / "tiny")
