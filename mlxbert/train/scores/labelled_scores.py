"""Evaluates predictions on labelled records: classes, any number of labels, or numbers.

Shapes: N examples, C labels.
"""

from collections.abc import Sequence
from typing import Any

import numpy as np

from mlxbert.errors import InputError
from mlxbert.tasks.task import check_finite
from mlxbert.train.data.labelled_texts import LabelledText
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


def classification(
    records: Sequence[LabelledText],
    names: Sequence[str],
    probabilities: Numbers,
    *,
    metric: str = "accuracy",
    **about: Any,
) -> Evaluation:
    """Evaluates predictions of one label per example."""
    check_finite(probabilities, "predictions")
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
    records: Sequence[LabelledText],
    names: Sequence[str],
    probabilities: Numbers,
    *,
    thresholds: Sequence[float] | Floats | None = None,
    metric: str = "macro_f1",
    **about: Any,
) -> Evaluation:
    """Evaluates predictions of any number of labels per example.

    Args:
        thresholds: The lowest probability at which a label is predicted: (C,), or (N, C) for thresholds that depend on
            the example; 0.5 by default. See `tune_thresholds` and `cross_thresholds`.
    """
    check_finite(probabilities, "predictions")
    thresholds = [DEFAULT_THRESHOLD] * len(names) if thresholds is None else thresholds
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
    records: Sequence[LabelledText], values: Numbers, *, metric: str = "spearman", **about: Any
) -> Evaluation:
    """Evaluates predictions of numbers."""
    check_finite(values, "predictions")
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


def label_numbers(records: Sequence[LabelledText], names: Sequence[str]) -> Ints:
    """Returns the index of each record's label among the `names`, (N,)."""
    indices = {name: number for number, name in enumerate(names)}
    return np.array([_number(record, record.names[0], indices) for record in records], np.int64)


def label_matrix(records: Sequence[LabelledText], names: Sequence[str]) -> Bools:
    """Returns whether each record has each label, (N, C)."""
    indices = {name: number for number, name in enumerate(names)}
    matrix = np.zeros((len(records), len(names)), np.bool_)
    for row, record in zip(matrix, records, strict=True):
        row[[_number(record, label, indices) for label in record.names]] = True
    return matrix


def numbers(records: Sequence[LabelledText]) -> Floats:
    """Returns the number that each record holds, (N,)."""
    return np.array([record.label for record in records], np.float64)


def _number(record: LabelledText, label: str, indices: dict[str, int]) -> int:
    if label not in indices:
        raise InputError(
            f"{record.place}: label is {label!r:.60}, but the model's labels are {', '.join(list(indices)[:20])}",
            hint="the spelling of labels must match exactly, including case and the spaces within",
        )
    return indices[label]


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


def mistake(record: LabelledText, expected: str, predicted: str, score: float, label: str | None = None) -> Mistake:
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
