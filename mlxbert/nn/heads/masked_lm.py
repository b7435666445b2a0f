"""The masked-LM head. Shapes: D hidden size, V vocabulary."""

from dataclasses import dataclass

from mlxbert.config import EncoderConfig, HeadFacts, Transform
from mlxbert.machine.device import mx, nn
from mlxbert.nn.encoder import Encoder, EncoderOutput
from mlxbert.nn.heads.head import PRETRAINING, DenseTransform, HeadSpec
from mlxbert.nn.ops import Linear

_GELU = Transform("gelu", norm=True)


@dataclass(frozen=True)
class MaskedLMFacts(HeadFacts):
    """The settings in which families differ."""

    # The layers before the product with the word embeddings; `None` if there are none.
    transform: Transform | None = _GELU
    bias: bool = True  # whether the head's output has a bias for each token of the vocabulary
    tied: bool = True  # whether the decoder is the word embedding table; otherwise it has its own matrix


class MaskedLM(nn.Module):
    """Scores every token of the vocabulary."""

    def __init__(self, config: EncoderConfig, facts: MaskedLMFacts) -> None:
        super().__init__()
        if facts.transform is not None:
            self.transform = DenseTransform(config, facts.transform, config.embedding_size)
        if not facts.tied:
            self.decoder = Linear(config.embedding_size, config.vocab_size, bias=facts.bias)
        elif facts.bias:
            self.bias = mx.zeros(config.vocab_size)

    def __call__(self, output: EncoderOutput, encoder: Encoder) -> mx.array:
        """Hidden states (…, D) → logits (…, V).

        The product with the vocabulary is the model's most expensive product: first select tokens with
        `EncoderOutput.select`.
        """
        hidden = output.last_hidden_state
        hidden = self.transform(hidden) if "transform" in self else hidden
        if "decoder" in self:
            return self.decoder(hidden)
        logits = encoder.embeddings.word.as_linear(hidden)
        return logits + self.bias if "bias" in self else logits


def stems(bias: str, dense: str, norm: str) -> dict[str, str]:
    """The names of the head's layers in files; `bias` is the name of the layer that holds the output's bias."""
    return {"": bias, "transform.dense": dense, "transform.norm": norm}


SPEC = HeadSpec(
    module=MaskedLM,
    scope="vocabulary",
    class_names=("ForMaskedLM", PRETRAINING),
    facts=MaskedLMFacts(),
    stems=stems("cls.predictions", "cls.predictions.transform.dense", "cls.predictions.transform.LayerNorm"),
    task="fill-mask",
    title="masked-LM head",
    hint="google-bert/bert-base-uncased has one",
)
