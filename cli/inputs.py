"""Where inputs come from: arguments, a file, or stdin; one record at a time, whatever the size."""

import hashlib
import sys
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, BinaryIO, Generic, TypeVar, overload

from mlxbert.cli.options import InputOptions, PairInputOptions
from mlxbert.cli.places import Places
from mlxbert.cli.views import console
from mlxbert.data.lines import read_text
from mlxbert.data.records import Format, find_format, open_source, read_records
from mlxbert.errors import ArgumentError, InputError, MlxbertError

STDIN = "-"
ARGUMENTS = "arguments"  # the name of an input that is not a file
Pair = tuple[str, str]
_SENTENCE = 4  # words that are rather a text without quotes than texts
T_co = TypeVar("T_co", covariant=True)
# The options that name what is read, and the formats that they go with.
_TABLES = (Format.csv, Format.tsv, Format.parquet)
_NAMING = {
    "field": (Format.jsonl,),
    "column": _TABLES,
    "text_column": (Format.jsonl, *_TABLES),
    "pair_column": (Format.jsonl, *_TABLES),
}


@dataclass(frozen=True)
class Source(Generic[T_co]):
    """An opened input.

    Attributes:
        name: What errors call it.
        path: The file, if it can be read again.
        read_as: How it is read: its format and the names of fields or columns.
        records: Its records, in order; those that cannot be used as errors.
        size: Bytes of the file, `None` if that is not known.
        done: Bytes of the first records, of as many as have results; the number never falls.
        on_error: What a bad record does: `return` (it fails in its place), or `raise` if it is the only one.
        strict: Whether the first failure ends the run.
    """

    name: str
    path: Path | None
    read_as: tuple[str, ...]
    records: Iterator[T_co | InputError]
    size: int | None
    done: Callable[[int], int]
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
            `--field`, `--column` or `--text-column`, and becomes a pair with `--pair-column`.

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


def open_texts(arguments: Sequence[str], options: PairInputOptions, pair: str | None) -> Source[str | Pair]:
    """Texts; or pairs, of each text with `pair` or of two columns.

    Raises:
        ArgumentError: There is no input, or options contradict each other.
        InputError: The file cannot be opened.
    """
    if pair is not None and options.pair_column is not None:
        raise ArgumentError("there are both --pair and --pair-column", hint="give one of them")
    opened: Source[Any] = open_input(arguments, options, "text")
    if pair is None:
        return opened
    paired = (record if isinstance(record, InputError) else (record, pair) for record in opened.records)
    return replace(opened, records=paired)


def open_questions(
    arguments: Sequence[str], options: InputOptions, context: str | None, context_file: str | None
) -> Source[Pair]:
    """Questions, each with its context: one for all of them, or that of its own record.

    Raises:
        ArgumentError: There is no question or no context, or options contradict each other.
        InputError: A file cannot be opened or read.
    """
    if context is not None and context_file is not None:
        raise ArgumentError("there are both --context and --context-file", hint="give one of them")
    if context_file == STDIN and not arguments and options.input in (None, STDIN):
        raise ArgumentError("--context-file is stdin, and there is no question", hint="give the question: answer TEXT")
    text = context if context_file is None else _read_context(context_file)
    if text is None and arguments:
        raise ArgumentError(
            "there is no context to answer from", hint="give it with --context TEXT or --context-file FILE"
        )
    if text is None:
        return open_input((), options, ("question", "context"))
    opened: Source[Any] = open_input(arguments, options, "question")
    paired = (record if isinstance(record, InputError) else (record, text) for record in opened.records)
    digest = hashlib.sha256(text.encode("utf-8", "surrogateescape")).hexdigest()
    return replace(opened, records=paired, read_as=(*opened.read_as, f"context {digest}"))


def _read_context(source: str) -> str:
    if source == STDIN and sys.stdin is None:
        raise InputError("stdin is closed")
    if source == STDIN:
        text = read_text("stdin", sys.stdin.buffer)
    else:
        with open_source(source)[0] as file:
            text = read_text(source, file)
    if not text.strip():
        raise InputError(f"{'stdin' if source == STDIN else source}: there is no text to answer from")
    return text


def _from_arguments(arguments: Sequence[str], options: InputOptions, names: str | Pair) -> Source[Any]:
    if options.input is not None:
        raise ArgumentError("there are both arguments and --input", hint="give one of them")
    for name in ("format", *_NAMING):
        if getattr(options, name, None) is not None:
            raise ArgumentError(f"there are arguments and {_option(name)}, which goes with --input")
    for argument in filter(_is_input_file, arguments):
        console.say("hint", f"{argument} is taken as a text; --input {argument} reads the file")
    single = isinstance(names, str)
    if single and len(arguments) >= _SENTENCE and not any(" " in argument for argument in arguments):
        console.say("hint", f"these are {len(arguments)} texts of one word each; for a single text, put it in quotes")
    records = iter(arguments if single else [tuple(arguments)])
    alone = not single or len(arguments) == 1
    on_error = "raise" if alone else "return"
    return Source(ARGUMENTS, None, (ARGUMENTS,), records, None, lambda count: 0, on_error, options.strict)


def _is_input_file(argument: str) -> bool:
    try:
        find_format(argument)
        return len(argument) < 256 and Path(argument).is_file()
    except ArgumentError:
        return False


def _from_file(source: str | BinaryIO, options: InputOptions, names: str | Pair) -> Source[Any]:
    given = {name: value for name in _NAMING if (value := getattr(options, name, None)) is not None}
    format = Format(options.format) if options.format else _guess_format(source, given, names)
    for name in given:
        if format not in _NAMING[name]:
            formats = ", ".join(f".{one.value}" for one in _NAMING[name])
            raise ArgumentError(f"{_option(name)} goes with {formats}, the input is {format.value}")
    names, choose = _names(given, names, format)
    try:
        found = read_records(source, names, format=format, name=None if isinstance(source, str) else "stdin")
    except MlxbertError as problem:
        raise _in_options(problem, choose) from None
    places = Places(lambda: found.done)
    records = places.following(_translated(iter(found), choose))
    read_as = (found.format.value, *found.names)
    return Source(found.name, found.path, read_as, records, found.size, places.after, "return", options.strict)


def _option(name: str) -> str:
    return f"--{name.replace('_', '-')}"


def _names(given: dict[str, str], names: str | Pair, format: Format) -> tuple[str | Pair, str | None]:
    """What records consist of if options say it, and the options that choose it; `None` where none can."""
    if isinstance(names, tuple):
        if given:
            raise ArgumentError(f"this command reads {' and '.join(names)}, which cannot be renamed")
        return names, None
    of_text = [name for name in given if name != "pair_column"]
    if len(of_text) > 1:
        raise ArgumentError(f"there are both {' and '.join(map(_option, of_text))}", hint="give one of them")
    text = given[of_text[0]] if of_text else names
    if "pair_column" in given:
        return (text, given["pair_column"]), "--text-column and --pair-column"
    if "text_column" in given:
        return text, "--text-column"
    return text, "--field" if format is Format.jsonl else "--column"


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


def _guess_format(source: str | BinaryIO, given: dict[str, str], names: str | Pair) -> Format:
    if isinstance(source, str):
        return find_format(source)
    if "column" in given:
        return Format.csv
    return Format.jsonl if given or isinstance(names, tuple) else Format.txt
