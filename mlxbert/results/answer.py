"""Answers to questions."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from mlxbert.results.brief import Brief
from mlxbert.results.json import NOT_IN_JSON, omit_if
from mlxbert.results.result import Result


@dataclass(frozen=True)
class Span(Brief):
    """A part of a text that may be the answer.

    Attributes:
        answer: The part.
        start: Where it begins in the text.
        end: Where it ends, exclusive.
        score: Its probability among all parts of the window that it was found in, 0 to 1.
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
        answer: The answer; `None` if the text has none. The same for `start` and `end`.
        start: Where it begins in the text.
        end: Where it ends, exclusive.
        score: The probability of the best span, 0 to 1, even if it is not given as the answer.
        no_answer_score: The probability that the text has no answer; the smallest of all windows.
        spans: The best spans, the best first, even if there is no answer.
        context: The text.
        truncated: Whether the end of the text was cut off; false if windows covered the text.
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
        """See `Result.from_dict`; a single span is the answer."""
        span = {name: values[name] for name in ("answer", "start", "end", "score")}
        return super().from_dict({"spans": [span] if span["answer"] is not None else [], **values})
