"""Converts filters to SQL conditions on the tables of an index."""

import os
from collections.abc import Sequence
from typing import Any

from mlxbert.search.file_systems import composed
from mlxbert.search.filters import DOCUMENT_FIELDS, Condition, Filter, encoded
from mlxbert.search.globs import Glob

# The fields of every document, with their columns.
COLUMNS = dict(zip(DOCUMENT_FIELDS, ("files.path", "documents.place", "documents.title"), strict=True))
_FIELD = (
    "(SELECT CASE type WHEN 'true' THEN 'true' WHEN 'false' THEN 'false' ELSE value END FROM json_each(fields) "
    "WHERE key = CAST(? AS TEXT))"
)


def sql_of(only: Filter) -> tuple[str, list[Any]]:
    """Converts a filter to an SQL condition on `documents` and `files`, and to the values of its parameters."""
    parts, values = [], []
    for condition in only.where:
        sql, new_values = _compared(condition)
        parts.append(sql)
        values += new_values
    if only.under:
        below = []
        for path in map(os.fsencode, only.under):
            start = path.rstrip(b"/") + b"/"
            below.append("files.path = ? OR (files.path >= ? AND files.path < ?)")
            values += [path, start, start[:-1] + b"0"]  # the byte after "/"
        parts.append(nested("OR", below))
    return nested("AND", parts) if parts else "1", values


def nested(word: str, parts: Sequence[str]) -> str:
    """Joins conditions with AND or OR, in nested groups: SQLite limits the depth of an expression to 1000."""
    while len(parts) > 1:
        parts = [f"({f' {word} '.join(parts[start : start + 50])})" for start in range(0, len(parts), 50)]
    return f"({parts[0]})"


def _compared(condition: Condition) -> tuple[str, list[Any]]:
    column, field = COLUMNS.get(condition.field), encoded(condition.field)
    sql, names = (column, []) if column else (_FIELD, [field])
    if condition.compare not in ("=", "!="):
        return f"holds({sql}, ?, ?)", [*names, condition.compare, encoded(condition.value)]
    negation = " NOT" if condition.compare == "!=" else ""
    patterns = condition.patterns
    alternatives = " OR ".join(f"matches(ifnull(CAST({sql} AS BLOB), ''), ?)" for _ in patterns)
    return f"{negation} ({alternatives})", [value for pattern in patterns for value in (*names, encoded(pattern))]


class Patterns:
    """The SQL function for conditions with `=` and `!=`. It gets texts and patterns as bytes."""

    def __init__(self) -> None:
        self._globs: dict[bytes, Glob] = {}

    def forget(self) -> None:
        """Removes the compiled patterns of the last filter."""
        self._globs.clear()

    def matches(self, text: bytes | str, pattern: bytes) -> bool:
        """Whether a text, in either Unicode form, matches a pattern."""
        if (glob := self._globs.get(pattern)) is None:
            glob = self._globs[pattern] = Glob(composed(os.fsdecode(pattern)))
        return glob.matches(composed(os.fsdecode(text)))


def holds(actual: Any, compare: str, value: bytes) -> bool:
    """The SQL function for conditions with `<` and `>`: like `Condition.holds`, but with the value in bytes."""
    actual = os.fsdecode(actual) if isinstance(actual, bytes) else actual
    return Condition("", compare, os.fsdecode(value)).holds(actual)
