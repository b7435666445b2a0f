"""Metrics, as scikit-learn and scipy compute them, with a few exceptions that are named here.

JSON has no NaN, and a training run compares evaluations; so nothing is undefined:

- precision, recall and F1 are 0 where they divide by 0 (`zero_division=0`);
- correlations are 0 where the predictions or the expected numbers are all the same, or there is one example: they tell
  nothing about the order;
- R² of expected numbers that are all the same is 1 if all predictions are right, else 0.

Averages leave out a label that is neither expected nor predicted: data without it tell nothing about it. scikit-learn
does so where an example has one label; where it may have several, it counts such a label as 0 unless `labels` leaves it
out.

Shapes: N examples, C labels.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

Ints = NDArray[np.int64]
Floats = NDArray[np.float64]
Bools = NDArray[np.bool_]
Numbers = NDArray[np.float32] | NDArray[np.float64]

PARTS = 5  # of examples, for `cross_thresholds`
MIDDLE = 0.5  # the threshold of a label that gives no reason for another


@dataclass(frozen=True)
class Counts:
    """How often each label was right, predicted and expected; each (C,)."""

    right: Floats
    predicted: Floats
    expected: Floats

    @classmethod
    def of_confusion(cls, confusion: Ints) -> "Counts":
        """Those of a confusion matrix (C, C), without labels that do not occur."""
        return cls(np.diag(confusion), confusion.sum(0), confusion.sum(1)).occurring()

    @classmethod
    def of_matrices(cls, expected: Bools, predicted: Bools) -> "Counts":
        """Those of labels that examples have, and are predicted to have; (N, C) each."""
        return cls(*(each.sum(0) for each in (expected & predicted, predicted, expected)))

    @property
    def precision(self) -> Floats:
        """The share of predictions that are right, (C,)."""
        return ratio(self.right, self.predicted)

    @property
    def recall(self) -> Floats:
        """The share of expected labels that are predicted, (C,)."""
        return ratio(self.right, self.expected)

    @property
    def f1(self) -> Floats:
        """The harmonic mean of precision and recall, (C,)."""
        return ratio(2 * self.right, self.predicted + self.expected)

    def occurring(self) -> "Counts":
        """Those of labels that are expected or predicted at least once."""
        occurs = self.predicted + self.expected > 0
        return Counts(self.right[occurs], self.predicted[occurs], self.expected[occurs])

    def sum(self) -> "Counts":
        """All labels as one, (1,): the source of micro averages."""
        return Counts(*(each.sum(keepdims=True) for each in (self.right, self.predicted, self.expected)))


def ratio(part: Floats, whole: Floats) -> Floats:
    """Part / whole, elementwise; 0 where the whole is 0."""
    return np.divide(part, whole, out=np.zeros(np.shape(whole)), where=whole != 0)


def confusion_matrix(expected: Ints, predicted: Ints, labels: int) -> Ints:
    """How often each label (row) was taken for each label (column), (C, C), of label numbers (N,)."""
    return np.bincount(expected * labels + predicted, minlength=labels**2).reshape(labels, labels)


def accuracy(confusion: Ints) -> float:
    """The share of examples that are right."""
    return float(np.trace(confusion) / max(confusion.sum(), 1))


def matthews(confusion: Ints) -> float:
    """The correlation of expected and predicted labels (Gorodkin 2004); 0 if one of them is always the same."""
    total = confusion.sum()
    if max(confusion.sum(0).max(), confusion.sum(1).max()) == total:
        return 0.0
    share = confusion / total
    expected, predicted = share.sum(1), share.sum(0)
    spread = np.sqrt((1 - expected @ expected) * (1 - predicted @ predicted))
    return float((np.trace(share) - expected @ predicted) / spread)


def weighted_f1(counts: Counts) -> float:
    """The mean F1 of labels, weighted by how often each is expected."""
    return float(counts.f1 @ counts.expected / max(counts.expected.sum(), 1))


def macro_f1(counts: Counts) -> float:
    """The mean F1 of the labels that occur; 0 if none does."""
    f1 = counts.occurring().f1
    return float(f1.sum() / max(len(f1), 1))


# The metrics of one label per example that a confusion matrix determines.
OF_CONFUSION: Mapping[str, Callable[[Ints], float]] = {
    "accuracy": accuracy,
    "macro_f1": lambda confusion: macro_f1(Counts.of_confusion(confusion)),
    "weighted_f1": lambda confusion: weighted_f1(Counts.of_confusion(confusion)),
    "macro_precision": lambda confusion: float(Counts.of_confusion(confusion).precision.mean()),
    "macro_recall": lambda confusion: float(Counts.of_confusion(confusion).recall.mean()),
    "matthews": matthews,
}
# Those of several labels per example that the counts of labels determine.
OF_COUNTS: Mapping[str, Callable[[Counts], float]] = {
    "macro_f1": macro_f1,
    "micro_f1": lambda counts: float(counts.sum().f1[0]),
    "weighted_f1": weighted_f1,
    "micro_precision": lambda counts: float(counts.sum().precision[0]),
    "micro_recall": lambda counts: float(counts.sum().recall[0]),
}


def negative_log(probabilities: Numbers) -> Floats:
    """-log p, elementwise; p keeps a distance of its dtype's epsilon from 0 and 1, as in scikit-learn."""
    eps = np.finfo(probabilities.dtype).eps
    return -np.log(np.clip(probabilities, eps, 1 - eps).astype(np.float64))


