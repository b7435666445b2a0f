"""Progress bars on stderr."""

from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from typing import TYPE_CHECKING

from mlxbert.cli.views import console

if TYPE_CHECKING:
    from rich.progress import Progress, ProgressColumn

Update = Callable[[int, int], None]


@contextmanager
def download(name: str, doing: str = "downloading", before: Callable[[], None] = lambda: None) -> Iterator[Update]:
    """A bar of bytes at a terminal, one line elsewhere; nothing until the first bytes arrive.

    Args:
        name: The model.
        doing: What is done with it.
        before: Called before the bar appears.

    Yields:
        A function of (bytes done, bytes in all), to be called as they arrive.
    """
    with ExitStack() as drawn:
        update: Update | None = None

        def show(done: int, total: int) -> None:
            nonlocal update
            if update is None:
                before()
                update = drawn.enter_context(_bytes(f"{doing} {name}", total))
            update(done, total)
            if done >= total:
                drawn.close()  # the bar goes as soon as everything is there

        yield show


@contextmanager
def waiting(text: str) -> Iterator[Callable[[], None]]:
    """A line with a spinner where stdout and stderr are terminals, nothing elsewhere.

    Yields:
        A function that removes it.
    """
    with ExitStack() as drawn:
        if console.may_draw() and console.at_terminal():
            from rich.live import Live
            from rich.spinner import Spinner
            from rich.text import Text

            screen = console.stderr()
            shown = Spinner("dots", Text(text, "dim"))
            drawn.enter_context(console.live(screen))  # notes appear above it
            drawn.enter_context(
                Live(shown, console=screen, transient=True, redirect_stdout=False, redirect_stderr=False)
            )
        yield drawn.close


@contextmanager
def _bytes(what: str, total: int) -> Iterator[Update]:
    if not console.may_draw():
        console.say("note", f"{what} ({console.size(total)})")
        yield lambda done, total: None
        return
    from rich.progress import BarColumn, DownloadColumn, TextColumn, TransferSpeedColumn

    columns = (TextColumn("{task.description}", markup=False), BarColumn(), DownloadColumn(), TransferSpeedColumn())
    with _drawing(*columns) as drawn:
        task = drawn.add_task(what, total=total)
        yield lambda done, total: drawn.update(task, completed=done)


@contextmanager
def counted(what: str) -> Iterator[Update]:
    """A bar at a terminal, nothing elsewhere; it appears with the first count.

    Args:
        what: What is counted.

    Yields:
        A function of (done, in all).
    """
    with ExitStack() as drawn:
        update: Update | None = None

        def show(done: int, total: int) -> None:
            nonlocal update
            if update is None:
                update = drawn.enter_context(_counts(what, total))
            update(done, total)

        yield show


@contextmanager
def _counts(what: str, total: int) -> Iterator[Update]:
    if not console.may_draw():
        yield lambda done, total: None
        return
    from rich.progress import BarColumn, MofNCompleteColumn, TextColumn

    columns = (BarColumn(), MofNCompleteColumn(), TextColumn("{task.description}", markup=False))
    with _drawing(*columns) as drawn:
        task = drawn.add_task(what, total=total)
        yield lambda done, total: drawn.update(task, completed=done)


@contextmanager
def records(total: int | None, *, shown: bool, before: tuple[int, int] = (0, 0)) -> Iterator[Update]:
    """A bar at a terminal: how much of the input is read, results so far and their rate.

    Args:
        total: Bytes to read; `None` if that is not known.
        shown: Whether the terminal is free for a bar: results go elsewhere.
        before: Bytes and results of an earlier run: the bar begins there, the rate counts the rest.

    Yields:
        A function of (bytes read, results so far).
    """
    if not shown or not console.may_draw():
        yield lambda done, results: None
        return
    from rich.progress import BarColumn, TextColumn

    with _drawing(BarColumn(), TextColumn("{task.fields[results]} done, {task.fields[rate]:.0f}/s")) as drawn:
        task = drawn.add_task("", total=total, completed=before[0], results=before[1], rate=0.0)

        def update(done: int, results: int) -> None:
            elapsed = drawn.tasks[0].elapsed or 1e-9
            drawn.update(task, completed=done, results=results, rate=(results - before[1]) / elapsed)

        yield update


def _drawing(*columns: "ProgressColumn") -> "Progress":
    """The columns and the time left; stdout is left alone, rich would send what is written there to stderr, too."""
    from rich.progress import Progress, TimeRemainingColumn

    shown = (*columns, TimeRemainingColumn())
    return Progress(*shown, console=console.stderr(), transient=True, redirect_stdout=False)
