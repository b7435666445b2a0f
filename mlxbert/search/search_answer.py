"""The answer that a question-answering model finds in the passages of a search."""

from dataclasses import dataclass, field

from mlxbert.results.json import NOT_IN_JSON
from mlxbert.results.result import Result
from mlxbert.search.hit import Hit


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
