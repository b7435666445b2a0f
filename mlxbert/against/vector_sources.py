"""Reads the vectors of another program together with their texts.

Legend: N texts.
"""

import hashlib
import json
import sqlite3
from collections.abc import Iterator, Mapping, Sequence
from contextlib import closing, suppress
from dataclasses import dataclass, field, replace
from itertools import chain
from pathlib import Path
from typing import TYPE_CHECKING, Any

from mlxbert.errors import ArgumentError, InputError, MlxbertError
from mlxbert.paths import check_regular
from mlxbert.readers.formats import FORMATS, FormatName, read_records
from mlxbert.readers.input_files import check_there
from mlxbert.readers.vector_files import ARRAYS, connect_read_only, read_vectors, reading_vectors

if TYPE_CHECKING:
    from numpy.typing import NDArray

_DATABASES = (".sqlite", ".sqlite3", ".db")
_TABLES = (FormatName.jsonl, FormatName.json, FormatName.csv, FormatName.tsv, FormatName.parquet)
_RECORDS = tuple(ending for name in _TABLES for ending in FORMATS[name].endings)
_VECTORS = ("embedding", "vector", "embeddings", "vectors", "emb")  # names of columns, the usual ones first
_TEXTS = ("text", "content", "document", "chunk", "sentence", "passage", "page_content", "body")
_FLOATS = ("<f4", "<f2", "<f8")  # dtypes of the values of a vector in bytes, the usual ones first
_LENGTHS = (1e-3, 1e4)  # of vectors; bytes that are read with another dtype have other lengths, or are not finite
# What a file says about how it was made, and the types of the values.
_OPTIONS = {
    **dict.fromkeys(("prompt", "prompt_name", "kind", "pooling", "overflow", "output_dtype"), str), "dimensions": int,
}  # fmt: skip


@dataclass(frozen=True)
class ForeignVectors:
    """The vectors of another program, and what is known about them.

    Attributes:
        name: The URL or the file.
        texts: The texts, in order.
        vectors: The vectors, (N, values).
        options: The options of `embed` with which they were made, if the file says so.
        unit: Whether they were scaled to length 1 afterwards.
        notes: Remarks, such as on texts that are left out.
    """

    name: str
    texts: Sequence[str]
    vectors: "NDArray[Any]"
    options: Mapping[str, Any] = field(default_factory=dict)
    unit: bool = False
    notes: tuple[str, ...] = ()


def read_source(
    path: Path, texts: Sequence[str] | None, text_column: str | None, vector_column: str | None, width: int
) -> ForeignVectors:
    """Reads a file of vectors, with its texts unless they are given.

    Args:
        path: `.npy`, `.safetensors`, a file of records, or an SQLite file: of `embed`, an index, or any table.
        texts: The texts, if they are in another file.
        text_column: The name of the column or field with the text; by default guessed.
        vector_column: The name of the column or field with the vector; by default guessed.
        width: The size of the model's vectors, which tells the dtype of bytes in a table.
    """
    check_there(str(path))
    ending = path.suffix.lower()
    if ending in ARRAYS:
        found = _array(path)
    elif ending in _RECORDS:
        found = _records(path, texts is None, text_column, vector_column, width)
    elif ending in _DATABASES:
        found = _database(path, text_column, vector_column, width)
    else:
        endings = ", ".join((*ARRAYS, *_RECORDS, *_DATABASES))
        raise ArgumentError(
            f"{path}: the extension is {path.suffix!r}, expected a URL or a file with one of {endings}",
            hint="a server's address begins with http:// or https://",
        )
    if texts is None and not found.texts:
        raise ArgumentError(
            f"{path}: holds vectors without their texts", hint="give the texts that were embedded: texts="
        )
    return check_vectors(found if texts is None else replace(found, texts=texts))


