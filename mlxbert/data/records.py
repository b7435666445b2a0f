"""Records from files: one text each, or several values, streamed whatever the size of the file.

`.txt`, `.jsonl`, `.csv` and `.tsv` files are UTF-8, and may be compressed (`.txt.gz`, `.txt.xz` …); `.parquet` files
need pyarrow. A record that cannot be used becomes an `InputError` in its place, also where a line is not UTF-8 or holds
a zero byte. Blank lines of .jsonl files and empty rows of .csv and .tsv files are not records.
"""

import io
import json
import os
import stat
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path
from typing import Any, BinaryIO, Generic, TypeVar, overload

from mlxbert.data.lines import Lines, is_compressed, uncompressed_name
from mlxbert.data.live import Live, as_it_comes
from mlxbert.data.parquet import ParquetRows
from mlxbert.data.parse import json_type, read_objects, read_table, separator_hint
from mlxbert.errors import ArgumentError, InputError
from mlxbert.inputs import InputFile, Stamp

T_co = TypeVar("T_co", covariant=True)
_Values = tuple[str, ...]


class Format(StrEnum):
    """How a file stores records."""

    txt = "txt"
    jsonl = "jsonl"
    csv = "csv"
    tsv = "tsv"
    parquet = "parquet"
    conll = "conll"
    conllu = "conllu"
    squad = "squad"


_ENDINGS: dict[str, Format] = {f".{format}": format for format in Format if format != "squad"}
_ENDINGS |= {".iob": Format.conll, ".bio": Format.conll, ".json": Format.squad}
_SENTENCES = (Format.conll, Format.conllu)
_TEXTS = (Format.txt, Format.jsonl, Format.csv, Format.tsv, Format.parquet)
# What to do about files that other programs write.
_SAVED_AS = {ending: "save it as plain text, .txt" for ending in (".doc", ".docx", ".odt", ".rtf", ".pdf", ".html")}
_SAVED_AS |= {ending: "save the sheet as .csv" for ending in (".xls", ".xlsx", ".ods")}
_SAVED_AS |= {".npy": "these are vectors, not texts", ".safetensors": "these are tensors, not texts"}


@dataclass(frozen=True)
class Records(Generic[T_co]):
    """An open file; iterating over it reads it, once, and closes it at the end.

    Attributes:
        name: What errors call it.
        file: The file, if it can be read again: not a pipe.
        format: How it stores records.
        names: The fields or columns that are read.
        size: Bytes of the file; `None` if that is not known.
        kept: Where columns are kept, their values for each record read so far. They are to be taken out: they would
            fill the memory.
    """

    name: str
    file: InputFile | None
    format: Format
    names: tuple[str, ...]
    size: int | None
    kept: deque[dict[str, Any]]
    _records: Live[T_co | InputError]
    _done: Callable[[], int]

    def __iter__(self) -> Live[T_co | InputError]:
        return self._records

    @property
    def done(self) -> int:
        """Bytes of the file read so far."""
        return self._done()


@overload
def read_records(
    source: str | Path | BinaryIO,
    names: str = "text",
    *,
    format: Format | str | None = None,
    name: str | None = None,
    header: bool = True,
    keep: Sequence[str] | None = (),
) -> Records[str]: ...


@overload
def read_records(
    source: str | Path | BinaryIO,
    names: tuple[str, str],
    *,
    format: Format | str | None = None,
    name: str | None = None,
    header: bool = True,
    keep: Sequence[str] | None = (),
) -> Records[tuple[str, str]]: ...


@overload
def read_records(
    source: str | Path | BinaryIO,
    names: list[str] | tuple[str, ...],
    *,
    format: Format | str | None = None,
    name: str | None = None,
    header: bool = True,
    keep: Sequence[str] | None = (),
) -> Records[tuple[str, ...]]: ...


