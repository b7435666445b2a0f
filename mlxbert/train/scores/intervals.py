"""The uncertainty of metrics: 95 % intervals over the examples.

Shapes: N examples, C labels.
"""

from collections.abc import Callable

import numpy as np

from mlxbert.train.scores.metrics import (
    OF_CONFUSION,
    OF_COUNTS,
    Bools,
    Counts,
    Floats,
    Ints,
    Numbers,
    classify_losses,
    confusion_matrix,
    multilabel_losses,
    order,
    pearson,
    r2,
    ranks,
)


def bootstrap(
    metric: Callable[[Ints], float], examples: int, *, seed: int = 0, resamples: int = 1000
) -> tuple[float, float]:
    """Returns the 95 % interval of a metric, from random resamples of the examples (percentile bootstrap).

    The interval reflects only the mistakes that occur: without any mistakes, its width is 0.

    Args:
        metric: Computes the metric from the indices of examples, (N,). Some indices are repeated.
    """
    rng = np.random.default_rng(seed)
    values = [metric(rng.integers(examples, size=examples)) for _ in range(resamples)]
    low, high = np.quantile(values, (0.025, 0.975))
    return float(low), float(high)


def wilson(share: float, examples: int) -> tuple[float, float]:
    """Returns the 95 % interval of a share (Wilson 1927). Its width is never 0, unlike with `bootstrap`."""
    z = 1.959963984540054
    middle = (share + z**2 / (2 * examples)) / (1 + z**2 / examples)
    half = z / (1 + z**2 / examples) * np.sqrt(share * (1 - share) / examples + (z / (2 * examples)) ** 2)
    return float(max(middle - half, 0.0)), float(min(middle + half, 1.0))


def classify_interval(
    metric: str, score: float, expected: Ints, predicted: Ints, probabilities: Numbers
) -> tuple[float, float]:
    """Returns the 95 % interval of a classification metric. Label numbers are (N,), and probabilities are (N, C)."""
    if metric == "accuracy":
        return wilson(score, len(expected))
    if metric == "log_loss":
        return _mean_interval(classify_losses(expected, probabilities))
    labels, compute = probabilities.shape[1], OF_CONFUSION[metric]
    return bootstrap(lambda rows: compute(confusion_matrix(expected[rows], predicted[rows], labels)), len(expected))


def multilabel_interval(metric: str, expected: Bools, predicted: Bools, probabilities: Numbers) -> tuple[float, float]:
    """Returns the 95 % interval of a multi-label metric, from arrays (N, C)."""
    if metric == "subset_accuracy":
        right = (expected == predicted).all(1)
        return wilson(float(right.mean()), len(right))
    if metric == "log_loss":
        return _mean_interval(multilabel_losses(expected, probabilities))
    compute, examples = OF_COUNTS[metric], len(expected)
    # A product of matrices instead of sums over the rows of each resample: ten times faster.
    cells = np.concatenate([expected & predicted, predicted, expected], axis=1).astype(np.float32)

    def resampled(rows: Ints) -> float:
        times = np.bincount(rows, minlength=examples).astype(np.float32)
        return compute(Counts(*np.split((times @ cells).astype(np.float64), 3)))

    return bootstrap(resampled, examples)


def regress_interval(metric: str, expected: Floats, predicted: Floats) -> tuple[float, float]:
    """Returns the 95 % interval of a regression metric, from arrays (N,)."""
    error = predicted - expected
    first, second = order(expected), order(predicted)  # sorted once
    metrics: dict[str, Callable[[Ints], float]] = {
        "spearman": lambda rows: pearson(ranks(first[rows]), ranks(second[rows])),
        "pearson": lambda rows: pearson(expected[rows], predicted[rows]),
        "mse": lambda rows: float(np.mean(error[rows] ** 2)),
        "mae": lambda rows: float(np.mean(np.abs(error[rows]))),
        "r2": lambda rows: r2(expected[rows], predicted[rows]),
    }
    return bootstrap(metrics[metric], len(expected))


def _mean_interval(losses: Floats) -> tuple[float, float]:
    return bootstrap(lambda rows: float(losses[rows].mean()), len(losses))
