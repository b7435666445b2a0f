"""File formats, their extensions, and `read_records`, which reads the records of a file of any format.

`.txt`, `.jsonl`, `.json`, `.csv` and `.tsv` files may be compressed (`.txt.gz`, `.txt.xz` …); `.parquet` files need
pyarrow. An unusable record is replaced by an error, even if its line is not UTF-8 or contains a zero byte. Blank lines
of .jsonl files and empty rows of .csv and .tsv files are not records.
"""

import os
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path
from typing import Any, BinaryIO

from mlxbert.errors import ArgumentError
from mlxbert.other_libraries import not_one_of
from mlxbert.readers.conll import looks_like_conll, looks_like_conllu, read_conll, read_conllu
from mlxbert.readers.delimited import read_csv, read_tsv
from mlxbert.readers.input_files import check_there, open_source, to_read_again
from mlxbert.readers.json_records import read_json, read_jsonl
from mlxbert.readers.parquet import read_parquet
from mlxbert.readers.parsing import Binary, Item, ReadOptions, size_of
from mlxbert.readers.pipes import LONGEST, Opened
from mlxbert.readers.stream import RecordSource, RecordStream
from mlxbert.readers.text_lines import UTF8, Lines, is_compressed, uncompressed_name


class FormatName(StrEnum):
    """How a file stores records."""

    txt = "txt"
    jsonl = "jsonl"
    json = "json"
    csv = "csv"
    tsv = "tsv"
    parquet = "parquet"
    conll = "conll"
    conllu = "conllu"
    squad = "squad"


def read_txt(lines: Lines, wanted: ReadOptions) -> Iterator[Item]:
    """Yields each line, even if it is blank; the field is named like the wanted text, by default `text`."""
    name = wanted.texts[0] if wanted.texts else "text"
    for number, line in enumerate(lines, 1):
        yield f"line {number}", lines.problem() or {name: line}


@dataclass(frozen=True)
class RecordFormat:
    """A file format: its reader, and the properties of its files."""

    read: Callable[[Any, ReadOptions], Iterator[Item]]  # yields the records of a `Lines` or a `Binary`
    endings: tuple[str, ...]  # the file extensions
    # What a value of a record is called in errors: `field` or `column`; empty if a record is just a text.
    value: str = ""
    # For formats whose records are not texts: a description of the records for the error, and a hint.
    refused: tuple[str, str] | None = None
    binary: bool = False  # whether the file is not read line by line; such a file cannot be compressed as a whole
    most: int = 0  # maximum size of a line in bytes, if it is larger than the default
    # Returns whether the first lines of a file look like the format. It is used to recognize files of tagged sentences
    # that have another extension.
    looks: Callable[[Sequence[str]], bool] | None = None


_WHOLE_FILE = 2**32  # bytes: the file may be a single line
_SENTENCES = ("sentences of words", "use .txt, .jsonl or a table")
_QUESTIONS = ("questions for training and evaluation", "use `format='json'` for an array of records")
FORMATS = {
    FormatName.txt: RecordFormat(read_txt, (".txt",)),
    FormatName.jsonl: RecordFormat(read_jsonl, (".jsonl", ".ndjson"), "field"),
    FormatName.json: RecordFormat(read_json, (".json",), "field", most=_WHOLE_FILE),
    FormatName.csv: RecordFormat(read_csv, (".csv",), "column"),
    FormatName.tsv: RecordFormat(read_tsv, (".tsv",), "column"),
    FormatName.parquet: RecordFormat(read_parquet, (".parquet",), "column", binary=True),
    FormatName.conllu: RecordFormat(read_conllu, (".conllu",), refused=_SENTENCES, looks=looks_like_conllu),
    FormatName.conll: RecordFormat(read_conll, (".conll", ".iob", ".bio"), refused=_SENTENCES, looks=looks_like_conll),
    FormatName.squad: RecordFormat(read_json, (), refused=_QUESTIONS, most=_WHOLE_FILE),
}
# Hints for other files.
_SAVED_AS = {
    ending: "save the document as plain text (.txt)" for ending in (".doc", ".docx", ".odt", ".rtf", ".pdf", ".html")
}
_SAVED_AS |= {ending: "save the sheet as .csv" for ending in (".xls", ".xlsx", ".ods")}
_SAVED_AS |= {
    ending: "use `format='txt'` to read each line as a text"
    for ending in (".md", ".rst", ".org", ".tex", ".adoc", ".text", ".log")
}
_SAVED_AS |= {
    ".npy": "a .npy file has vectors, not texts",
    ".safetensors": "a .safetensors file has tensors, not texts",
}


def _ending(name: str) -> str:
    return Path(uncompressed_name(name)).suffix


def named_format(name: str) -> FormatName | None:
    """Returns the format of a file by its extension, ignoring `.gz` and `.xz`; `None` if the extension is unknown."""
    ending = _ending(name)
    format = next((format for format, properties in FORMATS.items() if ending in properties.endings), None)
    return None if format is not None and FORMATS[format].binary and is_compressed(name) else format


