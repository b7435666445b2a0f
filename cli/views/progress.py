"""Draws progress bars on stderr."""

import time
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager

from mlxbert.cli.views import console, rich
from mlxbert.progress import OnProgress

_MIN_BAR, _MAX_BAR = 4, 40  # columns of a bar
_OTHER_COLUMNS = 52  # columns for the texts next to a bar
_WIDE = 50  # minimum columns of a terminal for a line with a bar and texts
_MEASUREMENTS, _INTERVAL, _MIN_SPAN = 10, 1.0, 3.0  # measurements for a rate; seconds between two, and over all


class RemainingTime:
    """Estimates the remaining time from the mean rate of the last measurements."""

    def __init__(self) -> None:
        self._measured: deque[tuple[float, int]] = deque(maxlen=_MEASUREMENTS)

    def add(self, done: int) -> None:
        """Adds a measurement, unless the last measurement is very recent."""
        now = time.monotonic()
        if not self._measured or now - self._measured[-1][0] >= _INTERVAL:
            self._measured.append((now, done))

    def left(self, total: float | None) -> float | None:
        """Returns the remaining seconds, or `None` if there are too few measurements or the work is overdue."""
        if total is None or not self._measured:
            return None
        (start, before), (end, done) = self._measured[0], self._measured[-1]
        if end - start < _MIN_SPAN or done <= before:
            return None
        seconds = (total - done) * (end - start) / (done - before) - (time.monotonic() - end)
        return seconds if seconds > 0 else None


@contextmanager
def download(name: str, before: Callable[[], None] = lambda: None) -> Iterator[OnProgress]:
    """Shows the progress of a download as a note and, in a terminal, a bar of bytes.

    Yields a function that takes the number of bytes done and the total; nothing is shown before its first call. An
    interrupt prints how much has arrived. `before` is called before anything is printed.
    """
    kept = total = 0

    def count(done: int, size: int) -> None:
        nonlocal kept, total
        kept, total = done, size
        show(done, size)

    with transfer(f"downloading {name}", before) as show:
        try:
            yield count
        except KeyboardInterrupt:
            if 0 < kept < total:
                amount = f"{console.size(kept)} of {console.size(total)}"
                console.say("note", f"interrupted after {amount}; whole files are kept")
            raise


@contextmanager
def upload(name: str) -> Iterator[OnProgress]:
    """Shows the progress of an upload as a note and, in a terminal, a bar of bytes; see `transfer`."""
    with transfer(f"uploading to {name}") as show:
        try:
            yield show
        except KeyboardInterrupt:
            console.say("note", "interrupted: the same command sends only what the hub lacks")
            raise


@contextmanager
def transfer(what: str, before: Callable[[], None] = lambda: None) -> Iterator[OnProgress]:
    """Shows the progress of work on bytes as a note with their number and, in a terminal, a bar.

    Yields a function that takes the number of bytes done and the total; nothing is shown before its first call.
    `before` is called before anything is printed.
    """
    with ExitStack() as drawn:
        update: OnProgress | None = None

        def show(done: int, total: int) -> None:
            nonlocal update
            if update is None and done < total:
                before()
                console.say("note", f"{what} ({console.size(total)})")  # a bar has no room for a name
                update = drawn.enter_context(_bar("", total, _byte_columns))
            if update is not None:
                update(done, total)
            if done >= total:
                drawn.close()  # the bar disappears when everything is done
                update = None

        yield show


@contextmanager
def waiting(text: str = "") -> Iterator[Callable[[str], None]]:
    """Shows a spinner and a text in a terminal; yields a function that changes the text (empty to remove it)."""
    with ExitStack() as drawn:
        spinner: rich.Spinner | None = None

        def show(text: str) -> None:
            nonlocal spinner
            if not text:
                drawn.close()
                spinner = None
            elif spinner is not None:
                spinner.update(text=rich.Text(text, "dim"))
            elif console.may_draw():
                screen, spinner = console.stderr(), rich.Spinner("dots", rich.Text(text, "dim"))
                drawn.enter_context(console.live(screen))  # notes appear above it
                drawn.enter_context(
                    rich.Live(spinner, console=screen, transient=True, redirect_stdout=False, redirect_stderr=False)
                )

        show(text)
        yield show


