"""The outputs that NumPy and SciPy open: vectors as an array (.npy), sparse vectors as the rows of a matrix (.npz).

Shapes: N results, D values of a vector, V tokens of the vocabulary, K weights in total.
"""

import errno
import shutil
import struct
import zipfile
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import IO, Any

from mlxbert.cli.output.formats import CHUNK, OutputFormat
from mlxbert.lazy_numpy import np
from mlxbert.results.embed import stack_vectors
from mlxbert.results.result import Failure


class Npy(OutputFormat):
    """`.npy`: an array of float32 or int8, (N, D), with a row per input; a failure is a row of NaN or 0."""

    ending = ".npy"
    part_ending = ".rows"
    holds_errors = keeps = False

    def __init__(self, *arguments: Any, **keywords: Any) -> None:
        super().__init__(*arguments, **keywords)
        self.failures = f"the output has a row of {0 if self.dtype == '|i1' else 'NaN'} for each of these inputs"

    def write_part(self, file: IO[bytes], results: Sequence[Any], kept: Sequence[Mapping[str, Any]]) -> None:
        """Writes the vectors, little-endian, without a header."""
        file.write(stack_vectors(results, self.width, self.dtype).tobytes())

    def assemble(self, file: IO[bytes], parts: Iterable[Path], results: int) -> None:
        from numpy.lib import format as npy

        header = {"descr": self.dtype, "fortran_order": False, "shape": (results, self.width)}
        npy.write_array_header_1_0(file, header)
        for path in parts:
            if path.stat().st_size % (int(self.dtype[-1]) * self.width):
                raise OSError(errno.EIO, f"{path.name} is damaged")
            with path.open("rb") as part:
                shutil.copyfileobj(part, file, CHUNK)


_SIZES = struct.Struct("<qq")  # at the start of a part: its rows and its weights
_DATE = (1980, 1, 1, 0, 0, 0)  # of each file in the archive, so that equal results have equal bytes


class Npz(OutputFormat):
    """`.npz`: `data` F32 (K,), `indices` I32 (K,) and `indptr` I64 (N + 1,) of a matrix (N, V) in SciPy's CSR layout.

    A failure is an empty row. A part has its sizes, the number of weights of each row, then all ids, then all weights.
    """

    ending = ".npz"
    part_ending = ".rows"
    holds_errors = keeps = False
    failures = "the output has an empty row for each of these inputs"

    def write_part(self, file: IO[bytes], results: Sequence[Any], kept: Sequence[Mapping[str, Any]]) -> None:
        """Writes the rows, little-endian."""
        rows = [result for result in results if not isinstance(result, Failure)]
        counts = [0 if isinstance(result, Failure) else len(result.ids) for result in results]
        file.write(_SIZES.pack(len(counts), sum(counts)) + np.array(counts, "<i4").tobytes())
        for row in rows:
            file.write(row.ids.astype("<i4").tobytes())
        for row in rows:
            file.write(row.values.astype("<f4").tobytes())

    def assemble(self, file: IO[bytes], parts: Iterable[Path], results: int) -> None:
        total = sum(_sizes(part)[1] for part in parts)

        def copy(first: int) -> Callable[[IO[bytes]], None]:
            return lambda member: _copy(member, parts, first)

        with zipfile.ZipFile(file, "w") as archive:
            _write(archive, "indices", "<i4", (total,), copy(0))
            _write(archive, "indptr", "<i8", (results + 1,), lambda member: _write_ends(member, parts))
            _write(archive, "format", "|S3", (), lambda member: member.write(b"csr"))
            shape = np.array([results, self.width], "<i8").tobytes()
            _write(archive, "shape", "<i8", (2,), lambda member: member.write(shape))
            _write(archive, "data", "<f4", (total,), copy(1))


def _write(
    archive: zipfile.ZipFile, name: str, dtype: str, shape: tuple[int, ...], write: Callable[[IO[bytes]], Any]
) -> None:
    from numpy.lib import format as npy

    with archive.open(zipfile.ZipInfo(f"{name}.npy", _DATE), "w", force_zip64=True) as member:
        npy.write_array_header_1_0(member, {"descr": dtype, "fortran_order": False, "shape": shape})
        write(member)


def _sizes(part: Path) -> tuple[int, int]:
    """Returns the number of rows and of weights of a part; raises `OSError` if its length does not fit."""
    with part.open("rb") as file:
        header = file.read(_SIZES.size)
    rows, weights = _SIZES.unpack(header) if len(header) == _SIZES.size else (0, -1)
    if part.stat().st_size != _SIZES.size + 4 * rows + 8 * weights:
        raise OSError(errno.EIO, f"{part.name} is damaged")
    return rows, weights


def _copy(member: IO[bytes], parts: Iterable[Path], column: int) -> None:
    """Copies the ids (column 0) or the weights (column 1) of all parts."""
    for part in parts:
        rows, weights = _sizes(part)
        with part.open("rb") as file:
            file.seek(_SIZES.size + 4 * rows + 4 * weights * column)
            for start in range(0, 4 * weights, CHUNK):
                member.write(file.read(min(CHUNK, 4 * weights - start)))


def _write_ends(member: IO[bytes], parts: Iterable[Path]) -> None:
    """Writes 0, and the number of weights up to the end of each row."""
    end = 0
    member.write(bytes(8))
    for part in parts:
        rows, _ = _sizes(part)
        counts = np.fromfile(part, "<i4", rows, offset=_SIZES.size).astype("<i8")
        ends = end + counts.cumsum()
        end = int(ends[-1]) if rows else end
        member.write(ends.astype("<i8").tobytes())
