"""Measures the phases of a training call, and reports each phase as it begins."""

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

clock = time.perf_counter  # the clock of all measurements of training; tests replace it
LOADING, EARLIER = "loading the model", "before it was resumed"

OnPhase = Callable[[str], object]


class Times:
    """Measures the time of each phase. A phase lasts until the next one begins, so the sum is the total time."""

    def __init__(self, on_phase: OnPhase | None = None) -> None:
        # The time of each phase so far in seconds, keyed by name. The key `EARLIER` holds the time that interrupted
        # processes spent on training.
        self.seconds: dict[str, float] = {}
        self.on_phase: OnPhase = on_phase or (lambda name: None)
        self._name, self._since = "", 0.0

    def begin(self, name: str) -> None:
        """Begins a phase and ends the previous one. With an empty name, no time is counted until the next phase."""
        now, before = clock(), self._name
        if before:
            self.add(before, now - self._since)
        self._name, self._since = name, now
        if name not in ("", before):
            self.on_phase(name)

    @contextmanager
    def phase(self, name: str) -> Iterator[None]:
        """Measures a phase within another phase, which continues afterwards."""
        before = self._name
        self.begin(name)
        try:
            yield
        finally:
            self.begin(before)

    def add(self, name: str, seconds: float) -> None:
        self.seconds[name] = self.seconds.get(name, 0.0) + seconds

    def total(self) -> float:
        """Returns the total time so far in seconds."""
        self.begin(self._name)
        return sum(self.seconds.values())
