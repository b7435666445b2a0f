"""What a search finds."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from mlxbert.results.json import NOT_IN_JSON, Each, listed
from mlxbert.results.result import Result


@dataclass(frozen=True, eq=False)
class Hit(Result):
    """A passage that a search found.

    Attributes:
        query: What was searched for.
        rank: Place in the order of scores, from 1.
        score: Of the fused ranks in hybrid search, the cosine or BM25 otherwise; that of the reranker if there is one.
        path: The file; `None` for a record that was added.
        place: Which part of the file it is from: `row 3`, `message 2`; the `id` of an added record; empty if the file
            is one document.
        start_line: The line of the file on which it begins, from 1; `None` if the file has no lines.
        end_line: The line on which it ends.
        page: The page on which it begins, from 1; `None` if the file has no pages.
        title: The titles that it stands under, outermost first, joined by ` > `.
        text: The passage.
        fields: What its document can be filtered by.
        vector_score: How near its vector is to that of the query, `None` if it was not compared.
        word_score: BM25 of the words, `None` if none of them is in it.
        rerank_score: What the reranker says.
        chunk: Its number in the index.
        vector_rank: Place in the order of vectors, `None` if it is not among the nearest.
        word_rank: Place in the order of words.
        phrase_rank: Place among the passages in which the query stands word for word.
    """

    query: str
    rank: int
    score: float
    path: str | None
    place: str
    start_line: int | None
    end_line: int | None
    page: int | None
    title: str
    text: str
    fields: Mapping[str, Any]
    vector_score: float | None = None
    word_score: float | None = None
    rerank_score: float | None = None
    chunk: int = 0
    vector_rank: int | None = field(default=None, metadata=NOT_IN_JSON)
    word_rank: int | None = field(default=None, metadata=NOT_IN_JSON)
    phrase_rank: int | None = field(default=None, metadata=NOT_IN_JSON)

    def to_dict(self, each: Each[Any] = listed, *, why: bool = False) -> dict[str, Any]:
        """The hit as plain dicts and lists; with `why` also its ranks in the lists that were fused."""
        ranks = ("vector_rank", "word_rank", "phrase_rank") if why else ()
        return super().to_dict(each) | {name: getattr(self, name) for name in ranks}
