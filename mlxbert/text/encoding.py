"""A model input, as lists with one item per token."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

# The special tokens around texts: (id, segment) of each special token, (None, segment) in place of each text.
Template = list[tuple[int | None, int]]
_PER_TOKEN = {"ids", "token_type_ids", "offsets", "word_ids", "sequence_ids", "positions"}  # lists of an `Encoding`


@dataclass(frozen=True)
class Encoding:
    """One input of the model; all lists have one item per token, special tokens included."""

    ids: list[int]  # token ids
    token_type_ids: list[int]  # the segment of each token
    offsets: list[tuple[int, int]]  # `[start, end)` in code points of the token's text; (0, 0) for special tokens
    word_ids: list[int | None]  # the index of the word within its text; `None` for special tokens
    sequence_ids: list[int | None]  # 0 for the first text, 1 for the second; `None` for special tokens
    # The index that each token would have if nothing were truncated. If a truncated text has more than 16,384 code
    # points, the positions of the tokens after it count only the beginning of the text.
    positions: list[int]
    truncated: bool  # whether the text continues after this input
    dropped: int = 0  # the number of unknown tokens that were left out (see `without`)
    # In an input that is made of labels and words, the index of the first token of each word (-1 for a word without
    # tokens), and the index of the token before each label.
    labelled_words: tuple[list[int], list[int]] | None = None
    # The number of tokens at the end that no token attends to. They attend to the others.
    unattended: int = 0

    def __len__(self) -> int:
        return len(self.ids)

    def without(self, number: int) -> "Encoding":
        """Leaves out all tokens with the id `number`; the other tokens keep their positions."""
        kept = [place for place, token in enumerate(self.ids) if token != number]
        if len(kept) == len(self.ids):
            return self
        lists: Any = {name: [vars(self)[name][place] for place in kept] for name in _PER_TOKEN}
        return replace(self, dropped=len(self.ids) - len(kept), **lists)


@dataclass(frozen=True)
class Pieces:
    """A slice of a text's tokens, without special tokens."""

    ids: list[int]  # token ids
    offsets: list[tuple[int, int]]  # `[start, end)` of each token in code points of the text
    words: list[int | None]  # the index of each token's word within the text
    before: int = 0  # the number of tokens that were removed before the slice
    after: int = 0  # the number of tokens that were removed after the slice

    def __len__(self) -> int:
        return len(self.ids)

    def slice(self, start: int, end: int) -> "Pieces":
        """Returns the tokens from `start` up to `end`, and counts the removed ones in `before` and `after`."""
        ids, offsets, words = self.ids[start:end], self.offsets[start:end], self.words[start:end]
        return Pieces(ids, offsets, words, self.before + start, self.after + max(len(self) - end, 0))

    def then(self, other: "Pieces") -> "Pieces":
        """Concatenates two slices; `before` is chosen so that the tokens of the second slice keep their positions."""
        if not self.ids:
            return other
        return Pieces(
            self.ids + other.ids, self.offsets + other.offsets, self.words + other.words,
            other.before - len(self), other.after,
        )  # fmt: skip


def starts_around(places: Sequence[int], room: int, length: int) -> list[int]:
    """Returns, for each token at one of the indices `places`, the start of a slice of `room` tokens that contains it.

    Neighbouring tokens may share a slice (see `Tokenizer.around`).
    """
    last = max(length - room, 0)
    starts: list[int] = []
    for place in places:
        if not starts or (starts[-1] < last and place >= starts[-1] + room - room // 4):
            starts.append(min(max(place - room // 2, 0), last))
        else:
            starts.append(starts[-1])
    return starts


def assemble(template: Template, texts: Sequence[Pieces], *, truncated: bool) -> Encoding:
    """Adds the special tokens to one or two slices of tokens."""
    ids: list[int] = []
    segments: list[int] = []
    offsets: list[tuple[int, int]] = []
    words: list[int | None] = []
    sequences: list[int | None] = []
    positions: list[int] = []
    shift, following = 0, enumerate(texts)
    for special, segment in template:
        number, run = next(following) if special is None else (None, Pieces([special], [(0, 0)], [None]))
        shift += run.before
        positions += range(len(ids) + shift, len(ids) + shift + len(run))
        ids += run.ids
        offsets += run.offsets
        words += run.words
        segments += [segment] * len(run)
        sequences += [number] * len(run)
        shift += run.after
    return Encoding(ids, segments, offsets, words, sequences, positions, truncated)
