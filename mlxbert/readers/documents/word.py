"""Word's .docx, read with mammoth."""

import html
import re
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import replace
from io import BytesIO
from typing import TYPE_CHECKING

from mlxbert.readers.documents.document import Document, UnreadableError
from mlxbert.readers.documents.html import html_document

if TYPE_CHECKING:
    from zipfile import ZipFile, ZipInfo

_GROWTH = 2**28  # bytes that unpacking may add; pictures are packed already
_OLD = b"\xd0\xcf\x11\xe0"
_TITLE = re.compile(r"<dc:title>([^<]*)</dc:title>")


def read_word(data: bytes, name: str) -> Iterator[Document]:
    """The document: its paragraphs, lists, tables and notes."""
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
            if _declares_type(archive, part):
                raise UnreadableError(f"{part.filename} declares a document type, which no .docx may")
        core = "docProps/core.xml"
        text = archive.read(core).decode("utf-8", "replace") if core in archive.namelist() else ""
    return " ".join(html.unescape(found[1]).split()) if (found := _TITLE.search(text)) else ""


def _declares_type(archive: "ZipFile", part: "ZipInfo") -> bool:
    """Whether XML in a part of an archive has a document type, in whatever encoding and under whatever name.

    The parser is that of mammoth, which reads any part that another one refers to. It stops at the first element: a
    document type stands before that. What it cannot read, such as pictures, mammoth cannot read as XML either.
    """
    from xml.parsers import expat

    found = False

    def declared(*_: object) -> None:
        nonlocal found
        found = True
        raise StopIteration

    def begun(*_: object) -> None:
        raise StopIteration

    parser = expat.ParserCreate(namespace_separator=" ")
    parser.StartDoctypeDeclHandler, parser.StartElementHandler = declared, begun
    with suppress(Exception), archive.open(part) as file:
        parser.ParseFile(file)
    return found
