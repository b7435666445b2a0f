"""Nearest vectors of a store: the signs of all vectors in memory, or the vectors themselves, and masks of filters.

Legend: n vectors, W values per vector.
"""

import functools
import json
import os
import zlib
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import partial
from typing import Any, TypeAlias

from mlxbert.lazy_numpy import NDArray, np
from mlxbert.machine.device import mx, on_gpu
from mlxbert.nn.unit_vectors import unit_length
from mlxbert.search.database import Database
from mlxbert.search.filters import Filter
from mlxbert.search.schema import BLOCK, damaged
from mlxbert.search.store import IndexSettings

Vector: TypeAlias = "NDArray[np.float32]"


_WIDER = 6  # signs alone select this many times `count` vectors, before the product with the signs,
_WIDEST = 25  # or one in this many of all vectors, if these are more
_BLOCK = 2**15  # vectors whose distances are computed together: they fit in the cache of a core


def signs_of(vectors: "NDArray[np.floating[Any]]") -> "NDArray[np.uint8]":
    """Converts vectors (N, W) to signs (N, bytes): one bit per value, and each row padded to words of 64 bits."""
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
        self.alive = alive
        self._words = np.ascontiguousarray(rows.view(np.uint64).T)  # word-major: sums run over adjacent values

    def rows(self, places: "NDArray[np.integer[Any]]") -> "NDArray[np.uint8]":
        """Returns the rows with the indices `places`, in the format of `signs_of`."""
        return np.ascontiguousarray(self._words.T[places]).view(np.uint8)

    def nearest(
        self, vector: "NDArray[np.float32]", count: int, only: "NDArray[np.bool_] | None" = None
    ) -> "NDArray[np.intp]":
        """Returns the row indices of the `count` vectors (or all, if fewer) that are probably nearest to `vector` (W,).

        The vectors that share the most signs with `vector` are selected first; of these, the ones with the largest
        `_products` are returned.

        Args:
            count: The number of row indices to return.
            only: Flags for the vectors to consider, (N,); `None` for all.
        """
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
        rows = self.rows(places)
        values = np.zeros(8 * rows.shape[1], np.float32)
        values[: len(vector)] = vector
        bits = np.unpackbits(np.arange(256, dtype=np.uint8)[:, None], axis=1)  # the bits of each byte
        sums = bits @ values.reshape(-1, 8).T  # (256, bytes)
        return np.asarray(sum(sums[rows[:, byte], byte] for byte in range(rows.shape[1])), np.float32)


# Vectors whose scores are computed; they contain 99 % of the ten nearest in benchmarks/search.py.
NEAREST = 1500
_MAX_MASKS = 16  # filters with a cached mask
_MAX_COUNTS = 10_000  # words with a cached count


@dataclass(frozen=True)
class FilterMask:
    """The chunks and vectors that match a filter."""

    vectors: "NDArray[np.bool_]"  # flags that say, by the number of a vector, whether it belongs to a matching chunk
    # Flags that say, by the number of a chunk, whether it matches. Chunks without a flag do not match.
    chunks: "NDArray[np.bool_]"

    def matches(self, chunk: int) -> bool:
        return chunk < len(self.chunks) and bool(self.chunks[chunk])


def checksum(alive: bytes, bits: bytes) -> int:
    """Returns the CRC-32 of a block of signs."""
    return zlib.crc32(bits, zlib.crc32(alive))


def verified(alive: bytes, bits: bytes, crc: int) -> tuple[bytes, bytes]:
    """Returns a block of signs; raises ValueError if the checksum is wrong."""
    if checksum(alive, bits) != crc:
        raise ValueError("the signs of the vectors have a wrong checksum")
    return alive, bits


