"""The nearest of many vectors by the signs of their values, in a fraction of the time of exact products.

Legend: N vectors, W values of each.
"""

from typing import TYPE_CHECKING, Any

from mlxbert.nn.embedder import SMALLEST_NORM

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

_BLOCK = 2**15  # vectors whose distances are computed together: they stay in the cache of a core


def signs_of(vectors: "NDArray[np.floating[Any]]") -> "NDArray[np.uint8]":
    """The signs of vectors (N, W), a bit each, filled up to whole words of 64: (N, bytes)."""
    import numpy as np

    bits = np.packbits(vectors > 0, axis=-1)
    return np.pad(bits, ((0, 0), (0, -bits.shape[-1] % 8)))


def row_bytes(width: int) -> int:
    """The bytes of a row of `signs_of` for vectors of a width."""
    return -(-width // 64) * 8


def unit(vector: "NDArray[np.float32]", similarity: str) -> "NDArray[np.float32]":
    """A vector, of length 1 where vectors are compared by cosine."""
    import numpy as np

    return vector / max(float(np.linalg.norm(vector)), SMALLEST_NORM) if similarity == "cosine" else vector


class Signs:
    """The signs of many vectors.

    Args:
        rows: As of `signs_of`, (N, bytes).
        alive: Which of them count, (N,).
    """

    def __init__(self, rows: "NDArray[np.uint8]", alive: "NDArray[np.bool_]") -> None:
        import numpy as np

        self.alive = alive
        self._words = np.ascontiguousarray(rows.view(np.uint64).T)  # word by word: sums run over neighbours

    def rows(self, places: "NDArray[np.integer[Any]]") -> "NDArray[np.uint8]":
        """The signs of some vectors, as of `signs_of`."""
        import numpy as np

        return np.ascontiguousarray(self._words.T[places]).view(np.uint8)

    def nearest(
        self, vector: "NDArray[np.float32]", count: int, only: "NDArray[np.bool_] | None" = None
    ) -> "NDArray[np.intp]":
        """The places of at least `count` vectors with the most signs in common with one (W,), unless there are fewer.

        Args:
            vector: The vector.
            count: How many; all that are as near as the last one are given, too.
            only: Which vectors count, (N,).
        """
        import numpy as np

        counts = self.alive if only is None else self.alive & only
        query = signs_of(vector[None]).view(np.uint64)[0]
        distances = np.empty(self._words.shape[1], np.uint16)
        for start in range(0, len(distances), _BLOCK):
            part = distances[start : start + _BLOCK]
            part[:] = 0
            for words, word in zip(self._words, query, strict=True):
                part += np.bitwise_count(words[start : start + _BLOCK] ^ word)
        furthest = 64 * len(query) + 1
        distances[~counts] = furthest
        numbers = np.bincount(distances, minlength=furthest + 1)[:furthest].cumsum()
        limit = min(int(np.searchsorted(numbers, count)), furthest - 1)
        return np.flatnonzero(distances <= limit)