def check_vectors(found: ForeignVectors) -> ForeignVectors:
    """Returns the vectors; raises an error unless there is a finite one for each text."""
    import numpy as np

    if getattr(found.vectors, "ndim", 0) != 2 or found.vectors.dtype.kind not in "fiu":
        shown = getattr(found.vectors, "shape", type(found.vectors).__name__)
        raise ArgumentError(f"{found.name} has the shape {shown}, expected numbers of shape (texts, values)")
    if len(found.texts) != len(found.vectors):
        raise InputError(
            f"{found.name}: the file has {len(found.vectors):,} vectors for {len(found.texts):,} texts",
            hint="give the unchanged file of texts that was embedded",
        )
    if not len(found.texts):
        raise InputError(f"{found.name}: the file has no vectors")
    with np.errstate(over="ignore"):
        lengths = (np.linalg.norm(np.asarray(row, np.float32)) for row in found.vectors)
        bad = [number for number, length in enumerate(lengths) if not 0 < length < np.inf]
    if bad:
        raise InputError(
            f"{found.name}: {len(bad):,} of {len(found.vectors):,} vectors are all zeros, not finite, or too large, "
            f"the first is that of text {bad[0]}",
            hint="check whether the program failed on this text, and leave it out",
        )
    return found


def _array(path: Path) -> ForeignVectors:
    import numpy as np

    stored = read_vectors(path)
    options = _options(path, stored.about)
    if path.suffix.lower() == ".npy":  # not copied: the file may be large
        with reading_vectors(path):
            return ForeignVectors(str(path), (), np.load(path, mmap_mode="r", allow_pickle=False), options)
    rows = [row if not isinstance(row, InputError) else None for row in stored.rows]
    return ForeignVectors(str(path), (), _stacked(str(path), rows), options)


def _stacked(name: str, rows: Sequence[Any]) -> "NDArray[Any]":
    """Returns vectors as an array; a missing one is NaN."""
    import numpy as np

    widths = sorted({len(row) for row in rows if row is not None})
    if len(widths) > 1:
        raise InputError(f"{name}: vectors have {widths[0]} to {widths[-1]} values, expected the same number in each")
    return np.stack([np.full(widths[0] if widths else 1, np.nan) if row is None else row for row in rows])


def _records(
    path: Path, with_texts: bool, text_column: str | None, vector_column: str | None, width: int
) -> ForeignVectors:
    stream = iter(read_records(path, None))
    first = next(stream, None)
    if first is None:
        raise InputError(f"{path}: the file has no records")
    if first.problem is not None:
        raise first.located(first.problem)
    vector = _column(path, first.values, vector_column, _VECTORS, "vector_column", lambda value: _vector(value, width))
    dtype = _dtype(first.values[vector], width)
    text = _column(path, first.values, text_column, _TEXTS, "text_column", _text) if with_texts else ""
    texts, rows = list[str](), list[Any]()
    for record in chain([first], stream):
        if record.problem is not None:
            raise record.located(record.problem)
        row = _vector(record.values.get(vector), width, dtype)
        if row is None or (with_texts and _text(record.values.get(text)) is None):
            column = vector if row is None else text
            raise InputError(
                f"{record.where}: column {column!r} is {record.values.get(column)!s:.60}, expected "
                f"{'a list of numbers' if row is None else 'a text'}",
                hint="remove the record, or name another column with vector_column= or text_column=",
            )
        rows.append(row)
        texts += [record.values[text]] if with_texts else []
    about: Mapping[str, str] = {}
    with suppress(MlxbertError):
        about = read_vectors(path).about
    return ForeignVectors(str(path), texts, _stacked(str(path), rows), _options(path, about))


def _options(path: Path, about: Mapping[str, str]) -> dict[str, Any]:
    """Returns the options of `embed` that a file states; raises InputError if they are something else."""
    stated = about.get("options", "{}")
    with suppress(ValueError, RecursionError):
        options = json.loads(stated)
        if isinstance(options, dict) and all(
            isinstance(options.get(name), (kind, type(None))) for name, kind in _OPTIONS.items()
        ):
            return options
    raise InputError(f"{path}: the file states the options {stated!r:.60}, expected those of embed")


