"""Markdown: ATX and setext headings outside of code fences, and the title in the front matter."""

import re
from collections.abc import Iterator

from mlxbert.readers.documents.document import Document, Heading
from mlxbert.readers.documents.plain import decode_lines

# Linear time even for hostile files: no repetition is followed by a pattern that could match the same characters.
_LINES = re.compile(r"^ {0,3}(?:(#{1,6})(?=[ \t\n])(.*)|(`{3,}|~{3,})(.*)|(=+|-+)[ \t]*$)", re.MULTILINE)
_FRONT = re.compile(r"---[ \t]*\n(?=[\w-]+:)(?:.*\n)*?(?:---|\.\.\.)[ \t]*(?:\n|\Z)")
_MAX_FRONT = 2**16  # characters
_TITLE = re.compile(r"^title:(.*)", re.MULTILINE)
_NO_HEADING = ("#", ">", "|", "- ", "* ", "+ ", "<", "---", "===", "```", "~~~")


def read_markdown(data: bytes, name: str, encoding: str | None = None) -> Iterator[Document]:
    """Reads the file as one document."""
    (text, problems), title = decode_lines(data, chosen=encoding), ""
    front = _FRONT.match(text[:_MAX_FRONT])
    if front and (title_line := _TITLE.search(front[0])):
        title = title_line[1].strip().strip("\"'")
    headings = tuple(markdown_headings(text, front.end() if front else 0))
    yield Document(text, title, headings=headings, first_line=1, problems=problems)


def markdown_headings(text: str, begin: int = 0) -> Iterator[Heading]:
    """Returns the headings of a text.

    Args:
        text: The text.
        begin: The offset at which to begin.
    """
    fence = ""
    for line in _LINES.finditer(text, begin):
        marks, title, ticks, rest, _ = line.groups()
        if ticks:
            if not fence and not ("`" in ticks and "`" in rest):  # inline code between three ticks
                fence = ticks
            elif fence and ticks.startswith(fence) and not rest.strip():
                fence = ""
        elif fence:
            continue
        elif marks:
            if title := title.strip().rstrip("#").rstrip():
                yield Heading.of(line.start(), len(marks), title)
        else:
            start = text.rfind("\n", begin, max(line.start() - 1, begin)) + 1 or begin
            title = text[start : line.start()].strip()
            if title and not title.startswith(_NO_HEADING):
                yield Heading.of(start, 1 if "=" in line[0] else 2, title)
