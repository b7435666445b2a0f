"""Tables and JSON lines: each record is a document, whose text is in one column. The others are searched, too."""

import csv
import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import partial
from itertools import islice
from pathlib import Path
from typing import Any, BinaryIO

from mlxbert.errors import InputError
from mlxbert.readers.delimited import SurplusCellsError
from mlxbert.readers.formats import FORMATS, FormatName, find_format, read_records
from mlxbert.readers.input_files import open_source
from mlxbert.readers.parsing import placed
from mlxbert.readers.stream import Record, RecordStream
from mlxbert.readers.text_column import mean_length, plain_name, text_columns
from mlxbert.readers.text_lines import UTF8, Lines
from mlxbert.search.documents.document import Document, Field, ReadProblem, UnreadableError
from mlxbert.search.documents.encodings import WESTERN, detect, is_utf8

NO_COLUMN = "no column is known to contain the texts"
COLUMN_OF_TEXT = "the column of the text"  # begins the reason of the problem that it was guessed
_SAMPLE = 1000  # records for guessing columns
_LINES, _FOREIGN = 100, 2**15  # lines for guessing the separator, and bytes of other lines for guessing the encoding
_MOST = 200  # characters of the line with the other columns of a record
_LONG_LINE = 2**16  # maximum length in bytes of a line from which something is guessed
_SEPARATORS = {";": "a semicolon", "\t": "a tab", "|": "a vertical bar"}
_CANDIDATES = ",;\t|"  # for the separator


@dataclass(frozen=True)
class DocumentColumns:
    """The columns to read from records."""

    # The field or column of the text, which alone is searched. By default, it is guessed as for training; if several
    # fit, the one with the longest texts is used. Then the other columns are searched, too.
    text: str | None = None
    # The fields to filter by and to search next to the text; by default all other fields whose values are not lists,
    # objects or bytes.
    fields: tuple[str, ...] | None = None


def read_record_documents(
    path: str | Path, columns: DocumentColumns, opened: BinaryIO | None = None, encoding: str | None = None
) -> Iterator[Document]:
    """Reads the records of a file of any size.

    An unusable record is a document without a text, whose problem says what is wrong. So are the separator, the column
    of the text and the encoding, if they had to be guessed.

    Args:
        opened: The file, if it is open already; the caller closes it.
        encoding: The encoding of a file that is not UTF-8; `None` to guess it.
    """
    name = Path(path).name
    format = find_format(name, texts=True)
    source = path if opened is None else opened
    layout = _Layout() if FORMATS[format].binary else _find_layout(source, name, format, encoding)
    how = partial(read_records, name=name, format=format, lenient=True, encoding=layout.encoding, other=WESTERN)
    read = partial(how, separator=layout.separator)
    if layout.encoding not in (UTF8, encoding):
        yield _guess(f"the encoding is probably {layout.encoding}")
    if layout.separator != ",":
        yield _guess(f"the separator of the columns is probably {_SEPARATORS[layout.separator]}")
    names, text = _find_text(source, name, read, columns)
    guessed = text if columns.text is None and plain_name(text) != "text" else None
    if guessed is not None:
        yield _guess(f"{COLUMN_OF_TEXT} is probably {guessed!r}")
    fields = [column for column in (names if columns.fields is None else columns.fields) if column != text]
    all_fields = columns.fields is None and FORMATS[format].value == "field"  # later objects may have other fields
    with _open(source, name) as file:
        records = read(file, text, keep=None if all_fields else fields)
        read_record = partial(_document, text=text, guessed=guessed, alone=columns.text is not None)
        yield from _documents(records, text, fields, read_record)
        lines = records.sources[0].opened
        if isinstance(lines, Lines) and lines.others[0]:
            count, first = lines.others
            reason = f"bytes that are not {layout.encoding} are probably {WESTERN} (lines: {count:,})"
            yield _guess(reason, f"line {first}")


def _guess(reason: str, place: str = "") -> Document:
    return Document("", place=place, problems=(ReadProblem("guessed", reason),))


def _documents(
    records: RecordStream, text: str, fields: Sequence[str], read_record: Callable[..., Document]
) -> Iterator[Document]:
    """Yields a document for each record; if none of them is usable, raises the problem of the last one."""
    problem: InputError | None = None
    usable = False
    for record in records:
        record, problems = _mended(record, text, fields)
        if record.problem is None:
            usable = True
            yield read_record(record, problems)
        else:
            problem = placed(record.problem, record.place)
            reason = problem.message.removeprefix(f"{record.place}: ")
            yield Document("", place=record.place, problems=(ReadProblem("left out", reason),))
    if problem is not None and not usable:
        raise problem


def _mended(record: Record, text: str, fields: Sequence[str]) -> tuple[Record, tuple[ReadProblem, ...]]:
    """Returns a usable record for a row with too many cells if they can only belong to the text, its last column."""
    problem = record.problem
    if not isinstance(problem, SurplusCellsError) or [*problem.values][-1] != text:
        return record, ()
    reason = f"{problem.message.removeprefix(f'{record.place}: ')}, so the text is the rest of the row"
    values = {name: problem.values[name] for name in fields}
    return replace(record, text=problem.values[text], values=values, problem=None), (ReadProblem("guessed", reason),)


