"""Columns of strings in .parquet files, read with pyarrow."""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any, BinaryIO

from mlxbert.errors import InputError, MlxbertError

_ROWS = 256  # in memory at a time


class ParquetRows:
    """Rows of a file, the values of some columns each; the file is checked at once.

    Args:
        name: What errors call the file.
        file: To be read; not a pipe.
        columns: The names of the columns, in the order of the values.
        size: Bytes of the file.

    Raises:
        MlxbertError: pyarrow is not installed.
        InputError: The file is a pipe or damaged, or a column is missing or of another type.
    """

    def __init__(self, name: str, file: BinaryIO, columns: Sequence[str], size: int | None) -> None:
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
        self.name, self._columns, self._size, self._rows = name, list(columns), size or 0, 0
        with _arrow_errors(name):
            # Buffered in advance, the columns of the whole file would be in memory.
            self._file = pq.ParquetFile(file, pre_buffer=False)
            self._check(self._file.schema_arrow)

    def _check(self, schema: Any) -> None:
        for column in self._columns:
            count = schema.names.count(column)
            if count != 1:
                raise InputError(
                    f"{self.name}: {'two columns' if count else 'no column'} {column!r}, the file has: "
                    f"{', '.join(schema.names)}",
                    hint="choose the column with names=",
                )
            if not _is_text(schema.field(column).type):
                raise InputError(
                    f"{self.name}: column {column!r} has the type {schema.field(column).type}, expected strings",
                    hint="choose the column with names=",
                )

    @property
    def done(self) -> int:
        """The bytes that correspond to the share of rows read so far."""
        return self._size * self._rows // max(self._file.metadata.num_rows, 1)

    def __iter__(self) -> Iterator[tuple[str, ...] | InputError]:
        with _arrow_errors(self.name):
            for batch in self._file.iter_batches(batch_size=_ROWS, columns=self._columns):
                columns = [_raw(batch.column(batch.schema.get_field_index(name))) for name in self._columns]
                for row in zip(*columns, strict=True):
                    self._rows += 1
                    yield self._decode(row)

    def _decode(self, row: tuple[bytes | None, ...]) -> tuple[str, ...] | InputError:
        values = []
        for column, raw in zip(self._columns, row, strict=True):
            if raw is None:
                return InputError(f"column {column!r} is null, expected a string")
            try:
                values.append(raw.decode("utf-8"))
            except UnicodeDecodeError as problem:
                return InputError(f"column {column!r}: byte 0x{raw[problem.start]:02x} is not UTF-8")
        return tuple(values)


def _is_text(kind: Any) -> bool:
    import pyarrow as pa

    if pa.types.is_dictionary(kind):
        kind = kind.value_type
    return pa.types.is_string(kind) or pa.types.is_large_string(kind) or pa.types.is_string_view(kind)


def _raw(column: Any) -> list[bytes | None]:
    """The values as bytes: pyarrow does not check that strings are UTF-8."""
    import pyarrow as pa

    if pa.types.is_dictionary(column.type):
        column = column.dictionary_decode()
    return column.cast(pa.large_binary()).to_pylist()


@contextmanager
def _arrow_errors(name: str) -> Iterator[None]:
    import pyarrow as pa

    try:
        yield
    except (OSError, pa.ArrowException) as problem:
        said = str(problem).partition("\n")[0]
        raise InputError(f"{name}: cannot be read as .parquet ({said})") from None
