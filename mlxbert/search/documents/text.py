"""Texts: plain ones, source code, Markdown, reStructuredText, notebooks, outlines, calendars and subtitles."""

import json
import re
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import replace
from datetime import date, datetime, time
from functools import cache
from html import unescape
from itertools import pairwise
from typing import TYPE_CHECKING, Any

from mlxbert.readers.front_matter import front_matter
from mlxbert.search.documents.document import (
    Document,
    Heading,
    ReadProblem,
    UnreadableError,
    iso_date,
    joined,
    known,
)
from mlxbert.search.documents.encodings import Decoded, decode

if TYPE_CHECKING:
    from markdown_it import MarkdownIt


def decode_lines(data: bytes, declared: str | None = None, chosen: str | None = None) -> Decoded:
    """Decodes a file of lines. If it has no newlines, its lines end with carriage returns, as on old Macs.

    See `decode` for the arguments.
    """
    text, problems = decode(data, declared, chosen)
    return Decoded(text if "\n" in text else text.replace("\r", "\n"), problems)


def read_plain(data: bytes, name: str, encoding: str | None = None) -> Iterator[Document]:
    """Reads the file as one document."""
    text, problems = decode_lines(data, chosen=encoding)
    yield Document(text, first_line=1, problems=problems)


_DEFINITION = re.compile(
    r"^([ \t]*)("
    r"(?:(?:export|default|pub|pub\(\w+\)|public|private|protected|internal|static|abstract|final|async)[ \t]+)*"
    r"(?:class|def|func|fn|function|struct|interface|trait|enum|impl|module|namespace)\b[^\n]*)",
    re.MULTILINE,
)
_ENCODING = re.compile(rb"coding[:=][ \t]*([\w.-]{1,40})")  # as in `# -*- coding: latin-1 -*-`
_CODE_HEAD = 400  # bytes of the first two lines within which a file names its encoding


def read_code(data: bytes, name: str, encoding: str | None = None) -> Iterator[Document]:
    """Reads the file as one document."""
    declared = _ENCODING.search(b"\n".join(data[:_CODE_HEAD].split(b"\n", 2)[:2]))
    text, problems = decode_lines(data, declared[1].decode() if declared else None, encoding)
    yield Document(text, headings=tuple(_definitions(text)), first_line=1, problems=problems)


def _definitions(text: str) -> Iterator[Heading]:
    """Returns the definitions as headings; the levels follow the indentation."""
    indents: list[int] = []
    for line in _DEFINITION.finditer(text):
        definition = line[2][:400].strip()
        if not any(mark in definition for mark in "({:") and len(definition.split()) > 2:  # prose
            continue
        indent = len(line[1].expandtabs(4))
        while indents and indents[-1] >= indent:
            indents.pop()
        indents.append(indent)
        yield Heading.of(line.start(), len(indents), definition.rstrip("{: \t"))


# Linear time even for hostile files: no repetition is followed by a pattern that could match the same characters.
_MAX_TEXT = 2**22  # characters in which headings are looked for: the parser needs 6 seconds for a hostile million
_MAX_VALUE = 1000  # characters of a field: an alias repeats a value of any length


def read_markdown(data: bytes, name: str, encoding: str | None = None) -> Iterator[Document]:
    """Reads the file as one document."""
    text, problems = decode_lines(data, chosen=encoding)
    begin, values, is_damaged = front_matter(text)
    guess = ReadProblem("guessed", "the front matter is damaged, so each line is read as it stands")
    guessed: tuple[ReadProblem, ...] = (guess,) if is_damaged else ()
    fields = {key: shown for key, value in values.items() if (shown := _field(value))}
    title = next((fields.pop(key) for key in [*fields] if key.lower() == "title"), "")
    headings = tuple(markdown_headings(text, begin))
    if len(text) - begin > _MAX_TEXT:
        guessed += (ReadProblem("left out", f"headings after the first {_MAX_TEXT:,} characters"),)
    yield Document(text, title, fields, headings=headings, first_line=1, problems=(*problems, *guessed))


def _field(value: Any) -> str:
    """Converts a value for filtering, a list to its values with commas; returns "" for what is nested deeper."""
    if isinstance(value, list):
        return ", ".join(filter(None, (_field(one) for one in value if not isinstance(one, list))))[:_MAX_VALUE]
    shown = value.isoformat() if isinstance(value, date | time) else "" if isinstance(value, dict) else str(value)
    return " ".join((shown.lower() if isinstance(value, bool) else shown)[:_MAX_VALUE].split())


