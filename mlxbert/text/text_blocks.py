"""Windows over a text of any size, a block of it at a time, so that memory does not grow with the text."""

from collections.abc import Iterator

from mlxbert.errors import InputError
from mlxbert.text.encoding import Encoding, Pieces
from mlxbert.text.long_texts import SIZE, check_letters, check_words, token_blocks
from mlxbert.text.tokenizer import Tokenizer


def text_windows(tokenizer: Tokenizer, text: str, *, stride: int, size: int = SIZE) -> Iterator[Encoding]:
    """The windows of a text, those of `Tokenizer.windows`, each made when it is asked for.

    Only the position of the special token behind each window is another one: how long the text is, is not known there.
    `size` code points are tokenized at a time; more where that many have no space among them.
    """
    check_letters(text)  # before the first block: after it, it would be too late for an error
    check_words(text, tokenizer.growth.max_text // 2)
    room = tokenizer.room(1)
    if room <= stride:
        raise InputError(f"windows of {room} tokens cannot overlap by {stride}")
    run, at = Pieces([], [], []), 0
    for block in token_blocks(tokenizer.split, text, size):
        run, at = run.slice(at, len(run)).then(block), 0
        while len(run) - at > room:
            yield tokenizer.assemble([run.slice(at, at + room)], truncated=True)
            at += room - stride
    yield tokenizer.assemble([run.slice(at, len(run))], truncated=False)


def pair_blocks(
    tokenizer: Tokenizer, fixed: str, text: str, *, stride: int, size: int = SIZE
) -> Iterator[tuple[int, list[Encoding]]]:
    """Encodes a pair whose second text may have any length.

    The windows are those of the whole text, except that the first one of a block of `size` code points begins with a
    whole word: a block begins with what would have been the last window of the one before.

    Yields:
        Where the block begins, and its windows; their offsets count from there.
    """
    check_letters(text)  # before the first block: after it, it would be too late for an error
    start = 0
    while True:
        end = _end(text, start, size)
        found = tokenizer.windows(fixed, text[start:end], stride=stride)
        if end == len(text):
            yield start, found
            return
        if len(found) < 3:  # the next block would hardly begin later
            size *= 2
            continue
        yield start, found[:-1]
        begin = _word_start(found[-2], found[-1])
        # The space in front: some vocabularies tokenize a word that follows a space differently.
        start += begin - 1 if text[start + begin - 1].isspace() else begin


def _end(text: str, start: int, size: int) -> int:
    """Where a block ends: after whitespace, if there is some in its second half."""
    if start + size >= len(text):
        return len(text)
    spaces = (place + 1 for place in range(start + size - 1, start + size // 2, -1) if text[place].isspace())
    return next(spaces, start + size)


def _word_start(before: Encoding, window: Encoding) -> int:
    """Where the first word of a window begins, if that is within the window before, after its first token."""
    token = window.sequence_ids.index(1)
    word, (start, _) = window.word_ids[token], window.offsets[token]
    second = before.sequence_ids.index(1) + 1
    same = zip(before.sequence_ids[second:], before.word_ids[second:], before.offsets[second:], strict=True)
    return min([start, *(place[0] for text, found, place in same if text == 1 and found == word and word is not None)])
