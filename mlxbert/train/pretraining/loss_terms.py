"""The losses of pre-training, and their common inputs.

Shapes: B examples, L length, M masked tokens of the batch (padded), D hidden size, V vocabulary size, W size of a
text's vector.
"""

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any, ClassVar

from mlxbert.machine.device import mx
from mlxbert.nn.embedder import Embedder
from mlxbert.nn.encoder import Batch, EncoderOutput
from mlxbert.nn.heads import Network
from mlxbert.nn.ops import backend
from mlxbert.train.nn.losses import cross_entropies, cross_entropy, soft_cross_entropies
from mlxbert.train.pretraining.examples import PretrainingExample


@dataclass(frozen=True)
class PretrainingTargets:
    """The targets of a batch."""

    rows: mx.array  # for each masked token, the number of its example in the batch, int32 (M,)
    columns: mx.array  # for each masked token, its position in the example, int32 (M,)
    originals: mx.array  # the original id of each masked token, int32 (M,)
    counted: mx.array  # 1 for each masked token, 0 for padding, float32 (M,)
    # Whether the second text of a pair follows the first (0) or not (1), int32 (B,); `None` without pairs.
    labels: mx.array | None
    clean: mx.array  # token ids before masking, int32 (B, L)
    # Two random numbers in [0, 1) per masked token, which decide the token that is sampled for it, float32 (M, 2);
    # `None` if nothing is sampled.
    draws: mx.array | None = None


@dataclass(frozen=True)
class Teacher:
    """A network in evaluation mode whose outputs the student learns, and its embedder if the student learns vectors."""

    network: Network
    embedder: Embedder | None


class TermInputs:
    """A batch and the outputs of the network for it. Each output is computed once and shared by all terms."""

    def __init__(
        self, network: Network, batch: Batch, targets: PretrainingTargets, teacher: Teacher | None = None
    ) -> None:
        self.network, self.batch, self.targets = network, batch, targets
        self._teacher = teacher

    @property
    def teacher(self) -> Teacher:
        assert self._teacher is not None  # only terms that learn from a teacher ask for it
        return self._teacher

    @cached_property
    def output(self) -> EncoderOutput:
        return self.network.encode(self.batch)

    @cached_property
    def words(self) -> mx.array:
        """The logits over the vocabulary at the masked positions, (M, V)."""
        return self.network.logits("masked_lm", self.output.select(self.targets.rows, self.targets.columns))

    @cached_property
    def teacher_output(self) -> EncoderOutput:
        """The output of the teacher's encoder for the same batch."""
        with backend().unfilled():
            return self.teacher.network.encode(self.batch)

    @cached_property
    def teacher_words(self) -> mx.array:
        """The teacher's logits over the vocabulary at the masked positions, (M, V)."""
        states = self.teacher_output.select(self.targets.rows, self.targets.columns)
        with backend().unfilled():
            return mx.stop_gradient(self.teacher.network.logits("masked_lm", states))

    @cached_property
    def vectors(self) -> mx.array:
        """The student's vectors of the texts, computed with the teacher's pooling, (B, W)."""
        assert self.teacher.embedder is not None
        return self.teacher.embedder(self.output)

    @cached_property
    def teacher_vectors(self) -> mx.array:
        """The teacher's vectors of the same texts without masks, (B, W)."""
        teacher = self.teacher
        assert teacher.embedder is not None
        with backend().unfilled():
            output = teacher.network.encode(replace(self.batch, input_ids=self.targets.clean))
        return mx.stop_gradient(teacher.embedder(output))


class Term(ABC):
    """A term of the training objective: one loss."""

    name: ClassVar[str]  # the name in options and events
    head: ClassVar[str | None] = None  # the head that the loss trains, if any
    of_teacher: ClassVar[bool] = False  # whether the loss learns from a teacher
    shares: ClassVar[tuple[str, ...]] = ()  # the names of the metrics that `counted` returns

    def total(self, examples: Sequence[PretrainingExample]) -> float:
        """Returns the divisor of the summed loss: by default the number of examples."""
        return len(examples)

    @abstractmethod
    def loss(self, inputs: TermInputs) -> mx.array:
        """Returns the loss summed over a batch, float32."""

    def right(self, inputs: TermInputs) -> mx.array | None:
        """Returns the number of correct predictions out of `total`, float32; `None` if the term predicts no classes."""
        return None

    def counted(self, inputs: TermInputs) -> Mapping[str, tuple[mx.array, mx.array]]:
        """Returns the numerator and the denominator of each metric in `shares`, float32."""
        return {}

    def settings(self) -> dict[str, Any]:
        """Returns the options of the term; a run can be resumed only with the same options."""
        return {}


