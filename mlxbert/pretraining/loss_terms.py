"""The losses of pre-training, and what all of them see of a batch.

Shapes: B examples, L length, M hidden tokens of the batch, D hidden size, V vocabulary, W size of a vector.
"""

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any, ClassVar

from mlxbert.machine.device import mx
from mlxbert.nn import ops
from mlxbert.nn.embedder import Embedder
from mlxbert.nn.encoder import Batch, EncoderOutput
from mlxbert.nn.heads import Network
from mlxbert.nn.losses import cross_entropies, cross_entropy, soft_cross_entropies
from mlxbert.pretraining.examples import PretrainingExample


@dataclass(frozen=True)
class PretrainingTargets:
    """What is predicted in a batch.

    Attributes:
        rows: The example of each hidden token, int32 (M,).
        columns: Its place there, int32 (M,).
        originals: The token that was hidden, int32 (M,).
        counted: 1 for each; 0 for those that only fill up the number, float32 (M,).
        labels: Of pairs, whether the second text follows the first (0) or not (1), int32 (B,); `None` for single texts.
        clean: Token ids without hiding, int32 (B, L).
        draws: Two numbers from 0 to less than 1 that decide the sample at each hidden token, float32 (M, 2); `None`
            where nothing is sampled.
    """

    rows: mx.array
    columns: mx.array
    originals: mx.array
    counted: mx.array
    labels: mx.array | None
    clean: mx.array
    draws: mx.array | None = None


@dataclass(frozen=True)
class Teacher:
    """A network in evaluation mode whose outputs are learned, and how it makes vectors, where these are learned."""

    network: Network
    embedder: Embedder | None


class TermInputs:
    """A batch and what the network computes of it, each once for all terms."""

    def __init__(
        self, network: Network, batch: Batch, targets: PretrainingTargets, teacher: Teacher | None = None
    ) -> None:
        self.network, self.batch, self.targets, self._teacher = network, batch, targets, teacher

    @cached_property
    def output(self) -> EncoderOutput:
        """The output of the encoder."""
        return self.network.encode(self.batch)

    @cached_property
    def words(self) -> mx.array:
        """The scores of all words at the hidden places, (M, V)."""
        return self.network.logits("masked_lm", self.output.select(self.targets.rows, self.targets.columns))

    @property
    def teacher(self) -> Teacher:
        """The teacher."""
        assert self._teacher is not None
        return self._teacher

    @cached_property
    def teacher_output(self) -> EncoderOutput:
        """The output of the teacher's encoder, for the same batch."""
        with ops.unfilled():
            return self.teacher.network.encode(self.batch)

    @cached_property
    def teacher_words(self) -> mx.array:
        """The teacher's scores of all words at the hidden places, (M, V)."""
        chosen = self.teacher_output.select(self.targets.rows, self.targets.columns)
        with ops.unfilled():
            return mx.stop_gradient(self.teacher.network.logits("masked_lm", chosen))

    @cached_property
    def vectors(self) -> mx.array:
        """The vectors of the texts, pooled as the teacher pools, (B, W)."""
        assert self.teacher.embedder is not None
        return self.teacher.embedder(self.output)

    @cached_property
    def teacher_vectors(self) -> mx.array:
        """The teacher's vectors of the texts with nothing hidden, (B, W)."""
        teacher = self.teacher
        assert teacher.embedder is not None
        with ops.unfilled():
            output = teacher.network.encode(replace(self.batch, input_ids=self.targets.clean))
        return mx.stop_gradient(teacher.embedder(output))


class Term(ABC):
    """A loss.

    Attributes:
        name: Its name in options and events.
        head: The head that it trains; `None` for none of its own.
        of_teacher: Whether it learns from a teacher.
        shares: The names of the metrics that `counted` gives.
    """

    name: ClassVar[str]
    head: ClassVar[str | None] = None
    of_teacher: ClassVar[bool] = False
    shares: ClassVar[tuple[str, ...]] = ()

    def total(self, examples: Sequence[PretrainingExample]) -> float:
        """What the loss of some examples is divided by: their number, unless a term says otherwise."""
        return len(examples)

    @abstractmethod
    def loss(self, inputs: TermInputs) -> mx.array:
        """The sum of the losses of a batch, float32."""

    def right(self, inputs: TermInputs) -> mx.array | None:
        """How many of the things that `total` counts are predicted correctly, float32; `None` where nothing is."""
        return None

    def counted(self, inputs: TermInputs) -> Mapping[str, tuple[mx.array, mx.array]]:
        """Metrics that are shares, by the names in `shares`: how many, and of how many, float32."""
        return {}

    def settings(self) -> dict[str, Any]:
        """Its own options: with others, a run cannot resume."""
        return {}


