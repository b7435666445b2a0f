"""Scores of pairs of query and text to an `Evaluation`.

Labels of 0 and 1 have average precision (as scikit-learn computes it), F1 and accuracy; these two with the threshold
that is best for them on the same pairs, as sentence-transformers' CrossEncoderClassificationEvaluator has them, but
thresholds do not separate equal scores. Labels between 0 and 1 have correlations. Where queries have texts of different
labels, their rankings are scored, too: see `retrieval`.

Shapes: N pairs.
"""

from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from typing import Unpack

import numpy as np

from mlxbert.errors import InputError, MlxbertError
from mlxbert.model import Model
from mlxbert.tasks.pairs import similarity_pairs
from mlxbert.training.options.training_tasks import TASKS
from mlxbert.training.scores.baselines import MOST
from mlxbert.training.scores.evaluation_summary import Evaluation
from mlxbert.training.scores.intervals import bootstrap, regress_interval
from mlxbert.training.scores.labelled_scores import (
    EvaluationFacts,
    LabelledRecord,
    check_predictions,
    mistake,
    numbers,
    worst_first,
)
from mlxbert.training.scores.metrics import Floats, Ints, Numbers, pearson, spearman
from mlxbert.training.scores.retrieval_metrics import RetrievalScores, retrieval_scores

_RANKINGS = ("ndcg@10", "map", "mrr@10")
_CORRELATIONS: Mapping[str, Callable[[Numbers, Numbers], float]] = {"spearman": spearman, "pearson": pearson}


def average_precision(expected: Floats, scores: Numbers) -> float:
    """The area under the curve of precision over recall, in steps at the different scores; 0 without a positive.

    Args:
        expected: 0 or 1, (N,).
        scores: The higher, the more likely 1, (N,).
    """
    right, chosen = _cuts(expected, scores)
    gained = np.diff(right, prepend=0.0)
    return float((gained * right / chosen).sum() / max(right[-1], 1))


def best_f1(expected: Floats, scores: Numbers) -> float:
    """The F1 of the best threshold, of (N,) and (N,)."""
    right, chosen = _cuts(expected, scores)
    return float((2 * right / (chosen + right[-1])).max())


def best_accuracy(expected: Floats, scores: Numbers) -> float:
    """The accuracy of the best threshold, of (N,) and (N,)."""
    right, chosen = _cuts(expected, scores)
    negatives = len(expected) - right[-1]
    return float(max((right + negatives - (chosen - right)).max(), negatives) / len(expected))


def _cuts(expected: Floats, scores: Numbers) -> tuple[Floats, Floats]:
    """How many are right, and how many there are, at or above each of the different scores, the highest first."""
    order = np.argsort(-scores, kind="stable")
    ends = np.append(np.flatnonzero(np.diff(scores[order])), len(order) - 1)
    return np.cumsum(expected[order])[ends], ends + 1.0


_BINARY: Mapping[str, Callable[[Floats, Numbers], float]] = {
    "average_precision": average_precision,
    "f1": best_f1,
    "accuracy": best_accuracy,
}


def metrics_of(records: Sequence[LabelledRecord]) -> tuple[str, ...]:
    """The metrics that labels allow, in the order of `TASKS["rerank"].metrics`; the first is the main one."""
    binary = all(record.label in (0.0, 1.0) for record in records)
    known = {*_CORRELATIONS, *(_BINARY if binary else ()), *(_RANKINGS if _lists(records) else ())}
    return tuple(name for name in TASKS["rerank"].metrics if name in known)


def check_rerank_metric(metric: str, records: Sequence[LabelledRecord]) -> None:
    """Refuses a metric that the labels of the records do not have."""
    known = metrics_of(records)
    if records and metric not in known:
        why = "labels between 0 and 1" if metric in _BINARY else "few queries with texts of different labels"
        raise InputError(
            f"{records[0].place} and below: there are {why}, so the metric {metric!r} is not defined",
            hint=f"choose another one with metric=: {', '.join(known)}",
        )


def _lists(records: Sequence[LabelledRecord]) -> dict[str, list[int]]:
    """The numbers of the records of each query that has texts with different labels.

    None if these are less than half of the queries: the data are pairs, of which a few have a text in common.
    """
    found: defaultdict[str, list[int]] = defaultdict(list)
    for number, record in enumerate(records):
        found[record.text].append(number)
    labels = {query: {records[number].label for number in members} for query, members in found.items()}
    lists = {query: members for query, members in found.items() if len(labels[query]) > 1}
    return lists if 2 * len(lists) >= len(found) else {}


