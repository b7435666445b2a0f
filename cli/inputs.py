"""Where texts come from: arguments, a file, or stdin; one record at a time, whatever the size.

A record is a text, or several for pairs; one that cannot be read becomes an `InputError` in its place. Blank
lines of .jsonl and empty rows of .csv and .tsv are no records.
"""

import csv
import json
import os
import stat
import sys
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO

from mlxbert.cli.options import Format, InputOptions
from mlxbert.cli.views import console
from mlxbert.errors import ArgumentError, InputError

STDIN = "-"
ARGUMENTS = "arguments"  # what errors call an input that is no file
_BOM = b"\xef\xbb\xbf"
_ENDINGS = {".txt": Format.txt, ".jsonl": Format.jsonl, ".csv": Format.csv, ".tsv": Format.tsv}

# One value per name asked for: ("text",) gives 1-tuples, ("a", "b") pairs.
Values = tuple[str, ...]


@dataclass(frozen=True)
class Source:
    """An opened input.

    Attributes:
        name: What errors call it.
        path: The file, where it is one.
        read_as: How it is read: its format and the names of what is taken.
        records: Its records, in order; those that cannot be read as errors.
        size: Bytes of the file, `None` where that is not known.
        done: Bytes read so far.
        on_error: What a bad record does: `return` (it fails in its place), or `raise` where it is the only one.
        strict: Whether the first failure ends everything.
    """

    name: str
    path: Path | None
    read_as: tuple[str, ...]
    records: Iterator[Values | InputError]
    size: int | None
    done: Callable[[], int]
    on_error: str
    strict: bool


def open_input(arguments: Sequence[str], options: InputOptions, names: Sequence[str]) -> Source:
    """The records that a command is to work on.

    Args:
        arguments: Values given on the command line; they win. With several names they are one record.
        options: The input options.
        names: What a record consists of: fields of a JSON line, columns of a table. A single one can be renamed by
            `--field` or `--column`.

    Raises:
        ArgumentError: There is no input at all, or options that do not go together.
        InputError: The file cannot be opened.
    """
    if arguments:
        return _from_arguments(arguments, options, names)
    if options.input is None and sys.stdin is not None and not sys.stdin.isatty():
        return _from_file(STDIN, sys.stdin.buffer, options, names)
    if options.input is None:
        raise ArgumentError("there is no input", hint="give a text, --input FILE, or pipe texts in")
    if options.input == STDIN:
        if sys.stdin is None:
            raise InputError("stdin is closed")
        return _from_file(STDIN, sys.stdin.buffer, options, names)
    try:
        file = open(options.input, "rb")  # noqa: SIM115 - read lazily, closed with the process
    except OSError as problem:
        raise InputError(f"{options.input}: cannot be read ({problem.strerror})") from None
    return _from_file(options.input, file, options, names)


def _from_arguments(arguments: Sequence[str], options: InputOptions, names: Sequence[str]) -> Source:
    if options.input is not None:
        raise ArgumentError("there are both arguments and --input", hint="give one of them")
    for name in ("format", "field", "column"):
        if getattr(options, name) is not None:
            raise ArgumentError(f"there are arguments and --{name}, which goes with --input")
    for argument in arguments:
        if argument.endswith(tuple(_ENDINGS)) and len(argument) < 256 and Path(argument).is_file():
            console.say("hint", f"{argument} is taken as a text; --input {argument} reads the file")
    records: Iterator[Values | InputError]
    records = iter([tuple(arguments)] if len(names) > 1 else [(text,) for text in arguments])
    alone = len(names) > 1 or len(arguments) == 1
    return Source(
        ARGUMENTS, None, (ARGUMENTS,), records, None, lambda: 0, "raise" if alone else "return", options.strict
    )


def _from_file(name: str, file: BinaryIO, options: InputOptions, names: Sequence[str]) -> Source:
    called = "stdin" if name == STDIN else name
    kind = options.format or _guess_format(name, options, names)
    if options.field is not None and kind is not Format.jsonl:
        raise ArgumentError(f"--field goes with .jsonl, the input is {kind.value}")
    if options.column is not None and kind not in (Format.csv, Format.tsv):
        raise ArgumentError(f"--column goes with .csv and .tsv, the input is {kind.value}")
    renamed = options.field or options.column
    if renamed is not None:
        if len(names) > 1:
            raise ArgumentError(f"this command reads {' and '.join(names)}, which cannot be renamed")
        names = (renamed,)
    lines = _Lines(called, file)
    if kind is Format.txt:
        if len(names) > 1:
            raise ArgumentError(
                f"{called}: {' and '.join(names)} do not fit into a .txt", hint="use .jsonl, .csv or .tsv"
            )
        records: Iterator[Values | InputError] = ((line,) for line in lines)
    elif kind is Format.jsonl:
        records = (_from_json(line, names) for line in lines if line.strip())
    else:
        records = _from_table(called, lines, names, kind)
    # A pipe that has a name can be read once only, as stdin.
    path = Path(name) if name != STDIN and stat.S_ISREG(os.fstat(file.fileno()).st_mode) else None
    return Source(
        called, path, (kind.value, *names), records, _size(file), lambda: lines.done, "return", options.strict
    )


