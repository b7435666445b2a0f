"""Opens inputs from arguments, files or stdin, and reads them one record at a time, so that they may have any size."""

import csv
import difflib
import hashlib
import json
import os
import shlex
import sys
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from itertools import islice
from pathlib import Path
from typing import Any, BinaryIO

from mlxbert import rooms
from mlxbert.cli.shared_options import InputOptions, PairInputOptions, RecordOptions
from mlxbert.cli.views import console
from mlxbert.errors import ArgumentError, InputError, MlxbertError
from mlxbert.readers.formats import FORMATS, FormatName, format_of, read_records
from mlxbert.readers.input_files import STDIN, open_source, stdin
from mlxbert.readers.parsing import ReadOptions, placed
from mlxbert.readers.pipes import LONGEST, as_it_comes, first_line
from mlxbert.readers.stream import RecordSource, RecordStream
from mlxbert.readers.text_lines import UTF8, check_encoding, read_text

ARGUMENTS = "arguments"  # the name of an input that is not a file
Pair = tuple[str, str]
_SAMPLE_ROWS = 1000  # read to guess the columns, or to find those that an option would replace
_SENTENCE = 4  # words: as many arguments of one word each look like one text without quotes
_OPTIONAL_FIELDS = ("index", "error", "score", "unknown_tokens")  # fields that only some results have
# The options that select what is read, and the formats that they work with.
_OBJECTS = tuple(format for format, kind in FORMATS.items() if kind.value == "field")
_TABLES = tuple(format for format, kind in FORMATS.items() if kind.value == "column")
_NAMED = tuple(format for format, kind in FORMATS.items() if kind.value)
_TEXT = tuple(format for format, kind in FORMATS.items() if not kind.binary and not kind.refused)
_READING_OPTIONS = {
    **{"field": _OBJECTS, "text_column": _NAMED, "pair_column": _NAMED},
    **{"no_header": (FormatName.csv, FormatName.tsv), "keep": _NAMED, "encoding": _TEXT},
}

_COLUMN_OPTIONS = {"field", "text_column", "pair_column"}


def open_input(
    arguments: Sequence[str],
    options: InputOptions,
    names: str | Pair,
    *,
    pairs: bool = False,
    pair: str | None = None,
    read_as: Sequence[str] = (),
    whole: bool = False,
) -> RecordStream:
    """Opens the records of a command: its arguments or, if there are none, records from its input.

    If `names` is a single name, each argument is a record. `--field` or `--text-column` then replaces this name, and
    `--pair-column` adds a second one; if the name is `text`, and a table has no such column, the column is guessed,
    with `pairs` also that of second texts. If there are two names, all arguments form a single record, and
    `--text-column` and `--pair-column` replace the two names.

    `pair` is the second text for records that have only one text, and `read_as` describes it in the manifest of an
    output. `whole` keeps all fields or columns of a record.
    """
    check_encoding(options.encoding)
    folders = [name for name in arguments or options.input or () if os.path.isdir(name)]
    if folders and (not arguments or len(folders) == len(arguments)):
        problem = f"{folders[0]}: is a folder, expected a {'text, which may also be piped in' if arguments else 'file'}"
        raise ArgumentError(problem, hint=_read_folder(folders[0], options))
    if arguments:
        texts = [arguments] if isinstance(names, tuple) else [[argument] for argument in arguments]
        on_error = "raise" if len(texts) == 1 else "return"
        sources = [_from_arguments(arguments, options, texts)]
        return RecordStream(sources, read_as=read_as, pair=pair, on_error=on_error, strict=options.strict)
    if not options.input and (sys.stdin is None or sys.stdin.isatty()):
        raise ArgumentError("there is no input", hint="give a text or --input FILE, or pipe texts in")
    inputs = options.input or [STDIN]
    if inputs.count(STDIN) > 1:
        raise ArgumentError("--input - is given twice, but stdin can be read only once")
    chosen, keep = _given_options(options), _kept_names(options)
    replaced = None if pair is None else "context" if names == "question" else "pair"
    sources = _from_files(inputs, options, names, pairs, replaced, whole=whole)
    read_as = (
        *(f"keep {name}" for name in keep or ()),  # as "keep NAME", since NAME may also be a column of texts
        *(["no header"] if "no_header" in chosen else []),
        *([f"encoding {options.encoding}"] if "encoding" in chosen else []),
        *read_as,
    )
    return RecordStream(sources, read_as=read_as, pair=pair, strict=options.strict)


