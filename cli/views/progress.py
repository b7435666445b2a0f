"""Progress bars on stderr."""

import time
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager

from mlxbert.cli.views import console, rich
from mlxbert.progress import OnProgress

_LEAST, _MOST = 4, 40  # columns of a bar
_BESIDE = 52  # columns of what stands next to it
_ROOM = 50  # columns of a terminal that has room for all of it
_RECENT, _BETWEEN, _SOONEST = 10, 1.0, 3.0  # measurements that make a rate; seconds between them, and of them all


class RemainingTime:
    """How long the rest will take, from the rate of late: the mean over the last measurements."""

    def __init__(self) -> None:
        self._measured: deque[tuple[float, int]] = deque(maxlen=_RECENT)

    def add(self, done: int) -> None:
        """Measures what is done now, if the last measurement was some time ago."""
        now = time.monotonic()
        if not self._measured or now - self._measured[-1][0] >= _BETWEEN:
            self._measured.append((now, done))

    def left(self, total: float | None) -> float | None:
        """Seconds; `None` where too little is measured to tell, or everything should be done by now."""
        if total is None or not self._measured:
            return None
        (start, before), (end, done) = self._measured[0], self._measured[-1]
        if end - start < _SOONEST or done <= before:
            return None
        left = (total - done) * (end - start) / (done - before) - (time.monotonic() - end)
        return left if left > 0 else None


@contextmanager
def download(name: str, before: Callable[[], None] = lambda: None) -> Iterator[OnProgress]:
    """What is downloaded, and a bar of bytes in a terminal; nothing until the first bytes arrive (done, in all).

    An interrupt says what is kept. `before` is called before anything is printed.
    """
    kept = total = 0

    def count(done: int, of: int) -> None:
        nonlocal kept, total
        kept, total = done, of
        show(done, of)

    with transfer(f"downloading {name}", before) as show:
        try:
            yield count
        except KeyboardInterrupt:
            if 0 < kept < total:
                say = f"interrupted: {console.size(kept)} of {console.size(total)} are kept, the same command continues"
                console.say("note", say)
            raise


@contextmanager
def transfer(what: str, before: Callable[[], None] = lambda: None) -> Iterator[OnProgress]:
    """A line that says what is done with how many bytes, and a bar of them in a terminal; nothing until the first call.

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
                drawn.close()  # the bar goes as soon as everything is there
                update = None

        yield show


@contextmanager
def waiting(text: str = "") -> Iterator[Callable[[str], None]]:
    """A line with a spinner where stderr is a terminal, nothing elsewhere.

    Yields what changes the text; an empty one removes the line.
    """
    with ExitStack() as drawn:
        shown: rich.Spinner | None = None

        def show(text: str) -> None:
            nonlocal shown
            if not text:
                drawn.close()
                shown = None
            elif shown is not None:
                shown.update(text=rich.Text(text, "dim"))
            elif console.may_draw():
                screen, shown = console.stderr(), rich.Spinner("dots", rich.Text(text, "dim"))
                drawn.enter_context(console.live(screen))  # notes appear above it
                drawn.enter_context(
                    rich.Live(shown, console=screen, transient=True, redirect_stdout=False, redirect_stderr=False)
                )

        show(text)
        yield show


@contextmanager
def counted(what: str) -> Iterator[OnProgress]:
    """A bar in a terminal, nothing elsewhere; it appears with the first count (done, in all)."""
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
    """A bar of steps in a terminal, nothing elsewhere; yields what updates it (what is done, steps done, in all)."""
    if not console.may_draw():
        yield lambda what, done, total: None
        return
    with _drawing(*_count_columns()) as drawn:
        pace = RemainingTime()
        task = drawn.add_task("", total=None, pace=pace)

        def update(what: str, done: int, total: int) -> None:
            pace.add(done)
            drawn.update(task, completed=done, total=total, description=what)

        yield update


def _byte_columns() -> tuple["rich.ProgressColumn", ...]:
    return rich.DownloadColumn(), rich.TransferSpeedColumn()


def _count_columns() -> tuple["rich.ProgressColumn", ...]:
    return rich.MofNCompleteColumn(), rich.TextColumn("{task.description}", markup=False)


@contextmanager
def _bar(what: str, total: int, columns: Callable[[], tuple["rich.ProgressColumn", ...]]) -> Iterator[OnProgress]:
    if not console.may_draw():
        yield lambda done, total: None
        return
    with _drawing(*columns()) as drawn:
        pace = RemainingTime()
        task = drawn.add_task(what, total=total, pace=pace)

        def update(done: int, total: int) -> None:
            pace.add(done)
            drawn.update(task, completed=done)

        yield update


@contextmanager
def records(
    total: int | None, *, shown: bool, before: tuple[int, int] = (0, 0), what: str = "done"
) -> Iterator[OnProgress]:
    """A bar in a terminal: the share of the input whose results are there, how many these are, and their rate.

    The results of a window come late, and then at once: the time left is that of whole windows. `before` are bytes
    and results of an earlier run: the bar begins there, the rate counts the rest. `what` follows the number of results.
    Yields a function of the same two.
    """
    if not shown or not console.may_draw():
        yield lambda done, results: None
        return
    from mlxbert.text.batch import WINDOW

    of = "" if total is None else f"of {console.size(total)}, "
    shown_rate = f"{of}{{task.fields[results]:,}} {what}, {{task.fields[rate]:,.0f}}/s"
    with _drawing(rich.TextColumn(shown_rate, markup=False), percent=total is not None) as drawn:
        pace, measured = RemainingTime(), before[1]
        pace.add(before[0])
        task = drawn.add_task("", total=total, completed=before[0], results=before[1], rate=0.0, pace=pace)

        def update(done: int, results: int) -> None:
            nonlocal measured
            if results - measured >= WINDOW:
                pace.add(done)
                measured = results
            elapsed = drawn.tasks[0].elapsed or 1e-9
            drawn.update(task, completed=done, results=results, rate=(results - before[1]) / elapsed)

        yield update


@contextmanager
def _drawing(*columns: "rich.ProgressColumn", percent: bool = True) -> Iterator["rich.Progress"]:
    """A bar, the percentage, the columns and the time left in one line; on a narrow terminal the percentage alone.

    Notes appear above it. stdout is left alone: rich would send what is written there to stderr, too.
    """

    class TimeLeft(rich.ProgressColumn):
        max_refresh = 0.5

        def render(self, task: "rich.Task") -> rich.Text:
            return rich.Text(_clock(task.fields["pace"].left(task.total)), style="progress.remaining")

    screen = console.stderr()
    bar = rich.BarColumn(bar_width=max(_LEAST, min(_MOST, screen.width - _BESIDE)))
    share = (rich.TextColumn("{task.percentage:>3.0f}%"),) if percent else ()
    shown = (bar, *share, *columns, TimeLeft())
    if screen.width < _ROOM:
        shown = share or columns
    drawn = rich.Progress(*shown, console=screen, transient=True, redirect_stdout=False)
    with console.live(screen), drawn:
        yield drawn


def _clock(seconds: float | None) -> str:
    """`1:02:03` or `02:03`; `--:--` for an unknown time."""
    if seconds is None:
        return "--:--"
    minutes, rest = divmod(round(seconds), 60)
    return f"{minutes // 60}:{minutes % 60:02}:{rest:02}" if minutes >= 60 else f"{minutes:02}:{rest:02}"
