"""What tasks share that rank texts for a query: the texts with the highest scores, in memory as many as asked for."""

import heapq
from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING, Any, NamedTuple

from mlxbert.errors import InputError
from mlxbert.results.related import Reranked
from mlxbert.results.result import Failure

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    _Vectors = NDArray[np.floating[Any]]

_ALONE = 2**22  # numbers; the threads of a product would take longer to start and to stop than one core for these
_ROWS = 64  # queries whose scores with all documents are in memory
# What is compared, place before which none is (negative: the first one is the greatest), a `Scored`, what is kept.
_Entry = tuple[float, int, "Scored", Any]


class Scored(NamedTuple):
    """A text with its score for a query; see `Similarity`.

    Attributes:
        logit: What the score is the probability of, see `Reranked`; `None` for other scores.
    """

    score: float
    text: str
    truncated: bool = False
    unknown_tokens: int = 0
    logit: float | None = None

    @property
    def order(self) -> float:
        """What texts are compared by: float32 has one probability, 1.0, for all large logits."""
        return self.score if self.logit is None else self.logit


class RankedText(NamedTuple):
    """A text in its place: the values of a `Similarity`, and what the caller has kept with it."""

    rank: int
    number: int
    score: float
    text: str
    truncated: bool
    unknown_tokens: int
    logit: float | None
    kept: Any


class Ranking:
    """Texts by their scores, or the logits of these, the highest first and equal ones in the order of the input.

    Equal texts get the same score, though batches round differently.

    Args:
        top_k: How many are kept; `None` for all.
    """

    def __init__(self, top_k: int | None) -> None:
        self._top_k = top_k
        self._best: list[_Entry] = []
        self._known: dict[str, tuple[Scored, int]] = {}  # each text that is kept, and how often it is

    def add(self, index: int, found: Scored, kept: Any = None) -> None:
        """Takes a text into account."""
        text = found.text
        first, count = self._known.get(text, (found, 0))
        self._known[text] = first, count + 1
        entry = (first.order, -index, found._replace(score=first.score, logit=first.logit), kept)
        if self._top_k is None or len(self._best) < self._top_k:
            heapq.heappush(self._best, entry)
        else:
            self._forget(heapq.heappushpop(self._best, entry)[2].text)

    def _forget(self, text: str) -> None:
        first, count = self._known.pop(text)
        if count > 1:
            self._known[text] = first, count - 1

    def sorted(self) -> list[RankedText]:
        """The texts that are kept, ranks from 1."""
        best = sorted(self._best, reverse=True)
        return [RankedText(rank, -place, *found, kept) for rank, (_, place, found, kept) in enumerate(best, 1)]


def rank(results: Iterable[Scored | Failure], top_k: int | None) -> tuple[list[RankedText], list[Failure]]:
    """The best of the results, ranked, and all failures.

    Args:
        results: One for each text, in the order of the input.
        top_k: How many are kept; `None` for all.
    """
    failures: list[Failure] = []
    best = Ranking(top_k)
    for index, found in enumerate(results):
        if isinstance(found, Failure):
            failures.append(found)
        else:
            best.add(index, found)
    return best.sorted(), failures


def reranked(query: str, one: RankedText) -> Reranked:
    """The result of a text that was ranked by a `RerankTask`."""
    assert one.logit is not None
    return Reranked(query, one.rank, one.number, one.score, one.text, one.logit, one.truncated)


def with_query(query: str, texts: Iterable[str | InputError]) -> Iterator[tuple[str, str] | InputError]:
    """The pairs of a query and each text."""
    return (text if isinstance(text, InputError) else (query, text) for text in texts)


def check_query(query: object, texts: object) -> None:
    """Refuses a query that is not a text."""
    if not isinstance(query, str):
        from mlxbert.tasks.argument_checks import OF_VECTORS, holds_numbers  # with MLX, which clients of a server lack

        hint = "the query comes before the texts" if isinstance(texts, str) else None
        hint = OF_VECTORS if holds_numbers(query) else hint
        raise InputError(f"expected a text as query, found {type(query).__name__}", hint=hint)


def scores_of_pairs(similarity: str, first: "_Vectors", second: "_Vectors") -> "NDArray[np.float32]":
    """How similar two vectors are, or the vectors of each pair of rows; the higher, the nearer.

    Args:
        similarity: One of `SIMILARITIES`. Distances are negative, as in sentence-transformers.
        first: (…, W); of length 1 where the similarity is `cosine`.
        second: (…, W), likewise.
    """
    import numpy as np

    match similarity:
        case "euclidean":
            found = -np.linalg.norm(first - second, axis=-1)
        case "manhattan":
            found = -np.abs(first - second).sum(-1)
        case _:
            found = (first * second).sum(-1)
    return np.asarray(np.clip(found, -1, 1) if similarity == "cosine" else found, np.float32)


def scores_of_all(similarity: str, queries: "_Vectors", documents: "_Vectors") -> "NDArray[np.float32]":
    """How similar every query is to every document: (Q, W) and (D, W) → (Q, D); see `scores_of_pairs`."""
    import numpy as np

    match similarity:
        case "euclidean":  # in float64: differences of large squares
            a, b = queries.astype(np.float64), documents.astype(np.float64)
            squares = np.square(a).sum(1)[:, None] + np.square(b).sum(1) - 2 * a @ b.T
            found = -np.sqrt(np.maximum(squares, 0))
        case "manhattan":
            rows = [scores_of_pairs(similarity, query, documents) for query in queries]
            found = np.stack(rows) if rows else np.zeros((0, len(documents)))
        case _ if len(queries) == 1 and documents.size < _ALONE:
            found = np.einsum("qw,dw->qd", queries, documents)
        case _:
            found = queries @ documents.T
    return np.asarray(np.clip(found, -1, 1) if similarity == "cosine" else found, np.float32)


def nearest(
    similarity: str, queries: "_Vectors", documents: "_Vectors", depth: int, below: "_Vectors | None" = None
) -> tuple["NDArray[np.int64]", "NDArray[np.float32]"]:
    """The documents that are most similar to each query.

    Args:
        similarity: See `scores_of_pairs`.
        queries: (Q, W).
        documents: (D, W).
        depth: How many documents for each query, at most.
        below: The highest score that counts, (Q,); `None` for any.

    Returns:
        Numbers of documents, the nearest first, and their scores: (Q, min(depth, D)). Documents that do not count
        stand last, with a score of minus infinity.
    """
    import numpy as np

    depth = min(depth, len(documents))
    numbers, scores = np.zeros((len(queries), depth), np.int64), np.zeros((len(queries), depth), np.float32)
    for start in range(0, len(queries), _ROWS):
        near = scores_of_all(similarity, queries[start : start + _ROWS], documents)
        if below is not None:
            near = np.where(near <= below[start : start + _ROWS, None], near, -np.inf)
        best = np.argsort(-near, axis=1, kind="stable")[:, :depth]
        numbers[start : start + _ROWS], scores[start : start + _ROWS] = best, np.take_along_axis(near, best, 1)
    return numbers, scores
