"""Losses for training: sums over the rows, computed in float32 for any dtype of the logits.

They are sums rather than means, because the parts of a batch are computed separately. The total is then divided by the
weight of the whole batch.

Shapes: N rows, C classes or words.
"""

from mlxbert.errors import ArgumentError
from mlxbert.machine.device import mx
from mlxbert.nn.ops import backend


def cross_entropy(
    logits: mx.array, targets: mx.array, weights: mx.array | None = None, label_smoothing: float = 0.0
) -> mx.array:
    """The sum of `-log softmax(logits)[target]`, like `torch.nn.functional.cross_entropy` with `reduction="sum"`.

    Takes logits (N, C), classes (N,) and the weight of each class (C,). The share `label_smoothing` of each target is
    spread evenly over all classes. Accurate for rows as long as a vocabulary (see `Backend.log_sum_exp`).
    """
    losses, wide, log_sum = _cross_entropies(logits, targets)
    if weights is not None:
        losses = losses * weights[targets]
    if not label_smoothing:
        return losses.sum()
    spread = log_sum - wide if weights is None else (log_sum - wide) * weights
    exact, smoothed = losses.sum(), spread.mean(axis=-1).sum()
    return backend().scaled(exact, 1 - label_smoothing) + backend().scaled(smoothed, label_smoothing)


def cross_entropies(logits: mx.array, targets: mx.array) -> mx.array:
    """Returns the cross-entropy of each row, float32 (N,), from logits (N, C) and classes (N,)."""
    return _cross_entropies(logits, targets)[0]


def soft_cross_entropies(logits: mx.array, targets: mx.array) -> mx.array:
    """Returns the Kullback-Leibler divergence of each row from its target distribution, float32 (N,).

    Both distributions are given by logits (N, C); the targets get no gradient.
    """
    _check_shapes(logits, targets)
    wide, target_logits = logits.astype(mx.float32), mx.stop_gradient(targets.astype(mx.float32))
    log_sum = backend().log_sum_exp(wide)
    target_log_sum = backend().log_sum_exp(target_logits)
    shares = mx.stop_gradient(mx.exp(target_logits - target_log_sum))
    return (shares * ((target_logits - target_log_sum) - (wide - log_sum))).sum(axis=-1)


def _cross_entropies(logits: mx.array, targets: mx.array) -> tuple[mx.array, mx.array, mx.array]:
    """Returns the losses of the rows, (N,), the logits as float32, (N, C), and the log-sum-exp of each row, (N, 1)."""
    if logits.ndim != 2 or targets.shape != logits.shape[:1]:
        raise ArgumentError(
            f"`logits` and `targets` have shapes {logits.shape} and {targets.shape}, expected (N, C) and (N,)"
        )
    wide = logits.astype(mx.float32)
    log_sum = backend().log_sum_exp(wide)
    return (log_sum - mx.take_along_axis(wide, targets[:, None], axis=1))[:, 0], wide, log_sum


def binary_cross_entropy(logits: mx.array, targets: mx.array) -> mx.array:
    """The sum of `binary_cross_entropies`."""
    return binary_cross_entropies(logits, targets).sum()


def binary_cross_entropies(logits: mx.array, targets: mx.array) -> mx.array:
    """Returns the cross-entropies of independent labels, float32; logits and targets (0 to 1) have any equal shape."""
    _check_shapes(logits, targets)
    wide = logits.astype(mx.float32)
    return mx.logaddexp(mx.array(0.0), wide) - wide * targets.astype(mx.float32)


def mean_squared_error(logits: mx.array, targets: mx.array) -> mx.array:
    """Returns the squared differences, (N,) or (N, C), averaged within each row and summed over the rows."""
    _check_shapes(logits, targets)
    squares = mx.square(logits.astype(mx.float32) - targets.astype(mx.float32))
    return (squares if squares.ndim == 1 else squares.mean(axis=-1)).sum()


def _check_shapes(logits: mx.array, targets: mx.array) -> None:
    if logits.shape != targets.shape:  # they would be broadcast silently
        raise ArgumentError(f"`targets` have shape {targets.shape}, expected the shape of the logits, {logits.shape}")
