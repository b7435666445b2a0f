"""How good vectors are: similarities next to those that people gave, and whether texts find what belongs to them.

Shapes: T texts, W size of a vector.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from mlxbert.errors import InputError
from mlxbert.tasks.query_ranking import nearest, scores_of_pairs
from mlxbert.tasks.task import check_finite
from mlxbert.training.scores.evaluation_summary import Evaluation, Mistake
from mlxbert.training.scores.intervals import regress_interval, wilson
from mlxbert.training.scores.labelled_scores import MISTAKES
from mlxbert.training.scores.metrics import Floats, Numbers, order, ranks, regress_metrics
from mlxbert.training.scores.retrieval_metrics import RETRIEVAL, RetrievalScores, retrieval_scores

SIMILARITY = ("spearman", "pearson")
TRIPLETS = "triplet_accuracy"
_DEPTH = 100  # of rankings


class RelatedRecord(Protocol):
    """A text with related texts."""

    @property
    def text(self) -> str: ...  # noqa: D102
    @property
    def positives(self) -> tuple[str, ...]: ...  # noqa: D102
    @property
    def negatives(self) -> tuple[str, ...]: ...  # noqa: D102
    @property
    def label(self) -> float | None: ...  # noqa: D102
    @property
    def place(self) -> str: ...  # noqa: D102


class ExampleTexts(Protocol):
    """The texts of an example; see `mlxbert.training.objectives.vector_loss`."""

    @property
    def texts(self) -> tuple[str, ...]: ...  # noqa: D102
    @property
    def evaluated(self) -> Sequence[Any]: ...  # noqa: D102
    @property
    def kind(self) -> str: ...  # noqa: D102
    @property
    def target(self) -> Any: ...  # noqa: D102


def metrics_of(records: Sequence[RelatedRecord]) -> tuple[str, ...]:
    """The metrics that records allow, the main one first."""
    if records[0].label is not None:
        return SIMILARITY
    return (*RETRIEVAL, TRIPLETS) if any(record.negatives for record in records) else RETRIEVAL


@dataclass(frozen=True)
class VectorScores:
    """What is known about the vectors of some examples.

    Attributes:
        expected: The scores of pairs; empty where there are none.
        scores: Those of their vectors.
        ranked: How well each text ranks what belongs to it; `None` for scored pairs.
        nearest: What each text ranks first; empty for scored pairs.
        triplets: Whether the positive is nearer than the negative, for every triplet.
    """

    expected: Floats
    scores: Floats
    ranked: RetrievalScores | None
    nearest: Mapping[str, str]
    triplets: Floats

    def means(self) -> dict[str, float]:
        """All metrics by name."""
        if self.ranked is None:
            found = regress_metrics(self.expected, self.scores)
            return {name: found[name] for name in SIMILARITY}
        return self.ranked.means() | ({TRIPLETS: float(self.triplets.mean())} if len(self.triplets) else {})

    def interval(self, metric: str) -> tuple[float, float]:
        """95 % of a metric."""
        if self.ranked is None:
            return regress_interval(metric, self.expected, self.scores)
        if metric == TRIPLETS:
            return wilson(float(self.triplets.mean()), len(self.triplets))
        return self.ranked.interval(metric)


def vector_scores(examples: Sequence[ExampleTexts], vectors: Numbers, similarity: str = "cosine") -> VectorScores:
    """How good vectors are.

    Pairs with scores are compared by the similarity of their vectors. Elsewhere each text ranks the positives and
    negatives of all examples; a text alone ranks the second halves of all texts by its first half.

    Args:
        examples: Those whose `evaluated` inputs have T texts.
        vectors: Their vectors, (T, W).
        similarity: How they are compared, one of `mlxbert.nn.embedder.SIMILARITIES`.
    """
    if not len(vectors):
        raise InputError("every text is a single character: there is nothing to evaluate")
    check_finite(vectors, "vectors")
    compared = unit(vectors) if similarity == "cosine" else vectors
    starts = _starts(examples)
    none = np.zeros(0)
    if examples[0].kind == "scored":
        scores = scores_of_pairs(similarity, compared[starts], compared[starts + 1]).astype(np.float64)
        return VectorScores(np.array([one.target for one in examples], np.float64), scores, None, {}, none)
    rankings, judgements = _ranked(examples, compared, starts, similarity)
    nearer = [
        to_positive > to_negative
        for one, start in zip(examples, starts, strict=True) if len(one.evaluated) > 2
        for to_positive, *others in [
            scores_of_pairs(similarity, compared[start], compared[start + 1 : start + len(one.evaluated)])
        ]
        for to_negative in others
    ]  # fmt: skip
    first = {query: ranking[0] for query, ranking in rankings.items() if ranking}
    ranked = retrieval_scores(rankings, judgements)
    return VectorScores(none, none, ranked, first, np.array(nearer, np.float64))


def unit(vectors: Numbers) -> Numbers:
    """Vectors scaled to length 1; zeros stay."""
    return vectors / np.maximum(np.linalg.norm(vectors, axis=1, keepdims=True), 1e-12)


def _starts(examples: Sequence[ExampleTexts]) -> NDArray[np.int64]:
    """The row of each example's first text."""
    return np.cumsum([0, *(len(one.evaluated) for one in examples)], dtype=np.int64)[:-1]


