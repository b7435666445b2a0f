"""Combines the scores of several rankings of chunks into one relevance."""

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import NamedTuple

from mlxbert.search.store import Scores
from mlxbert.search.word_evidence import WordMatch

# After a logistic regression over questions with and without an answer among the passages, see docs/search.md.
_VECTORS = 0.65  # per standard deviation between the similarity and that of unrelated texts
_FREQUENCY = 3.5
_CLOSENESS = 5.0
_PHRASE = 3.0  # of a passage that contains the exact phrase
_OFFSET = -7.6


class Evidence(NamedTuple):
    """What is known about a chunk.

    Attributes:
        logit: The logit of the relevance.
        similarity: The similarity of the best vector.
    """

    logit: float
    similarity: float


@dataclass
class FusedChunk:
    """A chunk in a fused ranking.

    Attributes:
        chunk: The number of the chunk.
        score: The relevance from 0 to 1 or, of a single ranking, its score.
        ranks: The rank of the chunk, from 1, in each list that has it.
        scores: The score of the chunk in each of these lists, and by vectors.
        order: What decides the order: the logit of the relevance, or the score.
    """

    chunk: int
    score: float = 0.0
    ranks: dict[str, int] = field(default_factory=dict)
    scores: dict[str, float] = field(default_factory=dict)
    order: float = 0.0


@dataclass(frozen=True)
class Unrelated:
    """What the similarities of a search are compared with: those of two unrelated texts.

    Attributes:
        mean: The mean.
        deviation: The standard deviation.
    """

    mean: float
    deviation: float

    def evidence(self, similarity: float, words: WordMatch, *, is_phrase: bool) -> Evidence:
        """Returns the evidence for a chunk.

        Args:
            similarity: The similarity of the best vector.
            words: How well the chunk has the words of the query.
            is_phrase: Whether the query stands in the chunk word for word.
        """
        deviations = (similarity - self.mean) / self.deviation
        logit = _OFFSET + _VECTORS * deviations + _FREQUENCY * words.frequency + _CLOSENESS * words.closeness
        return Evidence(logit + _PHRASE * is_phrase, similarity)


def fuse(
    lists: Mapping[str, Scores], groups: Mapping[int, int], evidence: Mapping[int, Evidence] | None = None
) -> list[FusedChunk]:
    """Fuses several rankings.

    Scores tell more than ranks: a ranking that is sure of a passage, by the score, keeps the passage at the top even if
    another ranking does not have it.

    Args:
        lists: The rankings `vectors`, `words` and `phrase`, or one of them, which keeps its scores.
        groups: Maps each chunk to its group: its document, or the chunk itself. Only the best chunk of each group is
            returned. Chunks with equal scores keep the order of this mapping.
        evidence: The evidence for each chunk; `None` for a single list.
    """
    chunks: dict[int, FusedChunk] = {}
    for name, scores in lists.items():
        ranks: dict[int, int] = {}
        for chunk, score in scores:
            rank = ranks.setdefault(groups[chunk], len(ranks) + 1)
            entry = chunks.setdefault(chunk, FusedChunk(chunk))
            entry.ranks[name], entry.scores[name] = rank, score
    for entry in chunks.values():
        if evidence is None:
            entry.score = entry.order = next(iter(entry.scores.values()))
        else:
            entry.order, entry.scores["vectors"] = evidence[entry.chunk]
            entry.score = relevance(entry.order)
    places = {chunk: place for place, chunk in enumerate(groups)}
    best: dict[int, FusedChunk] = {}
    for entry in sorted(chunks.values(), key=lambda entry: (-entry.order, places[entry.chunk])):
        best.setdefault(groups[entry.chunk], entry)
    return [*best.values()]


def relevance(logit: float) -> float:
    """Converts a logit to a relevance from 0 to 1."""
    return 1 / (1 + math.exp(-logit)) if logit > -700 else 0.0
