"""reStructuredText: titles are underlined with punctuation, and may be overlined as well."""

import re
from collections.abc import Iterator

from mlxbert.readers.documents.document import Document, Heading
from mlxbert.readers.documents.plain import decode_lines

_MARKS = re.compile(r"^([!-/:-@\[-`{-~])\1{2,}[ \t]*$", re.MULTILINE)


def read_rst(data: bytes, name: str, encoding: str | None = None) -> Iterator[Document]:
    """Reads the file as one document."""
    text, problems = decode_lines(data, chosen=encoding)
    yield Document(text, headings=tuple(_headings(text)), first_line=1, problems=problems)


def _headings(text: str) -> Iterator[Heading]:
    """Yields the headings. Each style of underlining is a level; the style that occurs first is level 1, and so on."""
    levels: dict[tuple[str, bool], int] = {}
    used = 0  # the offset up to which lines belong to headings
    for line in _MARKS.finditer(text):
        start = text.rfind("\n", 0, max(line.start() - 1, 0)) + 1
        title = text[start : line.start()].strip()
        if start < used or not title or len(line[0].rstrip()) < len(title) or _MARKS.fullmatch(title):
            continue
        above = text.rfind("\n", 0, max(start - 1, 0)) + 1
        over = text[above:start].strip() == line[0].strip()
        level = levels.setdefault((line[1], over), len(levels) + 1)
        yield Heading.of(above if over else start, level, title)
        used = line.end()
