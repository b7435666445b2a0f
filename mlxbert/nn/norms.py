"""The norms of an encoder."""

from mlxbert.config import EncoderConfig
from mlxbert.nn.ops import LayerNorm, RMSNorm

Norm = LayerNorm | RMSNorm


def build_norm(config: EncoderConfig, width: int | None = None) -> Norm:
    """A norm of the model's kind, with its eps and bias, of the hidden size or of `width`."""
    width = width or config.hidden_size
    if config.norm == "layer":
        return LayerNorm(width, eps=config.layer_norm_eps, bias=config.biases.norm)
    return RMSNorm(width, eps=config.layer_norm_eps, plus_one=config.norm == "rms_plus_one")
