"""Losses and their gradients, next to double precision and next to torch."""

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from mlxbert.errors import ArgumentError
from mlxbert.machine.device import mx
from mlxbert.train.nn.losses import binary_cross_entropy, cross_entropy, mean_squared_error, soft_cross_entropies

Array = NDArray[np.float64]


def _random(*shape: int, scale: float = 3.0) -> NDArray[np.float32]:
    return (np.random.default_rng(1).standard_normal(shape) * scale).astype(np.float32)


def _with_gradient(loss: Callable[[mx.array], mx.array], logits: NDArray[np.float32]) -> tuple[float, Array]:
    value, gradient = mx.value_and_grad(loss)(mx.array(logits))
    return float(value), np.array(gradient.astype(mx.float32), dtype=np.float64)


def _softmax(logits: NDArray[np.float32]) -> Array:
    wide = np.exp(logits.astype(np.float64) - logits.max(axis=-1, keepdims=True))
    found: Array = wide / wide.sum(axis=-1, keepdims=True)
    return found


@pytest.mark.parametrize("classes", [2, 3, 17, 30_522])
def test_cross_entropy_is_exact(classes: int) -> None:
    logits = _random(4, classes)
    logits[0, 1] = 25  # next to a likely word the others are below the last digit
    targets = np.array([1, 0, classes - 1, 1])
    shares = _softmax(logits)
    value, gradient = _with_gradient(lambda x: cross_entropy(x, mx.array(targets)), logits)
    assert value == pytest.approx(-np.log(shares[np.arange(4), targets]).sum(), rel=1e-6)
    shares[np.arange(4), targets] -= 1
    assert np.abs(gradient - shares).max() < 1e-6


@pytest.mark.parametrize("dtype", [mx.float16, mx.bfloat16])
def test_half_precision_logits_give_a_float32_loss(dtype: mx.Dtype) -> None:
    logits = mx.array(_random(5, 7)).astype(dtype)
    targets = mx.array([0, 1, 2, 3, 4])
    found = cross_entropy(logits, targets)
    assert found.dtype == mx.float32
    assert float(found) == pytest.approx(float(cross_entropy(logits.astype(mx.float32), targets)), rel=1e-6)
    assert mx.grad(lambda x: cross_entropy(x, targets))(logits).dtype == dtype


def test_an_undecided_label_has_its_gradient() -> None:
    value, gradient = _with_gradient(
        lambda x: binary_cross_entropy(x, mx.array([0.0, 1.0, 1.0])), np.array([0, 0, 60], np.float32)
    )
    assert value == pytest.approx(2 * np.log(2)) and np.allclose(gradient, [0.5, -0.5, 0])


@pytest.mark.parametrize("loss", [binary_cross_entropy, mean_squared_error, cross_entropy])
def test_other_shapes_are_refused(loss: Callable[[mx.array, mx.array], mx.array]) -> None:
    with pytest.raises(ArgumentError, match="`targets` have shape"):
        loss(mx.zeros((4, 1)), mx.zeros((4, 4)))


@pytest.mark.slow
@pytest.mark.parametrize("classes", [2, 7, 30_522])
@pytest.mark.parametrize("smoothing", [0.0, 0.1])
@pytest.mark.parametrize("weighted", [False, True])
def test_cross_entropy_is_that_of_torch(classes: int, smoothing: float, weighted: bool) -> None:
    torch = pytest.importorskip("torch")
    logits, targets = _random(9, classes), np.arange(9) % classes
    weights = np.abs(_random(classes)) + 0.1 if weighted else None
    theirs = torch.tensor(logits, dtype=torch.float64, requires_grad=True)
    reference = torch.nn.functional.cross_entropy(
        theirs,
        torch.tensor(targets),
        None if weights is None else torch.tensor(weights, dtype=torch.float64),
        label_smoothing=smoothing,
        reduction="sum",
    )
    reference.backward()
    ours = None if weights is None else mx.array(weights)
    value, gradient = _with_gradient(lambda x: cross_entropy(x, mx.array(targets), ours, smoothing), logits)
    assert value == pytest.approx(reference.item(), rel=1e-6)
    assert np.abs(gradient - theirs.grad.numpy()).max() < 1e-6 * max(1.0, np.abs(theirs.grad.numpy()).max())


@pytest.mark.slow
@pytest.mark.parametrize("shape", [(9,), (9, 1), (9, 5)])
def test_the_other_losses_are_those_of_torch(shape: tuple[int, ...]) -> None:
    torch = pytest.importorskip("torch")
    functional = torch.nn.functional
    logits, targets = _random(*shape), (_random(*shape, scale=1) > 0).astype(np.float32)
    per_row = logits.size / shape[0]

    def divergence(x: Any, y: Any) -> Any:
        one, other = (scores.reshape(9, -1).log_softmax(-1) for scores in (x, y))
        return functional.kl_div(one, other, log_target=True, reduction="sum")

    def soft(x: mx.array, y: mx.array) -> mx.array:
        return soft_cross_entropies(x.reshape(9, -1), y.reshape(9, -1)).sum()

    for ours, reference in (
        (binary_cross_entropy, lambda x, y: functional.binary_cross_entropy_with_logits(x, y, reduction="sum")),
        (mean_squared_error, lambda x, y: functional.mse_loss(x, y, reduction="sum") / per_row),
        (soft, divergence),
    ):
        theirs = torch.tensor(logits, dtype=torch.float64, requires_grad=True)
        expected = reference(theirs, torch.tensor(targets, dtype=torch.float64))
        expected.backward()
        value, gradient = _with_gradient(lambda x, ours=ours: ours(x, mx.array(targets)), logits)  # type: ignore[misc]
        assert value == pytest.approx(expected.item(), rel=1e-6, abs=1e-6)
        assert np.abs(gradient - theirs.grad.numpy()).max() < 2e-6
