"""Masks 15 % of the tokens as in BERT: 80 % of these become the mask token, 10 % another token, and 10 % stay.

Shapes: N tokens of a text, M masked tokens.
"""

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

Ids = NDArray[np.int32]
Flags = NDArray[np.bool_]
Draws = NDArray[np.float32]
_MASKED, _REPLACED = 0.8, 0.1  # of the masked tokens


@dataclass(frozen=True)
class Masking:
    """The rule by which tokens are masked."""

    mask: int  # the id of the mask token
    words: Ids  # the ids that random replacements are drawn from: all ids except special tokens
    share: float = 0.15  # the share of tokens that are masked
    whole_words: bool = False  # whether all tokens of a word are masked together
    all_masked: bool = False  # whether every masked token becomes the mask token, as in ELECTRA's generator

    def apply(self, ids: Ids, continues: Flags, usable: Flags, rng: np.random.Generator) -> tuple[Ids, Ids]:
        """Masks some of the `usable` tokens of a text, which are all but the special tokens.

        Returns:
            The positions of the masked tokens in order, (M,), and the ids of all tokens after masking, (N,).
        """
        places = self._words(continues, usable, rng) if self.whole_words else self._tokens(usable, rng)
        masked = ids.copy()
        if self.all_masked:
            masked[places] = self.mask
            return places, masked
        random = rng.random(len(places))
        masked[places[random < _MASKED]] = self.mask
        other = places[(random >= _MASKED) & (random < _MASKED + _REPLACED)]
        masked[other] = self.words[rng.integers(len(self.words), size=len(other))]
        return places, masked

    def _count(self, tokens: int, rng: np.random.Generator) -> int:
        """Returns how many tokens to mask. The number is rounded at random, so that the average share is right."""
        return int(self.share * tokens + rng.random())

    def _tokens(self, usable: Flags, rng: np.random.Generator) -> Ids:
        places = np.flatnonzero(usable).astype(np.int32)
        return np.sort(rng.permutation(places)[: self._count(len(places), rng)])

    def _words(self, continues: Flags, usable: Flags, rng: np.random.Generator) -> Ids:
        """Returns the positions of the tokens of randomly drawn words.

        The last word is included or not at random, so that the average share of masked tokens is right.
        """
        places = np.flatnonzero(usable).astype(np.int32)
        if not len(places):
            return places
        begins = ~continues[places]
        begins[0] = True
        begins[1:] |= np.diff(places) > 1  # a special token is between them
        word = np.cumsum(begins) - 1
        sizes = np.bincount(word)
        order = rng.permutation(len(sizes))
        filled = np.cumsum(sizes[order])
        target = self.share * len(places)
        full = int(np.searchsorted(filled, target, "right"))
        before = filled[full - 1] if full else 0
        last = full < len(order) and rng.random() < (target - before) / sizes[order[full]]
        chosen = np.zeros(len(sizes), bool)
        chosen[order[: full + last]] = True
        return places[chosen[word]]
