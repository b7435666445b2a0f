"""Rows of labelled data: all fields of the records of files, folders, data sets and Python objects, in memory.

What cannot be read ends the reading, with an error that says where: rows are for training, which should not start on
half of the data.
"""

import hashlib
import json
import os
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, BinaryIO, overload

from mlxbert.data.conll import read_conll, read_conllu
from mlxbert.data.hub import HUB, class_names, name_classes, open_hub
from mlxbert.data.label_folder import LabelFolder
from mlxbert.data.lines import Lines
from mlxbert.data.parquet import ParquetRows
from mlxbert.data.parse import read_objects, read_table, separator_hint
from mlxbert.data.records import Format, check_format, find_format, open_source, size_of
from mlxbert.data.squad import read_squad
from mlxbert.errors import ArgumentError, InputError
from mlxbert.inputs import InputFile

STDIN = "-"
Source = str | Path | BinaryIO | Iterable[str | Path] | Iterable[Mapping[str, Any]]
Progress = Callable[[int, int | None], None]
_REPORT = 1000  # rows between two calls of `on_progress`


@dataclass(frozen=True, slots=True)
class Row:
    """A record.

    Attributes:
        values: Its fields by name.
        place: Where it begins: `train.csv, line 17`.
    """

    values: Mapping[str, Any]
    place: str


@dataclass(frozen=True)
class Rows(Sequence[Row]):
    """All rows of one or several sources, in order.

    Attributes:
        columns: The names of all fields.
        files: Where the rows come from.
        sha256: Hashes of what was read, by the names in `files`; pipes and iterators have none.
        resumable: Whether another process would read the same.
    """

    columns: tuple[str, ...]
    files: tuple[str, ...]
    sha256: Mapping[str, str]
    resumable: bool
    _rows: Sequence[Row] = field(repr=False)

    @overload
    def __getitem__(self, index: int) -> Row: ...

    @overload
    def __getitem__(self, index: slice) -> Sequence[Row]: ...

    def __getitem__(self, index: int | slice) -> Row | Sequence[Row]:
        return self._rows[index]

    def __len__(self) -> int:
        return len(self._rows)

    def __iter__(self) -> Iterator[Row]:
        return iter(self._rows)


@dataclass(frozen=True)
class _Opened:
    """A source that is being read; `sha256` is asked at the end, `done` counts bytes."""

    name: str
    rows: Iterator[Row]
    sha256: Callable[[], str | None]
    done: Callable[[], int] = lambda: 0


def read_rows(source: Source, *, format: Format | str | None = None, on_progress: Progress | None = None) -> Rows:
    """Reads records with all their fields.

    Args:
        source: A path, or several: .csv, .tsv, .jsonl, .conll (also .iob, .bio), .conllu, .json of SQuAD, .txt with
            a text in each line (all also with .gz), .parquet, or a folder that has a folder of .txt files for each
            label. A row of .conll and .conllu is a sentence, whose values are lists. `hub:NAME`, `hub:NAME:CONFIG` or
            `hub:NAME:CONFIG:SPLIT` is a data set of the Hugging Face hub (its split `train` where none is named). `-`
            is stdin, or give a file opened in binary mode; both are .jsonl unless `format` says otherwise. Or any
            iterable of mappings.
        format: How files store records; by default their endings say so.
        on_progress: Called now and then with the bytes read so far and their total, which is known of files, and
            otherwise `None`.

    Raises:
        ArgumentError: The source is none of these, or the format is unknown.
        InputError: It cannot be read, has no records, or a record is damaged; then the message begins with its place.
        HubError: The data set cannot be had.
        MlxbertError: A package that is needed is not installed.
    """
    sources = _sources(source)
    total = sum(map(_bytes, sources)) if all(map(_bytes, sources)) else None
    rows: list[Row] = []
    columns: dict[str, None] = {}
    hashes: dict[str, str | None] = {}
    before = 0
    for one in sources:
        start = len(rows)
        with ExitStack() as stack:
            part = _open(one, format, stack)
            for row in part.rows:
                rows.append(row)
                if not row.values.keys() <= columns.keys():
                    columns.update(dict.fromkeys(row.values))
                if on_progress is not None and len(rows) % _REPORT == 0:
                    on_progress(before + part.done(), total)
            hashes[part.name] = part.sha256()
        if len(rows) == start:
            raise InputError(f"{part.name}: there are no records")
        before += part.done()
    if on_progress is not None:
        on_progress(before, total)
    known = {name: found for name, found in hashes.items() if found is not None}
    return Rows(tuple(columns), tuple(hashes), known, len(known) == len(hashes), rows)


def _sources(source: Any) -> list[Any]:
    """Paths and open files one by one, or the records as a whole."""
    if isinstance(source, str | Path) or hasattr(source, "read"):
        return [source]
    if isinstance(source, Mapping) or (hasattr(source, "to_dict") and not hasattr(source, "features")):
        raise ArgumentError(
            f"the data are a {type(source).__name__}, expected records: an iterable of mappings",
            hint='a pandas DataFrame becomes records with table.to_dict("records")',
        )
    if not isinstance(source, Iterable):
        raise ArgumentError(f"the data are a {type(source).__name__}, expected a path, paths or records")
    if not (isinstance(source, Sequence) and source and isinstance(source[0], str | Path)):
        return [source]
    for path in source:
        if not isinstance(path, str | Path):
            raise ArgumentError(f"{path!r:.60} is among paths, expected a path")
    if len({*map(str, source)}) < len(source):
        raise ArgumentError(f"a file is named twice: {', '.join(map(str, source))}")
    return list(source)


