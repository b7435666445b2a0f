"""Preselects the nearest vectors by the signs of their values, in a fraction of the time of exact products.

Legend: N vectors, W values per vector.
"""

from typing import TYPE_CHECKING, Any

from mlxbert.nn.unit_length import unit_length

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

_WIDER = 6  # signs alone select this many times `count` vectors, before the product with the signs,
_WIDEST = 25  # or one in this many of all vectors, if these are more
_BLOCK = 2**15  # vectors whose distances are computed together: they fit in the cache of a core


def signs_of(vectors: "NDArray[np.floating[Any]]") -> "NDArray[np.uint8]":
    """Converts vectors (N, W) to signs (N, bytes): one bit per value, and each row padded to words of 64 bits."""
    import numpy as np

    bits = np.packbits(vectors > 0, axis=-1)
    return np.pad(bits, ((0, 0), (0, -bits.shape[-1] % 8)))


def row_bytes(width: int) -> int:
    """Returns the number of bytes in which `signs_of` stores a vector of `width` values; of a sparse one, 0."""
    return -(-width // 64) * 8


def unit(vector: "NDArray[np.float32]", similarity: str) -> "NDArray[np.float32]":
    """Normalizes a vector to length 1 if the similarity is cosine."""
    return unit_length(vector) if similarity == "cosine" else vector


class Signs:
    """The signs of many vectors.

    Args:
        rows: The result of `signs_of`, (N, bytes).
        alive: Flags that say which rows hold the signs of a vector, (N,); the other rows are unused.
    """

    def __init__(self, rows: "NDArray[np.uint8]", alive: "NDArray[np.bool_]") -> None:
        import numpy as np

        self.alive = alive
        self._words = np.ascontiguousarray(rows.view(np.uint64).T)  # word-major: sums run over adjacent values

    def rows(self, places: "NDArray[np.integer[Any]]") -> "NDArray[np.uint8]":
        """Returns the rows with the indices `places`, in the format of `signs_of`."""
        import numpy as np

        return np.ascontiguousarray(self._words.T[places]).view(np.uint8)

    def nearest(
        self, vector: "NDArray[np.float32]", count: int, only: "NDArray[np.bool_] | None" = None
    ) -> "NDArray[np.intp]":
        """Returns the row indices of the `count` vectors (or all, if fewer) that are probably nearest to `vector` (W,).

        The vectors that share the most signs with `vector` are selected first; of these, the ones with the largest
        `_products` are returned.

        Args:
            vector: The vector to compare with.
            count: The number of row indices to return.
            only: Flags for the vectors to consider, (N,); `None` for all.
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
        wide = max(_WIDER * count, len(distances) // _WIDEST)
        limit = min(int(np.searchsorted(numbers, wide)), furthest - 1)
        places = np.flatnonzero(distances <= limit)
        if len(places) <= count:
            return places
        products = self._products(vector, places)
        return places[np.argpartition(-products, count - 1)[:count]]

    def _products(self, vector: "NDArray[np.float32]", places: "NDArray[np.intp]") -> "NDArray[np.float32]":
        """Returns, for each row in `places`, the sum of the values of `vector` (W,) where the row is positive."""
        import numpy as np

        rows = self.rows(places)
        values = np.zeros(8 * rows.shape[1], np.float32)
        values[: len(vector)] = vector
        bits = np.unpackbits(np.arange(256, dtype=np.uint8)[:, None], axis=1)  # the bits of each byte
        sums = bits @ values.reshape(-1, 8).T  # (256, bytes)
        return np.asarray(sum(sums[rows[:, byte], byte] for byte in range(rows.shape[1])), np.float32)
