"""The texts with the highest scores, in memory only as many as are asked for."""

import heapq
from dataclasses import dataclass

# Score, place before which none is (negative: the first one is the greatest), text, whether truncated, unknown tokens.
_Entry = tuple[float, int, str, bool, int]


@dataclass(frozen=True)
class Ranked:
    """A text in its place; see `Similarity`."""

    rank: int
    index: int
    score: float
    text: str
    truncated: bool
    unknown_tokens: int


class Ranking:
    """Texts by their scores, the highest first and equal ones in the order of the input.

    Equal texts get the same score, though batches round differently.

    Args:
        top_k: How many are kept; `None` for all.
    """

    def __init__(self, top_k: int | None) -> None:
        self._top_k = top_k
        self._best: list[_Entry] = []
        self._known: dict[str, tuple[float, int]] = {}  # of each text that is kept its score, and how often it is

    def add(self, index: int, score: float, text: str, truncated: bool = False, unknown_tokens: int = 0) -> None:
        """Takes a text into account."""
        score, count = self._known.get(text, (score, 0))
        self._known[text] = score, count + 1
        entry = (score, -index, text, truncated, unknown_tokens)
        if self._top_k is None or len(self._best) < self._top_k:
            heapq.heappush(self._best, entry)
        else:
            self._forget(heapq.heappushpop(self._best, entry)[2])

    def _forget(self, text: str) -> None:
        score, count = self._known.pop(text)
        if count > 1:
            self._known[text] = score, count - 1

    def sorted(self) -> list[Ranked]:
        """The texts that are kept, ranks from 1."""
        best = sorted(self._best, reverse=True)
        return [
            Ranked(rank, -place, score, text, truncated, unknown)
            for rank, (score, place, text, truncated, unknown) in enumerate(best, 1)
        ]