def read_records(
    source: str | Path | BinaryIO,
    names: str | list[str] | tuple[str, ...] = "text",
    *,
    format: Format | str | None = None,
    name: str | None = None,
    header: bool = True,
    keep: Sequence[str] | None = (),
) -> Records[Any]:
    """Opens a file of records.

    Args:
        source: Its path, or a file opened in binary mode, which the caller closes.
        names: The field of .jsonl objects or the column of a table to read: records are strings. Several names give
            tuples. A .txt has no names: each line is a record.
        format: How the file stores records; by default its ending says so.
        name: What errors call the file; by default its path.
        header: Whether the first row of a .csv or .tsv names its columns; otherwise they are called `1`, `2`, …
        keep: Other fields or columns, whose values go to `Records.kept`; `None` keeps `id` where there is one.

    Raises:
        ArgumentError: The format is not known, or cannot hold several values.
        InputError: The file cannot be opened. Iterating raises it, too: a missing column, damaged compression.
        MlxbertError: A .parquet file, and pyarrow is not installed.
    """
    given = (names,) if isinstance(names, str) else tuple(names)
    called = name or str(source if isinstance(source, str | Path) else getattr(source, "name", "input"))
    found = find_format(called, texts=True) if format is None else check_format(format)
    if not given:
        raise ArgumentError("names is empty, expected fields or columns")
    if found is Format.squad:
        raise ArgumentError(
            f"{called}: a .json file of questions is for training and evaluation",
            hint="if each line is a JSON object, name the format: format='jsonl'",
        )
    if found is Format.txt and len(given) > 1:
        raise ArgumentError(
            f"{called}: a .txt file has one text per line, expected {' and '.join(given)}",
            hint="use .jsonl, .csv, .tsv or .parquet",
        )
    if found in _SENTENCES:
        raise ArgumentError(
            f"{called}: a .{found.value} file has sentences of words, expected texts",
            hint="use .txt, .jsonl or a table",
        )
    if not header and found not in (Format.csv, Format.tsv):
        raise ArgumentError(f"{called}: a table without a header is .csv or .tsv, the input is {found.value}")
    file = open_source(source, called)
    size = size_of(file)
    reader: Lines | ParquetRows
    try:
        lines = found is not Format.parquet
        reader = Lines(called, file, lenient=True) if lines else ParquetRows(called, file, given, size, keep)
    except BaseException:
        if file is not source:
            file.close()
        raise
    kept: deque[dict[str, Any]] = deque()
    records = _records(reader, given, found, header, _Keeper(keep, kept))
    if isinstance(names, str):
        records = (record if isinstance(record, InputError) else record[0] for record in records)
    if file is not source:
        records = _closing(file, records)
    live = Live(records, reader.ready) if isinstance(reader, Lines) else Live(records)
    again = file if isinstance(file, InputFile) and file.reopens else None
    return Records(called, again, found, given, size, kept, live, lambda: reader.done)


def find_format(name: str, *, texts: bool = False) -> Format:
    """The format that the ending of a file names; a `.gz` or `.xz` after it does not count.

    Args:
        name: The name of the file.
        texts: Whether errors name only formats of texts, not those of training data.

    Raises:
        ArgumentError: It names none.
    """
    compressed = is_compressed(name)
    ending = Path(uncompressed_name(name)).suffix
    if ending not in _ENDINGS or (compressed and _ENDINGS[ending] is Format.parquet):
        if os.path.isdir(name):  # a text may be too long for a path
            raise ArgumentError(f"{name}: is a folder, expected a file")
        others = ", ".join(known for known, format in _ENDINGS.items() if not texts or format in _TEXTS)
        raise ArgumentError(
            f"{name}: extension {Path(name).suffix!r}, expected one of {others}, or a text format with .gz or .xz",
            hint=_SAVED_AS.get(ending, "otherwise name the format, for example format='jsonl'"),
        )
    return _ENDINGS[ending]


def check_format(format: Format | str) -> Format:
    """The format of this name.

    Raises:
        ArgumentError: There is none.
    """
    try:
        return Format(format)
    except ValueError:
        raise ArgumentError(f"format is {format!r}, expected one of {', '.join(Format)}") from None


def open_source(source: str | Path | BinaryIO, name: str | None = None, stamp: Stamp | None = None) -> BinaryIO:
    """An input, opened: an `InputFile` where it is a regular file, otherwise what is read as it comes.

    Args:
        source: Its path, or a file opened in binary mode, which the caller closes.
        name: What errors call it; by default its path.
        stamp: What it was when it was hashed or read before.

    Raises:
        InputError: It cannot be opened, or has changed.
    """
    if not isinstance(source, str | Path):
        plain = type(source) is io.BufferedReader and type(source.raw) is io.FileIO  # not what unpacks a file
        if not plain or not stat.S_ISREG(os.fstat(source.fileno()).st_mode):
            return source
        file = InputFile(source.fileno(), name or str(getattr(source, "name", "input")))
        file.seek(source.tell())
        return file
    try:
        if stat.S_ISREG(os.stat(source).st_mode):
            return InputFile(source, name or str(source), stamp)
        return as_it_comes(open(source, "rb"), closes=True)
    except (OSError, ValueError) as problem:
        raise InputError(f"{source}: cannot be read ({getattr(problem, 'strerror', problem)})") from None


