"""Whether quotation marks enclose the fields of a .tsv, as pandas, Excel and R write them, or are part of the text."""

import re
from collections.abc import Callable, Iterator, Sequence

MOST_LINES = 1000  # that are looked at, from the first one with a quotation mark
_FIELD = re.compile(r'"([^"]*+(?:""[^"]*+)*+)"|([^"\t\n]*+)')
_SPECIAL = re.compile(r'["\t\n\r]')
_BARE = re.compile(r"[-+]?[0-9.]*(?:[eE][-+]?[0-9]+)?|NA|NaN|TRUE|FALSE|True|False")  # what R and pandas do not quote
_Field = tuple[str, bool]
# Which fields a writer encloses, by their content.
_WRITERS: tuple[Callable[[str], bool], ...] = (
    lambda field: _SPECIAL.search(field) is not None,  # pandas, and csv of Python
    lambda field: _SPECIAL.search(field) is not None or "," in field,  # Excel
)


def encloses(lines: Sequence[str], columns: int, *, commas: bool, ends: bool) -> bool:
    """Whether quotation marks enclose fields, judging by the lines from the first one that has any.

    They do if every field is one that a writer of tables would enclose and no other has a quotation mark: as in .csv, a
    mark inside is written twice. In texts as they are, some mark stands elsewhere.

    Args:
        lines: The lines.
        columns: The fields of the rows before, 0 if the first line is the first row.
        commas: Whether a field before has a comma.
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
        return False  # a mark in one row and a mark in another, between which whole rows stand
    if not commas and _writes(_WRITERS[1], fields):
        return True
    return _writes(_WRITERS[0], fields) or (
        columns > 0 and rows[0][0][1] and all(enclosed or _BARE.fullmatch(field) for field, enclosed in fields)
    )


def _writes(writer: Callable[[str], bool], fields: Sequence[_Field]) -> bool:
    return all(writer(field) == enclosed for field, enclosed in fields)


def _rows(text: str, *, ends: bool) -> list[list[_Field]] | None:
    """The rows, each field with whether it is enclosed; `None` if a quotation mark stands elsewhere.

    Of a text that continues, the last row may be incomplete: it is left out.
    """
    rows, row, at = list[list[_Field]](), list[_Field](), 0
    for found in _fields(text):
        at = found.end()
        enclosed = found[1] is not None
        row.append((found[1].replace('""', '"') if enclosed else found[2], enclosed))
        if text[at : at + 1] not in ("\t", "\n", ""):
            return None if ends or text[at] != '"' or found[0] else rows
        if text[at : at + 1] != "\t":
            if row != [("", False)]:
                rows.append(row)
            row = []
    return rows


def _fields(text: str) -> Iterator[re.Match[str]]:
    at = 0
    while at <= len(text) and (found := _FIELD.match(text, at)) is not None:
        yield found
        at = found.end() + 1


def as_data(line: str) -> str:
    """A line whose quotation marks are part of the text, as one in which they enclose fields."""
    return "\t".join('"' + field.replace('"', '""') + '"' if '"' in field else field for field in line.split("\t"))
