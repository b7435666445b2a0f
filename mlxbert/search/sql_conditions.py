"""Filters in SQL, on the tables of an index."""

import os
from collections.abc import Sequence
from typing import Any

from mlxbert.search.file_systems import composed
from mlxbert.search.filters import Condition, Filter
from mlxbert.search.globs import Glob

# What every document can be filtered by.
OWN = {"path": "files.path", "place": "documents.place", "title": "documents.title"}
_FIELD = (
    "(SELECT CASE type WHEN 'true' THEN 'true' WHEN 'false' THEN 'false' ELSE value END FROM json_each(fields) "
    "WHERE key = CAST(? AS TEXT))"
)


def sql_of(only: Filter) -> tuple[str, list[Any]]:
    """A filter in SQL, on `documents` and `files`, and the values in it."""
    parts, values = [], []
    for condition in only.where:
        value, found = _compared(condition)
        parts.append(value)
        values += found
    if only.under:
        below = []
        for path in map(os.fsencode, only.under):
            start = path.rstrip(b"/") + b"/"
            below.append("files.path = ? OR (files.path >= ? AND files.path < ?)")
            values += [path, start, start[:-1] + b"0"]  # the byte after "/"
        parts.append(_nested("OR", below))
    return _nested("AND", parts) if parts else "1", values


def _nested(word: str, parts: Sequence[str]) -> str:
    """Conditions joined by a word, in brackets: SQLite takes none that are more than 1000 deep."""
    while len(parts) > 1:
        parts = [f"({f' {word} '.join(parts[at : at + 50])})" for at in range(0, len(parts), 50)]
    return f"({parts[0]})"


def _compared(condition: Condition) -> tuple[str, list[Any]]:
    own, field = OWN.get(condition.field), _encoded(condition.field)
    value, names = (own, []) if own else (_FIELD, [field])
    if condition.compare not in ("=", "!="):
        return f"holds({value}, ?, ?)", [*names, condition.compare, _encoded(condition.value)]
    unlike = " NOT" if condition.compare == "!=" else ""
    patterns = [condition.value]
    if condition.field == "path" and not condition.value.startswith("/"):
        patterns.append(f"*/{condition.value}")
    asked = " OR ".join(f"matches(ifnull(CAST({value} AS BLOB), ''), ?)" for _ in patterns)
    return f"{unlike} ({asked})", [one for pattern in patterns for one in (*names, _encoded(pattern))]


def _encoded(text: str) -> bytes:
    """A text as it is stored: as names of files are; what no text can have is found nowhere."""
    try:
        return os.fsencode(text)
    except UnicodeEncodeError:
        return text.encode("utf-8", "backslashreplace")


class Patterns:
    """The function of SQL that conditions with `=` and `!=` call; what is compared, and with what, is in bytes."""

    def __init__(self) -> None:
        self._known: dict[bytes, Glob] = {}

    def forget(self) -> None:
        """Forgets the patterns of the last filter."""
        self._known.clear()

    def matches(self, found: bytes | str, pattern: bytes) -> bool:
        """Whether a text, in either Unicode form, is as a pattern says."""
        if (glob := self._known.get(pattern)) is None:
            glob = self._known[pattern] = Glob(composed(os.fsdecode(pattern)))
        return glob.matches(composed(os.fsdecode(found)))


def holds(found: Any, compare: str, value: bytes) -> bool:
    """`Condition.holds` as the function of SQL that conditions with `<` and `>` call; a value is in bytes."""
    found = os.fsdecode(found) if isinstance(found, bytes) else found
    return Condition("", compare, os.fsdecode(value)).holds(found)