def _text(value: Any) -> str | None:
    return value if isinstance(value, str) else None


def _dtype(value: Any, width: int) -> str:
    """Guesses the dtype of a vector in bytes: the first with which it has a usual length.

    Args:
        value: The bytes. Of other values, the dtype does not matter.
        width: The size of the model's vectors; a vector of this size is likelier than others.
    """
    import numpy as np

    if not isinstance(value, bytes):
        return _FLOATS[0]
    for dtype in sorted(_FLOATS, key=lambda dtype: len(value) != width * np.dtype(dtype).itemsize):
        if value and len(value) % np.dtype(dtype).itemsize == 0:
            with np.errstate(all="ignore"):
                length = np.linalg.norm(np.frombuffer(value, dtype).astype(np.float64))
            if _LENGTHS[0] < length < _LENGTHS[1]:
                return dtype
    return "|u1" if len(value) * 8 == width else "|i1" if any(value) else _FLOATS[0]


def _vector(value: Any, width: int, dtype: str | None = None) -> Any:
    """Returns a value of a record as a vector; `None` for anything else.

    Args:
        value: A list of numbers, the same as JSON, or bytes.
        width: The size of the model's vectors.
        dtype: The dtype of bytes; by default guessed.
    """
    import numpy as np

    if isinstance(value, bytes):
        dtype = dtype or _dtype(value, width)
        return np.frombuffer(value, dtype) if value and len(value) % np.dtype(dtype).itemsize == 0 else None
    with suppress(ValueError, TypeError, RecursionError, OverflowError):
        row = np.asarray(json.loads(value) if isinstance(value, str) else value, np.float64)
        return row if row.ndim == 1 and row.size > 1 else None
    return None


def _column(
    path: Path, values: Mapping[str, Any], chosen: str | None, usual: Sequence[str], argument: str, parse: Any
) -> str:
    """Returns the name of the column with the text or with the vector, by the values of the first record."""
    if chosen is not None and chosen not in values:
        raise ArgumentError(f"{path}: there is no column {chosen!r} (columns: {', '.join(values)})")
    names = [chosen] if chosen is not None else [*(name for name in usual if name in values), *values]
    fitting = [name for name in names if parse(values[name]) is not None]
    if not fitting:
        expected = "a vector" if argument == "vector_column" else "a text"
        raise InputError(
            f"{path}: no column has {expected} (columns: {', '.join(values)})", hint=f"name the column with {argument}="
        )
    return fitting[0]


def _database(path: Path, text_column: str | None, vector_column: str | None, width: int) -> ForeignVectors:
    from mlxbert.search.schema import APPLICATION

    with reading_vectors(path):
        check_regular(path, path.stat().st_mode)
        with closing(connect_read_only(path)) as database:
            if database.execute("PRAGMA application_id").fetchone()[0] == APPLICATION:
                return _index(path, database)
            return _table(path, database, text_column, vector_column, width)


