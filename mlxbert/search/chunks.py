"""Splits documents into the chunks that a search shows, and these into the windows that are embedded."""

import re
from array import array
from bisect import bisect_left, bisect_right
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import accumulate

from mlxbert.errors import ArgumentError, InputError
from mlxbert.option_declarations import Bounds
from mlxbert.search.documents.document import Document
from mlxbert.text.token_blocks import SIZE, check_letters
from mlxbert.text.tokenizer import Tokenizer

# The end of a sentence and the whitespace after it, which Chinese and Japanese do without.
SENTENCE = re.compile(
    r"[.!?\u2026][\"')\]\u2019\u201d]*\s++(?![a-z])|[\u3002\uff01\uff1f][\u2019\u201d\u300d\u300f\uff09]*\s*"
)
BLANK_LINE = re.compile(r"\n[^\S\n]*\n\s*")
_ENDS = re.compile(f"{SENTENCE.pattern}|{BLANK_LINE.pattern}")


def sentences(text: str) -> list[tuple[int, int]]:
    """Returns the start and end of each sentence, in code points, without surrounding whitespace.

    A blank line ends a sentence, too; other line breaks count as spaces. Abbreviations are not recognized.
    """
    ends = [match.end() for match in _ENDS.finditer(text)]
    return [
        span for start, end in zip([0, *ends], [*ends, len(text)], strict=True) if (span := strip(text, start, end))
    ]


def strip(text: str, start: int, end: int) -> tuple[int, int] | None:
    """Strips whitespace from a part of a text; returns the span of the rest, or `None` if nothing remains."""
    part = text[start:end]
    kept = part.lstrip()
    return (end - len(kept), end - len(kept) + len(kept.rstrip())) if kept else None


_TOKENS = 256  # tokens in a chunk
_WINDOW = 64  # tokens in a window; the vector of a longer text is a mixture of its topics (see docs/search.md)
_MIN_TOKENS = 8
_JOINTS = 2  # tokens that titles and a text together may have beyond the tokens of each
_PER_TOKEN = 16  # maximum characters per token: a word of any length may be one unknown token
_MAX_LEVELS = 8  # maximum number of headings above a chunk
_SPACE = re.compile(r"\s+")
_BREAKS = (BLANK_LINE, re.compile(r"\n\s*"), SENTENCE, _SPACE)  # best first
_FEW = 8  # tokens: a paragraph with fewer is embedded with the next one
_GROUP = 64  # windows that are tokenized at once

_Span = tuple[int, int]


@dataclass(frozen=True, slots=True)
class Chunk:
    """A part of a document."""

    start: int  # the offset of the first character
    # The offset after the last character. A chunk neither begins nor ends with whitespace.
    end: int
    titles: tuple[str, ...] = ()  # the document's title and the headings above the start, outermost first
    first_line: int | None = None  # the line of the file on which the chunk begins, if the document has lines
    last_line: int | None = None  # the line on which the chunk ends
    page: int | None = None  # the page on which the chunk begins, from 1
    windows: tuple[_Span, ...] = ()  # the offsets of the parts that are embedded, in order


