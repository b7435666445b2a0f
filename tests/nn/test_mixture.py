"""Feed-forward networks of which each token uses a few: as one product each, gathered, and one token at a time."""

import numpy as np
import pytest

from mlxbert.machine.device import mx
from mlxbert.nn import ops
from mlxbert.nn.ops import inference


@pytest.mark.parametrize("used", [1, 2, 5])
@pytest.mark.parametrize("tokens", [1, 3, 40])
def test_each_token_adds_up_the_experts_that_it_uses(tokens: int, used: int) -> None:
    rng = np.random.default_rng(tokens)
    x, up, down = (rng.standard_normal(shape, np.float32) for shape in ((tokens, 12), (5, 17, 12), (5, 17, 12)))
    chosen = np.argsort(rng.random((tokens, 5)), axis=1)[:, :used]
    weights = rng.random((tokens, used), np.float32)
    wanted = [
        sum(weight * (np.maximum(up[expert] @ row, 0) @ down[expert]) for weight, expert in zip(*one, strict=True))
        for row, *one in zip(x, weights, chosen, strict=True)
    ]
    rows, first, second, numbers, shares = map(mx.array, (x, up, down, chosen.astype(np.uint32), weights))
    inputs = rows, first, second, numbers, shares, "relu"
    assert np.abs(np.array(ops.backend().mixture(*inputs)) - wanted).max() < 1e-5
    with inference():
        assert np.abs(np.array(ops.backend().mixture(*inputs)) - wanted).max() < 1e-5