def cross_entropies(logits: Numbers, expected: Sequence[int] | Ints) -> Floats:
    """The cross-entropy of each row, (N,), in nats; of logits (N, C) and label numbers (N,)."""
    wide = logits.astype(np.float64)
    wide -= wide.max(axis=1, keepdims=True)
    losses: Floats = np.log(np.exp(wide).sum(axis=1)) - wide[np.arange(len(wide)), expected]
    return losses


def classify_losses(expected: Ints, probabilities: Numbers) -> Floats:
    """The cross-entropy of each example, (N,), in nats; of label numbers (N,) and probabilities (N, C)."""
    return negative_log(probabilities[np.arange(len(expected)), expected])


def multilabel_losses(expected: Bools, probabilities: Numbers) -> Floats:
    """The binary cross-entropy of each example, (N,), the mean over its labels; of (N, C) and (N, C)."""
    return negative_log(np.where(expected, probabilities, 1 - probabilities)).mean(1)


def classify_metrics(expected: Ints, probabilities: Numbers) -> dict[str, float]:
    """The metrics of one label per example.

    Args:
        expected: Label numbers, (N,).
        probabilities: Of every label, (N, C); the first of several largest ones is predicted.
    """
    confusion = confusion_matrix(expected, probabilities.argmax(1), probabilities.shape[1])
    scores = {name: metric(confusion) for name, metric in OF_CONFUSION.items()}
    return scores | {"log_loss": float(classify_losses(expected, probabilities).mean())}


def multilabel_metrics(
    expected: Bools, probabilities: Numbers, thresholds: Sequence[float] | Floats
) -> dict[str, float]:
    """The metrics of any number of labels per example.

    Args:
        expected: Whether an example has a label, (N, C).
        probabilities: Of every label, (N, C).
        thresholds: The probabilities from which on a label is predicted, (C,), or (N, C) of `cross_thresholds`.
    """
    predicted = above(probabilities, thresholds)
    counts = Counts.of_matrices(expected, predicted)
    scores = {name: metric(counts) for name, metric in OF_COUNTS.items()}
    scores["subset_accuracy"] = float((expected == predicted).all(1).mean())
    return scores | {"log_loss": float(multilabel_losses(expected, probabilities).mean())}


def above(probabilities: Numbers, thresholds: Sequence[float] | Floats) -> Bools:
    """Which labels are predicted, (N, C)."""
    return probabilities >= np.asarray(thresholds, np.float64)  # a Python float would be rounded to float32


