"""Columns of .parquet files, read with pyarrow."""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any, BinaryIO

from mlxbert.data.lines import too_long
from mlxbert.data.live import LONGEST
from mlxbert.errors import InputError, MlxbertError

_ROWS = 256  # in memory at a time


class ParquetRows:
    """Rows of a file, the values of some columns each; the file is checked at once.

    Args:
        name: What errors call the file.
        file: To be read; not a pipe.
        columns: The names of the columns, in the order of the values, which must be strings. `None` reads all columns,
            of any types, as Python values; a null is `None`.
        size: Bytes of the file.
        keep: More columns, of any types, whose values follow.

    Raises:
        MlxbertError: pyarrow is not installed.
        InputError: The file is a pipe or damaged, or a column is missing or of another type.
    """

    def __init__(
        self,
        name: str,
        file: BinaryIO,
        columns: Sequence[str] | None,
        size: int | None,
        keep: Sequence[str] | None = (),
    ) -> None:
        try:
            import pyarrow.parquet as pq
        except ImportError:
            raise MlxbertError(
                f"{name}: a .parquet file is read with pyarrow, which is not installed",
                hint='pip install "mlxbert[parquet]"',
            ) from None
        if not file.seekable():
            raise InputError(
                f"{name}: is a pipe, and a .parquet file cannot be read from one", hint="give the file itself"
            )
        self.name, self._size, self._rows = name, size or 0, 0
        self._texts = len(columns or ())  # columns that must be strings
        with _arrow_errors(name):
            # Buffered in advance, the columns of the whole file would be in memory.
            self._file = pq.ParquetFile(file, pre_buffer=False)
            schema = self._file.schema_arrow
            self.kept = list(keep if keep is not None else [name for name in schema.names if name == "id"])
            self.columns = list(schema.names if columns is None else [*columns, *self.kept])
            self._check(schema)

    def _check(self, schema: Any) -> None:
        for number, column in enumerate(self.columns):
            count = schema.names.count(column)
            if count != 1:
                raise InputError(
                    f"{self.name}: {'two columns' if count else 'no column'} {column!r}, the file has: "
                    f"{', '.join(schema.names)}",
                    hint="choose the column with names=" if number < self._texts else None,
                )
            if number < self._texts and not _is_text(schema.field(column).type):
                raise InputError(
                    f"{self.name}: column {column!r} has the type {schema.field(column).type}, expected strings",
                    hint="choose the column with names=",
                )

    @property
    def done(self) -> int:
        """The bytes that correspond to the share of rows read so far."""
        return self._size * self._rows // max(self._file.metadata.num_rows, 1)

    def __iter__(self) -> Iterator[tuple[Any, ...] | InputError]:
        with _arrow_errors(self.name):
            for batch in self._file.iter_batches(batch_size=_ROWS, columns=self.columns):
                columns = [_values(batch.column(batch.schema.get_field_index(name))) for name in self.columns]
                for row in zip(*columns, strict=True):
                    self._rows += 1
                    yield self._check_row(row)

    def _check_row(self, row: tuple[Any, ...]) -> tuple[Any, ...] | InputError:
        for number, (column, value) in enumerate(zip(self.columns, row, strict=True)):
            if isinstance(value, UnicodeDecodeError):
                return InputError(f"column {column!r}: byte 0x{value.object[value.start]:02x} is not UTF-8")
            if isinstance(value, Exception):
                return InputError(f"column {column!r}: {value}")
            if isinstance(value, str) and len(value) > LONGEST:
                return too_long(f"column {column!r}")
            if value is None and number < self._texts:
                return InputError(f"column {column!r} is null, expected a string")
        return row


def _is_text(kind: Any) -> bool:
    import pyarrow as pa

    if pa.types.is_dictionary(kind):
        kind = kind.value_type
    return pa.types.is_string(kind) or pa.types.is_large_string(kind) or pa.types.is_string_view(kind)


def _values(column: Any) -> list[Any]:
    """The values; errors in place of strings that are not UTF-8, and of times that Python cannot hold."""
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
def _arrow_errors(name: str) -> Iterator[None]:
    import pyarrow as pa

    try:
        yield
    except (OSError, pa.ArrowException) as problem:
        said = str(problem).partition("\n")[0]
        raise InputError(f"{name}: cannot be read as .parquet ({said})") from None
