"""The kinds of documents: finds out the kind of a file, and reads the file's documents."""

import codecs
import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO

from mlxbert.errors import ChangedError
from mlxbert.other_libraries import not_one_of
from mlxbert.readers.formats import FORMATS, named_format
from mlxbert.search.documents.document import Document, UnreadableError, unreadable
from mlxbert.search.documents.embedded_data import without_embedded_data
from mlxbert.search.documents.encodings import MARKS
from mlxbert.search.documents.isolated_parser import ParserLimits, read_apart
from mlxbert.search.documents.mail import read_mail
from mlxbert.search.documents.office import (
    read_epub,
    read_open_document,
    read_rtf,
    read_slides,
    read_spreadsheet,
    read_word,
)
from mlxbert.search.documents.pdf import read_pdf
from mlxbert.search.documents.table_documents import DocumentColumns, read_record_documents
from mlxbert.search.documents.text import (
    read_calendar,
    read_code,
    read_markdown,
    read_notebook,
    read_org,
    read_plain,
    read_rst,
    read_subtitles,
)
from mlxbert.search.documents.web import read_html, read_web_archive


@dataclass(frozen=True)
class DocumentKind:
    """A kind of document."""

    # Takes the bytes and the name of a file, and yields its documents; if `encoded`, takes the user's choice of an
    # encoding, too.
    read: Callable[..., Iterator[Document]]
    endings: tuple[str, ...]  # the file extensions, in lower case
    # Whether `read` runs in a separate process with limits. If so, it must be a module-level function.
    apart: bool = False
    text: bool = False  # whether the files are text; if so, a file that does not look like text is skipped
    encoded: bool = False  # whether the files may be in an encoding that they do not name


RECORDS = "records"  # streamed from the file, which may be larger than memory
_CODE = (
    *(".py", ".pyi", ".pyx", ".js", ".mjs", ".cjs", ".jsx", ".ts", ".tsx", ".vue", ".svelte", ".go", ".rs", ".java"),
    *(".kt", ".kts", ".scala", ".groovy", ".c", ".h", ".cc", ".cpp", ".cxx", ".hpp", ".hh", ".cu", ".cuh", ".metal"),
    *(".m", ".mm", ".swift", ".cs", ".fs", ".vb", ".rb", ".php", ".pl", ".pm", ".lua", ".r", ".jl", ".hs", ".ml"),
    *(".ex", ".exs", ".erl", ".clj", ".dart", ".zig", ".nim"),
    *(".sh", ".bash", ".zsh", ".fish", ".ps1", ".sql", ".proto"),
)
KINDS: dict[str, DocumentKind] = {
    "markdown": DocumentKind(
        read_markdown, (".md", ".markdown", ".mdown", ".mdx", ".qmd", ".rmd"), text=True, encoded=True
    ),
    "rst": DocumentKind(read_rst, (".rst", ".rest"), text=True, encoded=True),
    "code": DocumentKind(read_code, _CODE, text=True, encoded=True),
    "html": DocumentKind(read_html, (".html", ".htm", ".xhtml"), apart=True, encoded=True),
    "pdf": DocumentKind(read_pdf, (".pdf",), apart=True),
    "word": DocumentKind(read_word, (".docx", ".docm"), apart=True),
    "spreadsheet": DocumentKind(read_spreadsheet, (".xlsx", ".xlsm", ".ods"), apart=True),
    "slides": DocumentKind(read_slides, (".pptx", ".pptm"), apart=True),
    "opendocument": DocumentKind(read_open_document, (".odt",), apart=True),
    "epub": DocumentKind(read_epub, (".epub",), apart=True),
    "rtf": DocumentKind(read_rtf, (".rtf",), apart=True),
    "mhtml": DocumentKind(read_web_archive, (".mhtml", ".mht"), apart=True),
    "mail": DocumentKind(read_mail, (".eml", ".mbox"), apart=True, encoded=True),
    "notebook": DocumentKind(read_notebook, (".ipynb",)),
    "org": DocumentKind(read_org, (".org",), text=True, encoded=True),
    "calendar": DocumentKind(read_calendar, (".ics",), text=True, encoded=True),
    "subtitles": DocumentKind(read_subtitles, (".srt", ".vtt"), text=True, encoded=True),
    "text": DocumentKind(read_plain, (".txt", ".text", ".log"), text=True, encoded=True),
}
_GUESSED_COLUMNS, _DEFAULT_LIMITS = DocumentColumns(), ParserLimits()
_SAMPLE_BYTES = 2**13
_CONTROL = re.compile(rb"[\x01-\x08\x0e-\x1a\x1c-\x1f]")


def kind_of(name: str, start: bytes) -> str | None:
    """Returns the kind of a file: a key of `KINDS`, or `RECORDS`; `None` if the file is binary.

    Args:
        name: The name of the file, or its path.
        start: The beginning of the file, at least its first 8 KiB.
    """
    format = named_format(name)
    if format is not None and FORMATS[format].value and not FORMATS[format].most:  # read record by record
        return RECORDS
    kind = next((kind for kind, entry in KINDS.items() if name.lower().endswith(entry.endings)), "text")
    if KINDS[kind].text:
        return kind if _is_text(start[:_SAMPLE_BYTES]) else "pdf" if start.startswith(b"%PDF-") else None
    return kind


def _is_text(start: bytes) -> bool:
    """Whether bytes have a byte-order mark, are UTF-8, or, as in Latin-1 text, contain no control characters."""
    if start.startswith((*MARKS,)):
        return True
    if b"\0" in start or start.startswith(b"%PDF-"):
        return False
    try:
        codecs.getincrementaldecoder("utf-8")().decode(start)  # incremental: the last character may be incomplete
    except UnicodeDecodeError:
        return not _CONTROL.search(start)
    return True


def read_documents(
    path: str | Path,
    data: bytes,
    kind: str,
    columns: DocumentColumns = _GUESSED_COLUMNS,
    *,
    file: BinaryIO | None = None,
    limits: ParserLimits = _DEFAULT_LIMITS,
    encoding: str | None = None,
) -> Iterator[Document]:
    """Reads the documents of a file.

    Args:
        data: The content of the file; not used for records, which are read from the file as a stream.
        kind: The result of `kind_of`.
        file: The file of records, if it is open already; the caller closes it.
        limits: The limits of readers that run in a separate process.
        encoding: The encoding of files that neither name theirs nor are UTF-8; `None` to guess it.
    """
    reader = KINDS.get(kind)
    if reader is None and kind != RECORDS:
        raise not_one_of("kind", kind, [*KINDS, RECORDS])
    if reader is None:
        return _read(lambda: read_record_documents(path, columns, file, encoding), Path(path).name)
    arguments = (str(path), encoding) if reader.encoded else (str(path),)
    if reader.apart:
        return _read(lambda: read_apart(reader.read, data, arguments, limits))
    return _read(lambda: reader.read(data, *arguments))


def _read(read: Callable[[], Iterator[Document]], name: str = "") -> Iterator[Document]:
    try:
        yield from map(without_embedded_data, read())
    except (ChangedError, UnreadableError):  # raised from itself, an error would be its own cause
        raise
    except Exception as problem:
        raise unreadable(problem, name) from problem
