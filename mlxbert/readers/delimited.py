"""Reads tables stored as text: .csv and .tsv."""

import csv
import logging
import re
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from itertools import chain, islice
from typing import Any

from mlxbert.errors import InputError
from mlxbert.readers.parsing import Item, ReadOptions, column_names, counted_columns, placed
from mlxbert.readers.pipes import LONGEST
from mlxbert.readers.text_lines import Lines, too_long

MAX_LINES = 1000  # that are examined, starting with the first line with a quotation mark
_QUOTED_FIELD = re.compile(r'"([^"]*+(?:""[^"]*+)*+)"|([^"\t\n]*+)')
_TO_BE_QUOTED = re.compile(r'["\t\n\r]')
_BARE = re.compile(r"[-+]?[0-9.]*(?:[eE][-+]?[0-9]+)?|NA|NaN|TRUE|FALSE|True|False")  # what R and pandas do not quote
_Field = tuple[str, bool]
# For each writer: whether it encloses a field with this content.
_WRITERS: tuple[Callable[[str], bool], ...] = (
    lambda field: _TO_BE_QUOTED.search(field) is not None,  # pandas, and Python's csv
    lambda field: _TO_BE_QUOTED.search(field) is not None or "," in field,  # Excel
)


def encloses(lines: Sequence[str], columns: int, *, commas: bool, ends: bool) -> bool:
    """Whether quotation marks enclose fields, judging by the lines from the first line with a quotation mark.

    They do if two conditions hold: the enclosed fields are exactly the fields that a program would enclose when it
    writes a table, and no other field contains a quotation mark. As in .csv, quotation marks inside an enclosed field
    are doubled. In raw texts, some quotation marks are in other places.

    Args:
        columns: The number of fields in earlier rows; 0 if the first line is the first row.
        commas: Whether an earlier field contains a comma.
        ends: Whether the file ends with these lines.
    """
    rows = _quoted_rows("\n".join(lines), ends=ends)
    if rows is None:
        return False
    columns = columns or len(rows[0]) if rows else 0
    fields = [field for row in rows for field in row]
    if any(len(row) != columns for row in rows) or not any(enclosed for _, enclosed in fields):
        return False
    if any("\n" in field for field, _ in fields) and all(line.count("\t") + 1 == columns for line in lines if line):
        return False  # two unrelated marks in different rows, with whole rows between them
    if not commas and _writes(_WRITERS[1], fields):
        return True
    return _writes(_WRITERS[0], fields) or (
        columns > 0 and rows[0][0][1] and all(enclosed or _BARE.fullmatch(field) for field, enclosed in fields)
    )


def _writes(writer: Callable[[str], bool], fields: Sequence[_Field]) -> bool:
    return all(writer(field) == enclosed for field, enclosed in fields)


def _quoted_rows(text: str, *, ends: bool) -> list[list[_Field]] | None:
    """Splits a text into rows of fields.

    Each field comes with a flag: whether quotation marks enclose it. Returns `None` if a quotation mark is anywhere
    else, unless it is doubled inside an enclosed field. If the file continues after the text, an incomplete last
    row is dropped.
    """
    rows, row, at = list[list[_Field]](), list[_Field](), 0
    for field in _fields(text):
        at = field.end()
        enclosed = field[1] is not None
        row.append((field[1].replace('""', '"') if enclosed else field[2], enclosed))
        if text[at : at + 1] not in ("\t", "\n", ""):
            return None if ends or text[at] != '"' or field[0] else rows
        if text[at : at + 1] != "\t":
            if row != [("", False)]:
                rows.append(row)
            row = []
    return rows


def _fields(text: str) -> Iterator[re.Match[str]]:
    at = 0
    while at <= len(text) and (field := _QUOTED_FIELD.match(text, at)) is not None:
        yield field
        at = field.end() + 1


def as_data(line: str) -> str:
    """Encloses, as in .csv, each field that contains quotation marks, so that a parser keeps them in the text."""
    return "\t".join('"' + field.replace('"', '""') + '"' if '"' in field else field for field in line.split("\t"))


_LOG = logging.getLogger("mlxbert")
_MAX_LOOKAHEAD = 2**20  # characters
_SEPARATOR = re.compile(r"sep=.?,?", re.IGNORECASE)
_Rows = Iterator[tuple[int, list[str] | InputError]]