def _ranked(
    examples: Sequence[ExampleTexts], vectors: Numbers, starts: NDArray[np.int64], similarity: str
) -> tuple[dict[str, list[str]], dict[str, dict[str, float]]]:
    """What each text finds, the best first, and what it should find."""
    queries, documents = dict[str, int](), dict[str, int]()  # rows
    judgements = dict[str, dict[str, float]]()
    for one, start in zip(examples, starts.tolist(), strict=True):
        if not one.evaluated:  # a text of one character has no halves
            continue
        if one.kind == "pairs" and one.texts[0] == one.texts[1]:  # finding itself says nothing
            continue
        queries.setdefault(one.texts[0], start)
        for row, text in enumerate(one.texts[1 : len(one.evaluated)], start + 1):
            documents.setdefault(text, row)
        judgements.setdefault(one.texts[0], {})[one.texts[1]] = 1.0
    if not queries:
        raise InputError("every text is its own positive: there is nothing to evaluate")
    names = [*documents]
    best, _ = nearest(similarity, vectors[[*queries.values()]], vectors[[*documents.values()]], _DEPTH + 1)
    alone = examples[0].kind == "texts"  # there, query and document are halves of one text
    rankings = {
        query: [name for name in (names[number] for number in row) if alone or name != query][:_DEPTH]
        for query, row in zip(queries, best.tolist(), strict=True)
    }
    return rankings, judgements


def evaluation(
    records: Sequence[RelatedRecord],
    examples: Sequence[ExampleTexts],
    vectors: Numbers,
    *,
    metric: str,
    similarity: str,
    **about: Any,
) -> Evaluation:
    """Everything that is known about the vectors of some records.

    Args:
        records: The records.
        examples: Their examples.
        vectors: Those of all evaluated texts, (T, W).
        metric: The main metric.
        similarity: How they are compared.
        **about: What else the evaluation says.
    """
    scores = vector_scores(examples, vectors, similarity)
    means = scores.means()
    return Evaluation(
        task="embed",
        examples=len(records),
        metric=metric,
        score=means[metric],
        interval=scores.interval(metric),
        metrics=means,
        mistakes=tuple(_far_off(records, scores) if scores.ranked is None else _not_found(records, scores)),
        **about,
    )


def _far_off(records: Sequence[RelatedRecord], scores: VectorScores) -> list[Mistake]:
    """The pairs whose score stands at another place among all than their score."""
    places = [ranks(order(values)) / len(values) for values in (scores.expected, scores.scores)]
    away = np.abs(places[0] - places[1])
    return [
        Mistake(
            text=records[number].text, pair=records[number].positives[0],
            expected=f"{scores.expected[number]:.4g}", predicted=f"{scores.scores[number]:.3f}",
            score=float(away[number]), place=records[number].place,
        )
        for number in np.argsort(-away, kind="stable")[:MISTAKES].tolist() if away[number] > 0
    ]  # fmt: skip


def _not_found(records: Sequence[RelatedRecord], scores: VectorScores) -> list[Mistake]:
    """The texts that rank what belongs to them lowest."""
    assert scores.ranked is not None
    found = dict(zip(scores.ranked.queries, scores.ranked.values["ndcg@10"].tolist(), strict=True))
    wrong = [record for record in records if record.positives and found.get(record.text, 1.0) < 1]
    worst = sorted({record.text: record for record in wrong}.values(), key=lambda record: found[record.text])
    return [
        Mistake(
            text=record.text, pair=None, expected=record.positives[0], predicted=scores.nearest[record.text],
            score=1 - found[record.text], place=record.place,
        )
        for record in worst[:MISTAKES]
    ]  # fmt: skip