def _guess_format(name: str, options: InputOptions, names: Sequence[str]) -> Format:
    if name == STDIN:
        if options.field is not None or len(names) > 1:
            return Format.jsonl
        return Format.csv if options.column is not None else Format.txt
    ending = Path(name).suffix.lower()
    if ending not in _ENDINGS:
        known = ", ".join(_ENDINGS)
        raise ArgumentError(
            f"{name}: ending {ending!r}, expected one of {known}", hint="or say what it is with --format"
        )
    return _ENDINGS[ending]


def _size(file: BinaryIO) -> int | None:
    try:
        return os.fstat(file.fileno()).st_size or None
    except OSError:
        return None


class _Lines:
    """Lines of a UTF-8 file, split at newlines alone; CRLF and a byte-order mark are taken off."""

    def __init__(self, name: str, file: BinaryIO) -> None:
        self.name, self.file, self.done = name, file, 0

    def __iter__(self) -> Iterator[str]:
        try:
            for raw in self.file:
                start, self.done = self.done, self.done + len(raw)
                if start == 0:
                    raw, start = raw.removeprefix(_BOM), start + len(_BOM) * raw.startswith(_BOM)
                yield self._decode(raw, start)
        except OSError as problem:
            raise InputError(f"{self.name}: cannot be read ({problem.strerror})") from None

    def _decode(self, raw: bytes, start: int) -> str:
        nul = raw.find(b"\0")
        if nul >= 0:
            raise InputError(
                f"{self.name}: a zero byte at offset {start + nul}: binary, or UTF-16; expected UTF-8 text",
                hint="turn UTF-16 into UTF-8 with: iconv -f UTF-16 -t UTF-8",
            )
        try:
            return raw.removesuffix(b"\n").removesuffix(b"\r").decode("utf-8")
        except UnicodeDecodeError as problem:
            offset = start + problem.start
            raise InputError(
                f"{self.name}: byte 0x{raw[problem.start]:02x} at offset {offset} is not UTF-8",
                hint="turn Latin-1 into UTF-8 with: iconv -f ISO-8859-1 -t UTF-8",
            ) from None


def _json_kind(value: object) -> str:
    """What JSON calls a value."""
    kinds = {type(None): "null", bool: "a boolean", int: "a number", float: "a number", str: "a string", list: "a list"}
    return kinds.get(type(value), "an object")


def _pick(record: dict[str, object], names: Sequence[str]) -> Values | InputError:
    for name in names:
        if name not in record:
            return InputError(
                f"no field {name!r}, the record has: {', '.join(record) or 'nothing'}", hint="name it with --field"
            )
        if not isinstance(record[name], str):
            return InputError(f"field {name!r} is {_json_kind(record[name])}, expected a string")
    return tuple(str(record[name]) for name in names)


def _from_json(line: str, names: Sequence[str]) -> Values | InputError:
    try:
        record = json.loads(line)
    except (ValueError, RecursionError) as problem:
        return InputError(f"not valid JSON ({problem})")
    if not isinstance(record, dict):
        return InputError(f"expected a JSON object, found {_json_kind(record)}")
    return _pick(record, names)


def _check_header(source: str, header: list[str] | None, names: Sequence[str]) -> list[str]:
    if header is None:
        raise InputError(f"{source}: empty, expected a header line")
    for name in names:
        if header.count(name) != 1:
            found = "twice" if name in header else "not"
            columns = ", ".join(header)
            hint = "name it with --column"
            if len(header) == 1 and ";" in columns:
                hint = "columns are separated by semicolons: save it with commas, or as .tsv"
            raise InputError(f"{source}: column {name!r} is {found} in the header: {columns}", hint=hint)
    return header


def _from_table(source: str, lines: _Lines, names: Sequence[str], kind: Format) -> Iterator[Values | InputError]:
    csv.field_size_limit(2**31 - 1)  # the library's own limit is 128 KB, less than a long article
    text = (line + "\n" for line in lines)  # quoted fields may run over lines
    # Quotes are data in a .tsv (IANA text/tab-separated-values), and escape in a .csv (RFC 4180).
    rows = (
        csv.reader(text, strict=True)
        if kind is Format.csv
        else csv.reader(text, delimiter="\t", quoting=csv.QUOTE_NONE)
    )
    try:
        header = next(rows, None)
    except csv.Error as problem:
        raise InputError(f"{source}: no header line of {kind.value} ({problem})") from None
    header = _check_header(source, header, names)
    while True:
        try:
            row = next(rows)
        except StopIteration:
            return
        except csv.Error as problem:
            yield InputError(f"not a line of {kind.value} ({problem})")
            continue
        if row and len(row) != len(header):
            yield InputError(f"{len(row)} columns, the header has {len(header)}")
        elif row:
            yield _pick(dict(zip(header, row, strict=True)), names)


def single(records: Iterable[Values | InputError]) -> Iterator[str | InputError]:
    """Records of one value as that value."""
    return (record if isinstance(record, InputError) else record[0] for record in records)


def pairs(records: Iterable[Values | InputError]) -> Iterator[tuple[str, str] | InputError]:
    """Records of two values as pairs."""
    return (record if isinstance(record, InputError) else (record[0], record[1]) for record in records)
