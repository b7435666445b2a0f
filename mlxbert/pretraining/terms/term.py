"""What a loss of pre-training has to say, and what all of them see of a batch.

Shapes: B examples, L length, M hidden tokens of the batch, D hidden size, V vocabulary.
"""

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any, ClassVar

from mlxbert.machine.device import mx
from mlxbert.nn.embedder import Embedder
from mlxbert.nn.encoder import Batch, EncoderOutput
from mlxbert.nn.heads import Network
from mlxbert.pretraining.examples import Example


@dataclass(frozen=True)
class Targets:
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
    """A model whose outputs are learned.

    Attributes:
        network: Its network, in evaluation mode.
        embedder: How it makes vectors; `None` where nobody learns them.
    """

    network: Network
    embedder: Embedder | None


class Seen:
    """A batch and what the network computes of it, each once for all terms.

    Args:
        network: The network.
        inputs: The batch.
        targets: What is predicted.
        teacher: A model whose outputs are learned, if there is one.
    """

    def __init__(self, network: Network, inputs: Batch, targets: Targets, teacher: "Teacher | None" = None) -> None:
        self.network, self.inputs, self.targets, self._teacher = network, inputs, targets, teacher

    @cached_property
    def output(self) -> EncoderOutput:
        """The output of the encoder."""
        return self.network(self.inputs.input_ids, self.inputs.attention_mask, self.inputs.token_type_ids)

    @cached_property
    def words(self) -> mx.array:
        """The scores of all words at the hidden places, (M, V)."""
        return self.network.logits("masked_lm", self.output.select(self.targets.rows, self.targets.columns))

    @property
    def teacher(self) -> "Teacher":
        """The teacher."""
        assert self._teacher is not None
        return self._teacher

    @cached_property
    def teacher_output(self) -> EncoderOutput:
        """The output of the teacher's encoder, for the same batch."""
        return self.teacher.network(self.inputs.input_ids, self.inputs.attention_mask, self.inputs.token_type_ids)

    @cached_property
    def teacher_words(self) -> mx.array:
        """The teacher's scores of all words at the hidden places, (M, V)."""
        chosen = self.teacher_output.select(self.targets.rows, self.targets.columns)
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
        output = teacher.network(self.targets.clean, self.inputs.attention_mask, self.inputs.token_type_ids)
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

    def total(self, examples: Sequence[Example]) -> float:
        """What the loss of some examples is divided by: their number, unless a term says otherwise."""
        return len(examples)

    @abstractmethod
    def loss(self, seen: Seen) -> mx.array:
        """The sum of the losses of a batch, float32."""

    def right(self, seen: Seen) -> mx.array | None:
        """How many of the things that `total` counts are predicted correctly, float32; `None` where nothing is."""
        return None

    def counted(self, seen: Seen) -> Mapping[str, tuple[mx.array, mx.array]]:
        """Metrics that are shares, by the names in `shares`: how many, and of how many, float32."""
        return {}

    def settings(self) -> dict[str, Any]:
        """Its own options: with others, a run cannot resume."""
        return {}