class Splitter:
    """Splits documents into chunks: before headings, otherwise after a paragraph, a line, a sentence, or a word.

    Every word is in exactly one chunk. A section shorter than a quarter of a chunk shares a chunk with the text after
    it. A chunk is split into windows, each with as many whole sentences as fit; no window is too long for the model.

    Args:
        tokens: The maximum number of tokens of a chunk; `None` for 256, or what fits into the model if that is less.
        prompt: The prompt that the model expects in front of a text.
        titles: Whether titles are embedded with each window.
    """

    def __init__(
        self, tokenizer: Tokenizer, *, tokens: int | None = None, prompt: str = "", titles: bool = True
    ) -> None:
        self._prompt = len(tokenizer.split(prompt))
        self._room = room = tokenizer.room(1) - self._prompt
        if room < _MIN_TOKENS:
            raise ArgumentError(
                f"the prompt has {self._prompt} tokens, which leaves {max(room, 0)} of the model's maximum for a text, "
                f"expected at least {_MIN_TOKENS}"
            )
        tokens = min(room, _TOKENS) if tokens is None else tokens
        self.tokens = Bounds(_MIN_TOKENS, room).check_whole("tokens", tokens)
        self._window = min(_WINDOW, self.tokens)
        self.tokenizer, self.prompt, self.titles = tokenizer, prompt, titles
        self._last: tuple[tuple[str, ...], str] = (), ""

    def __call__(self, document: Document) -> list[Chunk]:
        """Returns the chunks of a document in order."""
        check_letters(document.text)
        outline, tokens = _Outline(document), self._token_starts(document.text)
        spans = [*self._spans(document.text, outline, tokens)]
        windows = self._windows(document.text, [(span, outline.titles(span[0])) for span in spans], tokens)
        chunks, line, place = list[Chunk](), document.first_line, 0
        for (start, end), parts in zip(spans, windows, strict=True):
            last = None
            if line is not None:
                line += document.text.count("\n", place, start)
                last = line + document.text.count("\n", start, end)
            page = max(bisect_right(document.pages, start), 1) if document.pages else None
            if parts:  # the tokenizer drops the text of other chunks
                chunks.append(Chunk(start, end, outline.titles(start), line, last, page, tuple(parts)))
            place = start
        return chunks

    def embedded(self, document: Document, chunk: Chunk) -> list[str]:
        """Returns the texts to embed for a chunk, without the prompt: each is a line with the titles, then a window."""
        heading = self._heading(chunk.titles)
        return [heading + document.text[start:end] for start, end in chunk.windows]

    def _heading(self, titles: tuple[str, ...]) -> str:
        """Joins the titles into one line of at most a quarter of a window; leaves out the outer titles if need be."""
        if not self.titles or not titles:
            return ""
        if (last := self._last)[0] == titles:  # read once: another thread may replace it
            return last[1]
        limit = self._window // 4
        line = ""
        for first in range(len(titles)):
            joined = " > ".join(titles[first:])
            cut = joined[: limit * _PER_TOKEN]
            pieces = self.tokenizer.split(cut)
            if len(pieces) <= limit and len(cut) == len(joined):
                line = f"{joined}\n"
                break
        else:  # the innermost title alone is too long
            cut = cut[: pieces.offsets[limit][0]] if len(pieces) > limit else cut
            line = f"{cut}\n" if (cut := cut.rpartition(" ")[0].rstrip(" >")) else ""
        self._last = titles, line
        return line

    def _spans(self, text: str, outline: "_Outline", tokens: "array[int]") -> Iterator[_Span]:
        """Yields the span of each chunk, based on the tokens of the whole text."""
        start = 0
        while start < len(text):
            first = bisect_left(tokens, start)
            last = min(first + self.tokens, len(tokens))
            high = min(tokens[last] if last < len(tokens) else len(text), start + self.tokens * _PER_TOKEN)
            quarter = min(first + self.tokens // 4, len(tokens)) - 1
            next_heading = outline.next(tokens[quarter] if tokens else len(text), start)
            if next_heading <= high:
                end = next_heading
            else:
                end = high if high == len(text) else _break(text, start + (high - start) // 2, high)
            end = max(end, start + 1)
            if (span := strip(text, start, end)) is not None:
                yield span
            start = end

    def _windows(
        self, text: str, chunks: Sequence[tuple[_Span, tuple[str, ...]]], tokens: "array[int]"
    ) -> list[list[_Span]]:
        """Returns the windows of each chunk, given the span and the titles of each."""
        windows, parts = [list[_Span]() for _ in chunks], list[_Part]()
        for number, (span, titles) in enumerate(chunks):
            before = self.prompt + (heading := self._heading(titles))
            size = len(self.tokenizer.split(heading)) + _JOINTS if heading else 0
            room = max(min(self._window, self._room - size), 1)
            parts += [_Part(number, before, packed) for packed in _packed(text, span, tokens, room)]
        for part in self._checked(text, parts):
            windows[part.chunk].append(part.span)
        return windows

    def _token_starts(self, text: str) -> "array[int]":
        """Returns the offset at which each token begins, approximately: blocks of the text are tokenized separately."""
        blocks, start = list[_Span](), 0
        while start < len(text):
            end = min(start + SIZE, len(text))
            end = end if end == len(text) else _break(text, start + SIZE // 2, end)
            blocks.append((start, end))
            start = end
        starts = array("Q")
        for group in (blocks[first_block : first_block + 8] for first_block in range(0, len(blocks), 8)):
            with self.tokenizer.together([text[start:end] for start, end in group]):
                for start, end in group:
                    starts.extend(start + first for first, _ in self.tokenizer.split(text[start:end]).offsets)
        return array("Q", accumulate(starts, max))

    def _checked(self, text: str, parts: Sequence["_Part"]) -> Iterator["_Part"]:
        """Yields parts of a text, but splits a part again if it has too many tokens when it is tokenized alone."""
        for group in (parts[at : at + _GROUP] for at in range(0, len(parts), _GROUP)):
            inputs = [part.before + text[slice(*part.span)] for part in group]
            with self.tokenizer.together(inputs):
                counts = [len(self.tokenizer.split(each)) - self._prompt for each in inputs]
            for part, count in zip(group, counts, strict=True):
                start, end = part.span
                if count <= self._room:
                    if count > 0 or self.tokenizer.pieces(text[start:end]):  # the tokenizer drops other texts
                        yield part
                    continue
                if end - start == 1:
                    raise InputError(f"the character {text[start]!r} has {count} tokens, expected at most {self._room}")
                margin = max((end - start) // 4, 1)
                middle = _break(text, start + margin, end - margin)
                halves = strip(text, start, middle), strip(text, middle, end)
                yield from self._checked(text, [replace(part, span=half) for half in halves if half])


@dataclass(frozen=True, slots=True)
class _Part:
    """A window of a chunk: the number of the chunk, the prompt and titles before the window, and its offsets."""

    chunk: int
    before: str
    span: _Span


def _packed(text: str, span: _Span, tokens: "array[int]", room: int) -> Iterator[_Span]:
    """Yields windows of whole sentences with at most `room` tokens; splits a longer sentence."""

    def count(start: int, end: int) -> int:
        return bisect_left(tokens, end) - bisect_left(tokens, start)

    begin = stop = span[0]
    for first, last in sentences(text[span[0] : span[1]]):
        start, end = span[0] + first, span[0] + last
        ends = count(begin, end) > room
        if not ends and BLANK_LINE.search(text, max(stop - 1, begin), start):  # a paragraph is about something else
            ends = count(begin, stop) >= _FEW
        if stop > begin and ends:
            yield begin, stop
            begin = start
        while count(max(begin, start), end) > room:
            start = begin = max(begin, start)
            high = tokens[bisect_left(tokens, start) + room]
            middle = max(_break(text, start + (high - start) // 2, high), start + 1)
            if (part := strip(text, start, middle)) is not None:
                yield part
            begin = start = middle
        stop = end
    if (part := strip(text, begin, span[1])) is not None:
        yield part


class _Outline:
    """The tree of headings of a document."""

    def __init__(self, document: Document) -> None:
        self._title = (document.title,) if document.title else ()
        self._headings = document.headings
        self._starts = [heading.start for heading in document.headings]
        self._parents: list[int] = []  # the heading above each heading, or -1
        for place, heading in enumerate(document.headings):
            parent = place - 1
            while parent >= 0 and document.headings[parent].level >= heading.level:
                parent = self._parents[parent]
            self._parents.append(parent)

    def titles(self, start: int) -> tuple[str, ...]:
        """Returns the document's title and the headings above an offset, outermost first, without duplicates."""
        texts, place = list[str](), bisect_right(self._starts, start) - 1
        while place >= 0 and len(texts) < _MAX_LEVELS:
            texts.append(self._headings[place].text)
            place = self._parents[place]
        return tuple(dict.fromkeys(title for title in (*self._title, *reversed(texts)) if title))

    def next(self, behind: int, start: int) -> int:
        """Returns the offset of the first heading after both `behind` and `start`, or 2**63 if there is none."""
        place = bisect_right(self._starts, max(behind, start))
        return self._starts[place] if place < len(self._starts) else 2**63


def _break(text: str, low: int, high: int) -> int:
    """Returns the best offset for a split between `low` and `high`, or `high` (even within a word) if there is none."""
    for pattern in _BREAKS:
        if ends := [match.end() for match in pattern.finditer(text, low, high)]:
            return ends[-1]
    return high
