"""Evaluates predictions on labelled records: classes, any number of labels, or numbers.

Shapes: N examples, C labels.
"""

from collections.abc import Mapping, Sequence
from typing import Any, NotRequired, Protocol, TypedDict, Unpack

import numpy as np

from mlxbert.errors import ArgumentError, InputError
from mlxbert.other_libraries import not_one_of
from mlxbert.tasks.task import check_finite
from mlxbert.train.options.training_tasks import TASKS
from mlxbert.train.scores.evaluation_summary import Evaluation, LabelScore, Mistake
from mlxbert.train.scores.metrics import (
    DEFAULT_THRESHOLD,
    Bools,
    Counts,
    Floats,
    Ints,
    Numbers,
    above,
    classify_interval,
    classify_metrics,
    confusion_matrix,
    multilabel_interval,
    multilabel_metrics,
    regress_interval,
    regress_metrics,
)

MISTAKES = 10  # maximum number of mistakes in an evaluation


class LabelledRecord(Protocol):
    """A text or a pair with its location, and the label, the labels or the number to predict."""

    @property
    def text(self) -> str: ...
    @property
    def pair(self) -> str | None: ...
    @property
    def label(self) -> Any: ...
    @property
    def place(self) -> str: ...


class EvaluationFacts(TypedDict):
    """The fields of an `Evaluation` that are not scores."""

    model: str
    data: tuple[str, ...]
    truncated: NotRequired[int]
    unknown: NotRequired[Mapping[str, int]]


def classification(
    records: Sequence[LabelledRecord],
    names: Sequence[str],
    probabilities: Numbers,
    *,
    metric: str = "accuracy",
    **about: Unpack[EvaluationFacts],
) -> Evaluation:
    """Evaluates predictions of one label per example."""
    check_predictions("classify", metric, records, probabilities, (len(records), len(names)))
    expected = label_numbers(records, names)
    predicted = probabilities.argmax(1)
    confusion = confusion_matrix(expected, predicted, len(names))
    scores = classify_metrics(expected, probabilities)
    confidences = probabilities.max(1)
    worst = worst_first(confidences, expected != predicted)
    return Evaluation(
        task="classify",
        examples=len(records),
        metric=metric,
        score=scores[metric],
        interval=classify_interval(metric, scores[metric], expected, predicted, probabilities),
        metrics=scores,
        labels=label_scores(names, Counts(np.diag(confusion), confusion.sum(0), confusion.sum(1))),
        confusion=tuple(map(tuple, confusion.tolist())),
        mistakes=tuple(
            mistake(records[number], names[expected[number]], names[predicted[number]], confidences[number])
            for number in worst
        ),
        **about,
    )


def multilabel(
    records: Sequence[LabelledRecord],
    names: Sequence[str],
    probabilities: Numbers,
    *,
    thresholds: Sequence[float] | Floats | None = None,
    metric: str = "macro_f1",
    **about: Unpack[EvaluationFacts],
) -> Evaluation:
    """Evaluates predictions of any number of labels per example.

    Args:
        thresholds: The lowest probability at which a label is predicted: (C,), or (N, C) for thresholds that depend on
            the example; 0.5 by default. See `tune_thresholds` and `cross_thresholds`.
    """
    check_predictions("multilabel", metric, records, probabilities, (len(records), len(names)))
    thresholds = [DEFAULT_THRESHOLD] * len(names) if thresholds is None else thresholds
    if np.shape(thresholds) not in ((len(names),), probabilities.shape):
        raise ArgumentError(
            f"`thresholds` have the shape {np.shape(thresholds)}, expected a threshold for each of {len(names)} labels"
        )
    expected = label_matrix(records, names)
    predicted = above(probabilities, thresholds)
    scores = multilabel_metrics(expected, probabilities, thresholds)
    confidences = np.where(predicted, probabilities, 1 - probabilities)
    wrong = np.where(expected == predicted, 0, confidences)
    worst = worst_first(wrong.max(1), (expected != predicted).any(1))
    return Evaluation(
        task="multilabel",
        examples=len(records),
        metric=metric,
        score=scores[metric],
        interval=multilabel_interval(metric, expected, predicted, probabilities),
        metrics=scores,
        labels=label_scores(names, Counts.of_matrices(expected, predicted)),
        mistakes=tuple(
            mistake(
                records[number],
                _joined(names, expected[number]),
                _joined(names, predicted[number]),
                wrong[number].max(),
                names[wrong[number].argmax()],
            )
            for number in worst
        ),
        **about,
    )


