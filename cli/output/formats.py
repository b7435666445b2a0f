"""The output formats: their interface, JSON lines, and which one a file extension names.

A format writes each list of results to a temporary file, a part, and assembles the output file from all parts, without
loading a whole part into memory. The bytes of the output file depend only on the results, not on their division into
parts.
"""

import importlib
import shutil
from abc import ABC, abstractmethod
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import IO, Any

from mlxbert.cli.views.json_lines import to_line
from mlxbert.errors import ArgumentError

CHUNK = 1 << 20  # bytes copied at a time
JSON_LINES = (".jsonl",)
TABLES = (".csv", ".sqlite")
RESULTS = (*JSON_LINES, *TABLES)  # extensions for results other than vectors
VECTORS = (*RESULTS, ".npy", ".parquet")
_LISTS = (*JSON_LINES, ".parquet")
FORMATS = {  # the extensions by kind of vectors
    "dense": VECTORS, "sparse": (*JSON_LINES, ".npz", ".parquet"), "tokens": _LISTS, "words": _LISTS,
}  # fmt: skip
ANY_VECTORS = tuple(dict.fromkeys(ending for endings in FORMATS.values() for ending in endings))


class OutputFormat(ABC):
    """A format of output files. `kind` is that of its vectors: `dense`, `words`, `sparse` or `tokens`."""

    ending: str  # the extension of the file
    part_ending: str  # the extension of each part
    holds_errors = True  # whether the file stores why an input failed; if not, the reason is printed on stderr
    keeps = True  # whether the file can store the kept fields of records
    whole_rows = False  # whether all fields of the records are kept, so that a table repeats none of them
    # Says where failures are described, or how they look in the file.
    failures = "the output has an error for each of these inputs"

    def __init__(
        self,
        width: int | None = None,
        metadata: Mapping[str, str] | None = None,
        keep: Sequence[str] = (),
        *,
        kind: str = "dense",
        dtype: str = "float32",
    ) -> None:
        self._width, self.keep, self.kind = width, keep, kind
        self.dtype = {"float32": "<f4", "float16": "<f2"}.get(dtype, "|i1")
        self.metadata = dict(metadata or {})

    @property
    def width(self) -> int:
        """The number of values of a vector, D; formats for vectors need it in advance."""
        assert self._width is not None, f"{self.ending} needs the width of its vectors"
        return self._width

    @classmethod  # noqa: B027 - most formats need no check
    def check(cls, path: Path) -> None:
        """Raises an error if a file of this format cannot be written to the path."""

    @abstractmethod
    def write_part(self, file: IO[bytes], results: Sequence[Any], kept: Sequence[Mapping[str, Any]]) -> None:
        """Writes a part: results, some of which may be failures, and the kept fields of their records."""

    @abstractmethod
    def assemble(self, file: IO[bytes], parts: Iterable[Path], results: int) -> None:
        """Writes the whole file from its parts, in order, which can be iterated over several times."""


def utf8(text: str) -> bytes:
    """Encodes a text as UTF-8. Lone surrogates, which messages may quote from an input, become escapes."""
    return text.encode("utf-8", "backslashreplace")


class JsonLines(OutputFormat):
    """`.jsonl`: a JSON object per line, as on stdout."""

    ending = part_ending = ".jsonl"

    def write_part(self, file: IO[bytes], results: Sequence[Any], kept: Sequence[Mapping[str, Any]]) -> None:
        for result, values in zip(results, kept, strict=True):
            file.write(to_line(result, values).encode() + b"\n")

    def assemble(self, file: IO[bytes], parts: Iterable[Path], results: int) -> None:
        for path in parts:
            with path.open("rb") as part:
                shutil.copyfileobj(part, file, CHUNK)


_OTHERS = {  # the classes of the other formats, which are imported on use: they need more of Python's library
    ".csv": "result_tables.Csv",
    ".sqlite": "result_tables.Sqlite",
    ".npy": "numpy_files.Npy",
    ".parquet": "parquet.Parquet",
    ".npz": "numpy_files.Npz",
}


def find(path: Path, allowed: Sequence[str] = RESULTS) -> type[OutputFormat]:
    """Returns the class of the output format that the extension of a file names."""
    ending = path.suffix.lower()
    if ending not in allowed:
        if path.is_dir():
            raise ArgumentError(f"--output {path}: is a folder, expected a file")
        if allowed == ANY_VECTORS:  # what most models make
            allowed = VECTORS
        expected = allowed[0] if len(allowed) == 1 else "one of " + ", ".join(allowed)
        kinds = " and ".join(kind for kind, endings in FORMATS.items() if ending in endings and endings != allowed)
        reason = f"{ending!r} is for {kinds} vectors" if kinds else f"the extension is {path.suffix!r}"
        raise ArgumentError(f"--output {path}: {reason}, expected {expected}")
    if ending in JSON_LINES:
        return JsonLines
    module, _, name = _OTHERS[ending].partition(".")
    kind: type[OutputFormat] = getattr(importlib.import_module(f"mlxbert.cli.output.{module}"), name)
    return kind


def choose(
    path: Path | None,
    allowed: Sequence[str] = RESULTS,
    *,
    width: int | None = None,
    metadata: Mapping[str, str] | None = None,
    kind: str = "dense",
    dtype: str = "float32",
    keep: Sequence[str] | None = None,
) -> OutputFormat:
    """Makes the output format that the extension of a file names, or JSON lines if there is no file.

    If results are vectors, `width` is the number of values of each, `kind` their kind (see `OutputFormat`), and `dtype`
    the dtype of the results. `metadata` is stored if the format supports it.
    """
    format = JsonLines if path is None else find(path, allowed)
    if keep and not format.keeps:
        expected = "expected .jsonl, .csv, .sqlite or .parquet"
        raise ArgumentError(f"--output {path}: {format.ending} cannot store columns of --keep, {expected}")
    return format(width, metadata, tuple(dict.fromkeys(keep or ())), kind=kind, dtype=dtype)
