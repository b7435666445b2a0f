"""Writes results to a file in parts that survive an interruption; the file is assembled and moved into place last.

A file `X` is built in the folder `X.partial/`, which holds a manifest (hashes of input and model, and the options) and
numbered parts. A part has the results of a window of inputs that are computed together (see
`mlxbert.readers.stream.windows`), so that a resumed run makes the same windows. A small file with counts and a hash is
written after each part; a part without this file is unfinished. The same command finds the parts and resumes after the
last finished one. `X` itself appears complete or not at all.
"""

import os
import shlex
import shutil
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack, suppress
from io import BytesIO
from pathlib import Path
from types import MappingProxyType, TracebackType
from typing import Any

from mlxbert.cli.output.formats import RESULTS, JsonLines, OutputFormat, find
from mlxbert.cli.output.written_paths import check_written
from mlxbert.cli.views import console
from mlxbert.durable_files import (
    DamagedError,
    atomic_write,
    check_hash,
    fsync_dir,
    identity,
    read_record,
    write_record,
    writing,
)
from mlxbert.errors import ArgumentError, ChangedError, MlxbertError
from mlxbert.paths import file_to_write, may_write, replace_file
from mlxbert.results.result import Failure
from mlxbert.resumable_folder import PartialFolder
from mlxbert.version import __version__

PART = 4096  # the maximum number of results of a part; a window of inputs that are batched together has no more


class FinishedParts:
    """The finished parts in a folder; iterating over them yields their paths.

    A small file next to each part holds the counts and the hash of the part. It also holds the JSON value `owner`; a
    part with another owner counts as damaged.
    """

    def __init__(self, folder: Path, format: OutputFormat, owner: object) -> None:
        self.folder, self._format, self._owner = folder, format, owner
        self.counts: list[dict[str, Any]] = []

    def __iter__(self) -> Iterator[Path]:
        return map(self._path, range(len(self.counts)))

    def _path(self, number: int) -> Path:
        return self.folder / f"part-{number:06}{self._format.part_ending}"

    def total(self, name: str) -> int:
        return sum(counts[name] for counts in self.counts)

    def find(self) -> "FinishedParts":
        """Reads the counts of further parts on disk, up to the first part that is missing or damaged."""
        with suppress(OSError, DamagedError):
            while True:
                path = self._path(len(self.counts))
                counts = read_record(path.with_suffix(".json"), self._owner)
                check_hash(path, counts["sha256"])
                self.counts.append(counts)
        return self

    def write(self, results: Sequence[Any], kept: Sequence[Mapping[str, Any]]) -> None:
        path = self._path(len(self.counts))
        with atomic_write(path, durable=False) as file:
            self._format.write_part(file, results, kept)
        counts = {
            "results": len(results),
            "failed": sum(isinstance(result, Failure) for result in results),
            "cut": sum(getattr(result, "truncated", False) for result in results),
            "unknown": sum(getattr(result, "only_unknown", False) for result in results),
            "tokens": sum(map(_tokens, results)),
            "sha256": file.sha256,
        }
        write_record(path.with_suffix(".json"), counts, self._owner, durable=False)
        self.counts.append(counts)


def _tokens(result: Any) -> int:
    """Returns the number of tokens of a result, whose field `tokens` is a number or a list."""
    tokens = getattr(result, "tokens", 0)
    return tokens if isinstance(tokens, int) else len(tokens)


_WHOLE = "whole"
_MAX_PRINTED = 20  # failures on stderr


def check_output(
    path: Path | None, overwrite: bool, allowed: Sequence[str] = RESULTS, sources: Sequence[str] | None = None
) -> None:
    """Raises an error if an output file cannot be written; commands call this before they load a model."""
    if path is None:
        return
    kind = find(path, allowed)
    check_path(path, overwrite, sources or ())
    kind.check(path)


def check_path(path: Path, overwrite: bool, sources: Iterable[str] = (), option: str = "output") -> None:
    """Raises an error if a file of any format cannot be written to the path, or the path is one of the `sources`."""
    check_written(option, path, "file")
    with writing(path):
        if path.exists() and identity(path) in map(identity, sources):
            raise ArgumentError(f"--{option} {path}: is also an input")
        _refuse_existing(path, overwrite)
        folder = file_to_write(path).parent if path.is_symlink() else path.parent
        if not folder.exists():
            hint = f"make the folder: mkdir -p {shlex.quote(str(folder))}"
            raise ArgumentError(f"--{option} {path}: the folder {folder} does not exist", hint=hint)
        if not folder.is_dir():
            raise NotADirectoryError(0, f"{folder} is not a folder")
        if not may_write(folder):
            read_only = os.statvfs(folder).f_flag & os.ST_RDONLY
            raise PermissionError(0, "Read-only file system" if read_only else "Permission denied")


def check_ending(path: Path | None, overwrite: bool, endings: tuple[str, ...], sources: Iterable[str] = ()) -> None:
    """Raises an error if the path has another ending, cannot be written, or is one of the files `sources`."""
    if path is None:
        return
    if path.suffix not in endings:
        raise ArgumentError(f"--output {path} does not end in {', '.join(endings[:-1])} or {endings[-1]}")
    check_path(path, overwrite, sources)


def _refuse_existing(path: Path, overwrite: bool) -> None:
    if path.exists() and not overwrite:
        raise ArgumentError(f"--output {path}: already exists", hint="--overwrite replaces it")


class _Folder(PartialFolder):
    names = rf"{_WHOLE}|part-\d+\.\w+"
    work = ("*-*", f"{_WHOLE}*")
    begun = "*-*.json"
    hint = "finish that run with its own input, model and options; --overwrite discards it and starts over"

    def resumable(self, manifest: Mapping[str, Any]) -> bool:
        """Whether a run can be resumed, which requires that its input is a file."""
        return manifest.get("input", "") is not None


