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
_ENCODING = re.compile(rb"coding[:=][ \t]*([\w.-]{1,40})")  # as in `# -*- coding: latin-1 -*-`
_HEAD = 400  # bytes of the first two lines within which a file names its encoding


def read_code(data: bytes, name: str, encoding: str | None = None) -> Iterator[Document]:
    """Reads the file as one document."""
    declared = _ENCODING.search(b"\n".join(data[:_HEAD].split(b"\n", 2)[:2]))
    text, problems = decode_lines(data, declared[1].decode() if declared else None, encoding)
    yield Document(text, headings=tuple(_headings(text)), first_line=1, problems=problems)


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
