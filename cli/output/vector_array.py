"""The .npy output, which holds vectors as plain numbers.

Shapes: N results, D values of a vector.
"""

import errno
import shutil
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import IO, Any

from mlxbert.cli.output.output_format import CHUNK, OutputFormat, stack


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
        file.write(stack(results, self).tobytes())

    def assemble(self, file: IO[bytes], parts: Iterable[Path], results: int) -> None:
        """Writes the header of the .npy format, and the vectors."""
        from numpy.lib import format as npy

        header = {"descr": self.dtype, "fortran_order": False, "shape": (results, self.width)}
        npy.write_array_header_1_0(file, header)
        for path in parts:
            if path.stat().st_size % (int(self.dtype[-1]) * self.width):
                raise OSError(errno.EIO, f"{path.name} is damaged")
            with path.open("rb") as part:
                shutil.copyfileobj(part, file, CHUNK)
