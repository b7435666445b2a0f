"""How well documents are ranked: nDCG, MAP, MRR and recall, as trec_eval has them.

A document is relevant if its judgement is above 0. The gain of nDCG is the judgement itself (linear, as in trec_eval;
`2**grade - 1` is another usual choice). MAP is over the whole ranking that is given, and divides by all relevant
documents. Documents that are not ranked are not found. With judgements of 0 and 1 the numbers are those of
sentence-transformers' InformationRetrievalEvaluator, whose `map@100` divides by 100 where more are relevant.

Shapes: Q queries.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from mlxbert.errors import ArgumentError, InputError
from mlxbert.training.scores.intervals import bootstrap
from mlxbert.training.scores.metrics import Floats

RETRIEVAL = ("ndcg@10", "map", "mrr@10", "recall@10", "recall@100")  # the main one first


@dataclass(frozen=True)
class RetrievalScores:
    """The scores of each query.

    Attributes:
        queries: The Q queries that have relevant documents.
        values: By the names in `RETRIEVAL` a score for each of them, (Q,).
        left_out: Queries without relevant documents, which no ranking can answer.
    """

    queries: tuple[str, ...]
    values: Mapping[str, Floats]
    left_out: int

    def means(self) -> dict[str, float]:
        """Every metric: the mean over the queries."""
        return {name: float(values.mean()) for name, values in self.values.items()}

    def interval(self, metric: str) -> tuple[float, float]:
        """95 % of a metric, from a bootstrap over the queries."""
        values = self.values[metric]
        return bootstrap(lambda some: float(values[some].mean()), len(values))


def retrieval_scores(
    ranked: Mapping[str, Sequence[str]], judgements: Mapping[str, Mapping[str, float]]
) -> RetrievalScores:
    """Scores rankings.

    Args:
        ranked: For each query its documents, the best first.
        judgements: By query and document how well it answers, above 0 for relevant ones. A query with such that is not
            ranked scores 0, as with trec_eval's `-c`.
    """
    grades = {
        query: {document: grade for document, grade in found.items() if grade > 0}
        for query, found in judgements.items()
    }
    queries = [query for query, relevant in grades.items() if relevant]
    if not queries:
        raise InputError("no query has a relevant document")
    rows = [_scores(query, ranked.get(query, ()), grades[query]) for query in queries]
    columns = np.array(rows, np.float64).T
    left_out = len({*ranked, *judgements}) - len(queries)
    return RetrievalScores(tuple(queries), dict(zip(RETRIEVAL, columns, strict=True)), left_out)


def _scores(query: str, ranked: Sequence[str], grades: Mapping[str, float]) -> tuple[float, ...]:
    """The scores of one ranking, in the order of `RETRIEVAL`."""
    if len({*ranked}) < len(ranked):
        raise ArgumentError(f"the ranking of query {query!r:.60} names a document twice")
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
    """The discounted cumulative gain of the first places."""
    top = gains[:depth]
    return float((top / np.log2(np.arange(2, len(top) + 2))).sum())
