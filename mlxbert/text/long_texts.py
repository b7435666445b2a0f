"""A long text, tokenized in parts: its beginning alone where it is truncated, or one block after the other."""

import re
from collections.abc import Callable, Iterator, Sequence
from itertools import chain, pairwise

from mlxbert.errors import InputError
from mlxbert.text.encoding import Pieces
from mlxbert.weights.tokenizers.library_guards import MAX_TOKEN

SIZE = 16384  # code points of a block: a dozen windows
_MARGIN = MAX_TOKEN  # code points from a token on that may have an influence on it
_WORD = re.compile(r"(?<=\s)\S")
_SURROGATE = re.compile("[\ud800-\udfff]")
_PER_TOKEN = 6  # code points, usually fewer

Split = Callable[[str], Pieces]


def beginning(split: Split, text: str, count: int) -> Pieces:
    """The tokens of a text; of a long one at least the first `count + 1`, which are those of the whole text.

    Only whole words are used, and only those far enough from where the text was cut. A pattern that looks further ahead
    than that may find something else in the whole text.
    """
    size = max(SIZE, _PER_TOKEN * count)
    if not isinstance(text, str) or len(text) <= size:
        return split(text)
    check_letters(text)
    while size < len(text):
        found = split(text[:size])
        end = _certain(found, size - _MARGIN)
        if end > count:
            return found.slice(0, end)
        size *= 2
    return split(text)


def check_letters(text: str) -> None:
    """Refuses a text that is not valid Unicode."""
    if _SURROGATE.search(text):
        raise InputError("the text contains half of a surrogate pair, which is not a character")


def check_words(text: str, most: int) -> None:
    """Refuses a text in which there is not a word, with a space in front, in every `most` code points."""
    if len(text) > most:
        starts = (found.start() for found in _WORD.finditer(text))
        if any(after - before > most for before, after in pairwise(chain([0], starts, [len(text)]))):
            raise InputError(f"the text has more than {most:,} characters without a space", hint="split the text")


def _certain(found: Pieces, most: int) -> int:
    """How many tokens are those of words that end at `most` or before, and that another word follows."""
    end = next((place for place, (_, last) in enumerate(found.offsets) if last > most), len(found) - 1)
    while end > 0 and found.words[end] == found.words[end - 1]:
        end -= 1
    return max(end, 0)


def words_between_spaces(text: str, offsets: Sequence[tuple[int, int]]) -> list[int | None]:
    """The word of each token, where a word is what follows a space, with the spaces in front of it."""
    words: list[int | None] = []
    word = before = 0
    for start, _ in offsets:
        word += start > before and text[start] == " " and text[start - 1] not in (" ", "\u2581")
        words.append(word)
        before = start
    return words


def has_more_tokens(split: Split, text: str, other: str) -> bool:
    """Whether a text has more tokens than another one; both may be long."""
    runs = token_blocks(split, text), token_blocks(split, other)
    counts = [0, 0]
    while True:
        fewer = int(counts[0] > counts[1])
        block = next(runs[fewer], None)
        if block is None:
            return fewer == 1
        counts[fewer] += len(block)


def token_blocks(split: Split, text: str, size: int = SIZE) -> Iterator[Pieces]:
    """The tokens of a text in order; each block begins with a space, so that its tokens are those of the whole text."""
    start = tokens = words = 0
    length = size
    while start < len(text):
        part = text[start : start + length]
        found = split(part)
        end, following = (len(found), len(part)) if start + length >= len(text) else _cut(part, found)
        if not following:  # no place to cut: a longer block
            length *= 2
            continue
        length = size
        offsets = [(start + first, start + last) for first, last in found.offsets[:end]]
        numbers = [None if word is None else words + word for word in found.words[:end]]
        yield Pieces(found.ids[:end], offsets, numbers, before=tokens)
        tokens, start = tokens + end, start + following
        words = max((word + 1 for word in numbers if word is not None), default=words)


def _cut(text: str, found: Pieces) -> tuple[int, int]:
    """Where a block may end: before its last word with a space in front; how many tokens, and code points, that is.

    What follows is tokenized again as part of the next block, which begins with this space; (0, 0) without such a word.
    """
    for token in range(len(found) - 1, 0, -1):
        start = found.offsets[token][0]
        start -= not text[start : start + 1].isspace()
        apart = found.words[token] != found.words[token - 1] and found.offsets[token - 1][1] <= start
        if apart and start > 0 and text[start].isspace():
            return token, start
    return 0, 0