def _ranked(records: Sequence[LabelledRecord], scores: Numbers) -> RetrievalScores | None:
    """The scores of the rankings of queries; of equal scores the least relevant text is first."""
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


def rerank_metrics(
    records: Sequence[LabelledRecord], scores: Numbers, logits: Numbers | None = None
) -> dict[str, float]:
    """The metrics by name, as far as the labels have them.

    Args:
        records: N pairs with labels.
        scores: Of each, (N,).
        logits: What scores are the probabilities of, (N,): these decide every order, as many scores may be 1.0.
    """
    expected, known = numbers(records), metrics_of(records)
    of_pairs = {**_BINARY, **_CORRELATIONS}
    found = {name: of_pairs[name](expected, _counted(name, scores, logits)) for name in known if name in of_pairs}
    ranked = _ranked(records, scores if logits is None else logits)
    means = {} if ranked is None else ranked.means()
    return found | {name: means[name] for name in known if name in _RANKINGS}


def vector_baseline(model: Model, records: Sequence[LabelledRecord], metric: str, *, seed: int = 0) -> dict[str, float]:
    """The metric of the similarities of the vectors of query and text, by the name of the baseline.

    It is of at most 2,000 pairs, those of a query together, and left out where the model makes no vectors of these.

    Args:
        model: The model that training starts from, before it.
        records: Validation records.
        metric: One of `metrics_of(records)`.
        seed: Determines which queries are taken.
    """
    by_query: defaultdict[str, list[LabelledRecord]] = defaultdict(list)
    for record in records:
        by_query[record.text].append(record)
    chosen: list[LabelledRecord] = []
    for number in np.random.default_rng(seed).permutation(len(by_query)):
        chosen += [*by_query.values()][number]
        if len(chosen) >= MOST:
            break
    pairs = [(record.text, record.pair or "") for record in chosen]
    try:
        scores = np.array([found.score for found in similarity_pairs(model, pairs)])
    except MlxbertError:  # hours of training do not fail for this
        return {}
    found = rerank_metrics(chosen, scores)
    return {f"{model.embedder.config.similarity} of vectors": found[metric]} if metric in found else {}


def _counted(metric: str, scores: Numbers, logits: Numbers | None) -> Numbers:
    """What a metric is of: only for `pearson` it matters how far scores are apart."""
    return scores if logits is None or metric == "pearson" else logits


def _interval(metric: str, records: Sequence[LabelledRecord], scores: Numbers) -> tuple[float, float]:
    """95 % of a metric: over the queries for rankings, over the pairs for the others."""
    expected = numbers(records)
    if metric in _CORRELATIONS:
        return regress_interval(metric, expected, scores.astype(np.float64))
    if metric in _BINARY:
        of = _BINARY[metric]

        def resampled(some: Ints) -> float:
            return of(expected[some], scores[some])

        return bootstrap(resampled, len(records))
    ranked = _ranked(records, scores)
    assert ranked is not None
    return ranked.interval(metric)


def reranking(
    records: Sequence[LabelledRecord],
    scores: Numbers,
    *,
    logits: Numbers | None = None,
    metric: str = "average_precision",
    **about: Unpack[EvaluationFacts],
) -> Evaluation:
    """The evaluation of scores of pairs.

    Args:
        records: N pairs with labels from 0 to 1.
        scores: Of each, (N,).
        logits: See `rerank_metrics`.
        metric: The main metric, one of `metrics_of(records)`.
        **about: What else the evaluation says.
    """
    check_predictions("rerank", metric, records, scores if logits is None else logits, (len(records),))
    check_rerank_metric(metric, records)
    found = rerank_metrics(records, scores, logits)
    distance = np.abs(scores.astype(np.float64) - numbers(records))
    return Evaluation(
        task="rerank",
        examples=len(records),
        metric=metric,
        score=found[metric],
        interval=_interval(metric, records, _counted(metric, scores, logits)),
        metrics=found,
        mistakes=tuple(
            mistake(records[number], f"{records[number].label:.4g}", f"{scores[number]:.4g}", distance[number])
            for number in worst_first(distance, distance > 0)
        ),
        **about,
    )
