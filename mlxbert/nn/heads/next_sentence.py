"""The next-sentence head. Shapes: B batch."""

from mlxbert.config import EncoderConfig, HeadFacts
from mlxbert.machine.device import mx, nn
from mlxbert.nn.dropout import KeyedDropout
from mlxbert.nn.encoder import Encoder, EncoderOutput
from mlxbert.nn.heads.head import PRETRAINING, HeadSpec, pooled
from mlxbert.nn.ops import Linear


class SentenceOrderHead(nn.Module):
    """Scores whether the second of two texts follows the first: class 0 means that it does."""

    def __init__(self, config: EncoderConfig, facts: HeadFacts) -> None:
        super().__init__()
        self.dense = Linear(config.hidden_size, 2)
        self.dropout = KeyedDropout(facts.dropout)

    def __call__(self, output: EncoderOutput, encoder: Encoder) -> mx.array:
        """Computes logits (B, 2) from the pooler's output."""
        return self.dense(self.dropout(pooled(output)))


SPEC = HeadSpec(
    module=SentenceOrderHead,
    scope="text",
    class_names=("ForNextSentencePrediction", PRETRAINING),
    stems={"dense": "cls.seq_relationship"},
    pooler=lambda facts, labels: True,
    task="next-sentence",
    title="next-sentence head",
    hint="google-bert/bert-base-uncased has one",
)
