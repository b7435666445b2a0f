"""Intervals: what they cover."""

from collections.abc import Callable
from functools import partial

import numpy as np
import pytest

from mlxbert.train.scores.metrics import (
    OF_COUNTS,
    Bools,
    Counts,
    Ints,
    bootstrap,
    multilabel_interval,
    regress_interval,
    spearman,
    wilson,
)


def test_the_interval_of_a_mean_is_that_of_its_standard_error() -> None:
    values = np.random.default_rng(0).normal(5, 2, 400)
    low, high = bootstrap(lambda some: float(values[some].mean()), 400)
    error = values.std() / 20
    assert low == pytest.approx(values.mean() - 1.96 * error, abs=0.2 * error)
    assert high == pytest.approx(values.mean() + 1.96 * error, abs=0.2 * error)


def test_the_seed_determines_the_interval() -> None:
    values = np.arange(50.0)
    first, again, other = (bootstrap(lambda some: float(values[some].mean()), 50, seed=seed) for seed in (1, 1, 2))
    assert first == again != other


def _score(of: Callable[[Counts], float], expected: Bools, predicted: Bools, some: Ints) -> float:
    return of(Counts.of_matrices(expected[some], predicted[some]))


def test_intervals_of_resamples_are_those_of_the_metric_on_them() -> None:
    """The shortcuts that make resampling fast change nothing."""
    rng = np.random.default_rng(3)
    probabilities, expected = rng.random((60, 3)), rng.random((60, 3)) < 0.4
    predicted = probabilities >= 0.5
    for metric in ("macro_f1", "micro_recall"):
        slow = bootstrap(partial(_score, OF_COUNTS[metric], expected, predicted), 60)
        assert multilabel_interval(metric, expected, predicted, probabilities) == pytest.approx(slow)
    numbers, values = np.round(rng.normal(size=60)), rng.normal(size=60)
    slow = bootstrap(lambda some: spearman(numbers[some], values[some]), 60)
    assert regress_interval("spearman", numbers, values) == pytest.approx(slow)


@pytest.mark.parametrize(
    ("right", "examples", "interval"),
    [(0, 10, (0.0, 0.2775)), (10, 10, (0.7225, 1.0)), (5, 10, (0.2366, 0.7634)), (81, 263, (0.2553, 0.3662))],
)
def test_wilson(right: int, examples: int, interval: tuple[float, float]) -> None:
    assert wilson(right / examples, examples) == pytest.approx(interval, abs=1e-4)  # Newcombe 1998
