"""Results as the rows of a table, one for each input: the .csv and .sqlite outputs. D is the width of a vector.

Columns are what is kept of the records, the fields of the results, and `error`, which says why an input failed. A list,
such as the labels or the entities of a text, is JSON in one cell.
"""

import codecs
import csv
import errno
import json
import sqlite3
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import closing
from pathlib import Path
from typing import IO, Any

from mlxbert.cli.output.output_format import OutputFormat, utf8
from mlxbert.cli.views.json_lines import merged
from mlxbert.errors import ArgumentError
from mlxbert.results.json import to_json
from mlxbert.results.result import Failure

_MOST = 2**63  # whole numbers of SQLite are smaller


class _Table(OutputFormat):
    """A part is lines of JSON: which columns there are is known at the end."""

    part_ending = ".jsonl"

    def write_part(self, file: IO[bytes], results: Sequence[Any], kept: Sequence[Mapping[str, Any]]) -> None:
        """A row for each result, with the most probable label of a text in columns of its own."""
        for result, values in zip(results, kept, strict=True):
            row = merged(result, values)
            row.pop("unknown_tokens", None)  # which most texts do not have
            labels = getattr(result, "labels", ())
            top = {"top_label": labels[0].label, "top_score": labels[0].score} if labels else {}
            # SQLite does not tell names apart by case.
            names = [name.lower() for name in (*row, *top, *([] if isinstance(result, Failure) else ["error"]))]
            if twice := [name for name in values if names.count(name.lower()) > 1]:
                raise ArgumentError(f"--keep {twice[0]}: the output has a column of this name")
            file.write(to_json(row | top).encode() + b"\n")


def _table(parts: Iterable[Path]) -> tuple[list[str], Iterator[list[Any]]]:
    """The columns and the rows of all parts, which are read twice."""

    def rows() -> Iterator[dict[str, Any]]:
        for path in parts:
            with path.open("rb") as part:
                yield from map(json.loads, part)

    names = dict.fromkeys(name for row in rows() if "error" not in row for name in row) or next(rows(), {})
    columns = [*(name for name in names if name != "error"), "error"]
    return columns, ([row.get(name) for name in columns] for row in rows())


def _plain(value: Any) -> Any:
    """A value as a table has it: a list or an object as JSON."""
    return json.dumps(value, ensure_ascii=False) if isinstance(value, list | dict) else value


class Csv(_Table):
    """`.csv` (RFC 4180), UTF-8: vectors as JSON; a cell without a value is empty."""

    ending = ".csv"

    def assemble(self, file: IO[bytes], parts: Iterable[Path], results: int) -> None:
        """The header and the rows; texts are quoted, as they may hold a carriage return."""
        columns, rows = _table(parts)
        text = codecs.getwriter("utf-8")(file, "backslashreplace")
        writer = csv.writer(text, lineterminator="\n", quoting=csv.QUOTE_NONNUMERIC)
        writer.writerow(columns)
        writer.writerows(
            [str(value).lower() if isinstance(value, bool) else _plain(value) for value in r] for r in rows
        )


class Sqlite(_Table):
    """`.sqlite`: a table named after the task, and a table `about` of names and values: the model and the options.

    A vector is a BLOB of 4 · D bytes, float32 little-endian, or of D bytes, int8; a failure has NULL.
    """

    ending = ".sqlite"

    @classmethod
    def check(cls, path: Path) -> None:
        """Refuses a database that has a journal: SQLite would take what is there for changes of the new one."""
        for journal in (path.with_name(path.name + ending) for ending in ("-wal", "-journal")):
            if journal.exists():
                hint = f"close the programs that use the database; if there are none, remove {journal}"
                raise ArgumentError(f"--output {path}: {journal.name} has changes of the database there", hint=hint)

    def assemble(self, file: IO[bytes], parts: Iterable[Path], results: int) -> None:
        """The tables; `file` is new and stays in its place, so nothing needs to be undone or forced to disk here."""
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
            import numpy as np

            return np.array(value, self.dtype).tobytes()
        value = _plain(value)
        large = isinstance(value, int) and not -_MOST <= value < _MOST
        return utf8(str(value)).decode() if large or isinstance(value, str) else value


class Db(Sqlite):
    """`.db`: the same by another name."""

    ending = ".db"


def _quoted(name: str) -> str:
    """A name as SQL has it."""
    return '"' + utf8(name).decode().replace('"', '""') + '"'
