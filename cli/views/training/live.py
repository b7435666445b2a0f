"""The live view of a run, redrawn a few times per second."""

import time
from collections.abc import Callable
from contextlib import ExitStack

from mlxbert.cli.views import console, rich
from mlxbert.cli.views.training.frame import frame
from mlxbert.cli.views.training.run_state import DrawnRuns
from mlxbert.training.loop.events import Event, Step

_PAUSE = 0.125  # seconds between pictures
_SHARE = 0.04  # the maximum share of time spent on drawing


class LiveView:
    """Draws a run below the earlier output in the terminal.

    If the terminal has become narrower, it has wrapped the lines of the last picture, so that they cannot be
    overwritten. The terminal is then cleared and everything is redrawn; `again` redraws the earlier output.
    """

    def __init__(
        self, screen: "rich.Console", again: Callable[[], None], clock: Callable[[], float] = time.monotonic
    ) -> None:
        self.state = DrawnRuns()
        self._screen, self._again, self._clock = screen, again, clock
        self._live: rich.Live | None = None
        self._open = ExitStack()
        self._due = float("-inf")
        self._size = screen.size

    def write(self, event: Event) -> None:
        """Receives an event, and draws the run unless the last picture is very recent."""
        self.state.note(event)
        if not isinstance(event, Step) or self._clock() >= self._due:
            self.draw()

    def phase(self, name: str) -> None:
        """Shows the name of the current phase; an empty name stands for updating the weights."""
        self.state.phase = name
        self.draw()

    def draw(self) -> None:
        """Draws the current state of the run."""
        if self.state.started is None:
            return
        begun = self._clock()
        width, height = self._screen.size
        if self._live is not None and (width < self._size[0] or height < self._size[1]):
            self._restart()
        self._size = self._screen.size
        if self._live is None:
            self._begin()
        assert self._live is not None
        self._live.update(frame(self.state, width, height - 1), refresh=True)
        now = self._clock()
        self._due = now + max(_PAUSE, (now - begun) / _SHARE)

    def close(self) -> None:
        """Leaves the last picture on the terminal."""
        if self._live is not None:
            started = self.state.started
            unfinished = started is not None and self.state.place < started.steps
            self.phase("stopped" if unfinished else "")
        self._open.close()
        self._live = None

    def _begin(self) -> None:
        self._live = rich.Live(
            console=self._screen,
            auto_refresh=False,
            redirect_stdout=False,
            redirect_stderr=False,
            vertical_overflow="crop",
        )
        self._open.enter_context(console.live(self._screen))
        self._open.enter_context(self._live)

    def _restart(self) -> None:
        assert self._live is not None
        self._live.transient = True
        self._open.close()
        self._live = None
        self._screen.clear()
        self._again()
