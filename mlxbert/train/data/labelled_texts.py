"""Reads labelled texts from rows, and checks their labels: classes, sets of classes, or numbers."""

import logging
import math
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypeVar

from mlxbert.durable_files import from_json
from mlxbert.errors import INTEGER_LIMIT, InputError, shown
from mlxbert.option_declarations import Bounds
from mlxbert.readers.parsing import json_type
from mlxbert.readers.stream import Record
from mlxbert.train.data.columns import ColumnNames

_LOG = logging.getLogger("mlxbert")
_TARGETS = Bounds(-1e15, 1e15)  # targets of regression: the square fits a float32
SEPARATORS = (",", ";", "|")
_INTEGER = re.compile(r"(-?\d+)(\.0*)?")
_NO_LABEL = "give data with labels, or choose their column with `label_column=`"
T = TypeVar("T")
Label = str | tuple[str, ...] | float


@dataclass(frozen=True, slots=True)
class LabelledText:
    """A text or a pair of texts, with the label that a model should predict."""

    text: str
    pair: str | None  # the second text
    label: Label  # the class, the classes, or the number to predict
    place: str  # where the record begins: `train.csv, line 17`

    @property
    def key(self) -> tuple[str, str | None]:
        """Identifies the input: examples with equal keys have the same input."""
        return self.text, self.pair

    @property
    def names(self) -> tuple[str, ...]:
        """The classes; empty if the label is a number."""
        if isinstance(self.label, str):
            return (self.label,)
        return self.label if isinstance(self.label, tuple) else ()


def read_labelled(rows: Sequence[Record], columns: ColumnNames, kind: str) -> list[LabelledText]:
    """Reads the texts and labels of rows.

    The name of a class is a string without the whitespace around it, or a number. An integer has the same name however
    it is stored: `1`, `1.0` and `"1"` are all "1". Strings that spell the same integer in two ways ("1" and "1.0") are
    rejected, as they might be two classes. The names of `true` and `false` are "true" and "false". Rows without a label
    are left out (see `labelled_rows`).

    Args:
        kind: The kind of labels. `class`: one class. `classes`: a list of classes, or a string of names
            separated by commas (by `;` or `|` if no value contains a comma); either may be empty. `number`: a
            number.
    """
    assert columns.label is not None
    rows, column = labelled_rows(rows, columns.label, empty=kind == "classes"), columns.label
    read = _reader(rows, column, kind)

    def example(row: Record) -> LabelledText:
        text = get_text(row.values, columns.text)
        pair = None if columns.pair is None else get_text(row.values, columns.pair)
        return LabelledText(text, pair, read(get_value(row.values, column)), row.where)

    return read_each(rows, example)


def labelled_rows(rows: Sequence[Record], column: str, *, empty: bool = False) -> Sequence[Record]:
    """Leaves out the rows without a label, and logs how many there are; if no row has one, returns all of them.

    A label is missing if it is null, NaN (of pandas) or blank; `empty` says whether a blank text is a label.
    """
    labels = [plain(row.values.get(column)) for row in rows]
    missing = [
        (not label.strip() and not empty) if isinstance(label, str) else label is None or _is_nan(label)
        for label in labels
    ]
    if not any(missing) or all(missing):
        return rows
    count, first = f"{sum(missing):,} of {len(rows):,} rows", rows[missing.index(True)].where
    _LOG.warning("%s have no %r and are left out (the first is %s)", count, column, first)
    return [row for row, left_out in zip(rows, missing, strict=True) if not left_out]


def _is_nan(label: Any) -> bool:
    """Whether a label is NaN, or `pandas.NA`, which is equal to nothing and neither true nor false."""
    try:
        return bool(label != label)
    except TypeError:
        return True


def read_each(rows: Iterable[Record], read: Callable[[Record], T]) -> list[T]:
    """Reads each row. If rows are invalid, raises the error of the first one, which also says how many others are."""
    values: list[T] = []
    problems: list[InputError] = []
    for row in rows:
        try:
            values.append(read(row))
        except InputError as problem:
            problems.append(InputError(f"{row.where}: {problem.message}", hint=problem.hint))
    if not problems:
        return values
    first, more = problems[0], len(problems) - 1
    if not more:
        raise first
    counted = "1 more record has an error" if more == 1 else f"{more} more records have errors"
    raise InputError(f"{first.message}; {counted}", hint=first.hint)


