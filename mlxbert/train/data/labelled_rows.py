"""Reads labelled data into memory: the records of files, folders, data sets or Python objects, with all their fields.

An unreadable record ends the reading with an error that names its place, because training should not start with only
part of the data.
"""

import hashlib
import json
import os
import unicodedata
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack, suppress
from dataclasses import dataclass, field
from itertools import islice
from pathlib import Path
from typing import Any, BinaryIO

from mlxbert.durable_files import identity
from mlxbert.errors import ArgumentError, InputError, shown
from mlxbert.mac_files import is_system_file
from mlxbert.readers.formats import FORMATS, FormatName, check_format, format_of, named_format, read_records
from mlxbert.readers.input_files import STDIN, check_there, open_source, stdin
from mlxbert.readers.parquet import name_classes
from mlxbert.readers.parsing import Item
from mlxbert.readers.pipes import Opened
from mlxbert.readers.stream import Record, RecordSource, RecordStream
from mlxbert.readers.text_lines import UTF8, Lines
from mlxbert.train.data.hub_datasets import HUB, class_names, open_hub

_LAYOUT = "name the files LABEL/NAME.txt"
_SAMPLE_LINES = 1000  # from which the format is guessed


class LabelFolder(Opened):
    """The texts in the subfolders of a folder; the names of the subfolders are their labels.

    Files next to the subfolders, and hidden files, are left out. Names are normalized to NFC, because macOS may
    decompose them, and the same data must give the same labels in the same order everywhere.
    """

    done = 0  # the number of bytes read so far

    def __init__(self, path: Path, name: str, encoding: str) -> None:
        self.name, self._encoding = name, encoding
        try:
            labels = [entry for entry in _visible(path) if entry.is_dir()]
            self._files = [(_name(label), file) for label in labels for file in _visible(label)]
        except OSError as problem:
            raise InputError(f"{name}: cannot be read ({problem.strerror})") from None
        if not labels:
            raise InputError(f"{name}: has no subfolders, expected a subfolder for each label", hint=_LAYOUT)
        for _, file in self._files:
            if file.suffix.lower() != ".txt" or not file.is_file():
                raise InputError(f"{file}: the folder of a label can contain only .txt files", hint=_LAYOUT)
        self._hash = hashlib.sha256()

    def __iter__(self) -> Iterator[Item]:
        """Yields each file's path, text and label; the files are sorted."""
        for label, path in self._files:
            with open_source(path, pipes=False) as file:
                lines = Lines(str(path), file, encoding=self._encoding)
                text = "\n".join(lines)
            self.done += lines.done
            for part in (label, _name(path), text):
                self._hash.update(part.encode("utf-8", "surrogateescape") + b"\0")
            yield str(path), {"text": text, "label": label}

    def sha256(self) -> str:
        """A hash of the labels, names and texts read so far, in hexadecimal digits."""
        return self._hash.hexdigest()


def _visible(folder: Path) -> list[Path]:
    files = (file for file in os.scandir(folder) if not file.name.startswith(".") and not is_system_file(file.name))
    return sorted(map(Path, files), key=_name)


def _name(path: Path) -> str:
    return unicodedata.normalize("NFC", path.name)


Source = str | Path | BinaryIO | Iterable[str | Path] | Iterable[Mapping[str, Any]]


@dataclass(frozen=True)
class LabelledRows(Sequence[Record]):
    """All rows of one or more sources, in order."""

    columns: tuple[str, ...]  # the names of all fields
    files: tuple[str, ...]  # the names of the sources
    sha256: Mapping[str, str]  # maps the names in `files` to hashes of the data read; pipes and iterators have no hash
    counts: Mapping[str, int]  # the number of rows from each source in `files`
    resumable: bool  # whether another process can read the same data again
    _rows: Sequence[Record] = field(repr=False)

    def __getitem__(self, index: Any) -> Any:
        return self._rows[index]

    def __len__(self) -> int:
        return len(self._rows)

    def __iter__(self) -> Iterator[Record]:
        return iter(self._rows)


def read_rows(
    source: Source,
    *,
    format: FormatName | str | None = None,
    words: bool = False,
    header: bool = True,
    encoding: str = UTF8,
) -> LabelledRows:
    """Reads records with all their fields.

    Args:
        source: One or more paths: .csv, .tsv, .jsonl, .json (an array of records, or SQuAD), .conll (also .iob, .bio),
            .conllu, .txt with one text per line (all also with .gz), .parquet, or a folder that has a subfolder of
            .txt files for each label. A row of .conll or .conllu is a sentence, whose values are lists. `hub:NAME`,
            `hub:NAME:CONFIG` or `hub:NAME:CONFIG:SPLIT` is a data set of the Hugging Face hub (the default split is
            `train`). `-` is stdin; a file opened in binary mode is also accepted. Both are read as .jsonl, or as .csv
            if `header` is false, unless `format` says otherwise. A source can also be any iterable of mappings.
        format: The format of the files; by default decided by their extensions.
        words: Whether sentences of words are expected. If so, files that look like CoNLL or CoNLL-U need no such
            extension.
        header: Whether the first row of a .csv or .tsv names its columns; otherwise they are called `1`, `2`, …
    """
    rows: list[Record] = []
    columns: dict[str, None] = {}
    hashes: dict[str, str | None] = {}
    counts: dict[str, int] = {}
    for opened in _sources(source):
        start = len(rows)
        with ExitStack() as stack:
            stream = _open(opened, format, words, stack, {"header": header, "encoding": encoding})
            for row in _usable(stream):
                rows.append(row)
                if not row.values.keys() <= columns.keys():
                    columns.update(dict.fromkeys(row.values))
            hashes[stream.name] = stream.files[0].sha256() if stream.files else None
            counts[stream.name] = len(rows) - start
        if len(rows) == start:
            raise InputError(f"{stream.name}: the input has no records")
    sha256 = {name: digest for name, digest in hashes.items() if digest is not None}
    return LabelledRows(tuple(columns), tuple(hashes), sha256, counts, len(sha256) == len(hashes), rows)