def regression(
    records: Sequence[LabelledRecord], values: Numbers, *, metric: str = "spearman", **about: Unpack[EvaluationFacts]
) -> Evaluation:
    """Evaluates predictions of numbers."""
    check_predictions("regress", metric, records, values, (len(records),))
    expected, predicted = numbers(records), values.astype(np.float64)
    scores = regress_metrics(expected, predicted)
    distance = np.abs(predicted - expected)
    return Evaluation(
        task="regress",
        examples=len(records),
        metric=metric,
        score=scores[metric],
        interval=regress_interval(metric, expected, predicted),
        metrics=scores,
        mistakes=tuple(
            mistake(records[number], f"{expected[number]:.4g}", f"{predicted[number]:.4g}", distance[number])
            for number in worst_first(distance, distance > 0)
        ),
        **about,
    )


def label_numbers(records: Sequence[LabelledRecord], names: Sequence[str]) -> Ints:
    """Returns the index of each record's label among the `names`, (N,)."""
    indices = {name: number for number, name in enumerate(names)}
    return np.array([_number(record, record.label, indices) for record in records], np.int64)


def label_matrix(records: Sequence[LabelledRecord], names: Sequence[str]) -> Bools:
    """Returns whether each record has each label, (N, C)."""
    indices = {name: number for number, name in enumerate(names)}
    matrix = np.zeros((len(records), len(names)), np.bool_)
    for row, record in zip(matrix, records, strict=True):
        row[[_number(record, label, indices) for label in record.label]] = True
    return matrix


def numbers(records: Sequence[LabelledRecord]) -> Floats:
    """Returns the number that each record holds, (N,)."""
    return np.array([record.label for record in records], np.float64)


def _number(record: LabelledRecord, label: str, indices: dict[str, int]) -> int:
    if label not in indices:
        raise InputError(
            f"{record.place}: label is {label!r:.60}, but the model's labels are {', '.join(list(indices)[:20])}",
            hint="the spelling of labels must match exactly, including case and the spaces within",
        )
    return indices[label]


def check_predictions(
    task: str, metric: str, records: Sequence[LabelledRecord], predictions: Numbers, shape: tuple[int, ...]
) -> None:
    """Raises an error if predictions cannot be evaluated.

    The metric must be known, there must be records, and predictions must be finite and have the expected shape.
    """
    check_metric(task, metric)
    if not records:
        raise InputError("there is no example to evaluate")
    if predictions.shape != shape:
        raise ArgumentError(f"`predictions` have the shape {predictions.shape}, expected {shape}")
    check_finite(predictions, "predictions")


def check_metric(task: str, metric: str) -> None:
    """Raises `ArgumentError` if the task does not have this metric."""
    if metric not in TASKS[task].metrics:
        raise not_one_of("metric", metric, TASKS[task].metrics)


def label_scores(names: Sequence[str], counts: Counts) -> tuple[LabelScore, ...]:
    """Computes the scores of C labels from their counts."""
    columns = (counts.precision.tolist(), counts.recall.tolist(), counts.f1.tolist(), counts.expected.tolist())
    return tuple(
        LabelScore(label=name, precision=precision, recall=recall, f1=f1, support=int(support))
        for name, precision, recall, f1, support in zip(names, *columns, strict=True)
    )


def worst_first(badness: Numbers, wrong: Bools) -> list[int]:
    """Returns the indices of the wrong examples with the largest `badness`, the worst first; at most `MISTAKES`."""
    ranked = np.argsort(-badness, kind="stable")
    return [int(number) for number in ranked[wrong[ranked]][:MISTAKES]]


def mistake(record: LabelledRecord, expected: str, predicted: str, score: float, label: str | None = None) -> Mistake:
    """Makes the `Mistake` of a record."""
    return Mistake(
        text=record.text,
        pair=record.pair,
        expected=expected,
        predicted=predicted,
        score=float(score),
        place=record.place,
        label=label,
    )


def _joined(names: Sequence[str], has: Bools) -> str:
    return ", ".join(name for name, present in zip(names, has.tolist(), strict=True) if present)
