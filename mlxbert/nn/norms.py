"""The norms of an encoder."""

from mlxbert.config import EncoderConfig
from mlxbert.nn.ops import LayerNorm, RMSNorm

Norm = LayerNorm | RMSNorm


def build_norm(config: EncoderConfig, width: int | None = None) -> Norm:
    """Builds a norm of the model's kind, with the model's eps and bias; `width` defaults to the hidden size."""
    width = width or config.hidden_size
    if config.norm == "layer":
        return LayerNorm(width, eps=config.layer_norm_eps, bias=config.biases.norm)
    return RMSNorm(width, eps=config.layer_norm_eps, plus_one=config.norm == "rms_plus_one")
