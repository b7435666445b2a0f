"""Source code, in which the lines that define classes and functions are headings."""

import re
from collections.abc import Iterator

from mlxbert.readers.documents.document import Document, Heading
from mlxbert.readers.documents.plain import decode_lines

_DEFINITION = re.compile(
    r"^([ \t]*)("
    r"(?:(?:export|default|pub|pub\(\w+\)|public|private|protected|internal|static|abstract|final|async)[ \t]+)*"
    r"(?:class|def|func|fn|function|struct|interface|trait|enum|impl|module|namespace)\b[^\n]*)",
    re.MULTILINE,
)


def read_code(data: bytes, name: str) -> Iterator[Document]:
    """Reads the file as one document."""
    text = decode_lines(data)
    yield Document(text, headings=tuple(_headings(text)), first_line=1)


def _headings(text: str) -> Iterator[Heading]:
    """Returns the definitions as headings; the levels follow the indentation."""
    indents: list[int] = []
    for line in _DEFINITION.finditer(text):
        definition = line[2][:400].strip()
        if not any(mark in definition for mark in "({:") and len(definition.split()) > 2:  # prose
            continue
        indent = len(line[1].expandtabs(4))
        while indents and indents[-1] >= indent:
            indents.pop()
        indents.append(indent)
        yield Heading.of(line.start(), len(indents), definition.rstrip("{: \t"))
