"""Answers to questions."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from mlxbert.results.json import NOT_IN_JSON, omit_if
from mlxbert.results.result import Result
from mlxbert.results.short_repr import Brief


@dataclass(frozen=True)
class Span(Brief):
    """A part of a text that may be the answer.

    Attributes:
        answer: The part of the text.
        start: The offset of the start in the text.
        end: The offset of the end in the text, exclusive.
        score: The probability of this span among all spans of its window, 0 to 1.
    """

    answer: str
    start: int
    end: int
    score: float


@dataclass(frozen=True)
class Answer(Result):
    """The answer to a question in a text, if there is one.

    Attributes:
        question: The question.
        answer: The answer. If the text has none, `answer`, `start` and `end` are `None`.
        start: The offset of the start of the answer in the text.
        end: The offset of its end, exclusive.
        score: The probability of the best span, 0 to 1, even if that span is not the answer.
        no_answer_score: The probability that the text has no answer; for a text of several windows, the smallest one.
        spans: The best spans, best first, even if there is no answer.
        context: The text that was searched.
        truncated: Whether the text was truncated; false if windows covered it.
    """

    question: str
    answer: str | None
    start: int | None
    end: int | None
    score: float
    no_answer_score: float
    spans: tuple[Span, ...] = field(default=(), metadata=omit_if(lambda spans: len(spans) < 2))
    context: str = field(default="", repr=False, metadata=NOT_IN_JSON)
    truncated: bool = field(default=False, metadata=NOT_IN_JSON)

    @classmethod
    def from_dict(cls, values: Mapping[str, Any]) -> Result:
        """Converts JSON to an answer (see `Result.from_dict`). Without `spans`, the answer becomes the only span."""
        span = {name: values[name] for name in ("answer", "start", "end", "score")}
        return super().from_dict({"spans": [span] if span["answer"] is not None else [], **values})
