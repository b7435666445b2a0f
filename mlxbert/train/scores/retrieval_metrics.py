"""Metrics of rankings: nDCG, MAP, MRR and recall, as in trec_eval.

A document is relevant if its judgement is above 0. The gain in nDCG is the judgement itself (linear, as in trec_eval;
`2**grade - 1` is another common choice). MAP covers the whole ranking that is given, and divides by the number of all
relevant documents. Documents outside the ranking count as not found. With judgements of 0 and 1, the results equal the
results of sentence-transformers' InformationRetrievalEvaluator, except that its `map@100` divides by 100 if more than
100 documents are relevant.

Shapes: Q queries.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from mlxbert.errors import ArgumentError, InputError
from mlxbert.train.scores.intervals import bootstrap
from mlxbert.train.scores.metrics import Floats

RETRIEVAL = ("ndcg@10", "map", "mrr@10", "recall@10", "recall@100")  # the main metric first


@dataclass(frozen=True)
class RetrievalScores:
    """The retrieval scores of each query."""

    queries: tuple[str, ...]  # the Q queries that have relevant documents
    values: Mapping[str, Floats]  # the scores of the queries, (Q,), keyed by the names in `RETRIEVAL`
    left_out: int  # the number of queries without relevant documents, which no ranking can answer

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

    Args:
        judgements: The grades of documents, by query. A grade above 0 means that the document is relevant. A query that
            has relevant documents but no ranking scores 0, as with trec_eval's `-c`.
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
    left_out = len({*ranked, *judgements}) - len(queries)
    return RetrievalScores(tuple(queries), dict(zip(RETRIEVAL, columns, strict=True)), left_out)


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