def _bytes(source: Any) -> int:
    """The size of a file; 0 for what is none."""
    return os.path.getsize(source) if isinstance(source, str | Path) and os.path.isfile(source) else 0


def _open(source: Any, format: Format | str | None, stack: ExitStack) -> _Opened:
    if isinstance(source, str) and source.startswith(HUB):
        return _open_records(source, f"{source}, row", open_hub(source))
    if isinstance(source, str) and source == STDIN:
        if sys.stdin is None:
            raise InputError("stdin is closed")
        return _open_file(sys.stdin.buffer, "stdin", Format.jsonl if format is None else check_format(format), stack)
    if hasattr(source, "read"):
        name = str(getattr(source, "name", "input"))
        return _open_file(source, name, Format.jsonl if format is None else check_format(format), stack)
    if not isinstance(source, str | Path):
        return _open_records("records", "record", source)
    name = str(source)
    if not os.path.isdir(source):
        return _open_file(source, name, find_format(name) if format is None else check_format(format), stack)
    folder = LabelFolder(Path(source), name)
    rows = (Row({"text": text, "label": label}, place) for text, label, place in folder)
    return _Opened(name, rows, folder.sha256, lambda: folder.done)


def _open_file(source: str | Path | BinaryIO, name: str, format: Format, stack: ExitStack) -> _Opened:
    file = open_source(source, name)
    if file is not source:
        stack.enter_context(file)
    reader: ParquetRows | Lines
    if format is Format.parquet:
        reader = ParquetRows(name, file, None, size_of(file))
        rows = _from_parquet(reader)
    elif format is Format.squad:
        reader = Lines(name, file, most=None)  # a whole file in one line
        rows = (Row(values, place) for place, values in read_squad(reader))
    else:
        reader = Lines(name, file)
        rows = _from_lines(reader, format)
    again = file if isinstance(file, InputFile) and file.reopens else None
    return _Opened(name, rows, lambda: None if again is None else again.sha256(), lambda: reader.done)


def _from_lines(lines: Lines, format: Format) -> Iterator[Row]:
    if format in (Format.conll, Format.conllu):
        sentences = read_conll(lines) if format is Format.conll else read_conllu(lines)
        return (Row(values, f"{lines.name}, line {number}") for number, values in sentences)
    if format is Format.txt:
        return (Row({"text": line}, f"{lines.name}, line {n}") for n, line in enumerate(lines, 1) if line.strip())
    return _from_objects(lines) if format is Format.jsonl else _from_table(lines, format)


def _from_objects(lines: Lines) -> Iterator[Row]:
    for number, record in read_objects(lines):
        place = f"{lines.name}, line {number}"
        if isinstance(record, InputError):
            hint = "each line is one JSON object; a list of objects becomes lines with: jq -c '.[]'"
            raise InputError(f"{place}: {record.message}", hint=hint)
        yield Row(record, place)


def _from_table(lines: Lines, format: Format) -> Iterator[Row]:
    header, rows = read_table(lines, format)
    named = [name for name in header if name]  # the index that pandas writes has no name, nor has a trailing comma
    twice = next((name for name in named if named.count(name) > 1), None)
    if twice is not None or len(named) < 1:
        found = "no column has a name" if twice is None else f"column {twice!r} is there twice"
        raise InputError(f"{lines.name}, line 1: {found} in the header: {', '.join(header)}")
    if (hint := separator_hint(header)) is not None:
        raise InputError(f"{lines.name}, line 1: there is only one column, {header[0]!r}", hint=hint)
    for number, row in rows:
        place = f"{lines.name}, line {number}"
        if isinstance(row, InputError):
            raise InputError(f"{place}: {row.message}")
        values = dict(zip(header, row, strict=True))
        values.pop("", None)
        yield Row(values, place)


def _from_parquet(reader: ParquetRows) -> Iterator[Row]:
    for number, row in enumerate(reader, 1):
        place = f"{reader.name}, row {number}"
        if isinstance(row, InputError):
            raise InputError(f"{place}: {row.message}")
        yield Row(dict(zip(reader.columns, row, strict=True)), place)


def _open_records(name: str, called: str, items: Iterable[Any]) -> _Opened:
    digest = hashlib.sha256()
    again = hasattr(items, "__len__")  # an iterator is used up
    classes = class_names(items)

    def rows() -> Iterator[Row]:
        for number, item in enumerate(items, 1):
            place = f"{called} {number}"
            if not isinstance(item, Mapping) or not all(isinstance(key, str) for key in item):
                raise InputError(f"{place}: {item!r:.60} is not a mapping of names to values")
            if classes:
                item = {**item, **{key: name_classes(item[key], names) for key, names in classes.items()}}
            if again:
                digest.update(json.dumps(dict(item), sort_keys=True, default=str).encode() + b"\n")
            yield Row(item, place)

    return _Opened(name, rows(), lambda: digest.hexdigest() if again else None)
