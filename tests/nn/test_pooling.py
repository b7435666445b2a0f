"""Every pooling against its definition in numpy, with padding left out, and vectors of length 1."""

from typing import Any

import numpy as np
import pytest

from mlxbert.errors import ArgumentError
from mlxbert.machine.device import mx
from mlxbert.nn.encoder import EncoderOutput
from mlxbert.nn.pooling import POOLINGS, pool
from mlxbert.nn.unit_vectors import unit_length
from tests.helpers.cases import together

HIDDEN = np.random.default_rng(1).normal(size=(3, 6, 4)).astype(np.float32) - 3  # below 0: a max over zeros would show
LENGTHS = (6, 3, 1)
MASK = np.array([[place < length for place in range(6)] for length in LENGTHS]).astype(np.int32)
WEIGHTS = np.random.default_rng(2).dirichlet(np.ones(6), size=(3, 2, 6)).astype(np.float32)


def _output(dtype: mx.Dtype = mx.float32) -> EncoderOutput:
    weights = WEIGHTS * MASK[:, None, None]
    weights = weights / weights.sum(axis=-1, keepdims=True)
    other = np.full_like(weights, 7.0)  # an earlier layer, not to be used
    return EncoderOutput(mx.array(HIDDEN).astype(dtype), None, None, (mx.array(other), mx.array(weights)))


def _expected(mode: str, row: int, skip: int = 0) -> np.ndarray:
    """Without the first `skip` tokens; those that stay keep their places and their attention."""
    real = HIDDEN[row, skip : LENGTHS[row]].astype(np.float64)
    places = np.arange(skip + 1, LENGTHS[row] + 1)[:, None]
    heads = WEIGHTS[row, :, 0, : LENGTHS[row]]
    weights = (heads / heads.sum(axis=1, keepdims=True)).mean(axis=0)[skip:]
    values: dict[str, np.ndarray] = {
        "cls": real[0], "mean": real.mean(axis=0), "max": real.max(axis=0),
        "mean_sqrt_len": real.sum(axis=0) / np.sqrt(len(real)),
        "weighted_mean": (real * places).sum(axis=0) / places.sum(), "last_token": real[-1],
        "attention": weights @ real,
    }  # fmt: skip
    assert values.keys() == POOLINGS.keys()
    return values[mode]


@together("masked", [True, False])
@together("skip", [0, 1, 2])
@pytest.mark.parametrize("mode", POOLINGS)
def test_pooling_is_what_its_name_says(mode: str, skip: int, masked: bool) -> None:
    """Also without the leading tokens, and without a mask where there is no padding."""
    output = _output()
    rows = (2 if skip else 3) if masked else 1  # the third text has a single token
    some = EncoderOutput(output.last_hidden_state[:rows], None, None, tuple(a[:rows] for a in output.attentions or ()))
    mask = mx.array(MASK[:rows]) if masked else None
    found = np.array(pool(mode, some, mask, skip=skip) if skip else pool(mode, some, mask))
    for row in range(rows):
        assert np.abs(found[row] - _expected(mode, row, skip)).max() < 1e-5
    if skip and mode != "last_token":
        assert np.abs(found[0] - _expected(mode, 0)).max() > 1e-3


def test_halves_are_pooled_in_float32() -> None:
    for dtype in (mx.float16, mx.bfloat16):
        found = pool("mean", EncoderOutput(mx.ones((1, 4096, 1)).astype(dtype) * 100, None))
        assert found.dtype == mx.float32 and found.item() == 100


@together(
    ("mode", "output", "mask", "said"),
    [
        ("median", _output(), None, r"'median'.*cls, mean"),
        ("mean", _output(), mx.array(MASK[:1]), r"shape \(1, 6\), expected \(3, 6\)"),
        ("mean", mx.array(HIDDEN), None, "expected an EncoderOutput"),
        ("attention", EncoderOutput(mx.array(HIDDEN), None), None, "attention weights"),
    ],
)
def test_what_cannot_be_pooled_is_refused(mode: str, output: Any, mask: mx.array | None, said: str) -> None:
    with pytest.raises(ArgumentError, match=said):
        pool(mode, output, mask)


def test_every_vector_but_zero_has_length_1() -> None:
    vectors = np.array([[3, 4], [0, 0], [-1e-5, 0]], np.float32)
    assert np.allclose(unit_length(vectors), np.array([[0.6, 0.8], [0, 0], [-1, 0]]))
    assert np.allclose(unit_length(vectors[0]), [0.6, 0.8]) and vectors[0, 0] == 3
    small: list[np.ndarray[Any, Any]] = [np.array([[100, 100]], np.int8), np.array([[300, 300]], np.float16)]
    assert all(np.allclose(unit_length(each), 0.5**0.5, atol=1e-3) for each in small)
    assert unit_length(vectors, out=vectors) is vectors and np.allclose(vectors[0], [0.6, 0.8])