@cache
def _blocks() -> "MarkdownIt":
    """Returns a parser that reads blocks only, in linear time."""
    from markdown_it import MarkdownIt

    parser = MarkdownIt("commonmark").enable("table")  # a line of dashes below makes no heading of it
    parser.core.ruler.enableOnly(["block"])
    return parser


def markdown_headings(text: str, begin: int = 0) -> Iterator[Heading]:
    """Returns the headings of a text, of a very long one those of its beginning.

    Args:
        begin: The offset at which to begin.
    """
    from markdown_it.common.utils import unescapeAll

    source = text[begin : begin + _MAX_TEXT].replace("\r", "\n")
    starts = [begin, *(begin + line.end() for line in re.finditer("\n", source))]
    for opening, inside in pairwise(_blocks().parse(source)):
        if opening.type == "heading_open" and opening.map and inside.content.strip():
            yield Heading.of(starts[opening.map[0]], int(opening.tag[1:]), unescapeAll(inside.content))


_UNDERLINE = re.compile(r"^([!-/:-@\[-`{-~])\1{2,}[ \t]*$", re.MULTILINE)


def read_rst(data: bytes, name: str, encoding: str | None = None) -> Iterator[Document]:
    """Reads the file as one document."""
    text, problems = decode_lines(data, chosen=encoding)
    yield Document(text, headings=tuple(_underlined(text)), first_line=1, problems=problems)


def _underlined(text: str) -> Iterator[Heading]:
    """Yields the headings. Each style of underlining is a level; the style that occurs first is level 1, and so on."""
    levels: dict[tuple[str, bool], int] = {}
    used = 0  # the offset up to which lines belong to headings
    for line in _UNDERLINE.finditer(text):
        start = text.rfind("\n", 0, max(line.start() - 1, 0)) + 1
        title = text[start : line.start()].strip()
        if start < used or not title or len(line[0].rstrip()) < len(title) or _UNDERLINE.fullmatch(title):
            continue
        above = text.rfind("\n", 0, max(start - 1, 0)) + 1
        over = text[above:start].strip() == line[0].strip()
        level = levels.setdefault((line[1], over), len(levels) + 1)
        yield Heading.of(above if over else start, level, title)
        used = line.end()


def read_notebook(data: bytes, name: str) -> Iterator[Document]:
    """Reads the notebook as one document."""
    source_text, problems = decode(data)
    try:
        notebook = json.loads(source_text, parse_int=float)  # integers in outputs may have any number of digits
    except ValueError as problem:
        raise UnreadableError(f"is not valid JSON ({problem})") from None
    cells = notebook.get("cells") if isinstance(notebook, dict) else None
    if not isinstance(cells, list):
        raise UnreadableError("is not a notebook, because the list of cells is missing")
    parts: list[Document] = []
    for cell in cells:
        source = cell.get("source") if isinstance(cell, dict) else None
        lines = source if isinstance(source, list) else [source]
        text = "".join(line for line in lines if isinstance(line, str)).strip("\n")
        if text:
            headings = markdown_headings(text) if cell.get("cell_type") == "markdown" else ()
            parts.append(Document(text, headings=tuple(headings)))
    yield replace(joined(parts), problems=problems)


# Linear time even for hostile files: repetitions are possessive, bounded, or end at a character that they do not match.
_HEADLINE = re.compile(r"^(\*++) ++(?:(?:TO(?:DO)|DONE|NEXT|WAITING|CANCELLED) )?+(?:\[#\w\])?+(.*)$", re.MULTILINE)
_ORG_TAGS = re.compile(r":[\w@#%:]+:")
_ORG_TITLE = re.compile(r"^#\+title:(.*)", re.MULTILINE | re.IGNORECASE)
# Comments, settings, and drawers with properties: what is left of their lines is empty.
_ORG_LINE = re.compile(r"[ \t]*+(?:#(?:\+(?!(?i:filetags):).*|[ \t].*|)|:[\w-]+:(?:[ \t].*)?)")
_ORG_FILE_TAGS = re.compile(r"^#\+filetags:[ \t]*", re.MULTILINE | re.IGNORECASE)
_ORG_BLOCK = re.compile(r"[ \t]*+#\+(begin|end)_", re.IGNORECASE)  # code and quotations, whose lines stay
_ORG_LINK = re.compile(r"\[\[([^][\n]*+)\](?:\[([^][\n]*+)\])?\]")
_EMPHASIS = re.compile(r"(?<![\w*/=~+_])([*/=~+_])(?=\S)([^*/=~+_\n]{1,200})(?<=\S)\1(?![\w*/=~+_])")
_FOLD = re.compile(r"\n[ \t]")
_PROPERTY = re.compile(r'^([\w-]++)((?:"[^"\n]*+"|[^:"\n])*+):(.*)$', re.MULTILINE)
_ESCAPED = re.compile(r"\\([\\;,nN])")
_ENTRIES = {"VEVENT": "event", "VTODO": "task", "VJOURNAL": "note"}
_CUE_TIME = re.compile(r"(?:^[ \t]*\d+[ \t]*\n)?^.*-->.*\n?", re.MULTILINE)
_CUE_TAG = re.compile(r"</?[A-Za-z\d][^<>\n]{0,200}>|</?[A-Za-z]>|\{\\[^{}\n]{0,200}\}")


