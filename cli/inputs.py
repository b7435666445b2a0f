"""Where inputs come from: arguments, files, or stdin; one record at a time, whatever the size."""

import csv
import hashlib
import json
import sys
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from itertools import islice
from pathlib import Path
from types import MappingProxyType
from typing import Any, BinaryIO, Generic, TypeVar, overload

from mlxbert.cli.options import InputOptions, PairInputOptions, RecordOptions
from mlxbert.cli.views import console
from mlxbert.errors import ArgumentError, InputError, MlxbertError
from mlxbert.readers.formats import FORMATS, Format, find_format, format_of, read_items
from mlxbert.readers.inputs import InputFile, open_source
from mlxbert.readers.lines import UTF8, check_encoding, read_text
from mlxbert.readers.live import LONGEST, Live, as_it_comes, first_line
from mlxbert.readers.reading import Wanted, placed
from mlxbert.readers.records import Record, Records, read_records
from mlxbert.results.result import Failure

STDIN = "-"
ARGUMENTS = "arguments"  # the name of an input that is not a file
Pair = tuple[str, str]
_SAMPLE = 1000  # rows that are looked at
_SENTENCE = 4  # words that are rather a text without quotes than texts
T_co = TypeVar("T_co", covariant=True)
_SOMETIMES = ("index", "error", "unknown_tokens")  # fields of results that the first ones may not have
# The options that say what is read, and the formats that they go with.
_TABLES = tuple(format for format, reader in FORMATS.items() if reader.value == "column")
_NAMED = tuple(format for format, reader in FORMATS.items() if reader.value)
_TEXT = tuple(format for format, reader in FORMATS.items() if not reader.binary and not reader.refused)
_NAMING = {
    **{"field": (Format.jsonl, Format.json), "column": _TABLES, "text_column": _NAMED, "pair_column": _NAMED},
    **{"no_header": (Format.csv, Format.tsv), "keep": _NAMED, "encoding": _TEXT},
}

_CHOSEN = {"field", "column", "text_column", "pair_column"}


class Places:
    """What is to be known of a record until its result is there: where it stands in the input, and what is kept of it.

    Records are read ahead of the model: a bar must not count those that have no result.

    Attributes:
        kept: What results get of the last record that `after` counted.
        file: The name of its file; empty for an argument.
        place: Where it begins there: `line 17`.
    """

    def __init__(self, read: Callable[[], int] = lambda: 0) -> None:
        self._read = read
        # The records after the first `_passed` ones.
        self._waiting: deque[tuple[int, Mapping[str, Any], str, str]] = deque()
        self._passed = self._end = 0
        self.kept: Mapping[str, Any] = MappingProxyType({})
        self.file = self.place = ""

    def following(self, documents: Iterator[tuple[str, Record]]) -> Iterator[Any]:
        """The texts, pairs and errors of documents, each of which comes with the name of its file."""
        for name, one in documents:
            self._waiting.append((self._read(), one.fields, name, one.place))
            yield one.problem or (one.text if one.pair is None else (one.text, one.pair))

    def after(self, count: int) -> int:
        """Bytes of the first `count` records; `count` never falls."""
        while self._passed < count and self._waiting:
            self._end, self.kept, self.file, self.place = self._waiting.popleft()
            self._passed += 1
        return self._end


@dataclass(frozen=True)
class InputStream(Generic[T_co]):
    """An opened input.

    Attributes:
        name: What errors call it.
        files: The files, if all of them can be read again.
        read_as: How it is read: for each file its format and the names of fields or columns.
        records: Its records, in order; those that cannot be used as errors.
        size: Bytes of the files, `None` if that is not known.
        places: Where records end, and what results get of them.
        on_error: What a bad record does: `return` (it fails in its place), or `raise` if it is the only one.
        strict: Whether the first failure ends the run.
    """

    name: str
    files: tuple[InputFile, ...]
    read_as: tuple[str, ...]
    records: Live[T_co | InputError]
    size: int | None
    places: Places
    on_error: str
    strict: bool

    def paired(self, pair: str, *read_as: str) -> "InputStream[tuple[T_co, str]]":
        """The same with a second text for each record."""
        pairs: Iterator[Any] = (record if isinstance(record, InputError) else (record, pair) for record in self.records)
        read: InputStream[Any] = replace(
            self,
            records=Live(pairs, self.records.ready, piped=self.records.piped),
            read_as=(*self.read_as, *read_as),
        )
        return read

    def located(self, error: MlxbertError) -> MlxbertError:
        """The error of the record that `places` has counted last, with its file and its place there."""
        return placed(error, self.places.place, self.places.file) if self.places.file else error

    def checked(self, result: Any, before: int = 0) -> Any:
        """The result of that record; a failure with its place, and with an index that counts some records before."""
        if not isinstance(result, Failure):
            return result
        failure = Failure(before + result.index, self.located(result.error))
        if self.strict:
            raise InputError(f"input {failure.index}: {failure.error.message}", hint=failure.error.hint)
        return failure


