"""Removes data that is embedded in texts, such as pasted pictures and keys: nobody searches for it."""

import re
from bisect import bisect_right
from collections.abc import Iterator
from dataclasses import replace
from itertools import accumulate

from mlxbert.search.documents.document import Document, Heading, ReadProblem

_MIN, _LINE = 200, 60  # characters of data without a label, and of each of its lines but the last
_ALPHABET = "[A-Za-z0-9+/_-]"
# Linear time even for hostile files: repetitions that could match the same characters are bounded.
_NEXT_LINE = r"""["',+\\ \t]{0,8}\r?\n[ \t>#*]{0,80}b?["']?"""
_MORE = rf"(?:(?:{_NEXT_LINE}{_ALPHABET}{{{_LINE},}})+(?:{_NEXT_LINE}{_ALPHABET}+={{0,2}}(?=[\"'); \t]*$))?)?={{0,2}}"
_RUN = re.compile(rf"(?<!{_ALPHABET}){_ALPHABET}{{{_LINE},}}{_MORE}", re.MULTILINE)
_TYPE = r"data:[\w.+/-]{0,99}(?:;[\w.+=-]{1,99}){0,9}"
_DATA_URI = re.compile(
    rf"{_TYPE};base64,[A-Za-z0-9+/=%_-]{{32,}}{_MORE}|{_TYPE},[^\s\"'<>()]{{{_MIN},}}",
    re.MULTILINE | re.IGNORECASE,
)
_SEPARATORS = re.compile(rf"{_NEXT_LINE}|=")
_HEXADECIMAL = re.compile(r"[0-9a-fA-F]+")
_EXAMINED = 2**12  # characters that decide whether a run is data
_MAX_STRETCH = 2.5  # average length of the stretches of lower-case letters: 1.7 in base64, more in words
_URL = 2**11  # characters before a run that may belong to the same address


def without_embedded_data(document: Document) -> Document:
    """Removes data from the text of a document. Its lines stay, so that later lines keep their numbers."""
    spans = _data_spans(document.text)
    if not spans:
        return document
    parts, sizes, last = list[str](), list[int](), 0
    for start, end in spans:
        line_ends = "\n" * document.text.count("\n", start, end)
        parts += document.text[last:start], line_ends
        sizes.append(end - start - len(line_ends))
        last = end
    text = "".join([*parts, document.text[last:]])
    removed, starts = [0, *accumulate(sizes)], [start for start, _ in spans]

    def moved(offset: int) -> int:
        passed = bisect_right(starts, offset)
        inside = min(offset, spans[passed - 1][1]) - starts[passed - 1] if passed else 0
        return offset - removed[max(passed - 1, 0)] - min(inside, sizes[passed - 1] if passed else 0)

    size = removed[-1]
    amount = f"{size / 1000:,.0f} kB" if size >= 1000 else f"{size} bytes"
    headings = (replace(heading, start=moved(heading.start)) for heading in document.headings)
    return replace(
        document,
        text=text,
        headings=tuple(_with_words(headings, len(text))),
        pages=tuple(map(moved, document.pages)),
        problems=(*document.problems, ReadProblem("left out", f"{amount} of embedded data")),
    )


def _with_words(headings: Iterator[Heading], length: int) -> Iterator[Heading]:
    """Yields the headings without data; a heading that has nothing else is left out."""
    for heading in headings:
        text, last = "", 0
        for start, end in _data_spans(heading.text):
            text, last = text + heading.text[last:start], end
        if (text := (text + heading.text[last:]).strip()) and heading.start < length:
            yield replace(heading, text=text)


def _data_spans(text: str) -> list[tuple[int, int]]:
    """Returns the spans of data: data URIs, and long runs of base64 or hexadecimal digits, also over several lines."""
    spans = [match.span() for match in _DATA_URI.finditer(text)]
    spans += (run.span() for run in _RUN.finditer(text) if _is_data(run[0]) and not _in_url(text, run.start()))
    disjoint = list[tuple[int, int]]()
    for start, end in sorted(spans):
        if disjoint and start <= disjoint[-1][1]:
            disjoint[-1] = disjoint[-1][0], max(end, disjoint[-1][1])
        else:
            disjoint.append((start, end))
    return disjoint


def _is_data(run: str) -> bool:
    """Whether a run looks like data, in contrast to a path, a rule of dashes, a number or a very long word."""
    if len(run) < _MIN:
        return False
    digits = _SEPARATORS.sub("", run[:_EXAMINED])
    if not any(map(str.isdigit, digits)):
        return False
    if _HEXADECIMAL.fullmatch(digits):
        return not digits.isdigit()
    stretches = re.findall("[a-z]+", digits)
    is_mixed = bool(stretches) and any(map(str.isupper, digits))
    return is_mixed and sum(map(len, stretches)) < _MAX_STRETCH * len(stretches)


def _in_url(text: str, start: int) -> bool:
    """Whether the characters before an offset belong to an address, such as a link with a long token."""
    before = text[max(start - _URL, 0) : start]
    return "://" in before and not re.search(r"""[\s"'<>()]""", before[before.rindex("://") :])
