"""Vectors in files, as `embed` writes them: one for each text, in the order of the texts. W width of a vector."""

import json
import os
import sqlite3
from collections.abc import Iterable, Iterator, Mapping
from contextlib import closing, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from mlxbert.errors import ArgumentError, InputError
from mlxbert.paths import check_regular
from mlxbert.readers.formats import FORMATS, FormatName, read_records
from mlxbert.readers.input_files import hint_of_missing

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    Vector = NDArray[np.floating[Any]] | NDArray[np.int8]

_RECORDS = (*FORMATS[FormatName.jsonl].endings, ".csv", ".parquet")  # which hold the texts, too
DATABASES = (".sqlite", ".db")  # which do, too
_ENDINGS = (".npy", ".safetensors", *DATABASES, *_RECORDS)


@dataclass(frozen=True)
class StoredVectors:
    """The vectors of a file.

    Attributes:
        rows: Each (W,), float32 or int8; an error where a text has none. Iterating reads the file.
        about: What the file says of the vectors: `model`, and `options` as JSON.
        has_texts: Whether the file can be read as records with the texts.
    """

    rows: Iterator["Vector | InputError"]
    about: Mapping[str, str]
    has_texts: bool


def read_vectors(path: Path) -> StoredVectors:
    """Opens a file of vectors: an array (texts, W), or records with an `embedding`."""
    ending = path.suffix.lower()
    if ending not in _ENDINGS:
        raise ArgumentError(f"{path}: extension {path.suffix!r}, expected vectors: {', '.join(_ENDINGS)}")
    with _reading(path):
        check_regular(path, os.stat(path).st_mode)
        rows, about = _opened(path, ending)
    return StoredVectors(_checked_rows(path, rows), about, ending in _RECORDS)


def read_texts(path: Path) -> list[str]:
    """The texts of a database of vectors, in their order; empty where one is missing."""
    with _reading(path), closing(_connect(path)) as base:
        return [text or "" for (text,) in base.execute("SELECT embed.text FROM embed NOT INDEXED")]


def _connect(path: Path) -> sqlite3.Connection:
    return sqlite3.connect(f"{path.absolute().as_uri()}?mode=ro", uri=True)


@contextmanager
def _reading(path: Path) -> Iterator[None]:
    try:
        yield
    except (OSError, EOFError, ValueError, TypeError, LookupError, ImportError, sqlite3.Error) as problem:
        said = getattr(problem, "strerror", None) or problem
        hint = hint_of_missing(path, problem)
        raise InputError(f"{path}: cannot be read as vectors that embed has written ({said})", hint=hint) from None


def _checked_rows(path: Path, rows: Iterable[Any]) -> Iterator["Vector | InputError"]:
    with _reading(path):
        yield from map(_checked, rows)


def _opened(path: Path, ending: str) -> tuple[Iterable[Any], Mapping[str, str]]:
    """The vectors, not checked, and what the file says of them."""
    import numpy as np

    if ending == ".npy":
        return _array(np.asarray(np.load(path, mmap_mode="r", allow_pickle=False))), {}
    if ending == ".safetensors":
        from mlxbert.weights.formats.safetensors import load_arrays, read_header

        header = read_header(path)
        return _array(np.array(load_arrays(path, header)["embeddings"])), header.metadata
    if ending in _RECORDS:
        about: Mapping[bytes, bytes] = {}
        if ending == ".parquet":
            import pyarrow.parquet as pq

            about = pq.read_schema(path).metadata or {}
        return _records(path), {name.decode(): value.decode() for name, value in about.items()}
    base = _connect(path)
    told = dict(base.execute("SELECT name, value FROM about"))
    dtype = np.dtype("<f4" if json.loads(told["options"])["output_dtype"] == "float32" else "|i1")
    # As the rows were written; a column that is kept may be called rowid.
    rows = base.execute("SELECT embedding FROM embed NOT INDEXED")
    return (np.frombuffer(one or b"", dtype) for (one,) in rows), told


def _array(found: Any) -> Any:
    """An array, if it holds vectors."""
    if found.ndim != 2 or found.dtype.kind not in "fi":
        raise ValueError(f"{found.dtype} {found.shape}, expected numbers (texts, values)")
    return found


def _records(path: Path) -> Iterator[Any]:
    """The field or column `embedding` of each record: a list, or JSON where a table holds text."""
    import numpy as np

    table = path.suffix.lower() not in FORMATS[FormatName.jsonl].endings
    for record in read_records(path, None):
        if table and record.problem is None and "embedding" not in record.values:
            raise InputError(f"{path}: no column 'embedding', the file has: {', '.join(record.values)}")
        vector = record.values.get("embedding")
        try:
            yield np.asarray(json.loads(vector) if isinstance(vector, str) else vector, np.float32)
        except (ValueError, TypeError, OverflowError, RecursionError):
            yield None


def _checked(vector: Any) -> "Vector | InputError":
    """A vector; an error in place of NaN, 0 or nothing, which is what `embed` writes for a text that failed."""
    import numpy as np

    if vector is None or vector.ndim != 1 or not np.isfinite(vector).all() or not vector.any():
        return InputError("there is no vector of this text, or it is NaN or 0: did the text fail in embed?")
    return vector
