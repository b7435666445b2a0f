"""Reads files of vectors that `embed` wrote: one vector per text, in the order of the texts.

Shapes: W size of a vector.
"""

import json
import os
import sqlite3
import warnings
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import closing, contextmanager
from dataclasses import dataclass
from pathlib import Path
from tokenize import TokenError
from typing import Any, TypeAlias

from mlxbert.errors import ArgumentError, InputError
from mlxbert.lazy_numpy import NDArray, np
from mlxbert.paths import check_regular
from mlxbert.readers.formats import read_records
from mlxbert.readers.input_files import hint_of_missing
from mlxbert.readers.parsing import ReadOptions
from mlxbert.readers.stream import RecordSource, RecordStream

Vector: TypeAlias = "NDArray[np.floating[Any]] | NDArray[np.int8]"

_RECORDS = (".jsonl", ".csv", ".parquet")  # contain the texts as well
DATABASE = ".sqlite"  # contains the texts as well
ARRAY = ".npy"  # contains no texts
_ENDINGS = (ARRAY, DATABASE, *_RECORDS)

# What NumPy says about an .npy file, with advice that is unsafe or for programmers, and what it means.
_REASONS = {
    "pickle": "the file is not an array of numbers",
    "mmap length": "the end of the file is missing",
    "too big": "the header of the file is damaged",
}
_DAMAGED_HEADER = (OverflowError, SyntaxError, RecursionError, MemoryError, TokenError)  # NumPy parses it as Python


@dataclass(frozen=True)
class StoredVectors:
    """The vectors in a file."""

    # The vector of each text, (W,), float32 or int8, or an error if the text has none; read while iterating.
    rows: Iterator["Vector | InputError"]
    about: Mapping[str, str]  # the metadata of the file: `model` and its `fingerprint`, and `options` as JSON
    has_texts: bool  # whether the file is also a file of records that include the texts


def read_vectors(path: Path) -> StoredVectors:
    """Opens a file of vectors: an array (texts, W), or records with an `embedding`."""
    ending = path.suffix.lower()
    if ending not in _ENDINGS:
        raise ArgumentError(f"{path}: the extension is {path.suffix!r}, expected one of {', '.join(_ENDINGS)}")
    with reading_vectors(path):
        check_regular(path, os.stat(path).st_mode)
        rows, about = _open(path, ending)
    return StoredVectors(_checked_rows(path, rows), about, ending in _RECORDS)


def unstated(path: Path, stored: StoredVectors) -> str | None:
    """Returns a note on what a file does not state about its vectors, and nobody can check; `None` if it states all."""
    if path.suffix.lower() == ARRAY:
        return f"{path} states neither texts nor model: its rows must be the vectors of the input, in the same order"
    return None if "model" in stored.about else f"{path} does not state the model that made its vectors"


def read_texts(path: Path, keep: Sequence[str] | None = ()) -> RecordSource:
    """Opens the texts that an SQLite file stores with their vectors; a missing text is empty.

    Args:
        keep: The columns to keep; `None` keeps `id`, if there is one.
    """
    wanted = ReadOptions(("text",), keep or (), with_id=keep is None, choose="`keep=`")
    with reading_vectors(path), closing(connect_read_only(path)) as database:
        rows = database.execute("SELECT * FROM embed NOT INDEXED")  # in the order of writing
        names = [name for name, *_ in rows.description]
        columns = wanted.columns(str(path), names)
        places = [names.index(name) for name in columns]
        items = [[row[place] for place in places] for row in rows]
    records = (
        (f"row {number}", dict(zip(columns, row, strict=True)) | {"text": row[0] or ""})
        for number, row in enumerate(items, 1)
    )
    return RecordSource(str(path), records, ("sqlite", *columns), wanted=wanted, is_file=True)


def stored_texts(path: Path) -> Iterator[str | None]:
    """Yields the text that a file of vectors has for each vector; `None` if it has none or an empty one."""
    ending = path.suffix.lower()
    if ending == DATABASE:
        yield from (record.text or None for record in RecordStream([read_texts(path)]))
    elif ending in _RECORDS:
        for record in read_records(path, None):
            text = record.values.get("text")
            yield text if isinstance(text, str) and text else None  # a .csv has an empty cell for a text that failed
    while True:
        yield None


