"""The table of a static model, as model2vec and sentence-transformers store it.

`embeddings` (rows, D) holds vectors: 16- or 32-bit floats, float64, or int8 without a scale. `mapping` (V), if there is
one, holds the row of each token; `weights` (V) the factor of each token's vector. Both are multiplied out, so that
callers see a single matrix (V, D).
"""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path

from mlxbert.errors import CheckpointError
from mlxbert.machine.device import mx
from mlxbert.weights.formats.headers import FLOATS, TensorInfo

TABLE, MODULE_TABLE = "embeddings", "embedding.weight"  # the names in model2vec and in sentence-transformers
MODEL2VEC, MODULE = "model2vec", "static-embedding"  # the values of `model_type`; the second one is mlxbert's own
MODEL_TYPES = (MODEL2VEC, MODULE)
_MAPPING, _WEIGHTS = "mapping", "weights"
_NUMBERS, _INTEGERS = (*FLOATS, "F64"), ("I64", "I32", "U32", "I16", "U16", "U8")


def table_of(tensors: Mapping[str, TensorInfo]) -> str | None:
    """Returns the name of the table in a file; `None` if there is no table."""
    return next((name for name in (TABLE, MODULE_TABLE) if name in tensors), None)


def sizes(folder: Path, tensors: Mapping[str, TensorInfo]) -> tuple[int, int]:
    """Returns the number of tokens and the width of a table; raises `CheckpointError` if its tensors do not fit."""
    name = table_of(tensors)
    if name is None:
        raise CheckpointError(
            f"{folder}: the weights have no table of vectors, expected the tensor {TABLE!r} or {MODULE_TABLE!r}",
            hint="check that the weights and the configuration belong to the same model",
        )
    table, mapping, weights = (tensors.get(part) for part in (name, _MAPPING, _WEIGHTS))
    assert table is not None
    _check(folder, name, table, (*_NUMBERS, "I8"), "a matrix of floats or int8", len(table.shape) == 2)
    if 0 in table.shape:
        raise CheckpointError(f"{folder}: tensor {name!r} has shape {table.shape}, expected a vector for each token")
    if mapping is not None:
        _check(folder, _MAPPING, mapping, _INTEGERS, "a row number for each token", len(mapping.shape) == 1)
    rows = table.shape[0] if mapping is None else mapping.shape[0]
    if weights is not None:
        _check(folder, _WEIGHTS, weights, _NUMBERS, f"{rows} floats, one for each token", weights.shape == (rows,))
    return rows, table.shape[1]


def _check(folder: Path, name: str, info: TensorInfo, dtypes: tuple[str, ...], expected: str, fits: bool) -> None:
    if not fits or info.dtype not in dtypes:
        raise CheckpointError(
            f"{folder}: tensor {name!r} is {info.dtype} {info.shape}, expected {expected}",
            hint="write the folder again with the library that made it",
        )


@dataclass(frozen=True)
class StaticTable:
    """The format as a class with the same methods as `mlxbert.weights.formats.quantized.Quantization`."""

    dtype: str  # the dtype of the stored table
    folder: Path  # the folder of the model, for messages
    name: str = "a static table"  # the name of the format, for messages
    carries_errors: bool = False

    def of(self, name: str) -> "StaticTable":
        """Returns how the matrix `name` is stored: this object, because there is only one table."""
        return self

    @property
    def dtypes(self) -> set[str]:
        return {self.dtype}

    def unpacked(self, folder: Path, tensors: Mapping[str, TensorInfo]) -> dict[str, TensorInfo]:
        """Returns the header entries without mapping and weights; the table has a row for each token."""
        name = table_of(tensors)
        assert name is not None
        others = {other: info for other, info in tensors.items() if other not in (_MAPPING, _WEIGHTS)}
        return others | {name: replace(tensors[name], shape=sizes(folder, tensors))}

    def expand(self, arrays: Mapping[str, mx.array], name: str, dtype: mx.Dtype) -> mx.array:
        """Returns the table with a row for each token; heads are returned unchanged.

        Raises:
            CheckpointError: The mapping names a row that the table does not have.
        """
        table = arrays[name]
        if name not in (TABLE, MODULE_TABLE):
            return table.astype(dtype)
        if _MAPPING in arrays:
            mapping = arrays[_MAPPING]
            low, high = int(mapping.min().item()), int(mapping.max().item())  # type: ignore[arg-type]
            if not 0 <= low <= high < table.shape[0]:
                raise CheckpointError(
                    f"{self.folder}: tensor {_MAPPING!r} names rows from {low} to {high}, but the table has "
                    f"rows from 0 to {table.shape[0] - 1}",
                    hint="write the folder again with the library that made it",
                )
            table = table[mapping.astype(mx.int32)]
        table = table.astype(mx.float32)
        return (table * arrays[_WEIGHTS][:, None] if _WEIGHTS in arrays else table).astype(dtype)

    def rounding_error(self, array: mx.array) -> mx.array:
        """Returns zeros: the stored numbers are exact."""
        return mx.zeros(array.shape)


def read_storage(folder: Path, tensors: Mapping[str, TensorInfo]) -> StaticTable | None:
    """Returns the format of the table; `None` if it is a plain matrix of floats with a row for each token."""
    name = table_of(tensors)
    plain = name is None or (tensors[name].dtype in FLOATS and tensors.keys().isdisjoint((_MAPPING, _WEIGHTS)))
    return None if name is None or plain else StaticTable(tensors[name].dtype, folder)
