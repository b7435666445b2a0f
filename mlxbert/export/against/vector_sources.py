"""Reads the vectors of another program together with their texts.

Legend: N texts.
"""

import hashlib
import json
import sqlite3
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import closing, suppress
from dataclasses import dataclass, field
from itertools import chain
from pathlib import Path
from typing import Any

from mlxbert import rooms
from mlxbert.errors import ArgumentError, InputError, MlxbertError
from mlxbert.lazy_numpy import NDArray, np
from mlxbert.paths import check_regular
from mlxbert.readers.formats import FORMATS, FormatName, read_records
from mlxbert.readers.input_files import check_there
from mlxbert.readers.vector_files import ARRAY, connect_read_only, open_array, read_vectors, reading_vectors

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
# Bytes of the header of an SQLite file, the place of the application's number, and the number of an index.
_HEADER, _APPLICATION_AT, _INDEX = 100, 68, b"mlxb"
_Rows = Iterable[tuple[str, Mapping[str, Any]]]  # where each row is, and its values


@dataclass(frozen=True)
class ForeignVectors:
    """The vectors of another program, and what is known about them; there is a finite one, not 0, for each text."""

    name: str  # the URL or the file
    texts: Sequence[str]  # the texts, in order
    vectors: "NDArray[Any]"  # the vectors, (N, values)
    # The options of `embed` with which they were made, if the file says so.
    options: Mapping[str, Any] = field(default_factory=dict)
    unit: bool = False  # whether they were scaled to length 1 afterwards
    notes: tuple[str, ...] = ()  # remarks, such as on texts that are left out

    def __post_init__(self) -> None:
        if getattr(self.vectors, "ndim", 0) != 2 or self.vectors.dtype.kind not in "fiu":
            shown = getattr(self.vectors, "shape", type(self.vectors).__name__)
            kind = getattr(self.vectors, "dtype", "no numbers")
            raise ArgumentError(
                f"{self.name} has the shape {shown} ({kind}), expected numbers of shape (texts, values)"
            )
        if len(self.texts) != len(self.vectors):
            raise InputError(
                f"{self.name}: the file has {len(self.vectors):,} vectors for {len(self.texts):,} texts",
                hint="give the unchanged file of texts that was embedded",
            )
        if not len(self.texts):
            raise InputError(f"{self.name}: the file has no vectors")
        with np.errstate(over="ignore"):
            lengths = (np.linalg.norm(np.asarray(row, np.float32)) for row in self.vectors)
            bad = [number for number, length in enumerate(lengths) if not 0 < length < np.inf]
        if bad:
            raise InputError(
                f"{self.name}: {len(bad):,} of {len(self.vectors):,} vectors are all zeros, not finite, or too large, "
                f"the first is that of text {bad[0]}",
                hint="check whether the program failed on this text, perhaps because it computes in float16",
            )


def stacked(name: str, rows: Sequence[Any]) -> "NDArray[Any]":
    """Returns vectors as an array (N, values); a missing one is NaN."""
    widths = sorted({len(row) for row in rows if row is not None})
    if len(widths) > 1:
        raise InputError(
            f"{name}: vectors have {widths[0]} to {widths[-1]} values, expected the same number in each",
            hint="some may be token vectors; expected is one vector per text",
        )
    return np.stack([np.full(widths[0] if widths else 1, np.nan) if row is None else row for row in rows])


