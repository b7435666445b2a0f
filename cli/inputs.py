"""Where inputs come from: arguments, a file, or stdin; one record at a time, whatever the size."""

import sys
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, BinaryIO, Generic, TypeVar, overload

from mlxbert.cli.options import InputOptions
from mlxbert.cli.views import console
from mlxbert.data.records import Format, find_format, read_records
from mlxbert.errors import ArgumentError, InputError, MlxbertError

STDIN = "-"
ARGUMENTS = "arguments"  # the name of an input that is not a file
Pair = tuple[str, str]
T_co = TypeVar("T_co", covariant=True)


@dataclass(frozen=True)
class Source(Generic[T_co]):
    """An opened input.

    Attributes:
        name: What errors call it.
        path: The file, if it can be read again.
        read_as: How it is read: its format and the names of fields or columns.
        records: Its records, in order; those that cannot be used as errors.
        size: Bytes of the file, `None` if that is not known.
        done: Bytes read so far.
        on_error: What a bad record does: `return` (it fails in its place), or `raise` if it is the only one.
        strict: Whether the first failure ends the run.
    """

    name: str
    path: Path | None
    read_as: tuple[str, ...]
    records: Iterator[T_co | InputError]
    size: int | None
    done: Callable[[], int]
    on_error: str
    strict: bool


@overload
def open_input(arguments: Sequence[str], options: InputOptions, names: str) -> Source[str]: ...


@overload
def open_input(arguments: Sequence[str], options: InputOptions, names: Pair) -> Source[Pair]: ...


def open_input(arguments: Sequence[str], options: InputOptions, names: str | Pair) -> Source[Any]:
    """The records that a command works on.

    Args:
        arguments: Values given on the command line; they take precedence. With two names they are one record.
        options: The input options.
        names: What a record consists of: fields of a JSON line, columns of a table. A single one can be renamed with
            `--field` or `--column`.

    Raises:
        ArgumentError: There is no input, or options contradict each other.
        InputError: The file cannot be opened.
    """
    if arguments:
        return _from_arguments(arguments, options, names)
    if options.input not in (None, STDIN):
        return _from_file(options.input, options, names)
    if options.input is None and (sys.stdin is None or sys.stdin.isatty()):
        raise ArgumentError("there is no input", hint="give a text, --input FILE, or pipe texts in")
    if sys.stdin is None:
        raise InputError("stdin is closed")
    return _from_file(sys.stdin.buffer, options, names)


def _from_arguments(arguments: Sequence[str], options: InputOptions, names: str | Pair) -> Source[Any]:
    if options.input is not None:
        raise ArgumentError("there are both arguments and --input", hint="give one of them")
    for name in ("format", "field", "column"):
        if getattr(options, name) is not None:
            raise ArgumentError(f"there are arguments and --{name}, which goes with --input")
    for argument in filter(_is_input_file, arguments):
        console.say("hint", f"{argument} is taken as a text; --input {argument} reads the file")
    single = isinstance(names, str)
    records = iter(arguments if single else [tuple(arguments)])
    alone = not single or len(arguments) == 1
    on_error = "raise" if alone else "return"
    return Source(ARGUMENTS, None, (ARGUMENTS,), records, None, lambda: 0, on_error, options.strict)


def _is_input_file(argument: str) -> bool:
    try:
        find_format(argument)
        return len(argument) < 256 and Path(argument).is_file()
    except ArgumentError:
        return False


def _from_file(source: str | BinaryIO, options: InputOptions, names: str | Pair) -> Source[Any]:
    format = options.format or _guess_format(source, options, names)
    if options.field is not None and format is not Format.jsonl:
        raise ArgumentError(f"--field goes with .jsonl, the input is {format.value}")
    if options.column is not None and format not in (Format.csv, Format.tsv, Format.parquet):
        raise ArgumentError(f"--column goes with .csv, .tsv and .parquet, the input is {format.value}")
    renamed = options.field or options.column
    if renamed is not None:
        if not isinstance(names, str):
            raise ArgumentError(f"this command reads {' and '.join(names)}, which cannot be renamed")
        names = renamed
    choose = None if isinstance(names, tuple) else "--field" if format is Format.jsonl else "--column"
    try:
        found = read_records(source, names, format=format, name=None if isinstance(source, str) else "stdin")
    except MlxbertError as problem:
        raise _in_options(problem, choose) from None
    records = _translated(iter(found), choose)
    read_as = (found.format.value, *found.names)
    return Source(found.name, found.path, read_as, records, found.size, lambda: found.done, "return", options.strict)


def _translated(records: Iterator[Any], choose: str | None) -> Iterator[Any]:
    """Records whose errors name options instead of arguments."""
    try:
        for record in records:
            yield _in_options(record, choose) if isinstance(record, InputError) else record
    except MlxbertError as problem:
        raise _in_options(problem, choose) from None


def _in_options(problem: MlxbertError, choose: str | None) -> MlxbertError:
    """The error with a hint that names the option which chooses a field or a column, if the command has one."""
    if problem.hint is not None and "names=" in problem.hint:
        problem.hint = choose and problem.hint.replace("names=", choose)
    return problem


def _guess_format(source: str | BinaryIO, options: InputOptions, names: str | Pair) -> Format:
    if isinstance(source, str):
        return find_format(source)
    if options.field is not None or isinstance(names, tuple):
        return Format.jsonl
    return Format.csv if options.column is not None else Format.txt
