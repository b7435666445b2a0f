"""Kinds of documents, which kind a file is, and the documents of a file."""

import codecs
import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO

from mlxbert.counterparts import not_one_of
from mlxbert.errors import ChangedError
from mlxbert.readers.documents.code import read_code
from mlxbert.readers.documents.document import Document, unreadable
from mlxbert.readers.documents.html import read_html
from mlxbert.readers.documents.isolated_parser import ParserLimits, read_apart
from mlxbert.readers.documents.mail import read_mail
from mlxbert.readers.documents.markdown import read_markdown
from mlxbert.readers.documents.notebook import read_notebook
from mlxbert.readers.documents.pdf import read_pdf
from mlxbert.readers.documents.plain import MARKS, read_plain
from mlxbert.readers.documents.rst import read_rst
from mlxbert.readers.documents.table_documents import DocumentColumns, read_record_documents
from mlxbert.readers.documents.word import read_word
from mlxbert.readers.formats import FORMATS, named_format


@dataclass(frozen=True)
class DocumentKind:
    """A kind of documents.

    Attributes:
        read: Takes the bytes and the name of a file, and gives its documents.
        endings: What names of files end with, in lower case.
        apart: Whether `read` runs in a process of its own, with limits; it is a function of a module, which is imported
            there.
        text: Whether such a file is text; one that does not look like text is left out.
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
    *(".ex", ".exs", ".erl", ".clj", ".dart", ".zig", ".nim"),
    *(".sh", ".bash", ".zsh", ".fish", ".ps1", ".sql", ".proto"),
)
KINDS: dict[str, DocumentKind] = {
    "markdown": DocumentKind(read_markdown, (".md", ".markdown", ".mdown", ".mdx", ".qmd", ".rmd"), text=True),
    "rst": DocumentKind(read_rst, (".rst", ".rest"), text=True),
    "code": DocumentKind(read_code, _CODE, text=True),
    "html": DocumentKind(read_html, (".html", ".htm", ".xhtml"), apart=True),
    "pdf": DocumentKind(read_pdf, (".pdf",), apart=True),
    "word": DocumentKind(read_word, (".docx", ".docm"), apart=True),
    "mail": DocumentKind(read_mail, (".eml", ".mbox"), apart=True),
    "notebook": DocumentKind(read_notebook, (".ipynb",)),
    "text": DocumentKind(read_plain, (".txt", ".text", ".log"), text=True),
}
_GUESSED, _USUAL = DocumentColumns(), ParserLimits()
_LOOK = 2**13  # bytes of a file that are looked at
_CONTROL = re.compile(rb"[\x01-\x08\x0e-\x1a\x1c-\x1f]")


def kind_of(name: str, start: bytes) -> str | None:
    """The kind of a file, a name in `KINDS` or `RECORDS`; `None` if the file is binary.

    Args:
        name: The name of the file, or its path.
        start: Its first 8 KiB, or more.
    """
    format = named_format(name)
    if format is not None and FORMATS[format].value and not FORMATS[format].most:  # a record is read at a time
        return RECORDS
    kind = next((kind for kind, known in KINDS.items() if name.lower().endswith(known.endings)), "text")
    if KINDS[kind].text:
        return kind if _is_text(start[:_LOOK]) else "pdf" if start.startswith(b"%PDF-") else None
    return kind


def _is_text(start: bytes) -> bool:
    """Whether bytes are text of UTF-8, or of an encoding like Latin-1 that has as few control characters."""
    if start.startswith((*MARKS,)):
        return True
    if b"\0" in start or start.startswith(b"%PDF-"):
        return False
    try:
        codecs.getincrementaldecoder("utf-8")().decode(start)  # the last character may be cut
    except UnicodeDecodeError:
        return not _CONTROL.search(start)
    return True


def read_documents(
    path: str | Path,
    data: bytes,
    kind: str,
    columns: DocumentColumns = _GUESSED,
    *,
    file: BinaryIO | None = None,
    limits: ParserLimits = _USUAL,
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
    reader = KINDS.get(kind)
    if reader is None and kind != RECORDS:
        raise not_one_of("kind", kind, [*KINDS, RECORDS])
    if reader is None:
        return _read(lambda: read_record_documents(path, columns, file))
    if reader.apart:
        return _read(lambda: read_apart(reader.read, data, str(path), limits))
    return _read(lambda: reader.read(data, str(path)))


def _read(read: Callable[[], Iterator[Document]]) -> Iterator[Document]:
    try:
        yield from read()
    except ChangedError:
        raise
    except Exception as problem:
        raise unreadable(problem) from problem
