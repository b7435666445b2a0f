"""Evaluates vectors: correlation with human similarity scores, or search for texts that belong together.

Shapes: T texts, W size of a vector.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from mlxbert.errors import InputError
from mlxbert.nn.unit_vectors import unit_length
from mlxbert.tasks.query_ranking import nearest, scores_of_pairs
from mlxbert.tasks.task import check_finite
from mlxbert.train.data.related_texts import Related
from mlxbert.train.scores.evaluation_summary import Evaluation, Mistake
from mlxbert.train.scores.labelled_scores import MISTAKES
from mlxbert.train.scores.metrics import (
    RETRIEVAL,
    Floats,
    Numbers,
    RetrievalScores,
    order,
    ranks,
    regress_interval,
    regress_metrics,
    retrieval_scores,
    wilson,
)

SIMILARITY = ("spearman", "pearson")
TRIPLETS = "triplet_accuracy"
_DEPTH = 100  # number of documents in a ranking


class ExampleTexts(Protocol):
    """The texts of an example (see `mlxbert.train.objectives.vector_objective`)."""

    @property
    def texts(self) -> tuple[str, ...]: ...
    @property
    def evaluated(self) -> Sequence[Any]: ...
    @property
    def kind(self) -> str: ...
    @property
    def target(self) -> Any: ...


def metrics_of(records: Sequence[Related]) -> tuple[str, ...]:
    """Returns the metrics that are defined for the records, the main one first."""
    if records[0].label is not None:
        return SIMILARITY
    return (*RETRIEVAL, TRIPLETS) if any(record.negatives for record in records) else RETRIEVAL


@dataclass(frozen=True)
class VectorScores:
    """The scores of the vectors of some examples."""

    expected: Floats  # the expected similarities of scored pairs; empty for other examples
    scores: Floats  # the similarities of the vectors of scored pairs; empty for other examples
    ranked: RetrievalScores | None  # the retrieval scores of each text's ranking; `None` for scored pairs
    nearest: Mapping[str, str]  # the highest-ranked text for each text; empty for scored pairs
    triplets: Floats  # 1 for every triplet whose positive is nearer than its negative, 0 for every other triplet

    def means(self) -> dict[str, float]:
        """Returns all metrics, keyed by name."""
        if self.ranked is None:
            metrics = regress_metrics(self.expected, self.scores)
            return {name: metrics[name] for name in SIMILARITY}
        return self.ranked.means() | ({TRIPLETS: float(self.triplets.mean())} if len(self.triplets) else {})

    def interval(self, metric: str) -> tuple[float, float]:
        """Returns the 95 % interval of one of the metrics that `means` returns."""
        if self.ranked is None:
            return regress_interval(metric, self.expected, self.scores)
        if metric == TRIPLETS:
            return wilson(float(self.triplets.mean()), len(self.triplets))
        return self.ranked.interval(metric)


def vector_scores(examples: Sequence[ExampleTexts], vectors: Numbers, similarity: str = "cosine") -> VectorScores:
    """Scores the vectors of examples.

    For scored pairs, the similarities of the vectors are compared with the expected scores. For other examples, the
    positives and negatives of all examples are ranked for each text. For single texts, the second halves of all texts
    are ranked for each first half.

    Args:
        examples: Examples whose `evaluated` inputs are T texts in total.
        vectors: The vectors of these texts, (T, W); of token vectors, T arrays.
    """
    if not len(vectors):
        raise InputError("there is nothing to evaluate, because every text is a single character")
    for array in vectors if vectors.dtype == object else [vectors]:
        check_finite(array, "vectors")
    compared = unit_length(vectors) if similarity == "cosine" else vectors
    starts = _starts(examples)
    empty = np.zeros(0)
    if examples[0].kind == "scored":
        scores = scores_of_pairs(similarity, compared[starts], compared[starts + 1]).astype(np.float64)
        return VectorScores(np.array([example.target for example in examples], np.float64), scores, None, {}, empty)
    rankings, judgements = _rankings(examples, compared, starts, similarity)
    nearer = [
        to_positive > to_negative
        for example, start in zip(examples, starts, strict=True) if len(example.evaluated) > 2
        for to_positive, *to_negatives in [
            scores_of_pairs(similarity, compared[start], compared[start + 1 : start + len(example.evaluated)])
        ]
        for to_negative in to_negatives
    ]  # fmt: skip
    first = {query: ranking[0] for query, ranking in rankings.items() if ranking}
    ranked = retrieval_scores(rankings, judgements)
    return VectorScores(empty, empty, ranked, first, np.array(nearer, np.float64))


def _starts(examples: Sequence[ExampleTexts]) -> NDArray[np.int64]:
    """Returns, for each example, the index of its first text's vector."""
    return np.cumsum([0, *(len(example.evaluated) for example in examples)], dtype=np.int64)[:-1]


