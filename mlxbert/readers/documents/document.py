"""What readers make of a file: texts, with their headings, pages and lines."""

from collections.abc import Mapping
from dataclasses import dataclass, field

from mlxbert.errors import InputError, MlxbertError

Field = str | int | float | bool | None
_LONGEST = 200  # characters of a heading


@dataclass(frozen=True, slots=True)
class Heading:
    """A heading.

    Attributes:
        start: The character of the text at which it, and so what is under it, begins.
        level: Its level, from 1.
        text: Its words.
    """

    start: int
    level: int
    text: str

    @staticmethod
    def of(start: int, level: int, text: str) -> "Heading":
        """A heading with single spaces, of a text of any length."""
        return Heading(start, level, " ".join(text[: 2 * _LONGEST].split())[:_LONGEST])


@dataclass(frozen=True, slots=True)
class Document:
    """A text of a file, and where it stands.

    Attributes:
        text: The text.
        title: That of the whole: `<title>`, the subject of an e-mail; not the name of the file.
        fields: What to filter by: columns of a record, the date of an e-mail.
        place: Which part of its file it is: `row 3`, `line 17`, `message 2`; nothing if it is the whole file.
        headings: Its headings, in order.
        pages: Where each page begins; nothing if there are no pages.
        first_line: The line of the file on which the text begins, where its lines are lines of the file.
        guessed: The field or column of a record that was taken for its text.
    """

    text: str
    title: str = ""
    fields: Mapping[str, Field] = field(default_factory=dict)
    place: str = ""
    headings: tuple[Heading, ...] = ()
    pages: tuple[int, ...] = ()
    first_line: int | None = None
    guessed: str | None = None


class UnreadableError(InputError):
    """A file that cannot be read; the message says why, without its path."""


def unreadable(problem: Exception) -> UnreadableError:
    """What a reader, or the library that it uses, raised, as the reason why a file cannot be read."""
    if isinstance(problem, UnreadableError):
        return problem
    if isinstance(problem, RecursionError):
        return UnreadableError("is nested too deeply")
    if isinstance(problem, MlxbertError):
        return UnreadableError(problem.message, hint=problem.hint)
    said = " ".join(str(problem)[:_LONGEST].split())
    return UnreadableError(f"is damaged ({type(problem).__name__}{said and ': '}{said})")
