"""Metrics as in scikit-learn and scipy, with a few documented exceptions.

JSON has no NaN, and a training run compares evaluations; so every metric is always defined:

- precision, recall and F1 are 0 if they divide by 0 (`zero_division=0`);
- correlations are 0 if all predictions or all expected numbers are the same, or if there is one example: there is no
  information about the order;
- if all expected numbers are the same, R² is 1 if all predictions are right, otherwise 0.

Averages leave out labels that are neither expected nor predicted, because the data have no information about them.
scikit-learn does the same if each example has one label. If examples may have several labels, scikit-learn counts such
a label as 0, unless its argument `labels` leaves the label out.

Metrics of rankings are those of trec_eval. A document is relevant if its judgement is above 0. The gain in nDCG is the
judgement itself (linear, as in trec_eval; `2**grade - 1` is another common choice). MAP covers the whole ranking that
is given, and divides by the number of all relevant documents. Documents outside the ranking count as not found. With
judgements of 0 and 1, the results equal the results of sentence-transformers' InformationRetrievalEvaluator, except
that its `map@100` divides by 100 if more than 100 documents are relevant.

The uncertainty of metrics is a 95 % interval over the examples.

Shapes: N examples, C labels, Q queries.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from mlxbert.errors import ArgumentError, InputError

Ints = NDArray[np.int64]
Floats = NDArray[np.float64]
Bools = NDArray[np.bool_]
Numbers = NDArray[np.float32] | NDArray[np.float64]

FOLDS = 5  # number of parts into which `cross_thresholds` divides the examples
BASELINE_EXAMPLES = 2000  # maximum number of examples on which a baseline is computed
RESAMPLES = 1000  # of the examples, for an interval
DEFAULT_THRESHOLD = 0.5  # the threshold unless another one is better


@dataclass(frozen=True)
class Counts:
    """Three counts for each label, (C,) each: right predictions, all predictions, and expected labels."""

    right: Floats
    predicted: Floats
    expected: Floats

    @classmethod
    def of_confusion(cls, confusion: Ints) -> "Counts":
        """Returns the counts from a confusion matrix (C, C), without labels that do not occur."""
        return cls(np.diag(confusion), confusion.sum(0), confusion.sum(1)).occurring()

    @classmethod
    def of_matrices(cls, expected: Bools, predicted: Bools) -> "Counts":
        """Returns the counts for examples with any number of labels, from two arrays (N, C)."""
        return cls(*(matrix.sum(0) for matrix in (expected & predicted, predicted, expected)))

    @property
    def precision(self) -> Floats:
        """The share of the predictions that are right, (C,)."""
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
        """Returns the counts of the labels that are expected or predicted at least once."""
        occurs = self.predicted + self.expected > 0
        return Counts(self.right[occurs], self.predicted[occurs], self.expected[occurs])

    def sum(self) -> "Counts":
        """Returns the sum of the counts over all labels, (1,) each, for micro averages."""
        return Counts(*(counts.sum(keepdims=True) for counts in (self.right, self.predicted, self.expected)))


def ratio(part: Floats, total: Floats) -> Floats:
    """Returns part / total, elementwise; 0 where the total is 0."""
    return np.divide(part, total, out=np.zeros(np.shape(total)), where=total != 0)


def confusion_matrix(expected: Ints, predicted: Ints, labels: int) -> Ints:
    """Counts how often each label (row) was predicted as each label (column), (C, C), from label numbers (N,)."""
    return np.bincount(expected * labels + predicted, minlength=labels**2).reshape(labels, labels)


def accuracy(confusion: Ints) -> float:
    """Returns the share of right predictions."""
    return float(np.trace(confusion) / max(confusion.sum(), 1))


def matthews(confusion: Ints) -> float:
    """Returns the correlation of expected and predicted labels (Gorodkin 2004); 0 if either is constant."""
    total = confusion.sum()
    if max(confusion.sum(0).max(), confusion.sum(1).max()) == total:
        return 0.0
    share = confusion / total
    expected, predicted = share.sum(1), share.sum(0)
    spread = np.sqrt((1 - expected @ expected) * (1 - predicted @ predicted))
    return float((np.trace(share) - expected @ predicted) / spread)


def weighted_f1(counts: Counts) -> float:
    """Returns the mean F1 of the labels, weighted by how often each label is expected."""
    return float(counts.f1 @ counts.expected / max(counts.expected.sum(), 1))


def macro_f1(counts: Counts) -> float:
    """Returns the mean F1 of the labels that occur; 0 if no label occurs."""
    f1 = counts.occurring().f1
    return float(f1.sum() / max(len(f1), 1))


# Metrics of one label per example that are functions of the confusion matrix.
OF_CONFUSION: Mapping[str, Callable[[Ints], float]] = {
    "accuracy": accuracy,
    "macro_f1": lambda confusion: macro_f1(Counts.of_confusion(confusion)),
    "weighted_f1": lambda confusion: weighted_f1(Counts.of_confusion(confusion)),
    "macro_precision": lambda confusion: float(Counts.of_confusion(confusion).precision.mean()),
    "macro_recall": lambda confusion: float(Counts.of_confusion(confusion).recall.mean()),
    "matthews": matthews,
}
# Metrics of several labels per example that are functions of the counts.
OF_COUNTS: Mapping[str, Callable[[Counts], float]] = {
    "macro_f1": macro_f1,
    "micro_f1": lambda counts: float(counts.sum().f1[0]),
    "weighted_f1": weighted_f1,
    "micro_precision": lambda counts: float(counts.sum().precision[0]),
    "micro_recall": lambda counts: float(counts.sum().recall[0]),
}


def negative_log(probabilities: Numbers) -> Floats:
    """Returns -log p, elementwise. At 0 and 1, p is clipped by the epsilon of its dtype, as in scikit-learn."""
    eps = np.finfo(probabilities.dtype).eps
    return -np.log(np.clip(probabilities, eps, 1 - eps).astype(np.float64))


def cross_entropies(logits: Numbers, expected: Sequence[int] | Ints) -> Floats:
    """Returns the cross-entropy of each row, (N,), in nats, from logits (N, C) and label numbers (N,)."""
    wide = logits.astype(np.float64)
    wide -= wide.max(axis=1, keepdims=True)
    losses: Floats = np.log(np.exp(wide).sum(axis=1)) - wide[np.arange(len(wide)), expected]
    return losses


def classify_losses(expected: Ints, probabilities: Numbers) -> Floats:
    """Returns the cross-entropy of each example, (N,), in nats, from label numbers (N,) and probabilities (N, C)."""
    return negative_log(probabilities[np.arange(len(expected)), expected])


def multilabel_losses(expected: Bools, probabilities: Numbers) -> Floats:
    """Returns the binary cross-entropy of each example, (N,), averaged over the labels, from arrays (N, C)."""
    return negative_log(np.where(expected, probabilities, 1 - probabilities)).mean(1)


def classify_metrics(expected: Ints, probabilities: Numbers) -> dict[str, float]:
    """Returns the metrics of predictions of one label per example, from label numbers (N,) and probabilities (N, C).

    Of equally probable labels, the first is predicted.
    """
    confusion = confusion_matrix(expected, probabilities.argmax(1), probabilities.shape[1])
    scores = {name: metric(confusion) for name, metric in OF_CONFUSION.items()}
    return scores | {"log_loss": float(classify_losses(expected, probabilities).mean())}


def multilabel_metrics(
    expected: Bools, probabilities: Numbers, thresholds: Sequence[float] | Floats
) -> dict[str, float]:
    """Returns the metrics of predictions of any number of labels per example, from arrays (N, C).

    The thresholds, the lowest probabilities at which labels are predicted, are (C,), or (N, C) from `cross_thresholds`.
    """
    predicted = above(probabilities, thresholds)
    counts = Counts.of_matrices(expected, predicted)
    scores = {name: metric(counts) for name, metric in OF_COUNTS.items()}
    scores["subset_accuracy"] = float((expected == predicted).all(1).mean())
    return scores | {"log_loss": float(multilabel_losses(expected, probabilities).mean())}


def above(probabilities: Numbers, thresholds: Sequence[float] | Floats) -> Bools:
    """Returns whether the probability of each label is at least its threshold, (N, C)."""
    return probabilities >= np.asarray(thresholds, np.float64)  # a Python float would be rounded to float32


def regress_metrics(expected: Numbers, predicted: Numbers) -> dict[str, float]:
    """Returns the regression metrics, from arrays (N,)."""
    return {
        "spearman": spearman(expected, predicted),
        "pearson": pearson(expected, predicted),
        "mse": float(np.mean((predicted.astype(np.float64) - expected) ** 2)),
        "mae": float(np.mean(np.abs(predicted.astype(np.float64) - expected))),
        "r2": r2(expected, predicted),
    }


def pearson(first: Numbers, second: Numbers) -> float:
    """Returns the correlation of two arrays (N,), -1 to 1; 0 if either is constant."""
    if len(first) < 2 or np.ptp(first) == 0 or np.ptp(second) == 0:
        return 0.0
    x, y = (values.astype(np.float64) - values.mean(dtype=np.float64) for values in (first, second))
    x, y = x / np.abs(x).max(), y / np.abs(y).max()  # squares of tiny numbers would vanish
    return float(np.clip(x @ y / np.sqrt((x @ x) * (y @ y)), -1, 1))


def spearman(first: Numbers, second: Numbers) -> float:
    """Returns the correlation of the ranks of two arrays (N,), -1 to 1; equal numbers share their mean rank."""
    return pearson(ranks(order(first)), ranks(order(second)))


def order(values: Numbers) -> Ints:
    """Returns the position of each value, (N,), among the sorted distinct values."""
    return np.unique(values, return_inverse=True)[1]


def ranks(places: Ints) -> Floats:
    """Returns the ranks, (N,), of values whose positions come from `order`. Equal values share their mean rank.

    The time is linear in N.
    """
    counts = np.bincount(places)
    return (np.cumsum(counts) - (counts - 1) / 2)[places]


def r2(expected: Numbers, predicted: Numbers) -> float:
    """Returns the share of the variance that the predictions explain, from arrays (N,).

    It is negative if predicting the mean would be better.
    """
    error = float(np.sum((expected.astype(np.float64) - predicted) ** 2))
    if np.ptp(expected) == 0:
        return float(error == 0)
    return 1 - error / float(np.sum((expected - expected.mean(dtype=np.float64)) ** 2))


def tune_thresholds(probabilities: Numbers, expected: Bools) -> list[float]:
    """Returns the threshold for each label that maximizes the F1 of the label; the arguments are (N, C).

    Candidates are 0.5 and the values halfway between neighbouring probabilities. Of equally good candidates, the one
    nearest to 0.5 is chosen. The threshold of a label that no example has is 0.5.
    """
    return [_tune(probabilities[:, label], expected[:, label]) for label in range(expected.shape[1])]


def cross_thresholds(probabilities: Numbers, expected: Bools) -> Floats:
    """Returns thresholds (N, C) that were tuned on other examples (cross-validation), for unbiased scores.

    If thresholds are tuned and scored on the same examples, F1 looks better than it is, especially for rare labels. So
    the examples are split into five folds, and the thresholds for each fold are tuned on the other four folds.
    """
    folds = np.random.default_rng(0).permutation(len(expected)) % FOLDS
    thresholds = np.empty(expected.shape)
    for fold in range(FOLDS):
        tuning = folds != fold
        thresholds[~tuning] = tune_thresholds(probabilities[tuning], expected[tuning])
    return thresholds


def _tune(scores: Numbers, expected: Bools) -> float:
    """Returns the best threshold for one label, from arrays (N,)."""
    if not expected.any():
        return DEFAULT_THRESHOLD
    values, places = np.unique(scores.astype(np.float64), return_inverse=True)
    candidates = np.append((values + np.append(0.0, values[:-1])) / 2, DEFAULT_THRESHOLD)
    below = np.append(np.arange(len(values)), np.searchsorted(values, DEFAULT_THRESHOLD))  # number below each candidate
    right = np.append(0, np.bincount(places, expected).cumsum())
    predicted = np.append(0, np.bincount(places).cumsum())
    right, predicted = right[-1] - right[below], predicted[-1] - predicted[below]
    f1 = 2 * right / (predicted + right.max())  # all examples are above the first candidate
    best = np.flatnonzero(f1 == f1.max())
    return float(candidates[best[np.argmin(np.abs(candidates[best] - DEFAULT_THRESHOLD))]])


RETRIEVAL = ("ndcg@10", "map", "mrr@10", "recall@10", "recall@100")  # the main metric first


@dataclass(frozen=True)
class RetrievalScores:
    """The retrieval scores of each query."""

    queries: tuple[str, ...]  # the Q queries that have relevant documents
    values: Mapping[str, Floats]  # the scores of the queries, (Q,), keyed by the names in `RETRIEVAL`

    def means(self) -> dict[str, float]:
        """Returns the mean of every metric over the queries, keyed by name."""
        return {name: float(values.mean()) for name, values in self.values.items()}

    def interval(self, metric: str) -> tuple[float, float]:
        """Returns the 95 % interval of a metric, from a bootstrap over the queries."""
        values = self.values[metric]
        return bootstrap(lambda rows: float(values[rows].mean()), len(values))


def retrieval_scores(
    ranked: Mapping[str, Sequence[str]], judgements: Mapping[str, Mapping[str, float]]
) -> RetrievalScores:
    """Scores rankings.

    The `judgements` are grades of documents, by query. A grade above 0 means that the document is relevant. A query
    that has relevant documents but no ranking scores 0, as with trec_eval's `-c`.
    """
    grades = {
        query: {document: grade for document, grade in judged.items() if grade > 0}
        for query, judged in judgements.items()
    }
    queries = [query for query, relevant in grades.items() if relevant]
    if not queries:
        raise InputError("no query has a relevant document")
    rows = [_scores(query, ranked.get(query, ()), grades[query]) for query in queries]
    columns = np.array(rows, np.float64).T
    return RetrievalScores(tuple(queries), dict(zip(RETRIEVAL, columns, strict=True)))


def _scores(query: str, ranked: Sequence[str], grades: Mapping[str, float]) -> tuple[float, ...]:
    """Returns the scores of one ranking, in the order of `RETRIEVAL`."""
    if len({*ranked}) < len(ranked):
        raise ArgumentError(f"the ranking of query {query!r:.60} contains a document twice")
    gains = np.array([grades.get(document, 0.0) for document in ranked])
    places = np.flatnonzero(gains) + 1
    best = np.array(sorted(grades.values(), reverse=True))
    first = places[0] if len(places) else np.inf
    return (
        _discounted(gains, 10) / _discounted(best, 10),
        float((np.arange(1, len(places) + 1) / places).sum()) / len(grades),
        float(1 / first) if first <= 10 else 0.0,
        *(float((places <= depth).sum()) / len(grades) for depth in (10, 100)),
    )


def _discounted(gains: Floats, depth: int) -> float:
    """Returns the discounted cumulative gain of the first `depth` documents."""
    top = gains[:depth]
    return float((top / np.log2(np.arange(2, len(top) + 2))).sum())


def bootstrap(metric: Callable[[Ints], float], examples: int, *, seed: int = 0) -> tuple[float, float]:
    """Returns the 95 % interval of a metric, from random resamples of the examples (percentile bootstrap).

    The interval reflects only the mistakes that occur: without any mistakes, its width is 0. `metric` computes the
    metric from the indices of examples, (N,), of which some are repeated.
    """
    rng = np.random.default_rng(seed)
    values = [metric(rng.integers(examples, size=examples)) for _ in range(RESAMPLES)]
    low, high = np.quantile(values, (0.025, 0.975))
    return float(low), float(high)


def wilson(share: float, examples: int) -> tuple[float, float]:
    """Returns the 95 % interval of a share (Wilson 1927). Its width is never 0, unlike with `bootstrap`."""
    z = 1.959963984540054
    middle = (share + z**2 / (2 * examples)) / (1 + z**2 / examples)
    half = z / (1 + z**2 / examples) * np.sqrt(share * (1 - share) / examples + (z / (2 * examples)) ** 2)
    return float(max(middle - half, 0.0)), float(min(middle + half, 1.0))


def classify_interval(
    metric: str, score: float, expected: Ints, predicted: Ints, probabilities: Numbers
) -> tuple[float, float]:
    """Returns the 95 % interval of a classification metric. Label numbers are (N,), and probabilities are (N, C)."""
    if metric == "accuracy":
        return wilson(score, len(expected))
    if metric == "log_loss":
        return _mean_interval(classify_losses(expected, probabilities))
    labels, compute = probabilities.shape[1], OF_CONFUSION[metric]
    return bootstrap(lambda rows: compute(confusion_matrix(expected[rows], predicted[rows], labels)), len(expected))


def multilabel_interval(metric: str, expected: Bools, predicted: Bools, probabilities: Numbers) -> tuple[float, float]:
    """Returns the 95 % interval of a multi-label metric, from arrays (N, C)."""
    if metric == "subset_accuracy":
        right = (expected == predicted).all(1)
        return wilson(float(right.mean()), len(right))
    if metric == "log_loss":
        return _mean_interval(multilabel_losses(expected, probabilities))
    return resampled_counts(OF_COUNTS[metric], expected & predicted, predicted, expected)


def resampled_counts(metric: Callable[[Counts], float], *counts: NDArray[np.bool_] | Floats) -> tuple[float, float]:
    """Returns the 95 % interval of a function of `Counts`, whose three counts are sums over N examples, (N, C) each."""
    examples = len(counts[0])
    # A product of matrices instead of sums over the rows of each resample: ten times faster.
    cells = np.concatenate(counts, axis=1).astype(np.float64)

    def resampled(rows: Ints) -> float:
        times = np.bincount(rows, minlength=examples).astype(np.float64)
        return metric(Counts(*np.split(times @ cells, 3)))

    return bootstrap(resampled, examples)


def regress_interval(metric: str, expected: Floats, predicted: Floats) -> tuple[float, float]:
    """Returns the 95 % interval of a regression metric, from arrays (N,)."""
    error = predicted - expected
    first, second = order(expected), order(predicted)  # sorted once
    metrics: dict[str, Callable[[Ints], float]] = {
        "spearman": lambda rows: pearson(ranks(first[rows]), ranks(second[rows])),
        "pearson": lambda rows: pearson(expected[rows], predicted[rows]),
        "mse": lambda rows: float(np.mean(error[rows] ** 2)),
        "mae": lambda rows: float(np.mean(np.abs(error[rows]))),
        "r2": lambda rows: r2(expected[rows], predicted[rows]),
    }
    return bootstrap(metrics[metric], len(expected))


def _mean_interval(losses: Floats) -> tuple[float, float]:
    return bootstrap(lambda rows: float(losses[rows].mean()), len(losses))
