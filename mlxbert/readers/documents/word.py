"""Word documents (.docx), read with mammoth."""

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

_MAX_GROWTH = 2**28  # bytes that decompression may add; pictures are compressed already
_OLD = b"\xd0\xcf\x11\xe0"
_TITLE = re.compile(r"<dc:title>([^<]*)</dc:title>")


def read_word(data: bytes, name: str) -> Iterator[Document]:
    """Reads the document with its paragraphs, lists, tables and notes."""
    import mammoth

    title = _check(data)
    no_picture = mammoth.images.img_element(lambda picture: {})
    # A style map embedded in an untrusted file would control the conversion.
    page = mammoth.convert_to_html(BytesIO(data), convert_image=no_picture, include_embedded_style_map=False)
    yield replace(html_document(page.value), title=title)


def _check(data: bytes) -> str:
    """Checks that the archive is not a zip bomb or an XML bomb; returns the title of the document.

    The sizes that the archive states can be trusted, because reading a part stops at its stated size.
    """
    from zipfile import BadZipFile, ZipFile

    if data.startswith(_OLD):
        raise UnreadableError("is encrypted, or a Word 97 document", hint="save it as .docx, without a password")
    try:
        archive = ZipFile(BytesIO(data))
    except BadZipFile:
        raise UnreadableError("is not a readable .docx") from None
    with archive:
        parts = archive.infolist()
        if (growth := sum(max(part.file_size - part.compress_size, 0) for part in parts)) > _MAX_GROWTH:
            raise UnreadableError(f"grows by {growth:,} bytes when unpacked, the maximum is {_MAX_GROWTH:,}")
        for part in parts:  # XML bombs need a document type; Word writes none
            if _declares_type(archive, part):
                raise UnreadableError(
                    f"{part.filename} contains a DOCTYPE declaration, which is not allowed in a .docx"
                )
        core = "docProps/core.xml"
        text = archive.read(core).decode("utf-8", "replace") if core in archive.namelist() else ""
    return " ".join(html.unescape(title[1]).split()) if (title := _TITLE.search(text)) else ""


def _declares_type(archive: "ZipFile", part: "ZipInfo") -> bool:
    """Whether a part of an archive is XML with a document type, whatever its encoding and name.

    mammoth reads any part that another part refers to, and uses the same parser. So a part that cannot be parsed here,
    such as a picture, cannot harm mammoth. Parsing stops at the first element: a document type can only precede it.
    """
    from xml.parsers import expat

    has_type = False

    def declared(*_: object) -> None:
        nonlocal has_type
        has_type = True
        raise StopIteration

    def begun(*_: object) -> None:
        raise StopIteration

    parser = expat.ParserCreate(namespace_separator=" ")
    parser.StartDoctypeDeclHandler, parser.StartElementHandler = declared, begun
    with suppress(Exception), archive.open(part) as file:
        parser.ParseFile(file)
    return has_type
