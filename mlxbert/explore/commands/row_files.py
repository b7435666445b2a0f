"""Writes rows of the input, perhaps with more columns, to a .csv, .jsonl, .parquet or .txt file."""

from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import IO, Any

from mlxbert.cli.output.formats import JSON_LINES
from mlxbert.cli.output.output_format import utf8
from mlxbert.cli.output.parquet import Parquet, arrow_errors, as_text
from mlxbert.cli.output.result_tables import write_csv
from mlxbert.cli.output.resumable_file import check_ending
from mlxbert.durable_files import atomic_write, writing
from mlxbert.errors import ArgumentError, InputError
from mlxbert.readers.text_collection import TextCollection
from mlxbert.results.json import to_json

ROWS = (".csv", *JSON_LINES, ".parquet")


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
        overwrite: Whether an existing file may be replaced.
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
