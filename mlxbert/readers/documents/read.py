"""The registry of readers, and the documents of a file."""

import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, BinaryIO

from mlxbert.counterparts import not_one_of
from mlxbert.errors import ChangedError
from mlxbert.readers.documents.apart import Limits, read_apart
from mlxbert.readers.documents.code import read_code
from mlxbert.readers.documents.document import Document, unreadable
from mlxbert.readers.documents.html import read_html
from mlxbert.readers.documents.mail import read_mail
from mlxbert.readers.documents.markdown import read_markdown
from mlxbert.readers.documents.notebook import read_notebook
from mlxbert.readers.documents.pdf import read_pdf
from mlxbert.readers.documents.plain import read_plain
from mlxbert.readers.documents.records import Columns, read_record_documents
from mlxbert.readers.documents.rst import read_rst
from mlxbert.readers.documents.word import read_word


@dataclass(frozen=True)
class Reader:
    """How files of a kind are read.

    Attributes:
        read: The documents of a file, of its bytes and its name.
        endings: What names of files end with, in small letters.
        apart: Whether it runs in a process of its own, with limits; then `read` is a function of a module that can be
            imported there.
        text: Whether such a file is text, and is left out if it does not look like it.
    """

    read: Callable[[bytes, str], Iterator[Document]]
    endings: tuple[str, ...]
    apart: bool = False
    text: bool = False


RECORDS = "records"  # read from the file, which may be larger than memory
_CODE = (
    *(".py", ".pyi", ".pyx", ".js", ".mjs", ".cjs", ".jsx", ".ts", ".tsx", ".vue", ".svelte", ".go", ".rs", ".java"),
    *(".kt", ".kts", ".scala", ".groovy", ".c", ".h", ".cc", ".cpp", ".cxx", ".hpp", ".hh", ".cu", ".cuh", ".metal"),
    *(".m", ".mm", ".swift", ".cs", ".fs", ".vb", ".rb", ".php", ".pl", ".pm", ".lua", ".r", ".jl", ".hs", ".ml"),
    *(
        ".ex",
        ".exs",
        ".erl",
        ".clj",
        ".dart",
        ".zig",
        ".nim",
        ".sh",
        ".bash",
        ".zsh",
        ".fish",
        ".ps1",
        ".sql",
        ".proto",
    ),
)
READERS: dict[str, Reader] = {
    "markdown": Reader(read_markdown, (".md", ".markdown", ".mdown", ".mdx", ".qmd", ".rmd"), text=True),
    "rst": Reader(read_rst, (".rst", ".rest"), text=True),
    "code": Reader(read_code, _CODE, text=True),
    "html": Reader(read_html, (".html", ".htm", ".xhtml"), apart=True),
    "pdf": Reader(read_pdf, (".pdf",), apart=True),
    "word": Reader(read_word, (".docx", ".docm"), apart=True),
    "mail": Reader(read_mail, (".eml", ".mbox"), apart=True),
    "notebook": Reader(read_notebook, (".ipynb",)),
    "text": Reader(read_plain, (".txt", ".text", ".log"), text=True),
}
_GUESSED, _USUAL = Columns(), Limits()
_HALF = re.compile("[\ud800-\udfff]")  # half of a character, which no encoding of text has


def read_documents(
    path: str | Path,
    data: bytes,
    kind: str,
    columns: Columns = _GUESSED,
    *,
    file: BinaryIO | None = None,
    limits: Limits = _USUAL,
) -> Iterator[Document]:
    """The documents of a file.

    Args:
        path: The file.
        data: What it contains; of records nothing is needed, which are read from the file.
        kind: What `kind_of` says.
        columns: How records are read.
        file: The file of records, if it is open; the caller closes it.
        limits: What readers may use that run in a process of their own.
    """
    reader = READERS.get(kind)
    if reader is None and kind != RECORDS:
        raise not_one_of("kind", kind, [*READERS, RECORDS])
    if reader is None:
        return _read(lambda: read_record_documents(path, columns, file))
    if reader.apart:
        return _read(lambda: read_apart(reader.read, data, str(path), limits))
    return _read(lambda: reader.read(data, str(path)))


def _read(read: Callable[[], Iterator[Document]]) -> Iterator[Document]:
    try:
        for document in read():
            yield _whole(document)
    except ChangedError:
        raise
    except Exception as problem:
        raise unreadable(problem) from problem


def _whole(document: Document) -> Document:
    """The document without halves of characters; nothing moves."""
    fields, headings = document.fields, document.headings
    said = [document.text, document.title, *fields, *map(str, fields.values()), *(one.text for one in headings)]
    if not any(map(_HALF.search, said)):
        return document
    headings = tuple(replace(heading, text=_valid(heading.text)) for heading in headings)
    fields = {_valid(name): _valid(value) for name, value in fields.items()}
    return replace(document, text=_valid(document.text), title=_valid(document.title), fields=fields, headings=headings)


def _valid(value: Any) -> Any:
    return _HALF.sub("\ufffd", value) if isinstance(value, str) else value
