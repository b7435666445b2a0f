"""ELECTRA's replaced-token-detection head (arXiv:2003.10555)."""

from mlxbert.config import EncoderConfig, HeadFacts, Transform
from mlxbert.machine.device import mx
from mlxbert.nn.encoder import Encoder, EncoderOutput
from mlxbert.nn.heads.head import PRETRAINING, HeadSpec, TokenHead


class Discriminator(TokenHead):
    """Scores each token: whether it replaces the original token."""

    def __init__(self, config: EncoderConfig, facts: HeadFacts) -> None:
        super().__init__(config, facts, 1)

    def __call__(self, output: EncoderOutput, encoder: Encoder) -> mx.array:
        """Hidden states (…, D) → logits (…), positive for a replaced token."""
        return super().__call__(output, encoder).squeeze(-1)


SPEC = HeadSpec(
    module=Discriminator,
    scope="token",
    class_names=(PRETRAINING,),
    facts=HeadFacts(Transform("gelu")),
    stems={
        "transform.dense": "discriminator_predictions.dense",
        "out": "discriminator_predictions.dense_prediction",
    },
    task="replaced",
    title="replaced-token-detection head",
    hint="google/electra-small-discriminator has one",
)