def check_sources(source: Source) -> None:
    """Raises an error for missing files and for values that are not data; unlike `read_rows`, reads nothing."""
    for entry in _sources(source):
        if not (isinstance(entry, str) and (entry == STDIN or entry.startswith(HUB))):
            check_there(entry)


def _sources(source: Any) -> list[Any]:
    """Returns the sources as a list; an open file or an iterable of records is a single item of the list."""
    if isinstance(source, str | Path) or hasattr(source, "read"):
        return [source]
    if isinstance(source, Mapping) or (hasattr(source, "to_dict") and not hasattr(source, "features")):
        raise ArgumentError(
            f"the data is a {type(source).__name__}, expected an iterable of mappings",
            hint='convert a pandas DataFrame with frame.to_dict("records")',
        )
    if not isinstance(source, Iterable):
        raise ArgumentError(
            f"the data is a {type(source).__name__}, expected a path, several paths, or an iterable of mappings"
        )
    if not (isinstance(source, Sequence) and source and isinstance(source[0], str | Path)):
        return [source]
    for path in source:
        if not isinstance(path, str | Path):
            raise ArgumentError(f"one of the paths is {path!r:.60}, expected a path")
    if len({*map(identity, source)}) < len(source):
        raise ArgumentError(f"a file is named twice ({', '.join(map(str, source))})")
    return list(source)


def _open(
    source: Any, format: FormatName | str | None, words: bool, stack: ExitStack, options: Mapping[str, Any]
) -> RecordStream:
    if isinstance(source, str) and source.startswith(HUB):
        return _open_mappings(source, f"{source}, row", open_hub(source))
    name = str(source) if isinstance(source, str | Path) else ""
    if isinstance(source, str) and source == STDIN:
        source, name = stdin(), "stdin"
    elif hasattr(source, "read"):
        name = str(getattr(source, "name", "input"))
    elif not isinstance(source, str | Path):
        return _open_mappings("records", "record", source)
    elif os.path.isdir(source):
        folder = LabelFolder(Path(source), name, options["encoding"])
        return RecordStream([RecordSource(name, iter(folder), opened=folder, file=folder)])
    if format is None and hasattr(source, "read"):
        format = FormatName.jsonl if options["header"] else FormatName.csv
    elif format is None and words and os.path.isfile(source):  # a pipe cannot be read twice
        format = find_words(source, options["encoding"])
    format_name = format_of(source, name) if format is None else check_format(format)
    file = open_source(source, name)
    if file is not source:
        stack.enter_context(file)
    return read_records(file, None, format=format_name, name=name, **options)


def _usable(stream: RecordStream) -> Iterator[Record]:
    """Yields the records of a stream, except blank lines of a .txt; raises the error of the first unusable record."""
    lines = FormatName.txt in stream.read_as
    for record in stream:
        if record.problem is not None:
            raise record.located(record.problem)
        if not lines or record.values["text"].strip():
            yield record


def row_bytes(values: Mapping[str, Any], place: str) -> bytes:
    """Returns the values of a row as JSON, for hashing."""
    try:
        return json.dumps(dict(values), sort_keys=True, default=str).encode() + b"\n"
    except (TypeError, ValueError, RecursionError) as problem:  # a number of thousands of digits, a list in itself
        raise InputError(f"{place}: the values cannot be written as JSON ({problem})") from None


class _Mappings:
    """Records that are Python mappings of names to values."""

    def __init__(self, name: str, mappings: Iterable[Any]) -> None:
        self._name, self._mappings, self._digest = name, mappings, hashlib.sha256()
        self.again = hasattr(mappings, "__len__")  # an iterator is used up

    def __iter__(self) -> Iterator[Item]:
        classes = class_names(self._mappings)
        for number, item in enumerate(self._mappings, 1):
            place = f"{self._name} {number}"
            if not isinstance(item, Mapping) or not all(isinstance(key, str) for key in item):
                yield place, InputError(f"the record is {shown(item)}, expected a mapping of names to values")
                return
            if classes:
                item = {**item, **{key: name_classes(item[key], names) for key, names in classes.items()}}
            if self.again:
                self._digest.update(row_bytes(item, place))
            yield place, item

    def sha256(self) -> str:
        """A hash of the values read so far."""
        return self._digest.hexdigest()


def _open_mappings(name: str, item_name: str, mappings: Iterable[Any]) -> RecordStream:
    items = _Mappings(item_name, mappings)
    return RecordStream([RecordSource(name, iter(items), file=items if items.again else None)])


def find_words(path: str | Path, encoding: str) -> FormatName | None:
    """Returns CoNLL or CoNLL-U, whichever the content of a file looks like.

    Returns `None` if it looks like neither, or if the extension already decides the format.
    """
    if named_format(str(path)) not in (None, FormatName.txt, FormatName.csv, FormatName.tsv):
        return None
    with suppress(InputError), open_source(path) as file:  # reading raises the error again
        lines = [*islice(Lines(str(path), file, lenient=True, encoding=encoding), _SAMPLE_LINES)]
        return next((name for name, format in FORMATS.items() if format.looks and format.looks(lines)), None)
    return None
