"""Sends the events of training to their destinations: stdout, a log, a plot, TensorBoard and the terminal."""

import errno
import importlib.util
import json
import os
import re
import shlex
import sys
from collections.abc import Callable, Generator, Iterable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any, Protocol

from mlxbert.cli import session
from mlxbert.cli.output.resumable_file import check_path
from mlxbert.cli.views import console, json_lines, progress
from mlxbert.cli.views.option_spelling import to_options
from mlxbert.durable_files import atomic_write, identity
from mlxbert.errors import ArgumentError
from mlxbert.folders.written_models import remember
from mlxbert.other_libraries import install_command
from mlxbert.paths import may_write, open_regular
from mlxbert.results.json import to_json
from mlxbert.train import processes
from mlxbert.train.command_options import EventOptions
from mlxbert.train.loop.events import Evaluated, Event, Finished, Started, Step
from mlxbert.train.views.screen import SparseLines, TrainingScreen


class Sink(Protocol):
    """A destination that receives events in order; it is closed once, after the last event or an interruption."""

    def write(self, event: Event) -> None: ...
    def close(self) -> None: ...


def require(package: str, option: str, extra: str) -> None:
    """Raises an error if an optional package is not installed."""
    if importlib.util.find_spec(package) is None:
        message = f"{option} needs the package {package}, which is not installed"
        raise ArgumentError(message, hint=install_command(extra))


_START = 100  # bytes of a log that identify it


def _is_torn(path: Path, inputs: Iterable[str]) -> bool:
    """Whether a log ends in the middle of a line, because the run that wrote it was killed."""
    if identity(path) in map(identity, inputs):
        raise ArgumentError(
            f"--log {path}: is also an input", hint="name another file, because events are appended to the log"
        )
    with open(path, "rb", opener=open_regular) as file:
        kinds = "|".join(kind.event for kind in Event.__subclasses__())
        if (start := file.read(_START)) and not re.match(rf'{{"event": "({kinds})"'.encode(), start):
            message = f"--log {path}: the file begins with {start[:20]!r}, expected events of mlxbert"
            raise ArgumentError(message, hint="name a new file, or a log of an earlier run")
        file.seek(-bool(start), os.SEEK_END)
        return file.read() not in (b"", b"\n")


def _line(event: Event) -> str:
    """Returns an event as JSON; sentences for the reader name options of the command line, as in a terminal."""
    facts = event.to_dict()
    report, summary = (facts.get(name) or {} for name in ("report", "summary"))
    for said, name in ((report, "warnings"), (summary, "advice"), (facts, "opens")):
        if text := said.get(name):
            said[name] = to_options(text) if isinstance(text, str) else [*map(to_options, text)]
    return to_json(facts)


class JsonEvents:
    """Writes events to stdout as they arrive; if `quiet`, writes only `finished`, or `started` in a `dry` run."""

    def __init__(self, *, quiet: bool, dry: bool) -> None:
        self._kind: type[Event] = Event if not quiet else Started if dry else Finished

    def write(self, event: Event) -> None:
        if isinstance(event, self._kind):
            json_lines.put_line(_line(event))

    def close(self) -> None:
        """Does nothing."""


class EventLog:
    """Appends every event to a file as soon as it arrives; a resumed run continues the log."""

    def __init__(self, path: Path, inputs: Iterable[str]) -> None:
        try:
            torn = path.is_file() and _is_torn(path, inputs)
            self._file = open(path, "a", encoding="utf-8", newline="\n", opener=open_regular)  # noqa: SIM115 - see close
            self._file.write("\n" * torn)
        except OSError as problem:
            raise ArgumentError(f"--log {path}: {problem.strerror}") from None

    def write(self, event: Event) -> None:
        self._file.write(_line(event) + "\n")
        self._file.flush()

    def close(self) -> None:
        self._file.close()


ENDINGS = (".png", ".svg", ".pdf")
_INCHES, _DOTS_PER_INCH = (10, 4.5), 150


