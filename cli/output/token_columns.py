"""The .safetensors and .parquet outputs for vectors of tokens.

Shapes: N results, T vectors of all results, W values of a stored vector.
"""

import errno
import hashlib
import json
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any

from mlxbert.cli.output.output_format import CHUNK, OutputFormat, utf8
from mlxbert.cli.output.parquet import Parquet, arrow_errors
from mlxbert.results.embed import TokenVectors
from mlxbert.results.result import Failure

if TYPE_CHECKING:
    from numpy.typing import NDArray

_HASH = hashlib.sha256().digest_size
_DTYPES = {"float32": ("<f4", "F32"), "float16": ("<f2", "F16"), "int8": ("|i1", "I8"), "binary": ("|i1", "I8")}
_COUNT = 8  # bytes of the number of results of a part


def _vectors(results: Sequence[TokenVectors | Failure], dtype: str, width: int) -> "tuple[NDArray[Any], list[int]]":
    """Returns the vectors of all results, (T, W), and the number of vectors of each; a failure has none."""
    import numpy as np

    kind = _DTYPES[dtype][0]
    arrays = [np.zeros((0, width), kind) if isinstance(each, Failure) else each.embeddings for each in results]
    return np.concatenate([np.zeros((0, width), kind), *arrays]).astype(kind, copy=False), [*map(len, arrays)]


class TokenSafetensors(OutputFormat):
    """`.safetensors`: `embeddings` (T, W), `counts` I32 (N,), `text_sha256` U8 (N, 32), `tokens` I32 (N,).

    The vectors of a text are the next `counts` rows of `embeddings`, F32, F16 or I8. A failure has no rows; its hash
    and its number of tokens are 0.
    """

    ending = ".safetensors"
    part_ending = ".tokens"
    holds_errors = keeps = False
    failures = "the output has 0 vectors for each of these inputs"

    def __init__(self, *arguments: Any, dtype: str, **keywords: Any) -> None:
        super().__init__(*arguments, **keywords)
        self._dtype = dtype

    def write_part(self, file: IO[bytes], results: Sequence[Any], kept: Sequence[Mapping[str, Any]]) -> None:
        """Writes the number of results, the columns with a row for each of them, and the vectors."""
        import numpy as np

        vectors, counts = _vectors(results, self._dtype, self.width)
        tokens = [0 if isinstance(result, Failure) else result.tokens for result in results]
        file.write(len(results).to_bytes(_COUNT, "little") + np.array(counts, "<i4").tobytes())
        for result in results:
            file.write(bytes(_HASH) if isinstance(result, Failure) else hashlib.sha256(utf8(result.text)).digest())
        file.write(np.array(tokens, "<i4").tobytes())
        file.write(vectors.tobytes())

    def assemble(self, file: IO[bytes], parts: Iterable[Path], results: int) -> None:
        """Writes the header, and then each tensor, whose rows come from all parts."""
        name, row = _DTYPES[self._dtype][1], self.width * int(_DTYPES[self._dtype][0][-1])
        spans = [_spans(path, row) for path in parts]
        total = sum(end - start for *_, (start, end) in spans) // row
        tensors: dict[str, tuple[str, list[int], int, int]] = {
            "embeddings": (name, [total, self.width], total * row, 3),
            "counts": ("I32", [results], 4 * results, 0),
            "text_sha256": ("U8", [results, _HASH], _HASH * results, 1),
            "tokens": ("I32", [results], 4 * results, 2),
        }
        texts = {utf8(key).decode(): utf8(value).decode() for key, value in sorted(self.metadata.items())}
        header: dict[str, object] = {"__metadata__": texts}
        end = 0
        for key, (kind, shape, size, _) in tensors.items():
            start, end = end, end + size
            header[key] = {"dtype": kind, "shape": shape, "data_offsets": [start, end]}
        encoded = json.dumps(header, separators=(",", ":")).encode()
        encoded += b" " * (-len(encoded) % 8)  # the data starts at a multiple of 8
        file.write(len(encoded).to_bytes(8, "little") + encoded)
        for _, _, _, column in tensors.values():
            for path, span in zip(parts, spans, strict=True):
                _copy(file, path, *span[column])


def _spans(path: Path, row: int) -> list[tuple[int, int]]:
    """Returns where the columns of a part begin and end: counts, hashes, numbers of tokens, vectors."""
    size = path.stat().st_size
    with path.open("rb") as part:
        rows = int.from_bytes(part.read(_COUNT), "little")
    ends = [_COUNT]
    for width in (4, _HASH, 4):
        ends.append(ends[-1] + rows * width)
    if size < ends[-1] or (size - ends[-1]) % row:
        raise OSError(errno.EIO, f"{path.name} is damaged")
    return [*zip(ends, [*ends[1:], size], strict=True)]


def _copy(file: IO[bytes], path: Path, start: int, end: int) -> None:
    with path.open("rb") as part:
        part.seek(start)
        while start < end and (chunk := part.read(min(CHUNK, end - start))):
            file.write(chunk)
            start += len(chunk)


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
