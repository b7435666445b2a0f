"""Common parts of tasks that rank texts for a query: similarity scores, and a ranking of the best texts."""

import heapq
from collections.abc import Iterable, Iterator
from typing import Any, NamedTuple, TypeAlias

from mlxbert.errors import InputError
from mlxbert.lazy_numpy import NDArray, np
from mlxbert.results.result import Failure
from mlxbert.results.text_relations import Reranked

_Vectors: TypeAlias = "NDArray[np.floating[Any]]"

_SINGLE_CORE = 2**22  # numbers: for fewer, starting threads takes longer than a product on one core
_QUERIES = 64  # queries whose scores for all documents are in memory at the same time
_OF_TOKENS = ("maxsim", "meanmaxsim")
# The compared score, the negative index (so that the earlier text is the greater), a `Scored`, the caller's object.
_Entry = tuple[float, int, "Scored", Any]


class Scored(NamedTuple):
    """A text with its score for a query (see `Similarity`)."""

    score: float
    text: str
    truncated: bool = False
    unknown_tokens: int = 0
    # The output of a cross-encoder, or a similarity, which decides the rank (see `Reranked`).
    logit: float | None = None

    @property
    def order(self) -> float:
        """The value that decides the rank: the logit if there is one, since in float32 many probabilities are 1.0."""
        return self.score if self.logit is None else self.logit


class RankedText(NamedTuple):
    """A ranked text: the values of a `Similarity`, and the object that the caller stored with the text."""

    rank: int
    number: int
    score: float
    text: str
    truncated: bool
    unknown_tokens: int
    logit: float | None
    kept: Any


class Ranking:
    """Keeps the texts with the highest scores (or logits), best first; ties stay in the order of the input.

    Equal texts get the same score, although rounding differs between batches.
    """

    def __init__(self, top_k: int | None) -> None:  # `None` keeps all
        self._top_k = top_k
        self._best: list[_Entry] = []
        self._texts: dict[str, tuple[Scored, int]] = {}  # each text in `_best`: its first score, and its count

    def add(self, index: int, scored: Scored, kept: Any = None) -> None:
        """Adds a text, which may displace the worst one."""
        text = scored.text
        first, count = self._texts.get(text, (scored, 0))
        self._texts[text] = first, count + 1
        entry = (first.order, -index, scored._replace(score=first.score, logit=first.logit), kept)
        if self._top_k is None or len(self._best) < self._top_k:
            heapq.heappush(self._best, entry)
        else:
            self._forget(heapq.heappushpop(self._best, entry)[2].text)

    def _forget(self, text: str) -> None:
        first, count = self._texts.pop(text)
        if count > 1:
            self._texts[text] = first, count - 1

    def sorted(self) -> list[RankedText]:
        """Returns the kept texts, best first, with ranks from 1."""
        best = sorted(self._best, reverse=True)
        return [RankedText(rank, -place, *scored, kept) for rank, (_, place, scored, kept) in enumerate(best, 1)]


def scored_texts(
    query_task: Any, task: Any, query: str, texts: Iterable[str | InputError], on_error: str
) -> Iterator[Scored | Failure]:
    """Yields the score of each text for a query, in the order of the texts, by two tasks whose results have scores."""
    (embedded,) = query_task.compute([query_task.job(query)])

    def scored(result: Any) -> Scored | Failure:
        """Scores a result; drops its vector, since there may be many results."""
        if isinstance(result, Failure):
            return result
        score = task.score(embedded, result)
        return Scored(score, result.text, result.truncated, result.unknown_tokens, logit=score)

    return map(scored, task.run(texts, on_error, early=False))  # nobody waits: ranking needs all scores


def rank(results: Iterable[Scored | Failure], top_k: int | None) -> tuple[list[RankedText], list[Failure]]:
    """Ranks the results of texts, in the order of the input; returns the `top_k` best, or all, and all failures."""
    failures: list[Failure] = []
    best = Ranking(top_k)
    for index, result in enumerate(results):
        if isinstance(result, Failure):
            failures.append(result)
        else:
            best.add(index, result)
    return best.sorted(), failures


def reranked(query: str, text: RankedText) -> Reranked:
    """Makes the result for a text with its rank and its scores from a `RerankTask`."""
    assert text.logit is not None
    return Reranked(query, text.rank, text.number, text.score, text.text, text.logit, text.truncated)