@contextmanager
def counted(what: str) -> Iterator[OnProgress]:
    """Shows a bar in a terminal; yields a function that takes the number of items done and the total.

    The bar appears with the first call.
    """
    with ExitStack() as drawn:
        update: OnProgress | None = None

        def show(done: int, total: int) -> None:
            nonlocal update
            if update is None:
                update = drawn.enter_context(_bar(what, total, _count_columns))
            update(done, total)

        yield show


@contextmanager
def steps() -> Iterator[Callable[[str, int, int], None]]:
    """Shows a bar of steps; yields a function that takes the current step, the number of steps done, and the total."""
    with _bar("", None, _count_columns) as update:
        yield lambda what, done, total: update(done, total, what)


def _byte_columns() -> tuple["rich.ProgressColumn", ...]:
    return rich.DownloadColumn(), rich.TransferSpeedColumn()


def _count_columns() -> tuple["rich.ProgressColumn", ...]:
    return rich.MofNCompleteColumn(), rich.TextColumn("{task.description}", markup=False)


@contextmanager
def _bar(
    what: str, total: int | None, columns: Callable[[], tuple["rich.ProgressColumn", ...]]
) -> Iterator[Callable[..., None]]:
    if not console.may_draw():
        yield lambda *_: None
        return
    with drawing(*columns()) as progress:
        pace = RemainingTime()
        task = progress.add_task(what, total=total, pace=pace)

        def update(done: int, total: int, what: str = what) -> None:
            pace.add(done)
            progress.update(task, completed=done, total=total, description=what)

        yield update


@contextmanager
def records(total: int | None, *, shown: bool, before: tuple[int, int] = (0, 0)) -> Iterator[OnProgress]:
    """Shows a bar in a terminal with the share of the input that is done, the number of results, and their rate.

    Yields a function that takes the number of bytes and of results so far. The results of a window all arrive at its
    end, so the remaining time is measured in whole windows. The bar begins at the bytes and results `before`, which the
    rate excludes.
    """
    if not shown or not console.may_draw():
        yield lambda done, results: None
        return
    from mlxbert.text.batch import WINDOW

    total_text = "" if total is None else f"of {console.size(total)}, "
    template = f"{total_text}{{task.fields[results]:,}} done, {{task.fields[rate]:,.0f}}/s"
    with drawing(rich.TextColumn(template, markup=False), percent=total is not None) as progress:
        pace, results_at_measurement = RemainingTime(), before[1]
        pace.add(before[0])
        task = progress.add_task("", total=total, completed=before[0], results=before[1], rate=0.0, pace=pace)

        def update(done: int, results: int) -> None:
            nonlocal results_at_measurement
            if results - results_at_measurement >= WINDOW:
                pace.add(done)
                results_at_measurement = results
            elapsed = progress.tasks[0].elapsed or 1e-9
            progress.update(task, completed=done, results=results, rate=(results - before[1]) / elapsed)

        yield update


@contextmanager
def drawing(
    *columns: "rich.ProgressColumn",
    percent: bool = True,
    last: "rich.ProgressColumn | None" = None,
    bar_width: int | None = None,
) -> Iterator["rich.Progress"]:
    """Draws a line with a bar, the percentage, the columns, the remaining time, and perhaps a last column.

    In a narrow terminal, the line has only the percentage. Notes appear above the line. rich must not redirect stdout,
    because it would send the text of stdout to stderr.
    """

    class TimeLeft(rich.ProgressColumn):
        max_refresh = 0.5

        def render(self, task: "rich.Task") -> rich.Text:
            return rich.Text(_clock(task.fields["pace"].left(task.total)), style="progress.remaining")

    screen = console.stderr()
    bar = rich.BarColumn(bar_width=bar_width or max(_MIN_BAR, min(_MAX_BAR, screen.width - _OTHER_COLUMNS)))
    share = (rich.TextColumn("{task.percentage:>3.0f}%"),) if percent else ()
    parts = (bar, *share, *columns, TimeLeft(), *(() if last is None else (last,)))
    if screen.width < _WIDE:
        parts = share or columns
    progress = rich.Progress(*parts, console=screen, transient=True, redirect_stdout=False)
    with console.live(screen), progress:
        yield progress


def _clock(seconds: float | None) -> str:
    """Formats a number of seconds as `1:02:03` or `02:03`, and an unknown one as `--:--`."""
    if seconds is None:
        return "--:--"
    minutes, rest = divmod(round(seconds), 60)
    return f"{minutes // 60}:{minutes % 60:02}:{rest:02}" if minutes >= 60 else f"{minutes:02}:{rest:02}"
