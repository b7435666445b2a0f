"""Conditions on fields, `lang=de`, `path=docs/*`, `date>=2026-01-01`; their patterns, and their form in SQL."""

import fnmatch
import operator
import os
import re
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from mlxbert.errors import ArgumentError
from mlxbert.search.file_systems import composed

# `fnmatch` scans the rest of the pattern for each bracket that is not closed, and takes the `^` of `[^a]` for a member.
_BRACKET = re.compile(r"\[(?:([!^]?)(\]?[^]]*+\]))?")


class Glob:
    """A pattern, which must match a whole text, in upper and lower case as they stand.

    Even with a hostile pattern, the time of a match grows with the product of the lengths of pattern and text at most.

    `*` matches any characters, and `?` one character. `[abc]` and `[a-c]` match one character of a set, `[^a]` and
    `[!a]` one character that is not in the set. An unclosed bracket matches itself.
    """

    def __init__(self, pattern: str) -> None:
        spelled = _BRACKET.sub(lambda found: f"[{found[1] and '!'}{found[2]}" if found[2] else "[[]", pattern)
        self._expression = re.compile(fnmatch.translate(spelled))

    def matches(self, text: str) -> bool:
        return self._expression.match(text) is not None


_COMPARE = {"<": operator.lt, "<=": operator.le, ">": operator.gt, ">=": operator.ge}
_COMPARISONS = (*_COMPARE, "!=")
DOCUMENT_FIELDS = ("path", "place", "title")  # the fields of every document
_DATE = re.compile(r"\d{4}-\d\d")
_CONDITION = re.compile(r"(?P<field>[^=<>!]+)(?P<compare>!=|>=|<=|=|>|<)(?P<value>.*)", re.DOTALL)

_MAX_VALUES, _MAX_CHARACTERS = 8000, 10_000  # maximum number of conditions or paths; maximum characters of a condition
_MAX_TOTAL = 200_000  # maximum characters of all conditions, whose patterns are compiled


@dataclass(frozen=True)
class Condition:
    """A condition on a field of a document."""

    field: str  # `path`, `place`, `title`, or one of the document's own fields
    # `=` and `!=` take a pattern with `*`, `?` and `[…]`; `<`, `<=`, `>`, `>=` compare as numbers if both values are
    # numbers, otherwise as text (for example, dates).
    compare: str
    value: str  # the pattern or the value

    @property
    def patterns(self) -> list[str]:
        """The patterns of `=` and `!=`; one of them must match.

        A relative path may be the end of a path, and the value of a field may be one of a list with commas.
        """
        if self.field not in DOCUMENT_FIELDS:
            return [self.value, f"{self.value}, *", f"*, {self.value}", f"*, {self.value}, *"]
        if self.field == "path" and self.value.startswith("~/"):
            return [_literal(os.path.expanduser("~")) + self.value[1:]]
        is_relative = self.field == "path" and not self.value.startswith("/")
        return [self.value, *([f"*/{self.value}"] if is_relative else [])]

    def holds(self, actual: Any) -> bool:
        """Whether a value satisfies a comparison with `<`, `<=`, `>` or `>=`; see `matches` for the others."""
        if actual is None:
            return False
        compare: Callable[[Any, Any], bool] = _COMPARE[self.compare]
        expected, number = _comparable(self.value), _comparable(actual)
        if isinstance(expected, float) and isinstance(number, float):
            return compare(number, expected)
        if isinstance(expected, float) and not _DATE.match(str(actual)):
            return False  # "unknown" is not greater than 10, but 2026-02-01 is later than 2026
        return compare(composed(str(actual)), composed(self.value))


@dataclass(frozen=True)
class Filter:
    """Selects the chunks of documents for which all conditions hold."""

    where: tuple[Condition, ...] = ()
    under: tuple[str, ...] = ()  # absolute paths of files and folders to search in; empty for everything

    @property
    def fields(self) -> set[str]:
        return {condition.field for condition in self.where}

    def __bool__(self) -> bool:
        return bool(self.where or self.under)


def as_list(values: str | Path | Sequence[Any]) -> Sequence[Any]:
    """Returns values as a list; a single value becomes a list of one."""
    return [values] if isinstance(values, str | Path) else values


