"""The chunks that a hybrid search compares, with the evidence for each."""

from collections.abc import Mapping
from typing import TYPE_CHECKING

from mlxbert.search.folding import folded
from mlxbert.search.rank_fusion import Evidence, Unrelated, weigh
from mlxbert.search.store import FoundChunk, IndexStore, Scores
from mlxbert.search.word_evidence import BOUNDARY, WordMatch, WordMatcher
from mlxbert.search.word_search import phrases

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    Vector = NDArray[np.float32]


_TITLES = 1_000  # characters of the titles that are compared; a page may have a title of megabytes


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
        self._matcher = WordMatcher(store.word_weights(query), phrases(query))
        self.rows: dict[int, FoundChunk] = {}
        self._similarities: dict[int, float] = {}
        self._words: dict[tuple[tuple[str, ...], str], WordMatch] = {}  # equal texts are compared once

    def evidence(self, lists: Mapping[str, Scores]) -> dict[int, Evidence]:
        """Returns the evidence for each chunk of some rankings, which does not depend on the length of the rankings."""
        chunks = {chunk for scores in lists.values() for chunk, _ in scores}
        self.rows |= {row.number: row for row in self._store.chunks([*chunks - self.rows.keys()])}
        self._similarities |= lists["vectors"]
        if others := chunks - self._similarities.keys():
            self._similarities |= self._store.similarities(self._vector, others)
        return {chunk: weigh(self._similarities[chunk], self._unrelated, self._match(chunk)) for chunk in chunks}

    def _match(self, chunk: int) -> WordMatch:
        text = self.rows[chunk].chunk
        key = (text.titles, text.text)
        if key not in self._words:
            titles, words = folded("\n".join(text.titles)[:_TITLES]).split(), folded(text.text).split()
            self._words[key] = self._matcher.match([*titles, BOUNDARY, *words])
        return self._words[key]