class MaskedWords(Term):
    """The cross-entropy of masked tokens (arXiv:1810.04805); logits are computed only for masked tokens."""

    name: ClassVar[str] = "mlm"
    head: ClassVar[str | None] = "masked_lm"

    def total(self, examples: Sequence[PretrainingExample]) -> float:
        return sum(len(example.places) for example in examples)

    def loss(self, inputs: TermInputs) -> mx.array:
        return (cross_entropies(inputs.words, inputs.targets.originals) * inputs.targets.counted).sum()

    def right(self, inputs: TermInputs) -> mx.array:
        return ((inputs.words.argmax(axis=-1) == inputs.targets.originals) * inputs.targets.counted).sum()


class PairTerm(Term):
    """The cross-entropy of a head that classifies pairs."""

    def _pairs(self, inputs: TermInputs) -> tuple[mx.array, mx.array]:
        assert self.head is not None and inputs.targets.labels is not None
        return inputs.network.logits(self.head, inputs.output), inputs.targets.labels

    def loss(self, inputs: TermInputs) -> mx.array:
        return cross_entropy(*self._pairs(inputs))

    def right(self, inputs: TermInputs) -> mx.array:
        logits, labels = self._pairs(inputs)
        return (logits.argmax(axis=-1) == labels).sum().astype(mx.float32)


class NextSentenceTerm(PairTerm):
    """Next-sentence prediction (arXiv:1810.04805)."""

    name: ClassVar[str] = "nsp"
    head: ClassVar[str | None] = "next_sentence"


class SentenceOrderTerm(PairTerm):
    """Sentence-order prediction (arXiv:1909.11942)."""

    name: ClassVar[str] = "sop"
    head: ClassVar[str | None] = "sentence_order"


class SoftTargets(Term):
    """The divergence between the student's and the teacher's distributions at masked tokens (arXiv:1503.02531).

    A temperature softens both distributions. The loss is multiplied by the square of the temperature, so that
    gradients keep their size.
    """

    name: ClassVar[str] = "soft"
    head: ClassVar[str | None] = "masked_lm"
    of_teacher = True

    def __init__(self, temperature: float = 2.0) -> None:
        self._temperature = temperature

    def settings(self) -> dict[str, Any]:
        return {"temperature": self._temperature}

    def total(self, examples: Sequence[PretrainingExample]) -> float:
        """Returns the number of masked tokens."""
        return sum(len(example.places) for example in examples)

    def loss(self, inputs: TermInputs) -> mx.array:
        losses = soft_cross_entropies(inputs.words / self._temperature, inputs.teacher_words / self._temperature)
        return self._temperature**2 * (losses * inputs.targets.counted).sum()


class HiddenStates(Term):
    """One minus the cosine between the last hidden states of student and teacher, for all tokens (arXiv:1910.01108)."""

    name: ClassVar[str] = "hidden"
    of_teacher = True

    def total(self, examples: Sequence[PretrainingExample]) -> float:
        """Returns the number of tokens without padding."""
        return sum(map(len, examples))

    def loss(self, inputs: TermInputs) -> mx.array:
        distances = 1 - _cosines(inputs.output.last_hidden_state, inputs.teacher_output.last_hidden_state)
        mask = inputs.batch.attention_mask
        return (distances if mask is None else mx.where(mask, distances, 0.0)).sum()


class Vectors(Term):
    """One minus the cosine between the vectors of student and teacher for a text, which the teacher sees without masks.

    The lengths of the vectors are not learned, because vectors are later compared by their cosines.
    """

    name: ClassVar[str] = "vectors"
    of_teacher = True

    def loss(self, inputs: TermInputs) -> mx.array:
        return (1 - _cosines(inputs.vectors, inputs.teacher_vectors)).sum()


def _cosines(left: mx.array, right: mx.array) -> mx.array:
    """Returns the cosines between vectors: (…, D), (…, D) → (…), float32."""
    left, right = left.astype(mx.float32), right.astype(mx.float32)
    lengths = mx.sqrt(mx.square(left).sum(axis=-1) * mx.square(right).sum(axis=-1))
    return (left * right).sum(axis=-1) / mx.maximum(lengths, 1e-12)
