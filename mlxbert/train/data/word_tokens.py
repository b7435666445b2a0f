"""The tokens of words, found in the windows of a text."""

from collections.abc import Sequence
from dataclasses import dataclass

from mlxbert.text.encoding import Encoding
from mlxbert.text.window_stitching import best_windows
from mlxbert.text.words import Span, words_of_tokens


@dataclass(frozen=True)
class WordToken:
    """A token that belongs to a word."""

    place: int  # the index of the token in its window
    word: int  # the number of the word
    first: bool  # whether it is the word's first token
    best: bool  # whether the token has more context in this window than in any other


def find_pieces(text: str, windows: Sequence[Encoding], words: Sequence[Span]) -> list[list[WordToken]]:
    """Returns, for each window, the tokens that belong to words (see `words_of_tokens`).

    Not every word has a token: tokenizers drop some characters, and a token may span two words.
    """
    best = best_windows(windows)
    token_words = words_of_tokens(text, (windows[window].offsets[place] for window, place in best), words)
    owners = [None if word is None else word[0] for word in token_words]
    firsts, last = [], -1
    for owner in owners:
        firsts.append(owner is not None and owner != last)
        last = last if owner is None else owner
    chosen, shift = {*best}, best[0][1] if best else 0  # the number of special tokens before the text
    pieces: list[list[WordToken]] = []
    for number, window in enumerate(windows):
        places = [place for place, text in enumerate(window.sequence_ids) if text == 0]
        tokens = [(place, window.positions[place] - shift) for place in places]
        pieces.append(
            [
                WordToken(place, owner, firsts[token], (number, place) in chosen)
                for place, token in tokens
                if (owner := owners[token]) is not None
            ]
        )
    return pieces