@overload
def open_input(arguments: Sequence[str], options: InputOptions, names: str, guessed: str = "") -> InputStream[str]: ...


@overload
def open_input(arguments: Sequence[str], options: InputOptions, names: Pair) -> InputStream[Pair]: ...


def open_input(
    arguments: Sequence[str], options: InputOptions, names: str | Pair, guessed: str = ""
) -> InputStream[Any]:
    """The records that a command works on: its arguments, or else the fields or columns `names` of its input.

    With two names the arguments are one record. `--field`, `--column` or `--text-column` rename a single name, which
    becomes a pair with `--pair-column`; `--text-column` and `--pair-column` rename a pair. If `guessed` is `texts` or
    `texts or pairs`, these are guessed of a table without the column `names`.
    """
    check_encoding(options.encoding)
    if arguments:
        return _from_arguments(arguments, options, names)
    if not options.input and (sys.stdin is None or sys.stdin.isatty()):
        raise ArgumentError("there is no input", hint="give a text, --input FILE, or pipe texts in")
    inputs = options.input or [STDIN]
    if inputs.count(STDIN) > 1:
        raise ArgumentError("--input - is given twice; stdin can be read only once")
    return _from_files(inputs, options, names, guessed)


def open_texts(arguments: Sequence[str], options: PairInputOptions, pair: str | None) -> InputStream[str | Pair]:
    """Texts; or pairs, of each text with `pair` or of two columns."""
    if pair is not None and options.pair_column is not None:
        raise ArgumentError("there are both --pair and --pair-column", hint="give one of them")
    guessed = "texts" if pair is not None else "texts or pairs"
    opened: InputStream[Any] = open_input(arguments, options, "text", guessed)
    return opened if pair is None else opened.paired(pair)


def open_questions(
    arguments: Sequence[str], options: PairInputOptions, context: str | None, context_file: str | None
) -> InputStream[Pair]:
    """Questions, each with its context: one for all of them, or that of its own record."""
    if context is not None and context_file is not None:
        raise ArgumentError("there are both --context and --context-file", hint="give one of them")
    if (context is not None or context_file is not None) and options.pair_column is not None:
        raise ArgumentError("there are both a context and --pair-column, which names the column of contexts")
    if context_file == STDIN and not arguments and STDIN in (options.input or [STDIN]):
        raise ArgumentError("--context-file is stdin, and there is no question", hint="give the question: answer TEXT")
    text = context if context_file is None else _read_context(context_file, options.encoding)
    if text is None and arguments:
        raise ArgumentError(
            "there is no context to answer from", hint="give it with --context TEXT or --context-file FILE"
        )
    if text is None:
        return open_input((), options, ("question", "context"))
    if arguments:  # the encoding is that of the context
        options = replace(options, encoding=UTF8)
    digest = hashlib.sha256(text.encode("utf-8", "surrogateescape")).hexdigest()
    return open_input(arguments, options, "question").paired(text, f"context {digest}")


def _read_context(source: str, encoding: str) -> str:
    if source == STDIN and sys.stdin is None:
        raise InputError("stdin is closed")
    if source == STDIN:
        text = read_text("stdin", open_source(sys.stdin.buffer, "stdin"), encoding)
    else:
        with open_source(source) as file:
            text = read_text(source, file, encoding)
    if not text.strip():
        raise InputError(f"{'stdin' if source == STDIN else source}: there is no text to answer from")
    return text