def _read_folder(folder: str, options: InputOptions) -> str:
    name = shlex.quote(folder)
    if hasattr(options, "index"):
        return f"`mlxbert index {name}` reads the files of the folder; then put --index {name} in its place"
    return f"`mlxbert search QUERY {name}` searches the files of the folder"


def open_texts(arguments: Sequence[str], options: PairInputOptions, pair: str | None, *, whole: bool) -> RecordStream:
    """Opens texts or pairs of texts. A pair consists of a text and `pair`, or of the texts in two columns."""
    if pair is not None and options.pair_column is not None:
        raise ArgumentError("--pair cannot be combined with --pair-column", hint="omit --pair or --pair-column")
    return open_input(arguments, options, "text", pairs=pair is None, pair=pair, whole=whole)


def open_questions(
    arguments: Sequence[str], options: PairInputOptions, context: str | None, context_file: str | None, *, whole: bool
) -> RecordStream:
    """Opens questions, each with its context. All questions have the same context, or each record has its own."""
    if context is not None and context_file is not None:
        raise ArgumentError("--context cannot be combined with --context-file", hint="omit --context or --context-file")
    if (context is not None or context_file is not None) and options.pair_column is not None:
        raise ArgumentError(
            "--pair-column cannot be combined with --context or --context-file",
            hint="omit --pair-column, which names a column of contexts",
        )
    if context_file == STDIN and not arguments and STDIN in (options.input or [STDIN]):
        raise ArgumentError(
            "--context-file is stdin, so stdin cannot contain the question", hint="give the question as an argument"
        )
    if context_file is not None and os.path.isdir(context_file):
        hint = f"{_read_folder(context_file, options)}, and its --answer MODEL answers from them"
        raise ArgumentError(f"--context-file {context_file}: is a folder, expected a file", hint=hint)
    text = context if context_file is None else _read_context(context_file, options.encoding)
    if text is None and arguments and options.input:
        raise ArgumentError(
            "a question as an argument cannot be combined with --input", hint="omit the argument or --input"
        )
    if text is None and arguments:
        raise ArgumentError(
            "the question has no context to answer from", hint="add --context TEXT or --context-file FILE"
        )
    if text is None:
        return open_input((), options, ("question", "context"), whole=whole)
    if arguments:  # the encoding applies only to the context
        options = replace(options, encoding=UTF8)
    digest = hashlib.sha256(text.encode("utf-8", "surrogateescape")).hexdigest()
    return open_input(arguments, options, "question", pair=text, read_as=[f"context {digest}"], whole=whole)


def _read_context(source: str, encoding: str) -> str:
    if source == STDIN:
        text = read_text("stdin", open_source(stdin(), "stdin"), encoding)
    else:
        kinds = rooms.part("documents") if rooms.has_part("documents") else None
        with open_source(source) as file:
            kind = kinds.kind_of(source, b"") if kinds else None
            if kinds and kind in kinds.KINDS and kinds.KINDS[kind].apart:  # .pdf, .docx and others
                try:
                    text = "\n\n".join(document.text for document in kinds.read_documents(source, file.read(), kind))
                except InputError as problem:
                    raise placed(problem, source) from None
            else:
                text = read_text(source, file, encoding)
    if not text.strip():
        raise InputError(f"{'stdin' if source == STDIN else source}: the context is empty")
    return text


def _from_arguments(arguments: Sequence[str], options: InputOptions, records: Sequence[Sequence[str]]) -> RecordSource:
    """Makes a source of records from arguments; prints hints about likely mistakes.

    A record consists of one or two texts.
    """
    files = [argument for argument in arguments if Path(argument).suffix and os.path.isfile(argument)]
    if options.input is not None:
        hint = f"repeat the option: --input {' --input '.join(files)}" if files else "omit --input or the texts"
        raise ArgumentError("--input cannot be combined with texts as arguments", hint=hint)
    refuse_reading_options(options, "texts as arguments")
    if len(arguments) > 1 and all(map(os.path.isfile, arguments)):
        raise ArgumentError(
            f"the texts are the names of {len(arguments)} files, such as {arguments[0]}",
            hint=f"{_read_folder(os.path.dirname(arguments[0]) or '.', options)}; --input FILE reads the records or "
            "lines of a file",
        )
    for file in files:
        console.say("hint", f"{file} is taken as a text; --input {file} reads the file")
    for folder in filter(os.path.isdir, arguments):
        console.say("hint", f"{folder} is taken as a text; {_read_folder(folder, options)}")
    for pattern in filter(_is_pattern, arguments):
        console.say("hint", f"{pattern} is taken as a text: no file has such a name")
    if STDIN in arguments:
        console.say("hint", f"{STDIN} is taken as a text; --input {STDIN} reads stdin")
    single = len(records[0]) == 1
    if single and len(arguments) >= _SENTENCE and not any(" " in argument for argument in arguments):
        console.say(
            "hint", f"each of the {len(arguments)} words is a separate text; quote the words if they are a single text"
        )
    names = ("text", "pair")[: len(records[0])]
    items = (("", dict(zip(names, texts, strict=True))) for texts in records)
    return RecordSource(ARGUMENTS, items, (ARGUMENTS,), wanted=ReadOptions(names, keep=()))


