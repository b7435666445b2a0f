"""What a format of output files has to do, and what formats of vectors share.

Every format writes a part from a list of results, and assembles the whole from the parts in one pass in which only a
piece of a part is in memory at a time. The bytes depend on nothing but the results. D is the width of a vector.
"""

from abc import ABC, abstractmethod
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any

from mlxbert.results import Embedding, Failure

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

CHUNK = 1 << 20  # bytes copied at a time


class OutputFormat(ABC):
    """How results are kept in a file.

    Attributes:
        ending: Of the whole file.
        part_ending: Of its parts.
        holds_errors: Whether the file says why an input failed; where it does not, that is said on stderr.
        failures: What a failed input looks like in the file.
    """

    ending: str
    part_ending: str
    holds_errors = True
    failures = "each says why in its place in the output"

    def __init__(self, width: int | None = None, metadata: Mapping[str, str] | None = None) -> None:
        self._width = width
        self.metadata = {"format": "mlxbert embeddings", **(metadata or {})}

    @property
    def width(self) -> int:
        """D, which a format of vectors has to know before there are any."""
        assert self._width is not None, f"{self.ending} needs the width of its vectors"
        return self._width

    @classmethod  # noqa: B027 - most formats need nothing
    def check(cls, path: Path) -> None:
        """Refuses what could not be written in the end.

        Raises:
            MlxbertError: A library is missing.
        """

    @abstractmethod
    def write_part(self, file: IO[bytes], results: Sequence[Any]) -> None:
        """Writes some results, at least one, each a failure or what the command gives."""

    @abstractmethod
    def assemble(self, file: IO[bytes], parts: Iterable[Path], results: int) -> None:
        """Writes the whole.

        Args:
            file: Where to.
            parts: The parts in order; may be asked for more than once.
            results: N, how many results they hold together.
        """


def stack(results: Sequence[Embedding | Failure], width: int) -> "NDArray[np.float32]":
    """float32 (len(results), D); NaN where one failed."""
    import numpy as np

    found = np.full((len(results), width), np.nan, dtype="<f4")
    for row, result in enumerate(results):
        if not isinstance(result, Failure):
            assert result.embedding.shape == (width,), f"a vector of {result.embedding.shape}, expected ({width},)"
            found[row] = result.embedding
    return found


def utf8(text: str) -> bytes:
    """The text as UTF-8; halves of surrogate pairs, which an error may quote, as escapes."""
    return text.encode("utf-8", "backslashreplace")
