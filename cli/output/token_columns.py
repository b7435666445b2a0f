"""The .parquet output for token vectors.

Shapes: N results, T vectors of all results, W values of a stored vector.
"""

from collections.abc import Mapping, Sequence
from typing import IO, TYPE_CHECKING, Any

from mlxbert.cli.output.parquet import Parquet, arrow_errors
from mlxbert.results.embed import TokenVectors
from mlxbert.results.result import Failure

if TYPE_CHECKING:
    from numpy.typing import NDArray

_DTYPES = {"float32": "<f4", "float16": "<f2"}  # others are stored as int8


def _vectors(results: Sequence[TokenVectors | Failure], dtype: str, width: int) -> "tuple[NDArray[Any], list[int]]":
    """Returns the vectors of all results, (T, W), and the number of vectors of each; a failure has none."""
    import numpy as np

    kind = _DTYPES.get(dtype, "|i1")
    arrays = [np.zeros((0, width), kind) if isinstance(each, Failure) else each.embeddings for each in results]
    return np.concatenate([np.zeros((0, width), kind), *arrays]).astype(kind, copy=False), [*map(len, arrays)]


class TokenParquet(Parquet):
    """`.parquet`: like that of vectors of texts, but the column `embeddings` holds a list of vectors, or null."""

    def __init__(self, *arguments: Any, dtype: str, **keywords: Any) -> None:
        super().__init__(*arguments, **keywords, whole=dtype in ("int8", "binary"))
        self._dtype = dtype

    def _schema(self) -> Any:
        import pyarrow as pa

        schema = super()._schema()
        number = {"float32": pa.float32(), "float16": pa.float16()}.get(self._dtype, pa.int8())
        vectors = pa.field("embeddings", pa.list_(pa.list_(number, self.width)))
        return schema.set(schema.names.index("embedding"), vectors)

    def write_part(self, file: IO[bytes], results: Sequence[Any], kept: Sequence[Mapping[str, Any]]) -> None:
        """Writes an Arrow file."""
        import numpy as np
        import pyarrow as pa

        schema = self._schema()
        kind = schema.field("embeddings").type
        vectors, counts = _vectors(results, self._dtype, self.width)
        ends = np.cumsum(counts)
        offsets = [None if isinstance(result, Failure) else int(end - count)
                   for result, end, count in zip(results, ends, counts, strict=True)]  # fmt: skip
        with arrow_errors():
            inner = pa.FixedSizeListArray.from_arrays(pa.array(vectors.reshape(-1)), type=kind.value_type)
            lists = pa.ListArray.from_arrays(pa.array([*offsets, int(sum(counts))], pa.int32()), inner)
            columns = [
                lists if name == "embeddings" else [self._cell(name, *row) for row in zip(results, kept, strict=True)]
                for name in schema.names
            ]
            with pa.ipc.new_file(file, schema) as writer:
                writer.write_table(pa.table(columns, schema=schema))
