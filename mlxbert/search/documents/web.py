"""Web pages (.html, .mhtml), parsed with selectolax: the visible text, without navigation, scripts and forms."""

import re
from collections import Counter
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass, replace
from email.message import Message
from typing import Any, NamedTuple

from mlxbert.search.documents.document import Document, Heading, UnreadableError, iso_date, known
from mlxbert.search.documents.encodings import decode

_CHARSET = re.compile(
    rb"""<(?:meta[^>]{0,200}?charset|\?xml[^>]{0,200}?encoding)=["']?([\w:.-]{1,40})""", re.IGNORECASE
)
_HEAD = 4096  # bytes within which a page names its encoding
_LEFT_OUT = {
    *("script", "style", "noscript", "template", "svg", "iframe", "object", "canvas"),
    *("select", "textarea", "input", "head"),
}
_MOSTLY_LINKS = {"header", "footer", "aside"}  # left out if most of their text is in links
_LINKS = {"a", "button"}
_ARTICLES = {"article", "main", "section"}
_HEADINGS = {f"h{level}": level for level in range(1, 7)}
_PARAGRAPHS = {*_HEADINGS, *_ARTICLES, *_MOSTLY_LINKS}
_PARAGRAPHS |= {"p", "pre", "blockquote", "table", "ul", "ol", "dl", "figure", "hr", "nav"}
_LINES = {"br", "li", "tr", "div", "dt", "dd", "caption", "figcaption", "address", "form", "fieldset", "option"}
_CELLS = {"td", "th"}
_ROW = 1500  # characters of a row that is written as a line, about a passage; a longer one lays out a page
_NOTHING, _SPACE, _LINE, _PARAGRAPH = range(4)
_GAPS = ("", " ", "\n", "\n\n")


def read_html(data: bytes, name: str, encoding: str | None = None) -> Iterator[Document]:
    """Reads the page as one document."""
    text, problems = decode(data, declared_encoding(data), encoding)
    yield replace(html_document(text), problems=problems)


def declared_encoding(data: bytes) -> str | None:
    """Returns the encoding that a page names."""
    charset = _CHARSET.search(data[:_HEAD])
    return charset[1].decode() if charset else None


def html_document(source: str) -> Document:
    """Converts the source of a page to a document."""
    from selectolax.lexbor import LexborHTMLParser

    page = LexborHTMLParser(source)
    title = page.css_first("head > title")
    lang = page.root.attributes.get("lang") if page.root is not None else None
    writer = _TextWriter()
    if page.body is not None:
        _PageWalk(writer).write(page.body)
    text = "".join(writer.parts)
    title_text = " ".join(title.text().split()) if title is not None else ""
    return Document(text, title_text, {"lang": lang} if lang else {}, headings=tuple(writer.headings))


class _TextState(NamedTuple):
    """The numbers of parts, characters and headings of a text that is being written, and the white space to come."""

    parts: int
    length: int
    headings: int
    gap: int


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
        parts = (_GAPS[self._gap] if self.parts else "", text)
        self.parts += parts
        self.length += sum(map(len, parts))
        self._gap = _NOTHING

    def state(self) -> _TextState:
        return _TextState(len(self.parts), self.length, len(self.headings), self._gap)

    def add_heading(self, level: int, before: _TextState) -> None:
        """Makes a heading of what was added after this state, unless that is white space."""
        written = "".join(self.parts[before.parts :])
        if text := written.lstrip():
            self.headings.append(Heading.of(before.length + len(written) - len(text), level, text))

    def take_back(self, before: _TextState) -> list[Heading]:
        """Removes what was added after this state; returns the headings in it."""
        removed = self.headings[before.headings :]
        del self.parts[before.parts :], self.headings[before.headings :]
        self.length = before.length
        return removed

    def join_lines(self, before: _TextState) -> None:
        """Makes one line of what was added after this state, unless it has headings, preformatted lines or is long."""
        gaps, texts = self.parts[before.parts :: 2], self.parts[before.parts + 1 :: 2]
        fits = self.length - before.length <= _ROW and len(self.headings) == before.headings
        if gaps and fits and not any("\n" in text for text in texts):
            first = _GAPS[before.gap] if before.parts else ""
            self.parts[before.parts :: 2] = gaps = [first, *(gap and " " for gap in gaps[1:])]
            self.length = before.length + sum(map(len, (*gaps, *texts)))
            self._gap = _LINE

    def words(self, text: str) -> None:
        """Adds words, separated by single spaces."""
        words = text.split()
        self.gap(_SPACE if text[:1].isspace() else _NOTHING)
        if words:
            self.add(" ".join(words))
            self.gap(_SPACE if text[-1:].isspace() else _NOTHING)


