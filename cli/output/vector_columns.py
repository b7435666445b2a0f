"""The .npy and .safetensors outputs, which hold vectors as plain numbers.

Shapes: N results, D values of a vector.
"""

import errno
import hashlib
import json
from abc import abstractmethod
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import IO, Any

from mlxbert.cli.output.output_format import CHUNK, OutputFormat, stack, utf8
from mlxbert.results.result import Failure

_HASH = hashlib.sha256().digest_size


class _ColumnFormat(OutputFormat):
    """A format that stores columns. A part holds one column after the other, without a header.

    The number of rows in a part follows from its size.
    """

    part_ending = ".columns"
    holds_errors = keeps = False

    def __init__(self, *arguments: Any, **keywords: Any) -> None:
        super().__init__(*arguments, **keywords)
        self.failures = f"the output has a row of {0 if self.whole else 'NaN'} for each of these inputs"

    @property
    def vector_bytes(self) -> int:
        """The size of a vector in bytes."""
        return (1 if self.whole else 4) * self.width

    @property
    @abstractmethod
    def row_bytes(self) -> tuple[int, ...]:
        """The size of a row in bytes, for each column."""

    def copy_column(self, file: IO[bytes], parts: Iterable[Path], column: int) -> None:
        """Copies a column from all parts to a file."""
        before, width, row_width = sum(self.row_bytes[:column]), self.row_bytes[column], sum(self.row_bytes)
        for path in parts:
            rows, rest = divmod(path.stat().st_size, row_width)
            if rest:
                raise OSError(errno.EIO, f"{path.name} is damaged")
            with path.open("rb") as part:
                part.seek(rows * before)
                remaining = rows * width
                while remaining and (chunk := part.read(min(CHUNK, remaining))):
                    file.write(chunk)
                    remaining -= len(chunk)


class Npy(_ColumnFormat):
    """`.npy`: an array of float32 or int8, (N, D), with a row per input; a failure is a row of NaN or 0."""

    ending = ".npy"

    @property
    def row_bytes(self) -> tuple[int, ...]:
        """The size of a vector in bytes; vectors are the only column."""
        return (self.vector_bytes,)

    def write_part(self, file: IO[bytes], results: Sequence[Any], kept: Sequence[Mapping[str, Any]]) -> None:
        """Writes the vectors, little-endian."""
        file.write(stack(results, self).tobytes())

    def assemble(self, file: IO[bytes], parts: Iterable[Path], results: int) -> None:
        """Writes the header of the .npy format, and the vectors."""
        from numpy.lib import format as npy

        header = {"descr": self.dtype, "fortran_order": False, "shape": (results, self.width)}
        npy.write_array_header_1_0(file, header)
        self.copy_column(file, parts, 0)


class Safetensors(_ColumnFormat):
    """`.safetensors`: `embeddings` F32 or I8 (N, D), `text_sha256` U8 (N, 32), `tokens` I32 (N,).

    A failure is a row of NaN, or of 0 in I8; its hash and its number of tokens are 0. For the format, see
    https://huggingface.co/docs/safetensors.
    """

    ending = ".safetensors"

    @property
    def row_bytes(self) -> tuple[int, ...]:
        """The sizes in bytes of a vector, a hash and a number of tokens."""
        return (self.vector_bytes, _HASH, 4)

    def write_part(self, file: IO[bytes], results: Sequence[Any], kept: Sequence[Mapping[str, Any]]) -> None:
        """Writes the three columns, little-endian."""
        import numpy as np

        file.write(stack(results, self).tobytes())
        for result in results:
            failed = isinstance(result, Failure)
            file.write(bytes(_HASH) if failed else hashlib.sha256(utf8(result.text)).digest())
        tokens = [0 if isinstance(result, Failure) else result.tokens for result in results]
        file.write(np.array(tokens, "<i4").tobytes())

    def assemble(self, file: IO[bytes], parts: Iterable[Path], results: int) -> None:
        """Writes the header, and then each tensor, whose rows come from all parts."""
        tensors = {
            "embeddings": ("I8" if self.whole else "F32", [self.width]),
            "text_sha256": ("U8", [_HASH]),
            "tokens": ("I32", []),
        }
        texts = {utf8(name).decode(): utf8(value).decode() for name, value in sorted(self.metadata.items())}
        header: dict[str, object] = {"__metadata__": texts}
        end = 0
        for (name, (kind, shape)), size in zip(tensors.items(), self.row_bytes, strict=True):
            start, end = end, end + results * size
            header[name] = {"dtype": kind, "shape": [results, *shape], "data_offsets": [start, end]}
        encoded = json.dumps(header, separators=(",", ":")).encode()
        encoded += b" " * (-len(encoded) % 8)  # the data starts at a multiple of 8
        file.write(len(encoded).to_bytes(8, "little") + encoded)
        for column in range(len(tensors)):
            self.copy_column(file, parts, column)
