"""The progress of bytes: a bar on a terminal, one line elsewhere."""

from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager

from mlxbert.cli.views import render


@contextmanager
def download(name: str, doing: str = "downloading") -> Iterator[Callable[[int, int], None]]:
    """Shows on stderr how a model arrives, should it turn out that it has to be fetched.

    Args:
        name: The model.
        doing: What is done with it.

    Yields:
        A function of (bytes done, bytes in all), to be called as they arrive.
    """
    with ExitStack() as drawn:
        update: Callable[[int, int], None] | None = None

        def show(done: int, total: int) -> None:
            nonlocal update
            if update is None:
                update = drawn.enter_context(_bar(f"{doing} {name}", total))
            update(done, total)
            if done >= total:
                drawn.close()  # what follows is something else

        yield show


@contextmanager
def _bar(what: str, total: int) -> Iterator[Callable[[int, int], None]]:
    if not render.may_draw():
        render.say("note", f"{what} ({render.size(total)})")
        yield lambda done, total: None
        return
    from rich.progress import BarColumn, DownloadColumn, Progress, TextColumn, TimeRemainingColumn, TransferSpeedColumn

    columns = (TextColumn("{task.description}", markup=False), BarColumn(), DownloadColumn(), TransferSpeedColumn())
    console = render.console(stderr=True)
    with Progress(*columns, TimeRemainingColumn(), console=console, transient=True, redirect_stdout=False) as bar:
        task = bar.add_task(what, total=total)
        yield lambda done, total: bar.update(task, completed=done)
