"""The blocks of an encoder: attention and feed-forward with norms and residual connections.

Shapes: B batch, L length, D hidden size, I intermediate size.
"""

from typing import assert_never

from mlxbert.config import Convolution, EncoderConfig, PostNorm, PreNorm
from mlxbert.machine.device import mx, nn
from mlxbert.nn import ops
from mlxbert.nn.activations import check_activation
from mlxbert.nn.attention import build_attention
from mlxbert.nn.dropout import Dropout
from mlxbert.nn.ops import LayerNorm, Linear
from mlxbert.nn.positions import Context


def layer_norm(config: EncoderConfig, width: int | None = None) -> LayerNorm:
    """A norm with the model's eps and bias, of the hidden size or of `width`."""
    return LayerNorm(width or config.hidden_size, eps=config.layer_norm_eps, bias=config.biases.norm)


class FeedForward(nn.Module):
    """Two dense layers with an activation in between, optionally gated (GLU)."""

    def __init__(self, config: EncoderConfig) -> None:
        super().__init__()
        self.up = Linear(config.hidden_size, config.intermediate_size, bias=config.biases.up)
        if config.gated:
            self.gate = Linear(config.hidden_size, config.intermediate_size, bias=config.biases.up)
        self.down = Linear(config.intermediate_size, config.hidden_size, bias=config.biases.down)
        self.activation = check_activation(config.hidden_act)
        self.dropout = Dropout(config.dropout.activation)

    def __call__(self, x: mx.array) -> mx.array:
        """(B, L, D) → (B, L, D)."""
        inner = ops.activated(self.activation, self.gate if "gate" in self else self.up, x)
        return self.down(self.dropout(inner * self.up(x) if "gate" in self else inner))


class PostNormBlock(nn.Module):
    """Attention, add, norm, feed-forward, add, norm."""

    def __init__(self, config: EncoderConfig, layer: int) -> None:
        super().__init__()
        self.attention = build_attention(config, layer)
        self.attention_norm = layer_norm(config)
        self.feed_forward = FeedForward(config)
        self.feed_forward_norm = layer_norm(config)
        self.attention_dropout = Dropout(config.dropout.attention_output)
        self.feed_forward_dropout = Dropout(config.dropout.feed_forward)

    def __call__(self, x: mx.array, context: Context) -> tuple[mx.array, mx.array | None]:
        """(B, L, D) → (B, L, D), and the attention weights if asked for."""
        attended, weights = self.attention(x, context)
        x = self.attention_norm(x + self.attention_dropout(attended))
        return self.feed_forward_norm(x + self.feed_forward_dropout(self.feed_forward(x))), weights


class PreNormBlock(nn.Module):
    """Norm, attention, add, norm, feed-forward, add; the first has no attention norm, as its input is normalized."""

    def __init__(self, config: EncoderConfig, layer: int) -> None:
        super().__init__()
        if layer:
            self.attention_norm = layer_norm(config)
        self.attention = build_attention(config, layer)
        self.feed_forward_norm = layer_norm(config)
        self.feed_forward = FeedForward(config)
        self.attention_dropout = Dropout(config.dropout.attention_output)
        self.feed_forward_dropout = Dropout(config.dropout.feed_forward)

    def __call__(self, x: mx.array, context: Context) -> tuple[mx.array, mx.array | None]:
        """(B, L, D) → (B, L, D), and the attention weights if asked for."""
        attended, weights = self.attention(self.attention_norm(x) if "attention_norm" in self else x, context)
        x = x + self.attention_dropout(attended)
        return x + self.feed_forward_dropout(self.feed_forward(self.feed_forward_norm(x))), weights


class EmbeddingConvolution(nn.Module):
    """A convolution over the embeddings, added to the output of the first layer."""

    def __init__(self, config: EncoderConfig, convolution: Convolution) -> None:
        super().__init__()
        width, kernel = config.hidden_size, convolution.kernel_size
        self.conv = nn.Conv1d(width, width, kernel, padding=kernel // 2, groups=convolution.groups)
        self.norm = layer_norm(config)
        self.activation = check_activation(convolution.activation)
        self.dropout = Dropout(config.dropout.convolution)

    def __call__(self, embedded: mx.array, x: mx.array, mask: mx.array | None) -> mx.array:
        """Embeddings and the output of the first layer, both (B, L, D) → (B, L, D)."""
        if mask is not None:  # padding must not leak into its neighbours
            embedded = mx.where(mask[:, 0, 0, :, None], embedded, 0)
        return self.norm(x + ops.activate(self.activation, self.dropout(self.conv(embedded))))


def build_block(config: EncoderConfig, layer: int) -> PostNormBlock | PreNormBlock:
    """The stored layer number `layer`, of the class that `config.block` needs."""
    match config.block:
        case PostNorm():
            return PostNormBlock(config, layer)
        case PreNorm():
            return PreNormBlock(config, layer)
        case _:
            assert_never(config.block)
