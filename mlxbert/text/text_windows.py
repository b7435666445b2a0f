"""Windows over a text of any size, tokenized one block at a time, so that memory does not grow with the text."""

from collections.abc import Iterator

from mlxbert.errors import InputError
from mlxbert.text.encoding import Encoding, Pieces
from mlxbert.text.token_blocks import SIZE, check_letters, check_words, token_blocks
from mlxbert.text.tokenizer import Tokenizer


def text_windows(tokenizer: Tokenizer, text: str, *, stride: int, size: int = SIZE) -> Iterator[Encoding]:
    """Yields the windows that `Tokenizer.windows` returns, without tokenizing the whole text first.

    The only difference is the value in `positions` for the special token at the end of each window, because the text's
    length is not known yet. `size` code points are tokenized at a time, or more if they contain no space.
    """
    check_letters(text)  # before the first block, since an error must come before the first window
    check_words(text, tokenizer.growth.max_text // 2)
    room = tokenizer.room(1)
    if room <= stride:
        raise InputError(f"windows of {room} tokens cannot overlap by {stride} tokens")
    run, start = Pieces([], [], []), 0
    for block in token_blocks(tokenizer.split, text, size):
        run, start = run.slice(start, len(run)).then(block), 0
        while len(run) - start > room:
            yield tokenizer.assemble([run.slice(start, start + room)], truncated=True)
            start += room - stride
    yield tokenizer.assemble([run.slice(start, len(run))], truncated=False)


def pair_blocks(
    tokenizer: Tokenizer, fixed: str, text: str, *, stride: int, size: int = SIZE
) -> Iterator[tuple[int, list[Encoding]]]:
    """Encodes a pair whose second text may have any length, `size` code points of that text at a time.

    The windows are those of the whole text, except that the first window of a block begins with a whole word. Each
    block starts where the last window of the previous block would have been.

    Yields:
        The start of each block, and the block's windows, whose offsets count from that start.
    """
    check_letters(text)  # before the first block, since an error must come before the first window
    start = 0
    while True:
        end = _end(text, start, size)
        encodings = tokenizer.windows(fixed, text[start:end], stride=stride)
        if end == len(text):
            yield start, encodings
            return
        if len(encodings) < 3:  # the next block would hardly begin later
            size *= 2
            continue
        yield start, encodings[:-1]
        begin = _word_start(encodings[-2], encodings[-1])
        # Includes the space before the word: some vocabularies tokenize a word that follows a space differently.
        start += begin - 1 if text[start + begin - 1].isspace() else begin


def _end(text: str, start: int, size: int) -> int:
    """Returns the end of a block of up to `size` code points: after the last whitespace in its second half, if any."""
    if start + size >= len(text):
        return len(text)
    spaces = (place + 1 for place in range(start + size - 1, start + size // 2, -1) if text[place].isspace())
    return next(spaces, start + size)


def _word_start(before: Encoding, window: Encoding) -> int:
    """Returns the offset at which the first word of a window begins.

    The word may begin in the window `before`; the first token of that window is not considered.
    """
    token = window.sequence_ids.index(1)
    first_word, (start, _) = window.word_ids[token], window.offsets[token]
    second = before.sequence_ids.index(1) + 1
    tokens = zip(before.sequence_ids[second:], before.word_ids[second:], before.offsets[second:], strict=True)
    same = (span[0] for text, word, span in tokens if text == 1 and word == first_word and first_word is not None)
    return min([start, *same])