@dataclass(frozen=True)
class _Layout:
    """The encoding of a file, and the separator of its columns."""

    encoding: str = UTF8
    separator: str = ","


def _find_layout(source: str | Path | BinaryIO, name: str, format: FormatName, chosen: str | None) -> _Layout:
    """Guesses the layout of a file from its first lines, and from the first ones that are not ASCII."""
    first, foreign, size = list[bytes](), list[bytes](), 0
    with suppress(InputError), _open(source, name) as file:  # reading the records raises the error again
        for line in Lines(name, file, lenient=True, most=_LONG_LINE, encoding="latin-1"):
            raw = line.encode("latin-1")
            first += [raw] if len(first) < _LINES else []
            if not raw.isascii():
                foreign.append(raw)
                size += len(raw)
            if size > _FOREIGN:
                break
    sample = b"\n".join(foreign)
    encoding = UTF8 if is_utf8(sample) else chosen or detect(sample)
    header = [raw.decode(encoding, "replace") for raw in first]
    return _Layout(encoding, find_separator(header) if format is FormatName.csv else ",")


def _document(
    record: Record, problems: tuple[ReadProblem, ...], *, text: str, guessed: str | None, alone: bool
) -> Document:
    """Makes a document from a record; its other columns follow the text, unless `alone` is true."""
    values = {name: value for name, value in record.values.items() if name != text}
    key = next((name for name in values if plain_name(name) == "title" and isinstance(values[name], str)), None)
    title = "" if key is None else values[key]
    kept = {name: _field(value) for name, value in values.items() if not isinstance(value, list | dict | bytes)}
    whole = record.text
    lines = [] if alone else _other_columns({name: value for name, value in kept.items() if name != key})
    if lines and (record.text.strip() or any(map(str.isalpha, "".join(map(str, kept.values()))))):
        whole = "\n".join([record.text, "", *lines]).strip("\n")
    return Document(whole, title, kept, record.place, guessed=guessed, problems=problems)


def _other_columns(cells: Mapping[str, Field]) -> list[str]:
    """Returns a line with the other columns of a record, and a line for each text that is too long for it.

    What has no letters is left out when there is no room: hundreds of numbers would bury the text.
    """
    columns, lines, room = list[str](), list[str](), _MOST
    for name, value in cells.items():
        cell = str(value).lower() if isinstance(value, bool) else "" if value is None else str(value).strip()
        if cell and len(name) + len(cell) <= room:
            columns.append(f"{name}: {' '.join(cell.split())}")
            room -= len(name) + len(cell)
        elif any(map(str.isalpha, cell)):
            lines.append(f"{name}: {cell}")
    return [*filter(None, ["; ".join(columns)]), *lines]


def _field(value: Any) -> Field:
    """Converts a value for filtering: dates to ISO strings, NaN and infinity to `None`."""
    if isinstance(value, float) and not math.isfinite(value):
        return None
    return value if value is None or isinstance(value, str | int | float) else str(value)


def _open(source: str | Path | BinaryIO, name: str) -> BinaryIO:
    if not isinstance(source, str | Path):
        source.seek(0)
    return open_source(source, name)


def _find_text(
    source: str | Path | BinaryIO, name: str, read: Callable[..., RecordStream], columns: DocumentColumns
) -> tuple[list[str], str]:
    """Returns the column names of the first records, and the name of the column with the text."""
    sample: list[Mapping[str, Any]] = []
    last: Record | None = None
    with _open(source, name) as file:
        try:
            for last in islice(read(file, None), _SAMPLE):
                if values := _values(last):
                    sample.append(values)
            if last is not None and last.problem is not None and not sample:
                raise last.problem
        except InputError as problem:  # a damaged record, which is skipped later; or a damaged header
            if not sample and columns.text is None:
                reason = f"{problem.message}; {problem.hint}" if problem.hint else problem.message
                raise UnreadableError(reason.removeprefix(f"{name}, ").removeprefix(f"{name}: ")) from None
    names = [*dict.fromkeys(column for values in sample for column in values)]
    if columns.text is not None:
        return names, columns.text
    if last is None:
        raise UnreadableError("there are no records")
    fitting = text_columns(names, sample)
    if not fitting:
        raise UnreadableError(
            f"{NO_COLUMN} (columns: {', '.join(names) or 'none'})",
            hint="name the column of the texts",
        )
    return names, max(fitting, key=lambda column: mean_length(column, sample) or 0)


def _values(record: Record) -> Mapping[str, Any]:
    """Returns the values of a record for a sample; empty if the record is unusable."""
    if isinstance(record.problem, SurplusCellsError):
        return {name: value for name, value in record.problem.values.items() if name}
    return record.values


def find_separator(lines: Sequence[str]) -> str:
    """Finds the separator of the columns of a .csv.

    It is the one that divides the most lines into as many cells as the header, or the header into the most cells if
    several divide equally many; a comma if none divides the header. (`csv.Sniffer` takes quadratic time, and is wrong
    about commas within quotes.)
    """
    best, most = ",", (0, 1)
    for separator in _CANDIDATES:
        try:
            widths = [len(row) for row in csv.reader(lines, delimiter=separator) if row]
        except csv.Error:
            continue
        header = widths[0] if widths else 0
        if header > 1 and (widths.count(header), header) > most:
            best, most = separator, (widths.count(header), header)
    return best
