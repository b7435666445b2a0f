"""HTML, parsed with selectolax: the visible text, without navigation, scripts and forms."""

import re
from collections.abc import Iterator
from typing import Any

from mlxbert.readers.documents.document import Document, Heading
from mlxbert.readers.documents.plain import decode

_CHARSET = re.compile(rb"""<meta[^>]{0,200}?charset=["']?([\w:.-]{1,40})""", re.IGNORECASE)
_HEAD = 4096  # bytes within which a page names its encoding
_LEFT_OUT = {
    *("nav", "script", "style", "aside", "noscript", "template", "svg", "iframe", "object", "canvas"),
    *("button", "select", "textarea", "input", "head"),
}
_OF_PAGE = {"header", "footer"}  # left out, unless they belong to an article
_ARTICLES = {"article", "main", "section"}
_HEADINGS = {f"h{level}": level for level in range(1, 7)}
_PARAGRAPHS = {*_HEADINGS, "p", "pre", "blockquote", "table", "ul", "ol", "dl", "figure", "hr", *_ARTICLES}
_LINES = {"br", "li", "tr", "div", "dt", "dd", "caption", "figcaption", "address", "form", "fieldset", "option"}
_NOTHING, _SPACE, _LINE, _PARAGRAPH = range(4)
_GAPS = ("", " ", "\n", "\n\n")


def read_html(data: bytes, name: str) -> Iterator[Document]:
    """Reads the page as one document."""
    charset = _CHARSET.search(data[:_HEAD])
    yield html_document(decode(data, charset[1].decode() if charset else None))


def html_document(source: str) -> Document:
    """Converts the source of a page to a document."""
    from selectolax.lexbor import LexborHTMLParser

    page = LexborHTMLParser(source)
    title = page.css_first("head > title")
    lang = page.root.attributes.get("lang") if page.root is not None else None
    writer = _TextWriter()
    if page.body is not None:
        _walk(page.body, writer)
    text = "".join(writer.parts)
    title_text = " ".join(title.text().split()) if title is not None else ""
    return Document(text, title_text, {"lang": lang} if lang else {}, headings=tuple(writer.headings))


class _TextWriter:
    """Builds a text from parts, with at least the requested white space between them."""

    def __init__(self) -> None:
        self.parts: list[str] = []
        self.headings: list[Heading] = []
        self.length, self._gap = 0, _NOTHING

    def gap(self, gap: int) -> None:
        """Requests white space before the next part of the text."""
        self._gap = max(self._gap, gap)

    def add(self, text: str) -> None:
        """Adds text unchanged."""
        parts = (_GAPS[self._gap] if self.parts else "", text)
        self.parts += parts
        self.length += sum(map(len, parts))
        self._gap = _NOTHING

    def words(self, text: str) -> None:
        """Adds words, separated by single spaces."""
        words = text.split()
        self.gap(_SPACE if text[:1].isspace() else _NOTHING)
        if words:
            self.add(" ".join(words))
            self.gap(_SPACE if text[-1:].isspace() else _NOTHING)


def _walk(body: Any, writer: _TextWriter) -> None:
    """Writes the text inside an element; not recursive, because a page may be nested to any depth."""
    open_tags: list[str] = []  # the elements around the current one
    heading: tuple[int, int, int] | None = None  # the number of elements around it; parts and characters before it
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
                heading = len(open_tags), len(writer.parts), writer.length
            articles += tag in _ARTICLES
            code += tag == "pre"
            open_tags.append(tag)
            node = enter
            continue
        while node.next is None and open_tags:
            node, tag = node.parent, open_tags.pop()
            articles -= tag in _ARTICLES
            code -= tag == "pre"
            writer.gap(_gap(tag))
            if heading is not None and heading[0] == len(open_tags):
                written = "".join(writer.parts[heading[1] :])
                if heading_text := written.lstrip():
                    start = heading[2] + len(written) - len(heading_text)
                    writer.headings.append(Heading.of(start, _HEADINGS[tag], heading_text))
                heading = None
        node = node.next if open_tags else None


def _gap(tag: str) -> int:
    if tag in _PARAGRAPHS:
        return _PARAGRAPH
    return _LINE if tag in _LINES else _SPACE if tag in ("td", "th") else _NOTHING


def _to_fill_in(form: Any) -> bool:
    """Whether a form is meant to be filled in; some pages, in contrast, wrap their whole content in a form."""
    return form.css_first("p, h1, h2, h3") is None