def _rankings(
    examples: Sequence[ExampleTexts], vectors: Numbers, starts: NDArray[np.int64], similarity: str
) -> tuple[dict[str, list[str]], dict[str, dict[str, float]]]:
    """Returns two dicts, keyed by text: its ranked candidates, the best first, and the judgements of its positives."""
    queries, documents = dict[str, int](), dict[str, int]()  # rows of the vectors
    judgements = dict[str, dict[str, float]]()
    for example, start in zip(examples, starts.tolist(), strict=True):
        if not example.evaluated:  # a text of one character has no halves
            continue
        query, target = example.texts[:2]
        if example.kind == "pairs" and query == target:  # a text that finds itself proves nothing
            continue
        queries.setdefault(query, start)
        for row, text in enumerate(example.texts[1 : len(example.evaluated)], start + 1):
            documents.setdefault(text, row)
        judgements.setdefault(query, {})[target] = 1.0
    if not queries:
        raise InputError("there is nothing to evaluate, because every text is its own positive")
    names = [*documents]
    best, _ = nearest(similarity, vectors[[*queries.values()]], vectors[[*documents.values()]], _DEPTH + 1)
    halves = examples[0].kind == "texts"  # a query and its document, halves of the same text, have equal names
    rankings = {
        query: [name for name in (names[number] for number in row) if halves or name != query][:_DEPTH]
        for query, row in zip(queries, best.tolist(), strict=True)
    }
    return rankings, judgements


def evaluation(
    records: Sequence[Related],
    examples: Sequence[ExampleTexts],
    vectors: Numbers,
    *,
    metric: str,
    similarity: str,
    **about: Any,
) -> Evaluation:
    """Evaluates the vectors of some records."""
    scores = vector_scores(examples, vectors, similarity)
    means = scores.means()
    return Evaluation(
        task="embed",
        examples=len(records),
        metric=metric,
        score=means[metric],
        interval=scores.interval(metric),
        metrics=means,
        mistakes=tuple(_misjudged(records, scores) if scores.ranked is None else _not_found(records, scores)),
        **about,
    )


def _misjudged(records: Sequence[Related], scores: VectorScores) -> list[Mistake]:
    """Returns, as mistakes, the pairs whose ranks by expected and by computed similarity differ most."""
    relative = [ranks(order(values)) / len(values) for values in (scores.expected, scores.scores)]
    distance = np.abs(relative[0] - relative[1])
    return [
        Mistake(
            text=records[number].text, pair=records[number].positives[0],
            expected=f"{scores.expected[number]:.4g}", predicted=f"{scores.scores[number]:.3f}",
            score=float(distance[number]), place=records[number].place,
        )
        for number in np.argsort(-distance, kind="stable")[:MISTAKES].tolist() if distance[number] > 0
    ]  # fmt: skip


def _not_found(records: Sequence[Related], scores: VectorScores) -> list[Mistake]:
    """Returns, as mistakes, the texts whose positives rank lowest, which are the texts with the lowest nDCG."""
    assert scores.ranked is not None
    ndcg = dict(zip(scores.ranked.queries, scores.ranked.values["ndcg@10"].tolist(), strict=True))
    wrong = [record for record in records if record.positives and ndcg.get(record.text, 1.0) < 1]
    worst = sorted({record.text: record for record in wrong}.values(), key=lambda record: ndcg[record.text])
    return [
        Mistake(
            text=record.text, pair=None, expected=record.positives[0], predicted=scores.nearest[record.text],
            score=1 - ndcg[record.text], place=record.place,
        )
        for record in worst[:MISTAKES]
    ]  # fmt: skip
