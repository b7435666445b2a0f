"""An input of the model as lists of tokens."""

from collections.abc import Sequence
from dataclasses import dataclass

# What stands around texts: (id, segment) of each special token, (None, segment) where the next text goes.
Template = list[tuple[int | None, int]]


@dataclass(frozen=True)
class Encoding:
    """One input of the model; all lists have one item per token, special tokens included.

    Attributes:
        ids: Rows of the vocabulary.
        token_type_ids: Segment of each token.
        offsets: `[start, end)` in code points of the text the token is from; (0, 0) for special tokens.
        word_ids: Number of the word within its text; `None` for special tokens.
        sequence_ids: 0 for the first text, 1 for the second; `None` for special tokens.
        positions: Where the token would stand in the input had nothing been cut; the token's own place otherwise.
        truncated: Whether the text goes on beyond this input.
    """

    ids: list[int]
    token_type_ids: list[int]
    offsets: list[tuple[int, int]]
    word_ids: list[int | None]
    sequence_ids: list[int | None]
    positions: list[int]
    truncated: bool

    def __len__(self) -> int:
        return len(self.ids)


@dataclass(frozen=True)
class Pieces:
    """A run of a text's tokens before anything stands around it: `before` it and `behind` it so many were cut off."""

    ids: list[int]
    offsets: list[tuple[int, int]]
    words: list[int | None]
    before: int = 0
    behind: int = 0

    def __len__(self) -> int:
        return len(self.ids)

    def cut(self, start: int, end: int) -> "Pieces":
        """The pieces from `start` up to `end`; what is left out is counted."""
        ids, offsets, words = self.ids[start:end], self.offsets[start:end], self.words[start:end]
        return Pieces(ids, offsets, words, self.before + start, self.behind + max(len(self) - end, 0))

    def then(self, other: "Pieces") -> "Pieces":
        """The pieces followed by others; places count from the others' own."""
        if not self.ids:
            return other
        return Pieces(
            self.ids + other.ids, self.offsets + other.offsets, self.words + other.words,
            other.before - len(self), other.behind,
        )  # fmt: skip


def assemble(template: Template, texts: Sequence[Pieces], *, truncated: bool) -> Encoding:
    """Puts the special tokens around one or two runs of pieces."""
    ids: list[int] = []
    segments: list[int] = []
    offsets: list[tuple[int, int]] = []
    words: list[int | None] = []
    sequences: list[int | None] = []
    positions: list[int] = []
    shift, number = 0, 0
    for special, segment in template:
        if special is not None:
            run, sequence = Pieces([special], [(0, 0)], [None]), None
        else:
            run, sequence, number = texts[number], number, number + 1
        shift += run.before
        positions += range(len(ids) + shift, len(ids) + shift + len(run))
        ids += run.ids
        offsets += run.offsets
        words += run.words
        segments += [segment] * len(run)
        sequences += [sequence] * len(run)
        shift += run.behind
    return Encoding(ids, segments, offsets, words, sequences, positions, truncated)
