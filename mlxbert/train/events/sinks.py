"""The destinations of training events: JSON lines on stdout and in a log, a plot, and TensorBoard."""

import errno
import importlib.util
import os
import re
from collections.abc import Iterable
from pathlib import Path
from typing import Any, Protocol

from mlxbert.cli.output.resumable_file import check_path
from mlxbert.cli.views import console, json_lines
from mlxbert.durable_files import atomic_write, identity
from mlxbert.errors import ArgumentError
from mlxbert.optional_packages import install_command
from mlxbert.paths import may_write, open_regular
from mlxbert.results.json import to_json
from mlxbert.train.loop.events import Evaluated, Event, Finished, Started, Step


class Sink(Protocol):
    """A destination that receives events in order."""

    def write(self, event: Event) -> None:
        """Receives the next event."""

    def close(self) -> None:
        """Ends the output; called once, after the last event or an interruption."""


def require(package: str, option: str, extra: str) -> None:
    """Raises an error if an optional package is not installed."""
    if importlib.util.find_spec(package) is None:
        raise ArgumentError(
            f"{option} needs the package {package}, which is not installed",
            hint=install_command(extra),
        )


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
    _convert(report, "warnings")
    _convert(summary, "advice")
    _convert(facts, "opens")
    return to_json(facts)


def _convert(facts: dict[str, Any], name: str) -> None:
    """Converts the arguments that a text, or each text of a list, names to options; a missing text stays missing."""
    if text := facts.get(name):
        facts[name] = console.to_options(text) if isinstance(text, str) else [*map(console.to_options, text)]


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
