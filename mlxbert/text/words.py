"""Splits a plain text into words as in the training data of taggers, and finds the word that each token belongs to."""

import re
import unicodedata
from collections.abc import Iterable, Iterator
from itertools import pairwise

Span = tuple[int, int]  # [start, end) in code points

# Scripts without spaces between words, where the tokens of a vocabulary are the closest thing to words.
UNSPACED = re.compile(
    "[\u0e00-\u0eff\u1000-\u109f\u1780-\u17ff\u3001-\u30ff\u3400-\u9fff\uf900-\ufaff\U00020000-\U0003ffff"
    "\uff01-\uff0f\uff1a-\uff20\uff3b-\uff40\uff5b-\uff65]"  # and their punctuation
)
# Brackets, quotes, dashes and the like also separate words without a space; a comma does, except in 10,000.
_SEPARATORS = re.compile('[][(){}<>"\u201c\u201d\u201e\u00ab\u00bb;\u2013\u2014\u2026]|,(?!\\d)')
_ATTACHED = ("Mn", "Mc", "Me", "Cf", "Sk")  # marks, joiners and skin tones belong to the character before
_ELISION = re.compile("[^\\W\\d_]{1,5}['\u2019](?!t\\b)(?=\\w)")  # l'Italie, dell'arte
_CLITIC = re.compile("['\u2019](s|re|ve|ll|d|m)$", re.IGNORECASE)
_INVISIBLE = "\u200b\u200e\u200f\u2060\ufeff"  # zero-width space, marks of direction, byte-order mark
_INITIALS = re.compile(r"(?:[^\W\d_]\.)+")  # U.N., J.: the last period belongs to the word
_PART_OF_NAME = "@#_"  # before a name: @user, #topic
_LONGEST = 100  # characters of a word; the windows of a longer run, such as DNA, would each walk back to its start


def split_words(text: str) -> Iterator[Span]:
    """Splits a text at spaces; punctuation at the ends of words is split off, as are `'s` and `l'`.

    In scripts without spaces, every character is a word. If a token has several of these characters, they are joined
    into one word (see `words_of_tokens`).
    """
    return (span for chunk in re.finditer(r"\S+", text) for span in _chunk_words(text, *chunk.span()))


def _chunk_words(text: str, start: int, end: int) -> Iterator[Span]:
    core = start
    while core < end and _is_mark(text, core, end):
        core = _mark_end(text, core, end)
    yield from _marks(text, start, core)
    tail = end
    while tail > core and (_is_mark(text, tail - 1, end) or _is_attached(text, tail - 1)):
        tail -= 1
    while tail < end and not _is_mark(text, tail, end):  # marks and joiners of the word itself
        tail += 1
    if _INITIALS.fullmatch(text, core, min(tail + 1, end)):
        tail += 1
    yield from _core_words(text, core, tail)
    yield from _marks(text, tail, end)


def _core_words(text: str, start: int, end: int) -> Iterator[Span]:
    """Splits a run of characters into words; the run neither begins nor ends with punctuation."""
    cuts = {start, end}
    clitic = _CLITIC.search(text, start, end)
    elided = _ELISION.match(text, start, end if clitic is None else clitic.start())
    if clitic is not None:
        cuts.add(clitic.start())
    if elided is not None and elided[0].islower():
        cuts.add(elided.end())
    for pattern in (UNSPACED, _SEPARATORS):
        cuts |= {cut for match in pattern.finditer(text, start, end) for cut in match.span()}
    yield from pairwise(sorted(cut for cut in cuts if cut in (start, end) or not _is_attached(text, cut)))


def _marks(text: str, start: int, end: int) -> Iterator[Span]:
    """Yields runs of the same punctuation character or symbol, together with the characters attached to it."""
    while start < end:
        following = _mark_end(text, start, end)
        yield start, following
        start = following


def _mark_end(text: str, start: int, end: int) -> int:
    place = start + 1
    while place < end and (text[place] == text[start] or _is_attached(text, place) or text[place - 1] == "\u200d"):
        place += 1
    return place


def _is_mark(text: str, place: int, end: int) -> bool:
    """Whether a character is punctuation or a symbol, rather than part of a name or attached to another character."""
    named = text[place] in _PART_OF_NAME and place + 1 < end and text[place + 1].isalnum()
    return unicodedata.category(text[place])[0] in "PS" and not named and not _is_attached(text, place)


def _is_attached(text: str, place: int) -> bool:
    return unicodedata.category(text[place]) in _ATTACHED and text[place] not in "^`"


def words_of_tokens(text: str, tokens: Iterable[Span], words: Iterable[Span]) -> Iterator[tuple[int, Span] | None]:
    """Finds the word that each token belongs to: the word in which the token begins after its leading spaces.

    Yields:
        For each token, the number and the span of its word; `None` if the token is blank, or outside of all words.
    """
    following = enumerate(words)
    word, after = None, next(following, None)
    for start, end in (trimmed(text, span) for span in tokens):
        while after is not None and after[1][0] <= start < end:
            word, after = after, next(following, None)
        yield word if word is not None and word[1][0] <= start < min(end, word[1][1]) else None


def trimmed(text: str, span: Span) -> Span:
    """Strips spaces and invisible marks from the ends of a span; the tokens of some vocabularies include spaces."""
    start, end = span
    while start < end and _is_blank(text[start]):
        start += 1
    while end > start and _is_blank(text[end - 1]):
        end -= 1
    return start, end


def whole_spans(text: str, tokens: Iterable[str], spans: Iterable[Span], trims: int) -> Iterator[Span]:
    """Gives byte-level tokens their first letters back, which the library takes for the spaces at their start.

    The library removes one character for each space, but the tokenizer itself may have put the space there.

    Args:
        spans: The offsets of the tokens according to the library, in order.
        trims: How many steps of the tokenizer remove a character for each space.
    """
    before = 0
    for token, (start, end) in zip(tokens, spans, strict=True):
        if start > before and not text[start - 1].isspace():
            first = max(start - trims * (len(token) - len(token.lstrip("\u0120"))), before)
            while start > first and not text[start - 1].isspace():
                start -= 1
        yield start, end
        before = end


def word_starts(text: str, places: Iterable[int]) -> Iterator[int]:
    """Moves places in the middle of letters, digits and their marks to the start of these; keeps all other places.

    Unlike the words of `split_words`, "1990-1995" has two parts. A place moves by at most `_LONGEST` characters, or to
    where the place before it moved.

    Args:
        places: Places in the text, in ascending order; the time is linear in the distance from the first to the
            last.
    """
    before = moved = -1
    for place in places:
        start = place
        while start not in (0, before, place - _LONGEST) and _is_within(text, start):
            start -= 1
        before, moved = place, moved if start == before else start
        yield moved


def _is_within(text: str, place: int) -> bool:
    """Whether a place is in the middle of letters; every character of a script without spaces is a word."""
    return _is_attached(text, place) or all(
        _is_attached(text, at) and text[at] not in _INVISIBLE
        if not text[at].isalnum()
        else not UNSPACED.match(text, at)
        for at in (place - 1, place)
    )


def _is_blank(letter: str) -> bool:
    return letter.isspace() or letter in _INVISIBLE
