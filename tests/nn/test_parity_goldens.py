"""The numbers of transformers, frozen: every family and head, in every dtype, in batches and alone."""

import numpy as np
import pytest

from mlxbert.goldens.golden_outputs import (
    BOUNDS,
    GOLDENS,
    Array,
    Case,
    arrays,
    difference,
    outputs,
)
from mlxbert.machine.device import mx
from mlxbert.nn.activations import ACTIVATIONS
from mlxbert.nn.ops import backend
from tests.helpers.families import FROZEN, FROZEN_CELLS
from tests.helpers.frozen import frozen_network, frozen_outputs
from tests.helpers.parity import assert_equal

TOGETHER = [pytest.param(cell.values, marks=cell.marks) for cell in FROZEN_CELLS]
IN_DTYPES = [  # in half precision, fast tests compute BERT alone
    pytest.param(
        cell.values,
        dtype,
        marks=cell.marks if dtype == "float32" or cell.values[0] == "bert" else [*cell.marks, pytest.mark.slow],
        id=f"{' '.join(map(str, cell.values))}-{dtype}",
    )
    for cell in FROZEN_CELLS
    for dtype in BOUNDS
]
CASES = ("padding", "pairs", "full length", "one token")


@pytest.mark.parametrize(("cell", "dtype"), IN_DTYPES)
def test_outputs_equal_those_of_transformers(cell: tuple[str, str], dtype: str) -> None:
    family, head = cell
    network = frozen_network(family, head, dtype)
    for name in CASES if dtype == "float32" else CASES[1:3]:
        frozen = frozen_outputs(family, head, name)
        assert frozen
        assert_equal(outputs(network, FROZEN[family].cases[name]), frozen, dtype)


@pytest.mark.sampled
@pytest.mark.parametrize("cell", TOGETHER, ids=" ".join)
def test_a_batch_equals_its_inputs_alone(cell: tuple[str, str]) -> None:
    family, head = cell
    network, case = frozen_network(family, head), FROZEN[family].cases["pairs"]
    assert case.mask is not None and case.segments is not None
    together = outputs(network, case)
    for row, length in enumerate(case.mask.sum(axis=1)):
        ids, segments = case.input_ids[row : row + 1, :length], case.segments[row : row + 1, :length]
        alone = outputs(network, Case(ids, segments=segments))
        for name in alone.keys() - {name for name in alone if name.startswith("attention")}:
            whole = together[name][row : row + 1]
            over_tokens = whole.shape[1:2] == case.mask.shape[1:]
            assert difference(alone[name], whole[:, :length] if over_tokens else whole) <= 1e-5, name


@pytest.mark.sampled
@pytest.mark.parametrize("cell", TOGETHER, ids=" ".join)
def test_padding_changes_nothing(cell: tuple[str, str]) -> None:
    family, head = cell
    network, case = frozen_network(family, head), FROZEN[family].cases["one token"]
    pad = FROZEN[family].facts["pad_token_id"]
    wide = np.pad(np.repeat(case.input_ids, 3, axis=0), ((0, 0), (0, 9)), constant_values=pad)
    mask = np.pad(np.ones((3, 1), dtype=np.int32), ((0, 0), (0, 9)))
    expected, found = outputs(network, case), outputs(network, Case(wide, mask))
    for name in expected.keys() - {name for name in expected if name.startswith("attention")}:
        row = found[name][1:2]
        assert difference(row[:, :1] if row.shape[1:2] == (10,) else row, expected[name]) <= 1e-5, name


@pytest.mark.parametrize("name", ACTIVATIONS)
def test_activations_equal_those_of_transformers(name: str) -> None:
    frozen = _activations()
    found = np.array(backend().activate(name, mx.array(frozen["x"])))
    scale = np.maximum(1, np.abs(frozen["x"]))
    assert (np.abs(found - frozen[name]) / scale).max() <= 1e-6


def _activations() -> dict[str, Array]:
    return {name: np.array(array) for name, array in arrays(GOLDENS / "activations.safetensors").items()}