@dataclass(frozen=True)
class VectorFile:
    """Reads a file of vectors, with its texts unless they are given."""

    path: Path  # `.npy`, a file of records, or an SQLite file: of `embed`, an index, or any table
    texts: Sequence[str] | None  # the texts, if they are in another file
    text_column: str | None  # the name of the column or field with the text; by default guessed
    vector_column: str | None  # the name of the column or field with the vector; by default guessed
    width: int  # the size of the model's vectors, which tells the dtype of bytes in a table

    def read(self) -> ForeignVectors:
        check_there(str(self.path))
        ending = self.path.suffix.lower()
        if ending == ARRAY and self.texts is None:
            raise ArgumentError(
                f"{self.path}: holds vectors without their texts", hint="give the texts that were embedded: `texts=`"
            )
        if ending == ARRAY:
            with reading_vectors(self.path):
                check_regular(self.path, self.path.stat().st_mode)
                return ForeignVectors(str(self.path), self.texts or (), open_array(self.path), {})
        if ending in _RECORDS:
            about: Mapping[str, str] = {}
            texts, vectors = self._from_rows(self._records())
            with suppress(MlxbertError):
                about = read_vectors(self.path).about
            return ForeignVectors(str(self.path), texts, vectors, self._options(about))
        if ending in _DATABASES:
            with reading_vectors(self.path):
                return self._database()
        endings = ", ".join((ARRAY, *_RECORDS, *_DATABASES))
        raise ArgumentError(
            f"{self.path}: the extension is {ending!r}, expected a URL or a file with one of {endings}",
            hint="a server's address begins with http:// or https://",
        )

    def _options(self, about: Mapping[str, str]) -> dict[str, Any]:
        """Returns the options of `embed` that the file states; raises InputError if they are something else."""
        stated = about.get("options", "{}")
        with suppress(ValueError, RecursionError):
            options = json.loads(stated)
            if isinstance(options, dict) and all(
                isinstance(options.get(name), (kind, type(None))) for name, kind in _OPTIONS.items()
            ):
                return options
        raise InputError(f"{self.path}: the file states the options {stated!r:.60}, expected those of embed")

    def _records(self) -> _Rows:
        for record in read_records(self.path, None):
            if record.problem is not None:
                raise record.located(record.problem)
            yield record.where, record.values

    def _from_rows(self, rows: _Rows, dtype: str | None = None) -> "tuple[Sequence[str], NDArray[Any]]":
        """Returns the texts, of the rows unless they are given, and the vectors; `dtype` is that of bytes if known."""
        rows = iter(rows)
        first = next(rows, None)
        if first is None:
            raise InputError(f"{self.path}: the file has no records")
        text, vector = self._columns(first[1])
        dtype = dtype or _dtype(first[1][vector], self.width)
        texts, vectors = list[Any](), list[Any]()
        for where, values in chain([first], rows):
            vectors.append(_vector(values.get(vector), self.width, dtype))
            texts += [values.get(text)] if text is not None else []
            if vectors[-1] is None or (text is not None and not isinstance(texts[-1], str)):
                column, expected = (vector, "a list of numbers") if vectors[-1] is None else (text, "a text")
                raise InputError(
                    f"{where}: column {column!r} is {values.get(str(column))!s:.60}, expected {expected}",
                    hint="remove the record, or name another column with `vector_column=` or `text_column=`",
                )
        return texts if self.texts is None else self.texts, stacked(str(self.path), vectors)

    def _columns(self, values: Mapping[str, Any]) -> tuple[str | None, str]:
        """Returns the names of the columns with the text, unless it is given, and with the vector."""

        def chosen(name: str | None, usual: Sequence[str], fits: Any, expected: str) -> str:
            if name is not None and name not in values:
                raise ArgumentError(f"{self.path}: there is no column {name!r} (columns: {', '.join(values)})")
            if name is not None:
                return name
            known = [each for each in usual if each in values]
            if fitting := [each for each in (*known, *values) if fits(values[each])]:
                return fitting[0]
            if known:  # the error names the record
                return known[0]
            raise InputError(
                f"{self.path}: no column has a {expected} (columns: {', '.join(values)})",
                hint=f"name the column with `{expected}_column=`",
            )

        vector = chosen(self.vector_column, _VECTORS, lambda value: _vector(value, self.width) is not None, "vector")
        if self.texts is not None:
            return None, vector
        return chosen(self.text_column, _TEXTS, lambda value: isinstance(value, str), "text"), vector

    def _database(self) -> ForeignVectors:
        """Reads an index, or the only table with a text and a vector."""
        check_regular(self.path, self.path.stat().st_mode)
        with self.path.open("rb") as file:
            header = file.read(_HEADER)
        if header[_APPLICATION_AT : _APPLICATION_AT + 4] == _INDEX:
            return self._index()
        with closing(connect_read_only(self.path)) as database:
            names = [name for (name,) in database.execute("SELECT name FROM sqlite_master WHERE type = 'table'")]
            fitting, is_unclear = list[str](), False
            for name in names:
                with suppress(sqlite3.Error):  # a virtual table whose extension is missing
                    try:
                        fitting += [name for _, values in self._table(database, name, 1) if self._columns(values)]
                    except MlxbertError:
                        is_unclear = True
            if len(fitting) != 1:
                several = f"the tables {', '.join(fitting)} have" if fitting else "no table has"
                raise InputError(
                    f"{self.path}: {several} both texts and vectors (tables of the file: {', '.join(names) or 'none'})",
                    hint="name the columns with `text_column=` and `vector_column=`" if is_unclear or fitting else None,
                )
            about: dict[str, str] = {}
            with suppress(sqlite3.Error, ValueError):  # a file of `embed`
                about = dict(database.execute("SELECT name, value FROM about WHERE name = 'options'"))
            options = self._options(about)
            dtype = {"float32": "<f4", "int8": "|i1", "binary": "|i1"}.get(options.get("output_dtype", ""))
            texts, vectors = self._from_rows(self._table(database, fitting[0], -1), dtype)
            return ForeignVectors(str(self.path), texts, vectors, options)

    def _table(self, database: sqlite3.Connection, name: str, most: int) -> _Rows:
        """Yields the first rows of a table; all, if `most` is -1."""
        quoted = '"' + name.replace('"', '""') + '"'
        cursor = database.execute(f"SELECT * FROM {quoted} NOT INDEXED LIMIT {most}")
        names = [column[0] for column in cursor.description]
        for number, row in enumerate(cursor):
            yield f"{self.path}: row {number} of the table {name}", dict(zip(names, row, strict=True))

    def _index(self) -> ForeignVectors:
        """Reads the vectors of an index, and finds their texts: the parts of a chunk whose hashes the index has."""
        texts, rows, lost = list[str](), list[Any](), 0
        with closing(rooms.part("index files").open_store(self.path)) as store, store.reading():
            about = store.about
            if about.is_sparse:
                raise InputError(f"{self.path}: the index has sparse vectors, expected dense ones")
            chunks = (
                chunk
                for file in (*store.files(), "")
                for document in store.documents(file)
                for chunk in document.chunks
            )
            for chunk in chunks:
                stored = store.vectors(chunk.hashes)
                embedded = dict(_windows(chunk.titles, chunk.text, {*stored}))
                lost += len(stored) - len(embedded)
                texts += embedded.values()
                rows += [stored[hash] for hash in embedded]
        if not texts:
            raise InputError(f"{self.path}: the index has no vectors whose texts are known")
        note = f"{lost:,} vectors are left out, because the index does not store their texts as one piece"
        options = {"prompt": about.prompts[1], "dimensions": about.dimensions, "pooling": about.pooling}
        unit, notes = about.similarity == "cosine", (note,) if lost else ()
        return ForeignVectors(str(self.path), self.texts or texts, np.stack(rows), options, unit, notes)


def _dtype(value: Any, width: int) -> str:
    """Guesses the dtype of a vector in bytes: the first with which it has a usual length.

    Args:
        width: The size of the model's vectors; a vector of this size is likelier than others.
    """
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
    """Returns a value of a record as a vector; `None` for anything else."""
    if isinstance(value, bytes):
        dtype = dtype or _dtype(value, width)
        return np.frombuffer(value, dtype) if value and len(value) % np.dtype(dtype).itemsize == 0 else None
    with suppress(ValueError, TypeError, RecursionError, OverflowError):
        row = np.asarray(json.loads(value) if isinstance(value, str) else value, np.float64)
        return row if row.ndim == 1 and row.size > 1 else None
    return None


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
