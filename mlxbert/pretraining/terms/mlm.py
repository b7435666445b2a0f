"""Hidden words (arXiv:1810.04805)."""

from collections.abc import Sequence
from typing import ClassVar

from mlxbert.machine.device import mx
from mlxbert.nn.losses import cross_entropies
from mlxbert.pretraining.examples import Example
from mlxbert.pretraining.terms.term import Seen, Term


class MaskedWords(Term):
    """The cross-entropy of hidden tokens; only they meet the vocabulary."""

    name: ClassVar[str] = "mlm"
    head: ClassVar[str | None] = "masked_lm"

    def total(self, examples: Sequence[Example]) -> float:
        """The hidden tokens."""
        return sum(len(example.places) for example in examples)

    def loss(self, seen: Seen) -> mx.array:
        """See `Term.loss`."""
        return (cross_entropies(seen.words, seen.targets.originals) * seen.targets.counted).sum()

    def right(self, seen: Seen) -> mx.array:
        """See `Term.right`."""
        return ((seen.words.argmax(axis=-1) == seen.targets.originals) * seen.targets.counted).sum()