def _table(
    path: Path, database: sqlite3.Connection, text_column: str | None, vector_column: str | None, width: int
) -> ForeignVectors:
    """Reads the only table with a text and a vector."""
    names = [name for (name,) in database.execute("SELECT name FROM sqlite_master WHERE type = 'table'")]
    fitting, is_unclear = [], False
    for name in names:
        with suppress(sqlite3.Error):  # a virtual table whose extension is missing
            cursor = database.execute(f"SELECT * FROM {_quoted(name)} LIMIT 1")
            row = cursor.fetchone()
            values = dict(zip((column[0] for column in cursor.description), row or (), strict=False))
            try:
                vector = _column(
                    path, values, vector_column, _VECTORS, "vector_column", lambda value: _vector(value, width)
                )
                fitting.append((name, _column(path, values, text_column, _TEXTS, "text_column", _text), vector))
            except MlxbertError:
                is_unclear = True
    if len(fitting) != 1:
        several = f"the tables {', '.join(name for name, _, _ in fitting)} have" if fitting else "no table has"
        raise InputError(
            f"{path}: {several} texts and vectors (tables: {', '.join(names) or 'none'})",
            hint="name the columns with text_column= and vector_column=" if is_unclear or fitting else None,
        )
    name, text, vector = fitting[0]
    stated: dict[str, str] = {}
    with suppress(sqlite3.Error, ValueError):  # a file of `embed`
        stated = dict(database.execute("SELECT name, value FROM about WHERE name = 'options'"))
    about = _options(path, stated)
    dtype = {"float32": "<f4", "int8": "|i1", "binary": "|i1"}.get(about.get("output_dtype", ""))
    texts, rows = list[str](), list[Any]()
    for content, value in database.execute(
        f"SELECT {_quoted(text)}, {_quoted(vector)} FROM {_quoted(name)} NOT INDEXED"
    ):
        dtype = dtype or _dtype(value, width)
        row = _vector(value, width, dtype)
        if row is None or not isinstance(content, str):
            raise InputError(f"{path}: row {len(rows)} of the table {name} has no text or no vector")
        texts.append(content)
        rows.append(row)
    return ForeignVectors(str(path), texts, _stacked(str(path), rows), about)


def _quoted(name: str) -> str:
    return '"' + name.replace('"', '""') + '"'


def _index(path: Path, database: sqlite3.Connection) -> ForeignVectors:
    """Reads the vectors of an index, and finds their texts: the parts of a chunk whose hashes the index has."""
    import numpy as np

    settings = {name: json.loads(value) for name, value in database.execute("SELECT name, value FROM about")}
    if settings.get("kind", "dense") != "dense":
        raise InputError(f"{path}: the index has {settings['kind']} vectors, expected dense ones")
    texts, rows, lost = list[str](), list[Any](), 0
    vectors = "SELECT hash, vectors.vector FROM windows JOIN vectors ON vectors.id = windows.vector WHERE chunk = ?"
    for chunk, titles, text in database.execute("SELECT id, titles, text FROM chunks"):
        stored = dict(database.execute(vectors, (chunk,)))
        embedded = dict(_windows(json.loads(titles), text, {*stored}))
        lost += len(stored) - len(embedded)
        for hash, window in embedded.items():
            texts.append(window)
            rows.append(np.frombuffer(stored[hash], "<f2", count=settings["dimensions"]))
    notes = (
        (f"{lost:,} vectors are left out, because the index does not store their texts as one piece",) if lost else ()
    )
    if not texts:
        raise InputError(f"{path}: the index has no vectors whose texts are known")
    options = {"prompt": settings["prompts"][1], "dimensions": settings["dimensions"], "pooling": settings["pooling"]}
    return ForeignVectors(str(path), texts, np.stack(rows), options, settings["similarity"] == "cosine", notes)


def _windows(titles: Sequence[str], text: str, hashes: set[bytes]) -> Iterator[tuple[bytes, str]]:
    """Yields the texts that were embedded for a chunk: its windows, each perhaps after a line with titles."""
    paths = [titles[first:last] for last in (len(titles), len(titles) - 1) for first in range(last)]
    headings = ["", *(f"{' > '.join(path)}\n" for path in paths)]
    ends = [place for place in range(1, len(text) + 1) if place == len(text) or text[place].isspace()]
    start = 0
    while start < len(text):
        for end, heading in ((end, heading) for end in reversed(ends) if end > start for heading in headings):
            window = heading + text[start:end]
            hash = hashlib.sha256(window.encode("utf-8", "replace")).digest()[:16]
            if hash in hashes:
                yield hash, window
                break
        else:
            return
        start = end + len(text[end:]) - len(text[end:].lstrip())
