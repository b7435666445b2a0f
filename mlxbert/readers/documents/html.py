"""HTML, parsed with selectolax: the text that people read, without navigation, scripts and forms."""

import re
from collections.abc import Iterator
from typing import Any

from mlxbert.readers.documents.document import Document, Heading
from mlxbert.readers.documents.plain import decode

_CHARSET = re.compile(rb"""<meta[^>]{0,200}?charset=["']?([\w:.-]{1,40})""", re.IGNORECASE)
_HEAD = 4096  # bytes in which a page names its encoding
_LEFT_OUT = {
    *("nav", "script", "style", "aside", "noscript", "template", "svg", "iframe", "object", "canvas"),
    *("button", "select", "textarea", "input", "head"),
}
_OF_PAGE = {"header", "footer"}  # unless they are those of an article
_ARTICLES = {"article", "main", "section"}
_HEADINGS = {f"h{level}": level for level in range(1, 7)}
_PARAGRAPHS = {*_HEADINGS, "p", "pre", "blockquote", "table", "ul", "ol", "dl", "figure", "hr", *_ARTICLES}
_LINES = {"br", "li", "tr", "div", "dt", "dd", "caption", "figcaption", "address", "form", "fieldset", "option"}
_NOTHING, _SPACE, _LINE, _PARAGRAPH = range(4)
_GAPS = ("", " ", "\n", "\n\n")


def read_html(data: bytes, name: str) -> Iterator[Document]:
    """The page."""
    said = _CHARSET.search(data[:_HEAD])
    yield html_document(decode(data, said[1].decode() if said else None))


def html_document(source: str) -> Document:
    """The document of a page."""
    from selectolax.lexbor import LexborHTMLParser

    page = LexborHTMLParser(source)
    title = page.css_first("head > title")
    lang = page.root.attributes.get("lang") if page.root is not None else None
    writer = _TextWriter()
    if page.body is not None:
        _walk(page.body, writer)
    text = "".join(writer.parts)
    called = " ".join(title.text().split()) if title is not None else ""
    return Document(text, called, {"lang": lang} if lang else {}, headings=tuple(writer.headings))


class _TextWriter:
    """A text that grows, with the least white space between its parts that was asked for."""

    def __init__(self) -> None:
        self.parts: list[str] = []
        self.headings: list[Heading] = []
        self.length, self._gap = 0, _NOTHING

    def gap(self, gap: int) -> None:
        """Asks for white space before what comes next."""
        self._gap = max(self._gap, gap)

    def add(self, text: str) -> None:
        """Adds text as it is."""
        parts = (_GAPS[self._gap] if self.parts else "", text)
        self.parts += parts
        self.length += sum(map(len, parts))
        self._gap = _NOTHING

    def words(self, text: str) -> None:
        """Adds text with single spaces."""
        words = text.split()
        self.gap(_SPACE if text[:1].isspace() else _NOTHING)
        if words:
            self.add(" ".join(words))
            self.gap(_SPACE if text[-1:].isspace() else _NOTHING)


def _walk(body: Any, writer: _TextWriter) -> None:
    """Writes the text inside an element, without recursion: a page may be nested as deeply as it likes."""
    opened: list[str] = []  # the elements around the current one
    heading: tuple[int, int, int] | None = None  # how many are opened around it; parts and characters before it
    node, articles, code = body, 0, 0
    while node is not None:
        tag = node.tag
        if node.is_text_node:
            text = node.text_content or ""
            writer.add(text) if code and text else writer.words(text)
        left_out = tag in _LEFT_OUT or (tag in _OF_PAGE and not articles) or (tag == "form" and _to_fill_in(node))
        enter = None if left_out else node.child
        writer.gap(_gap(tag))
        if enter is not None:
            if tag in _HEADINGS and heading is None:
                heading = len(opened), len(writer.parts), writer.length
            articles += tag in _ARTICLES
            code += tag == "pre"
            opened.append(tag)
            node = enter
            continue
        while node.next is None and opened:
            node, tag = node.parent, opened.pop()
            articles -= tag in _ARTICLES
            code -= tag == "pre"
            writer.gap(_gap(tag))
            if heading is not None and heading[0] == len(opened):
                written = "".join(writer.parts[heading[1] :])
                if said := written.lstrip():
                    start = heading[2] + len(written) - len(said)
                    writer.headings.append(Heading.of(start, _HEADINGS[tag], said))
                heading = None
        node = node.next if opened else None


def _gap(tag: str) -> int:
    if tag in _PARAGRAPHS:
        return _PARAGRAPH
    return _LINE if tag in _LINES else _SPACE if tag in ("td", "th") else _NOTHING


def _to_fill_in(form: Any) -> bool:
    """Whether a form is that; some pages are a form as a whole."""
    return form.css_first("p, h1, h2, h3") is None
