"""OpenDocument texts (.odt): their headings, paragraphs, lists, tables and notes."""

from collections.abc import Iterator
from dataclasses import replace
from html import escape
from xml.etree.ElementTree import Element

from mlxbert.readers.documents.document import Document, UnreadableError
from mlxbert.readers.documents.html import html_document
from mlxbert.readers.documents.zipped_parts import opened, part_xml, properties

_OPEN_DOCUMENT = "urn:oasis:names:tc:opendocument:xmlns"
_OFFICE, _TABLE, _TEXT = (f"{{{_OPEN_DOCUMENT}:{name}:1.0}}" for name in ("office", "table", "text"))
_SVG = f"{{{_OPEN_DOCUMENT}:svg-compatible:1.0}}"
_LEVELS = {*"123456"}
_TAGS = {f"{_TEXT}p": "p", f"{_TEXT}list": "ul", f"{_TEXT}list-item": "li"} | {
    f"{_TABLE}{name}": tag for name, tag in (("table", "table"), ("table-row", "tr"), ("table-cell", "td"))
}
_SPACES = {f"{_TEXT}s": " ", f"{_TEXT}tab": " ", f"{_TEXT}line-break": "<br>"}
_LEFT_OUT = {f"{_TEXT}tracked-changes", f"{_TEXT}note-citation", f"{_TEXT}ruby-text", f"{_OFFICE}annotation"} | {
    *(f"{_OFFICE}binary-data", f"{_SVG}title", f"{_SVG}desc")  # of pictures
}


def read_open_document(data: bytes, name: str) -> Iterator[Document]:
    """Reads the text as one document, with its notes at the end, and without comments and deleted passages."""
    with opened(data, ".odt") as archive:
        title, fields = properties(archive)
        body = part_xml(archive, "content.xml").find(f"{_OFFICE}body/{_OFFICE}text")
    if body is None:
        raise UnreadableError("is not an OpenDocument text")
    notes = list[Element]()
    parts = [*_page(body, "", notes)]
    for note in notes:  # a note of a note comes last
        parts += _page(note, "", notes)
    page = html_document("".join(parts))
    if not page.text.strip():
        raise UnreadableError("has no text")
    yield replace(page, title=title, fields=fields)


def _page(element: Element, inside: str, notes: list[Element]) -> Iterator[str]:
    """Converts the contents of an element to a page.

    Args:
        element: The element.
        inside: The tag around its paragraphs, `li` or `td`, in which they are written as `span`; or "".
        notes: Gets the notes.
    """
    yield escape(element.text or "")
    for child in element:
        tag = _TAGS.get(child.tag, "")
        if child.tag == f"{_TEXT}h":
            level = child.get(f"{_TEXT}outline-level", "1")
            tag = f"h{level if level in _LEVELS else 6}"
        if child.tag == f"{_TEXT}note":
            notes.append(child)
        elif child.tag not in _LEFT_OUT:
            tag = "span" if tag == "p" and inside else tag
            yield (f"<{tag}>" if tag else "") + _SPACES.get(child.tag, "")
            yield from _page(child, tag if tag in ("li", "td") else inside, notes)
            yield f"</{tag}> " if tag else ""
        yield escape(child.tail or "")