class SurplusCellsError(InputError):
    """A row has more cells than its table has columns, for example because a text with a comma is not in quotes."""

    def __init__(self, message: str, values: Mapping[str, str], hint: str | None = None) -> None:
        super().__init__(message, hint=hint)
        self.values = values  # the values by column; the last column has the rest of the row


def read_csv(lines: Lines, wanted: ReadOptions) -> Iterator[Item]:
    """Reads the rows of a .csv (RFC 4180), in which quotes enclose fields."""
    return _read(lines, wanted, "csv", {"strict": True, "delimiter": wanted.separator})


def read_tsv(lines: Lines, wanted: ReadOptions) -> Iterator[Item]:
    """Reads the rows of a .tsv (IANA text/tab-separated-values), in which quotes are normally part of the texts.

    If every quote looks as if a program had put it around a field, quotes enclose fields (see `quotes.encloses`).
    """
    return _read(lines, wanted, "tsv", {"strict": True, "delimiter": "\t"})


def _read(lines: Lines, wanted: ReadOptions, format: str, dialect: dict[str, Any]) -> Iterator[Item]:
    """Yields the wanted columns of each row, or all columns that have a name; skips empty rows."""
    csv.field_size_limit(2**31 - 1)  # the default is 128 KB, less than a long article
    text = _RowLines(lines, always=format == "csv")
    source = iter(text)
    start = [*islice(source, 1)]
    if wanted.header and start and dialect["delimiter"] not in start[0] and ";" in start[0]:
        dialect["delimiter"] = ";"  # as Excel writes tables where decimals have a comma
    reader = csv.reader(chain(start, source), **dialect)
    first, rows = _begin(reader, text, format, wanted.header)
    header = column_names(first)
    while header and not header[-1]:  # Excel writes empty columns that once had a cell
        header.pop()
    named = [name for name in header if name]  # not the index that pandas writes
    if not wanted.texts and not named:
        raise InputError(f"{lines.name}, line 1: no column has a name in the header ({', '.join(first)})")
    index_of = {name: index for index, name in enumerate(header)}
    indices = [(name, index_of[name]) for name in wanted.columns(lines.name, named)]
    for number, row in rows:
        place = f"line {number}"
        if isinstance(row, list) and not any(row[len(header) :]):
            del row[len(header) :]
        if isinstance(row, InputError):
            yield place, placed(row, place)
        elif len(row) == len(header):
            yield place, {name: row[index] for name, index in indices}
        else:
            yield place, _other_length(row, header, place, reader.dialect.delimiter, named=wanted.header)


def _other_length(row: Sequence[str], header: Sequence[str], place: str, separator: str, *, named: bool) -> InputError:
    first = "header" if named else "first row"
    counts = f"the row has {counted_columns(len(row))}, but the {first} has {len(header)}"
    hint = f"each row needs {len(header) - 1} {separator!r} between its values; enclose a value that has more in quotes"
    if len(row) < len(header):
        return placed(InputError(counts, hint=hint), place)
    last = len(header) - 1
    values = dict(zip(header, [*row[:last], separator.join(row[last:])], strict=True))
    return SurplusCellsError(f"{place}: {counts}", values, hint)


