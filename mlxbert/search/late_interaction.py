"""Token vectors of an index: a search reranks its best passages by MaxSim.

Legend: T tokens of a text that have a vector, W size of such a vector.
"""

import json
import zlib
from collections.abc import Collection, Iterable, Sequence
from typing import Any, TypeAlias

from mlxbert.lazy_numpy import NDArray, np
from mlxbert.nn.unit_vectors import unit_length
from mlxbert.search.database import Database
from mlxbert.search.rank_fusion import FusedChunk, Unrelated, reranked_by_maxsim
from mlxbert.search.schema import damaged
from mlxbert.search.store import IndexSettings, IndexStore

Tokens: TypeAlias = "NDArray[Any]"  # (T, W) or, with a bit per value, (T, W / 8)


class TokenTable:
    """Writes and reads the token vectors of each text.

    Args:
        path: The file of the index, for error messages.
    """

    def __init__(self, connection: Database, about: IndexSettings, path: str) -> None:
        self._connection, self._path = connection, path
        binary = about.token_dtype == "binary"
        self._width, self._dtype = (about.token_size // 8, "<i1") if binary else (about.token_size, "<f2")

    def add(self, number: int, tokens: "Tokens") -> None:
        data = tokens.astype(self._dtype).tobytes()
        self._connection.execute("INSERT OR REPLACE INTO tokens VALUES (?, ?, ?)", (number, data, zlib.crc32(data)))

    def remove(self, number: int) -> None:
        self._connection.execute("DELETE FROM tokens WHERE vector = ?", (number,))

    def of_vectors(self, numbers: Collection[int]) -> "dict[int, Tokens]":
        """Returns the token vectors of texts, by the numbers of the texts' vectors."""
        query = "SELECT vector, tokens, crc FROM tokens WHERE vector IN (SELECT value FROM json_each(?))"
        rows = self._connection.rows(query, (json.dumps([*numbers]),))
        found = {number: self._parsed(data, crc) for number, data, crc in rows}
        if len(found) < len(numbers):
            raise damaged(self._path, "a text has no token vectors")
        return found

    def of_chunks(self, chunks: Sequence[int]) -> "dict[int, list[Tokens]]":
        """Returns the token vectors of each window of each chunk."""
        query = "SELECT chunk, vector FROM windows WHERE chunk IN (SELECT value FROM json_each(?)) ORDER BY vector"
        windows: dict[int, list[int]] = {}
        for chunk, number in self._connection.rows(query, (json.dumps([*chunks]),)):
            windows.setdefault(chunk, []).append(number)
        if len(windows) < len({*chunks}):
            raise damaged(self._path, "a chunk has no vector")
        tokens = self.of_vectors({number for numbers in windows.values() for number in numbers})
        return {chunk: [tokens[number] for number in numbers] for chunk, numbers in windows.items()}

    def check(self) -> None:
        lists = "SELECT id FROM vectors", "SELECT vector FROM tokens"
        if any(self._connection.row(f"{a} EXCEPT {b} LIMIT 1") for a, b in (lists, lists[::-1])):
            raise damaged(self._path, "the token vectors do not match the vectors")
        for data, crc in self._connection.execute("SELECT tokens, crc FROM tokens"):
            self._parsed(data, crc)

    def _parsed(self, data: bytes, crc: int) -> "Tokens":
        if zlib.crc32(data) != crc:
            raise damaged(self._path, "token vectors have a wrong checksum")
        tokens: NDArray[Any] = np.frombuffer(data, self._dtype).reshape(-1, self._width)
        return tokens


class TokenReranker:
    """Reranks the best chunks of a ranking by MaxSim, which is computed once for each chunk.

    Args:
        store: The store of an index that keeps token vectors.
        query: The query's token vectors, (T, W).
        unrelated: The similarities of unrelated texts, by vectors and by MaxSim; `None` to rank by MaxSim alone.
    """

    def __init__(
        self,
        store: IndexStore,
        query: "NDArray[np.float32]",
        count: int,
        unrelated: tuple[Unrelated, Unrelated] | None,
    ) -> None:
        self.count = count
        self._store, self._query, self._unrelated = store, query, unrelated
        self._scores: dict[int, float] = {}

    def __call__(self, ranked: Sequence[FusedChunk]) -> list[FusedChunk]:
        """Returns the first `count` chunks in their new order."""
        best = ranked[: self.count]
        new = [entry.chunk for entry in best if entry.chunk not in self._scores]
        windows = self._store.tokens(new) if new else {}
        about = self._store.about
        every = [tokens for chunk in new for tokens in windows[chunk]]
        scores = scores_of_tokens(self._query, every, about.token_dtype, about.token_size)
        starts = np.cumsum([0, *(len(windows[chunk]) for chunk in new)])
        for chunk, start, end in zip(new, starts, starts[1:], strict=False):
            self._scores[chunk] = float(scores[start:end].max())
        return reranked_by_maxsim(best, self._scores, self._unrelated)


def scores_of_tokens(
    query: "NDArray[np.float32]", texts: "Iterable[Tokens]", token_dtype: str, token_size: int
) -> "NDArray[np.float32]":
    """Returns the MaxSim of a query with texts, divided by the number of the query's tokens.

    Args:
        query: The query's token vectors, (T, W).
        texts: The vectors of each text's tokens, as an index keeps them.
    """
    from mlxbert.nn.token_embedder import MEAN_MAXSIM
    from mlxbert.tasks.maxsim import maxsim

    restored = (restored_rows(tokens, token_dtype, token_size) for tokens in texts)
    return maxsim(query, restored, similarity=MEAN_MAXSIM)


def restored_rows(stored: "NDArray[Any]", output_dtype: str, width: int) -> "NDArray[np.float32]":
    """Converts stored unit vectors (T, …) back to float32 (T, D); each bit of `binary` becomes a value of ±1 / √D."""
    if output_dtype in ("float32", "float16"):
        return stored.astype(np.float32)
    if output_dtype == "binary":
        bits = np.unpackbits((stored.astype(np.int16) + 128).astype(np.uint8), axis=1, count=width)
        return (bits.astype(np.float32) * 2 - 1) * np.float32(width**-0.5)
    return unit_length(stored.astype(np.float32))
