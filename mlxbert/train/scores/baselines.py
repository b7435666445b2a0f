"""Baselines: simple methods on the same validation data, for comparison with a model's score.

Shapes: N examples, C labels, D size of a vector.
"""

from collections.abc import Sequence
from typing import Protocol

import numpy as np

from mlxbert.errors import MlxbertError
from mlxbert.model import Model
from mlxbert.tasks.embed import embed
from mlxbert.train.data.labelled_texts import LabelledText
from mlxbert.train.scores.linear_models import Link, fit_linear
from mlxbert.train.scores.metrics import Floats, Ints, Numbers

MAX_EXAMPLES = 2000  # maximum number of embedded examples in each split
FROZEN = "frozen vectors"


class Baseline(Protocol):
    """The methods that baselines need from the objective of a task."""

    @property
    def link(self) -> Link: ...

    def constant(self, train: Sequence[LabelledText], valid: Sequence[LabelledText]) -> dict[str, float]:
        """Returns the main metric on `valid` of always predicting what is most common in `train`.

        The metric is keyed by the name of the baseline.
        """

    def expected(self, records: Sequence[LabelledText]) -> Floats:
        """Returns the targets for a linear model (see `fit_linear`)."""

    def score(self, expected: Floats, predicted: Floats) -> float:
        """Returns the main metric of a linear model's predictions."""


def baselines(
    task: Baseline, model: Model, train: Sequence[LabelledText], valid: Sequence[LabelledText], *, seed: int = 0
) -> dict[str, float]:
    """Returns the main metric of simple methods on the validation data, keyed by the name of the method.

    The first method always predicts what is most common in the training data. `frozen vectors` is a linear model on the
    vectors of the untrained model, for at most 2,000 examples of each split. It is left out if the model cannot embed
    the texts.
    """
    targets, expected = task.expected(train), task.expected(valid)
    scores = task.constant(train, valid)
    train_rows, valid_rows = _sample(len(train), seed), _sample(len(valid), seed)
    try:
        vectors = _vectors(model, [train[number] for number in train_rows])
        predict = fit_linear(vectors, targets[train_rows], task.link)
        predicted = predict(_vectors(model, [valid[number] for number in valid_rows]))
    except MlxbertError:  # hours of training must not fail because of a baseline
        return scores
    return scores | {FROZEN: task.score(expected[valid_rows], predicted)}


def _sample(examples: int, seed: int) -> Ints:
    """Returns the sorted indices of a random sample of at most `MAX_EXAMPLES` examples."""
    if examples <= MAX_EXAMPLES:
        return np.arange(examples)
    return np.sort(np.random.default_rng(seed).choice(examples, MAX_EXAMPLES, replace=False))


def _vectors(model: Model, records: Sequence[LabelledText]) -> Numbers:
    """Returns the vector of each text, (N, D), or |u - v| and u * v for each pair of vectors u and v, (N, 2D).

    If u and v were concatenated, a linear model could not compare them. |u - v| shows where they differ, and u * v
    (whose sum is their cosine) where they agree. Neither depends on the order of the texts.
    """
    first = embed(model, [record.text for record in records])
    if all(record.pair is None for record in records):
        return first
    second = embed(model, [record.pair or "" for record in records])
    return np.hstack([np.abs(first - second), first * second])
