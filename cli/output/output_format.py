"""The interface of output formats, and helpers for vectors.

A format writes each list of results to a temporary file, a part, and assembles the output file from all parts, without
loading a whole part into memory. The bytes of the output file depend only on the results, not on their division into
parts.

Shapes: D values of a vector.
"""

from abc import ABC, abstractmethod
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any

from mlxbert.results.embed import Embedding, stack_vectors
from mlxbert.results.result import Failure

if TYPE_CHECKING:
    from numpy.typing import NDArray

CHUNK = 1 << 20  # bytes copied at a time


class OutputFormat(ABC):
    """A format of output files. `kind` is that of its vectors: `dense`, `words`, `sparse` or `tokens`."""

    ending: str  # the extension of the file
    part_ending: str  # the extension of each part
    holds_errors = True  # whether the file stores why an input failed; if not, the reason is printed on stderr
    keeps = True  # whether the file can store the kept fields of records
    whole_rows = False  # whether all fields of the records are kept, so that a table repeats none of them
    # Says where failures are described, or how they look in the file.
    failures = "the output has an error for each of these inputs"

    def __init__(
        self,
        width: int | None = None,
        metadata: Mapping[str, str] | None = None,
        keep: Sequence[str] = (),
        *,
        kind: str = "dense",
        dtype: str = "float32",
    ) -> None:
        self._width, self.keep, self.kind = width, keep, kind
        self.dtype = {"float32": "<f4", "float16": "<f2"}.get(dtype, "|i1")
        self.metadata = dict(metadata or {})

    @property
    def width(self) -> int:
        """The number of values of a vector, D; formats for vectors need it in advance."""
        assert self._width is not None, f"{self.ending} needs the width of its vectors"
        return self._width

    @classmethod  # noqa: B027 - most formats need no check
    def check(cls, path: Path) -> None:
        """Raises an error if a file of this format cannot be written to the path."""

    @abstractmethod
    def write_part(self, file: IO[bytes], results: Sequence[Any], kept: Sequence[Mapping[str, Any]]) -> None:
        """Writes a part: results, some of which may be failures, and the kept fields of their records."""

    @abstractmethod
    def assemble(self, file: IO[bytes], parts: Iterable[Path], results: int) -> None:
        """Writes the whole file from its parts, in order, which can be iterated over several times."""


def stack(results: Sequence[Embedding | Failure], format: OutputFormat) -> "NDArray[Any]":
    """Returns the vectors of N results as an array (N, D) of the format's dtype.

    A failure is a row of NaN, or of 0 in int8.
    """
    return stack_vectors(results, format.width, format.dtype)


def utf8(text: str) -> bytes:
    """Encodes a text as UTF-8. Lone surrogates, which messages may quote from an input, become escapes."""
    return text.encode("utf-8", "backslashreplace")
