"""The layers of an encoder: attention, feed-forward, and how a block puts them together.

Shapes: B batch, L length, D hidden size, H heads, I intermediate size.
"""

import math
from dataclasses import dataclass
from typing import assert_never

from mlxbert import kernels
from mlxbert.activations import activate, check_activation
from mlxbert.config import EncoderConfig, PostNorm
from mlxbert.device import mx, nn, on_gpu


@dataclass(frozen=True)
class Context:
    """What all layers share in one forward pass.

    Attributes:
        mask: bool (B, 1, 1, L), true at real tokens; `None` when nothing is padded. Bool, so that it can neither
            promote a half-precision model to float32 nor overflow in it.
        output_attentions: Whether layers also give their attention weights.
    """

    mask: mx.array | None
    output_attentions: bool = False


class SelfAttention(nn.Module):
    """Multi-head attention of a sequence to itself, with the output projection."""

    def __init__(self, config: EncoderConfig) -> None:
        super().__init__()
        width = config.hidden_size
        self.query = nn.Linear(width, width)
        self.key = nn.Linear(width, width)
        self.value = nn.Linear(width, width)
        self.output = nn.Linear(width, width)
        self.num_heads = config.num_attention_heads
        self.scale = 1 / math.sqrt(config.head_size)
        self.dropout = nn.Dropout(config.attention_dropout)
        self.drops = config.attention_dropout > 0

    def _split(self, x: mx.array) -> mx.array:
        return x.reshape(*x.shape[:2], self.num_heads, -1).transpose(0, 2, 1, 3)

    def _weights(self, q: mx.array, k: mx.array, mask: mx.array | None) -> mx.array:
        scores = (q * self.scale) @ k.swapaxes(-1, -2)
        if mask is not None:
            scores = mx.where(mask, scores, mx.finfo(scores.dtype).min)
        return mx.softmax(scores, axis=-1, precise=True)

    def __call__(self, x: mx.array, context: Context) -> tuple[mx.array, mx.array | None]:
        """(B, L, D) → (B, L, D), and the weights (B, H, L, L) if asked for.

        The weights are a lazy array beside the fused kernel: who asks for them but does not use them pays nothing.
        """
        q, k, v = (self._split(project(x)) for project in (self.query, self.key, self.value))
        drops = self.training and self.drops
        weights = self._weights(q, k, context.mask) if drops or context.output_attentions else None
        if drops and weights is not None:  # the fused kernel knows no dropout
            mixed = self.dropout(weights) @ v
        elif on_gpu():
            mixed = mx.fast.scaled_dot_product_attention(q, k, v, scale=self.scale, mask=context.mask)
        else:
            mixed = kernels.attention(q, k, v, self.scale, context.mask)
        merged = mixed.transpose(0, 2, 1, 3).reshape(x.shape)
        return self.output(merged), weights if context.output_attentions else None


class FeedForward(nn.Module):
    """Two dense layers with an activation between them."""

    def __init__(self, config: EncoderConfig) -> None:
        super().__init__()
        self.up = nn.Linear(config.hidden_size, config.intermediate_size)
        self.down = nn.Linear(config.intermediate_size, config.hidden_size)
        self.activation = check_activation(config.hidden_act)

    def __call__(self, x: mx.array) -> mx.array:
        """(B, L, D) → (B, L, D)."""
        return self.down(activate(self.activation, self.up(x)))


class PostNormBlock(nn.Module):
    """Attention, add, norm, feed-forward, add, norm."""

    def __init__(self, config: EncoderConfig) -> None:
        super().__init__()
        self.attention = SelfAttention(config)
        self.attention_norm = nn.LayerNorm(config.hidden_size, eps=config.layer_norm_eps)
        self.feed_forward = FeedForward(config)
        self.feed_forward_norm = nn.LayerNorm(config.hidden_size, eps=config.layer_norm_eps)
        self.dropout = nn.Dropout(config.hidden_dropout)

    def __call__(self, x: mx.array, context: Context) -> tuple[mx.array, mx.array | None]:
        """(B, L, D) → (B, L, D), and the attention weights if asked for."""
        attended, weights = self.attention(x, context)
        x = self.attention_norm(x + self.dropout(attended))
        return self.feed_forward_norm(x + self.dropout(self.feed_forward(x))), weights


def build_block(config: EncoderConfig) -> PostNormBlock:
    """The layer that `config.block` names."""
    match config.block:
        case PostNorm():
            return PostNormBlock(config)
        case _:
            assert_never(config.block)
