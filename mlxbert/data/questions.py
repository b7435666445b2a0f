"""Questions with their contexts and answers from rows, checked: every answer is a part of its context."""

import logging
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from mlxbert.data.columns import ColumnNames
from mlxbert.data.labelled_texts import get_text, get_value, plain, read_each
from mlxbert.errors import InputError
from mlxbert.readers.parsing import json_type
from mlxbert.readers.stream import Record

ANSWER, NO_ANSWER = "answer", "no answer"
_LOG = logging.getLogger("mlxbert")


@dataclass(frozen=True, slots=True)
class Question:
    """A question, the context that may answer it, and the right answers.

    Attributes:
        text: The question.
        pair: The context.
        answers: The texts of the right answers; none where the context has no answer.
        start: Where the first of them begins in the context, in code points; `None` without one.
        end: Where it ends, exclusive.
        place: Where the record begins: `train.jsonl, line 17`.
    """

    text: str
    pair: str
    answers: tuple[str, ...]
    start: int | None
    end: int | None
    place: str

    @property
    def key(self) -> tuple[str, str]:
        """What makes two records the same input."""
        return self.text, self.pair

    @property
    def group(self) -> str:
        """The context: questions about it are all in the training data, or all in the validation data."""
        return self.pair

    @property
    def names(self) -> tuple[str, ...]:
        """Whether there is an answer."""
        return (ANSWER if self.answers else NO_ANSWER,)

    @property
    def label(self) -> tuple[str, ...]:
        """The right answers."""
        return self.answers


def read_questions(rows: Sequence[Record], columns: ColumnNames) -> list[Question]:
    """The questions of rows.

    Answers are as in SQuAD, `[{"text": …, "answer_start": …}]`, as on the hub, `{"text": […], "answer_start": […]}`, or
    texts alone, one or a list. None, an empty one, or `is_impossible` mean that the context has no answer.

    Where an answer does not stand where `answer_start` says, the nearest place where it does is taken, and a warning
    counts these; an answer without `answer_start` is taken where it stands first.
    """
    found = read_each(rows, lambda row: _question(row, columns))
    moved = [question.place for question, shifted in found if shifted]
    if moved:
        said = "1 answer is" if len(moved) == 1 else f"{len(moved):,} answers are"
        _LOG.warning("%s not at answer_start, the first in %s: the nearest occurrence is used", said, moved[0])
    return [question for question, _ in found]


def _question(row: Record, columns: ColumnNames) -> tuple[Question, bool]:
    """The question of a row, and whether its answer stands elsewhere than it says."""
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
        f"the answer {answers[0][0]!r:.60} is not in its context",
        hint="answers are copied from the context, with its capitals and spaces",
    )


def _find(context: str, answer: str, start: int | None) -> int | None:
    """Where an answer stands, nearest to `start`; `None` if it does not."""
    if start is not None and start >= 0 and context.startswith(answer, start):
        return start
    before = -1 if start is None else context.rfind(answer, 0, max(start, 0) + len(answer) - 1)
    after = context.find(answer, max(start or 0, 0))
    places = [place for place in (before, after) if place >= 0]
    return min(places, key=lambda place: abs(place - (start or 0)), default=None)


def _answers(values: Mapping[str, Any], column: str) -> list[tuple[str, int | None]]:
    """The answers with `answer_start`, as far as the data have it."""
    given = plain(get_value(values, column))
    if given is None:
        return []
    if isinstance(given, str):
        return [_answer(given, values.get("answer_start") if given.strip() else None, column)]
    if isinstance(given, Mapping):
        texts = _listed(given.get("text", given.get("texts")))
        starts = _listed(given.get("answer_start", given.get("start")))
        if starts and len(starts) != len(texts):
            raise InputError(f"{column!r} has {len(texts)} texts and {len(starts)} answer_start, expected as many")
        return [_answer(text, start, column) for text, start in zip(texts, starts or [None] * len(texts), strict=True)]
    return [
        _answer(one.get("text"), one.get("answer_start", one.get("start")), column)
        if isinstance(one, Mapping)
        else _answer(one, None, column)
        for one in _listed(given)
    ]


def _listed(value: Any) -> list[Any]:
    value = plain(value)
    if value is None:
        return []
    return list(value) if isinstance(value, list | tuple) else [value]


def _answer(text: Any, start: Any, column: str) -> tuple[str, int | None]:
    start = plain(start)
    if isinstance(start, str) and start.strip().isdecimal():  # of a table
        start = int(start)
    if not isinstance(text, str):
        raise InputError(f"{column!r} has {json_type(text)} as an answer, expected a text")
    if start is not None and type(start) is not int:
        raise InputError(f"answer_start is {start!r:.60}, expected a whole number")
    return text, start
