"""Evaluations made of predictions."""

import json
from typing import Any

import numpy as np
import pytest

from mlxbert.errors import InputError, MlxbertError
from mlxbert.train.data.labelled_texts import LabelledText
from mlxbert.train.options.training_tasks import TASKS
from mlxbert.train.scores.evaluation_summary import Evaluation
from mlxbert.train.scores.labelled_scores import classification, multilabel, regression
from mlxbert.train.scores.metrics import wilson

NAMES = ("ABBR", "DESC", "NUM")


def records(*labels: Any) -> list[LabelledText]:
    return [LabelledText(f"text {number}", None, label, f"test.csv, line {number + 2}")
            for number, label in enumerate(labels)]  # fmt: skip


def classified(**options: Any) -> Evaluation:
    probabilities = np.array([[0.8, 0.1, 0.1], [0.3, 0.6, 0.1], [0.0, 0.9, 0.1], [0.2, 0.1, 0.7]], np.float32)
    given = records("ABBR", "ABBR", "NUM", "NUM")
    return classification(given, NAMES, probabilities, model="m", data=("test.csv",), **options)


def test_an_evaluation_of_one_label_per_example() -> None:
    found = classified(truncated=3)
    assert (found.task, found.model, found.data, found.truncated) == ("classify", "m", ("test.csv",), 3)
    assert (found.examples, found.metric, found.score) == (4, "accuracy", 0.5)
    assert found.confusion == ((1, 1, 0), (0, 0, 0), (0, 1, 1))
    assert [(each.label, each.precision, each.recall, each.support) for each in found.labels] == [
        ("ABBR", 1, 0.5, 2),
        ("DESC", 0, 0, 0),
        ("NUM", 1, 0.5, 2),
    ]
    surest, second = found.mistakes
    assert (surest.text, surest.expected, surest.predicted) == ("text 2", "NUM", "DESC")
    assert (surest.place, second.text) == ("test.csv, line 4", "text 1")
    assert (surest.score, second.score) == pytest.approx((0.9, 0.6))
    assert found.interval == pytest.approx((0.1500, 0.8500), abs=1e-4)  # Wilson's of 2 of 4
    assert found.metrics.keys() == {*TASKS["classify"].metrics}


def test_an_evaluation_of_several_labels_per_example() -> None:
    given = records(("ABBR", "NUM"), (), ("DESC",))
    probabilities = np.array([[0.9, 0.2, 0.1], [0.1, 0.3, 0.2], [0.2, 0.6, 0.3]], np.float32)
    found = multilabel(given, NAMES, probabilities, thresholds=[0.5, 0.25, 0.5], model="m", data=())
    assert (found.task, found.metric, found.confusion) == ("multilabel", "macro_f1", None)
    assert found.score == pytest.approx((1 + 2 / 3 + 0) / 3)
    assert found.metrics["subset_accuracy"] == pytest.approx(1 / 3)
    assert [each.support for each in found.labels] == [1, 1, 1]
    missed, added = found.mistakes
    assert (missed.expected, missed.predicted) == ("ABBR, NUM", "ABBR")
    assert (added.expected, added.predicted) == ("", "DESC")
    assert (missed.score, added.score) == pytest.approx((0.9, 0.3))
    assert (missed.label, added.label) == ("NUM", "DESC")
    usual = multilabel(given, NAMES, probabilities, model="m", data=())
    assert usual.labels[1].precision == 1  # with a threshold of 0.5


def test_an_evaluation_of_numbers() -> None:
    found = regression(records(1.0, 2.0, 3.0, 4.0), np.array([1.0, 2.5, 2.25, 4.0], np.float32), model="m", data=())
    assert (found.task, found.metric, found.labels, found.confusion) == ("regress", "spearman", (), None)
    assert found.score == pytest.approx(0.8)
    assert [(each.expected, each.predicted, each.score) for each in found.mistakes] == [
        ("3", "2.25", 0.75),
        ("2", "2.5", 0.5),
    ]


def test_at_most_ten_mistakes_are_shown_the_worst_first() -> None:
    found = regression(records(*range(30)), np.arange(30) * 2.0, model="m", data=())
    assert [each.score for each in found.mistakes] == [float(each) for each in range(29, 19, -1)]


def test_an_evaluation_is_json() -> None:
    constant = regression(records(1, 2, 3), np.ones(3), model="m", data=())
    for evaluation in (classified(), constant):
        json.dumps(evaluation.to_dict(), allow_nan=False)
    assert constant.score == 0
    assert constant.interval == (0, 0)


@pytest.mark.parametrize("task", ("classify", "multilabel", "regress"))
def test_every_metric_can_be_the_main_one_and_lies_in_its_interval(task: str) -> None:
    rng = np.random.default_rng(4)
    target = rng.integers(0, 3, 200)
    probabilities = rng.dirichlet([1, 1, 1], 200) * 0.6 + np.eye(3)[target] * 0.4
    probabilities[::9] = np.roll(probabilities[::9], 1, axis=1)  # mistakes
    for metric in TASKS[task].metrics:
        about: Any = {"metric": metric, "model": "m", "data": ()}
        if task == "classify":
            found = classification(records(*(NAMES[each] for each in target)), NAMES, probabilities, **about)
        elif task == "multilabel":
            found = multilabel(records(*((NAMES[each],) for each in target)), NAMES, probabilities, **about)
        else:
            found = regression(records(*target), target + rng.normal(size=200) / 2, **about)
        assert found.score == found.metrics[metric]
        low, high = found.interval
        assert low < found.score < high < low + 0.4
        assert (found.interval == wilson(found.score, 200)) == (metric in found.spec.shares)  # as the view says


def test_without_mistakes_the_accuracy_is_not_certain() -> None:
    found = classification(records(*["ABBR"] * 20), NAMES, np.eye(3)[[0] * 20], model="m", data=())
    assert found.score == 1
    assert found.interval == pytest.approx((0.8389, 1.0), abs=1e-4)
    assert found.mistakes == ()


def test_predictions_that_are_not_finite_and_labels_spelled_otherwise_are_refused() -> None:
    with pytest.raises(MlxbertError, match="not finite"):
        classification(records("ABBR", "NUM"), NAMES, np.full((2, 3), np.nan), model="m", data=())
    with pytest.raises(InputError, match=r"line 3.*'abbr'"):
        classification(records("ABBR", "abbr"), NAMES, np.ones((2, 3)), model="m", data=())
