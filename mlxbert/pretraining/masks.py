"""Which tokens are hidden: 15 % of them, of which 80 % become the mask, 10 % another token, 10 % stay (BERT's rule).

Shapes: N tokens of a text, M hidden ones.
"""

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

Ids = NDArray[np.int32]
Flags = NDArray[np.bool_]
Draws = NDArray[np.float32]
_MASKED, _REPLACED = 0.8, 0.1  # of the hidden tokens


@dataclass(frozen=True)
class Masking:
    """How tokens are hidden.

    Attributes:
        mask: The id of the mask token.
        words: The ids that may replace others: all but special tokens.
        share: The share of tokens that are hidden.
        whole_words: Whether all tokens of a word are hidden together.
        all_masked: Whether every hidden token becomes the mask, as ELECTRA's generator has it.
    """

    mask: int
    words: Ids
    share: float = 0.15
    whole_words: bool = False
    all_masked: bool = False

    def apply(self, ids: Ids, continues: Flags, usable: Flags, rng: np.random.Generator) -> tuple[Ids, Ids]:
        """Hides tokens of a text; special tokens are not `usable`.

        Returns:
            The places of the hidden tokens in order, (M,), and the ids with them hidden, (N,).
        """
        places = self._words(continues, usable, rng) if self.whole_words else self._tokens(usable, rng)
        hidden = ids.copy()
        if self.all_masked:
            hidden[places] = self.mask
            return places, hidden
        drawn = rng.random(len(places))
        hidden[places[drawn < _MASKED]] = self.mask
        other = places[(drawn >= _MASKED) & (drawn < _MASKED + _REPLACED)]
        hidden[other] = self.words[rng.integers(len(self.words), size=len(other))]
        return places, hidden

    def _count(self, tokens: int, rng: np.random.Generator) -> int:
        """How many tokens: rounded at random, so that the share is right on average in short texts, too."""
        return int(self.share * tokens + rng.random())

    def _tokens(self, usable: Flags, rng: np.random.Generator) -> Ids:
        places = np.flatnonzero(usable).astype(np.int32)
        return np.sort(rng.permutation(places)[: self._count(len(places), rng)])

    def _words(self, continues: Flags, usable: Flags, rng: np.random.Generator) -> Ids:
        """Words in random order until there are enough tokens; the last one with the chance that keeps the share."""
        places = np.flatnonzero(usable).astype(np.int32)
        if not len(places):
            return places
        begins = ~continues[places]
        begins[0] = True
        begins[1:] |= np.diff(places) > 1  # a special token is between both
        word = np.cumsum(begins) - 1
        sizes = np.bincount(word)
        order = rng.permutation(len(sizes))
        filled = np.cumsum(sizes[order])
        wanted = self.share * len(places)
        full = int(np.searchsorted(filled, wanted, "right"))
        before = filled[full - 1] if full else 0
        last = full < len(order) and rng.random() < (wanted - before) / sizes[order[full]]
        chosen = np.zeros(len(sizes), bool)
        chosen[order[: full + last]] = True
        return places[chosen[word]]
