"""Two texts: whether the second one follows the first (BERT), and whether they are in order (ALBERT)."""

from typing import ClassVar

from mlxbert.machine.device import mx
from mlxbert.nn.losses import cross_entropy
from mlxbert.pretraining.terms.term import Seen, Term


class PairTerm(Term):
    """The cross-entropy of a head over pairs."""

    def loss(self, seen: Seen) -> mx.array:
        """See `Term.loss`."""
        assert self.head is not None and seen.targets.labels is not None
        return cross_entropy(seen.network.logits(self.head, seen.output), seen.targets.labels)

    def right(self, seen: Seen) -> mx.array:
        """See `Term.right`."""
        assert self.head is not None and seen.targets.labels is not None
        found = seen.network.logits(self.head, seen.output).argmax(axis=-1)
        return (found == seen.targets.labels).sum().astype(mx.float32)


class NextSentence(PairTerm):
    """Next-sentence prediction (arXiv:1810.04805)."""

    name: ClassVar[str] = "nsp"
    head: ClassVar[str | None] = "next_sentence"


class SentenceOrder(PairTerm):
    """Sentence-order prediction (arXiv:1909.11942)."""

    name: ClassVar[str] = "sop"
    head: ClassVar[str | None] = "sentence_order"
