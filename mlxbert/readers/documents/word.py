"""Word documents (.docx): their headings, paragraphs, lists, tables, formulas and notes."""

import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from html import escape
from typing import TYPE_CHECKING
from xml.etree.ElementTree import Element

from mlxbert.readers.documents.document import Document, UnreadableError
from mlxbert.readers.documents.html import html_document
from mlxbert.readers.documents.zipped_parts import opened, part_xml, properties, related_parts

if TYPE_CHECKING:
    from zipfile import ZipFile

_HEADING = re.compile(r"heading ?([1-9])?", re.IGNORECASE)
_TAGS = {"tbl": "table", "tr": "tr", "tc": "td"}
_WRITTEN = {"tab": " ", "ptab": " ", "br": "<br>", "cr": "<br>", "noBreakHyphen": "\u2011"}
_AROUND = {"den": ("/", ""), "sup": ("^", ""), "sub": ("_", ""), "d": ("(", ")"), "rad": ("√", "")}  # in formulas
_NOTES = {"footnoteReference": "footnotes", "endnoteReference": "endnotes"}  # and the kinds of their parts
_BOUNDS = {"tc", "body"}  # what no paragraph crosses
_DELETED = {"del", "cellDel"}
_LEFT_OUT = {"del", "moveFrom", "rt", "Fallback"}  # `rt` is the reading of a word, `Fallback` a copy for old programs


def read_word(data: bytes, name: str) -> Iterator[Document]:
    """Reads the document with its notes at the end, with tracked insertions and without deletions and comments."""
    with opened(data, ".docx") as archive:
        title, fields = properties(archive)
        main = next((part for kind, part in related_parts(archive, "").values() if kind == "officeDocument"), "")
        body, others = part_xml(archive, main or "word/document.xml"), related_parts(archive, main).values()
        page = _Page(_style_names(archive, [part for kind, part in others if kind == "styles"]))
        parts, notes = [*page.write(body)], dict[tuple[str, str], Element]()
        for kind, part in others:
            if kind in ("footnotes", "endnotes"):
                notes |= {(kind, _value(note, "id")): note for note in part_xml(archive, part)}
        for reference in dict.fromkeys(page.notes):
            parts += [*page.write(notes.get(reference, Element(""))), *page.take_joined()]
    document = html_document("".join(parts))
    if not document.text.strip():
        raise UnreadableError("has no text")
    yield replace(document, title=title, fields=fields)


def _style_names(archive: "ZipFile", parts: list[str]) -> dict[str, str]:
    """Returns the names of the styles, which are the same in all languages, by their id."""
    styles = (style for part in parts for style in part_xml(archive, part) if _name(style) == "style")
    return {_value(style, "styleId"): _value(_child(style, "name"), "val") for style in styles}


@dataclass
class _Page:
    """Converts the contents of parts to a page.

    An element that is not known is read, as its text would be lost otherwise.

    Attributes:
        styles: The names of the styles by their id.
        notes: The kinds and the ids of the notes, in order.
        joined: The contents of paragraphs whose end was deleted: they are the beginning of the next one.
    """

    styles: Mapping[str, str]
    notes: list[tuple[str, str]] = field(default_factory=list)
    joined: list[str] = field(default_factory=list)

    def write(self, elements: Iterable[Element]) -> Iterator[str]:
        """Yields the page of elements, such as those in another one, in pieces."""
        for child in elements:
            name = _name(child)
            properties = _child(child, f"{name}Pr")
            if name in _LEFT_OUT or name.endswith("Pr") or (name in ("tr", "tc") and _is_deleted(properties)):
                continue
            if name == "t":
                yield escape(child.text or "")
            elif name in _NOTES:
                self.notes.append((_NOTES[name], _value(child, "id")))
            elif name == "p":
                yield from self._paragraph(child, properties)
            else:
                tag, (before, after) = _TAGS.get(name, ""), _AROUND.get(name, ("", ""))
                yield (f"<{tag}>" if tag else before) + _WRITTEN.get(name, "")
                yield from self.write(child)
                if name in _BOUNDS:  # nothing follows that the last paragraph could begin
                    yield from self.take_joined()
                yield f"</{tag}>" if tag else after

    def take_joined(self) -> list[str]:
        """Takes the contents of paragraphs whose end was deleted."""
        begun, self.joined = self.joined, []
        return begun

    def _paragraph(self, element: Element, properties: Element | None) -> Iterator[str]:
        if _is_deleted(_child(properties, "rPr")):
            self.joined += self.write(element)
            return
        begun = self.take_joined()
        id = _value(_child(properties, "pStyle"), "val")
        style = self.styles.get(id, id)
        is_item = _child(properties, "numPr") is not None or style.lower().startswith("list ")
        heading = _HEADING.fullmatch(style)
        tag = f"h{min(int(heading[1] or 1), 6)}" if heading else "li" if is_item else "p"
        yield f"<{tag}>"
        yield from begun
        yield from self.write(element)
        yield f"</{tag}>"


def _name(element: Element) -> str:
    """The name of an element without its namespace, of which there are two: transitional and strict."""
    return element.tag.rpartition("}")[2]


def _child(element: Element | None, name: str) -> Element | None:
    return next((child for child in element if _name(child) == name), None) if element is not None else None


def _value(element: Element | None, name: str) -> str:
    """The value of an attribute, or ""."""
    attributes = element.attrib.items() if element is not None else ()
    return next((value for key, value in attributes if key.rpartition("}")[2] == name), "")


def _is_deleted(properties: Element | None) -> bool:
    return properties is not None and any(_name(child) in _DELETED for child in properties)
