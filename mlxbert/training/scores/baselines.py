"""Simple methods on the same validation data, next to which a score means something.

Shapes: N examples, C labels, D numbers of a vector.
"""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np

from mlxbert.errors import MlxbertError
from mlxbert.model import Model
from mlxbert.tasks.embed import embed
from mlxbert.training.scores.metrics import (
    Floats,
    Ints,
    Numbers,
    classify_metrics,
    cross_thresholds,
    multilabel_metrics,
    regress_metrics,
)
from mlxbert.training.scores.scoring import Labelled, check_metric, label_matrix, label_numbers, numbers

MOST = 2000  # examples that are embedded, of the training data and of the validation data
SIMPLE = {"classify": "largest class", "multilabel": "most frequent labels", "regress": "mean"}
FROZEN = "frozen vectors"
_STEPS, _TOLERANCE = 500, 1e-6


def baselines(
    model: Model,
    train: Sequence[Labelled],
    valid: Sequence[Labelled],
    task: str,
    labels: Sequence[str],
    metric: str,
    *,
    seed: int = 0,
) -> dict[str, float]:
    """The metric of simple methods on the validation data, by their names.

    `largest class`, `most frequent labels` (as many as examples have on average, at least one) and `mean` predict what
    is most common in the training data, whatever the text. `frozen vectors` is a logistic regression, or a ridge
    regression, on the vectors of the untrained model, of at most 2,000 examples of each part; it is left out where the
    model makes none. Its thresholds are those of `cross_thresholds`, as those of a trained
    model should be.

    Args:
        model: The model that training starts from, before it.
        train: Training records.
        valid: Validation records.
        task: `classify`, `multilabel` or `regress`.
        labels: The C labels; none for `regress`.
        metric: One of `METRICS[task]`.
        seed: Determines which examples are embedded.

    Raises:
        ArgumentError: The metric is not one of this task.
        InputError: A record has an unknown label.
    """
    check_metric(task, metric)
    targets, expected = _targets(train, task, labels), _targets(valid, task, labels)
    found = {SIMPLE[task]: _score_common(task, metric, targets, expected)}
    known, asked = _sample(len(train), seed), _sample(len(valid), seed)
    try:
        vectors = _vectors(model, [train[number] for number in known])
        predicted = fit_linear(vectors, targets[known], task)(_vectors(model, [valid[number] for number in asked]))
    except MlxbertError:  # hours of training do not fail for this
        return found
    return found | {FROZEN: _score(task, metric, expected[asked], predicted)}


@dataclass(frozen=True)
class LinearModel:
    """A linear model of vectors.

    Attributes:
        weights: (D, C), or (D,) for numbers.
        bias: (C,), or a number.
        link: What makes predictions of `vectors @ weights + bias`.
    """

    weights: Floats
    bias: Floats
    link: Callable[[Floats], Floats]

    def __call__(self, vectors: Numbers) -> Floats:
        """Vectors (M, D) to probabilities (M, C), or to numbers (M,)."""
        return self.link(vectors @ self.weights + self.bias)


def fit_linear(vectors: Numbers, targets: Floats, task: str) -> LinearModel:
    """Fits a linear model, its weights (not the bias) held small by an L2 penalty.

    Vectors are centred and scaled to a mean squared length of 1. The strength of the penalty is then 1, which is the
    default of scikit-learn and fits vectors of any model: sentence-transformers' have this length, others do not.
    Single values are not scaled, as models have some that are constant but for rounding.

    Args:
        vectors: (N, D).
        targets: 0 and 1 (N, C), one 1 per row for `classify`, any for `multilabel`; numbers (N,) for `regress`.
        task: `classify` (softmax), `multilabel` (a sigmoid per label) or `regress` (least squares).
    """
    middle = vectors.mean(0, dtype=np.float64)
    length = math.sqrt(float(((vectors - middle) ** 2).sum(1).mean())) or 1.0
    x = np.hstack([(vectors - middle) / length, np.ones((len(vectors), 1))])
    penalty = np.append(np.ones(x.shape[1] - 1), 0.0)
    link: Callable[[Floats], Floats]
    if task == "regress":
        weights = np.linalg.solve(x.T @ x + np.diag(penalty), x.T @ targets)
        link = _identity
    else:
        link = _softmax if task == "classify" else _sigmoid
        weights = _minimize(x, targets, penalty, link, curvature=0.5 if task == "classify" else 0.25)
    return LinearModel(weights[:-1] / length, weights[-1] - middle @ weights[:-1] / length, link)