def read_org(data: bytes, name: str, encoding: str | None = None) -> Iterator[Document]:
    """Reads the outline as one document, whose lines are those of the file."""
    text, problems = decode_lines(data, chosen=encoding)
    title = _ORG_TITLE.search(text)
    text = _ORG_FILE_TAGS.sub("", "\n".join(_org_lines(text)))
    text = _ORG_LINK.sub(lambda link: link[2] or link[1], text)
    text = _EMPHASIS.sub(r"\2", text)
    text = _HEADLINE.sub(lambda line: f"{line[1]} {' '.join(line[2].split())}", text)
    found = ((line, _without_tags(line[2])) for line in _HEADLINE.finditer(text))
    headings = tuple(Heading.of(line.start(), len(line[1]), title) for line, title in found if title)
    yield Document(text, title[1].strip() if title else "", headings=headings, first_line=1, problems=problems)


def _org_lines(text: str) -> Iterator[str]:
    is_block = False
    for line in text.split("\n"):
        if border := _ORG_BLOCK.match(line):
            is_block = border[1].lower() == "begin"
        yield "" if border or (not is_block and _ORG_LINE.fullmatch(line)) else line


def _without_tags(title: str) -> str:
    before, _, last = title.rpartition(" ")
    return before if _ORG_TAGS.fullmatch(last) else title


def read_calendar(data: bytes, name: str, encoding: str | None = None) -> Iterator[Document]:
    """Reads each event, task and note as a document."""
    decoded, around, entry, count = decode_lines(data, chosen=encoding), list[str](), dict[str, str](), 0
    for line in _PROPERTY.finditer(_FOLD.sub("", decoded.text)):
        key, value = line[1].upper(), _ESCAPED.sub(lambda it: "\n" if it[1] in "nN" else it[1], line[3]).strip()
        if key == "BEGIN":
            around.append(value.upper())
            entry = {} if around[-1] in _ENTRIES else entry
        elif key == "END" and around:
            if (kind := around.pop()) in _ENTRIES:
                count += 1
                yield _entry(entry, f"{_ENTRIES[kind]} {count}", decoded)
        elif around and around[-1] in _ENTRIES:
            entry.setdefault(key, value)
    if not count:
        raise UnreadableError("has no event")


def _entry(entry: dict[str, str], place: str, decoded: Decoded) -> Document:
    title, where = entry.get("SUMMARY", ""), entry.get("LOCATION", "")
    date = shown = entry.get("DTSTART") or entry.get("DUE", "")
    with suppress(ValueError):
        shown = datetime.fromisoformat(date).isoformat(" ", "minutes")
    text = "\n".join(filter(None, (title, shown, where, entry.get("DESCRIPTION", ""))))
    return Document(text, title, known(date=iso_date(date), location=where), place, problems=decoded.problems)


def read_subtitles(data: bytes, name: str, encoding: str | None = None) -> Iterator[Document]:
    """Reads what is said as one document, a line for each of the file, without numbers, times and styles."""
    text, problems = decode_lines(data, chosen=encoding)
    cues = (block for block in re.split(r"\n[ \t]*\n", text) if "-->" in block)
    said = (unescape(_CUE_TAG.sub("", _CUE_TIME.sub("", cue[_start(cue) :]))).strip() for cue in cues)
    if lines := "\n".join(filter(None, said)):
        yield Document(lines, problems=problems)
    else:
        yield from read_plain(data, name, encoding)


def _start(cue: str) -> int:
    """The offset of the line with the time, before which a name may stand."""
    return cue.rfind("\n", 0, cue.index("-->")) + 1