class _RowLines:
    """Iterates over the lines of a table, with their newlines, because a quoted field may contain newlines.

    If a row is too long, only the quotation marks that show where it ends are kept. With `always`, quotes enclose
    fields whatever the content.
    """

    def __init__(self, lines: Lines, *, always: bool) -> None:
        self.lines = lines
        self._enclose = True if always else None  # `None` before the first quote
        self._ahead = deque[tuple[str, InputError | None]]()
        self._failure: InputError | None = None
        self._columns, self._commas = 0, False  # of the lines before
        self.begin(1)

    def begin(self, number: int) -> None:
        """Starts a new row at the next line; `number` is the number of that line."""
        self._first, self._size = number, 0

    def __iter__(self) -> Iterator[str]:
        for line in self._all():
            if self._enclose is None and '"' not in line:
                self._columns, self._commas = self._columns or line.count("\t") + 1, self._commas or "," in line
            self._size += len(line) + 1
            if self._size > LONGEST:
                self.lines.refuse(too_long(f"line {self._first}", hint="look for a missing quote in this line"))
                yield '"' * (line.count('"') % 2) if self._enclose else ""
            else:
                yield (as_data(line) if '"' in line and not self._enclose else line) + "\n"

    def _all(self) -> Iterator[str]:
        source = iter(self.lines)
        for line in source:
            if self._enclose is None and '"' in line:
                self._look_ahead(line, source)
            yield line
            while self._ahead:
                line, problem = self._ahead.popleft()
                if problem is not None:
                    self.lines.refuse(problem)
                yield line
            if self._failure is not None:
                raise self._failure

    def _look_ahead(self, line: str, source: Iterator[str]) -> None:
        """Finds out whether quotes enclose fields.

        Examines `line`, the first line with a quote, and the lines after it; in a pipe, only `line`.
        """
        problem, size = self.lines.problem(), len(line)
        while not self.lines.piped and len(self._ahead) < MAX_LINES and size < _MAX_LOOKAHEAD:
            try:
                following = next(source, None)
            except InputError as failure:  # raised in its place, after the readable lines
                self._failure, following = failure, None
            if following is None:
                break
            self._ahead.append((following, self.lines.problem()))
            size += len(following)
        ends = len(self._ahead) < MAX_LINES and size < _MAX_LOOKAHEAD and not self.lines.piped
        lines = [line, *(following for following, _ in self._ahead)]
        self._enclose = encloses(lines, self._columns, commas=self._commas, ends=ends)
        if self._enclose:
            _LOG.warning(
                "%s: quotes enclose fields, as in a .csv, so the quotes are not part of the texts", self.lines.name
            )
        if problem is not None:
            self.lines.refuse(problem)


def _begin(reader: Any, text: _RowLines, format: str, named: bool) -> tuple[list[str], _Rows]:
    """Returns the column names, and the rows; an error replaces each row that cannot be parsed."""
    name, first_row = text.lines.name, "header" if named else "first row"
    try:
        start, first, damage = _first_row(reader, text, named)
    except csv.Error as problem:
        hint = "separate the columns with commas, and double each quote inside a quoted field"
        raise InputError(
            f"{name}: the {first_row} is not valid {format} ({problem})", hint=hint if format == "csv" else None
        ) from None
    if first is None:
        raise InputError(f"{name}: the input is empty, expected a {first_row}")
    if _SEPARATOR.fullmatch(",".join(first)):
        raise InputError(
            f"{name}, line 1: {','.join(first)!r} names the separator for Excel, expected a {first_row}",
            hint="delete this line, and separate the columns with commas in a .csv or with tabs in a .tsv",
        )
    if damage is not None and (named or not first):
        raise InputError(f"{name}, {damage.message}", hint=damage.hint)
    rest = _rows(reader, text, format)
    if named:
        return first, rest
    return [str(number) for number in range(1, len(first) + 1)], chain([(start, damage or first)], rest)


def _first_row(reader: Any, text: _RowLines, named: bool) -> tuple[int, list[str] | None, InputError | None]:
    """Returns the number of the line in which the first row begins, the row, and its problem, if any.

    Without a header, skips empty rows.
    """
    start = 1
    for row in reader:
        text.begin(reader.line_num + 1)
        damage = text.lines.problem()
        if row or named or damage is not None:
            return start, row, damage
        start = reader.line_num + 1
    return start, None, None


def _rows(reader: Any, text: _RowLines, format: str) -> _Rows:
    while True:
        start = reader.line_num + 1
        text.begin(start)
        try:
            row = next(reader)
        except StopIteration:
            return
        except csv.Error as problem:
            yield start, text.lines.problem() or _broken(start, reader.line_num, format, str(problem))
            continue
        if (damage := text.lines.problem()) is not None:
            yield start, damage
        elif row:
            yield start, row


def _broken(first: int, last: int, format: str, problem: str) -> InputError:
    """Returns the error for an invalid row that extends from line `first` to line `last`.

    A row whose closing quote is missing includes the rows after it.
    """
    if last == first:
        return InputError(f"the row is not valid {format} ({problem})")
    return InputError(
        f"the row is not valid {format} ({problem}), so lines {first} to {last} cannot be read",
        hint=f"look for a missing quote in line {first}, and double each quote inside a quoted field",
    )