def size_of(file: BinaryIO) -> int | None:
    """Bytes of an open file; `None` if that is not known."""
    try:
        return os.fstat(file.fileno()).st_size or None
    except OSError:
        return None


def _closing(file: BinaryIO, records: Iterator[Any]) -> Iterator[Any]:
    with file:
        yield from records


class _Keeper:
    """Puts the kept values of each record into a queue; none of a record that could not be read.

    Args:
        names: What is kept; `None` for `id` where there is one.
        kept: The queue.
    """

    def __init__(self, names: Sequence[str] | None, kept: deque[dict[str, Any]]) -> None:
        self.names, self.kept = names, kept

    def known(self, columns: Sequence[str]) -> Sequence[str]:
        """Those of the names that are columns, or have to be."""
        return [name for name in columns if name == "id"][:1] if self.names is None else self.names

    def put(self, record: Mapping[str, Any] | InputError) -> None:
        """Keeps values of a record; a name that it does not have is null."""
        if self.names is None or self.names:
            found = {} if isinstance(record, InputError) else record
            names = self.known([*found]) if found else ()
            self.kept.append({name: _as_json(found.get(name)) for name in names})


def _as_json(value: Any) -> Any:
    """The value, or a string of what JSON cannot hold: times, infinity."""
    if value is not None and not isinstance(value, str | int):
        try:
            json.dumps(value, allow_nan=False)
        except (TypeError, ValueError):
            return str(value)
    return value


def _records(
    reader: Lines | ParquetRows, names: _Values, format: Format, header: bool, keeper: _Keeper
) -> Iterator[Any]:
    if isinstance(reader, ParquetRows):
        return _from_rows(iter(reader), len(names), reader.kept, keeper)
    if format is Format.txt:
        return (reader.problem() or (line,) for line in reader)
    if format is Format.jsonl:
        return _from_objects(reader, names, keeper)
    return _from_table(reader, names, format, header, keeper)


def _from_objects(lines: Lines, names: _Values, keeper: _Keeper) -> Iterator[_Values | InputError]:
    for _, record in read_objects(lines):
        keeper.put(record)
        yield _texts(record, names)


def _texts(record: dict[str, Any] | InputError, names: _Values) -> _Values | InputError:
    if isinstance(record, InputError):
        return record
    for name in names:
        if name not in record:
            return InputError(
                f"no field {name!r}, the record has: {', '.join(record) or 'nothing'}",
                hint="choose the field with names=",
            )
        if not isinstance(record[name], str):
            return InputError(f"field {name!r} is {json_type(record[name])}, expected a string")
    return tuple(record[name] for name in names)


def _from_table(
    lines: Lines, names: _Values, format: Format, named: bool, keeper: _Keeper
) -> Iterator[_Values | InputError]:
    header, rows = read_table(lines, format, header=named)
    kept = keeper.known(header)
    choose = "choose the column with names="
    places = [_find_column(lines.name, header, name, choose) for name in names]
    places += [_find_column(lines.name, header, name, None) for name in kept]
    found = (
        _at_line(number, row) if isinstance(row, InputError) else tuple(row[place] for place in places)
        for number, row in rows
    )
    yield from _from_rows(found, len(names), kept, keeper)


def _at_line(number: int, problem: InputError) -> InputError:
    """The error with its line, which those of single lines have already."""
    if problem.message.startswith("line "):
        return problem
    return InputError(f"line {number}: {problem.message}", hint=problem.hint)


def _from_rows(
    rows: Iterator[tuple[Any, ...] | InputError], texts: int, kept: Sequence[str], keeper: _Keeper
) -> Iterator[_Values | InputError]:
    """The texts of rows, which stand before the values to be kept."""
    for row in rows:
        if isinstance(row, InputError):
            keeper.put(row)
            yield row
        else:
            keeper.put(dict(zip(kept, row[texts:], strict=True)))
            yield row[:texts]


def _find_column(source: str, header: list[str], name: str, hint: str | None) -> int:
    if header.count(name) != 1:
        found = "two columns" if name in header else "no column"
        raise InputError(
            f"{source}: {found} {name!r}, the file has: {', '.join(header)}",
            hint=separator_hint(header) or hint,
        )
    return header.index(name)
