"""The sparse vectors of an index: token weights, and for each token the list of the vectors that have the token.

A vector is an array (K,) of `ENTRIES`: the tokens in ascending order, each with its weight. A file holds weights as
float16, twice: by vector, and by token in lists, so that a search reads only the lists of the tokens of the query. A
list is divided into blocks of vectors, so that a new vector changes a few kilobytes of each.

Legend: n vectors, K tokens of a vector.
"""

import json
import zlib
from collections.abc import Sequence
from functools import partial
from typing import Any, TypeAlias

from mlxbert.errors import StoreError
from mlxbert.lazy_numpy import NDArray, np
from mlxbert.search.database import Database
from mlxbert.search.nearest_vectors import FilterMask, VectorCache
from mlxbert.search.schema import damaged
from mlxbert.search.store import IndexSettings

Entries: TypeAlias = "NDArray[np.void]"

ENTRIES = [("token", "<u4"), ("weight", "<f4")]
SIMILARITIES = ("dot", "cosine")  # these can be computed from the tokens that two vectors share
_LISTED = [("vector", "<u2"), ("weight", "<f2")]  # the number of a vector in its block
_BLOCK = 2**12  # vectors
_BLOCKS = 2**32  # blocks of a token, at most
_PENDING = 2**12  # vectors whose changes wait in memory


class TokenLists:
    """Writes and reads the token vectors.

    Args:
        path: The file of the index, for error messages.
    """

    def __init__(self, connection: Database, about: IndexSettings, path: str) -> None:
        self._connection, self._width, self._path = connection, about.dimensions, path
        self._stored = [("token", "<u2" if about.dimensions <= 2**16 else "<u4"), ("weight", "<f2")]
        self.forget()

    def forget(self) -> None:
        self._added: dict[int, Entries] = {}  # by the number of the vector
        self._removed: dict[int, Entries] = {}

    def add(self, number: int, vector: Any) -> bytes:
        """Adds a vector to the lists; returns the bytes to store for the vector.

        Raises:
            StoreError: A weight is too large for float16.
        """
        if len(vector) and vector["token"][-1] >= self._width:
            raise StoreError(f"{self._path}: the model has more tokens than the index, which has {self._width}")
        with np.errstate(over="ignore"):
            stored = vector.astype(self._stored)
        if not np.isfinite(stored["weight"]).all():
            largest = np.abs(vector["weight"]).max()
            raise StoreError(f"{self._path}: a vector has the weight {largest:.3g}, which is too large for float16")
        stored = stored[stored["weight"] != 0]
        self._flush_if_many()
        self._added[number] = stored
        return stored.tobytes()

    def remove(self, number: int) -> None:
        """Removes a vector, which is still stored, from the lists."""
        (blob,) = self._connection.row("SELECT vector FROM vectors WHERE id = ?", (number,))
        if self._added.pop(number, None) is None:
            self._flush_if_many()
            self._removed[number] = self.parsed(blob)

    def _flush_if_many(self) -> None:
        if len(self._added) + len(self._removed) >= _PENDING:
            self.write()

    def write(self) -> None:
        """Writes the changes, within the caller's transaction."""
        removed, added = self._joined(self._removed), self._joined(self._added)
        changes = np.concatenate([removed, added])
        is_added = np.arange(len(changes)) >= len(removed)
        keys = _keys(changes)
        order = np.argsort(keys, kind="stable")
        starts = np.flatnonzero(np.diff(keys[order], prepend=-1))
        for places in np.split(order, starts[1:]) if len(order) else ():
            part = changes[places]
            self._write_list(int(keys[places[0]]), part["vector"] % _BLOCK, part[is_added[places]])
        self.forget()

    def _write_list(self, key: int, changed: "NDArray[np.int64]", added: "Entries") -> None:
        """Replaces the entries of the changed vectors in a block of a list, given their numbers in the block."""
        row = self._connection.row("SELECT entries, crc FROM lists WHERE id = ?", (key,))
        before = _verified(*row) if row else np.empty(0, _LISTED)
        new = np.empty(len(added), _LISTED)
        new["vector"], new["weight"] = added["vector"] % _BLOCK, added["weight"]
        entries = np.concatenate([before[~np.isin(before["vector"], changed)], new])
        if not len(entries):
            self._connection.execute("DELETE FROM lists WHERE id = ?", (key,))
            return
        data = entries[np.argsort(entries["vector"], kind="stable")].tobytes()
        self._connection.execute("INSERT OR REPLACE INTO lists VALUES (?, ?, ?)", (key, data, zlib.crc32(data)))

    def parsed(self, blob: bytes) -> "Entries":
        """Returns a stored vector with float16 weights; raises StoreError if it is damaged."""
        entries = np.frombuffer(blob, self._stored)
        if not (entries["token"] < self._width).all() or not np.isfinite(entries["weight"]).all():
            raise damaged(self._path, "a vector has invalid weights")
        return entries

    def scores(self, query: "Entries") -> "NDArray[np.float64]":
        """Returns the dot product of a query with each vector, by the number of the vector; 0 if they share no token.

        The array ends with the last vector that shares a token with the query.
        """
        lists: dict[int, Entries] = {}
        for token in query["token"].tolist():
            lists |= self._lists(token * _BLOCKS, (token + 1) * _BLOCKS)
        sizes, listed = [*map(len, lists.values())], np.concatenate([np.empty(0, _LISTED), *lists.values()])
        tokens, blocks = np.divmod(np.array([*lists], np.int64), _BLOCKS)
        weights = query["weight"][np.searchsorted(query["token"], tokens)].astype(np.float64)
        numbers = np.repeat(blocks * _BLOCK, sizes) + listed["vector"]
        return np.asarray(np.bincount(numbers, np.repeat(weights, sizes) * listed["weight"]), np.float64)

    def _lists(self, start: int, end: int) -> "dict[int, Entries]":
        query = "SELECT id, entries, crc FROM lists WHERE id >= ? AND id < ? ORDER BY id"
        return {key: _verified(entries, crc) for key, entries, crc in self._connection.execute(query, (start, end))}

    def check(self) -> None:
        rows = self._connection.rows("SELECT id, vector FROM vectors ORDER BY id")
        stored = self._joined({number: self.parsed(blob) for number, blob in rows})
        stored = stored[np.lexsort((stored["vector"], stored["token"]))]
        lists = self._lists(0, 2**63 - 1)
        keys = np.repeat(np.array([*lists], np.int64), [*map(len, lists.values())])
        listed = np.concatenate([np.empty(0, _LISTED), *lists.values()])
        if not (
            np.array_equal(keys, _keys(stored))
            and np.array_equal(listed["vector"], stored["vector"] % _BLOCK)
            and np.array_equal(listed["weight"], stored["weight"])
        ):
            raise damaged(self._path, "the lists of tokens do not match the vectors")

    def _joined(self, vectors: "dict[int, Entries]") -> "Entries":
        """Returns an array with the vector, the token and the weight of each entry of some vectors."""
        entries = np.concatenate([np.empty(0, self._stored), *vectors.values()])
        joined = np.empty(len(entries), [("vector", "<i8"), ("token", "<i8"), ("weight", "<f2")])
        joined["vector"] = np.repeat(np.array([*vectors], np.int64), [*map(len, vectors.values())])
        joined["token"], joined["weight"] = entries["token"], entries["weight"]
        return joined


