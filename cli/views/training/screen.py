"""Draws a training in a terminal: the report, the live view, the summary."""

from mlxbert.cli.views import console
from mlxbert.cli.views.training import corpus, evaluation, report, summary
from mlxbert.cli.views.training.live import LiveView
from mlxbert.training.loop.events import Event, Finished, Started


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
        """Draws an event."""
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
        """Ends the live view; its last picture remains on the screen."""
        if self._live is not None:
            self._live.close()
            self._live = None

    def _report(self) -> None:
        if self._first is not None and self._first.corpus is not None:
            for part in corpus.before(self._first, self._first.corpus):
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
