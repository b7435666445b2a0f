"""What lines of text files say: JSON objects, and rows of tables, each with the line in which it begins."""

import csv
import itertools
import json
from collections.abc import Iterator
from typing import Any

from mlxbert.data.lines import Lines, too_long
from mlxbert.data.live import LONGEST
from mlxbert.errors import InputError


def read_objects(lines: Lines) -> Iterator[tuple[int, dict[str, Any] | InputError]]:
    """The object of each line that is not blank, or why there is none; lines are counted from 1."""
    for number, line in enumerate(lines, 1):
        if (problem := lines.problem()) is not None or line.strip():
            yield number, problem or _object(line)


def _object(line: str) -> dict[str, Any] | InputError:
    try:
        record = json.loads(line)
    except json.JSONDecodeError as problem:  # its own words call every line the first one
        return InputError(f"not valid JSON ({problem.msg}, column {problem.colno})")
    except (ValueError, RecursionError) as problem:  # a number of thousands of digits, lists in lists
        return InputError(f"not valid JSON ({problem})")
    if not isinstance(record, dict):
        return InputError(f"expected a JSON object, found {json_type(record)}")
    return record


def json_type(value: object) -> str:
    """What JSON calls a value."""
    types = {type(None): "null", bool: "a boolean", int: "a number", float: "a number", str: "a string", list: "a list"}
    return types.get(type(value), "an object")


def read_table(
    lines: Lines, format: str, *, header: bool = True
) -> tuple[list[str], Iterator[tuple[int, list[str] | InputError]]]:
    """The header of a `csv` or `tsv`, and the rows below it, each with the line in which it begins, counted from 1.

    Every row has as many values as the header. Empty rows are left out. Without a header, columns are called 1, 2, …

    Raises:
        InputError: There is no header, or no row that says how many columns there are.
    """
    csv.field_size_limit(2**31 - 1)  # the default is 128 KB, less than a long article
    text = _RowLines(lines)
    # Quotes are data in .tsv files (IANA text/tab-separated-values), and enclose fields in .csv files (RFC 4180).
    is_csv = format == "csv"
    rows = csv.reader(text, strict=True) if is_csv else csv.reader(text, delimiter="\t", quoting=csv.QUOTE_NONE)
    called = "header" if header else "first row"
    try:
        first, damage = _first_row(rows, text, header=header)
    except csv.Error as problem:
        hint = "commas separate the columns of a .csv, and a quote inside quotes is written twice" if is_csv else None
        raise InputError(f"{lines.name}: the {called} is not valid {format} ({problem})", hint=hint) from None
    if first is None:
        raise InputError(f"{lines.name}: empty, expected a {called}")
    if damage is not None and (header or not first):
        raise InputError(f"{lines.name}, {damage.message}", hint=damage.hint)
    rest = _rows(rows, text, len(first), format, called)
    if header:
        return first, rest
    numbers = [str(number) for number in range(1, len(first) + 1)]
    return numbers, itertools.chain([(1, first if damage is None else damage)], rest)


class _RowLines:
    """The lines of a table with their newlines, which quoted fields may contain.

    Of a row that is too long only the quotation marks are kept that say where it ends.

    Attributes:
        lines: The lines.
    """

    def __init__(self, lines: Lines) -> None:
        self.lines = lines
        self.begin(1)

    def begin(self, number: int) -> None:
        """Says that the next line, of this number, is the first one of a row."""
        self._first, self._size = number, 0

    def __iter__(self) -> Iterator[str]:
        for line in self.lines:
            self._size += len(line) + 1
            if self._size > LONGEST:
                self.lines.refuse(too_long(f"line {self._first}", hint="is a quote missing in this line?"))
                yield '"' * (line.count('"') % 2)
            else:
                yield line + "\n"


def _first_row(rows: Any, text: _RowLines, *, header: bool) -> tuple[list[str] | None, InputError | None]:
    """The first row, of data the first that is not empty; and what is wrong with it."""
    for row in rows:
        text.begin(rows.line_num + 1)
        damage = text.lines.problem()
        if row or header or damage is not None:
            return row, damage
    return None, None


def _rows(
    rows: Any, text: _RowLines, columns: int, format: str, first: str
) -> Iterator[tuple[int, list[str] | InputError]]:
    lines = text.lines
    while True:
        start = rows.line_num + 1
        text.begin(start)
        try:
            row = next(rows)
        except StopIteration:
            return
        except csv.Error as problem:
            yield start, lines.problem() or _broken(start, rows.line_num, format, str(problem))
            continue
        if (damage := lines.problem()) is not None:
            yield start, damage
        elif row and len(row) != columns:
            yield start, InputError(f"{_counted(len(row))}, the {first} has {columns}")
        elif row:
            yield start, row


def _counted(columns: int) -> str:
    return "1 column" if columns == 1 else f"{columns} columns"


def _broken(first: int, last: int, format: str, problem: str) -> InputError:
    """The error of a row that is invalid, and that may have swallowed others."""
    if last == first:
        return InputError(f"not a row of {format} ({problem})")
    return InputError(
        f"not a row of {format} ({problem}); it reaches to line {last}, and all of these lines are skipped",
        hint=f"is a quote missing in line {first}? write a quote inside quotes twice",
    )


def separator_hint(header: list[str]) -> str | None:
    """What to do about a header that is separated by something else than its format says."""
    if len(header) == 1 and ";" in header[0]:
        return "columns are separated by semicolons: save it with commas, or as .tsv"
    return None
