"""Collects many texts, which commands compare with each other, and writes rows of them.

Texts come from arguments, files, stdin or an index; rows, perhaps with more columns, go to a .csv, .jsonl, .parquet or
.txt file.

Shapes: N texts, W values per vector.
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import IO, Annotated, Any, TypeAlias

import typer

from mlxbert import rooms
from mlxbert.cli import session
from mlxbert.cli.inputs import open_input
from mlxbert.cli.output.formats import JSON_LINES, utf8
from mlxbert.cli.output.parquet import Parquet, arrow_errors, as_text
from mlxbert.cli.output.result_tables import write_csv
from mlxbert.cli.output.resumable_file import check_ending
from mlxbert.cli.shared_options import FileOptions, ModelOptions, RecordOptions
from mlxbert.cli.views import console, json_lines, progress
from mlxbert.durable_files import atomic_write, writing
from mlxbert.errors import ArgumentError, InputError, MlxbertError
from mlxbert.lazy_numpy import NDArray, np
from mlxbert.option_declarations import Option
from mlxbert.readers.stream import RecordStream
from mlxbert.readers.text_collection import TextCollection
from mlxbert.results.json import to_json

Vectors: TypeAlias = "NDArray[np.float32]"


ROWS = (".csv", *JSON_LINES, ".parquet")
Texts = Annotated[list[str] | None, typer.Argument(metavar="TEXT…", help="Texts.")]


def check_rows(path: Path | None, overwrite: bool, endings: tuple[str, ...], sources: Iterable[str] = ()) -> None:
    """Raises an error if the file cannot be written; called before a model is loaded."""
    check_ending(path, overwrite, endings, sources)
    if path is not None and path.suffix == Parquet.ending:
        Parquet.check(path)


def check_columns(found: TextCollection, more: Iterable[str]) -> None:
    """Raises an error if a record already has a column that the output adds; called before anything is computed."""
    names = {name for number in range(len(found.texts)) for name in found.row(number)}
    if clashes := [name for name in more if name in names]:
        raise ArgumentError(
            f"the input already has a column {clashes[0]!r}, which the output would replace", hint="rename the column"
        )


def write_rows(
    path: Path,
    overwrite: bool,
    found: TextCollection,
    numbers: Sequence[int],
    more: Mapping[str, Sequence[Any]] | None = None,
) -> None:
    """Writes the rows of some texts, with all values of their records.

    Args:
        path: The file; its extension determines the format.
        more: Further columns, with a value for each of all texts; `check_columns` has checked their names.
    """
    added, is_parquet = more or {}, path.suffix == Parquet.ending
    columns = [*dict.fromkeys(name for number in numbers for name in found.row(number))] or [found.text_name]
    columns += added
    records = (found.row(number) if is_parquet else found.json_row(number) for number in numbers)
    values = ({name: each[number] for name, each in added.items()} for number in numbers)
    rows = (row | more for row, more in zip(records, values, strict=True))
    with writing(path), atomic_write(path, locked=False) as file:
        if is_parquet:
            _write_parquet(file, found.sources, [*rows], columns)
        elif path.suffix == ".csv":
            write_csv(file, columns, (map(row.get, columns) for row in rows))
        elif path.suffix == ".txt":
            _write_txt(file, path, found, numbers)
        else:
            file.writelines(to_json(row).encode() + b"\n" for row in rows)
        check_ending(path, overwrite, (path.suffix,), found.sources)  # minutes have passed


def _write_txt(file: IO[bytes], path: Path, found: TextCollection, numbers: Sequence[int]) -> None:
    for number in numbers:
        if "\n" in found.texts[number]:
            raise InputError(
                f"--output {path}: text {found.places[number]} has several lines, but a line of a .txt file is a text",
                hint="choose another extension, such as .jsonl",
            )
        file.write(utf8(found.texts[number]) + b"\n")


def _write_parquet(
    file: IO[bytes], sources: Sequence[str], rows: Sequence[dict[str, Any]], columns: Iterable[str]
) -> None:
    import pyarrow as pa
    import pyarrow.parquet as pq

    with arrow_errors():
        types = _types(sources)
        pq.write_table(
            pa.table({name: _array([row.get(name) for row in rows], types.get(name)) for name in columns}), file
        )


def _types(sources: Sequence[str]) -> Mapping[str, Any]:
    """Returns the types of the columns if the input is a single .parquet file; otherwise none."""
    import pyarrow.parquet as pq

    if len(sources) != 1 or not sources[0].endswith(Parquet.ending):
        return {}
    return {entry.name: entry.type for entry in pq.read_schema(sources[0])}


def _array(values: Sequence[Any], kind: Any) -> Any:
    """Returns an array of Arrow; values that have no type in common are written as JSON."""
    import pyarrow as pa

    with suppress(pa.ArrowException, UnicodeEncodeError, OverflowError):
        return pa.array(values, kind)
    return pa.array(list(map(as_text, values)), pa.string())


_PRINTED = 20  # unusable inputs that are named on stderr


@dataclass(frozen=True)
class CollectionOptions(RecordOptions):
    """Options that say where many texts come from, and perhaps their vectors."""

    index: Annotated[
        str | None,
        Option("Read the passages and vectors of an index. FILE may also be a folder that has an index.", "FILE"),
    ] = None
    vectors: Annotated[Path | None, Option("File with vectors of the texts, written by embed.", "FILE")] = None


def show(drawn: Any, lines: Sequence[dict[str, Any]], out: FileOptions) -> None:
    """Draws a result in a terminal, or prints it as JSON lines."""
    session.say_queued()
    console.require_stdout()
    if console.draws(out.json):
        screen = console.stdout()
        for part in drawn:
            screen.print(part)
    else:
        for line in lines:
            json_lines.put_line(to_json(line))


def report(collection: TextCollection) -> None:
    """Prints a note if there are no texts; raises an error if inputs were unusable."""
    if not collection.texts and not collection.failed:
        console.say("note", "the input is empty")
    if collection.failed:
        count = len(collection.texts) + collection.failed
        raise MlxbertError(f"{collection.failed:,} of {console.counted(count, 'input')} failed and were left out")


def collect(
    arguments: Sequence[str],
    options: CollectionOptions,
    *,
    whole: bool = False,
) -> TextCollection:
    """Reads all texts of a command into memory, and their vectors if they are given.

    Args:
        arguments: The texts on the command line.
        whole: Whether to keep all fields or columns of a record, instead of `id` only.
    """
    if options.index is not None:
        for name in ("input", "vectors"):
            if getattr(options, name) is not None:
                raise ArgumentError(f"--index cannot be combined with --{name}")
        if arguments:
            raise ArgumentError("--index cannot be combined with texts as arguments", hint="omit --index or the texts")
        found: TextCollection = rooms.part("indexes").indexed_texts(options.index)
        return found
    stored: Iterator[Any] | None = None
    if options.vectors is not None:
        from mlxbert.readers.vector_files import ARRAY, read_vectors, unstated

        opened = read_vectors(options.vectors)
        if options.vectors.suffix.lower() == ARRAY:
            console.say("note", unstated(options.vectors, opened) or "")
        stored = opened.rows
        if options.input is None and not arguments and opened.has_texts:
            options = replace(options, input=[str(options.vectors)])
    records = open_input(arguments, options, "text", whole=whole)
    return _from_records(records, options, stored)


def _from_records(
    records: RecordStream, options: CollectionOptions, stored: "Iterator[Vectors | InputError] | None"
) -> TextCollection:
    from mlxbert.readers.vector_files import check_text, stored_texts

    texts_of_vectors = None if options.vectors is None else stored_texts(options.vectors)
    texts = records.sources[0].wanted.texts
    collection = TextCollection(text_name=texts[0] if texts else "text", sources=tuple(options.input or ()))
    vectors, problems = list[Any](), list[InputError]()
    with progress.records(records.size, shown=True) as update:
        for place, record in enumerate(records):
            vector = None if stored is None else next(stored, None)
            if stored is not None and vector is None:
                raise _other_number(records, options, "texts", place)
            if texts_of_vectors is not None and options.vectors is not None:
                embedded = next(texts_of_vectors)
                if record.problem is None:
                    check_text(options.vectors, place, embedded, record.text)
            problem = record.problem or (vector if isinstance(vector, InputError) else None)
            if problem is not None:
                located = record.located(problem)
                placed = InputError(f"input {place}: {located.message}", hint=located.hint)
                if options.strict:
                    raise placed
                problems += [placed] * (len(problems) < _PRINTED)
                collection.failed += 1
                continue
            collection.texts.append(record.text)
            collection.records.append(record)
            collection.places.append(place)
            if vector is not None:
                vectors.append(np.asarray(vector, np.float32))
            update(records.done, place + 1)
    if stored is not None:
        if next(stored, None) is not None:
            raise _other_number(records, options, "vectors", len(collection.texts) + collection.failed)
        collection.vectors = _stacked(vectors, options)
    _say_problems(problems, collection)
    return collection


def _stacked(vectors: "Sequence[Vectors]", options: CollectionOptions) -> "Vectors":
    if len({vector.shape for vector in vectors}) > 1:
        raise InputError(f"{options.vectors}: the vectors have different sizes")
    return np.stack(vectors) if vectors else np.zeros((0, 0), np.float32)


def _other_number(records: RecordStream, options: CollectionOptions, more: str, count: int) -> InputError:
    fewer = "vectors" if more == "texts" else "texts"
    return InputError(
        f"{records.name}, {options.vectors}: there are more {more} than {fewer}, which end after {count:,}",
        hint="use --input FILE with the unchanged file that was embedded",
    )


def _say_problems(problems: Sequence[InputError], collection: TextCollection) -> None:
    """Names the first unusable inputs on stderr; only the first if most are, for one reason, as in a binary file."""
    if collection.failed > 1 and not collection.texts:
        first = problems[0]
        raise InputError(f"none of {collection.failed:,} inputs is usable; {first.message}", hint=first.hint)
    hints = {problem.hint for problem in problems}
    same = collection.failed > max(len(collection.texts), 1) and len(hints) == 1
    for problem in problems[:1] if same else problems:
        console.say("error", problem.message)
    if same and (hint := problems[0].hint) is not None:
        console.say("hint", hint)


def computing(collection: TextCollection, model: ModelOptions) -> tuple[Any, dict[str, Any]]:
    """Returns the model that computes the vectors, or `None` if they are given, and the arguments for a function."""
    loaded = session.load("embed", model) if collection.vectors is None and collection.texts else None
    return loaded, {"vectors": collection.vectors, "batch_tokens": model.batch_tokens}
