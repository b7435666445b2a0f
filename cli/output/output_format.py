"""The interface of output formats, and what formats of vectors share.

A format writes parts from lists of results, and assembles the file from its parts with only a piece of a part in memory
at a time. The bytes depend on the results only. D is the width of a vector.
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
        ending: Of the file.
        part_ending: Of its parts.
        holds_errors: Whether the file says why an input failed; otherwise stderr does.
        keeps: Whether it has a place for what is kept of the records.
        failures: Where failures are described, or what they look like.
        whole: Whether vectors are whole numbers, int8, in place of float32.
        words: Whether vectors are those of words.
    """

    ending: str
    part_ending: str
    holds_errors = True
    keeps = True
    failures = "each says why in its place in the output"

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
        """D, which formats of vectors need in advance."""
        assert self._width is not None, f"{self.ending} needs the width of its vectors"
        return self._width

    @property
    def dtype(self) -> str:
        """The dtype of vectors, little-endian, as NumPy writes it."""
        return "|i1" if self.whole else "<f4"

    @classmethod  # noqa: B027 - most formats need no check
    def check(cls, path: Path) -> None:
        """Refuses a file that cannot be written."""

    @abstractmethod
    def write_part(self, file: IO[bytes], results: Sequence[Any], kept: Sequence[Mapping[str, Any]]) -> None:
        """Writes one or more results, some of them failures, and what is kept of their records."""

    @abstractmethod
    def assemble(self, file: IO[bytes], parts: Iterable[Path], results: int) -> None:
        """Writes the file; `parts` come in order and can be iterated over again, `results` is N of all parts."""


def stack(results: Sequence[Embedding | Failure], format: OutputFormat) -> "NDArray[Any]":
    """(len(results), D) in the dtype of the format; a failure is a row of NaN, or of 0 among whole numbers."""
    import numpy as np

    width = format.width
    found = np.full((len(results), width), 0 if format.whole else np.nan, dtype=format.dtype)
    for row, result in enumerate(results):
        if not isinstance(result, Failure):
            assert result.embedding.shape == (width,), f"a vector of {result.embedding.shape}, expected ({width},)"
            found[row] = result.embedding
    return found


def utf8(text: str) -> bytes:
    """The text as UTF-8; halves of surrogate pairs, which errors may quote, as escapes."""
    return text.encode("utf-8", "backslashreplace")