class Plot:
    """Plots the loss and the metric over the steps, with a colour per run, when training ends or is interrupted.

    The extension of the file determines the format. An existing file is replaced.
    """

    def __init__(self, path: Path) -> None:
        if path.suffix.lower() not in ENDINGS:
            raise ArgumentError(f"--plot {path} does not end in {', '.join(ENDINGS[:-1])} or {ENDINGS[-1]}")
        check_path(path, overwrite=True, option="plot")
        require("matplotlib", "--plot", "plot")
        self._path = path
        self._losses: dict[int, list[tuple[int, float]]] = {}
        self._scores: dict[int, list[Evaluated]] = {}
        self._names: dict[int, str] = {}
        self._title = ""

    def write(self, event: Event) -> None:
        match event:
            case Started():
                self._losses.setdefault(event.run, []).extend(event.losses)
                self._scores.setdefault(event.run, []).extend(event.evaluations)
                varied = ", ".join(f"{name} {value}" for name, value in event.varied.items())
                self._title = f"{event.task}: {event.model} → {event.output}"
                self._names[event.run] = varied or f"run {event.run + 1}"
            case Step():
                self._losses[event.run].append((event.step, event.loss))
            case Evaluated():
                self._scores[event.run].append(event)

    def close(self) -> None:
        """Writes the plot if there is anything to draw."""
        if any(self._losses.values()):
            with atomic_write(self._path, locked=False) as file:
                self._figure().savefig(file, format=self._path.suffix[1:].lower(), dpi=_DOTS_PER_INCH)

    def _figure(self) -> Any:
        from matplotlib.figure import Figure

        figure = Figure(figsize=_INCHES, layout="constrained")
        figure.suptitle(self._title, parse_math=False)
        loss, score = figure.subplots(1, 2)
        metric = "metric"
        for run, evaluations in self._scores.items():
            loss.plot(*zip(*self._losses[run], strict=True), linewidth=0.8, color=f"C{run}")
            metric = evaluations[-1].metric if evaluations else metric
            values = [event.metrics[event.metric] for event in evaluations]
            steps = [event.step for event in evaluations]
            score.plot(steps, values, marker="o", color=f"C{run}", label=self._names.get(run))
        for axes, name in ((loss, "training loss"), (score, f"validation {metric}")):
            axes.set_title(name, parse_math=False)
            axes.set_xlabel("step")
            axes.grid(alpha=0.3)
        if len(self._scores) > 1:
            score.legend()
        return figure


class TensorBoard:
    """Writes losses, learning rates and metrics; if there are several runs, each has its own folder."""

    def __init__(self, folder: Path) -> None:
        require("tensorboard", "--tensorboard", "tensorboard")
        try:
            folder.mkdir(parents=True, exist_ok=True)
            if not may_write(folder):
                raise PermissionError(errno.EACCES, os.strerror(errno.EACCES))
        except OSError as problem:
            raise ArgumentError(f"--tensorboard {folder}: {problem.strerror}") from None
        self._folder = folder
        self._writer: Any = None

    def write(self, event: Event) -> None:
        match event:
            case Started():
                self._begin(self._folder / f"run-{event.run + 1}" if event.runs > 1 else self._folder)
            case Step():
                numbers = ("loss", "lr", "gradient_norm", "tokens_per_second")
                self._put(event.step, {f"train/{name}": getattr(event, name) for name in numbers})
            case Evaluated():
                self._put(event.step, {f"valid/{name}": value for name, value in event.metrics.items()})
                self._writer.flush()

    def close(self) -> None:
        """Writes buffered values and closes the file."""
        if self._writer is not None:
            self._writer.close()

    def _begin(self, folder: Path) -> None:
        from tensorboard.summary import Writer

        self.close()
        self._writer = Writer(str(folder))

    def _put(self, step: int, numbers: dict[str, float]) -> None:
        for name, value in numbers.items():
            self._writer.add_scalar(name, value, step)


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