def refuse_reading_options(options: InputOptions, texts: str) -> None:
    """Raises an error for options that say how to read a file, if there is none; `texts` describes the texts."""
    for name in ("format", *_given_options(options)):
        if getattr(options, name) is not None:
            raise ArgumentError(f"`{name}` works only with --input, not with {texts}")


def _is_pattern(argument: str) -> bool:
    """Whether an argument looks like a pattern of files that a shell has left as it is, since no file fits."""
    return "*" in argument and " " not in argument and Path(argument).suffix != ""


def _given_options(options: InputOptions) -> dict[str, Any]:
    """Returns the options given by the user that say how to read a file, with their values."""
    values = {name: getattr(options, name, None) for name in _READING_OPTIONS}
    values["encoding"] = None if options.encoding == UTF8 else options.encoding
    return {name: value for name, value in values.items() if value not in (None, False)}


def _kept_names(options: InputOptions) -> list[str] | None:
    """Returns the names of the fields or columns to copy into results; `None` means `id`, if it exists."""
    keep = options.keep if isinstance(options, RecordOptions) else ()
    return keep if keep is None else [*dict.fromkeys(keep)]


def _from_files(
    inputs: Sequence[str], options: InputOptions, names: str | Pair, pairs: bool, replaced: str | None, *, whole: bool
) -> list[RecordSource]:
    chosen, keep = _given_options(options), _kept_names(options)
    if clashes := [name for name in keep or () if name in _OPTIONAL_FIELDS]:
        raise ArgumentError(f"--keep {clashes[0]}: some results have a field with this name", hint="rename the column")
    sources = [as_it_comes(stdin()) if source == STDIN else source for source in inputs]
    forced = FormatName(options.format) if options.format else None
    formats = [forced or _guess_format(source, chosen, names) for source in sources]
    whole = whole and {*formats} <= {*_NAMED}
    for name in chosen:
        if not set(formats) & set(_READING_OPTIONS[name]):
            expected = ", ".join(f".{format.value}" for format in _READING_OPTIONS[name])
            actual = ", ".join(dict.fromkeys(format.value for format in formats))
            raise ArgumentError(f"`{name}` works only with {expected}, but the input is {actual}")
    if keep or replaced is not None:
        _check_fields([*zip(sources, formats, strict=True)], options, {*(keep or ())}, replaced)
    records: list[RecordSource] = []
    for source, format in zip(sources, formats, strict=True):
        usable = {key: chosen[key] for key in chosen if format in _READING_OPTIONS[key]}
        text_name, pair_name, choose = _names(usable, names, format)
        if names == "text" and format in _TABLES and not chosen.keys() & _COLUMN_OPTIONS and isinstance(source, str):
            text_name, pair_name = _guess_columns(source, format, options, text_name, pairs=pairs)
        records += read_records(
            source, text_name, pair_name, format=format, name=None if isinstance(source, str) else "stdin",
            header="no_header" not in chosen or format not in _READING_OPTIONS["no_header"],
            keep=None if whole else keep or (), with_id=keep is None, choose=choose,
            encoding=options.encoding if format in _TEXT else UTF8,
        ).sources  # fmt: skip
    return records


def _check_fields(
    sources: Sequence[tuple[str | BinaryIO, FormatName]], options: InputOptions, keep: set[str], replaced: str | None
) -> None:
    """Raises an error for a field to keep that no record has, and for fields that an option would replace.

    It reads the files as far as it must: to the first record in which nothing is missing; what an option would replace
    is sought in the first records only. Pipes cannot be read twice.
    """
    if replaced is None and not any(format in _OBJECTS for _, format in sources):
        return  # a table says itself which columns it lacks
    known = set[str]()
    how: dict[str, Any] = {"header": not options.no_header, "lenient": True}
    for source, format in sources:
        if not isinstance(source, str) or not Path(source).is_file():
            return
        if format not in _NAMED:
            continue
        how["encoding"] = options.encoding if format in _TEXT else UTF8
        with suppress(MlxbertError), open_source(source) as file:  # reported again where the file is read
            for count, record in enumerate(read_records(file, None, format=format, name=source, **how), 1):
                known |= record.values.keys()
                sought = replaced is not None and replaced not in known and count < _SAMPLE_ROWS
                if format in _TABLES or (keep <= known and not sought):
                    break
    if replaced in known:
        raise ArgumentError(
            f"the records have {replaced!r} of their own, which the given {replaced} would replace",
            hint=f"omit --{replaced}, or rename the field or column",
        )
    if known and (missing := sorted(keep - known)):
        near = difflib.get_close_matches(missing[0], known, n=1)
        hint = f"did you mean {near[0]!r}?" if near else f"the fields are {', '.join(sorted(known))}"
        raise ArgumentError(f"--keep {missing[0]}: no record has this field", hint=hint)


