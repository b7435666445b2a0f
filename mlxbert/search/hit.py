"""Results of a search: its hits, and the answer that a question-answering model finds in them."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from mlxbert.results.json import NOT_IN_JSON, Each, listed
from mlxbert.results.result import Result
from mlxbert.results.short_repr import Brief


@dataclass(frozen=True)
class SimilarPassage(Brief):
    """The place of a passage whose text is equal, or nearly equal, to the text of a hit."""

    path: str | None  # the path of the file; `None` for a record that was added
    place: str  # the part of the file
    start_line: int | None  # the first line of the passage in the file, from 1; `None` if the file has no lines
    page: int | None  # the page on which the passage begins, from 1; `None` if the file has no pages
    chunk: int  # the number of the passage in the index
    text: str


@dataclass(frozen=True, eq=False)
class Hit(Result):
    """A passage that a search found.

    Attributes:
        query: The query.
        rank: The rank by score, from 1.
        score: The score of the reranker if there is one; otherwise the weighted sum (hybrid search), MaxSim or
            the similarity of the vectors, or the BM25 score.
        path: The path of the file; `None` for a record that was added.
        place: The part of the file: `row 3`, `message 2`; the `id` of an added record; empty if the file is one
            document.
        start_line: The first line of the passage in the file, from 1; `None` if the file has no lines.
        end_line: The last line of the passage.
        page: The page on which the passage begins, from 1; `None` if the file has no pages.
        title: The titles above the passage, outermost first, joined by ` > `.
        text: The passage.
        fields: The fields of the document, which filters can use.
        vector_score: The similarity of the vectors of passage and query; `None` if they were not compared.
        word_score: The BM25 score; `None` if the passage is not among the best by words.
        rerank_score: The score of the reranker; `None` without one.
        token_score: The MaxSim of the passage and the query, divided by the number of the query's tokens; `None` if the
            index keeps no token vectors.
        chunk: The number of the passage in the index.
        is_close: Whether the passage is probably about what the query asks (a score of at least 0); `None` unless the
            search was hybrid, and if a reranker has judged the passage.
        duplicates: The places of near-duplicates: passages with equal or nearly equal texts, which are not hits of
            their own.
        vector_rank: The rank by vectors; `None` if the passage is not in this ranking.
        word_rank: The rank by words; `None` if the passage is not in this ranking.
        phrase_rank: The rank among the passages that contain the query verbatim.
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
    token_score: float | None = None
    chunk: int = 0
    is_close: bool | None = None
    duplicates: tuple[SimilarPassage, ...] = ()
    vector_rank: int | None = field(default=None, metadata=NOT_IN_JSON)
    word_rank: int | None = field(default=None, metadata=NOT_IN_JSON)
    phrase_rank: int | None = field(default=None, metadata=NOT_IN_JSON)

    def to_dict(self, each: Each[Any] = listed, *, why: bool = False) -> dict[str, Any]:
        """Returns the hit as plain dicts and lists; with `why`, also its rank in each ranking that was fused."""
        ranks = ("vector_rank", "word_rank", "phrase_rank") if why else ()
        return super().to_dict(each) | {name: getattr(self, name) for name in ranks}


@dataclass(frozen=True, eq=False)
class SearchAnswer(Result):
    """The answer to a query in the passages that a search found, if one of them has it.

    Attributes:
        query: The query.
        answer: The answer. If no passage has it, this and all other attributes but `score` and `hits` are `None`.
        score: The probability of the best span against "no answer" in its passage, 0 to 1, even if that span is not the
            answer. It is comparable between passages.
        rank: The rank of the hit with the answer: the passage itself, or one with a nearly equal text.
        path: The path of the file; `None` also for a record that was added.
        place: The part of the file.
        line: The line of the file on which the answer begins, from 1; `None` also if the file has no lines.
        page: The page on which the passage with the answer begins, from 1; `None` also if the file has no pages.
        start: The offset of the start of the answer in the text of the passage.
        end: The offset of its end, exclusive.
        chunk: The number of the passage in the index.
        hits: The hits that were searched for the answer, best first.
    """

    query: str
    answer: str | None
    score: float
    rank: int | None = None
    path: str | None = None
    place: str | None = None
    line: int | None = None
    page: int | None = None
    start: int | None = None
    end: int | None = None
    chunk: int | None = None
    hits: tuple[Hit, ...] = field(default=(), metadata=NOT_IN_JSON)