class SparseCache(VectorCache):
    """Finds sparse vectors; the lists are not kept in memory (for its methods, see `VectorCache`).

    Args:
        lists: The lists of tokens.
    """

    def __init__(self, connection: Database, about: IndexSettings, path: str, lists: TokenLists) -> None:
        super().__init__(connection, about, path)
        self._lists = lists

    def nearest(self, vector: Any, count: int, mask: FilterMask | None) -> dict[int, float]:
        """See `VectorCache`; vectors that share no token with the query are left out."""
        self._refresh()
        scores = self._rounded(self._lists.scores(vector))
        if mask is not None:
            scores[: len(mask.vectors)][~mask.vectors[: len(scores)]] = 0
            scores[len(mask.vectors) :] = 0
        numbers = np.flatnonzero(scores)
        if len(numbers) > count:
            found = scores[numbers]
            numbers = numbers[found >= np.partition(found, len(found) - count)[len(found) - count]]
        return dict(zip(numbers.tolist(), scores[numbers].tolist(), strict=True))

    def begin_nearest(self, vector: Any, count: int, mask: FilterMask | None) -> "partial[dict[int, float]]":
        """See `VectorCache`; all of the work is done when the result is asked for."""
        return partial(self.nearest, vector, count, mask)

    def similarities(self, vector: Any, numbers: Sequence[int]) -> dict[int, float]:
        """See `VectorCache`; the scores are those of `nearest`, or 0."""
        found, vectors = self.vectors(numbers)
        weights = np.zeros(self._about.dimensions)
        weights[vector["token"]] = vector["weight"]
        rows = np.repeat(np.arange(len(found)), [*map(len, vectors)])
        entries = np.concatenate([np.empty(0, ENTRIES), *vectors])
        scores = np.bincount(rows, weights[entries["token"]] * entries["weight"], len(found))
        return dict(zip(found, self._rounded(scores).tolist(), strict=True))

    def _rounded(self, scores: "NDArray[Any]") -> "NDArray[np.float32]":
        """Converts scores to float32; cosines are at most 1, although stored weights are rounded."""
        return np.minimum(scores, 1 if self._about.similarity == "cosine" else np.inf).astype(np.float32)

    def vectors(self, numbers: Sequence[int]) -> tuple[list[int], Any]:
        query = "SELECT id, vector FROM vectors WHERE id IN (SELECT value FROM json_each(?)) ORDER BY id"
        rows = self._connection.rows(query, (json.dumps([*numbers]),))
        return [number for number, _ in rows], [self._lists.parsed(blob).astype(ENTRIES) for _, blob in rows]

    def check(self) -> None:
        numbers = [number for (number,) in self._connection.rows("SELECT id FROM vectors")]
        alive = self._loaded().alive
        if len(numbers) != alive.sum() or not alive[numbers].all():
            raise damaged(self._path, "the numbers of the vectors do not match")
        self._lists.check()


def _keys(entries: "Entries") -> "NDArray[np.int64]":
    """Returns the number of the list and block of each entry."""
    keys: NDArray[np.int64] = entries["token"] * _BLOCKS + entries["vector"] // _BLOCK
    return keys


def _verified(entries: bytes, crc: int) -> "Entries":
    """Returns a block of a list; raises ValueError if its checksum is wrong."""
    if zlib.crc32(entries) != crc:
        raise ValueError("the list of a token has a wrong checksum")
    return np.frombuffer(entries, _LISTED)
