"""What is said about an evaluation in a sentence."""

from typing import Any

import numpy as np
import pytest

from mlxbert.training.scores.scoring import classification, multilabel, regression
from mlxbert.training.scores.summary import Evaluation, weakest
from tests.training.test_scoring import records

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


def test_the_weakest_label_by_recall() -> None:
    sentence = weakest(evaluated([[4, 3, 2, 0], [0, 50, 0, 0], [0, 1, 50, 0], [0, 0, 0, 0]]))
    assert sentence == "ABBR: recall 0.44 on 9 examples, most often taken for DESC"


def test_the_weakest_label_by_precision() -> None:
    sentence = weakest(evaluated([[4, 0, 0, 0], [1, 50, 0, 0], [5, 0, 50, 0], [0, 0, 0, 9]]))
    assert sentence == "ABBR: precision 0.40 (4 examples in all), most often in place of NUM"


def test_a_label_that_is_never_predicted() -> None:
    sentence = weakest(evaluated([[0, 1, 0, 0], [0, 50, 0, 0], [0, 0, 50, 0], [0, 0, 0, 9]]))
    assert sentence == "ABBR: recall 0.00 on 1 example, most often taken for DESC"


@pytest.mark.parametrize(
    "confusion",
    [
        [[9, 0, 0, 0], [0, 9, 0, 0], [0, 0, 9, 0], [0, 0, 0, 0]],  # no mistakes
        [[5, 4, 0, 0], [4, 5, 0, 0], [0, 0, 0, 0], [0, 0, 0, 0]],  # all alike
        [[5, 4, 0, 0], [0, 0, 0, 0], [0, 0, 0, 0], [0, 0, 0, 0]],  # one label only
    ],
)
def test_nothing_stands_out(confusion: list[list[int]]) -> None:
    assert weakest(evaluated(confusion)) is None


def test_the_weakest_of_several_labels() -> None:
    given = records(("ABBR", "NUM"), ("NUM",), ("NUM",))
    probabilities = np.array([[0.1, 0, 0.9, 0], [0, 0, 0.9, 0], [0, 0, 0.9, 0]])
    assert weakest(multilabel(given, NAMES, probabilities, model="m", data=())) == "ABBR: recall 0.00 on 1 example"


def test_the_largest_distance_of_numbers() -> None:
    about: Any = {"model": "m", "data": ()}
    sentence = weakest(regression(records(1.0, 2.0, 5.0), np.array([1.0, 2.5, 2.0]), **about))
    assert sentence == "off by 3 at most: 5 is predicted as 2 (test.csv, line 4); by 1.17 on average"
    assert weakest(regression(records(1.0, 2.0), np.array([1.0, 2.0]), **about)) is None
