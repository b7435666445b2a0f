"""A text of a file, and where it stands."""

from collections.abc import Mapping
from dataclasses import dataclass, field

from mlxbert.errors import InputError


class UnreadableError(InputError):
    """A file that cannot be read."""


@dataclass(frozen=True, slots=True)
class Heading:
    """A heading of a document.

    Attributes:
        start: The character of the text at which what is under it begins, its own line included.
        level: 1 for the outermost.
        text: What it says.
    """

    start: int
    level: int
    text: str


@dataclass(frozen=True, slots=True)
class Document:
    """A text of a file, and where it stands.

    Attributes:
        text: The text.
        title: Of the whole: a `<title>`, the subject of an e-mail; not the file's name.
        fields: What to filter by.
        place: Which part of its file it is: "row 3", "message 2"; empty if it is the whole file.
        headings: In order of where they start.
        pages: Where each page of the text starts; empty without pages.
        first_line: The line of the file on which the text begins, if its lines are lines of the file.
    """

    text: str
    title: str = ""
    fields: Mapping[str, str | int | float | bool | None] = field(default_factory=dict)
    place: str = ""
    headings: tuple[Heading, ...] = ()
    pages: tuple[int, ...] = ()
    first_line: int | None = None
