"""Decides whether quotation marks enclose the fields of a .tsv (as pandas, Excel and R write) or belong to texts."""

import re
from collections.abc import Callable, Iterator, Sequence

MAX_LINES = 1000  # that are examined, starting with the first line with a quotation mark
_FIELD = re.compile(r'"([^"]*+(?:""[^"]*+)*+)"|([^"\t\n]*+)')
_SPECIAL = re.compile(r'["\t\n\r]')
_BARE = re.compile(r"[-+]?[0-9.]*(?:[eE][-+]?[0-9]+)?|NA|NaN|TRUE|FALSE|True|False")  # what R and pandas do not quote
_Field = tuple[str, bool]
# For each writer: whether it encloses a field with this content.
_WRITERS: tuple[Callable[[str], bool], ...] = (
    lambda field: _SPECIAL.search(field) is not None,  # pandas, and Python's csv
    lambda field: _SPECIAL.search(field) is not None or "," in field,  # Excel
)


def encloses(lines: Sequence[str], columns: int, *, commas: bool, ends: bool) -> bool:
    """Whether quotation marks enclose fields, judging by the lines from the first line with a quotation mark.

    They do if two conditions hold: the enclosed fields are exactly the fields that a program would enclose when it
    writes a table, and no other field contains a quotation mark. As in .csv, quotation marks inside an enclosed field
    are doubled. In raw texts, some quotation marks are in other places.

    Args:
        lines: The lines.
        columns: The number of fields in earlier rows; 0 if the first line is the first row.
        commas: Whether an earlier field contains a comma.
        ends: Whether the file ends with these lines.
    """
    rows = _rows("\n".join(lines), ends=ends)
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


def _rows(text: str, *, ends: bool) -> list[list[_Field]] | None:
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
    while at <= len(text) and (field := _FIELD.match(text, at)) is not None:
        yield field
        at = field.end() + 1


def as_data(line: str) -> str:
    """Encloses, as in .csv, each field that contains quotation marks, so that a parser keeps them in the text."""
    return "\t".join('"' + field.replace('"', '""') + '"' if '"' in field else field for field in line.split("\t"))
