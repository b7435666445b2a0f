"""Evaluates scores for pairs of a query and a text.

If labels are 0 or 1, the metrics include average precision (as in scikit-learn), F1 and accuracy. F1 and accuracy use
the threshold that is best on the same pairs, as in sentence-transformers' CrossEncoderClassificationEvaluator, but a
threshold never separates equal scores. Correlations also take labels between 0 and 1. If queries have texts with
different labels, the rankings of the texts are scored, too (see `retrieval_metrics`).

Shapes: N pairs.
"""

from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np

from mlxbert.errors import InputError, MlxbertError
from mlxbert.model import Model
from mlxbert.tasks.pairs import similarity_pairs
from mlxbert.tasks.task import check_finite
from mlxbert.train.data.relevance import JudgedPair
from mlxbert.train.options.training_tasks import TASKS
from mlxbert.train.scores.evaluation_summary import Evaluation
from mlxbert.train.scores.labelled_scores import mistake, numbers, worst_first
from mlxbert.train.scores.metrics import (
    BASELINE_EXAMPLES,
    Floats,
    Ints,
    Numbers,
    RetrievalScores,
    bootstrap,
    pearson,
    regress_interval,
    retrieval_scores,
    spearman,
)

_RANKINGS = ("ndcg@10", "map", "mrr@10")
_CORRELATIONS: Mapping[str, Callable[[Numbers, Numbers], float]] = {"spearman": spearman, "pearson": pearson}


def average_precision(expected: Floats, scores: Numbers) -> float:
    """Returns the area under the precision-recall curve, which has a step for each distinct score.

    It is 0 if no label is 1.
    """
    right, chosen = _cuts(expected, scores)
    gained = np.diff(right, prepend=0.0)
    return float((gained * right / chosen).sum() / max(right[-1], 1))


def best_f1(expected: Floats, scores: Numbers) -> float:
    """Returns the F1 at the best threshold, from arrays (N,)."""
    right, chosen = _cuts(expected, scores)
    return float((2 * right / (chosen + right[-1])).max())


def best_accuracy(expected: Floats, scores: Numbers) -> float:
    """Returns the accuracy at the best threshold, from arrays (N,)."""
    right, chosen = _cuts(expected, scores)
    negatives = len(expected) - right[-1]
    return float(max((right + negatives - (chosen - right)).max(), negatives) / len(expected))


def _cuts(expected: Floats, scores: Numbers) -> tuple[Floats, Floats]:
    """Counts, for each distinct score (highest first), the positives and all pairs that have at least that score."""
    order = np.argsort(-scores, kind="stable")
    ends = np.append(np.flatnonzero(np.diff(scores[order])), len(order) - 1)
    return np.cumsum(expected[order])[ends], ends + 1.0


_BINARY: Mapping[str, Callable[[Floats, Numbers], float]] = {
    "average_precision": average_precision,
    "f1": best_f1,
    "accuracy": best_accuracy,
}


def metrics_of(records: Sequence[JudgedPair]) -> tuple[str, ...]:
    """Returns the metrics that are defined for the labels, in the order of `TASKS["rerank"].metrics`.

    The first one is the main metric.
    """
    binary = all(record.label in (0.0, 1.0) for record in records)
    defined = {*_CORRELATIONS, *(_BINARY if binary else ()), *(_RANKINGS if _lists(records) else ())}
    return tuple(name for name in TASKS["rerank"].metrics if name in defined)


def check_rerank_metric(metric: str, records: Sequence[JudgedPair]) -> None:
    """Raises `InputError` if a metric is not defined for the labels of the records."""
    defined = metrics_of(records)
    if records and metric not in defined:
        why = "some labels are between 0 and 1" if metric in _BINARY else "few queries have texts with different labels"
        raise InputError(
            f"{records[0].place} and below: the metric {metric!r} is not defined, because {why}",
            hint=f"choose a metric with `metric=`: {', '.join(defined)}",
        )


def _lists(records: Sequence[JudgedPair]) -> dict[str, list[int]]:
    """Returns the indices of each query's records, for the queries that have texts with different labels.

    The result is empty if fewer than half of the queries have such texts, because the data are then independent pairs
    rather than lists of texts to rank.
    """
    by_query: defaultdict[str, list[int]] = defaultdict(list)
    for number, record in enumerate(records):
        by_query[record.text].append(number)
    labels = {query: {records[number].label for number in members} for query, members in by_query.items()}
    lists = {query: members for query, members in by_query.items() if len(labels[query]) > 1}
    return lists if 2 * len(lists) >= len(by_query) else {}


