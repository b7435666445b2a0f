"""What is said about an evaluation in a sentence, and the intervals of its scores."""

from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np
import pytest

from mlxbert.train.scores.evaluation_summary import Evaluation, weakest
from mlxbert.train.scores.labelled_scores import classification, multilabel, regression
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
)  # fmt: skip
from tests.train.test_scoring import records

NAMES = ("ABBR", "DESC", "NUM", "HUM")


def evaluated(confusion: list[list[int]]) -> Evaluation:
    cells = [(row, column, count) for row, counts in enumerate(confusion) for column, count in enumerate(counts)]
    pairs = [(row, column) for row, column, count in cells for _ in range(count)]
    given = records(*(NAMES[row] for row, _ in pairs))
    return classification(given, NAMES, np.eye(4)[[column for _, column in pairs]], model="m", data=())


@pytest.mark.parametrize(
    ("confusion", "facts"),
    [
        ([[4, 3, 2, 0], [0, 50, 0, 0], [0, 1, 50, 0], [0, 0, 0, 0]], ("ABBR", "recall 0.44", "9 examples", "DESC")),
        ([[4, 0, 0, 0], [1, 50, 0, 0], [5, 0, 50, 0], [0, 0, 0, 9]], ("ABBR", "precision 0.40", "4 examples", "NUM")),
        ([[0, 1, 0, 0], [0, 50, 0, 0], [0, 0, 50, 0], [0, 0, 0, 9]], ("ABBR", "recall 0.00", "1 example", "DESC")),
        ([[9, 0, 0, 0], [0, 9, 0, 0], [0, 0, 9, 0], [0, 0, 0, 0]], None),  # no mistakes
        ([[5, 4, 0, 0], [4, 5, 0, 0], [0, 0, 0, 0], [0, 0, 0, 0]], None),  # all alike
        ([[5, 4, 0, 0], [0, 0, 0, 0], [0, 0, 0, 0], [0, 0, 0, 0]], None),  # one label only
    ],
)
def test_the_weakest_label(confusion: list[list[int]], facts: tuple[str, ...] | None) -> None:
    sentence = weakest(evaluated(confusion))
    assert sentence is None if facts is None else sentence and all(fact in sentence for fact in facts)


def test_the_weakest_of_several_labels_and_of_numbers() -> None:
    given = records(("ABBR", "NUM"), ("NUM",), ("NUM",))
    probabilities = np.array([[0.1, 0, 0.9, 0], [0, 0, 0.9, 0], [0, 0, 0.9, 0]])
    assert "ABBR: recall 0.00" in (weakest(multilabel(given, NAMES, probabilities, model="m", data=())) or "")
    about: Any = {"model": "m", "data": ()}
    sentence = weakest(regression(records(1.0, 2.0, 5.0), np.array([1.0, 2.5, 2.0]), **about)) or ""
    assert "by 3 " in sentence and "(test.csv, line 4)" in sentence and "by 1.17" in sentence
    assert weakest(regression(records(1.0, 2.0), np.array([1.0, 2.0]), **about)) is None


def test_the_interval_of_a_mean_is_that_of_its_standard_error(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("mlxbert.train.scores.metrics.RESAMPLES", 1000)
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
