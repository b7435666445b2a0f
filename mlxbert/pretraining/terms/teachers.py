"""What a student learns from a teacher: its scores of hidden words, its hidden states, its vectors of texts.

Shapes: B examples, L length, M hidden tokens of the batch, D hidden size, V vocabulary, W size of a vector.
"""

from collections.abc import Sequence
from typing import Any, ClassVar

from mlxbert.machine.device import mx
from mlxbert.nn.losses import soft_cross_entropies
from mlxbert.pretraining.examples import Example
from mlxbert.pretraining.terms.term import Seen, Term


class SoftTargets(Term):
    """The divergence of the student's distribution over hidden words from the teacher's (arXiv:1503.02531).

    Both are softened by a temperature, whose square is a factor, so that gradients keep their size.
    """

    name: ClassVar[str] = "soft"
    head: ClassVar[str | None] = "masked_lm"
    of_teacher = True

    def __init__(self, temperature: float = 2.0) -> None:
        self._temperature = temperature

    def settings(self) -> dict[str, Any]:
        """See `Term.settings`."""
        return {"temperature": self._temperature}

    def total(self, examples: Sequence[Example]) -> float:
        """The hidden tokens."""
        return sum(len(example.places) for example in examples)

    def loss(self, seen: Seen) -> mx.array:
        """See `Term.loss`."""
        found = soft_cross_entropies(seen.words / self._temperature, seen.teacher_words / self._temperature)
        return self._temperature**2 * (found * seen.targets.counted).sum()


class HiddenStates(Term):
    """One minus the cosine of the last hidden states of all tokens (arXiv:1910.01108)."""

    name: ClassVar[str] = "hidden"
    of_teacher = True

    def total(self, examples: Sequence[Example]) -> float:
        """All tokens."""
        return sum(map(len, examples))

    def loss(self, seen: Seen) -> mx.array:
        """See `Term.loss`."""
        far = 1 - _cosines(seen.output.last_hidden_state, seen.teacher_output.last_hidden_state)
        mask = seen.inputs.attention_mask
        return (far if mask is None else mx.where(mask, far, 0.0)).sum()


class Vectors(Term):
    """One minus the cosine of the vectors that both make of a text, which the teacher sees with nothing hidden.

    The cosine is what vectors are used for: their lengths may change.
    """

    name: ClassVar[str] = "vectors"
    of_teacher = True

    def loss(self, seen: Seen) -> mx.array:
        """See `Term.loss`."""
        return (1 - _cosines(seen.vectors, seen.teacher_vectors)).sum()


def _cosines(one: mx.array, other: mx.array) -> mx.array:
    """(…, D) and (…, D) to (…), float32."""
    one, other = one.astype(mx.float32), other.astype(mx.float32)
    lengths = mx.sqrt(mx.square(one).sum(axis=-1) * mx.square(other).sum(axis=-1))
    return (one * other).sum(axis=-1) / mx.maximum(lengths, 1e-12)
