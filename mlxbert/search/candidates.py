"""The chunks that a hybrid search compares, with the evidence for each."""

from collections.abc import Collection, Mapping
from typing import TYPE_CHECKING

from mlxbert.search.folding import folded
from mlxbert.search.rank_fusion import Evidence, Unrelated
from mlxbert.search.store import FoundChunk, IndexStore, Scores
from mlxbert.search.word_evidence import WordMatch, WordMatcher

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    Vector = NDArray[np.float32]


class Candidates:
    """Reads and compares each chunk once, however many rankings contain the chunk.

    Args:
        store: The index.
        query: The query.
        vector: The vector of the query.
        unrelated: The similarities of unrelated texts.

    Attributes:
        rows: The chunks, by number.
    """

    def __init__(self, store: IndexStore, query: str, vector: "Vector", unrelated: Unrelated) -> None:
        self._store, self._vector, self._unrelated = store, vector, unrelated
        self._query = WordMatcher(store.word_weights(query))
        self.rows: dict[int, FoundChunk] = {}
        self._similarities: dict[int, float] = {}
        self._matches: dict[tuple[tuple[str, ...], str], WordMatch] = {}  # equal texts are compared once

    def evidence(self, lists: Mapping[str, Scores]) -> dict[int, Evidence]:
        """Returns the evidence for each chunk of some rankings, which does not depend on the length of the rankings."""
        chunks = {chunk for scores in lists.values() for chunk, _ in scores}
        self.rows |= {row.number: row for row in self._store.chunks([*chunks - self.rows.keys()])}
        self._similarities |= lists["vectors"]
        if others := chunks - self._similarities.keys():
            self._similarities |= self._store.similarities(self._vector, others)
        phrase = {chunk for chunk, _ in lists["phrase"]}
        return {chunk: self._of(chunk, phrase) for chunk in chunks & self.rows.keys() & self._similarities.keys()}

    def _of(self, chunk: int, phrase: Collection[int]) -> Evidence:
        text = self.rows[chunk].chunk
        key = (text.titles, text.text)
        if key not in self._matches:
            self._matches[key] = self._query.match(f"{folded(chr(10).join(text.titles))} {folded(text.text)}".split())
        return self._unrelated.evidence(self._similarities[chunk], self._matches[key], is_phrase=chunk in phrase)
