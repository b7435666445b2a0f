"""Records of files: a text each, or two, streamed whatever the size of the file.

`.txt`, `.jsonl`, `.json`, `.csv` and `.tsv` files may be compressed (`.txt.gz`, `.txt.xz` …); `.parquet` files need
pyarrow. A record that cannot be used has an error in its place, also where a line is not UTF-8 or holds a zero
byte. Blank lines of .jsonl files and empty rows of .csv and .tsv files are not records.
"""

import json
from collections.abc import Iterator, Mapping, Sequence
from contextlib import nullcontext
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, BinaryIO

from mlxbert.errors import ArgumentError, InputError
from mlxbert.readers.formats import FORMATS, Format, check_format, format_of, read_items
from mlxbert.readers.inputs import InputFile, open_source, to_read_again
from mlxbert.readers.lines import UTF8, Lines
from mlxbert.readers.live import LONGEST, Live
from mlxbert.readers.reading import Binary, Item, Wanted, json_type, size_of


@dataclass(frozen=True, slots=True)
class Record:
    """A text of a file.

    Attributes:
        text: The text.
        fields: Other values of its record that were asked for.
        place: Where it stands in the file: `line 17`, `row 3`.
        pair: The second text, where two are read.
        problem: Why it cannot be used; then there is nothing else.
    """

    text: str
    fields: Mapping[str, Any]
    place: str
    pair: str | None = None
    problem: InputError | None = None


@dataclass(frozen=True)
class Records:
    """An open file; iterating over it reads it, once, and closes it at the end.

    Attributes:
        name: What errors call it.
        file: The file, if it can be read again: not a pipe.
        format: How it stores records.
        size: Bytes of the file; `None` if that is not known.
    """

    name: str
    file: InputFile | None
    format: Format
    size: int | None
    _records: Live[Record] = field(repr=False)
    _source: Lines | Binary = field(repr=False)

    def __iter__(self) -> Live[Record]:
        return self._records

    @property
    def done(self) -> int:
        """Bytes of the file read so far."""
        return self._source.done


def read_records(
    source: str | Path | BinaryIO,
    text: str = "text",
    pair: str | None = None,
    *,
    format: Format | str | None = None,
    name: str | None = None,
    header: bool = True,
    keep: Sequence[str] | None = (),
    choose: str = "text= and pair=",
    most: int = LONGEST,
    encoding: str = UTF8,
) -> Records:
    """Opens a file of records.

    Args:
        source: Its path, or a file opened in binary mode, which the caller closes.
        text: The field of JSON objects or the column of a table that is the text. A .txt has a text in each line.
        pair: That of the second text.
        format: How the file stores records; by default its ending says so.
        name: What errors call the file; by default its path.
        header: Whether the first row of a .csv or .tsv names its columns; otherwise they are called `1`, `2`, …
        keep: Other fields or columns, for `Record.fields`; `None` keeps `id` where there is one.
        choose: What hints call `text` and `pair`.
        most: Bytes of a line; a longer one is a record that cannot be used.
        encoding: That of a file of text.
    """
    called = name or str(source if isinstance(source, str | Path) else getattr(source, "name", "input"))
    found = format_of(source, called, texts=True) if format is None else check_format(format)
    reader = FORMATS[found]
    if reader.refused:
        said, hint = reader.refused
        raise ArgumentError(f"{called}: a .{found} file has {said}, expected texts", hint=hint)
    if not reader.value and pair is not None:
        raise ArgumentError(
            f"{called}: a .{found} file has one text per line, expected {text} and {pair}",
            hint="use .jsonl, .json, .csv, .tsv or .parquet",
        )
    texts = (text,) if pair is None else (text, pair)
    wanted = Wanted(texts, keep if reader.value else (), header, choose, most, encoding)
    file = open_source(source, called)
    size = size_of(file)
    try:
        items, opened = read_items(called, file, found, wanted)
    except BaseException:
        if file is not source:
            file.close()
        raise
    records = _read(items, wanted, reader.value, None if file is source else file)
    return Records(called, to_read_again(file), found, size, Live(records, opened.ready, piped=opened.piped), opened)


def _read(items: Iterator[Item], wanted: Wanted, what: str, closed: BinaryIO | None) -> Iterator[Record]:
    with closed or nullcontext():
        for place, values in items:
            yield _record(place, values, wanted, what)


def _record(place: str, values: Mapping[str, Any] | InputError, wanted: Wanted, what: str) -> Record:
    if isinstance(values, InputError):
        return Record("", {}, place, problem=values)
    fields = {name: _as_json(values.get(name)) for name in wanted.kept([*values])}
    for name in wanted.texts:
        if name not in values:
            said = f"no {what} {name!r}, the record has: {', '.join(values) or 'nothing'}"
            return Record("", fields, place, problem=InputError(said, hint=wanted.hint(what)))
        if not isinstance(values[name], str):
            said = f"{what} {name!r} is {json_type(values[name])}, expected a string"
            return Record("", fields, place, problem=InputError(said))
    text, *pair = (values[name] for name in wanted.texts)
    return Record(text, fields, place, pair[0] if pair else None)


def _as_json(value: Any) -> Any:
    """The value, or a string of what JSON cannot hold: times, infinity."""
    if value is not None and not isinstance(value, str | int):
        try:
            json.dumps(value, allow_nan=False)
        except (TypeError, ValueError):
            return str(value)
    return value
