"""Memory for answers: how much of it a request may take, and requests that wait until there is room for them.

Requests that may take little have a part of the room for themselves, so that large ones do not hold them up.
"""

import threading
from collections import deque
from collections.abc import Callable
from contextvars import ContextVar
from dataclasses import dataclass, field

from mlxbert.errors import TooLargeError

_SMALL = 16  # times less than a request may take at most: it waits for none of the large ones
_LARGE = 2  # as many of the largest requests at a time


@dataclass(eq=False)
class Claim:
    """What a request takes.

    Attributes:
        size: Bytes.
        ready: Is called when there is room, if there is none at once.
        lane: The part of the room.
        granted: Whether there is room for it.
        over: Whether it is given back.
    """

    size: int
    ready: Callable[[], object]
    lane: "_Lane"
    granted: bool = False
    over: bool = False


@dataclass(eq=False)
class _Lane:
    """A part of a room: its size and what is free, in bytes, and who waits, in turn."""

    size: int
    free: int = field(init=False)
    waiting: deque[Claim] = field(default_factory=deque)

    def __post_init__(self) -> None:
        self.free = self.size

    def grant(self) -> list[Claim]:
        """Those that need not wait any more."""
        found = []
        while self.waiting and (self.waiting[0].over or self.waiting[0].size <= self.free):
            claim = self.waiting.popleft()
            if not claim.over:
                self.free, claim.granted = self.free - claim.size, True
                found.append(claim)
        return found


class Room:
    """Memory for answers, for any number of threads.

    Args:
        most: Bytes that one answer may take.

    Attributes:
        most: The same.
    """

    def __init__(self, most: int) -> None:
        self.most, self._lock = most, threading.Lock()
        self._small, self._large = _Lane(most), _Lane(_LARGE * most)

    def claim(self, size: int, ready: Callable[[], object]) -> Claim:
        """Takes a number of bytes, or waits in line for them; of more than there are, for nearly all of them.

        The rest is for what was computed first and is kept, the vector of a query: a request never waits for itself.

        Args:
            size: Bytes.
            ready: See `Claim`.
        """
        lane = self._small if size * _SMALL <= self.most else self._large
        claim = Claim(min(size, lane.size - self.most // 2), ready, lane)
        with self._lock:
            if not lane.waiting and claim.size <= lane.free:
                lane.free, claim.granted = lane.free - claim.size, True
            else:
                lane.waiting.append(claim)
        return claim

    def shrink(self, claim: Claim, size: int) -> None:
        """Gives a part back: `size` bytes are enough."""
        self._give(claim, min(size, claim.size))

    def leave(self, claim: Claim) -> None:
        """Gives everything back, or waits no longer; a second time nothing happens."""
        self._give(claim, 0, over=True)

    def _give(self, claim: Claim, rest: int, *, over: bool = False) -> None:
        with self._lock:
            if claim.over:
                return
            if claim.granted:
                claim.lane.free += claim.size - rest
                claim.size = rest
            claim.over = over
            granted = claim.lane.grant()
        for one in granted:
            one.ready()


@dataclass(frozen=True)
class Budget:
    """What a request of a server may take.

    Attributes:
        room: Where it takes it from; it also says how much one answer may take.
        claims: What it has taken so far.
    """

    room: Room
    claims: list[Claim] = field(default_factory=list)

    def claim(self, size: int, ready: Callable[[], object]) -> Claim:
        """See `Room.claim`."""
        claim = self.room.claim(size, ready)
        self.claims.append(claim)
        return claim

    def leave(self) -> None:
        """Gives everything back."""
        for claim in self.claims:
            self.room.leave(claim)


def too_large(what: str, size: int, most: int, hint: str) -> TooLargeError:
    """Why results are refused.

    Args:
        what: What they are.
        size: Bytes that they would take.
        most: Bytes that an answer may take.
        hint: How they would take less.
    """
    message = f"{what} would take {size / 1e6:,.1f} MB, expected at most {most / 1e6:,.1f} MB in an answer"
    return TooLargeError(message, hint=hint)


BUDGET: ContextVar[Budget] = ContextVar("BUDGET")  # of the request that is being answered
