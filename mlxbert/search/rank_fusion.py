"""Orders the chunks of several rankings by their hybrid scores, or by the scores of a single ranking."""

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import NamedTuple, TypeAlias

from mlxbert.lazy_numpy import NDArray, np
from mlxbert.search.folding import folded
from mlxbert.search.store import FoundChunk, IndexStore, Scores
from mlxbert.search.word_search import BOUNDARY, WordMatch, WordMatcher, phrases

Vector: TypeAlias = "NDArray[np.float32]"

# Chosen by the ranks of questions, see docs/search.md; the offset such that few right passages have less than 0.
_VECTORS = 0.65  # per standard deviation above the similarity of unrelated texts
_BM25 = 3.5
_CLOSENESS = 5.0
_PHRASE = 3.0
_OFFSET = -2.5


class Unrelated(NamedTuple):
    """The mean and the standard deviation of the similarities of unrelated texts."""

    mean: float
    deviation: float


class HybridScore(NamedTuple):
    """The score of a chunk in a hybrid search."""

    # The weighted sum. A passage with less than 0 is probably about something else.
    total: float
    similarity: float  # the similarity of the best vector


def weigh(similarity: float, unrelated: Unrelated, words: WordMatch) -> HybridScore:
    """Returns the score of a chunk in a hybrid search, from the similarity of its best vector and from its words."""
    deviations = (similarity - unrelated.mean) / unrelated.deviation
    total = _OFFSET + _VECTORS * deviations + _BM25 * words.bm25 + _CLOSENESS * words.closeness
    return HybridScore(total + _PHRASE * words.is_phrase, similarity)


@dataclass
class FusedChunk:
    """A chunk in a fused ranking."""

    chunk: int  # the number of the chunk
    score: float = 0.0  # what decides the order: the hybrid score or, of a single ranking, its score
    ranks: dict[str, int] = field(default_factory=dict)  # the rank of the chunk, from 1, in each list that has it
    # The score of the chunk in each of these lists, by vectors, and by `tokens` (MaxSim) if they count.
    scores: dict[str, float] = field(default_factory=dict)


def fuse(
    lists: Mapping[str, Scores],
    groups: Mapping[int, int],
    hybrid_scores: Mapping[int, HybridScore] | None = None,
    rerank: Callable[[list[FusedChunk]], list[FusedChunk]] = list,
) -> list[FusedChunk]:
    """Orders the chunks of several rankings, with the rank of each in every ranking.

    Args:
        lists: The rankings `vectors`, `words` and `phrase`, or one of them, which keeps its scores.
        groups: Maps each chunk to its group: its document, or the chunk itself. Only the best chunk of each group is
            returned. Chunks with equal scores keep the order of this mapping.
        hybrid_scores: The hybrid score of each chunk; `None` for a single list.
        rerank: Changes the order of the chunks, or drops some, before the best of each group are chosen.
    """
    chunks: dict[int, FusedChunk] = {}
    for name, scores in lists.items():
        ranks: dict[int, int] = {}
        for chunk, score in scores:
            rank = ranks.setdefault(groups[chunk], len(ranks) + 1)
            entry = chunks.setdefault(chunk, FusedChunk(chunk))
            entry.ranks[name], entry.scores[name] = rank, score
    for entry in chunks.values():
        if hybrid_scores is None:
            entry.score = next(iter(entry.scores.values()))
        else:
            entry.score, entry.scores["vectors"] = hybrid_scores[entry.chunk]
    places = {chunk: place for place, chunk in enumerate(groups)}
    best: dict[int, FusedChunk] = {}
    for entry in rerank(sorted(chunks.values(), key=lambda entry: (-entry.score, places[entry.chunk]))):
        best.setdefault(groups[entry.chunk], entry)
    return [*best.values()]


def reranked_by_maxsim(
    ranked: Iterable[FusedChunk], scores: Mapping[int, float], unrelated: tuple[Unrelated, Unrelated] | None
) -> list[FusedChunk]:
    """Sorts chunks by their MaxSim, or by their hybrid scores with MaxSim in place of the similarity.

    A hybrid score counts either in standard deviations above that of unrelated texts.

    Args:
        ranked: The chunks, whose scores are changed.
        unrelated: The similarities of unrelated texts, by vectors and by MaxSim; `None` to sort by MaxSim
            alone.
    """
    chunks = [*ranked]
    for entry in chunks:
        score = entry.scores["tokens"] = scores[entry.chunk]
        if unrelated is None:
            entry.score = score
            continue
        pairs = zip((entry.scores["vectors"], score), unrelated, strict=True)
        before, after = ((value - known.mean) / known.deviation for value, known in pairs)
        entry.score += _VECTORS * (after - before)
    return sorted(chunks, key=lambda entry: -entry.score)


_TITLES = 1_000  # characters of the titles that are compared; a page may have a title of megabytes


class Candidates:
    """Reads and compares each chunk once, however many rankings contain the chunk."""

    def __init__(self, store: IndexStore, query: str, vector: "Vector", unrelated: Unrelated) -> None:
        self._store, self._vector, self._unrelated = store, vector, unrelated
        self._matcher = WordMatcher(store.word_weights(query), phrases(query))
        self.rows: dict[int, FoundChunk] = {}  # the chunks, by number
        self._similarities: dict[int, float] = {}
        self._words: dict[tuple[tuple[str, ...], str], WordMatch] = {}  # equal texts are compared once

    def hybrid_scores(self, lists: Mapping[str, Scores]) -> dict[int, HybridScore]:
        """Returns the hybrid scores of the chunks of rankings; the length of the rankings does not change them."""
        chunks = {chunk for scores in lists.values() for chunk, _ in scores}
        self.rows |= {row.number: row for row in self._store.chunks([*chunks - self.rows.keys()])}
        self._similarities |= lists["vectors"]
        if others := chunks - self._similarities.keys():
            self._similarities |= self._store.similarities(self._vector, others)
        return {chunk: weigh(self._similarities[chunk], self._unrelated, self._match(chunk)) for chunk in chunks}

    def _match(self, chunk: int) -> WordMatch:
        text = self.rows[chunk].chunk
        key = (text.titles, text.text)
        if key not in self._words:
            titles, words = folded("\n".join(text.titles)[:_TITLES]).split(), folded(text.text).split()
            self._words[key] = self._matcher.match([*titles, BOUNDARY, *words])
        return self._words[key]