def _minimize(
    x: Floats, targets: Floats, penalty: Floats, link: Callable[[Floats], Floats], curvature: float
) -> Floats:
    """The weights (D, C) with the least cross-entropy plus half the penalty times their squares.

    Newton's method with a bound of the Hessian (Böhning and Lindsay 1988), which is inverted once and makes every step
    safe without a line search; accelerated as by Nesterov, with restarts (arXiv:1204.3982).
    """
    inverse = np.linalg.inv(curvature * (x.T @ x) + np.diag(penalty))
    weights = ahead = np.zeros((x.shape[1], targets.shape[1]))
    pace = 1.0
    for _ in range(_STEPS):
        gradient = x.T @ (link(x @ ahead) - targets) + penalty[:, None] * ahead
        step = inverse @ gradient
        before, weights = weights, ahead - step
        if np.vdot(gradient, step) < _TOLERANCE * len(x):
            break
        if np.vdot(gradient, weights - before) > 0:
            pace = 1.0
        faster = (1 + math.sqrt(1 + 4 * pace**2)) / 2
        ahead, pace = weights + (pace - 1) / faster * (weights - before), faster
    return weights


def _identity(values: Floats) -> Floats:
    return values


def _softmax(logits: Floats) -> Floats:
    powers = np.exp(logits - logits.max(1, keepdims=True))
    return powers / powers.sum(1, keepdims=True)


def _sigmoid(logits: Floats) -> Floats:
    return (1 + np.tanh(logits / 2)) / 2


def _targets(records: Sequence[Labelled], task: str, labels: Sequence[str]) -> Floats:
    """What a linear model should predict; see `fit_linear`."""
    if task == "regress":
        return numbers(records)
    if task == "multilabel":
        return label_matrix(records, labels).astype(np.float64)
    return np.eye(len(labels))[label_numbers(records, labels)]


def _score_common(task: str, metric: str, targets: Floats, expected: Floats) -> float:
    """The score of predicting for every example what is most common in the training data."""
    share = targets.mean(0)
    thresholds = None
    if task == "multilabel":
        often = np.argsort(-share, kind="stable")[: max(round(float(targets.sum(1).mean())), 1)]
        thresholds = np.full(len(share), 2.0)
        thresholds[often] = 0.0
    return _score(task, metric, expected, np.broadcast_to(share, expected.shape), thresholds)


def _score(task: str, metric: str, expected: Floats, predicted: Floats, thresholds: Floats | None = None) -> float:
    if task == "regress":
        return regress_metrics(expected, predicted)[metric]
    if task == "classify":
        return classify_metrics(expected.argmax(1), predicted)[metric]
    has = expected.astype(np.bool_)
    chosen = cross_thresholds(predicted, has) if thresholds is None else thresholds
    return multilabel_metrics(has, predicted, chosen)[metric]


def _sample(examples: int, seed: int) -> Ints:
    """Numbers of at most `MOST` examples, in their order."""
    if examples <= MOST:
        return np.arange(examples)
    return np.sort(np.random.default_rng(seed).choice(examples, MOST, replace=False))


def _vectors(model: Model, records: Sequence[Labelled]) -> Numbers:
    """The vector of each text, (N, D); of two texts u and v, |u - v| and u * v, (N, 2D).

    A linear model cannot compare u and v if it sees them side by side. It can weigh where they differ (|u - v|) and
    where they agree (u * v, whose sum is their cosine), and neither depends on their order.
    """
    first = embed(model, [record.text for record in records])
    if all(record.pair is None for record in records):
        return first
    second = embed(model, [record.pair or "" for record in records])
    return np.hstack([np.abs(first - second), first * second])
