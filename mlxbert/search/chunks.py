"""Documents in chunks that a model takes whole."""

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

_TOKENS = 256  # of a chunk: longer ones are about too much
_FEWEST = 8
_JOINTS = 2  # tokens by which a text may be longer than its parts, where these meet
_PER_TOKEN = 16  # the most characters: a word of any length, or what the vocabulary has nothing for, is one token
_LEVELS = 8  # headings over a chunk
_SPACE = re.compile(r"\s+")
_BREAKS = (BLANK_LINE, re.compile(r"\n\s*"), SENTENCE, _SPACE)  # the best first
_TOGETHER = 64  # chunks that are tokenized at once

_Span = tuple[int, int]


@dataclass(frozen=True, slots=True)
class Chunk:
    """A part of a document.

    Attributes:
        start: Its first character; there is no space at its ends.
        end: The character after its last one.
        titles: The document's title and the headings over its start, the outermost first.
        first_line: The line of the file that it begins on, if its document knows.
        last_line: The line that it ends on.
        page: The page that it begins on, from 1.
    """

    start: int
    end: int
    titles: tuple[str, ...] = ()
    first_line: int | None = None
    last_line: int | None = None
    page: int | None = None


class Splitter:
    """Splits documents into chunks: before headings, else behind a paragraph, a line, a sentence, or a word.

    Every word is in one chunk, and the model need not truncate one. A section that is shorter than a quarter of a chunk
    shares one with what follows it.

    Args:
        tokenizer: That of the model.
        tokens: The most tokens of a chunk with its titles; `None`: 256, or as many as the model takes.
        prompt: What the model wants in front of a text.
        titles: Whether titles are embedded with a chunk.
    """

    def __init__(
        self, tokenizer: Tokenizer, *, tokens: int | None = None, prompt: str = "", titles: bool = True
    ) -> None:
        self._prompt = len(tokenizer.split(prompt))
        room = tokenizer.room(1) - self._prompt
        self.tokens = min(room, _TOKENS) if tokens is None else tokens
        if type(self.tokens) is not int or not _FEWEST <= self.tokens <= room:
            raise ArgumentError(f"tokens is {self.tokens!r:.60}, expected {_FEWEST} to {room}, the room of the model")
        self.tokenizer, self.prompt, self.titles = tokenizer, prompt, titles
        self._last: tuple[tuple[str, ...], str] = (), ""

    def __call__(self, document: Document) -> list[Chunk]:
        """The chunks of a document, in its order."""
        check_letters(document.text)
        outline = _Outline(document)
        spans = self._checked(document, outline, [*self._spans(document.text, outline)])
        found, line, place = list[Chunk](), document.first_line, 0
        for start, end in spans:
            last = None
            if line is not None:
                line += document.text.count("\n", place, start)
                last = line + document.text.count("\n", start, end)
            page = max(bisect_right(document.pages, start), 1) if document.pages else None
            found.append(Chunk(start, end, outline.titles(start), line, last, page))
            place = start
        return found

    def embedded(self, document: Document, chunk: Chunk) -> str:
        """What is embedded of a chunk: its titles on a line, and its text; without the prompt."""
        return self._heading(chunk.titles) + document.text[chunk.start : chunk.end]

    def _heading(self, titles: tuple[str, ...]) -> str:
        """The line of titles, shortened to a quarter of the room."""
        if not self.titles or not titles:
            return ""
        if (last := self._last)[0] == titles:  # read once: another thread may replace it
            return last[1]
        most = self.tokens // 4
        whole = " > ".join(titles)
        cut = whole[: most * _PER_TOKEN]
        pieces = self.tokenizer.split(cut)
        if len(pieces) > most or len(cut) < len(whole):
            cut = cut[: pieces.offsets[most][0]] if len(pieces) > most else cut
            cut = cut.rpartition(" ")[0].rstrip(" >")
        line = f"{cut}\n" if cut else ""
        self._last = titles, line
        return line

    def _spans(self, text: str, outline: "_Outline") -> Iterator[_Span]:
        """The parts of a text, by the tokens of the whole."""
        tokens, start = self._token_starts(text), 0
        while start < len(text):
            heading = self._heading(outline.titles(start))
            room = max(self.tokens - len(self.tokenizer.split(heading)) - _JOINTS * bool(heading), 1)
            first = bisect_left(tokens, start)
            last = min(first + room, len(tokens))
            high = min(tokens[last] if last < len(tokens) else len(text), start + room * _PER_TOKEN)
            anew = outline.next(tokens[min(first + room // 4, len(tokens)) - 1] if tokens else len(text), start)
            if anew <= high:
                end = anew
            else:
                end = high if high == len(text) else _break(text, start + (high - start) // 2, high)
            end = max(end, start + 1)
            if (span := strip(text, start, end)) is not None:
                yield span
            start = end

    def _token_starts(self, text: str) -> "array[int]":
        """Where each token begins, about: a long word may be cut."""
        blocks, start = list[_Span](), 0
        while start < len(text):
            end = min(start + SIZE, len(text))
            end = end if end == len(text) else _break(text, start + SIZE // 2, end)
            blocks.append((start, end))
            start = end
        found = array("Q")
        for some in (blocks[at : at + 8] for at in range(0, len(blocks), 8)):
            with self.tokenizer.together([text[start:end] for start, end in some]):
                for start, end in some:
                    found.extend(start + first for first, _ in self.tokenizer.split(text[start:end]).offsets)
        return array("Q", accumulate(found, max))

    def _checked(self, document: Document, outline: "_Outline", spans: Sequence[_Span]) -> Iterator[_Span]:
        """The same spans; those whose text has too many tokens when it stands alone are cut again."""
        for some in (spans[at : at + _TOGETHER] for at in range(0, len(spans), _TOGETHER)):
            texts = [self._input(document, outline, span) for span in some]
            with self.tokenizer.together(texts):
                counts = [len(self.tokenizer.split(text)) - self._prompt for text in texts]
            for (start, end), count in zip(some, counts, strict=True):
                if count <= self.tokens:
                    if count > 0 or self.tokenizer.pieces(document.text[start:end]):  # else all of it is dropped
                        yield start, end
                    continue
                if end - start == 1:
                    raise InputError(f"{document.text[start]!r} alone has {count} tokens, expected {self.tokens}")
                least = max((end - start) // 4, 1)
                middle = _break(document.text, start + least, end - least)
                halves = strip(document.text, start, middle), strip(document.text, middle, end)
                yield from self._checked(document, outline, [half for half in halves if half])

    def _input(self, document: Document, outline: "_Outline", span: _Span) -> str:
        return self.prompt + self.embedded(document, Chunk(*span, outline.titles(span[0])))


class _Outline:
    """The headings of a document."""

    def __init__(self, document: Document) -> None:
        self._title = (document.title,) if document.title else ()
        self._headings = document.headings
        self._starts = [heading.start for heading in document.headings]
        self._over: list[int] = []  # the heading over each, or -1
        for place, heading in enumerate(document.headings):
            over = place - 1
            while over >= 0 and document.headings[over].level >= heading.level:
                over = self._over[over]
            self._over.append(over)

    def titles(self, start: int) -> tuple[str, ...]:
        """The document's title and the headings over a character, the outermost first; none twice."""
        found, place = list[str](), bisect_right(self._starts, start) - 1
        while place >= 0 and len(found) < _LEVELS:
            found.append(self._headings[place].text)
            place = self._over[place]
        return tuple(dict.fromkeys(title for title in (*self._title, *reversed(found)) if title))

    def next(self, behind: int, start: int) -> int:
        """Where the first heading behind a character begins, and behind the start of a chunk."""
        place = bisect_right(self._starts, max(behind, start))
        return self._starts[place] if place < len(self._starts) else 2**63


def _break(text: str, low: int, high: int) -> int:
    """Where a text is best cut between two characters; at the second, in a word, if it has to be."""
    for pattern in _BREAKS:
        if ends := [found.end() for found in pattern.finditer(text, low, high)]:
            return ends[-1]
    return high