def _ranked(records: Sequence[JudgedPair], scores: Numbers) -> RetrievalScores | None:
    """Scores the rankings of queries. If several texts have the same score, the least relevant one ranks first."""
    lists = _lists(records)
    if not lists:
        return None
    ranked = {
        query: sorted(members, key=lambda number: (-scores[number], records[number].label))
        for query, members in lists.items()
    }
    return retrieval_scores(
        {query: [*map(str, members)] for query, members in ranked.items()},
        {query: {str(number): records[number].label for number in members} for query, members in lists.items()},
    )


def rerank_metrics(records: Sequence[JudgedPair], scores: Numbers, logits: Numbers | None = None) -> dict[str, float]:
    """Returns the metrics that are defined for the labels, keyed by name.

    Args:
        logits: The logits from which the scores were computed, (N,), if the scores are probabilities. They decide the
            order, because many probabilities may round to 1.0.
    """
    expected, defined = numbers(records), metrics_of(records)
    functions = {**_BINARY, **_CORRELATIONS}
    metrics = {name: functions[name](expected, _inputs(name, scores, logits)) for name in defined if name in functions}
    ranked = _ranked(records, scores if logits is None else logits)
    means = {} if ranked is None else ranked.means()
    return metrics | {name: means[name] for name in defined if name in _RANKINGS}


def vector_baseline(model: Model, records: Sequence[JudgedPair], metric: str) -> dict[str, float]:
    """Returns the metric of scoring pairs by the similarity of their vectors, keyed by the name of the baseline.

    Queries are sampled with all their texts, up to about 2,000 pairs. The result is empty if the model cannot embed
    these texts.
    """
    by_query: defaultdict[str, list[JudgedPair]] = defaultdict(list)
    for record in records:
        by_query[record.text].append(record)
    chosen: list[JudgedPair] = []
    for number in np.random.default_rng(0).permutation(len(by_query)):
        chosen += [*by_query.values()][number]
        if len(chosen) >= BASELINE_EXAMPLES:
            break
    pairs = [(record.text, record.pair or "") for record in chosen]
    try:
        scores = np.array([result.score for result in similarity_pairs(model, pairs)])
    except MlxbertError:  # hours of training must not fail because of a baseline
        return {}
    metrics = rerank_metrics(chosen, scores)
    return {f"{model.embedder.config.similarity} of vectors": metrics[metric]} if metric in metrics else {}


def _inputs(metric: str, scores: Numbers, logits: Numbers | None) -> Numbers:
    """Returns the logits, or the scores if the metric depends on the differences between scores, like `pearson`."""
    return scores if logits is None or metric == "pearson" else logits


def _interval(metric: str, records: Sequence[JudgedPair], scores: Numbers) -> tuple[float, float]:
    """Returns the 95 % interval of a metric: over the queries for ranking metrics, over the pairs for other metrics."""
    expected = numbers(records)
    if metric in _CORRELATIONS:
        return regress_interval(metric, expected, scores.astype(np.float64))
    if metric in _BINARY:
        compute = _BINARY[metric]

        def resampled(rows: Ints) -> float:
            return compute(expected[rows], scores[rows])

        return bootstrap(resampled, len(records))
    ranked = _ranked(records, scores)
    assert ranked is not None
    return ranked.interval(metric)


def reranking(
    records: Sequence[JudgedPair],
    scores: Numbers,
    *,
    logits: Numbers | None = None,
    metric: str = "average_precision",
    **about: Any,
) -> Evaluation:
    """Evaluates the scores of pairs."""
    check_finite(scores if logits is None else logits, "predictions")
    check_rerank_metric(metric, records)
    metrics = rerank_metrics(records, scores, logits)
    distance = np.abs(scores.astype(np.float64) - numbers(records))
    return Evaluation(
        task="rerank",
        examples=len(records),
        metric=metric,
        score=metrics[metric],
        interval=_interval(metric, records, _inputs(metric, scores, logits)),
        metrics=metrics,
        mistakes=tuple(
            mistake(records[number], f"{records[number].label:.4g}", f"{scores[number]:.4g}", distance[number])
            for number in worst_first(distance, distance > 0)
        ),
        **about,
    )
