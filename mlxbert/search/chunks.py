"""Splits documents into chunks that fit a model."""

import re
from array import array
from bisect import bisect_left, bisect_right
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import accumulate

from mlxbert.errors import ArgumentError, InputError
from mlxbert.readers.documents.document import Document
from mlxbert.search.sentences import BLANK_LINE, SENTENCE, strip
from mlxbert.text.long_texts import SIZE, check_letters
from mlxbert.text.tokenizer import Tokenizer

_TOKENS = 256  # tokens in a chunk; longer chunks cover too many topics
_MIN_TOKENS = 8
_JOINTS = 2  # tokens that a joined text may have beyond its parts
_PER_TOKEN = 16  # maximum characters per token: a word of any length may be one unknown token
_MAX_LEVELS = 8  # maximum number of headings above a chunk
_SPACE = re.compile(r"\s+")
_BREAKS = (BLANK_LINE, re.compile(r"\n\s*"), SENTENCE, _SPACE)  # best first
_GROUP = 64  # chunks that are tokenized at once

_Span = tuple[int, int]


@dataclass(frozen=True, slots=True)
class Chunk:
    """A part of a document.

    Attributes:
        start: The offset of the first character.
        end: The offset after the last character. A chunk neither begins nor ends with whitespace.
        titles: The document's title and the headings above the start, outermost first.
        first_line: The line of the file on which the chunk begins, if the document has lines.
        last_line: The line on which the chunk ends.
        page: The page on which the chunk begins, from 1.
    """

    start: int
    end: int
    titles: tuple[str, ...] = ()
    first_line: int | None = None
    last_line: int | None = None
    page: int | None = None


class Splitter:
    """Splits documents into chunks: before headings, otherwise after a paragraph, a line, a sentence, or a word.

    Every word is in exactly one chunk, and no chunk is too long for the model. A section shorter than a quarter of a
    chunk shares a chunk with the text after it.

    Args:
        tokenizer: The tokenizer of the model.
        tokens: The maximum number of tokens of a chunk with its titles; `None` for 256, or the model's limit if lower.
        prompt: The prompt that the model expects in front of a text.
        titles: Whether titles are embedded with a chunk.
    """

    def __init__(
        self, tokenizer: Tokenizer, *, tokens: int | None = None, prompt: str = "", titles: bool = True
    ) -> None:
        self._prompt = len(tokenizer.split(prompt))
        room = tokenizer.room(1) - self._prompt
        self.tokens = min(room, _TOKENS) if tokens is None else tokens
        if type(self.tokens) is not int or not _MIN_TOKENS <= self.tokens <= room:
            raise ArgumentError(f"tokens is {self.tokens!r:.60}, expected {_MIN_TOKENS} to {room} for this model")
        self.tokenizer, self.prompt, self.titles = tokenizer, prompt, titles
        self._last: tuple[tuple[str, ...], str] = (), ""

    def __call__(self, document: Document) -> list[Chunk]:
        """Returns the chunks of a document in order."""
        check_letters(document.text)
        outline = _Outline(document)
        spans = self._checked(document, outline, [*self._spans(document.text, outline)])
        chunks, line, place = list[Chunk](), document.first_line, 0
        for start, end in spans:
            last = None
            if line is not None:
                line += document.text.count("\n", place, start)
                last = line + document.text.count("\n", start, end)
            page = max(bisect_right(document.pages, start), 1) if document.pages else None
            chunks.append(Chunk(start, end, outline.titles(start), line, last, page))
            place = start
        return chunks

    def embedded(self, document: Document, chunk: Chunk) -> str:
        """Returns the text to embed for a chunk, without the prompt: a line with the titles, then the chunk itself."""
        return self._heading(chunk.titles) + document.text[chunk.start : chunk.end]

    def _heading(self, titles: tuple[str, ...]) -> str:
        """Joins the titles into one line, truncated to a quarter of the maximum number of tokens of a chunk."""
        if not self.titles or not titles:
            return ""
        if (last := self._last)[0] == titles:  # read once: another thread may replace it
            return last[1]
        limit = self.tokens // 4
        joined = " > ".join(titles)
        cut = joined[: limit * _PER_TOKEN]
        pieces = self.tokenizer.split(cut)
        if len(pieces) > limit or len(cut) < len(joined):
            cut = cut[: pieces.offsets[limit][0]] if len(pieces) > limit else cut
            cut = cut.rpartition(" ")[0].rstrip(" >")
        line = f"{cut}\n" if cut else ""
        self._last = titles, line
        return line

    def _spans(self, text: str, outline: "_Outline") -> Iterator[_Span]:
        """Yields the span of each chunk, based on the tokens of the whole text."""
        tokens, start = self._token_starts(text), 0
        while start < len(text):
            heading = self._heading(outline.titles(start))
            room = max(self.tokens - len(self.tokenizer.split(heading)) - _JOINTS * bool(heading), 1)
            first = bisect_left(tokens, start)
            last = min(first + room, len(tokens))
            high = min(tokens[last] if last < len(tokens) else len(text), start + room * _PER_TOKEN)
            next_heading = outline.next(tokens[min(first + room // 4, len(tokens)) - 1] if tokens else len(text), start)
            if next_heading <= high:
                end = next_heading
            else:
                end = high if high == len(text) else _break(text, start + (high - start) // 2, high)
            end = max(end, start + 1)
            if (span := strip(text, start, end)) is not None:
                yield span
            start = end

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

    def _checked(self, document: Document, outline: "_Outline", spans: Sequence[_Span]) -> Iterator[_Span]:
        """Yields the spans, but splits a span again if its text, when tokenized alone, has too many tokens."""
        for group in (spans[at : at + _GROUP] for at in range(0, len(spans), _GROUP)):
            texts = [self._input(document, outline, span) for span in group]
            with self.tokenizer.together(texts):
                counts = [len(self.tokenizer.split(text)) - self._prompt for text in texts]
            for (start, end), count in zip(group, counts, strict=True):
                if count <= self.tokens:
                    if count > 0 or self.tokenizer.pieces(document.text[start:end]):  # the tokenizer drops other texts
                        yield start, end
                    continue
                if end - start == 1:
                    raise InputError(
                        f"{document.text[start]!r} alone has {count} tokens, expected at most {self.tokens}"
                    )
                margin = max((end - start) // 4, 1)
                middle = _break(document.text, start + margin, end - margin)
                halves = strip(document.text, start, middle), strip(document.text, middle, end)
                yield from self._checked(document, outline, [half for half in halves if half])

    def _input(self, document: Document, outline: "_Outline", span: _Span) -> str:
        return self.prompt + self.embedded(document, Chunk(*span, outline.titles(span[0])))


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
