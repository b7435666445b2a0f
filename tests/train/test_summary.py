"""What is said about an evaluation in a sentence."""

from typing import Any

import numpy as np
import pytest

from mlxbert.train.scores.evaluation_summary import Evaluation, weakest
from mlxbert.train.scores.labelled_scores import classification, multilabel, regression
from tests.train.test_scoring import records

NAMES = ("ABBR", "DESC", "NUM", "HUM")


def evaluated(confusion: list[list[int]]) -> Evaluation:
    pairs = [
        (row, column)
        for row, counts in enumerate(confusion)
        for column, count in enumerate(counts)
        for _ in range(count)
    ]
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
