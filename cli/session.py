"""The steps around a command's call of the library: print notes, load the model, write results, report."""

import dataclasses
import json
import logging
import time
from collections.abc import Callable, Container, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, Protocol

from mlxbert import rooms
from mlxbert.cli.inputs import ARGUMENTS
from mlxbert.cli.output.formats import OutputFormat, choose
from mlxbert.cli.output.resumable_file import FileOutput
from mlxbert.cli.shared_options import (
    ComputingOptions,
    FileOptions,
    ModelOptions,
    OutputOptions,
    ServedOptions,
    TalkOptions,
)
from mlxbert.cli.views import console, json_lines, progress, rich
from mlxbert.errors import ArgumentError, InputError, MlxbertError
from mlxbert.folders.fingerprint import hash_folder, hash_model
from mlxbert.machine.user_folders import is_due
from mlxbert.readers.stream import RecordStream
from mlxbert.results.json import to_json
from mlxbert.results.result import Failure
from mlxbert.tasks.catalogue import TaskEntry, find_task
from mlxbert.tasks.options import TaskOptions
from mlxbert.weights.model_source import BUILTIN, BUILTIN_QUALITY

if TYPE_CHECKING:
    from typing_extensions import TypeIs

    from mlxbert.labels.labels import Labels
    from mlxbert.model import Model
    from mlxbert.text.usage import Usage

Draw = Callable[[Any], Iterable["rich.RenderableType"]]
NOTED = "noted-builtin"  # the data folder's marker for the note about the built-in model
_LOADED: list[object] = []
_QUEUED_NOTES: list[str] = []  # printed with the first result


class RemoteModel(Protocol):
    """A model on a server (see `mlxbert.serve.server_models`)."""

    source: str
    facts: Mapping[str, Any]
    labels: "Labels | None"
    vectors: tuple[str, ...]
    embedder: Any

    def width(self, options: Mapping[str, Any]) -> int:
        """Returns the size of the vectors that the model makes with these options."""

    def run(
        self, task: str, records: Iterable[Any], *, on_error: str, usage: "Usage | None" = None, **options: Any
    ) -> Iterator[Any]:
        """Yields the results of records in their order."""

    def scores(
        self, task: str, query: str, texts: Iterable[str | InputError], usage: "Usage", **options: Any
    ) -> Iterator[Any]:
        """Yields a score for each text."""


class _LogNotes(logging.Handler):
    def emit(self, record: logging.LogRecord) -> None:
        kinds = {logging.ERROR: "error", logging.WARNING: "hint"}
        console.say(kinds.get(record.levelno, "note"), record.getMessage())


def set_up_notes(options: TalkOptions) -> None:
    """Prints the library's warnings as hints on stderr.

    With `--verbose`, its whole log is printed; with `--quiet`, no notes are printed.
    """
    log = logging.getLogger("mlxbert")
    log.handlers = [_LogNotes()]
    log.propagate = False
    log.setLevel(logging.DEBUG if options.verbose else logging.WARNING)
    console.set_quiet(options.quiet)
    _QUEUED_NOTES.clear()


def load_or_ask(task: str, options: ServedOptions, chosen: TaskOptions | None = None) -> "Model | RemoteModel":
    """Returns the model that the options name, loaded for a task; if they name a server, returns a `RemoteModel`."""
    if options.server is None:
        return load(task, options, chosen=chosen)
    for field in dataclasses.fields(options):
        if field.name not in ("model", "server") and getattr(options, field.name) != field.default:
            raise ArgumentError(f"`{field.name}` cannot be combined with --server, which chooses this setting")
    remote: RemoteModel = rooms.part("models of a server").ServerModel(
        options.server, options.model, task, labels=getattr(chosen, "labels", None) is not None
    )
    return remote


def results(
    task: TaskEntry,
    model: "Model | RemoteModel",
    records: RecordStream,
    chosen: TaskOptions,
    usage: "Usage | None" = None,
) -> Iterator[Any]:
    """Yields the results of a task, in the order of the input's records."""
    if is_remote(model):
        return model.run(task.name, records, on_error=records.on_error, usage=usage, **chosen.deciding())
    return task.make(model, chosen, usage).run(records, records.on_error)


def is_remote(model: object) -> "TypeIs[RemoteModel]":
    """Whether a model is on a server."""
    return hasattr(model, "facts")


def load(
    task: str | None, options: ComputingOptions, heads: Sequence[str] | None = None, chosen: TaskOptions | None = None
) -> "Model":
    """Loads the model that the options name.

    The model gets the heads that the task with the options `chosen` needs, or the named heads; if both are `None`, it
    gets all heads.
    """
    from mlxbert.loading import load as load_model

    note_builtin(task, options.model)
    entry = None if task is None else find_task(task)
    with progress.download(options.model) as update:
        if entry is None:
            model = load_model(options.ref, heads=heads, on_progress=update)
        else:
            model = entry.load(options.ref, chosen, heads=heads, on_progress=update)
    hint_emulated(options.dtype)
    keep(model)
    return model


