"""Tables and JSON lines: a document in each record, whose other values are fields."""

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
_SAMPLE = 1000  # records that are looked at


@dataclass(frozen=True)
class DocumentColumns:
    """How records are read.

    Attributes:
        text: The field or column of the text; by default guessed as for training, the longest where several fit.
        fields: Those to filter by; by default all others that are not lists or objects.
    """

    text: str | None = None
    fields: tuple[str, ...] | None = None


def read_record_documents(
    path: str | Path, columns: DocumentColumns, opened: BinaryIO | None = None
) -> Iterator[Document]:
    """The records of a file of any size; those that cannot be used are skipped, and counted in the log.

    Args:
        path: The file.
        columns: How its records are read.
        opened: The file, if it is open; the caller closes it.
    """
    name = Path(path).name
    format = find_format(name, texts=True)
    source = path if opened is None else opened
    names, text = _look(source, name, format, columns)
    fields: list[str] | None = [
        column for column in (names if columns.fields is None else columns.fields) if column != text
    ]
    if columns.fields is None and FORMATS[format].value == "field":
        fields = None  # objects may have fields that the first ones lack
    read = skipped = 0
    problem: InputError | None = None
    with _opened(source, name) as file:
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
        _LOG.info("%s: %d records of %d cannot be used", path, skipped, skipped + read)


def _document(record: Record, fields: Sequence[str]) -> Document:
    values = record.values
    title = next((values[one] for one in fields if plain_name(one) == "title" and isinstance(values[one], str)), "")
    kept = {name: _field(values[name]) for name in fields if not isinstance(values[name], list | dict)}
    return Document(record.text, title, kept, record.place)


def _field(value: Any) -> Field:
    """A value to compare with; dates as ISO writes them."""
    if isinstance(value, float) and not math.isfinite(value):
        return None
    return value if value is None or isinstance(value, str | int | float) else str(value)


def _opened(source: str | Path | BinaryIO, name: str) -> BinaryIO:
    """The file from its beginning."""
    if not isinstance(source, str | Path):
        source.seek(0)
    return open_source(source, name)


def _look(
    source: str | Path | BinaryIO, name: str, format: FormatName, columns: DocumentColumns
) -> tuple[list[str], str]:
    """The names of the first records, and which of them is the text."""
    sample: list[Mapping[str, Any]] = []
    with _opened(source, name) as file:
        records = islice(read_records(file, None, name=name, format=format), _SAMPLE)
        try:
            sample += (record.values for record in records if record.problem is None)
        except InputError as problem:  # of a damaged record, which is skipped later; or of a header
            if not sample and columns.text is None:
                said = f"{problem.message}; {problem.hint}" if problem.hint else problem.message
                raise UnreadableError(said.removeprefix(f"{name}, ").removeprefix(f"{name}: ")) from None
    names = [*dict.fromkeys(one for values in sample for one in values)]
    if columns.text is not None:
        return names, columns.text
    fitting = text_columns(names, sample)
    if not fitting:
        raise UnreadableError(f"no column has texts; it has: {', '.join(names) or 'nothing'}", hint="name it")
    return names, max(fitting, key=lambda one: mean_length(one, sample) or 0)
