"""Texts with a little markup: outlines of Org mode (.org), calendars (.ics) and subtitles (.srt, .vtt)."""

import re
from collections.abc import Iterator
from contextlib import suppress
from datetime import datetime
from html import unescape

from mlxbert.readers.documents.document import Document, Heading, UnreadableError, iso_date
from mlxbert.readers.documents.encodings import Decoded
from mlxbert.readers.documents.plain import decode_lines, read_plain

# Linear time even for hostile files: repetitions are possessive, bounded, or end at a character that they do not match.
_HEADLINE = re.compile(r"^(\*++) ++(?:(?:TO(?:DO)|DONE|NEXT|WAITING|CANCELLED) )?+(?:\[#\w\])?+(.*)$", re.MULTILINE)
_TAGS = re.compile(r":[\w@#%:]+:")
_ORG_TITLE = re.compile(r"^#\+title:(.*)", re.MULTILINE | re.IGNORECASE)
# Comments, settings, and drawers with properties: what is left of their lines is empty.
_ORG_LINE = re.compile(r"[ \t]*+(?:#(?:\+.*|[ \t].*|)|:[\w-]+:(?:[ \t].*)?)")
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
    text = "\n".join(_org_lines(text))
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
    return before if _TAGS.fullmatch(last) else title


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
    fields = {"date": iso_date(date), "location": where}
    present = {key: value for key, value in fields.items() if value}
    return Document(text, title, present, place, problems=decoded.problems)


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