def hint_emulated(dtype: str) -> None:
    """Prints a hint if the device only emulates the requested dtype, as a CPU does for half precision."""
    from mlxbert.machine.device import on_gpu

    if dtype in ("float16", "bfloat16") and not on_gpu():
        console.say("hint", f"a CPU emulates {dtype}, which is several times slower than float32")


def keep(loaded: object) -> None:
    """Keeps a model or a tokenizer alive until the process ends (see `mlxbert.cli.main`), or until the next call."""
    _LOADED[:] = [loaded]


def note_builtin(task: str | None, model: str) -> None:
    """If the model is the built-in one, queues a note about its quality at the task; `say_queued` prints the note."""
    if model == BUILTIN:
        quality = f": {BUILTIN_QUALITY[task]}" if task in BUILTIN_QUALITY else ""
        _QUEUED_NOTES[:] = [f"the built-in model is small, for English{quality}; --model names another model"]


def say_queued() -> None:
    """Prints the queued note, at most once a day. It is called with the first result, so that errors come first."""
    while _QUEUED_NOTES:
        note = _QUEUED_NOTES.pop()
        if console.is_heard("note") and is_due(NOTED):
            console.say("note", note)


@dataclass(frozen=True)
class OutputManifest:
    """The format of an output file, and the settings, apart from the input, that determine the results in it."""

    name: str
    model: "Model | RemoteModel | Path"
    computing: ModelOptions | None
    options: Mapping[str, object]
    format: OutputFormat | None = None

    def chosen(self, path: Path | None) -> OutputFormat:
        """Returns the format of the file; if none was given, it is chosen by the extension of the path."""
        if self.format is not None:
            return self.format
        source = self.model if isinstance(self.model, Path) else self.model.source
        about = {"task": self.name, "model": str(source), "options": json.dumps(dict(self.options), sort_keys=True)}
        return choose(path, metadata=about)

    def manifest(self) -> dict[str, object]:
        """Returns the settings as a dict; a run resumes an interrupted run only if both have the same settings."""
        if isinstance(self.model, Path):
            return {"task": self.name, "model": hash_folder(self.model), "options": dict(self.options)}
        if is_remote(self.model):
            computing = {"dtype": self.model.facts["dtype"], "device": "server"}
            return {
                "task": self.name, "model": self.model.facts["fingerprint"], "options": {**self.options, **computing},
            }  # fmt: skip
        computing = {"dtype": self.model.dtype}
        if self.computing is not None:
            computing |= {"device": str(self.model.device), "batch_tokens": str(self.computing.batch_tokens)}
        return {"task": self.name, "model": hash_model(self.model.files), "options": {**self.options, **computing}}


class ResultWriter:
    """Writes results to stdout: drawings in a terminal, or JSON lines in a pipe or with `--json`.

    In a terminal, `last` draws what follows the last result, and `gap` separates results by an empty line. JSON lines
    omit the fields `left_out`, which have the same value in all lines.
    """

    def __init__(
        self,
        draw: Draw,
        options: OutputOptions,
        *,
        last: Callable[[], Iterable["rich.RenderableType"]] = tuple,
        gap: bool = True,
        left_out: Container[str] = (),
    ) -> None:
        self._draw, self._last, self._gap, self._left_out = draw, last, gap, left_out
        self._console = console.stdout() if console.draws(options.json) else None
        self._first = True
        self.failed = self.truncated = self.only_unknown = 0
        self.hint: str | None = None  # of the first failure that has one

    @property
    def drawn(self) -> bool:
        """Whether results are drawn, instead of being printed as JSON."""
        return self._console is not None

    def write(self, result: Any, kept: Mapping[str, Any] = MappingProxyType({})) -> None:
        """Shows a result or a failure; a JSON line includes the kept fields of the record."""
        say_queued()
        if isinstance(result, Failure):
            self.failed += 1
            self.hint = self.hint or result.error.hint
        self.truncated += getattr(result, "truncated", False)
        self.only_unknown += getattr(result, "only_unknown", False)
        console.require_stdout()
        if self._console is None:
            json_lines.put_line(json_lines.to_line(result, kept, self._left_out))
        elif isinstance(result, Failure):
            console.say("error", f"input {result.index}: {result.error.message}")
        else:
            if self._gap and not self._first:
                self._console.print()
            for part in self._draw(result):
                self._console.print(part)
        self._first = False

    def finish(self) -> None:
        if self._console is not None:
            console.require_stdout()
            for part in self._last():
                self._console.print(part)


def show_object(
    value: dict[str, Any], draw: Callable[[], Iterable["rich.RenderableType"]], options: OutputOptions
) -> None:
    """Shows an object: draws it in a terminal, or prints it as a line of JSON in a pipe or with `--json`."""
    say_queued()
    if console.draws(options.json):
        console.require_stdout()
        screen = console.stdout()
        for part in draw():
            screen.print(part)
    else:
        json_lines.put_line(to_json(value))