def _from_arguments(arguments: Sequence[str], options: InputOptions, names: str | Pair) -> InputStream[Any]:
    files = [argument for argument in arguments if _is_input_file(argument)]
    if options.input is not None:
        hint = f"--input takes one file; repeat it: --input {' --input '.join(files)}" if files else "give one of them"
        raise ArgumentError("there are both arguments and --input", hint=hint)
    for name in ("format", *_given(options)):
        if getattr(options, name) is not None:
            raise ArgumentError(f"there are arguments and {_option(name)}, which works only with --input")
    for file in files:
        console.say("hint", f"{file} is taken as a text; --input {file} reads the file")
    if STDIN in arguments:
        console.say("hint", f"{STDIN} is taken as a text; --input {STDIN} reads stdin")
    single = isinstance(names, str)
    if single and len(arguments) >= _SENTENCE and not any(" " in argument for argument in arguments):
        console.say("hint", f"these are {len(arguments)} texts of one word each; for a single text, put it in quotes")
    given = [("", Record(one, {}, ARGUMENTS)) for one in arguments]
    if not single:
        given = [("", Record(arguments[0], {}, ARGUMENTS, arguments[1]))]
    places = Places()
    on_error = "raise" if len(given) == 1 else "return"
    records: Live[Any] = Live(places.following(iter(given)))
    return InputStream(ARGUMENTS, (), (ARGUMENTS,), records, None, places, on_error, options.strict)


def _is_input_file(argument: str) -> bool:
    try:
        find_format(argument)
        return len(argument) < 256 and Path(argument).is_file()
    except ArgumentError:
        return False


def _given(options: InputOptions) -> dict[str, Any]:
    """The options that say what is read, where they are given."""
    values = {name: getattr(options, name, None) for name in _NAMING}
    values["encoding"] = None if options.encoding == UTF8 else options.encoding
    return {name: value for name, value in values.items() if value not in (None, False)}


def _from_files(inputs: Sequence[str], options: InputOptions, names: str | Pair, guessed: str) -> InputStream[Any]:
    given = _given(options)
    keep = options.keep and [*dict.fromkeys(options.keep)] if isinstance(options, RecordOptions) else ()
    if taken := [name for name in keep or () if name in _SOMETIMES]:
        raise ArgumentError(f"--keep {taken[0]}: some results have a field of this name", hint="rename the column")
    sources = [_stdin() if source == STDIN else source for source in inputs]
    formats = [Format(options.format) if options.format else _guess_format(one, given, names) for one in sources]
    for name in given:
        if not set(formats) & set(_NAMING[name]):
            expected = ", ".join(f".{one.value}" for one in _NAMING[name])
            met = ", ".join(dict.fromkeys(format.value for format in formats))
            raise ArgumentError(f"{_option(name)} works only with {expected}, the input is {met}")
    opened: list[Records] = []
    read_as: list[str] = []
    for source, format in zip(sources, formats, strict=True):
        text, pair, choose = _names({key: given[key] for key in given if format in _NAMING[key]}, names, format)
        if guessed and format in _TABLES and not given.keys() & _CHOSEN and isinstance(source, str):
            text, pair = _guess_columns(source, format, options, text, pairs="pairs" in guessed)
        found = read_records(
            source, text, pair, format=format, name=None if isinstance(source, str) else "stdin",
            header="no_header" not in given or format not in _NAMING["no_header"], keep=keep, choose=choose,
            encoding=options.encoding if format in _TEXT else UTF8,
        )  # fmt: skip
        opened.append(found)
        read_as += [format, text] if pair is None else [format, text, pair]
    documents = _joined(opened)
    places = Places(lambda: sum(one.done for one in opened))
    files = tuple(one.file for one in opened if one.file is not None)
    sizes = [one.size for one in opened if one.size is not None]
    return InputStream(
        name=", ".join(one.name for one in opened),
        files=files if len(files) == len(opened) else (),
        read_as=(
            *read_as,
            *(f"keep {name}" for name in keep or ()),  # in words: a name may be that of a second column of texts
            *(["no header"] if "no_header" in given else []),
            *([f"encoding {options.encoding}"] if "encoding" in given else []),
        ),
        records=Live(places.following(documents), documents.ready, piped=documents.piped),
        size=sum(sizes) if len(sizes) == len(opened) else None,
        places=places,
        on_error="return",
        strict=options.strict,
    )


