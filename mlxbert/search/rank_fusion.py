"""Combines several rankings of chunks into one: reciprocal rank fusion."""

from collections.abc import Mapping
from dataclasses import dataclass, field

from mlxbert.search.store import Scores

K = 60  # of reciprocal rank fusion, as in Cormack, Clarke and Büttcher (2009)
# A passage that contains the exact phrase is almost always relevant.
WEIGHTS = {"vectors": 1.0, "words": 1.0, "phrase": 2.0}


@dataclass
class FusedChunk:
    """A chunk in a fused ranking.

    Attributes:
        chunk: The number of the chunk.
        score: The sum, over the lists, of weight / (`K` + rank). The rank in the list `words` counts less if the chunk
            has few words of the query: its term is multiplied by the chunk's score divided by `reachable`.
        ranks: The rank of the chunk, from 1, in each list that has it.
        scores: The score of the chunk in each of these lists.
    """

    chunk: int
    score: float = 0.0
    ranks: dict[str, int] = field(default_factory=dict)
    scores: dict[str, float] = field(default_factory=dict)


def fuse(lists: Mapping[str, Scores], groups: Mapping[int, int], reachable: float | None = None) -> list[FusedChunk]:
    """Fuses several rankings.

    Most passages share common words with a question. If ranks by words counted as much as ranks by meaning, such
    passages would come before the passage that answers the question in other words.

    Args:
        lists: The rankings, keyed by their names in `WEIGHTS`. A single list keeps its scores.
        groups: Maps each chunk to its group: its document, or the chunk itself. Only the best chunk of each group is
            returned. Chunks with equal scores keep the order of this mapping.
        reachable: The highest score that a chunk with all words of the query can reach in the list `words`; `None` if
            ranks by words count fully.
    """
    fused: dict[int, float] = {}
    by_group: dict[int, dict[int, FusedChunk]] = {}
    for name, scores in lists.items():
        seen: dict[int, int] = {}
        for chunk, score in scores:
            group = groups[chunk]
            first = group not in seen
            rank = seen.setdefault(group, len(seen) + 1)
            share = min(score / reachable, 1.0) if name == "words" and reachable else 1.0
            value = WEIGHTS[name] * share / (K + rank)
            entry = by_group.setdefault(group, {}).setdefault(chunk, FusedChunk(chunk))
            entry.score += value if first else value * 1e-6  # a document's best chunk is first in most lists
            entry.ranks[name], entry.scores[name] = rank, score
            if first:
                fused[group] = fused.get(group, 0.0) + (score if len(lists) == 1 else value)
    best = {group: max(chunks.values(), key=lambda entry: entry.score) for group, chunks in by_group.items()}
    for group, entry in best.items():
        entry.score = fused[group]
    places = {chunk: place for place, chunk in enumerate(groups)}
    return sorted(best.values(), key=lambda entry: (-entry.score, places[entry.chunk]))
