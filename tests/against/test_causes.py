"""`verify_vectors` names the fault of vectors, and none if there is none."""

import numpy as np
import pytest

import mlxbert
from mlxbert.model import Model
from tests.helpers.wrong_vectors import FAULTS, TEXTS, save_embedder, vectors


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Model:
    return mlxbert.load(save_embedder(tmp_path_factory.mktemp("against") / "model"))


def test_the_faultless_vectors_of_the_tests_are_those_of_embed(model: Model) -> None:
    assert np.abs(vectors(model) - mlxbert.embed(model, TEXTS)).max() < 1e-5


@pytest.mark.parametrize("fault", FAULTS)
def test_a_fault_is_named(fault: str, model: Model) -> None:
    kinds, make = FAULTS[fault]
    result = mlxbert.verify_vectors(model, make(model), TEXTS)
    assert tuple(cause.kind for cause in result.causes) == kinds
    assert result.agrees == bool(result) == (not kinds)
    assert (result.cause is None) == (not kinds)
    assert result.alternatives == ()
    if result.cosine_explained is not None:
        assert result.cosine_explained.lowest > (0.97 if fault == "binary" else 0.998 if "int8" in fault else 0.9999)
