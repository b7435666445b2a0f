"""What a call of training does at the moment, and how long each of its phases takes."""

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

clock = time.perf_counter  # of everything that training measures; tests replace it
LOADING, EARLIER = "loading the model", "before it was resumed"

OnPhase = Callable[[str], object]


class Times:
    """Seconds by phase: each lasts until the next one begins, so that their sum is the whole time.

    Attributes:
        seconds: Of the phases so far, by their names; `EARLIER` is the training of processes that were interrupted.
        on_phase: Called with the name of each phase as it begins.
    """

    def __init__(self, on_phase: OnPhase | None = None) -> None:
        self.seconds: dict[str, float] = {}
        self.on_phase: OnPhase = on_phase or (lambda name: None)
        self._name, self._since = "", 0.0

    def begin(self, name: str) -> None:
        """Begins a phase, which ends the one before; without a name nothing is counted until the next one."""
        now, before = clock(), self._name
        if before:
            self.add(before, now - self._since)
        self._name, self._since = name, now
        if name not in ("", before):
            self.on_phase(name)

    @contextmanager
    def phase(self, name: str) -> Iterator[None]:
        """A phase within another one, which continues after it."""
        before = self._name
        self.begin(name)
        try:
            yield
        finally:
            self.begin(before)

    def add(self, name: str, seconds: float) -> None:
        """Adds to the time of a phase."""
        self.seconds[name] = self.seconds.get(name, 0.0) + seconds

    def total(self) -> float:
        """Seconds so far."""
        self.begin(self._name)
        return sum(self.seconds.values())
