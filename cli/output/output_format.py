"""The interface of output formats, and helpers for vectors.

A format writes parts from lists of results, and assembles the file from its parts with only a piece of a part in memory
at a time. The bytes depend only on the results. D is the width of a vector.
"""

from abc import ABC, abstractmethod
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any

from mlxbert.results.embed import Embedding
from mlxbert.results.result import Failure

if TYPE_CHECKING:
    from numpy.typing import NDArray

CHUNK = 1 << 20  # bytes copied at a time


class OutputFormat(ABC):
    """A format of output files.

    Attributes:
        ending: The extension of the file.
        part_ending: The extension of its parts.
        holds_errors: Whether the file stores why an input failed; otherwise stderr shows it.
        keeps: Whether the file can store the kept fields of records.
        failures: Where failures are described, or what they look like.
        whole: Whether vectors are int8 instead of float32.
        words: Whether vectors are of words.
    """

    ending: str
    part_ending: str
    holds_errors = True
    keeps = True
    failures = "the output has an error in place of each"

    def __init__(
        self,
        width: int | None = None,
        metadata: Mapping[str, str] | None = None,
        keep: Sequence[str] = (),
        *,
        whole: bool = False,
        words: bool = False,
    ) -> None:
        self._width, self.keep, self.whole, self.words = width, keep, whole, words
        self.metadata = dict(metadata or {})

    @property
    def width(self) -> int:
        """D; formats of vectors need it in advance."""
        assert self._width is not None, f"{self.ending} needs the width of its vectors"
        return self._width

    @property
    def dtype(self) -> str:
        """NumPy's name of the vectors' dtype, little-endian."""
        return "|i1" if self.whole else "<f4"

    @classmethod  # noqa: B027 - most formats need no check
    def check(cls, path: Path) -> None:
        """Refuses a file that cannot be written."""

    @abstractmethod
    def write_part(self, file: IO[bytes], results: Sequence[Any], kept: Sequence[Mapping[str, Any]]) -> None:
        """Writes results, which may be failures, with the kept fields of their records."""

    @abstractmethod
    def assemble(self, file: IO[bytes], parts: Iterable[Path], results: int) -> None:
        """Writes the file; `parts` are in order and can be iterated repeatedly, `results` is the N of all parts."""


def stack(results: Sequence[Embedding | Failure], format: OutputFormat) -> "NDArray[Any]":
    """Returns (len(results), D) in the format's dtype; a failure is a row of NaN, or of 0 in int8."""
    import numpy as np

    width = format.width
    stacked = np.full((len(results), width), 0 if format.whole else np.nan, dtype=format.dtype)
    for row, result in enumerate(results):
        if not isinstance(result, Failure):
            assert result.embedding.shape == (width,), f"a vector of {result.embedding.shape}, expected ({width},)"
            stacked[row] = result.embedding
    return stacked


def utf8(text: str) -> bytes:
    """Encodes a text as UTF-8; lone surrogates, which errors may quote, become escapes."""
    return text.encode("utf-8", "backslashreplace")
