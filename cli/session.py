"""What every command does around its one call of the library: talk, load the model, stream results, count failures."""

import itertools
import logging
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import nullcontext
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from mlxbert.cli.inputs import ARGUMENTS, Source, Values
from mlxbert.cli.options import FileOptions, ModelOptions, OutputOptions, TalkOptions
from mlxbert.cli.output.base import OutputFormat
from mlxbert.cli.output.file import FileOutput
from mlxbert.cli.output.fingerprint import hash_folder
from mlxbert.cli.output.formats import JsonLines
from mlxbert.cli.views import console, json_lines, progress
from mlxbert.errors import InputError, MlxbertError
from mlxbert.files import sha256
from mlxbert.results import Failure
from mlxbert.weights.source import BUILTIN, BUILTIN_QUALITY

if TYPE_CHECKING:
    from rich.console import RenderableType

    from mlxbert.model import Model
    from mlxbert.text.batch import Usage

Work = Callable[[Iterable[Values | InputError]], Iterator[Any]]
Show = Callable[[Any], Iterable["RenderableType"]]


@dataclass(frozen=True)
class View:
    """How results look at a terminal.

    Attributes:
        each: One of them.
        gap: Whether an empty line stands between them.
        last: What follows when all are shown.
    """

    each: Show
    gap: bool = True
    last: Callable[[], Iterable["RenderableType"]] = tuple


class _Talk(logging.Handler):
    """Shows what the library logs as notes and hints."""

    def emit(self, record: logging.LogRecord) -> None:
        console.say("hint" if record.levelno >= logging.WARNING else "note", record.getMessage())


def listen(options: TalkOptions) -> None:
    """Shows the library's log on stderr: hints, with `--verbose` everything; with `--quiet` nothing but errors."""
    log = logging.getLogger("mlxbert")
    log.handlers = [_Talk()]
    log.propagate = False
    log.setLevel(logging.DEBUG if options.verbose else logging.WARNING)
    console.set_quiet(options.quiet)


def load(task: str, options: ModelOptions) -> "Model":
    """The model that the options name, for a task."""
    from mlxbert.model import load as load_model

    if options.model == BUILTIN:
        quality = f": {BUILTIN_QUALITY[task]}" if task in BUILTIN_QUALITY else ""
        console.say("note", f"built-in model, small, English{quality}")
    with progress.download(options.model) as update:
        return load_model(
            options.model,
            task=task,
            dtype=options.dtype.value,
            device=options.device.value,
            revision=options.revision,
            offline=options.offline,
            on_progress=update,
        )


class Screen:
    """Results on stdout: drawn at a terminal, JSON lines for a pipe or with `--json`."""

    def __init__(self, view: View, options: OutputOptions) -> None:
        self.view = view
        self.drawn = console.at_terminal() and not options.json
        self.console = console.stdout() if self.drawn else None
        self.first = True
        self.failed = self.cut = 0

    def write(self, result: Any) -> None:
        """Shows one result or failure."""
        self.failed += isinstance(result, Failure)
        self.cut += getattr(result, "truncated", False)
        if self.console is None:
            json_lines.put_line(json_lines.to_json(result.to_dict()))
        elif isinstance(result, Failure):
            console.say("error", f"input {result.index}: {result.error.message}")
        else:
            if self.view.gap and not self.first:
                self.console.print()
            for part in self.view.each(result):
                self.console.print(part)
        self.first = False

    def finish(self) -> None:
        """Shows what follows the last result."""
        if self.console is not None:
            for part in self.view.last():
                self.console.print(part)


@dataclass(frozen=True)
class Task:
    """What is done, as far as results depend on it, and what an output file is made of them."""

    name: str
    model: "Model | Path"
    computing: ModelOptions | None
    options: Mapping[str, object]
    format: OutputFormat = field(default_factory=JsonLines)

    def manifest(self) -> dict[str, object]:
        """What another run must have in common to go on from this one's parts."""
        if isinstance(self.model, Path):
            return {"task": self.name, "model": hash_folder(self.model), "options": dict(self.options)}
        network = self.model.network
        chosen = {"dtype": str(network.encoder.embeddings.norm.weight.dtype)}
        if self.computing is not None:
            chosen |= {"device": str(self.model.device), "batch_tokens": str(self.computing.batch_tokens)}
        return {"task": self.name, "model": hash_folder(self.model.folder), "options": {**self.options, **chosen}}


