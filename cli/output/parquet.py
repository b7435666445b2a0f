"""Vectors in a table: the .parquet output, which needs pyarrow."""

import errno
import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import IO, Any

from mlxbert.cli.output.base import OutputFormat, stack, utf8
from mlxbert.errors import ArgumentError, MlxbertError
from mlxbert.results.result import Failure


class Parquet(OutputFormat):
    """`.parquet`: columns text, embedding, tokens, truncated, error, and what is kept of each record, as strings.

    A failure has an error, an embedding of NaN (of 0 in int8), and null elsewhere. Its embedding cannot be null:
    pyarrow up to 23 neither writes nor reads null among lists of a fixed size ("Lists with non-zero length null
    components are not supported"), and one failure would make the file unreadable.
    """

    ending = ".parquet"
    part_ending = ".arrow"

    @classmethod
    def check(cls, path: Path) -> None:
        """Refuses the file if pyarrow is missing."""
        try:
            import pyarrow.parquet  # noqa: F401
        except ImportError:
            raise MlxbertError(
                f"--output {path}: a .parquet file is written with pyarrow, which is not installed",
                hint='pip install "mlxbert[parquet]", or: pip install pyarrow',
            ) from None

    def _schema(self) -> Any:
        import pyarrow as pa

        vector = pa.list_(pa.int8() if self.whole else pa.float32(), self.width)
        types = {"text": pa.string(), "embedding": vector, "tokens": pa.int32(), "truncated": pa.bool_()}
        types |= {"error": pa.string()}
        if twice := types.keys() & set(self.keep):
            raise ArgumentError(f"--keep {min(twice)}: the output has a column of this name")
        types |= dict.fromkeys(self.keep, pa.string())
        fields = [pa.field(name, kind) for name, kind in types.items()]
        return pa.schema(fields, {utf8(name): utf8(value) for name, value in sorted(self.metadata.items())})

    def write_part(self, file: IO[bytes], results: Sequence[Any], kept: Sequence[Mapping[str, Any]]) -> None:
        """An Arrow file, which is fast to read back."""
        import pyarrow as pa

        schema = self._schema()
        good = [None if isinstance(result, Failure) else result for result in results]
        with _arrow_errors():
            numbers = pa.array(stack(results, self).reshape(-1))
            vectors = pa.FixedSizeListArray.from_arrays(numbers, type=schema.field("embedding").type)
            texts = [result and utf8(result.text).decode() for result in good]
            tokens = [result and result.tokens for result in good]
            truncated = [result and result.truncated for result in good]
            errors = [utf8(one.error.message).decode() if isinstance(one, Failure) else None for one in results]
            more = [[_as_text(values.get(name)) for values in kept] for name in self.keep]
            table = pa.table([texts, vectors, tokens, truncated, errors, *more], schema=schema)
            with pa.ipc.new_file(file, schema) as writer:
                writer.write_table(table)

    def assemble(self, file: IO[bytes], parts: Iterable[Path], results: int) -> None:
        """A row group for each part."""
        import pyarrow as pa
        import pyarrow.parquet as pq

        # Vectors hardly ever repeat: a dictionary of them would be useless.
        with _arrow_errors(), pq.ParquetWriter(file, self._schema(), use_dictionary=False) as writer:
            for path in parts:
                with path.open("rb") as part, pa.ipc.open_file(part) as reader:
                    table = reader.read_all()
                    writer.write_table(table, row_group_size=table.num_rows)


def _as_text(value: Any) -> str | None:
    """A kept value; what is not a string as JSON."""
    return value if value is None else utf8(value if isinstance(value, str) else json.dumps(value)).decode()


@contextmanager
def _arrow_errors() -> Iterator[None]:
    """Errors of pyarrow as errors of writing a file."""
    import pyarrow as pa

    try:
        yield
    except pa.ArrowException as problem:
        raise OSError(errno.EIO, f"pyarrow: {problem}") from None