class MaskedWords(Term):
    """The cross-entropy of hidden tokens (arXiv:1810.04805); only they meet the vocabulary."""

    name: ClassVar[str] = "mlm"
    head: ClassVar[str | None] = "masked_lm"

    def total(self, examples: Sequence[PretrainingExample]) -> float:
        """The hidden tokens."""
        return sum(len(example.places) for example in examples)

    def loss(self, inputs: TermInputs) -> mx.array:
        """See `Term.loss`."""
        return (cross_entropies(inputs.words, inputs.targets.originals) * inputs.targets.counted).sum()

    def right(self, inputs: TermInputs) -> mx.array:
        """See `Term.right`."""
        return ((inputs.words.argmax(axis=-1) == inputs.targets.originals) * inputs.targets.counted).sum()


class PairTerm(Term):
    """The cross-entropy of a head over pairs."""

    def loss(self, inputs: TermInputs) -> mx.array:
        """See `Term.loss`."""
        assert self.head is not None and inputs.targets.labels is not None
        return cross_entropy(inputs.network.logits(self.head, inputs.output), inputs.targets.labels)

    def right(self, inputs: TermInputs) -> mx.array:
        """See `Term.right`."""
        assert self.head is not None and inputs.targets.labels is not None
        found = inputs.network.logits(self.head, inputs.output).argmax(axis=-1)
        return (found == inputs.targets.labels).sum().astype(mx.float32)


class NextSentenceTerm(PairTerm):
    """Next-sentence prediction (arXiv:1810.04805)."""

    name: ClassVar[str] = "nsp"
    head: ClassVar[str | None] = "next_sentence"


class SentenceOrderTerm(PairTerm):
    """Sentence-order prediction (arXiv:1909.11942)."""

    name: ClassVar[str] = "sop"
    head: ClassVar[str | None] = "sentence_order"


class SoftTargets(Term):
    """The divergence of the student's distribution over masked tokens from the teacher's (arXiv:1503.02531).

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

    def total(self, examples: Sequence[PretrainingExample]) -> float:
        """The hidden tokens."""
        return sum(len(example.places) for example in examples)

    def loss(self, inputs: TermInputs) -> mx.array:
        """See `Term.loss`."""
        found = soft_cross_entropies(inputs.words / self._temperature, inputs.teacher_words / self._temperature)
        return self._temperature**2 * (found * inputs.targets.counted).sum()


class HiddenStates(Term):
    """One minus the cosine of the last hidden states of all tokens (arXiv:1910.01108)."""

    name: ClassVar[str] = "hidden"
    of_teacher = True

    def total(self, examples: Sequence[PretrainingExample]) -> float:
        """All tokens."""
        return sum(map(len, examples))

    def loss(self, inputs: TermInputs) -> mx.array:
        """See `Term.loss`."""
        far = 1 - _cosines(inputs.output.last_hidden_state, inputs.teacher_output.last_hidden_state)
        mask = inputs.batch.attention_mask
        return (far if mask is None else mx.where(mask, far, 0.0)).sum()


class Vectors(Term):
    """One minus the cosine of the vectors that both make of a text, which the teacher sees with nothing hidden.

    The cosine is what vectors are used for: their lengths may change.
    """

    name: ClassVar[str] = "vectors"
    of_teacher = True

    def loss(self, inputs: TermInputs) -> mx.array:
        """See `Term.loss`."""
        return (1 - _cosines(inputs.vectors, inputs.teacher_vectors)).sum()


def _cosines(one: mx.array, other: mx.array) -> mx.array:
    """(…, D) and (…, D) to (…), float32."""
    one, other = one.astype(mx.float32), other.astype(mx.float32)
    lengths = mx.sqrt(mx.square(one).sum(axis=-1) * mx.square(other).sum(axis=-1))
    return (one * other).sum(axis=-1) / mx.maximum(lengths, 1e-12)
