"""What a loss of pre-training has to say, and what all of them see of a batch.

Shapes: B examples, L length, M hidden tokens of the batch, D hidden size, V vocabulary.
"""

from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any, ClassVar

from mlxbert.device import mx
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
    """

    rows: mx.array
    columns: mx.array
    originals: mx.array
    counted: mx.array
    labels: mx.array | None
    clean: mx.array


class Seen:
    """A batch and what the network computes of it, each once for all terms.

    Args:
        network: The network.
        inputs: The batch.
        targets: What is predicted.
    """

    def __init__(self, network: Network, inputs: Batch, targets: Targets) -> None:
        self.network, self.inputs, self.targets = network, inputs, targets

    @cached_property
    def output(self) -> EncoderOutput:
        """The output of the encoder."""
        return self.network(self.inputs.input_ids, self.inputs.attention_mask, self.inputs.token_type_ids)

    @cached_property
    def words(self) -> mx.array:
        """The scores of all words at the hidden places, (M, V)."""
        return self.network.logits("masked_lm", self.output.select(self.targets.rows, self.targets.columns))


class Term(ABC):
    """A loss.

    Attributes:
        name: Its name in options and events.
        head: The head that it trains; `None` for none of its own.
    """

    name: ClassVar[str]
    head: ClassVar[str | None] = None

    def total(self, examples: Sequence[Example]) -> float:
        """What the loss of some examples is divided by: their number, unless a term says otherwise."""
        return len(examples)

    @abstractmethod
    def loss(self, seen: Seen) -> mx.array:
        """The sum of the losses of a batch, float32."""

    def right(self, seen: Seen) -> mx.array | None:
        """How many of the things that `total` counts are predicted correctly, float32; `None` where nothing is."""
        return None

    def settings(self) -> dict[str, Any]:
        """Its own options: with others, a run cannot resume."""
        return {}