def regress_metrics(expected: Numbers, predicted: Numbers) -> dict[str, float]:
    """The metrics of numbers, each (N,)."""
    return {
        "spearman": spearman(expected, predicted),
        "pearson": pearson(expected, predicted),
        "mse": float(np.mean((predicted.astype(np.float64) - expected) ** 2)),
        "mae": float(np.mean(np.abs(predicted.astype(np.float64) - expected))),
        "r2": r2(expected, predicted),
    }


def pearson(first: Numbers, second: Numbers) -> float:
    """The correlation of two (N,), -1 to 1; 0 where one of them is constant."""
    if len(first) < 2 or np.ptp(first) == 0 or np.ptp(second) == 0:
        return 0.0
    one, two = (each.astype(np.float64) - each.mean(dtype=np.float64) for each in (first, second))
    one, two = one / np.abs(one).max(), two / np.abs(two).max()  # squares of tiny numbers would vanish
    return float(np.clip(one @ two / np.sqrt((one @ one) * (two @ two)), -1, 1))


def spearman(first: Numbers, second: Numbers) -> float:
    """The correlation of the ranks of two (N,), -1 to 1; equal numbers share their mean rank."""
    return pearson(ranks(order(first)), ranks(order(second)))


def order(values: Numbers) -> Ints:
    """The place of each value (N,) among the different values, from 0."""
    return np.unique(values, return_inverse=True)[1]


def ranks(places: Ints) -> Floats:
    """Ranks (N,) of whole numbers from 0, equal ones at their mean rank; in linear time."""
    counts = np.bincount(places)
    return (np.cumsum(counts) - (counts - 1) / 2)[places]


def r2(expected: Numbers, predicted: Numbers) -> float:
    """The share of the variance of (N,) that predictions (N,) explain; below 0 if the mean would be better."""
    error = float(np.sum((expected.astype(np.float64) - predicted) ** 2))
    if np.ptp(expected) == 0:
        return float(error == 0)
    return 1 - error / float(np.sum((expected - expected.mean(dtype=np.float64)) ** 2))


def tune_thresholds(probabilities: Numbers, expected: Bools) -> list[float]:
    """The threshold of each label with its best F1.

    Candidates lie halfway between neighbouring probabilities. The one nearest to 0.5 wins a tie, and 0.5 itself stays
    if no other is better: so does that of a label that no example has.

    Args:
        probabilities: Of every label, (N, C).
        expected: Whether an example has it, (N, C).
    """
    return [_tune(probabilities[:, label], expected[:, label]) for label in range(expected.shape[1])]


def cross_thresholds(probabilities: Numbers, expected: Bools, *, seed: int = 0) -> Floats:
    """Thresholds (N, C) of examples, tuned on others: with these the examples give a score that one can trust.

    Thresholds that are tuned on the very examples they are scored on make F1 look better than it is: the more so, the
    rarer a label is. Here the examples are dealt into five parts, and those of a part have thresholds of the others.

    Args:
        probabilities: Of every label, (N, C).
        expected: Whether an example has it, (N, C).
        seed: Determines the parts.
    """
    parts = np.random.default_rng(seed).permutation(len(expected)) % PARTS
    thresholds = np.empty(expected.shape)
    for part in range(PARTS):
        others = parts != part
        thresholds[~others] = tune_thresholds(probabilities[others], expected[others])
    return thresholds


def _tune(scores: Numbers, expected: Bools) -> float:
    """The threshold of one label, of (N,) and (N,)."""
    if not expected.any():
        return MIDDLE
    values, places = np.unique(scores.astype(np.float64), return_inverse=True)
    candidates = np.append((values + np.append(0.0, values[:-1])) / 2, MIDDLE)
    below = np.append(np.arange(len(values)), np.searchsorted(values, MIDDLE))  # distinct values under a candidate
    right = np.append(0, np.bincount(places, expected).cumsum())
    predicted = np.append(0, np.bincount(places).cumsum())
    right, predicted = right[-1] - right[below], predicted[-1] - predicted[below]
    f1 = 2 * right / (predicted + right.max())  # every example is above the first candidate
    best = np.flatnonzero(f1 == f1.max())
    return float(candidates[best[np.argmin(np.abs(candidates[best] - MIDDLE))]])
