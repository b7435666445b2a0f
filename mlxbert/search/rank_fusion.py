"""Combines the scores of several rankings of chunks into one relevance."""

import math
from collections.abc import Mapping
from dataclasses import dataclass, field

from mlxbert.search.store import Scores

# A logistic regression over questions with and without an answer among the passages, see docs/search.md.
_VECTORS = 0.65  # per standard deviation between the score and those of unrelated texts
_WORDS = 4.5  # of a passage with all words of the query; rare words count more
_PHRASE = 3.0  # of a passage that contains the exact phrase
_OFFSET = -6.2


@dataclass
class FusedChunk:
    """A chunk in a fused ranking.

    Attributes:
        chunk: The number of the chunk.
        score: The relevance from 0 to 1 or, of a single ranking, its score.
        ranks: The rank of the chunk, from 1, in each list that has it.
        scores: The score of the chunk in each of these lists.
        evidence: What decides the order: the logit of the relevance, or the score.
    """

    chunk: int
    score: float = 0.0
    ranks: dict[str, int] = field(default_factory=dict)
    scores: dict[str, float] = field(default_factory=dict)
    evidence: float = 0.0


@dataclass(frozen=True)
class Scale:
    """What the scores of a search are compared with.

    Attributes:
        mean: The mean score of the vectors of two unrelated texts.
        deviation: The standard deviation of these scores.
        complete: The BM25 score of a chunk of average length that has each word of the query once.
    """

    mean: float
    deviation: float
    complete: float

    def evidence(self, scores: Mapping[str, float]) -> float:
        """Returns the logit of the relevance of a chunk, from its scores by vectors, by words and by the phrase."""
        share = min(scores.get("words", 0.0) / self.complete, 1.0) if self.complete else 0.0
        deviations = (scores.get("vectors", self.mean) - self.mean) / self.deviation
        return _OFFSET + _VECTORS * deviations + _WORDS * share + _PHRASE * ("phrase" in scores)


def fuse(lists: Mapping[str, Scores], groups: Mapping[int, int], scale: Scale | None = None) -> list[FusedChunk]:
    """Fuses several rankings.

    Scores tell more than ranks: a ranking that is sure of a passage, by the score, keeps the passage at the top even if
    another ranking does not have it. A chunk that is not in the list `vectors` counts as if it were the last there.

    Args:
        lists: The rankings `vectors`, `words` and `phrase`, or one of them, which keeps its scores.
        groups: Maps each chunk to its group: its document, or the chunk itself. Only the best chunk of each group is
            returned. Chunks with equal scores keep the order of this mapping.
        scale: What scores are compared with; `None` for a single list.
    """
    chunks: dict[int, FusedChunk] = {}
    for name, scores in lists.items():
        ranks: dict[int, int] = {}
        for chunk, score in scores:
            rank = ranks.setdefault(groups[chunk], len(ranks) + 1)
            entry = chunks.setdefault(chunk, FusedChunk(chunk))
            entry.ranks[name], entry.scores[name] = rank, score
    last = {"vectors": lists["vectors"][-1][1]} if lists.get("vectors") else {}
    for entry in chunks.values():
        if scale is None:
            entry.score = entry.evidence = next(iter(entry.scores.values()))
        else:
            entry.evidence = scale.evidence(last | entry.scores)
            entry.score = relevance(entry.evidence)
    places = {chunk: place for place, chunk in enumerate(groups)}
    best: dict[int, FusedChunk] = {}
    for entry in sorted(chunks.values(), key=lambda entry: (-entry.evidence, places[entry.chunk])):
        best.setdefault(groups[entry.chunk], entry)
    return [*best.values()]


def relevance(evidence: float) -> float:
    """Converts a logit to a relevance from 0 to 1."""
    return 1 / (1 + math.exp(-evidence)) if evidence > -700 else 0.0