def _names(chosen: Mapping[str, str], names: str | Pair, format: FormatName) -> tuple[str, str | None, str]:
    """Returns the fields or columns that hold the text and the second text, and the options that choose them."""
    text_options = [name for name in ("field", "text_column") if name in chosen]
    if len(text_options) > 1:
        raise ArgumentError("`field` and `text_column` cannot be combined", hint="give only one of these options")
    pair_options = "--text-column and --pair-column"
    if isinstance(names, tuple) and text_options and text_options != ["text_column"]:
        raise ArgumentError(
            f"`{text_options[0]}` names one column, but this command needs the columns {' and '.join(names)}",
            hint=f"name the columns with {pair_options}",
        )
    default, pair = names if isinstance(names, tuple) else (names, None)
    text, pair = chosen[text_options[0]] if text_options else default, chosen.get("pair_column", pair)
    choose = "--field" if format in _OBJECTS and text_options != ["text_column"] else "--text-column"
    return text, pair, choose if pair is None else pair_options


def _guess_format(source: str | BinaryIO, chosen: dict[str, Any], names: str | Pair) -> FormatName:
    if isinstance(source, str):
        return format_of(source, source, texts=True)
    if "no_header" in chosen:
        return FormatName.csv
    if "field" in chosen or isinstance(names, tuple):
        return FormatName.jsonl
    line = first_line(source).split(b"\r")[0]
    first = line.decode(chosen.get("encoding", UTF8), "replace").strip().removeprefix("\ufeff")
    if chosen.keys() & _COLUMN_OPTIONS:
        return FormatName.jsonl if first.startswith("{") else FormatName.csv
    if first == "[" or first.startswith("[{"):
        console.say(
            "note", f"stdin is a JSON array, so {names!r} of each entry is read; --format txt reads each line as a text"
        )
        return FormatName.json
    if not _is_object(first, complete=len(line) < LONGEST):
        cells: list[str] = []
        with suppress(csv.Error):  # too long for a header
            cells = next(csv.reader([first]), [])
        if len(cells) > 1 and names in cells:
            console.say("note", "each line of stdin is a text; if the lines are rows of a table, add --format csv")
        return FormatName.txt
    console.say(
        "note", f"stdin is JSON lines, so {names!r} of each line is read; --format txt reads each line as a text"
    )
    return FormatName.jsonl


def _guess_columns(
    source: str, format: FormatName, options: InputOptions, text: str, *, pairs: bool
) -> tuple[str, str | None]:
    """Returns the columns from which training would read the text and, if there is one, the second text.

    If the table has the column that `text` names, or if guessing fails, only this column is returned.
    """
    if not Path(source).is_file() or not rooms.has_part("columns"):  # a pipe can be read only once
        return text, None
    with suppress(MlxbertError), open_source(source) as file:  # reported again where the file is read
        stream = read_records(
            file, None, format=format, name=source, header=not options.no_header, encoding=options.encoding
        )
        sample = (record.values for record in islice(stream, _SAMPLE_ROWS) if record.problem is None)
        columns, present = rooms.part("columns").find_text_columns(sample)
        if text not in present and (pairs or columns.pair is None):
            named = [repr(column) for column in columns.to_dict().values()]
            names = f"column{'s' if len(named) > 1 else ''} {' and '.join(named)}"
            has_header = format is not FormatName.parquet and not options.no_header
            is_text = has_header and any(len(column.split()) >= _SENTENCE for column in columns.to_dict().values())
            hint = "; if line 1 is a text and not a header, add --no-header" if is_text else ""
            console.say("note", f"{source}: texts are read from {names}; --text-column names another column{hint}")
            return columns.text, columns.pair
    return text, None


def _is_object(line: str, *, complete: bool) -> bool:
    if not complete:
        return line.startswith("{")
    with suppress(ValueError, RecursionError):
        return isinstance(json.loads(line), dict)
    return False
