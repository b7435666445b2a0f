"""Tokenizes a long text in blocks, or only its beginning if the text is truncated."""

import re
from collections.abc import Callable, Iterator, Sequence
from itertools import chain, pairwise

from mlxbert.errors import InputError
from mlxbert.text.encoding import Pieces
from mlxbert.weights.tokenizers.library_guards import MAX_TOKEN

SIZE = 16384  # code points of a block, about a dozen windows
_MARGIN = MAX_TOKEN  # the number of following code points that may influence a token
_WORD = re.compile(r"(?<=\s)\S")
_SURROGATE = re.compile("[\ud800-\udfff]")
_PER_TOKEN = 6  # code points; usually fewer

Split = Callable[[str], Pieces]


def beginning(split: Split, text: str, count: int) -> Pieces:
    """Returns the tokens of a text; for a long text, at least the first `count + 1` tokens.

    A long text is truncated before it is tokenized. The tokens must be those of the full text, so only whole words that
    end far enough before the truncation are used. A pattern of the tokenizer that looks further ahead than that may
    still match differently.
    """
    size = max(SIZE, _PER_TOKEN * count)
    if not isinstance(text, str) or len(text) <= size:
        return split(text)
    check_letters(text)
    while size < len(text):
        pieces = split(text[:size])
        end = _certain(pieces, size - _MARGIN)
        if end > count:
            return pieces.slice(0, end)
        size *= 2
    return split(text)


def check_letters(text: str) -> None:
    """Raises an InputError if a text is not valid Unicode."""
    if _SURROGATE.search(text):
        raise InputError("the text contains half of a surrogate pair, which is not a character")


def check_words(text: str, limit: int) -> None:
    """Raises an InputError if a text has more than `limit` code points without a space that begins a word."""
    if len(text) > limit:
        starts = (match.start() for match in _WORD.finditer(text))
        if any(after - before > limit for before, after in pairwise(chain([0], starts, [len(text)]))):
            raise InputError(f"the text has more than {limit:,} characters without a space", hint="split the text")


def _certain(pieces: Pieces, limit: int) -> int:
    """Returns how many tokens of a truncated text are certainly those of the full text.

    These are the tokens of words that end at `limit` or earlier and are followed by another word.
    """
    end = next((place for place, (_, last) in enumerate(pieces.offsets) if last > limit), len(pieces) - 1)
    while end > 0 and pieces.words[end] == pieces.words[end - 1]:
        end -= 1
    return max(end, 0)


def words_between_spaces(text: str, offsets: Sequence[tuple[int, int]]) -> list[int | None]:
    """Returns the word number of each token, for words separated by spaces; a word includes the spaces before it."""
    words: list[int | None] = []
    word = before = 0
    for start, _ in offsets:
        word += start > before and text[start] == " " and text[start - 1] not in (" ", "\u2581")
        words.append(word)
        before = start
    return words


def has_more_tokens(split: Split, text: str, other: str) -> bool:
    """Whether a text has more tokens than another text. Stops as early as possible, because both may be long."""
    runs = token_blocks(split, text), token_blocks(split, other)
    counts = [0, 0]
    while True:
        fewer = int(counts[0] > counts[1])
        block = next(runs[fewer], None)
        if block is None:
            return fewer == 1
        counts[fewer] += len(block)


def token_blocks(split: Split, text: str, size: int = SIZE) -> Iterator[Pieces]:
    """Yields the tokens of a text, block by block; blocks begin with a space, so that splitting changes no tokens."""
    start = tokens = words = 0
    length = size
    while start < len(text):
        part = text[start : start + length]
        pieces = split(part)
        end, following = (len(pieces), len(part)) if start + length >= len(text) else _block_end(part, pieces)
        if not following:  # no place to end the block: try a longer one
            length *= 2
            continue
        length = size
        offsets = [(start + first, start + last) for first, last in pieces.offsets[:end]]
        numbers = [None if word is None else words + word for word in pieces.words[:end]]
        yield Pieces(pieces.ids[:end], offsets, numbers, before=tokens)
        tokens, start = tokens + end, start + following
        words = max((word + 1 for word in numbers if word is not None), default=words)


def _block_end(text: str, pieces: Pieces) -> tuple[int, int]:
    """Returns how many tokens and code points of a block precede the last space that begins a word.

    The rest is tokenized again as part of the next block, which begins with this space. Returns (0, 0) if there is no
    such space.
    """
    for token in range(len(pieces) - 1, 0, -1):
        start = pieces.offsets[token][0]
        start -= not text[start : start + 1].isspace()
        separate = pieces.words[token] != pieces.words[token - 1] and pieces.offsets[token - 1][1] <= start
        if separate and start > 0 and text[start].isspace():
            return token, start
    return 0, 0
