"""Books (.epub): the chapters, which are pages of HTML, in their order."""

import posixpath
import re
from collections.abc import Iterator
from typing import TYPE_CHECKING
from urllib.parse import unquote

from mlxbert.readers.documents.document import Document, ReadProblem, UnreadableError, joined
from mlxbert.readers.documents.html import read_html
from mlxbert.readers.documents.zipped_parts import opened, part_bytes, part_xml, stated_properties

if TYPE_CHECKING:
    from zipfile import ZipFile

_CONTAINER, _ENCRYPTION = "META-INF/container.xml", "META-INF/encryption.xml"
_CONTAINER_FILE = "{urn:oasis:names:tc:opendocument:xmlns:container}rootfile"
_OPF = "{http://www.idpf.org/2007/opf}"
_CIPHER = "{http://www.w3.org/2001/04/xmlenc#}CipherReference"
_PAGES = {"application/xhtml+xml", "text/html"}
_EMPTY = re.compile(rb"<(?!(?:br|hr|img|input|link|meta|col|area|base|wbr)\b)([a-zA-Z][\w:-]{0,40})([^<>]*)/>")
_PICTURE = re.compile(rb"<(?:img|svg|image)\b", re.IGNORECASE)


def read_epub(data: bytes, name: str) -> Iterator[Document]:
    """Reads the book as one document."""
    chapters, problems = list[Document](), list[ReadProblem]()
    with opened(data, ".epub") as archive:
        package_file = next(part_xml(archive, _CONTAINER).iter(_CONTAINER_FILE), None)
        package_name = "" if package_file is None else package_file.get("full-path", "")
        if not package_name:
            raise UnreadableError(f"{_CONTAINER} names no rootfile")
        package = part_xml(archive, package_name)
        title, fields = stated_properties(package)
        folder = posixpath.dirname(package_name)
        items = {item.get("id"): item for item in package.iter(f"{_OPF}item")}
        encrypted = _encrypted(archive)
        for id in dict.fromkeys(reference.get("idref", "") for reference in package.iter(f"{_OPF}itemref")):
            item = items.get(id)
            part = id if item is None else posixpath.normpath(posixpath.join(folder, unquote(item.get("href", ""))))
            try:
                if item is not None and item.get("media-type") not in _PAGES:
                    raise UnreadableError(f"{part} is not a page of text ({item.get('media-type')})")
                if part in encrypted:
                    raise UnreadableError(f"{part} is encrypted")
                chapters.append(_chapter(archive, part))
                problems += chapters[-1].problems
            except UnreadableError as problem:  # other chapters may be readable
                problems.append(ReadProblem("left out", problem.message))
    text, headings, _ = joined(chapters)
    if not text.strip():
        raise UnreadableError(f"has no text ({problems[0].reason})" if problems else "has no text")
    yield Document(text, title, fields, headings=headings, problems=tuple(problems))


def _encrypted(archive: "ZipFile") -> set[str]:
    """The names of the parts that are encrypted, as in books with copy protection."""
    if _ENCRYPTION not in archive.NameToInfo:
        return set()
    return {unquote(part.get("URI", "")) for part in part_xml(archive, _ENCRYPTION).iter(_CIPHER)}


def _chapter(archive: "ZipFile", part: str) -> Document:
    data = part_bytes(archive, part)
    # In XHTML, `<title/>` is an empty element; in HTML, it begins one that has no end.
    (chapter,) = read_html(_EMPTY.sub(rb"<\1\2></\1>", data), part)
    if not chapter.text and _PICTURE.search(data):
        raise UnreadableError(f"{part} has only pictures, no text")
    return chapter
