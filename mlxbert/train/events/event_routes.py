"""Routes the events of training to the sinks that the options ask for, and handles interruptions."""

import json
import shlex
import sys
from collections.abc import Callable, Generator, Iterable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

from mlxbert.cli import processes, session
from mlxbert.cli.views import console, progress
from mlxbert.folders.written_models import remember
from mlxbert.train.events.sinks import EventLog, JsonEvents, Plot, Sink, TensorBoard
from mlxbert.train.loop.events import Event, Finished
from mlxbert.train.training_options import EventOptions
from mlxbert.train.views.few_lines import SparseLines
from mlxbert.train.views.screen import TrainingScreen


def open_sinks(out: EventOptions, inputs: Iterable[str], *, dry: bool, opened: ExitStack) -> list[Sink]:
    """Opens the sinks that the options ask for, and registers them with `opened`, which closes them.

    If several processes share the work, only the first one has sinks.
    """
    sinks: list[Sink] = []
    if not processes.is_first(inputs):
        return sinks

    def add(sink: Sink) -> None:
        opened.callback(sink.close)
        sinks.append(sink)

    if out.plot is not None:
        add(Plot(out.plot))
    if out.tensorboard is not None:
        add(TensorBoard(out.tensorboard))
    if out.log is not None:
        add(EventLog(out.log, inputs))
    for sink in _for_stdout(out, dry=dry):
        add(sink)
    return sinks


def _for_stdout(out: EventOptions, *, dry: bool) -> Iterator[Sink]:
    """Yields the sink for stdout. If no live view can be drawn, also yields a sink that prints progress on stderr."""
    at_terminal, drawn = console.at_terminal(), console.draws(out.json)
    dumb = at_terminal and console.stdout().is_dumb_terminal
    sparse = console.may_draw() and (dumb if at_terminal and drawn else not at_terminal)
    if not drawn:
        yield JsonEvents(quiet=out.quiet, dry=dry)
    if sparse:
        yield SparseLines()
    if drawn:
        yield TrainingScreen(quiet=out.quiet or (sparse and dumb), live=at_terminal and not dry)


@contextmanager
def naming(sinks: list[Sink]) -> Iterator[Callable[[str], None]]:
    """Yields a function that shows the current phase, in the live view if there is one, or else next to a spinner."""
    with progress.waiting() as wait:

        def name(phase: str) -> None:
            live = phase and any([sink.phase(phase) for sink in sinks if isinstance(sink, TrainingScreen)])
            wait(f"{phase} …" if phase and not live else "")

        yield name


def send(events: Iterator[Event], sinks: list[Sink], begun: Callable[[], None], kind: str) -> None:
    """Passes every event to every sink; registers a finished model for `models list`.

    If an interruption or an error occurs in a sink, training still saves its state.
    """
    try:
        for event in events:
            begun()
            session.say_queued()
            if isinstance(event, Finished):
                remember(event.output, kind)
            for sink in sinks:
                sink.write(event)
    finally:
        if isinstance(events, Generator):
            events.close()


@contextmanager
def resumable(output: Path | None, opened: ExitStack, *, piped: bool = False) -> Iterator[None]:
    """On an interrupt, closes the live view. If there is an `output`, also prints how to resume the run."""
    try:
        yield
    except KeyboardInterrupt:
        opened.close()
        if output is not None:
            how = "the same command resumes, with the same data from stdin:" if piped else "the same command resumes:"
            console.say("hint", f"{_saved(output)}{how}", shlex.join(command_line()))
        raise


def _saved(output: Path) -> str:
    """Describes the last saved step of an interrupted run, such as `saved at step 12; `. Empty if it cannot be read."""
    try:
        states = output.with_name(f"{output.name}.partial").rglob("state.json")
        newest = max(states, key=lambda path: path.stat().st_mtime, default=None)
        return f"saved at step {json.loads(newest.read_bytes())['step']:,}; " if newest else ""
    except (OSError, ValueError, KeyError, TypeError):
        return ""


def command_line() -> list[str]:
    """Returns the words of the command line as they were typed."""
    return ["mlxbert", *sys.argv[1:]]
