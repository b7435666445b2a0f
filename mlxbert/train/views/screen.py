"""Draws a training in a terminal: the report, the live view, the summary."""

import time
from collections.abc import Callable
from contextlib import ExitStack

from mlxbert.cli.views import console, rich
from mlxbert.train.loop.events import Evaluated, Event, Finished, Started, Step
from mlxbert.train.views import evaluation, report, summary, value_texts
from mlxbert.train.views.frame import DrawnRuns, frame

_LINE_PAUSE = 15.0  # seconds between lines about steps


class SparseLines:
    """Prints a line for the beginning of each run, for each evaluation, and for a step from time to time."""

    def __init__(self) -> None:
        self._printed = time.monotonic()
        self._steps = 0

    def write(self, event: Event) -> None:
        match event:
            case Started():
                self._steps = event.steps
                self._say(_begins(event))
                if event.estimate and (note := value_texts.sleeping(event.estimate.seconds)):
                    self._say(note)
            case Step() if time.monotonic() - self._printed >= _LINE_PAUSE:
                remaining = value_texts.duration(event.seconds_left)
                self._say(
                    f"step {event.step:,} of {self._steps:,}, loss {value_texts.figure(event.loss)}, {remaining} left"
                )
            case Evaluated():
                best = ", the best so far" if event.best else ""
                score = value_texts.score(event.metrics[event.metric])
                self._say(f"epoch {event.epoch:.2f}, {event.metric} {score}{best}")
            case Finished():
                self._say(f"{event.metric} {value_texts.score(event.score)}; {event.output} is complete")

    def close(self) -> None:
        """Does nothing."""

    def _say(self, text: str) -> None:
        console.say("note", text)
        self._printed = time.monotonic()


def _begins(event: Started) -> str:
    run = f"run {event.run + 1} of {event.runs} ({value_texts.varied(event.varied)}), " if event.runs > 1 else ""
    place = f"resumed after step {event.first_step:,} of" if event.first_step else "begins:"
    takes = f", {value_texts.about(event.estimate.seconds)}" if event.estimate else ""
    return f"{run}{event.task} from {event.model} {place} {console.counted(event.steps, 'step')}{takes}"


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
        self.state.note(event)
        if not isinstance(event, Step) or self._clock() >= self._due:
            self.draw()

    def phase(self, name: str) -> None:
        """Shows the name of the current phase; an empty name stands for updating the weights."""
        self.state.phase = name
        self.draw()

    def draw(self) -> None:
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


class TrainingScreen:
    """Draws the events of a training on stdout.

    `live` says whether a live view follows the report. If `quiet` is true, the live view is left out, and the report
    is drawn only if `live` is false, as in a dry run. The summary is always drawn.
    """

    def __init__(self, *, quiet: bool, live: bool) -> None:
        self._screen = console.stdout()
        self._first: Started | None = None
        self._live = LiveView(self._screen, self._report) if live and not quiet else None
        self._quiet, self._reports = quiet, not (quiet and live)

    def write(self, event: Event) -> None:
        if isinstance(event, Started) and self._first is None:
            self._first = event
            if self._reports:
                self._report()
        if isinstance(event, Finished):
            self.close()
            self._finish(event)
        elif self._live is not None:
            self._live.write(event)

    def phase(self, name: str) -> bool:
        """Shows the current phase in the live view, if there is one; returns whether the live view is already drawn."""
        if self._live is not None:
            self._live.phase("" if name == "training" else name)
        return self._live is not None and self._first is not None

    def close(self) -> None:
        if self._live is not None:
            self._live.close()
            self._live = None

    def _report(self) -> None:
        if self._first is not None and self._first.corpus is not None:
            for part in report.before_pretraining(self._first, self._first.corpus):
                self._screen.print(part)
        if self._first is not None and self._first.report is not None:
            for part in report.before(self._first, self._first.report):
                self._screen.print(part)

    def _finish(self, event: Finished) -> None:
        if not self._quiet:
            self._screen.print()
            if event.evaluation is not None:
                for part in evaluation.details(event.evaluation, self._screen.width):
                    self._screen.print(part)
        for part in summary.finished(event):
            self._screen.print(part)