def find_format(name: str, *, texts: bool = False) -> FormatName:
    """Returns the format of a file by its extension; raises an error if the extension is unknown.

    Args:
        texts: Whether the error lists only formats whose records are texts, and leaves out those for training
            data.
    """
    if (format := named_format(name)) is not None:
        return format
    if os.path.isdir(name):  # a text may be too long for a path
        raise ArgumentError(
            f"{name}: is a folder, expected a file",
            hint="name a file in the folder, or search the whole folder with `mlxbert.open_index(paths=FOLDER)`",
        )
    endings = [ending for entry in FORMATS.values() if not (texts and entry.refused) for ending in entry.endings]
    raise ArgumentError(
        f"{name}: the extension is {Path(name).suffix!r}, expected one of {', '.join(endings)}, or a text format with "
        ".gz or .xz",
        hint=_SAVED_AS.get(_ending(name), "name the format of the file, for example `format='jsonl'`"),
    )


def format_of(source: object, name: str, *, texts: bool = False) -> FormatName:
    """Returns the format of a source (see `find_format`); a missing file is reported before a wrong extension."""
    try:
        return find_format(name, texts=texts)
    except ArgumentError:
        check_there(source)
        raise


def check_format(format: FormatName | str) -> FormatName:
    """Returns the format with this name; raises an error if the name is unknown."""
    try:
        return FormatName(format)
    except ValueError:
        raise not_one_of("format", format, FormatName) from None


def read_records(
    source: str | Path | BinaryIO,
    text: str | None = "text",
    pair: str | None = None,
    *,
    format: FormatName | str | None = None,
    name: str | None = None,
    header: bool = True,
    keep: Sequence[str] | None = (),
    with_id: bool = False,
    choose: str = "`text=` and `pair=`",
    most: int = LONGEST,
    encoding: str = UTF8,
    lenient: bool = False,
    other: str | None = None,
    separator: str = ",",
) -> RecordStream:
    """Opens a file of records. The file is read once, in constant memory, and closed at the end.

    Args:
        source: The path, or a file opened in binary mode, which the caller closes.
        text: The field (of JSON objects) or column (of a table) with the text; a .txt has one text per line. `None`
            reads all values of each record, and also accepts formats of tagged sentences and of questions.
        pair: The field or column of the second text.
        format: The format of the file; by default decided by its extension.
        name: The name of the file in errors; by default its path.
        header: Whether the first row of a .csv or .tsv names its columns; otherwise they are called `1`, `2`, …
        keep: Other fields or columns to keep in `Record.values`; `None` keeps all.
        with_id: Whether to keep `id` as well, if there is one.
        choose: The names of the arguments `text` and `pair` in hints.
        most: Maximum size of a line in bytes; a longer line is an unusable record.
        lenient: Whether a damaged line is an unusable record even without `text`, when it otherwise ends the reading.
        other: The encoding of bytes that are not valid in `encoding`; by default, they make a record unusable.
        separator: The separator of the columns of a .csv.
    """
    file_name = name or str(source if isinstance(source, str | Path) else getattr(source, "name", "input"))
    format_name = format_of(source, file_name, texts=text is not None) if format is None else check_format(format)
    texts = tuple(column for column in (text, pair) if column is not None)
    _check_texts(file_name, format_name, texts)
    value = FORMATS[format_name].value
    kept = None if text is None else keep if value else ()
    with_id = with_id and bool(value)
    wanted = ReadOptions(texts, kept, with_id, header, choose, most, encoding, lenient, other, separator)
    file = open_source(source, file_name)
    size = size_of(file)
    try:
        items, opened = _read(file_name, file, format_name, wanted)
    except BaseException:
        if file is not source:
            file.close()
        raise
    items = items if file is source else _closing(file, items)
    read_as = (format_name, *texts)
    records = RecordSource(file_name, items, read_as, opened, wanted, value, to_read_again(file), size, is_file=True)
    return RecordStream([records])


def _check_texts(name: str, format: FormatName, texts: Sequence[str]) -> None:
    if texts and (refused := FORMATS[format].refused):
        raise ArgumentError(f"{name}: a .{format} file has {refused[0]}, expected texts", hint=refused[1])
    if len(texts) > 1 and not FORMATS[format].value:
        raise ArgumentError(
            f"{name}: a .{format} file has one text per line, expected the columns {' and '.join(texts)}",
            hint="use .jsonl, .json, .csv, .tsv or .parquet",
        )


def _read(name: str, file: BinaryIO, format: FormatName, wanted: ReadOptions) -> tuple[Iterator[Item], Opened]:
    record_format = FORMATS[format]
    if not wanted.header and format not in (FormatName.csv, FormatName.tsv):
        raise ArgumentError(f"{name}: the input is {format}, but only .csv and .tsv can be read without a header")
    if record_format.binary:
        binary = Binary(name, file)
        return record_format.read(binary, wanted), binary
    limit, lenient = max(record_format.most, wanted.most), bool(wanted.texts or wanted.lenient)
    lines = Lines(name, file, lenient=lenient, most=limit, encoding=wanted.encoding, other=wanted.other)
    return record_format.read(lines, wanted), lines


def _closing(file: BinaryIO, items: Iterator[Item]) -> Iterator[Item]:
    """Yields the items of a file; closes the file after the last item, or when the iterator is garbage-collected."""

    def read() -> Iterator[Item]:
        with file:
            yield "", {}  # enters the `with`: the file is closed even if no item is read
            yield from items

    started = read()
    next(started)
    return started