class VectorCache:
    """The cached vectors of an index, which are read again when the file has changed.

    Args:
        path: The file of the index, for error messages.
    """

    def __init__(self, connection: Database, about: IndexSettings, path: str) -> None:
        self._connection, self._about, self._path = connection, about, path
        self._version: int | None = None
        self.forget()

    def forget(self) -> None:
        self._signs: Signs | None = None
        self._all: tuple[NDArray[np.int64], Any] | None = None
        self._masks: dict[Filter, FilterMask] = {}
        self._counts: dict[str, int] = {}
        self._chunks: int | None = None

    def _refresh(self) -> None:
        version = self._connection.row("PRAGMA data_version")[0]
        if version != self._version:
            self.forget()
        self._version = version

    def counts(self) -> dict[str, int]:
        """Returns the cached number of chunks that contain each word; the caller adds further words to the dict.

        The numbers are cached because it takes milliseconds to count the chunks with a common word.
        """
        self._refresh()
        if len(self._counts) > _MAX_COUNTS:
            self._counts.clear()
        return self._counts

    def chunks(self) -> int:
        """Returns the number of chunks. It is cached, because SQLite counts all rows."""
        self._refresh()
        if self._chunks is None:
            self._chunks = int(self._connection.row("SELECT count(*) FROM chunks")[0])
        return self._chunks

    def mask(self, only: Filter) -> "FilterMask | None":
        """Returns the mask of a filter, if it is cached."""
        self._refresh()
        return self._masks.get(only)

    def add_mask(self, only: Filter, rows: Sequence[tuple[int, int]]) -> "FilterMask":
        """Makes and caches the mask of a filter from the numbers of the matching chunks and of their vectors."""
        chunks, vectors = np.array(rows, np.int64).reshape(-1, 2).T
        mask = FilterMask(np.zeros(len(self._loaded().alive), bool), np.zeros(max(chunks, default=-1) + 1, bool))
        mask.vectors[vectors], mask.chunks[chunks] = True, True
        if len(self._masks) >= _MAX_MASKS:
            self._masks.pop(next(iter(self._masks)))
        self._masks[only] = mask
        return mask

    def nearest(self, vector: "Vector", count: int, mask: "FilterMask | None") -> dict[int, float]:
        """Returns the scores of the `count` vectors most similar to `vector` (W,), and of any that tie with the last.

        The scores are keyed by the numbers of the vectors. On a CPU with cosine similarity, only the vectors that share
        the most signs with `vector` are compared.
        """
        self._refresh()
        if on_gpu() or self._about.similarity != "cosine":
            return self._nearest_of_all(vector, count, mask)
        return self._nearest_of(vector, count, self._likely(vector, count, mask)())

    def begin_nearest(
        self, vector: "Vector", count: int, mask: "FilterMask | None"
    ) -> "Callable[[], dict[int, float]]":
        """Begins `nearest`; returns a function that waits for its result.

        On a CPU with cosine similarity, another thread compares the signs until then, so that the caller can search for
        words meanwhile.
        """
        self._refresh()
        if on_gpu() or self._about.similarity != "cosine":
            return partial(self._nearest_of_all, vector, count, mask)
        places = _executor().submit(self._likely(vector, count, mask))
        return lambda: self._nearest_of(vector, count, places.result())

    def _likely(self, vector: "Vector", count: int, mask: "FilterMask | None") -> "Callable[[], NDArray[np.intp]]":
        """Returns a function, for any thread, that returns the numbers of the vectors to compare in `nearest`."""
        alive = None if mask is None else mask.vectors
        return partial(self._loaded().nearest, vector, max(NEAREST, 2 * count), alive)

    def _nearest_of(self, vector: "Vector", count: int, places: "NDArray[np.intp]") -> dict[int, float]:
        """Returns the scores of the most similar of the vectors with the numbers in `places`; see `nearest`."""
        from mlxbert.tasks.query_ranking import nearest

        numbers, stored = self._stored(places)
        best, scores = nearest("cosine", vector[None], stored.astype(np.float32), len(stored))
        return _best(numbers[best[0]], scores[0], count)

    def similarities(self, vector: "Vector", numbers: Sequence[int]) -> dict[int, float]:
        """Returns the scores of the vectors with these numbers, keyed by number; missing vectors are left out."""
        from mlxbert.tasks.query_ranking import scores_of_all

        found, vectors = self.vectors(numbers)
        (scores,) = scores_of_all(self._about.similarity, vector[None], vectors)
        return dict(zip(found, scores.tolist(), strict=True))

    def vectors(self, numbers: Sequence[int]) -> tuple[list[int], "Vector"]:
        """Returns the numbers and the vectors (n, W) that are stored under some numbers."""
        found, stored = self._stored(np.array([*numbers], np.intp))
        return found.tolist(), stored.astype(np.float32)

    def _nearest_of_all(self, vector: "Vector", count: int, mask: "FilterMask | None") -> dict[int, float]:
        from mlxbert.tasks.query_ranking import nearest

        preselects = on_gpu() and self._about.similarity in ("cosine", "dot")
        if self._all is None:
            numbers, stored = self._stored(None)
            self._all = numbers, mx.array(stored) if preselects else stored.astype(np.float32)
        numbers, every = self._all
        chosen = slice(None) if mask is None else np.flatnonzero(mask.vectors[numbers])
        if isinstance(every, mx.array):  # the GPU only preselects; exact scores follow
            # No product with a vector whose absolute values sum to 1 exceeds the values of float16.
            query = mx.array(vector / (np.abs(vector).sum() or 1), mx.float16)
            best = _highest(np.array(every @ query)[chosen], max(NEAREST, 2 * count))
            chosen = best if isinstance(chosen, slice) else chosen[best]
            rows = np.array(every[mx.array(chosen)]).astype(np.float32)
        else:
            rows = every[chosen]
        best, scores = nearest(self._about.similarity, vector[None], rows, len(rows))
        return _best(numbers[chosen][best[0]], scores[0], count)

    def _loaded(self) -> Signs:
        """Returns the signs of all vectors, in the order of their numbers; reads them on first use."""
        if self._signs is None:
            width = row_bytes(0 if self._about.is_sparse else self._about.dimensions)
            rows = self._connection.rows("SELECT block, alive, bits, crc FROM signs ORDER BY block")
            blocks = len(rows)
            if [row[0] for row in rows] != [*range(blocks)]:  # blocks are never removed
                raise damaged(self._path, "blocks of signs are missing")
            alive = np.zeros((blocks, BLOCK), bool)
            bits = np.zeros((blocks, BLOCK * width), np.uint8)
            for block, *values in rows:
                flags, signs = verified(*values)
                alive[block], bits[block] = np.frombuffer(flags, np.uint8) == 1, np.frombuffer(signs, np.uint8)
            self._signs = Signs(bits.reshape(blocks * BLOCK, width), alive.reshape(-1))
        return self._signs

    def _stored(self, places: "NDArray[np.intp] | None") -> tuple["NDArray[np.int64]", "NDArray[np.float16]"]:
        """Reads the vectors with the numbers in `places`, or all vectors; missing vectors are left out.

        Returns the numbers (n,) and the vectors (n, W) in the dtype of the file.
        """
        chosen = "" if places is None else "WHERE id IN (SELECT value FROM json_each(?))"
        values = [] if places is None else [json.dumps(places.tolist())]
        width = self._about.dimensions
        numbers, data = list[int](), bytearray()
        # Row by row, as a list of all rows would take as much memory as the vectors.
        for number, vector in self._connection.execute(f"SELECT id, vector FROM vectors {chosen} ORDER BY id", values):
            if len(vector) != 2 * width:
                raise damaged(self._path, "a vector has the wrong size")
            numbers.append(number)
            data += vector
        vectors = np.frombuffer(data, np.float16).reshape(-1, width)
        if not np.isfinite(vectors).all():
            raise damaged(self._path, "a vector has values that are not finite")
        return np.array(numbers, np.int64), vectors

    def check(self) -> None:
        numbers, vectors = self._stored(None)
        signs = self._loaded()
        same = len(numbers) == signs.alive.sum() and signs.alive[numbers].all()
        if not same or not np.array_equal(signs.rows(numbers), signs_of(vectors)):
            raise damaged(self._path, "the signs do not match the vectors")


@functools.cache
def _executor() -> ThreadPoolExecutor:
    return ThreadPoolExecutor(thread_name_prefix="mlxbert-signs")


os.register_at_fork(after_in_child=_executor.cache_clear)  # a fork has no threads but its own


def _best(numbers: "NDArray[np.int64]", scores: "NDArray[np.float32]", count: int) -> dict[int, float]:
    """Returns the `count` highest scores and all that tie with the last of them, keyed by the number of the vector.

    The numbers (n,) and scores (n,) of the vectors must be sorted by score, highest first.
    """
    kept = scores >= scores[count - 1] if len(scores) > count else slice(None)
    return dict(zip(numbers[kept].tolist(), scores[kept].tolist(), strict=True))


def _highest(scores: "NDArray[np.float16]", count: int) -> "NDArray[np.intp]":
    """Returns the places, in ascending order, of the `count` highest scores (n,), or of all; the first ones of ties."""
    if len(scores) <= count:
        return np.arange(len(scores))
    lowest = np.partition(scores, -count)[-count]
    above, ties = np.flatnonzero(scores > lowest), np.flatnonzero(scores == lowest)
    return np.sort(np.concatenate([above, ties[: count - len(above)]]))
