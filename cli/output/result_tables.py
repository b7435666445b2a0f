"""The .csv and .sqlite outputs: a table with a row for each input.

The columns are the fields of the records, or those that are kept, the fields of the results, and `error`, which says
why an input failed.
A list, such as the labels or the entities of a text, is stored as JSON in one cell.
"""

import csv
import errno
import json
import sqlite3
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import closing
from pathlib import Path
from types import SimpleNamespace
from typing import IO, Any

from mlxbert.cli.output.formats import OutputFormat, utf8
from mlxbert.errors import ArgumentError
from mlxbert.lazy_numpy import np
from mlxbert.results.json import to_json

_SQLITE_LIMIT = 2**63  # SQLite's integers are smaller
_IN_ROWS = ("text", "pair", "a", "b", "question", "index")  # fields of results that repeat the rows of the input


class _Table(OutputFormat):
    """A format for tables. Parts are stored as JSON lines, because the columns are known only at the end."""

    part_ending = ".jsonl"

    def write_part(self, file: IO[bytes], results: Sequence[Any], kept: Sequence[Mapping[str, Any]]) -> None:
        """Writes a row for each result; the most probable label of a text has its own columns."""
        left_out = {"unknown_tokens", *(_IN_ROWS if self.whole_rows else ())}  # most texts have no unknown tokens
        for result, values in zip(results, kept, strict=True):
            added = {name: value for name, value in result.to_dict().items() if name not in left_out}
            if labels := getattr(result, "labels", ()):
                added |= {"top_label": labels[0].label, "top_score": labels[0].score}
            names = Counter(map(str.lower, [*values, *{*added, "error"}]))  # SQLite ignores the case of names
            if clashes := [name for name in values if names[name.lower()] > 1]:
                raise ArgumentError(
                    f"the input already has a column {clashes[0]!r}, which the output would replace"
                    if self.whole_rows
                    else f"--keep {clashes[0]}: the output already has a column with this name",
                    hint="rename the column, or choose the columns to copy with --keep",
                )
            file.write(to_json({**values, **added}).encode() + b"\n")


def _table(parts: Iterable[Path]) -> tuple[list[str], Iterator[list[Any]]]:
    """Returns the columns of all parts and an iterator over their rows; the parts are read twice."""

    def rows() -> Iterator[dict[str, Any]]:
        for path in parts:
            with path.open("rb") as part:
                yield from map(json.loads, part)

    names = dict.fromkeys(name for row in rows() if "error" not in row for name in row) or next(rows(), {})
    columns = [*(name for name in names if name != "error"), "error"]
    return columns, ([row.get(name) for name in columns] for row in rows())


def _plain(value: Any) -> Any:
    return json.dumps(value, ensure_ascii=False) if isinstance(value, list | dict) else value


def write_csv(file: IO[bytes], columns: Sequence[str], rows: Iterable[Iterable[Any]]) -> None:
    """Writes a table as .csv (RFC 4180) in UTF-8. Lists and objects become JSON; a cell without a value is empty."""
    # Python before 3.11.9 and 3.12.3 quotes a lone carriage return only if it also ends the rows.
    lines = SimpleNamespace(write=lambda row: file.write(utf8(row.removesuffix("\r\n")) + b"\n"))
    writer = csv.writer(lines, lineterminator="\r\n")
    writer.writerow(columns)
    writer.writerows([str(cell).lower() if isinstance(cell, bool) else _plain(cell) for cell in row] for row in rows)


class Csv(_Table):
    """`.csv`. Vectors are stored as JSON."""

    ending = ".csv"

    def assemble(self, file: IO[bytes], parts: Iterable[Path], results: int) -> None:
        write_csv(file, *_table(parts))


class Sqlite(_Table):
    """`.sqlite`: a table named after the task, and a table `about` with the model and the options as names and values.

    A vector of D values is a BLOB of 4 · D bytes (float32, little-endian) or of D bytes (int8). A failure has NULL
    instead.
    """

    ending = ".sqlite"

    @classmethod
    def check(cls, path: Path) -> None:
        """Raises an error if the database has a journal, because SQLite would apply the journal to the new database."""
        for journal in (path.with_name(path.name + ending) for ending in ("-wal", "-journal")):
            if journal.exists():
                hint = f"close all programs that use the database, then remove {journal} if the file still exists"
                raise ArgumentError(
                    f"--output {path}: {journal.name} contains changes to the existing database", hint=hint
                )

    def assemble(self, file: IO[bytes], parts: Iterable[Path], results: int) -> None:
        """Writes the tables without a journal and without a sync, because `file` is new and the caller syncs it."""
        columns, rows = _table(parts)
        table, names = _quoted(self.metadata.get("task", "results").replace("-", "_")), map(_quoted, columns)
        places = ", ".join("?" * len(columns))
        try:
            with closing(sqlite3.connect(file.name)) as base, base:
                base.execute("PRAGMA journal_mode = OFF")
                base.execute("PRAGMA synchronous = OFF")
                base.execute(f"CREATE TABLE {table} ({', '.join(names)})")
                base.executemany(
                    f"INSERT INTO {table} VALUES ({places})", ([*map(self._cell, columns, r)] for r in rows)
                )
                base.execute("CREATE TABLE about (name, value)")
                base.executemany("INSERT INTO about VALUES (?, ?)", sorted(self.metadata.items()))
        except sqlite3.Error as problem:
            raise OSError(errno.EIO, f"SQLite: {problem}") from None

    def _cell(self, column: str, value: Any) -> Any:
        if column == "embedding" and isinstance(value, list) and self._width is not None:
            return np.array(value, self.dtype).tobytes()
        value = _plain(value)
        large = isinstance(value, int) and not -_SQLITE_LIMIT <= value < _SQLITE_LIMIT
        return utf8(str(value)).decode() if large or isinstance(value, str) else value


def _quoted(name: str) -> str:
    return '"' + utf8(name).decode().replace('"', '""') + '"'