def get_value(values: Mapping[str, Any], column: str) -> Any:
    """Returns the value of a column; raises InputError if it is missing."""
    if column not in values:
        raise InputError(f"the record has no field {column!r} (fields: {', '.join(values) or 'none'})")
    return values[column]


def get_text(values: Mapping[str, Any], column: str) -> str:
    """Returns the text of a column; raises InputError if it is missing or not a valid text."""
    return check_text(get_value(values, column), column)


def check_text(text: object, column: str) -> str:
    """Returns the text; raises InputError if the value is not a string, is empty, or has half of a surrogate pair."""
    if not isinstance(text, str):
        raise InputError(f"{column!r} is {json_type(text)}, expected a text")
    if not text or text.isspace():
        raise InputError(f"{column!r} is empty, expected a text")
    check_letters(text, column)
    return text


def check_letters(text: str, column: str) -> None:
    """Raises InputError if a text contains half of a surrogate pair."""
    if not text.isascii():
        try:
            text.encode()
        except UnicodeEncodeError:
            raise InputError(f"{column!r} contains half of a surrogate pair, which is not a character") from None


def _reader(rows: Sequence[Record], column: str, kind: str) -> Callable[[Any], Label]:
    if kind == "number":
        return lambda value: to_number(plain(value), column)
    names: dict[str, str] = {}  # one string object per class, however many rows
    numbers: dict[str, str] = {}

    def name(value: Any) -> str:
        label = _name(value, column)
        if label not in names:
            integer = _INTEGER.fullmatch(label)
            spelling = label if integer is None else numbers.setdefault(integer[1], label)
            if spelling != label:
                raise InputError(
                    f"{column!r} is {label!r}, but an earlier record writes the same number as {spelling!r}",
                    hint="write equal numbers in the same way, or give different classes names with letters",
                )
        return names.setdefault(label, label)

    if kind == "class":
        return lambda value: name(plain(value))
    separator = _separator(row.values.get(column) for row in rows)
    return lambda value: tuple(dict.fromkeys(name(part) for part in _parts(plain(value), column, separator)))


def plain(value: Any) -> Any:
    """Converts NumPy scalars and arrays to Python values."""
    return value.tolist() if hasattr(value, "tolist") else value


def _name(value: Any, column: str) -> str:
    """Converts a label to the name of its class; raises InputError if it cannot be one."""
    if isinstance(value, str):
        name = value.strip()
        if not name:
            raise InputError(f"{column!r} is empty, expected a label", hint=_NO_LABEL)
        check_letters(name, column)
        return name
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, int) and abs(value) < INTEGER_LIMIT:
        return str(value)
    if isinstance(value, float) and math.isfinite(value):
        return str(int(value)) if value.is_integer() else repr(value)
    description = shown(value) if isinstance(value, float | int) else json_type(value)
    raise InputError(f"{column!r} is {description}, expected a label", hint=_NO_LABEL)


def _separator(values: Iterable[Any]) -> str:
    used = {mark for value in values if isinstance(value, str) for mark in SEPARATORS if mark in value}
    return next((mark for mark in SEPARATORS if mark in used), SEPARATORS[0])


def _parts(value: Any, column: str, separator: str) -> Sequence[Any]:
    if isinstance(value, list | tuple):
        return value
    if not isinstance(value, str):
        return [value]
    value = value.strip()
    if value.startswith("[") and value.endswith("]"):
        try:
            return list(from_json(value))
        except ValueError:
            raise InputError(
                f"{column!r} is {value!r:.60}, which looks like a list, but is not valid JSON",
                hint='write the labels as ["a", "b"], or separate the labels by commas',
            ) from None
    return value.split(separator) if value else []


def to_number(value: Any, column: str) -> float:
    """Converts a number, or a string that spells one, to a finite number; raises InputError for other values."""
    try:
        if isinstance(value, bool) or not isinstance(value, str | int | float):
            raise ValueError
        if isinstance(value, str) and "_" in value:
            raise ValueError
        number = float(value)
    except (ValueError, OverflowError):
        description = shown(value) if isinstance(value, str | int) else json_type(value)
        comma = isinstance(value, str) and re.fullmatch(r"\s*-?\d+,\d+\s*", value)
        hint = "write decimals with a point: 3.5" if comma else None
        raise InputError(f"{column!r} is {description}, expected a number", hint=hint) from None
    if not math.isfinite(number):
        raise InputError(f"{column!r} is {value}, expected a finite number")
    low, high = _TARGETS
    if not low <= number <= high:
        raise InputError(f"{column!r} is {number:g}, expected a number from {low:g} to {high:g}")
    return number