def stream(
    source: RecordStream,
    results: Iterable[Any],
    draw: Draw,
    options: FileOptions,
    *,
    task: OutputManifest,
    usage: "Usage | None" = None,
    last: Callable[[], Iterable["rich.RenderableType"]] = tuple,
    counts_empty: bool = False,
) -> None:
    """Writes results to stdout or a file as they are computed.

    The results must be computed lazily, because a resumed run first skips the records that are done. If the input is a
    file, the counters `usage` are summarized on stderr. `counts_empty` counts empty texts, for tasks whose results do
    not mark them.
    """
    screen = ResultWriter(draw, options, last=last)
    skipped = count = failed = empty = 0
    from_file = source.name != ARGUMENTS
    has_bar = from_file and (options.output is not None or not console.at_terminal())
    start = time.perf_counter()
    with sink(source, screen, options, task) as (out, done):
        skipped = source.skip(done)
        with progress.records(source.size, shown=has_bar, before=(source.finished, skipped)) as update:
            for count, (record, result) in enumerate(source.with_results(results), 1):
                say_queued()
                failed += isinstance(result, Failure)
                empty += counts_empty and from_file and not isinstance(result, Failure) and not record.text.strip()
                out.write(source.checked(record, result, skipped), record.as_json())
                if source.window_ends and isinstance(out, FileOutput):
                    out.end_part()
                update(source.finished, skipped + count)
        if isinstance(out, ResultWriter):
            out.finish()
    if usage is not None and count > failed and from_file:
        _summarize(usage, count - failed, skipped, time.perf_counter() - start)
    failures = task.chosen(options.output).failures
    report(skipped + count, out.truncated, max(out.only_unknown, empty), out.failed, failures, out.hint)


@contextmanager
def sink(
    source: RecordStream, screen: ResultWriter, options: FileOptions, task: OutputManifest
) -> Iterator[tuple[ResultWriter | FileOutput, int]]:
    """Opens the screen or the output file for results; yields it, and how many results an earlier run has left."""
    if options.output is None:
        yield screen, 0
        return
    with _file(source, options, task) as out:
        source.waited_for = False
        if out.done:
            console.say("note", f"resumed: {out.done:,} results of an earlier run are kept")
        yield out, out.done


def _file(source: RecordStream, options: FileOptions, task: OutputManifest) -> FileOutput:
    assert options.output is not None
    if not source.files and source.name != ARGUMENTS:
        console.say("note", f"the input is {source.name}, so this run cannot be resumed after an interruption")
    hashes = [file.sha256() for file in source.files]
    manifest = task.manifest() | {
        "input": hashes if len(hashes) > 1 else next(iter(hashes), None),
        "read_as": list(source.read_as),
    }
    format = task.chosen(options.output)
    format.whole_rows = all(part.wanted.keep is None for part in source.sources)
    return FileOutput(options.output, manifest, overwrite=options.overwrite, format=format)


def _summarize(usage: "Usage", count: int, skipped: int, seconds: float) -> None:
    earlier = f" after {skipped:,} of an earlier run" if skipped else ""
    texts, tokens = console.counted(count, "text"), console.counted(usage.tokens, "token")
    padding = f", {usage.padding:.1%} padding" if usage.padded_tokens else ""
    console.say(
        "note",
        f"{texts}{earlier}, {tokens} in {seconds:.1f} s: {count / seconds:,.1f} texts/s, "
        f"{usage.tokens / seconds:,.0f} tokens/s{padding}",
    )


def report(count: int, truncated: int, only_unknown: int, failed: int, failures: str, hint: str | None) -> None:
    """Prints notes about a finished run; `failures` says where failures are described."""
    if not count:
        console.say("note", "the input is empty")
    if truncated:
        console.say(
            "note",
            f"{truncated:,} of {console.counted(count, 'input')} {_was(truncated)} too long for the model and "
            f"{_was(truncated)} truncated; see --overflow",
        )
    if only_unknown:
        console.say(
            "note",
            f"{only_unknown:,} of {console.counted(count, 'text')} {'is' if only_unknown == 1 else 'are'} empty or "
            f"{'has' if only_unknown == 1 else 'have'} unknown tokens only, which say nothing to the model; "
            "`mlxbert tokenize` shows the tokens",
        )
    if failed:
        raise MlxbertError(f"{failed:,} of {console.counted(count, 'input')} failed, so {failures}", hint=hint)


def _was(count: int) -> str:
    return "was" if count == 1 else "were"


def note_assumed_pooling(model: "Model | RemoteModel", pooling: str | None) -> None:
    """Prints a note if the pooling is assumed, because neither the model nor an option says how to pool."""
    if not model.embedder.config.stated and pooling is None:
        pooled = "+".join(model.embedder.config.poolings)
        console.say("note", f"{model.source} has no modules.json, so {pooled} pooling is assumed")