def check_text(path: Path, place: int, stored: str | None, text: str) -> None:
    """Raises InputError if a file of vectors has another text for a vector than the input has."""
    if stored is not None and stored.split() != text.split():  # a .csv may have other line breaks
        raise InputError(
            f"{path}: the vector in row {place} belongs to the text {stored!r:.60}, but the input has {text!r:.60}",
            hint="give the unchanged texts that were embedded",
        )


def connect_read_only(path: Path) -> sqlite3.Connection:
    """Opens an SQLite file that is not changed."""
    return sqlite3.connect(f"{path.absolute().as_uri()}?mode=ro", uri=True)


@contextmanager
def reading_vectors(path: Path) -> Iterator[None]:
    """Within this context, errors of a file of vectors become InputErrors."""
    try:
        yield
    except (OSError, EOFError, ValueError, TypeError, LookupError, ImportError, sqlite3.Error) as problem:
        reason = getattr(problem, "strerror", None) or str(problem)
        reason = next((ours for numpys, ours in _REASONS.items() if numpys in reason), reason)
        hint = hint_of_missing(path, problem)
        raise InputError(f"{path}: cannot be read as vectors ({reason})", hint=hint) from None


def _checked_rows(path: Path, rows: Iterable[Any]) -> Iterator["Vector | InputError"]:
    with reading_vectors(path):
        yield from map(_checked, rows)


def _open(path: Path, ending: str) -> tuple[Iterable[Any], Mapping[str, str]]:
    if ending == ARRAY:
        return _array(np.asarray(open_array(path))), {}
    if ending in _RECORDS:
        about: Mapping[bytes, bytes] = {}
        if ending == ".parquet":
            import pyarrow.parquet as pq

            about = pq.read_schema(path).metadata or {}
        return _records(path), {name.decode(): value.decode() for name, value in about.items()}
    database = connect_read_only(path)
    metadata = dict(database.execute("SELECT name, value FROM about"))
    dtype = np.dtype("<f4" if json.loads(metadata["options"])["output_dtype"] == "float32" else "|i1")
    # In the order of writing; ORDER BY rowid could hit a kept column with that name.
    rows = database.execute("SELECT embedding FROM embed NOT INDEXED")
    return (np.frombuffer(blob or b"", dtype) for (blob,) in rows), metadata


def open_array(path: Path) -> "NDArray[Any]":
    """Opens an `.npy` file without copying it, which may be large; use within `reading_vectors`."""
    try:
        with warnings.catch_warnings(action="ignore"):  # about the header: of Python 2, or with sizes that overflow
            return np.load(path, mmap_mode="r", allow_pickle=False)
    except _DAMAGED_HEADER:
        raise ValueError("the header of the file is damaged") from None


def _array(array: Any) -> Any:
    if array.ndim != 2 or array.dtype.kind not in "fi":
        raise ValueError(
            f"the array has dtype {array.dtype} and shape {array.shape}, expected numbers of shape (texts, values)"
        )
    return array


def _records(path: Path) -> Iterator[Any]:
    """Yields the `embedding` of each record, which is a list, or a list written as JSON (in a .csv)."""
    table = path.suffix.lower() != ".jsonl"
    for record in read_records(path, None):
        if table and record.problem is None and "embedding" not in record.values:
            raise InputError(f"{path}: the file has no column 'embedding' (columns: {', '.join(record.values)})")
        vector = record.values.get("embedding")
        try:
            yield np.asarray(json.loads(vector) if isinstance(vector, str) else vector, np.float64)
        except (ValueError, TypeError, OverflowError, RecursionError):
            yield None


def _checked(vector: Any) -> "Vector | InputError":
    """Returns the vector; if it is missing, all zeros or not finite, as for a text that failed, returns an error."""
    if vector is not None and vector.dtype.itemsize > 4:
        with np.errstate(over="ignore"):  # a number that is too large becomes infinite, which is refused
            vector = vector.astype(np.float32)
    if vector is None or vector.ndim != 1 or not np.isfinite(vector).all() or not vector.any():
        return InputError(
            "the vector of this text is missing, zero or not finite", hint="check whether embed failed on this text"
        )
    return vector
