"""Results into a file: in parts that survive an interruption, assembled and moved into place at the end.

`X` is made in the folder `X.partial/`: a manifest that says of what (hashes of input, model and options), and parts of
`PART` results each, numbered, complete as soon as they have their name. The same command finds them and goes on behind
the last one. `X` itself appears whole or not at all.
"""

import fcntl
import hashlib
import json
import os
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from types import TracebackType
from typing import IO, Any

from mlxbert import __version__
from mlxbert.cli import render
from mlxbert.errors import ArgumentError, MlxbertError

PART = (
    4096  # results; a multiple of the window in which inputs are batched, so that a resumed run makes the same batches
)
_MODEL_FILES = (".json", ".txt", ".safetensors")
_FAILED = '{"index": '  # how the line of a failure begins, and no other


def hash_file(path: Path) -> str:
    """SHA-256 of a file."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def hash_folder(folder: Path) -> str:
    """A fingerprint of a model folder from names, sizes and times of its files: reading gigabytes would take longer."""
    found = hashlib.sha256()
    for path in sorted(path for path in folder.iterdir() if path.suffix in _MODEL_FILES):
        state = path.stat()
        found.update(f"{path.name}\0{state.st_size}\0{state.st_mtime_ns}\n".encode())
    return found.hexdigest()


@contextmanager
def _writing(path: Path) -> Iterator[None]:
    try:
        yield
    except OSError as problem:
        raise MlxbertError(f"{path}: cannot be written ({problem.strerror})") from None


class FileOutput:
    """JSON lines into `path`, a context manager.

    Attributes:
        done: How many results finished parts hold: that many records of the input are not to be worked on again.
        failed: How many of all results written are failures.
        cut: How many of all results are of inputs that were cut.
    """

    def __init__(self, path: Path, manifest: dict[str, Any], *, overwrite: bool) -> None:
        if path.suffix != ".jsonl":
            raise ArgumentError(f"--output {path}: ending {path.suffix!r}, expected .jsonl")
        if path.is_dir():
            raise ArgumentError(f"--output {path}: is a folder")
        if path.exists() and not overwrite:
            raise ArgumentError(f"--output {path}: exists already", hint="--overwrite replaces it")
        self.path = path
        self.partial = path.with_name(path.name + ".partial")
        self.manifest = manifest | {"version": __version__}
        self.failed = self.done = self.cut = 0
        self._lines: list[str] = []
        self._lines_cut = 0
        self._lock: IO[bytes] | None = None

    def __enter__(self) -> "FileOutput":
        with _writing(self.partial):
            self.partial.mkdir(parents=True, exist_ok=True)
            self._lock = (self.partial / "lock").open("wb")
            try:
                fcntl.flock(self._lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                raise ArgumentError(f"{self.partial}: another run is working on it") from None
            self._take_over()
        parts = self._parts()
        self.done = len(parts) * PART
        self.cut = sum(int(part.with_suffix(".cut").read_text()) for part in parts)
        return self

    def _take_over(self) -> None:
        """Goes on from what is in the folder, clears away what nobody can go on from, and refuses the rest."""
        stored = self.partial / "manifest.json"
        wanted = json.dumps(self.manifest, indent=1, sort_keys=True)
        found = stored.read_text(encoding="utf-8") if stored.is_file() else ""
        # A run that was killed before it finished a part left nothing; one without a file as its input cannot go on.
        useless = not found or not self._parts() or json.loads(found)["input"] is None
        if not useless and found != wanted:
            raise ArgumentError(
                f"{self.partial}: holds the unfinished work of another input, model or command",
                hint="finish that one, or remove the folder",
            )
        if useless:
            for path in [stored, *self.partial.glob("part-*")]:
                path.unlink(missing_ok=True)
            _write_whole(stored, [wanted])

    def _parts(self) -> list[Path]:
        """The finished parts, as far as they are without a gap."""
        found: list[Path] = []
        while (path := self.partial / f"part-{len(found):06}.jsonl").is_file():
            found.append(path)
        return found

    def write(self, result: Any) -> None:
        """Takes one result; a full part is written to disk."""
        self._lines.append(render.to_json(result.to_dict()) + "\n")
        self._lines_cut += getattr(result, "truncated", False)
        if len(self._lines) == PART:
            self._flush()

    def _flush(self) -> None:
        part = self.partial / f"part-{self.done // PART:06}.jsonl"
        with _writing(self.partial):
            _write_whole(part.with_suffix(".cut"), [str(self._lines_cut)])
            _write_whole(part, self._lines)
        self.done += len(self._lines)
        self.cut += self._lines_cut
        self._lines, self._lines_cut = [], 0

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        try:
            if kind is None:
                self._finish()
            elif self.manifest["input"] is None or not self._parts():
                shutil.rmtree(self.partial, ignore_errors=True)  # nothing in it to go on from
            else:
                render.say(
                    "hint", f"{self.done} results are kept in {self.partial}: the same command goes on from there"
                )
        finally:
            if self._lock is not None:
                self._lock.close()

    def _finish(self) -> None:
        if self._lines:
            self._flush()
        whole = self.partial / "whole.jsonl"
        with _writing(self.path):
            with whole.open("wb") as file:
                for part in self._parts():
                    with part.open("rb") as lines:
                        self.failed += _copy(lines, file)
                _to_disk(file)
            os.replace(whole, self.path)
            shutil.rmtree(self.partial)


def _copy(source: IO[bytes], target: IO[bytes]) -> int:
    """Copies lines and counts the failures among them."""
    failed = 0
    for line in source:
        failed += line.startswith(_FAILED.encode())
        target.write(line)
    return failed


def _to_disk(file: IO[Any]) -> None:
    file.flush()
    os.fsync(file.fileno())


def _write_whole(path: Path, lines: list[str]) -> None:
    """A file that has its name only once it is complete."""
    unfinished = path.with_name(path.name + ".unfinished")
    with unfinished.open("w", encoding="utf-8", newline="\n") as file:
        file.writelines(lines)
        _to_disk(file)
    os.replace(unfinished, path)