@dataclass(slots=True)
class _Element:
    """An element around the current node."""

    tag: str
    before: _TextState  # what the writer had before the element
    linked: int  # the counter of characters in links before the element (see `_PageWalk`)
    articles: int  # the number of articles that began before the element
    rows: int  # the number of rows that began before the element
    cells: int = 0  # the number of its cells that have text


class _PageWalk:
    """Writes the text inside an element; not recursive, because a page may be nested to any depth."""

    def __init__(self, writer: _TextWriter) -> None:
        self._writer = writer
        self._around: list[_Element] = []
        self._open: Counter[str] = Counter()  # how many elements of each tag are around the current node
        self._heading: _Element | None = None
        self._linked = 0  # characters in links minus other characters so far, without headings
        self._articles = self._rows = 0  # articles and rows of tables so far

    def write(self, body: Any) -> None:
        node = body
        while node is not None:
            tag = node.tag
            if node.is_text_node:
                self._text(node.text_content or "")
            self._writer.gap(_gap(tag))
            if not self._leaves_out(tag) and node.child is not None:
                self._begin(tag)
                node = node.child
                continue
            while node.next is None and self._around:
                node = node.parent
                self._end(self._around.pop())
            node = node.next if self._around else None

    def _leaves_out(self, tag: str) -> bool:
        return tag in _LEFT_OUT or (tag == "button" and self._heading is None)

    def _text(self, text: str) -> None:
        before = self._writer.length
        self._writer.add(text) if self._open["pre"] and text else self._writer.words(text)
        if self._heading is None:
            added = self._writer.length - before
            self._linked += added if any(self._open[tag] for tag in _LINKS) else -added

    def _begin(self, tag: str) -> None:
        self._rows += tag == "tr"
        element = _Element(tag, self._writer.state(), self._linked, self._articles, self._rows)
        self._around.append(element)
        self._open[tag] += 1
        self._articles += tag in ("article", "main")
        if tag in _HEADINGS and self._heading is None:
            self._heading = element

    def _end(self, element: _Element) -> None:
        tag = element.tag
        self._open[tag] -= 1
        self._writer.gap(_gap(tag))
        if element is self._heading:
            self._heading = None
            self._writer.add_heading(_HEADINGS[tag], element.before)
        elif tag in _CELLS and self._around:
            self._around[-1].cells += self._writer.length > element.before.length
        elif tag == "tr" and element.cells > 1 and element.rows == self._rows:  # a row with rows lays out a page
            self._writer.join_lines(element.before)
        elif self._is_navigation(element):
            headings = self._writer.take_back(element.before)
            self._linked = element.linked
            for heading in headings if tag == "header" else ():
                self._writer.gap(_PARAGRAPH)
                before = self._writer.state()
                self._writer.add(heading.text)
                self._writer.add_heading(heading.level, before)
                self._writer.gap(_PARAGRAPH)

    def _is_navigation(self, element: _Element) -> bool:
        if element.tag == "nav":  # one that is not closed contains the article
            return element.articles == self._articles
        of_article = element.tag != "aside" and any(self._open[tag] for tag in _ARTICLES)
        return element.tag in _MOSTLY_LINKS and not of_article and self._linked > element.linked


def _gap(tag: str) -> int:
    if tag in _PARAGRAPHS:
        return _PARAGRAPH
    return _LINE if tag in _LINES else _SPACE if tag in _CELLS else _NOTHING


def mail_date(message: Message) -> str:
    """Returns the date of a message as `iso_date` does; "" if it has none."""
    from email.utils import parsedate_to_datetime

    with suppress(Exception):  # the library raises various errors for damaged dates
        return iso_date(parsedate_to_datetime(str(message["Date"])).isoformat())
    return ""


def read_web_archive(data: bytes, name: str) -> Iterator[Document]:
    """Reads a page that a browser saved with its pictures, which is the first part of HTML, as one document."""
    from email import message_from_bytes

    message = message_from_bytes(data)
    part = next((part for part in message.walk() if part.get_content_type() == "text/html"), None)
    payload = part.get_payload(decode=True) if part is not None else None
    if part is None or not isinstance(payload, bytes):
        raise UnreadableError("contains no HTML page")
    if charset := part.get_content_charset():
        with suppress(LookupError):  # the page may name another; a byte-order mark comes before what it names
            payload = payload.decode(charset, "replace").encode("utf-8-sig")
    (page,) = read_html(payload, name)
    if not page.text.strip():
        raise UnreadableError("has no text")
    address = message["Snapshot-Content-Location"] or part["Content-Location"]
    yield replace(page, fields=known(**{**page.fields, "url": str(address or "").strip(), "date": mail_date(message)}))
