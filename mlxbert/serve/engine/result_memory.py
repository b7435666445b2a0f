"""Limits the memory for the results of requests; requests wait until there is room for theirs.

Small requests have a part of the memory to themselves, so that large requests do not block them.
"""

import threading
from collections import deque
from collections.abc import Callable
from contextvars import ContextVar
from dataclasses import dataclass, field

from mlxbert.errors import TooLargeError

_SMALL = 16  # a claim is small if it is at most this fraction of the maximum: it never waits for large claims
_LARGE = 2  # the number of requests of the maximum size that fit at a time


@dataclass(eq=False)
class MemoryClaim:
    """The memory that a request claims."""

    size: int  # the size in bytes
    ready: Callable[[], object]  # called when a waiting claim is granted
    lane: "_Lane"  # the part of the memory that the claim belongs to
    granted: bool = False  # whether the claim has its memory
    over: bool = False  # whether the memory was freed, or the claim was withdrawn


@dataclass(eq=False)
class _Lane:
    """A part of the memory: its size and its free memory in bytes, and the queue of waiting claims."""

    size: int
    free: int = field(init=False)
    waiting: deque[MemoryClaim] = field(default_factory=deque)

    def __post_init__(self) -> None:
        self.free = self.size

    def grant(self) -> list[MemoryClaim]:
        """Grants waiting claims in their order as long as they fit; returns the granted claims."""
        granted = []
        while self.waiting and (self.waiting[0].over or self.waiting[0].size <= self.free):
            claim = self.waiting.popleft()
            if not claim.over:
                self.free, claim.granted = self.free - claim.size, True
                granted.append(claim)
        return granted


class ResultMemory:
    """The memory for results, which any number of threads may claim; those of a request have at most `max_bytes`."""

    def __init__(self, max_bytes: int) -> None:
        self.max_bytes, self._lock = max_bytes, threading.Lock()
        self._small, self._large = _Lane(max_bytes), _Lane(_LARGE * max_bytes)

    def claim(self, size: int, ready: Callable[[], object]) -> MemoryClaim:
        """Claims `size` bytes, which are granted at once or when it is the claim's turn.

        A single claim never takes its whole lane. Otherwise a request that already holds an earlier claim (for the
        vector of a query) might wait for itself.
        """
        lane = self._small if size * _SMALL <= self.max_bytes else self._large
        claim = MemoryClaim(min(size, lane.size - self.max_bytes // 2), ready, lane)
        with self._lock:
            if not lane.waiting and claim.size <= lane.free:
                lane.free, claim.granted = lane.free - claim.size, True
            else:
                lane.waiting.append(claim)
        return claim

    def shrink(self, claim: MemoryClaim, size: int) -> None:
        """Reduces a claim to `size` bytes, and frees the rest of its memory."""
        self._give(claim, min(size, claim.size))

    def leave(self, claim: MemoryClaim) -> None:
        """Frees all memory of a claim, or removes the claim from the queue; a second call does nothing."""
        self._give(claim, 0, over=True)

    def _give(self, claim: MemoryClaim, rest: int, *, over: bool = False) -> None:
        with self._lock:
            if claim.over:
                return
            if claim.granted:
                claim.lane.free += claim.size - rest
                claim.size = rest
            claim.over = over
            granted = claim.lane.grant()
        for waiting_claim in granted:
            waiting_claim.ready()


@dataclass(frozen=True)
class Budget:
    """The memory that a request may use."""

    room: ResultMemory  # the room that the memory comes from; it also limits the size of one answer
    claims: list[MemoryClaim] = field(default_factory=list)  # the claims of the request so far

    def claim(self, size: int, ready: Callable[[], object]) -> MemoryClaim:
        claim = self.room.claim(size, ready)
        self.claims.append(claim)
        return claim

    def leave(self) -> None:
        for claim in self.claims:
            self.room.leave(claim)


def too_large(what: str, size: int, limit: int, hint: str) -> TooLargeError:
    """Makes the error for results that take too much memory; `what` is too large, and `hint` says how to reduce it."""
    message = f"{what} would take {size / 1e6:,.1f} MB, expected at most {limit / 1e6:,.1f} MB in an answer"
    return TooLargeError(message, hint=hint)


BUDGET: ContextVar[Budget] = ContextVar("BUDGET")  # the budget of the request that is being answered
