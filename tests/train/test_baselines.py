"""Baselines: the simple ones by hand, the linear models on data that they can and cannot fit."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest

import mlxbert
from mlxbert.errors import ArgumentError
from mlxbert.labels.labels import Labels
from mlxbert.model import Model
from mlxbert.train.data.labelled_texts import LabelledText
from mlxbert.train.objectives import make_objective, text_objective
from mlxbert.train.scores.linear_models import IDENTITY, SOFTMAX, fit_linear
from tests.helpers import tiny
from tests.train.test_scores import records

NAMES = ("animal", "city")
VERBS, LITTLE = ("is", "of", "sat", "on"), ("a", "the", "in", "to")


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Model:
    return mlxbert.load(tiny.save(tmp_path_factory.mktemp("baselines") / "model"))


def baselines(model: Model, train: Any, valid: Any, task: str, names: tuple[str, ...], metric: str) -> dict[str, float]:
    """The baselines of a task with these labels."""
    objective: Any = make_objective(task, metric=metric)
    objective.labels = Labels(names or ("value",), objective.problem_type)
    found: dict[str, float] = objective.baselines(model, train, valid)
    return found


def texts(label_of: Any, pair: bool = False) -> list[LabelledText]:
    """Sentences with an animal or a city, and the label that `label_of` gives for each."""
    rows = []
    for number in range(80):
        word = ("cat", "dog", "paris", "tokyo")[number % 4]
        text = f"the {word} {VERBS[number // 4 % 4]} {LITTLE[number // 16 % 4]} store"
        second = ("the store", text)[number % 3 == 0] if pair else None
        rows.append(LabelledText(text, second, label_of(number, text, second), f"line {number}"))
    return rows


def parted(given: list[LabelledText]) -> tuple[list[LabelledText], list[LabelledText]]:
    """Training and validation records, each with every kind of sentence."""
    return [each for number, each in enumerate(given) if number % 5], given[::5]


def test_the_largest_class_of_the_training_data(model: Model) -> None:
    train = records(*["animal"] * 3, *["city"] * 2)
    valid = records(*["animal"] * 1, *["city"] * 3)
    assert baselines(model, train, valid, "classify", NAMES, "accuracy")["largest class"] == 1 / 4
    assert baselines(model, train, valid, "classify", NAMES, "macro_f1")["largest class"] == pytest.approx(0.4 / 2)
    entropy = baselines(model, train, valid, "classify", NAMES, "log_loss")["largest class"]
    assert entropy == pytest.approx(-(np.log(0.6) + 3 * np.log(0.4)) / 4)


def test_of_classes_as_frequent_the_best_is_named_so(model: Model) -> None:
    train, valid = records(*["animal", "city"] * 2), records("animal", *["city"] * 3)
    assert baselines(model, train, valid, "classify", NAMES, "accuracy")["best of the largest classes"] == 3 / 4
    assert baselines(model, train[1:], valid, "classify", NAMES, "accuracy")["largest class"] == 3 / 4
    assert baselines(model, train[:3], valid, "classify", NAMES, "accuracy")["largest class"] == 1 / 4


def test_the_most_frequent_labels_of_the_training_data(model: Model) -> None:
    names = ("a", "b", "c")
    train = records(("a", "b"), ("a", "b"), ("a",), ("c",), ("a", "b", "c"))  # 1.8 each: a and b
    valid = records(("a",), ("b", "c"))
    found = baselines(model, train, valid, "multilabel", names, "micro_f1")
    assert found["most frequent labels"] == pytest.approx(2 * 2 / (4 + 3))
    rare = baselines(model, records((), (), ("b",)), valid, "multilabel", names, "micro_f1")
    assert rare["most frequent labels"] == pytest.approx(2 * 1 / (2 + 3))


def test_the_mean_of_the_training_data(model: Model) -> None:
    train, valid = records(1.0, 3.0), records(2.0, 5.0)
    assert baselines(model, train, valid, "regress", (), "mse")["mean"] == pytest.approx(9 / 2)
    assert baselines(model, train, valid, "regress", (), "spearman")["mean"] == 0


@pytest.mark.parametrize(
    ("task", "metric", "label_of", "least"),
    [
        ("classify", "accuracy", lambda number, *_: NAMES[number % 4 // 2], 0.75),
        ("multilabel", "macro_f1", lambda number, *_: (NAMES[number % 4 // 2],) if number % 4 else NAMES, 0.8),
        ("regress", "spearman", lambda number, *_: float(number % 4 // 2), 0.8),
    ],
)
def test_frozen_vectors_know_what_the_model_knows(
    model: Model, task: str, metric: str, label_of: Any, least: float
) -> None:
    given = texts(label_of)
    found = baselines(model, *parted(given), task, NAMES, metric)
    assert found["frozen vectors"] >= least
    (simple,) = found.keys() - {"frozen vectors"}
    assert found["frozen vectors"] > found[simple] + 0.1


def test_pairs_are_compared(model: Model) -> None:
    given: list[Any] = texts(lambda number, text, second: NAMES[text == second], pair=True)
    assert baselines(model, *parted(given), "classify", NAMES, "accuracy")["frozen vectors"] == 1
    turned: list[Any] = [LabelledText(each.pair or "", each.text, each.label, each.place) for each in given]
    assert np.array_equal(text_objective._vectors(model, given), text_objective._vectors(model, turned))


def test_a_model_without_vectors_has_the_simple_baseline(tmp_path: Path) -> None:
    folder = tiny.save(tmp_path / "model")
    tagged = mlxbert.load(folder, task="fill-mask")
    found = baselines(tagged, records(1.0, 3.0), records(2.0), "regress", (), "mae")
    assert found == {"mean": 0}


def test_an_unknown_metric_is_refused(model: Model) -> None:
    with pytest.raises(ArgumentError, match="accuracy"):
        baselines(model, [], [], "regress", (), "accuracy")


def test_a_linear_model_does_not_depend_on_the_scale_of_vectors() -> None:
    rng = np.random.default_rng(0)
    vectors, targets = rng.normal(size=(50, 8)), np.eye(3)[rng.integers(0, 3, 50)]
    once = fit_linear(vectors, targets, SOFTMAX)(vectors)
    assert once.sum(1) == pytest.approx(np.ones(50))
    assert fit_linear(vectors * 1e4 + 7, targets, SOFTMAX)(vectors * 1e4 + 7) == pytest.approx(once)


@pytest.mark.parametrize("vectors", [np.zeros((4, 3)), np.ones((4, 3), np.float32), np.full((4, 3), 1e-38)])
def test_vectors_that_are_all_the_same_give_the_shares(vectors: Any) -> None:
    targets = np.eye(2)[[0, 0, 0, 1]]
    assert fit_linear(vectors, targets, SOFTMAX)(vectors)[0] == pytest.approx([0.75, 0.25], abs=0.01)
    assert fit_linear(vectors, targets[:, 0], IDENTITY)(vectors)[0] == pytest.approx(0.75)


def test_a_class_without_examples_is_not_predicted() -> None:
    vectors = np.random.default_rng(0).normal(size=(30, 5))
    predicted = fit_linear(vectors, np.eye(3)[[0, 1] * 15], SOFTMAX)(vectors)
    assert predicted[:, 2].max() < 0.05
