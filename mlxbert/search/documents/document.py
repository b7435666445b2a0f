"""The documents that readers extract from files: texts with their headings, pages and lines."""

import re
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from itertools import accumulate
from typing import Literal

from mlxbert.errors import InputError, MlxbertError

Field = str | int | float | bool | None
_MAX_LENGTH = 200  # characters of a heading
_BETWEEN = "\n\n"
_PARTIAL_DATE = re.compile(r"[0-9]{4}(-[0-9]{2})?")


@dataclass(frozen=True, slots=True)
class Heading:
    """A heading."""

    start: int  # the offset in the text at which the heading, and with it its section, begins
    level: int
    text: str  # the words of the heading

    @staticmethod
    def of(start: int, level: int, text: str) -> "Heading":
        """Makes a heading from a text of any length, with single spaces; a long text is truncated."""
        return Heading(start, level, " ".join(text[: 2 * _MAX_LENGTH].split())[:_MAX_LENGTH])


@dataclass(frozen=True, slots=True)
class ReadProblem:
    """Something that a reader could not take over as it stands in the file."""

    # What the reader did: it `left out` a part of the file, `cut` a text, or `guessed`.
    kind: Literal["left out", "cut", "guessed"]
    reason: str  # what it was, and why: `the row has 5 columns, but the header has 3`, `the encoding is probably cp949`


@dataclass(frozen=True, slots=True)
class Document:
    """A text from a file, and its place in the file.

    A part of a file that a reader had to leave out is a document without a text, with a problem.
    """

    text: str
    title: str = ""  # the title in the document: `<title>`, the subject of an e-mail; not the name of the file
    # Values to filter by: columns of a record, the date of an e-mail.
    fields: Mapping[str, Field] = field(default_factory=dict)
    place: str = ""  # the part of the file: `row 3`, `line 17`, `message 2`; empty for the whole file
    headings: tuple[Heading, ...] = ()  # the headings, in order
    pages: tuple[int, ...] = ()  # the offset of each page in the text; empty if there are no pages
    # The line of the file on which the text begins; `None` if the file does not consist of lines.
    first_line: int | None = None
    guessed: str | None = None  # the name of the field or column that holds the text, if the name was guessed
    problems: tuple[ReadProblem, ...] = ()  # what the reader left out, cut or guessed


class UnreadableError(InputError):
    """A file that cannot be read; the message says why, without its path."""


def unreadable(problem: Exception, name: str = "") -> UnreadableError:
    """Converts an exception of a reader, or of its library, to an `UnreadableError`, without the `name` of the file."""
    if isinstance(problem, UnreadableError):
        return problem
    if isinstance(problem, RecursionError):
        return UnreadableError("is nested too deeply")
    if isinstance(problem, MlxbertError):
        return UnreadableError(problem.message.removeprefix(f"{name}: "), hint=problem.hint)
    reason = " ".join(str(problem)[:_MAX_LENGTH].split())
    return UnreadableError(f"is damaged ({type(problem).__name__}{reason and ': '}{reason})")


def iso_date(text: str) -> str:
    """Converts a date to UTC, in ISO format, so that dates can be compared as strings; returns "" for another text.

    A year, or a year and a month, stays as it is.
    """
    if _PARTIAL_DATE.fullmatch(text):
        return text
    with suppress(ValueError, OverflowError):
        date = datetime.fromisoformat(text)
        return (date.replace(tzinfo=UTC) if date.tzinfo is None else date.astimezone(UTC)).isoformat(timespec="seconds")
    return ""


def known(**values: Field) -> dict[str, Field]:
    """Returns the fields that have a value."""
    return {name: value for name, value in values.items() if value}


def joined(parts: Sequence[Document], *, paged: bool = False) -> Document:
    """Makes one document of the texts of several, with their headings; each of them may be a page."""
    starts = [0, *accumulate(len(part.text) + len(_BETWEEN) for part in parts)][: len(parts)]
    headings = (
        replace(heading, start=start + heading.start)
        for start, part in zip(starts, parts, strict=True)
        for heading in part.headings
    )
    text = _BETWEEN.join(part.text for part in parts)
    return Document(text, headings=tuple(headings), pages=tuple(starts) if paged else ())
