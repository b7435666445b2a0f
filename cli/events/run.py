"""Events on their way: where they go is decided by the options, and an interruption reaches the training."""

import sys
from collections.abc import Callable, Generator, Iterator
from contextlib import ExitStack

from mlxbert.cli import launched
from mlxbert.cli.events.lines import EventLog, JsonLines
from mlxbert.cli.events.plot import Plot
from mlxbert.cli.events.sink import Sink
from mlxbert.cli.events.tensorboard import TensorBoard
from mlxbert.cli.training import EventOptions
from mlxbert.cli.views import console
from mlxbert.cli.views.training.screen import Screen
from mlxbert.cli.views.training.sparse import SparseLines
from mlxbert.training.events import Event


def open_sinks(out: EventOptions, *, dry: bool, opened: ExitStack) -> list[Sink]:
    """What the options ask for, to be closed by `opened`; nothing where another process of the run shows it.

    Raises:
        ArgumentError: Something is not installed, or cannot be written.
    """
    sinks: list[Sink] = []
    if launched.rank():
        return sinks

    def add(sink: Sink) -> None:
        opened.callback(sink.close)
        sinks.append(sink)

    if out.plot is not None:
        add(Plot(out.plot))
    if out.tensorboard is not None:
        add(TensorBoard(out.tensorboard))
    if out.log is not None:
        add(EventLog(out.log))
    at_terminal = console.at_terminal()
    if not at_terminal or out.json:
        add(JsonLines(quiet=out.quiet, dry=dry))
        if not at_terminal and console.may_draw():
            add(SparseLines())
    elif console.stdout().is_dumb_terminal and console.may_draw():
        add(SparseLines())
        add(Screen(quiet=True, live=not dry))
    else:
        add(Screen(quiet=out.quiet, live=not dry))
    return sinks


def send(events: Iterator[Event], sinks: list[Sink], begun: Callable[[], None]) -> None:
    """Hands every event to every sink, after `begun` was called.

    Training saves its state when it is interrupted; it learns of it even if the interruption hits a sink.
    """
    for event in events:
        try:
            begun()
            for sink in sinks:
                sink.write(event)
        except KeyboardInterrupt:
            if isinstance(events, Generator):
                events.throw(KeyboardInterrupt)
            raise


def command_line() -> list[str]:
    """The words that were typed."""
    return ["mlxbert", *sys.argv[1:]]
