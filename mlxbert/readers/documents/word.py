"""Word's .docx, read with mammoth."""

import html
import re
from collections.abc import Iterator
from dataclasses import replace
from io import BytesIO

from mlxbert.readers.documents.document import Document, UnreadableError
from mlxbert.readers.documents.html import html_document

_GROWTH = 2**28  # bytes that unpacking may add; pictures are packed already
_OLD = b"\xd0\xcf\x11\xe0"
_DECLARED = re.compile(rb"<!(?:DOCTYPE|ENTITY)", re.IGNORECASE)
_TITLE = re.compile(r"<dc:title>([^<]*)</dc:title>")


def read_word(data: bytes, name: str) -> Iterator[Document]:
    """The document: its paragraphs, lists, tables and notes.

    Raises:
        UnreadableError: It is damaged or encrypted, or unpacks to too much.
    """
    import mammoth

    title = _check(data)
    no_picture = mammoth.images.img_element(lambda picture: {})
    # The style map that a file may bring along is a program of a kind.
    found = mammoth.convert_to_html(BytesIO(data), convert_image=no_picture, include_embedded_style_map=False)
    yield replace(html_document(found.value), title=title)


def _check(data: bytes) -> str:
    """The title; nothing is unpacked before the sizes that the archive states are checked: no more is ever read."""
    from zipfile import BadZipFile, ZipFile

    if data.startswith(_OLD):
        raise UnreadableError("is encrypted, or of Word 97", hint="save it as .docx, without a password")
    try:
        archive = ZipFile(BytesIO(data))
    except BadZipFile:
        raise UnreadableError("is not a readable .docx") from None
    with archive:
        parts = archive.infolist()
        if (growth := sum(max(part.file_size - part.compress_size, 0) for part in parts)) > _GROWTH:
            raise UnreadableError(f"unpacks to {growth:,} bytes more than it has, the maximum is {_GROWTH:,}")
        for part in parts:  # a document type is what XML bombs are made of; Word writes none
            if part.filename.endswith((".xml", ".rels")) and _DECLARED.search(archive.read(part)):
                raise UnreadableError(f"{part.filename} declares a document type, which no .docx may")
        core = "docProps/core.xml"
        text = archive.read(core).decode("utf-8", "replace") if core in archive.namelist() else ""
    return " ".join(html.unescape(found[1]).split()) if (found := _TITLE.search(text)) else ""
