"""Reads questions with their contexts and answers from rows, and checks that an answer occurs in the context."""

import logging
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from mlxbert.errors import InputError
from mlxbert.readers.parsing import json_type
from mlxbert.readers.stream import Record
from mlxbert.train.data.columns import ColumnNames
from mlxbert.train.data.labelled_texts import get_text, get_value, plain, read_each

ANSWER, NO_ANSWER = "answer", "no answer"
_LOG = logging.getLogger("mlxbert")


@dataclass(frozen=True, slots=True)
class Question:
    """A question, the context that may answer it, and the right answers."""

    text: str
    pair: str  # the context
    answers: tuple[str, ...]  # the texts of the right answers; empty if the context has no answer
    # The start of the first answer that occurs in the context, in code points; `None` without an answer.
    start: int | None
    end: int | None  # the end of that answer, exclusive
    place: str  # where the record begins: `train.jsonl, line 17`

    @property
    def key(self) -> tuple[str, str]:
        return self.text, self.pair

    @property
    def group(self) -> str:
        """The context: questions with the same context are never split between training and validation data."""
        return self.pair

    @property
    def names(self) -> tuple[str, ...]:
        return (ANSWER if self.answers else NO_ANSWER,)

    @property
    def label(self) -> tuple[str, ...]:
        return self.answers


def read_questions(rows: Sequence[Record], columns: ColumnNames) -> list[Question]:
    """Reads the questions of rows.

    Answers are in the format of SQuAD, `[{"text": …, "answer_start": …}]`, in the format of the Hugging Face hub,
    `{"text": […], "answer_start": […]}`, or just a text or a list of texts. The context has no answer if none is given,
    if the answer is empty, or if `is_impossible` is true.

    If an answer is not found at its `answer_start`, its nearest occurrence is used, and a warning counts such answers.
    Without `answer_start`, the first occurrence is used.
    """
    questions = read_each(rows, lambda row: _question(row, columns))
    moved = [question.place for question, shifted in questions if shifted]
    if moved:
        counted = "1 answer is" if len(moved) == 1 else f"{len(moved):,} answers are"
        _LOG.warning("%s not at answer_start (the first in %s), so the nearest occurrence is used", counted, moved[0])
    return [question for question, _ in questions]


def _question(row: Record, columns: ColumnNames) -> tuple[Question, bool]:
    """Reads the question of a row; also returns whether its answer is not found at `answer_start`."""
    assert columns.pair is not None and columns.label is not None
    text, context = (get_text(row.values, column) for column in (columns.text, columns.pair))
    answers = [] if row.values.get("is_impossible") is True else _answers(row.values, columns.label)
    answers = [(answer, start) for answer, start in answers if answer.strip()]
    if not answers:
        return Question(text, context, (), None, None, row.where), False
    for answer, start in answers:
        begin = _find(context, answer, start)
        if begin is not None:
            texts = tuple(dict.fromkeys(answer for answer, _ in answers))
            end = begin + len(answer)
            return Question(text, context, texts, begin, end, row.where), start not in (None, begin)
    raise InputError(
        f"the answer {answers[0][0]!r:.60} is not in the context",
        hint="copy answers exactly from the context, including capitals and spaces",
    )


def _find(context: str, answer: str, start: int | None) -> int | None:
    """Returns the start of an answer in the context, the one closest to `start`; `None` if it does not occur."""
    if start is not None and start >= 0 and context.startswith(answer, start):
        return start
    before = -1 if start is None else context.rfind(answer, 0, max(start, 0) + len(answer) - 1)
    after = context.find(answer, max(start or 0, 0))
    places = [place for place in (before, after) if place >= 0]
    return min(places, key=lambda place: abs(place - (start or 0)), default=None)


def _answers(values: Mapping[str, Any], column: str) -> list[tuple[str, int | None]]:
    value = plain(get_value(values, column))
    if value is None:
        return []
    if isinstance(value, str):
        return [_answer(value, values.get("answer_start") if value.strip() else None, column)]
    if isinstance(value, Mapping):
        texts = _listed(value.get("text", value.get("texts")))
        starts = _listed(value.get("answer_start", value.get("start")))
        if starts and len(starts) != len(texts):
            raise InputError(
                f"{column!r} has {len(texts)} texts and {len(starts)} values of answer_start, expected a value for "
                "each text"
            )
        return [_answer(text, start, column) for text, start in zip(texts, starts or [None] * len(texts), strict=True)]
    return [
        _answer(entry.get("text"), entry.get("answer_start", entry.get("start")), column)
        if isinstance(entry, Mapping)
        else _answer(entry, None, column)
        for entry in _listed(value)
    ]


def _listed(value: Any) -> list[Any]:
    value = plain(value)
    if value is None:
        return []
    return list(value) if isinstance(value, list | tuple) else [value]


def _answer(text: Any, start: Any, column: str) -> tuple[str, int | None]:
    start = plain(start)
    if isinstance(start, str) and start.strip().isdecimal():  # in a table, numbers are strings
        start = int(start)
    if not isinstance(text, str):
        raise InputError(f"{column!r} has {json_type(text)} as an answer, expected a text")
    if start is not None and type(start) is not int:
        raise InputError(f"answer_start is {start!r:.60}, expected a whole number")
    return text, start
