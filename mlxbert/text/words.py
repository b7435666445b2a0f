"""Which tokens make up which words of a text."""

from collections.abc import Sequence
from dataclasses import dataclass

from mlxbert.text.encoding import Encoding
from mlxbert.text.stitch import best_windows


@dataclass(frozen=True)
class Piece:
    """A token of a word.

    Attributes:
        place: Its index in its window.
        word: The number of the word.
        first: Whether it is the first token of the word.
        best: Whether this window is the one in which the token has most context.
    """

    place: int
    word: int
    first: bool
    best: bool


def find_pieces(windows: Sequence[Encoding], words: Sequence[tuple[int, int]]) -> list[list[Piece]]:
    """The tokens of words, for each window; a token belongs to the word in which it starts.

    Whitespace that a token begins with does not count. Tokens between words are left out. Not every word has a token:
    tokenizers drop some characters, and a token may span two words.

    Args:
        windows: The windows of a text.
        words: `[start, end)` of each word in code points of the text, one after the other.
    """
    best = best_windows(windows)
    owners = _owners([windows[window].offsets[place] for window, place in best], words)
    chosen, shift = {*best}, best[0][1] if best else 0  # the special tokens before the text
    found: list[list[Piece]] = []
    for number, window in enumerate(windows):
        places = [place for place, text in enumerate(window.sequence_ids) if text == 0]
        owned = [(place, owners[window.positions[place] - shift]) for place in places]
        found.append([Piece(place, *owner, (number, place) in chosen) for place, owner in owned if owner is not None])
    return found


def _owners(offsets: Sequence[tuple[int, int]], words: Sequence[tuple[int, int]]) -> list[tuple[int, bool] | None]:
    """The word of each token of the whole text, and whether it is the first of that word."""
    found: list[tuple[int, bool] | None] = []
    word, last = 0, -1
    for start, end in offsets:
        while word < len(words) and words[word][1] <= start:
            word += 1
        if word == len(words) or end <= max(start, words[word][0]):
            found.append(None)
            continue
        found.append((word, word != last))
        last = word
    return found
