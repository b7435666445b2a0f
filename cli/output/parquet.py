"""The .parquet output, a table of vectors; needs pyarrow.

Shapes: N rows, T vectors of all rows, D values of a stored vector.
"""

import errno
import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from types import SimpleNamespace
from typing import IO, Any

from mlxbert.cli.output.formats import OutputFormat, utf8
from mlxbert.errors import ArgumentError, MlxbertError
from mlxbert.lazy_numpy import np
from mlxbert.other_libraries import install_command
from mlxbert.results.embed import Words, stack_vectors
from mlxbert.results.result import Failure


class Parquet(OutputFormat):
    """`.parquet`: the columns text, embedding, tokens, truncated and error, and the kept fields of records as strings.

    For vectors of words, there is a row per word, with the additional columns word, start and end. Sparse vectors have
    the columns ids and values, two lists of the same length, in place of embedding, and token vectors have the column
    embeddings, a list of vectors; these columns are null for a failure.

    A failure has an error, an embedding of NaN (of 0 in int8), and null in all other columns. Its embedding cannot be
    null, because pyarrow up to 23 neither writes nor reads null among lists of a fixed size ("Lists with non-zero
    length null components are not supported"), so that a single failure would make the file unreadable.
    """

    ending = ".parquet"
    part_ending = ".arrow"

    @classmethod
    def check(cls, path: Path) -> None:
        try:
            import pyarrow.parquet  # noqa: F401
        except ImportError:
            raise MlxbertError(
                f"--output {path}: writing a .parquet file needs pyarrow, which is not installed",
                hint=install_command("parquet"),
            ) from None

    def _schema(self) -> Any:
        import pyarrow as pa

        types = {"text": pa.string()}
        types |= {"word": pa.string(), "start": pa.int32(), "end": pa.int32()} if self.kind == "words" else {}
        if self.kind == "sparse":
            types |= {"ids": pa.list_(pa.int32()), "values": pa.list_(pa.float32())}
        else:
            vector = pa.list_({"<f4": pa.float32(), "<f2": pa.float16()}.get(self.dtype, pa.int8()), self.width)
            types |= {"embeddings": pa.list_(vector)} if self.kind == "tokens" else {"embedding": vector}
        types |= {"tokens": pa.int32(), "truncated": pa.bool_(), "error": pa.string()}
        if taken := types.keys() & set(self.keep):
            raise ArgumentError(f"--keep {min(taken)}: the output already has a column with this name")
        types |= dict.fromkeys(self.keep, pa.string())
        fields = [pa.field(name, kind) for name, kind in types.items()]
        return pa.schema(fields, {utf8(name): utf8(value) for name, value in sorted(self.metadata.items())})

    def write_part(self, file: IO[bytes], results: Sequence[Any], kept: Sequence[Mapping[str, Any]]) -> None:
        """Writes an Arrow file, which is fast to read back."""
        import pyarrow as pa

        schema = self._schema()
        rows = [(row, values) for result, values in zip(results, kept, strict=True) for row in _rows(result)]
        with arrow_errors():
            columns = [
                self._vectors([row for row, _ in rows], field.type)
                if field.name in ("embedding", "embeddings")
                else [self._cell(field.name, *row) for row in rows]
                for field in schema
            ]
            with pa.ipc.new_file(file, schema) as writer:
                writer.write_table(pa.table(columns, schema=schema))

    def _vectors(self, rows: Sequence[Any], type: Any) -> Any:
        """Returns the column of the vectors (N, D), or of the lists of token vectors, (T, D) in all."""
        import pyarrow as pa

        if self.kind != "tokens":
            return pa.FixedSizeListArray.from_arrays(
                pa.array(stack_vectors(rows, self.width, self.dtype).reshape(-1)), type=type
            )
        none = np.zeros((0, self.width), self.dtype)
        arrays = [none if isinstance(row, Failure) else row.embeddings.astype(self.dtype, copy=False) for row in rows]
        ends = np.cumsum([0, *map(len, arrays)]).tolist()
        starts = [None if isinstance(row, Failure) else end for row, end in zip(rows, ends, strict=False)]
        numbers = pa.array(np.concatenate([none, *arrays]).reshape(-1))
        vectors = pa.FixedSizeListArray.from_arrays(numbers, type=type.value_type)
        return pa.ListArray.from_arrays(pa.array([*starts, ends[-1]], pa.int32()), vectors)

    def _cell(self, name: str, row: Any, kept: Mapping[str, Any]) -> Any:
        if name in self.keep:
            return as_text(kept.get(name))
        if isinstance(row, Failure):
            return as_text(row.error.message) if name == "error" else None
        value = getattr(row, name, None)
        return as_text(value) if isinstance(value, str) else value

    def assemble(self, file: IO[bytes], parts: Iterable[Path], results: int) -> None:
        import pyarrow as pa
        import pyarrow.parquet as pq

        # Vectors hardly ever repeat, so a dictionary would be useless.
        with arrow_errors(), pq.ParquetWriter(file, self._schema(), use_dictionary=False) as writer:
            for path in parts:
                with path.open("rb") as part, pa.ipc.open_file(part) as reader:
                    table = reader.read_all()
                    writer.write_table(table, row_group_size=max(table.num_rows, 1))


def _rows(result: Any) -> list[Any]:
    """Returns a row for each word of a text, or the result itself as the only row."""
    if not isinstance(result, Words):
        return [result]
    return [SimpleNamespace(text=result.text, truncated=result.truncated, **vars(word)) for word in result.words]


def as_text(value: Any) -> str | None:
    """Converts a value to a string; values that are neither a string nor `None` are converted to JSON."""
    return value if value is None else utf8(value if isinstance(value, str) else json.dumps(value)).decode()


@contextmanager
def arrow_errors() -> Iterator[None]:
    """Converts errors of pyarrow to an `OSError`, as for any file that cannot be written."""
    import pyarrow as pa

    try:
        yield
    except pa.ArrowException as problem:
        raise OSError(errno.EIO, f"pyarrow: {problem}") from None
