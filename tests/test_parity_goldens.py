"""The numbers of transformers, frozen: every model and output, in every dtype, in batches and alone."""

import json
from pathlib import Path

import numpy as np
import pytest

from mlxbert.activations import ACTIVATIONS, activate
from mlxbert.device import mx
from tests.parity import (
    BOUNDS,
    Array,
    Case,
    assert_equal,
    difference,
    load_network,
    make_cases,
    outputs,
)

GOLDENS = Path(__file__).parent / "goldens"
MODELS = sorted(path.name for path in GOLDENS.iterdir() if path.is_dir())
CASES = ("padding", "pairs", "full length", "one token")


def _frozen(path: Path) -> dict[str, Array]:
    arrays = mx.load(str(path))
    assert isinstance(arrays, dict)
    return {name: np.array(array) for name, array in arrays.items()}


def _case(model: str, name: str) -> Case:
    config = json.loads((GOLDENS / model / "config.json").read_text())
    facts = (config[key] for key in ("vocab_size", "max_position_embeddings", "pad_token_id", "type_vocab_size"))
    return make_cases(*facts)[name]


@pytest.mark.parametrize("dtype", BOUNDS)
@pytest.mark.parametrize("case", CASES)
@pytest.mark.parametrize("model", MODELS)
def test_outputs_equal_those_of_transformers(model: str, case: str, dtype: str) -> None:
    frozen = {
        name.removeprefix(f"{case}/"): array
        for name, array in _frozen(GOLDENS / model / "outputs.safetensors").items()
        if name.startswith(f"{case}/")
    }
    assert len(frozen) >= 5
    assert_equal(outputs(load_network(GOLDENS / model, dtype), _case(model, case)), frozen, dtype)


@pytest.mark.parametrize("model", MODELS)
def test_a_batch_equals_its_inputs_alone(model: str) -> None:
    network, case = load_network(GOLDENS / model), _case(model, "pairs")
    assert case.mask is not None and case.segments is not None
    together = outputs(network, case)
    for row, length in enumerate(case.mask.sum(axis=1)):
        alone = outputs(
            network, Case(case.input_ids[row : row + 1, :length], segments=case.segments[row : row + 1, :length])
        )
        for name in ("last hidden", "pooler", "masked words", "next sentence"):
            if name in alone:
                whole = together[name][row : row + 1]
                assert difference(alone[name], whole[:, :length] if whole.ndim == 3 else whole) <= 1e-5


@pytest.mark.parametrize("model", MODELS)
def test_padding_changes_nothing(model: str) -> None:
    network, case = load_network(GOLDENS / model), _case(model, "one token")
    wide = np.pad(np.repeat(case.input_ids, 3, axis=0), ((0, 0), (0, 9)), constant_values=7)
    mask = np.pad(np.ones((3, 1), dtype=np.int32), ((0, 0), (0, 9)))
    expected, found = outputs(network, case), outputs(network, Case(wide, mask))
    assert difference(found["last hidden"][1:2, :1], expected["last hidden"]) <= 1e-5


@pytest.mark.parametrize("name", ACTIVATIONS)
def test_activations_equal_those_of_transformers(name: str) -> None:
    frozen = _frozen(GOLDENS / "activations.safetensors")
    found = np.array(activate(name, mx.array(frozen["x"])))
    scale = np.maximum(1, np.abs(frozen["x"]))
    assert (np.abs(found - frozen[name]) / scale).max() <= 1e-6


@pytest.mark.parametrize("name", ["gelu", "gelu_new", "quick_gelu", "silu"])
def test_the_golden_activations_differ_from_each_other(name: str) -> None:
    frozen = _frozen(GOLDENS / "activations.safetensors")
    others = {"gelu": "gelu_new", "gelu_new": "quick_gelu", "quick_gelu": "silu", "silu": "gelu"}
    assert np.abs(frozen[name] - frozen[others[name]]).max() > 1e-4