def _stdin() -> BinaryIO:
    if sys.stdin is None:
        raise InputError("stdin is closed")
    return as_it_comes(sys.stdin.buffer)


def _joined(opened: Sequence[Records]) -> Live[tuple[str, Record]]:
    """The documents of files, each with the name of its file."""
    reading = opened[0]

    def documents() -> Iterator[tuple[str, Record]]:
        nonlocal reading
        for reading in opened:
            for document in reading:
                yield reading.name, document

    return Live(documents(), lambda: iter(reading).ready(), piped=any(iter(one).piped for one in opened))


def _option(name: str) -> str:
    return f"--{name.replace('_', '-')}"


def _names(given: Mapping[str, str], names: str | Pair, format: Format) -> tuple[str, str | None, str]:
    """The fields or columns of the text and the second text, and the options that choose them."""
    of_text = [name for name in ("field", "column", "text_column") if name in given]
    if len(of_text) > 1:
        raise ArgumentError(f"there are both {' and '.join(map(_option, of_text))}", hint="give one of them")
    both = "--text-column and --pair-column"
    if isinstance(names, tuple) and of_text and of_text != ["text_column"]:
        raise ArgumentError(
            f"{_option(of_text[0])} names one column, this command reads two: {' and '.join(names)}",
            hint=f"name them with {both}",
        )
    default, pair = names if isinstance(names, tuple) else (names, None)
    text, pair = given[of_text[0]] if of_text else default, given.get("pair_column", pair)
    choose = _option(of_text[0]) if of_text == ["text_column"] else f"--{FORMATS[format].value}"
    return text, pair, choose if pair is None else both


def _guess_format(source: str | BinaryIO, given: dict[str, Any], names: str | Pair) -> Format:
    if isinstance(source, str):
        return format_of(source, source, texts=True)
    if "column" in given or "no_header" in given:
        return Format.csv
    if given.keys() - {"keep", "encoding"} or isinstance(names, tuple):
        return Format.jsonl
    line = first_line(source).split(b"\r")[0]
    first = line.decode(given.get("encoding", UTF8), "replace").strip().removeprefix("\ufeff")
    if first == "[" or first.startswith("[{"):
        console.say("note", f"stdin holds a JSON array, {names!r} is read of each; --format txt takes lines as texts")
        return Format.json
    if not _is_object(first, whole=len(line) < LONGEST):
        cells: list[str] = []
        with suppress(csv.Error):  # no header is so long
            cells = next(csv.reader([first]), [])
        if len(cells) > 1 and names in cells:
            console.say("note", "each line of stdin is a text; if these are rows of a table, add --format csv")
        return Format.txt
    console.say("note", f"stdin holds JSON lines, {names!r} is read of each; --format txt takes them as texts")
    return Format.jsonl


def _guess_columns(
    source: str, format: Format, options: InputOptions, text: str, *, pairs: bool
) -> tuple[str, str | None]:
    """The columns of a table that training would take; `text` if there is such a column, or none can be told."""
    from mlxbert.data.columns import find_columns
    from mlxbert.readers.rows import read_rows

    if not Path(source).is_file():  # a pipe can be read only once
        return text, None
    with suppress(MlxbertError), open_source(source) as file:  # said again where it is read
        items = read_items(source, file, format, Wanted(header=not options.no_header, encoding=options.encoding))[0]
        rows = read_rows(values for _, values in islice(items, _SAMPLE) if not isinstance(values, InputError))
        found = find_columns(rows, labels=False)
        if text not in rows.columns and (pairs or found.pair is None):
            names = " and ".join(repr(column) for column in found.to_dict().values())
            named = format is not Format.parquet and not options.no_header
            is_text = named and any(len(column.split()) >= _SENTENCE for column in found.to_dict().values())
            more = "; if line 1 is a text, --no-header reads it, too" if is_text else ""
            console.say("note", f"{source}: the text is read from column {names}; --text-column names another{more}")
            return found.text, found.pair
    return text, None


def _is_object(line: str, *, whole: bool) -> bool:
    if not whole:
        return line.startswith("{")
    with suppress(ValueError, RecursionError):
        return isinstance(json.loads(line), dict)
    return False