class FileOutput:
    """A context manager that writes results to `path`."""

    def __init__(
        self, path: Path, manifest: dict[str, Any], *, overwrite: bool, format: OutputFormat | None = None
    ) -> None:
        self.format = format or JsonLines()
        check_output(path, overwrite, (self.format.ending,))
        self.path = file_to_write(path)
        self.overwrite = overwrite
        self._folder = _Folder(self.path, manifest | {"version": __version__})
        self.partial, self.manifest = self._folder.folder, self._folder.manifest
        self._parts = self._new_parts()
        self._results: list[Any] = []
        self._kept: list[Mapping[str, Any]] = []
        self.hint: str | None = None  # the hint for the first failure of this run, if the file stores why inputs failed
        self._printed = 0
        self._lock = ExitStack()

    @property
    def done(self) -> int:
        """The number of results in finished parts; a resumed run skips as many records."""
        return self._parts.total("results")

    @property
    def failed(self) -> int:
        return self._parts.total("failed")

    @property
    def truncated(self) -> int:
        """The number of results in finished parts whose input was truncated."""
        return self._parts.total("cut")

    @property
    def only_unknown(self) -> int:
        """The number of results in finished parts whose text has no known token."""
        return self._parts.total("unknown")

    @property
    def tokens(self) -> int:
        """The number of tokens in the inputs of finished parts, if results count tokens."""
        return self._parts.total("tokens")

    def __enter__(self) -> "FileOutput":
        dropped = self._lock.enter_context(self._folder.locked(overwrite=self.overwrite))
        if dropped is not None:
            console.say("note", f"{self.partial}: {dropped}; this work is discarded")
        for pattern in ("*.unfinished", _WHOLE):  # files that a killed run was writing
            for path in self.partial.glob(pattern):
                path.unlink(missing_ok=True)
        self._parts.find()
        return self

    def _new_parts(self) -> FinishedParts:
        return FinishedParts(self.partial, self.format, self.manifest)

    def write(self, result: Any, kept: Mapping[str, Any] = MappingProxyType({})) -> None:
        """Adds a result and the kept fields of its record to the current part."""
        if isinstance(result, Failure):
            if self.format.holds_errors:
                self.hint = self.hint or result.error.hint
            else:
                self._print_failure(result)
        if not self._results:  # says what is wrong with the columns before minutes have passed
            self.format.write_part(BytesIO(), [result], [kept])
        self._results.append(result)
        self._kept.append(kept)
        if len(self._results) == PART:
            self.end_part()

    def _print_failure(self, failure: Failure) -> None:
        """Prints why an input failed, because the format does not store it; stops after `_MAX_PRINTED` failures."""
        self._printed += 1
        if self._printed <= _MAX_PRINTED:
            console.say("error", f"input {failure.index}: {failure.error.message}")
            if self._printed == 1 and failure.error.hint:
                console.say("hint", failure.error.hint)
        elif self._printed == _MAX_PRINTED + 1:
            console.say("note", "more inputs failed; .jsonl and .csv files store the reason for each failure")

    def end_part(self) -> None:
        if not self._results:
            return
        with writing(self.partial):
            self._parts.write(self._results, self._kept)
        self._results, self._kept = [], []

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        try:
            if error is not None:
                self._keep(error)
                return
            try:
                self._finish()
            except BaseException as problem:
                self._keep(problem)
                raise
        finally:
            self._lock.close()

    def _keep(self, problem: BaseException) -> None:
        """Tells the user how to resume after an error or interrupt, or removes the parts if they are of no use.

        If `problem` is an error of mlxbert without a hint, the advice becomes its hint; otherwise, it is printed.
        """
        # Counts the parts on disk: an interrupt may come after a part is finished and before it is counted.
        self._parts.find()
        done = self.done
        if self.manifest["input"] is None or done == self.failed:
            shutil.rmtree(self.partial, ignore_errors=True)
            if isinstance(problem, KeyboardInterrupt) and not done:
                console.say("note", "interrupted before the first result, so nothing is written")
            elif isinstance(problem, KeyboardInterrupt):
                reason = "every result so far has failed" if self.manifest["input"] else "stdin cannot be read again"
                console.say("note", f"interrupted; nothing is kept, because {reason}")
            return
        kept = console.counted(done, "result is", "results are")
        condition = " if the input is unchanged" if isinstance(problem, ChangedError) else ""
        hint = f"{kept} kept in {self.partial}: the same command resumes there{condition}"
        if isinstance(problem, MlxbertError) and problem.hint is None:
            problem.hint = hint
        else:
            console.say("hint", hint)

    def _finish(self) -> None:
        self.end_part()
        if self.done and self.failed == self.done and not self.format.holds_errors:
            subject = "the only input" if self.done == 1 else f"all {self.done:,} inputs"
            raise MlxbertError(f"{self.path} was not written, because {subject} failed")
        assembled = self.partial / _WHOLE
        if self._new_parts().find().counts != self._parts.counts:
            raise MlxbertError(f"{self.partial}: a finished part of the output has changed")
        with writing(self.partial), atomic_write(assembled) as file:
            self.format.assemble(file, self._parts, self.done)
        with writing(self.path):
            try:
                _refuse_existing(self.path, self.overwrite)  # the file may have appeared during the run
                self.format.check(self.path)
                replace_file(assembled, self.path)
            except (OSError, ArgumentError):
                assembled.unlink()
                raise
        fsync_dir(self.path.parent)
        self._folder.remove()
