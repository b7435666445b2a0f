"""The similarities of sparse vectors.

Shapes: N vectors, K values in total, V tokens of the vocabulary.
"""

from collections.abc import Iterable
from dataclasses import dataclass

from mlxbert.lazy_numpy import NDArray, np
from mlxbert.nn.unit_vectors import SMALLEST_NORM
from mlxbert.results.embed import SparseEmbedding


@dataclass(frozen=True, eq=False)
class SparseMatrix:
    """Sparse vectors as the rows of a matrix, in the layout that is called CSR."""

    # The index of the first value of each row, and the number of all values, int64 (N + 1,).
    starts: "NDArray[np.int64]"
    ids: "NDArray[np.int32]"  # the token of each value, int32 (K,)
    values: "NDArray[np.float32]"  # float32 (K,)
    width: int  # the number of columns, V

    @classmethod
    def of(cls, vectors: Iterable[SparseEmbedding], width: int) -> "SparseMatrix":
        rows = [(vector.ids, vector.values) for vector in vectors]
        starts = np.cumsum([0, *(len(ids) for ids, _ in rows)], dtype=np.int64)
        ids = np.concatenate([np.zeros(0, np.int32), *(ids for ids, _ in rows)]).astype(np.int32)
        values = np.concatenate([np.zeros(0, np.float32), *(values for _, values in rows)]).astype(np.float32)
        return cls(starts, ids, values, width)

    def __len__(self) -> int:
        return len(self.starts) - 1

    def sums(self, values: "NDArray[np.float32]") -> "NDArray[np.float64]":
        """Returns the sum of K values over each row, (N,)."""
        totals = np.concatenate([np.zeros(1), np.cumsum(values, dtype=np.float64)])
        return totals[self.starts[1:]] - totals[self.starts[:-1]]

    def scores(self, similarity: str, query: SparseEmbedding) -> "NDArray[np.float32]":
        """Returns the similarity of each row to a query, (N,); a higher score means more similar.

        Distances are negative, as in sentence-transformers.
        """
        full = np.zeros(self.width, np.float32)
        full[query.ids] = query.values
        shared = full[self.ids]
        if similarity == "manhattan":
            # Outside the row, the difference is the query's own value.
            differences = self.sums(np.abs(self.values - shared) - np.abs(shared)) + np.abs(query.values).sum()
            return (-differences).astype(np.float32)
        dots = self.sums(self.values * shared)
        if similarity == "dot":
            return dots.astype(np.float32)
        squares, square = self.sums(self.values**2), float(np.square(query.values, dtype=np.float64).sum())
        if similarity == "euclidean":
            return (-np.sqrt(np.maximum(squares + square - 2 * dots, 0))).astype(np.float32)
        cosines = dots / np.maximum(np.sqrt(squares) * square**0.5, SMALLEST_NORM)
        return np.clip(cosines, -1, 1).astype(np.float32)


def sparse_score(similarity: str, query: SparseEmbedding, vector: SparseEmbedding) -> float:
    """Returns the similarity of two sparse vectors (see `SparseMatrix.scores`)."""
    width = int(max((ids[-1] for ids in (query.ids, vector.ids) if len(ids)), default=0)) + 1
    return float(SparseMatrix.of([vector], width).scores(similarity, query)[0])
