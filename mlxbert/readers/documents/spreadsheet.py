"""Spreadsheets (.xlsx, .ods), read with calamine."""

import datetime
from collections.abc import Iterable, Iterator, Sequence
from io import BytesIO
from itertools import zip_longest
from typing import TYPE_CHECKING

from mlxbert.readers.documents.document import Document, Heading, ReadProblem, UnreadableError
from mlxbert.readers.documents.zipped_parts import opened, properties, refuse_document_types

if TYPE_CHECKING:
    import python_calamine as calamine

_MAX_ROWS = 2**20  # as in every program for spreadsheets; calamine makes a row of each number below the last
_MAX_GROWTH = 2**28  # bytes that unpacking may add: calamine needs less time and memory than a tree of elements
_HEADER_CELLS = 3  # a header has at least three; two columns read well without one
_HEADER_LENGTH = 100  # characters of a header cell, at most


def read_spreadsheet(data: bytes, name: str) -> Iterator[Document]:
    """Reads each sheet, also a hidden one, as a document: its name, and a line for each row."""
    import python_calamine as calamine

    ending = ".ods" if name.lower().endswith(".ods") else ".xlsx"
    with opened(data, ending, _MAX_GROWTH) as archive:
        refuse_document_types(archive)
        title, fields = properties(archive)
    try:
        book = calamine.load_workbook(BytesIO(data))
    except calamine.CalamineError as problem:
        raise UnreadableError(f"is not a readable {ending} file ({problem})") from None
    has_text, reasons = False, list[str]()
    for number, sheet in enumerate(book.sheets_metadata):
        place, heading = f"sheet {sheet.name}", Heading.of(0, 1, sheet.name)
        try:
            text = _text(book, number)
        except UnreadableError as problem:  # other sheets may be readable
            reasons.append(problem.message)
            yield Document("", title, fields, place, problems=(ReadProblem("left out", problem.message),))
            continue
        if text:
            has_text, headings = True, (heading,) if heading.text else ()
            yield Document(f"{heading.text}\n\n{text}".lstrip("\n"), title, fields, place, headings=headings)
    if not has_text:
        raise UnreadableError(f"has no sheet with text ({reasons[0]})" if reasons else "has no sheet with text")


def _text(book: "calamine.CalamineWorkbook", number: int) -> str:
    """The text of a sheet; an error says why it cannot be read."""
    import python_calamine as calamine

    kind = book.sheets_metadata[number].typ
    if kind != calamine.SheetTypeEnum.WorkSheet:
        raise UnreadableError(f"the sheet is a {str(kind).rpartition('.')[2]}, which has no cells")
    try:
        sheet = book.get_sheet_by_index(number)
    except (calamine.CalamineError, OSError, ValueError) as problem:
        raise UnreadableError(f"the sheet is damaged ({problem})") from None
    if sheet.end is not None and sheet.end[0] >= _MAX_ROWS:
        raise UnreadableError(f"the sheet has {sheet.end[0] + 1:,} rows, but the maximum is {_MAX_ROWS:,}")
    return "\n".join(_lines(sheet.iter_rows())).strip("\n")


def _lines(rows: Iterable[Sequence[object]]) -> Iterator[str]:
    """The rows as lines. In those below a header each cell begins with it, because a passage may begin at any row."""
    header: list[str] | None = None
    last = ""
    for row in rows:
        cells = [_shown(cell) for cell in row]
        named = zip_longest(header or (), cells, fillvalue="")
        line = ("; " if header else " | ").join(f"{name}: {cell}" if name else cell for name, cell in named if cell)
        if line or last:  # of empty rows, the first
            yield line
        last = line
        if header is None and len([*filter(None, cells)]) >= _HEADER_CELLS:
            header = cells if _is_header(row) else []


def _is_header(row: Sequence[object]) -> bool:
    """Whether a row names columns: it has short texts that differ, and nothing else."""
    texts = [cell for cell in row if cell != ""]
    return len({*texts}) == len(texts) and all(isinstance(text, str) and len(text) <= _HEADER_LENGTH for text in texts)


def _shown(cell: object) -> str:
    """A value as it is written, without the format of its cell."""
    if isinstance(cell, bool):
        return str(cell).upper()
    if isinstance(cell, float):
        return f"{cell:.15g}"  # as many digits as spreadsheets have
    if isinstance(cell, datetime.datetime):
        return cell.isoformat(" ", "minutes" if not cell.second else "seconds")
    return " ".join(str(cell).split())
