"""Reads columns of .parquet files with pyarrow."""

import json
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from typing import Any

from mlxbert.errors import InputError, MlxbertError
from mlxbert.other_libraries import install_command
from mlxbert.readers.parsing import Binary, Item, ReadOptions, column_names, size_of
from mlxbert.readers.pipes import LONGEST
from mlxbert.readers.text_lines import too_long

_KEY = b"huggingface"  # in the metadata of a schema, where `datasets` stores the names of classes

_BATCH_ROWS = 256  # in memory at a time


def read_parquet(source: Binary, wanted: ReadOptions) -> Iterator[Item]:
    """Reads the wanted columns of each row, or all columns, as Python values; checks the file when it is called.

    Class numbers in files that `datasets` wrote become class names.
    """
    try:
        import pyarrow.parquet as pq
    except ImportError:
        raise MlxbertError(
            f"{source.name}: reading .parquet needs pyarrow, which is not installed",
            hint=install_command("parquet"),
        ) from None
    if not source.file.seekable():
        raise InputError(
            f"{source.name}: is a pipe, but a .parquet file cannot be read from a pipe",
            hint="give the path of the file",
        )
    with arrow_errors(source.name):
        # With pre_buffer, the columns of the whole file would be in memory.
        file = pq.ParquetFile(source.file, pre_buffer=False)
        schema = file.schema_arrow
        names = column_names(schema.names)
        columns = wanted.columns(source.name, [name for name in names if name])
        for name in wanted.texts:
            kind = schema.field(names.index(name)).type
            if not is_text(kind):
                hint = f"choose the column with {wanted.choose}"
                raise InputError(f"{source.name}: column {name!r} has the type {kind}, expected strings", hint=hint)
    return _items(source, file, dict(zip(names, schema.names, strict=True)), columns)


def _items(source: Binary, file: Any, stored: Mapping[str, str], columns: Sequence[str]) -> Iterator[Item]:
    """Yields the columns of each row; `stored` maps the name of each column to its name in the file."""
    classes = stored_class_names(file.schema_arrow.metadata)
    read = {name: place for place, name in enumerate(dict.fromkeys(stored[name] for name in columns))}
    order = sorted((name for name in stored if stored[name] in read), key=lambda name: read[stored[name]])
    size, rows, number = size_of(source.file) or 0, max(file.metadata.num_rows, 1), 0
    with arrow_errors(source.name):
        for batch in file.iter_batches(batch_size=_BATCH_ROWS, columns=[*read]):
            found = dict(zip(order, batch.columns, strict=True))  # pyarrow reads all columns of a name
            values = [column_values(found[name]) for name in columns]
            for place, name in enumerate(columns):
                if name in classes:
                    values[place] = name_classes(values[place], classes[name])
            for row in zip(*values, strict=True):
                number += 1
                source.done = size * number // rows
                record = dict(zip(columns, row, strict=True))
                yield f"row {number}", problem_of(record) or record


def problem_of(record: Mapping[str, Any]) -> InputError | None:
    """Returns the error for the first unusable value of a record; `None` if all values are usable."""
    return next(filter(None, map(_problem, record.items())), None)


def _problem(item: tuple[str, Any]) -> InputError | None:
    column, value = item
    if isinstance(value, UnicodeDecodeError):
        return InputError(f"column {column!r}: byte 0x{value.object[value.start]:02x} is not UTF-8")
    if isinstance(value, Exception):
        return InputError(f"column {column!r}: {value}")
    return too_long(f"column {column!r}") if isinstance(value, str) and len(value) > LONGEST else None


def is_text(kind: Any) -> bool:
    """Whether the values of a type of Arrow are strings."""
    import pyarrow as pa

    if pa.types.is_dictionary(kind):
        kind = kind.value_type
    return pa.types.is_string(kind) or pa.types.is_large_string(kind) or pa.types.is_string_view(kind)


def column_values(column: Any) -> list[Any]:
    """Returns the values of a column of Arrow as Python objects.

    A string that is not UTF-8, or a time that Python cannot represent, is replaced by an error.
    """
    try:
        return column.to_pylist()
    except (ValueError, OverflowError):
        return [_value(item) for item in column]


def _value(item: Any) -> Any:
    try:
        return item.as_py()
    except (ValueError, OverflowError) as problem:
        return problem


@contextmanager
def arrow_errors(name: str) -> Iterator[None]:
    """Converts the errors of pyarrow for a damaged file to an InputError; `name` is the name of the file."""
    import pyarrow as pa

    try:
        yield
    except (OSError, pa.ArrowException) as problem:
        reason = str(problem).partition("\n")[0]
        raise InputError(f"{name}: cannot be read as .parquet ({reason})") from None


def stored_class_names(metadata: Mapping[bytes, bytes] | None) -> dict[str, list[str]]:
    """Returns the class names, by column, that `datasets` stored in the metadata of a schema; possibly none."""
    with suppress(ValueError, RecursionError, LookupError, TypeError, AttributeError):
        features = json.loads((metadata or {})[_KEY])["info"]["features"]
        return dict(_named(features.items()))
    return {}


def _named(features: Any) -> Iterator[tuple[str, list[str]]]:
    for column, feature in features:
        while isinstance(feature, list) or (isinstance(feature, dict) and "feature" in feature):
            feature = next(iter(feature), None) if isinstance(feature, list) else feature["feature"]
        names = feature.get("names") if isinstance(feature, dict) and feature.get("_type") == "ClassLabel" else None
        if isinstance(names, list) and all(isinstance(name, str) for name in names):
            yield column, names


def name_classes(value: Any, names: Sequence[str]) -> Any:
    """Converts a class number, or a list of class numbers, to names; -1 (an unknown label) becomes `None`."""
    if isinstance(value, list):
        return [name_classes(item, names) for item in value]
    if isinstance(value, int):
        return names[value] if 0 <= value < len(names) else None
    return value
