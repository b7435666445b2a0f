"""Conditions on fields: `lang=de`, `path=docs/*`, `date>=2026-01-01`."""

import operator
import os
import re
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from mlxbert.errors import ArgumentError
from mlxbert.search.file_systems import composed

_COMPARE = {"<": operator.lt, "<=": operator.le, ">": operator.gt, ">=": operator.ge}
_COMPARISONS = (*_COMPARE, "!=")
_DATE = re.compile(r"\d{4}-\d\d")
_CONDITION = re.compile(r"(?P<field>[^=<>!]+)(?P<compare>!=|>=|<=|=|>|<)(?P<value>.*)", re.DOTALL)

_MOST, _LONGEST = 8000, 10_000  # conditions, or paths; characters of a condition
_LONGEST_OF_ALL = 200_000  # characters of all conditions: patterns are compiled


@dataclass(frozen=True)
class Condition:
    """What a field of a document has to be.

    Attributes:
        field: `path`, `place`, `title`, or one of the document's own fields.
        compare: `=` and `!=` take a pattern with `*`, `?` and `[…]`; `<`, `<=`, `>`, `>=` compare numbers if both
            are, and texts otherwise, dates among them.
        value: The pattern or the value.
    """

    field: str
    compare: str
    value: str

    def holds(self, found: Any) -> bool:
        """Whether a value of a field is as asked for, for the comparisons; patterns are for the store."""
        if found is None:
            return False
        compare: Callable[[Any, Any], bool] = _COMPARE[self.compare]
        mine, other = _comparable(self.value), _comparable(found)
        if isinstance(mine, float) and isinstance(other, float):
            return compare(other, mine)
        if isinstance(mine, float) and not _DATE.match(str(found)):
            return False  # "unknown" is not more than 10, but 2026-02-01 is later than 2026
        return compare(composed(str(found)), composed(self.value))


@dataclass(frozen=True)
class Filter:
    """Which chunks count: those of documents for which all conditions hold.

    Attributes:
        where: The conditions.
        under: Files and folders, absolute: only what lies under one of them counts; empty for everything.
    """

    where: tuple[Condition, ...] = ()
    under: tuple[str, ...] = ()

    @property
    def fields(self) -> set[str]:
        """The fields that the conditions are about."""
        return {condition.field for condition in self.where}

    def __bool__(self) -> bool:
        return bool(self.where or self.under)


def as_list(given: str | Path | Sequence[Any]) -> Sequence[Any]:
    """Values, of which one may stand without a list."""
    return [given] if isinstance(given, str | Path) else given


def as_paths(given: str | Path | Sequence[str | Path]) -> Sequence[str | Path]:
    """Paths, of which one may stand without a list."""
    paths = as_list(given)
    for path in paths:
        try:
            os.fsencode(path)
        except UnicodeEncodeError:
            raise ArgumentError(f"path is {str(path)!a:.200}, with half of a surrogate pair that no file has") from None
    return paths


def make_filter(where: Mapping[str, Any] | Sequence[str], paths: str | Path | Sequence[str | Path] = ()) -> Filter:
    """The filter of conditions: `["lang=de", "date>=2026-01-01"]`, or `{"lang": "de"}` for equality."""
    if isinstance(where, str):
        raise ArgumentError(f"where is {where!r:.60}, expected a list of conditions or a dict")
    paths = as_list(paths)
    for name, given in (("where", where), ("paths", paths)):
        if len(given) > _MOST:
            raise ArgumentError(f"{name} has {len(given):,} values, expected at most {_MOST:,}")
    if isinstance(where, Mapping):
        for field, value in where.items():
            if isinstance(value, str) and value.startswith(_COMPARISONS):
                said = f"where has {field!r:.60}: {value!r:.60}, but a dict has values to be equal"
                raise ArgumentError(said, hint=f"give a list of conditions: where={[f'{field}{value}']!r:.80}")
        found = [Condition(str(field), "=", _literal(value)) for field, value in where.items()]
    else:
        found = [_read(condition) for condition in where]
    lengths = [len(one.field) + len(one.value) for one in found]
    for what, length, most in (
        ("a condition", max(lengths, default=0), _LONGEST), ("conditions", sum(lengths), _LONGEST_OF_ALL)
    ):  # fmt: skip
        if length > most:
            raise ArgumentError(f"where has {what} of {length:,} characters, expected at most {most:,}")
    return Filter(tuple(found), tuple(os.path.abspath(path) for path in paths))


def _read(condition: str) -> Condition:
    parts = _CONDITION.fullmatch(condition) if isinstance(condition, str) else None
    if parts is None:
        raise ArgumentError(
            f"where is {condition!r:.60}, expected FIELD=PATTERN or FIELD>=VALUE",
            hint="quote it, for the shell: 'date>=2026-01-01'",
        )
    return Condition(parts["field"].strip(), parts["compare"], parts["value"].strip())


def _literal(value: Any) -> str:
    """A value as a pattern that fits it alone."""
    text = "" if value is None else str(value).lower() if isinstance(value, bool) else str(value)
    return re.sub(r"[*?\[]", r"[\g<0>]", text)


def _comparable(value: Any) -> float | str:
    with suppress(ValueError, TypeError):
        number = float(value)
        return number if number == number else str(value)
    return str(value)
