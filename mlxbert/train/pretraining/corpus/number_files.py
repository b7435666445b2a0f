"""Arrays of numbers that stay in files and are read on access, because a corpus may be larger than memory."""

import os
import tempfile
import weakref
from collections.abc import Iterable, Iterator
from itertools import islice
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np
from numpy.typing import NDArray

from mlxbert.durable_files import writing
from mlxbert.errors import CheckpointError

_BLOCK = 2**12  # rows that are read or written at a time


class Stored:
    """An array of N rows in a file, (N,) or (N, W). The caller may close the file, and even remove it.

    The file is not memory-mapped, because all pages ever read would then count as memory of the process.
    """

    def __init__(self, file: BinaryIO, dtype: np.dtype[Any], shape: tuple[int, ...]) -> None:
        self._file, self.dtype, self._shape = os.dup(file.fileno()), dtype, shape
        self._size = dtype.itemsize * int(np.prod(shape[1:]))  # bytes of a row
        weakref.finalize(self, os.close, self._file)

    def __len__(self) -> int:
        return self._shape[0]

    def __getitem__(self, place: int | slice) -> Any:
        """Returns a row, or a range of consecutive rows."""
        if not isinstance(place, slice):
            return self[place : place + 1][0]
        start, stop, _ = place.indices(len(self))
        size = max(stop - start, 0) * self._size
        content = os.pread(self._file, size, start * self._size)
        if len(content) < size:
            raise CheckpointError(
                f"the stored corpus ends after {start * self._size + len(content):,} bytes, expected "
                f"{len(self) * self._size:,} bytes",
                hint="remove the folder of shards, which will be rebuilt",
            )
        return np.frombuffer(content, self.dtype).reshape(-1, *self._shape[1:])


Numbers = Stored | NDArray[Any]


def in_blocks(numbers: Numbers) -> Iterator[NDArray[Any]]:
    """Returns an iterator over all rows in order, in blocks."""
    return (numbers[start : start + _BLOCK] for start in range(0, len(numbers), _BLOCK))


def store(rows: Iterable[tuple[int, ...]], width: int, folder: Path) -> Stored:
    """Writes rows of `width` numbers to an unnamed file in `folder`. The file is deleted once the result is unused."""
    dtype, count, waiting = np.dtype("<i8"), 0, iter(rows)
    with writing(folder, "the places of the examples "):
        folder.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryFile(dir=folder) as file:
            while block := [*islice(waiting, _BLOCK)]:
                file.write(np.array(block, dtype).tobytes())
                count += len(block)
            file.flush()
            return Stored(file, dtype, (count, width))
