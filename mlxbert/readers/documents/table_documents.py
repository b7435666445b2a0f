"""Tables and JSON lines: each record is a document, whose fields are the values other than the text."""

import logging
import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import islice
from pathlib import Path
from typing import Any, BinaryIO

from mlxbert.errors import InputError
from mlxbert.readers.documents.document import Document, Field, UnreadableError
from mlxbert.readers.formats import FORMATS, FormatName, find_format, read_records
from mlxbert.readers.input_files import open_source
from mlxbert.readers.parsing import placed
from mlxbert.readers.stream import Record
from mlxbert.readers.text_column import mean_length, plain_name, text_columns

_LOG = logging.getLogger("mlxbert")
_SAMPLE = 1000  # records for guessing columns


@dataclass(frozen=True)
class DocumentColumns:
    """The columns to read from records.

    Attributes:
        text: The field or column of the text. By default, it is guessed as for training; if several fit, the one with
            the longest texts is used.
        fields: The fields to filter by; by default all other fields whose values are not lists or objects.
    """

    text: str | None = None
    fields: tuple[str, ...] | None = None


def read_record_documents(
    path: str | Path, columns: DocumentColumns, opened: BinaryIO | None = None
) -> Iterator[Document]:
    """Reads the records of a file of any size; skips unusable records, and logs how many were skipped.

    Args:
        path: The file.
        columns: The columns to read.
        opened: The file, if it is open already; the caller closes it.
    """
    name = Path(path).name
    format = find_format(name, texts=True)
    source = path if opened is None else opened
    names, text = _find_text(source, name, format, columns)
    fields: list[str] | None = [
        column for column in (names if columns.fields is None else columns.fields) if column != text
    ]
    if columns.fields is None and FORMATS[format].value == "field":
        fields = None  # later objects may have other fields than the sample
    read = skipped = 0
    problem: InputError | None = None
    with _open(source, name) as file:
        for record in read_records(file, text, name=name, format=format, keep=fields):
            if record.problem is not None:
                problem = placed(record.problem, record.place)
                skipped += 1
                continue
            read += 1
            document = _document(record, [column for column in record.values if column != text])
            yield document if columns.text is not None else replace(document, guessed=text)
    if problem and not read:
        raise problem
    if skipped:
        _LOG.info("%s: skipped %d unusable records of %d", path, skipped, skipped + read)


def _document(record: Record, fields: Sequence[str]) -> Document:
    values = record.values
    title = next((values[key] for key in fields if plain_name(key) == "title" and isinstance(values[key], str)), "")
    kept = {name: _field(values[name]) for name in fields if not isinstance(values[name], list | dict)}
    return Document(record.text, title, kept, record.place)


def _field(value: Any) -> Field:
    """Converts a value for filtering: dates to ISO strings, NaN and infinity to `None`."""
    if isinstance(value, float) and not math.isfinite(value):
        return None
    return value if value is None or isinstance(value, str | int | float) else str(value)


def _open(source: str | Path | BinaryIO, name: str) -> BinaryIO:
    """Opens the file at its beginning."""
    if not isinstance(source, str | Path):
        source.seek(0)
    return open_source(source, name)


def _find_text(
    source: str | Path | BinaryIO, name: str, format: FormatName, columns: DocumentColumns
) -> tuple[list[str], str]:
    """Returns the column names of the first records, and the name of the column with the text."""
    sample: list[Mapping[str, Any]] = []
    with _open(source, name) as file:
        records = islice(read_records(file, None, name=name, format=format), _SAMPLE)
        try:
            sample += (record.values for record in records if record.problem is None)
        except InputError as problem:  # a damaged record, which is skipped later; or a damaged header
            if not sample and columns.text is None:
                reason = f"{problem.message}; {problem.hint}" if problem.hint else problem.message
                raise UnreadableError(reason.removeprefix(f"{name}, ").removeprefix(f"{name}: ")) from None
    names = [*dict.fromkeys(column for values in sample for column in values)]
    if columns.text is not None:
        return names, columns.text
    fitting = text_columns(names, sample)
    if not fitting:
        raise UnreadableError(
            f"no column has texts; the file has: {', '.join(names) or 'nothing'}", hint="name the column"
        )
    return names, max(fitting, key=lambda column: mean_length(column, sample) or 0)
