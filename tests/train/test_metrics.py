"""Metrics: numbers worked out by hand, and what is undefined elsewhere."""

import math

import numpy as np
import pytest

from mlxbert.train.options.training_tasks import TASKS
from mlxbert.train.scores import metrics
from mlxbert.train.scores.metrics import Counts

# Rows are expected, columns predicted: a 3 of 4 right, b 1 of 3, c never predicted, d does not occur.
CONFUSION = np.array([[3, 1, 0, 0], [2, 1, 0, 0], [1, 0, 0, 0], [0, 0, 0, 0]])


def test_metrics_of_a_confusion_matrix() -> None:
    values = {name: metric(CONFUSION) for name, metric in metrics.OF_CONFUSION.items()}
    assert values == pytest.approx(
        {
            "accuracy": 4 / 8,
            "macro_f1": (0.6 + 0.4) / 3,  # c counts, d does not
            "weighted_f1": (4 * 0.6 + 3 * 0.4) / 8,
            "macro_precision": (1 / 2 + 1 / 2) / 3,
            "macro_recall": (3 / 4 + 1 / 3) / 3,
            # right·N - Σ expected·predicted, over the root of (N² - Σ expected²)(N² - Σ predicted²)
            "matthews": (4 * 8 - (4 * 6 + 3 * 2)) / math.sqrt((64 - 26) * (64 - 40)),
        }
    )


@pytest.mark.parametrize("confusion", [[[5, 0], [3, 0]], [[5, 3], [0, 0]], [[7, 0], [0, 0]]])
def test_matthews_of_one_class_only_is_zero(confusion: list[list[int]]) -> None:
    assert metrics.matthews(np.array(confusion)) == 0


def test_metrics_of_one_label_per_example() -> None:
    values = metrics.classify_metrics(np.array([0, 1, 1]), np.array([[0.5, 0.5], [0.25, 0.75], [1.0, 0.0]]))
    assert values["accuracy"] == pytest.approx(2 / 3)  # the first of equal probabilities is predicted
    eps = np.finfo(np.float64).eps
    assert values["log_loss"] == pytest.approx(-(math.log(0.5) + math.log(0.75) + math.log(eps)) / 3)


def test_a_threshold_is_not_rounded_to_the_probabilities_dtype() -> None:
    probability = np.float32(0.3)  # 0.300000012
    above = metrics.above(np.array([[probability, probability]]), [float(probability), float(probability) + 1e-10])
    assert above.tolist() == [[True, False]]


@pytest.mark.parametrize("constant", [0.1, 1e-30, 3e8])
def test_correlations_of_what_is_constant_are_zero(constant: float) -> None:
    same, other = np.full(7, constant, np.float32), np.arange(7.0)
    for one, two in ((same, other), (other, same), (same, same)):
        assert metrics.pearson(one, two) == metrics.spearman(one, two) == 0
    assert metrics.pearson(np.array([1.0]), np.array([2.0])) == 0
    assert metrics.r2(same, same) == 1
    assert metrics.r2(same, other) == 0


@pytest.mark.parametrize("scale", [1e-200, 1.0, 1e200])
def test_correlations_know_no_scale(scale: float) -> None:
    numbers = np.array([1.0, 2.0, 4.0])
    assert metrics.pearson(numbers * scale, numbers) == pytest.approx(1)
    assert metrics.spearman(numbers * scale, -numbers) == pytest.approx(-1)


@pytest.mark.parametrize(
    ("scores", "expected", "threshold"),
    [
        ([0.1, 0.2, 0.3, 0.4], [0, 0, 1, 1], 0.25),  # halfway between the neighbours
        ([0.1, 0.2, 0.7, 0.9], [0, 0, 1, 1], 0.5),  # 0.5 is as good as 0.45
        ([0.1, 0.2, 0.3], [0, 0, 0], 0.5),  # no reason for another
        ([0.6, 0.8], [1, 1], 0.5),
        ([0.1, 0.2], [1, 1], 0.05),  # all of them: halfway to 0
        ([0.0, 0.0], [1, 0], 0.0),
        ([0.3, 0.3, 0.1], [1, 0, 0], 0.2),  # equal probabilities stay together
        ([0.9, 0.8, 0.7, 0.6], [1, 0, 0, 1], 0.5),  # F1 2/3 at 0.85, and 2/3 with all
    ],
)
def test_thresholds(scores: list[float], expected: list[int], threshold: float) -> None:
    tuned = metrics.tune_thresholds(np.array(scores)[:, None], np.array(expected, np.bool_)[:, None])
    assert tuned == pytest.approx([threshold])


def test_a_threshold_has_the_best_f1_there_is() -> None:
    rng = np.random.default_rng(2)
    scores = np.round(rng.random((40, 30)), 1).astype(np.float32)  # many ties
    expected = rng.random((40, 30)) < 0.3

    def f1(thresholds: list[float]) -> np.ndarray:
        return Counts.of_matrices(expected, metrics.above(scores, thresholds)).f1

    tuned = f1(metrics.tune_thresholds(scores, expected))
    assert (tuned >= np.max([f1([each / 20 + 0.025] * 30) for each in range(20)], axis=0)).all()


def test_thresholds_of_other_examples_give_no_credit_for_chance() -> None:
    rng = np.random.default_rng(5)
    scores, expected = rng.random((300, 20)), rng.random((300, 20)) < 0.02
    own = metrics.multilabel_metrics(expected, scores, metrics.tune_thresholds(scores, expected))["macro_f1"]
    crossed = metrics.multilabel_metrics(expected, scores, metrics.cross_thresholds(scores, expected))["macro_f1"]
    assert crossed < 0.05 < 0.07 < own  # always predicting a label has 2 * 0.02 / 1.02


def test_thresholds_of_other_examples_do_not_depend_on_the_example_itself() -> None:
    rng = np.random.default_rng(6)
    scores, expected = rng.random((30, 1)), rng.random((30, 1)) < 0.3
    before = metrics.cross_thresholds(scores, expected)
    for example in range(30):
        changed, other = expected.copy(), scores.copy()
        changed[example], other[example] = ~expected[example], 0.01
        assert metrics.cross_thresholds(other, changed)[example] == before[example]


@pytest.mark.parametrize("examples", [0, 1, 3])
def test_few_examples_have_thresholds(examples: int) -> None:
    assert (
        metrics.cross_thresholds(np.zeros((examples, 2)), np.zeros((examples, 2), np.bool_)).tolist()
        == [[0.5, 0.5]] * examples
    )


def test_the_metrics_that_can_be_chosen_are_those_that_are_computed() -> None:
    one, several = np.array([0, 1]), np.eye(2)
    assert set(TASKS["classify"].metrics) == set(metrics.classify_metrics(one, several))
    assert set(TASKS["multilabel"].metrics) == set(metrics.multilabel_metrics(several > 0, several, [0.5, 0.5]))
    assert set(TASKS["regress"].metrics) == set(metrics.regress_metrics(one, one))
