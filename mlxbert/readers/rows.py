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
from typing import Any, BinaryIO

from mlxbert.errors import ArgumentError, InputError, shown
from mlxbert.files import identity
from mlxbert.readers.class_names import class_names, name_classes
from mlxbert.readers.formats import Format, check_format, find_words, format_of, read_items
from mlxbert.readers.hub import HUB, open_hub
from mlxbert.readers.inputs import open_source, to_read_again
from mlxbert.readers.label_folder import LabelFolder
from mlxbert.readers.reading import Item, Wanted, placed

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
        counts: How many rows come from each of the `files`.
        resumable: Whether another process would read the same.
    """

    columns: tuple[str, ...]
    files: tuple[str, ...]
    sha256: Mapping[str, str]
    counts: Mapping[str, int]
    resumable: bool
    _rows: Sequence[Row] = field(repr=False)

    def __getitem__(self, index: Any) -> Any:
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


def read_rows(
    source: Source, *, format: Format | str | None = None, words: bool = False, on_progress: Progress | None = None,
    **how: Any,
) -> Rows:  # fmt: skip
    """Reads records with all their fields.

    Args:
        source: A path, or several: .csv, .tsv, .jsonl, .json (an array of records, or SQuAD), .conll (also .iob, .bio),
            .conllu, .txt with a text in each line (all also with .gz), .parquet, or a folder that has a folder of .txt
            files for each label. A row of .conll and .conllu is a sentence, whose values are lists. `hub:NAME`,
            `hub:NAME:CONFIG` or `hub:NAME:CONFIG:SPLIT` is a data set of the Hugging Face hub (its split `train` where
            none is named). `-` is stdin, or give a file opened in binary mode; both are .jsonl unless `format` says
            otherwise, or .csv without a header. Or any iterable of mappings.
        format: How files store records; by default their endings say so.
        words: Whether sentences of words are read: files that look like CoNLL or CoNLL-U then need no such name.
        on_progress: Called now and then with the bytes read so far and their total, which is known of files, and
            otherwise `None`.
        **how: Of `Wanted`: `header` of tables and `encoding` of files of text.
    """
    sources, wanted = _sources(source), Wanted(**how)
    total = sum(map(_bytes, sources)) if all(map(_bytes, sources)) else None
    rows: list[Row] = []
    columns: dict[str, None] = {}
    hashes: dict[str, str | None] = {}
    counts: dict[str, int] = {}
    before = 0
    for one in sources:
        start = len(rows)
        with ExitStack() as stack:
            part = _open(one, format, wanted, words, stack)
            for row in part.rows:
                rows.append(row)
                if not row.values.keys() <= columns.keys():
                    columns.update(dict.fromkeys(row.values))
                if on_progress is not None and len(rows) % _REPORT == 0:
                    on_progress(before + part.done(), total)
            hashes[part.name], counts[part.name] = part.sha256(), len(rows) - start
        if len(rows) == start:
            raise InputError(f"{part.name}: there are no records")
        before += part.done()
    if on_progress is not None:
        on_progress(before, total)
    known = {name: found for name, found in hashes.items() if found is not None}
    return Rows(tuple(columns), tuple(hashes), known, counts, len(known) == len(hashes), rows)


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
    if len({*map(identity, source)}) < len(source):
        raise ArgumentError(f"a file is named twice: {', '.join(map(str, source))}")
    return list(source)


def _bytes(source: Any) -> int:
    """The size of a file; 0 for what is not a file."""
    return os.path.getsize(source) if isinstance(source, str | Path) and os.path.isfile(source) else 0


def _open(source: Any, format: Format | str | None, wanted: Wanted, words: bool, stack: ExitStack) -> _Opened:
    if isinstance(source, str) and source.startswith(HUB):
        return _open_records(source, f"{source}, row", open_hub(source))
    name = str(source) if isinstance(source, str | Path) else ""
    if isinstance(source, str) and source == STDIN:
        if sys.stdin is None:
            raise InputError("stdin is closed")
        source, name = sys.stdin.buffer, "stdin"
    elif hasattr(source, "read"):
        name = str(getattr(source, "name", "input"))
    elif not isinstance(source, str | Path):
        return _open_records("records", "record", source)
    elif os.path.isdir(source):
        folder = LabelFolder(Path(source), name, wanted.encoding)
        texts = (Row({"text": text, "label": label}, place) for text, label, place in folder)
        return _Opened(name, texts, folder.sha256, lambda: folder.done)
    if format is None and hasattr(source, "read"):
        format = Format.jsonl if wanted.header else Format.csv
    elif format is None and words and os.path.isfile(source):  # what is read of a pipe is gone
        format = find_words(source, wanted.encoding)
    chosen = format_of(source, name) if format is None else check_format(format)
    file = open_source(source, name)
    if file is not source:
        stack.enter_context(file)
    items, opened = read_items(name, file, chosen, wanted)
    again = to_read_again(file)
    rows = _strict(name, items, blank=chosen is not Format.txt)
    return _Opened(name, rows, lambda: None if again is None else again.sha256(), lambda: opened.done)


def _strict(name: str, items: Iterator[Item], *, blank: bool) -> Iterator[Row]:
    """The records of a file, perhaps without blank texts, until one cannot be used."""
    for place, values in items:
        if isinstance(values, InputError):
            raise placed(values, place, name)
        if blank or values["text"].strip():
            yield Row(values, f"{name}, {place}")


def row_bytes(values: Mapping[str, Any], place: str) -> bytes:
    """The values of a row as JSON, to be hashed."""
    try:
        return json.dumps(dict(values), sort_keys=True, default=str).encode() + b"\n"
    except (TypeError, ValueError, RecursionError) as problem:  # a number of thousands of digits, a list in itself
        raise InputError(f"{place}: the values are not ones that JSON can hold ({problem})") from None


def _open_records(name: str, called: str, items: Iterable[Any]) -> _Opened:
    digest = hashlib.sha256()
    again = hasattr(items, "__len__")  # an iterator is used up
    classes = class_names(items)

    def rows() -> Iterator[Row]:
        for number, item in enumerate(items, 1):
            place = f"{called} {number}"
            if not isinstance(item, Mapping) or not all(isinstance(key, str) for key in item):
                raise InputError(f"{place}: {shown(item)} is not a mapping of names to values")
            if classes:
                item = {**item, **{key: name_classes(item[key], names) for key, names in classes.items()}}
            if again:
                digest.update(row_bytes(item, place))
            yield Row(item, place)

    return _Opened(name, rows(), lambda: digest.hexdigest() if again else None)
