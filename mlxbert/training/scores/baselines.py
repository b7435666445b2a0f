"""Simple methods on the same validation data, next to which a score means something.

Shapes: N examples, C labels, D numbers of a vector.
"""

from collections.abc import Sequence
from typing import Protocol

import numpy as np

from mlxbert.data.labelled_texts import LabelledText
from mlxbert.errors import MlxbertError
from mlxbert.model import Model
from mlxbert.tasks.embed import embed
from mlxbert.training.scores.linear_models import Link, fit_linear
from mlxbert.training.scores.metrics import Floats, Ints, Numbers

MOST = 2000  # examples that are embedded, of the training data and of the validation data
FROZEN = "frozen vectors"


class Baseline(Protocol):
    """What a task knows of its baselines.

    Attributes:
        link: That of a linear model for the task.
    """

    @property
    def link(self) -> Link: ...  # noqa: D102

    def constant(self, known: Sequence[LabelledText], asked: Sequence[LabelledText]) -> dict[str, float]:
        """The main metric on `asked` of predicting for every example what is most common in `known`, by its name."""

    def expected(self, records: Sequence[LabelledText]) -> Floats:
        """What a linear model should predict, as `fit_linear` takes it."""

    def score(self, expected: Floats, predicted: Floats) -> float:
        """The main metric of the predictions of a linear model."""


def baselines(
    task: Baseline, model: Model, train: Sequence[LabelledText], valid: Sequence[LabelledText], *, seed: int = 0
) -> dict[str, float]:
    """The metric of simple methods on the validation data, by their names.

    The first predicts what is most common in the training data, whatever the text. `frozen vectors` is a linear model
    on the vectors of the untrained model, of at most 2,000 examples of each part; it is left out where the model makes
    none.

    Args:
        task: The task.
        model: The model that training starts from, before it.
        train: Training records.
        valid: Validation records.
        seed: Determines which examples are embedded.
    """
    targets, expected = task.expected(train), task.expected(valid)
    found = task.constant(train, valid)
    known, asked = _sample(len(train), seed), _sample(len(valid), seed)
    try:
        vectors = _vectors(model, [train[number] for number in known])
        predict = fit_linear(vectors, targets[known], task.link)
        predicted = predict(_vectors(model, [valid[number] for number in asked]))
    except MlxbertError:  # hours of training do not fail for this
        return found
    return found | {FROZEN: task.score(expected[asked], predicted)}


def _sample(examples: int, seed: int) -> Ints:
    """Numbers of at most `MOST` examples, in their order."""
    if examples <= MOST:
        return np.arange(examples)
    return np.sort(np.random.default_rng(seed).choice(examples, MOST, replace=False))


def _vectors(model: Model, records: Sequence[LabelledText]) -> Numbers:
    """The vector of each text, (N, D); of two texts u and v, |u - v| and u * v, (N, 2D).

    A linear model cannot compare u and v if it sees them side by side. It can weigh where they differ (|u - v|) and
    where they agree (u * v, whose sum is their cosine), and neither depends on their order.
    """
    first = embed(model, [record.text for record in records])
    if all(record.pair is None for record in records):
        return first
    second = embed(model, [record.pair or "" for record in records])
    return np.hstack([np.abs(first - second), first * second])