def as_paths(values: str | Path | Sequence[str | Path]) -> Sequence[str | Path]:
    """Returns paths as a list, even a single path. Raises ArgumentError for a path that no file can have."""
    paths = as_list(values)
    if not isinstance(paths, Sequence):
        raise ArgumentError(f"`paths` is {paths!r:.60}, expected the names of files and folders")
    for path in paths:
        if not isinstance(path, str | os.PathLike):
            raise ArgumentError(f"a path is {path!r:.60}, expected the name of a file or folder")
        try:
            os.fsencode(path)
        except UnicodeEncodeError:
            raise ArgumentError(
                f"a path is {str(path)!a:.200}, which has half of a surrogate pair, expected whole characters"
            ) from None
    return paths


def make_filter(where: Mapping[str, Any] | Sequence[str], paths: str | Path | Sequence[str | Path] = ()) -> Filter:
    """Makes a filter from conditions: `["lang=de", "date>=2026-01-01"]`, or `{"lang": "de"}` for equality."""
    if isinstance(where, str):
        hint = f"give a list: `where={[where]!r:.80}`"
        raise ArgumentError(f"`where` is {where!r:.60}, expected a list of conditions or a dict", hint=hint)
    paths = as_list(paths)
    for name, values in (("where", where), ("paths", paths)):
        if len(values) > _MAX_VALUES:
            raise ArgumentError(f"`{name}` has {len(values):,} values, expected at most {_MAX_VALUES:,}")
    if isinstance(where, Mapping):
        for field, value in where.items():
            if isinstance(value, str) and value.startswith(_COMPARISONS):
                message = f"`where` has {value!r:.60} for {field!r:.60}, but a dict only tests for equality"
                raise ArgumentError(message, hint=f"give a list of conditions: `where={[f'{field}{value}']!r:.80}`")
        conditions = [Condition(str(field), "=", _literal(value)) for field, value in where.items()]
    else:
        conditions = [_parse(condition) for condition in where]
    lengths = [len(condition.field) + len(condition.value) for condition in conditions]
    for what, length, limit in (
        ("a condition of", max(lengths, default=0), _MAX_CHARACTERS),
        ("conditions with a total of", sum(lengths), _MAX_TOTAL),
    ):
        if length > limit:
            raise ArgumentError(f"`where` has {what} {length:,} characters, expected at most {limit:,}")
    return Filter(tuple(conditions), tuple(os.path.abspath(path) for path in paths))


def encoded(text: str) -> bytes:
    """Encodes a text like a stored file name. If no file name can contain the text, the result matches no file."""
    try:
        return os.fsencode(text)
    except UnicodeEncodeError:
        return text.encode("utf-8", "backslashreplace")


def matches(where: Sequence[Condition], values: Mapping[str, Any], globs: dict[str, Glob]) -> bool:
    """Whether the values of a document satisfy all conditions.

    Args:
        values: The values of the document by field, also those of `DOCUMENT_FIELDS`.
        globs: The compiled patterns, to which new ones are added.
    """
    for condition in where:
        actual = values.get(condition.field)
        actual = str(actual).lower() if isinstance(actual, bool) else actual
        if condition.compare not in ("=", "!="):
            if not replace(condition, value=os.fsdecode(encoded(condition.value))).holds(actual):
                return False
            continue
        text = composed("" if actual is None else str(actual))
        for pattern in condition.patterns:
            if pattern not in globs:
                globs[pattern] = Glob(composed(os.fsdecode(encoded(pattern))))
        if any(globs[pattern].matches(text) for pattern in condition.patterns) != (condition.compare == "="):
            return False
    return True


def _parse(condition: str) -> Condition:
    parts = _CONDITION.fullmatch(condition) if isinstance(condition, str) else None
    if parts is None:
        raise ArgumentError(
            f"`where` is {condition!r:.60}, expected FIELD=PATTERN or FIELD>=VALUE",
            hint="quote conditions in the shell, as in 'date>=2026-01-01'",
        )
    field, compare, value = (part.strip() for part in parts.groups())
    if compare == "=" and value[:1] in ("<", ">"):
        meant = f"{field}{value[0]}={value[1:]}"
        raise ArgumentError(
            f"`where` is {condition!r:.60}, expected =, !=, <, <=, > or >=", hint=f"write {meant!r:.60}"
        )
    return Condition(field, compare, value)


def _literal(value: Any) -> str:
    text = "" if value is None else str(value).lower() if isinstance(value, bool) else str(value)
    return re.sub(r"[*?\[]", r"[\g<0>]", text)


def _comparable(value: Any) -> float | str:
    with suppress(ValueError, TypeError):
        number = float(value)
        return number if number == number else str(value)
    return str(value)


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
