"""Several orders of chunks made one: reciprocal rank fusion."""

from collections.abc import Mapping
from dataclasses import dataclass, field

from mlxbert.search.store import Scores

K = 60  # of reciprocal rank fusion, as in Cormack, Clarke and Büttcher (2009)
# A passage that says it word for word is hardly ever the wrong one.
WEIGHTS = {"vectors": 1.0, "words": 1.0, "phrase": 2.0}


@dataclass
class FusedChunk:
    """A chunk in a fused order.

    Attributes:
        chunk: Its number.
        score: The sum of the weights of the lists, each divided by `K` and the rank in it; that of words times the
            share of the query's words that the chunk has.
        ranks: Its rank, from 1, in each list that it is in.
        scores: Its score in each.
    """

    chunk: int
    score: float = 0.0
    ranks: dict[str, int] = field(default_factory=dict)
    scores: dict[str, float] = field(default_factory=dict)


def fuse(lists: Mapping[str, Scores], groups: Mapping[int, int], reachable: float | None = None) -> list[FusedChunk]:
    """One order of several.

    Most passages share some common word with a question that is asked in other words than theirs. Were their ranks
    among each other worth as much as those by meaning, they would come before the passage that answers it.

    Args:
        lists: The orders by their names in `WEIGHTS`. Of one list alone the scores stay.
        groups: For each chunk what is ranked: its document, of which the best chunk is given; or the chunk itself.
            Equal scores stand in this order.
        reachable: The score of a chunk that has all words of the query; `None` where all ranks count the same.
    """
    fused: dict[int, float] = {}
    found: dict[int, dict[int, FusedChunk]] = {}
    for name, scores in lists.items():
        seen: dict[int, int] = {}
        for chunk, score in scores:
            group = groups[chunk]
            first = group not in seen
            rank = seen.setdefault(group, len(seen) + 1)
            share = min(score / reachable, 1.0) if name == "words" and reachable else 1.0
            value = WEIGHTS[name] * share / (K + rank)
            one = found.setdefault(group, {}).setdefault(chunk, FusedChunk(chunk))
            one.score += value if first else value * 1e-6  # of a document's chunks, the one that leads most lists
            one.ranks[name], one.scores[name] = rank, score
            if first:
                fused[group] = fused.get(group, 0.0) + (score if len(lists) == 1 else value)
    best = {group: max(chunks.values(), key=lambda one: one.score) for group, chunks in found.items()}
    for group, one in best.items():
        one.score = fused[group]
    places = {chunk: place for place, chunk in enumerate(groups)}
    return sorted(best.values(), key=lambda one: (-one.score, places[one.chunk]))