def with_query(query: str, texts: Iterable[str | InputError]) -> Iterator[tuple[str, str] | InputError]:
    """Pairs the query with each text."""
    return (text if isinstance(text, InputError) else (query, text) for text in texts)


def check_query(query: object, texts: object) -> None:
    """Raises InputError if the query is not a text, or is empty."""
    if not isinstance(query, str):
        from mlxbert.tasks.argument_checks import OF_VECTORS, holds_numbers  # needs MLX, which a server's clients lack

        hint = "the query comes before the texts" if isinstance(texts, str) else None
        hint = OF_VECTORS if holds_numbers(query) else hint
        raise InputError(f"the query is of type {type(query).__name__}, expected a text", hint=hint)
    if not query.strip():
        raise InputError(f"the query is {query!r:.60}, expected a text that is not empty")


def scores_of_pairs(similarity: str, first: "_Vectors", second: "_Vectors") -> "NDArray[np.float32]":
    """Returns the similarity of two vectors, or of each pair of rows; a higher score means more similar.

    Args:
        similarity: One of `SIMILARITIES`. Distances are negative, as in sentence-transformers.
        first: Vectors (…, W); of length 1 if the similarity is `cosine`.
        second: Vectors (…, W), like `first`.
    """
    if similarity in _OF_TOKENS:
        from mlxbert.tasks.maxsim import maxsim  # needs MLX

        return maxsim(first, [second] if second.dtype != object else second, similarity=similarity)
    match similarity:
        case "euclidean":
            scores = -np.linalg.norm(first - second, axis=-1)
        case "manhattan":
            scores = -np.abs(first - second).sum(-1)
        case _:
            scores = (first * second).sum(-1)
    return np.asarray(np.clip(scores, -1, 1) if similarity == "cosine" else scores, np.float32)


def scores_of_all(similarity: str, queries: "_Vectors", documents: "_Vectors") -> "NDArray[np.float32]":
    """Returns the similarities (Q, D) of all queries (Q, W) to all documents (D, W); see `scores_of_pairs`."""
    if similarity in _OF_TOKENS:
        from mlxbert.tasks.maxsim import maxsim  # needs MLX

        return np.stack([maxsim(query, documents, similarity=similarity) for query in queries])
    match similarity:
        case "euclidean":  # needs float64, since it subtracts large squares
            a, b = queries.astype(np.float64), documents.astype(np.float64)
            squares = np.square(a).sum(1)[:, None] + np.square(b).sum(1) - 2 * a @ b.T
            scores = -np.sqrt(np.maximum(squares, 0))
        case "manhattan":
            rows = [scores_of_pairs(similarity, query, documents) for query in queries]
            scores = np.stack(rows) if rows else np.zeros((0, len(documents)))
        case _ if len(queries) == 1 and documents.size < _SINGLE_CORE:
            scores = np.einsum("qw,dw->qd", queries, documents)
        case _:
            scores = queries @ documents.T
    return np.asarray(np.clip(scores, -1, 1) if similarity == "cosine" else scores, np.float32)


def nearest(
    similarity: str, queries: "_Vectors", documents: "_Vectors", depth: int, below: "_Vectors | None" = None
) -> tuple["NDArray[np.int64]", "NDArray[np.float32]"]:
    """Finds the documents most similar to each query.

    Args:
        queries: (Q, W).
        documents: (D, W).
        depth: The maximum number of documents per query.
        below: For each query, the maximum score of an eligible document, (Q,); `None` for no limit.

    Returns:
        Indices of documents, most similar first, and their scores: (Q, min(depth, D)). Documents that are not eligible
        come last, with a score of minus infinity.
    """
    depth = min(depth, len(documents))
    numbers, scores = np.zeros((len(queries), depth), np.int64), np.zeros((len(queries), depth), np.float32)
    for start in range(0, len(queries), _QUERIES):
        block = scores_of_all(similarity, queries[start : start + _QUERIES], documents)
        if below is not None:
            block = np.where(block <= below[start : start + _QUERIES, None], block, -np.inf)
        best = np.argsort(-block, axis=1, kind="stable")[:, :depth]
        numbers[start : start + _QUERIES], scores[start : start + _QUERIES] = best, np.take_along_axis(block, best, 1)
    return numbers, scores