def stream(
    source: Source, work: Work, view: View, options: FileOptions, *, task: Task, usage: "Usage | None" = None
) -> None:
    """Works through an input and writes the results.

    Args:
        source: The records.
        work: From records to as many results; an `InputError` among the records becomes a `Failure`.
        view: How results are drawn at a terminal.
        options: Where results go.
        task: What is done with which model, for the manifest of an output file.
        usage: What the work counts; a summary of it is said at the end of a file.

    Raises:
        MlxbertError: The input or output cannot be used; or, after everything else was done, some records failed.
    """
    sink = _file(source, options, task) if options.output is not None else nullcontext(Screen(view, options))
    skipped = results = 0
    long = source.name != ARGUMENTS and (options.output is not None or not console.at_terminal())
    start = time.perf_counter()
    with sink as out:
        if isinstance(out, FileOutput):
            skipped = sum(1 for _ in itertools.islice(source.records, out.done))
        with progress.records(source.size, shown=long, before=(source.done(), skipped)) as update:
            for result in numbered(work(source.records), skipped, strict=source.strict):
                results += 1
                out.write(result)
                update(source.done(), skipped + results)
        if isinstance(out, Screen):
            out.finish()
    if usage is not None and results and source.name != ARGUMENTS:
        _summarize(usage, results, skipped, time.perf_counter() - start)
    report(skipped + results, out.cut, out.failed, task.format.failures)


def numbered(results: Iterable[Any], before: int, *, strict: bool) -> Iterator[Any]:
    """Results whose failures count from the beginning of the input; with `strict` the first of them is raised."""
    for result in results:
        if isinstance(result, Failure):
            result = Failure(before + result.index, result.error)
            if strict:
                raise InputError(f"input {result.index}: {result.error.message}", hint=result.error.hint)
        yield result


def report(results: int, cut: int, failed: int, failures: str) -> None:
    """Says what has to be known of a finished run.

    Args:
        results: How many there are in all.
        cut: How many of them are of inputs that were cut.
        failed: How many of them are failures.
        failures: Where to find them.

    Raises:
        MlxbertError: Some failed.
    """
    if not results:
        console.say("note", "the input is empty")
    if cut:
        console.say(
            "note",
            f"{cut:,} of {results:,} inputs were longer than the model takes and were cut; --overflow says what to do",
        )
    if failed:
        raise MlxbertError(f"{failed} of {results} inputs failed; {failures}")


def _summarize(usage: "Usage", results: int, before: int, seconds: float) -> None:
    earlier = f", behind {before:,} of an earlier run" if before else ""
    console.say(
        "note",
        f"{results:,} texts{earlier}, {usage.tokens:,} tokens in {seconds:.1f} s: {results / seconds:,.1f} texts/s, "
        f"{usage.tokens / seconds:,.0f} tokens/s, {usage.padding:.1%} padding",
    )


def _file(source: Source, options: FileOptions, task: Task) -> FileOutput:
    assert options.output is not None
    if source.path is None and source.name != ARGUMENTS:
        console.say("note", f"input is {source.name}: should this run be interrupted, it cannot go on where it stopped")
    manifest = task.manifest() | {
        "input": None if source.path is None else sha256(source.path),
        "read_as": list(source.read_as),
    }
    return FileOutput(options.output, manifest, overwrite=options.overwrite, format=task.format)


def show_object(value: dict[str, Any], draw: Callable[[], Iterable["RenderableType"]], options: OutputOptions) -> None:
    """One object: drawn at a terminal, one line of JSON for a pipe or with `--json`."""
    if console.at_terminal() and not options.json:
        screen = console.stdout()
        for part in draw():
            screen.print(part)
    else:
        json_lines.put_line(json_lines.to_json(value))
