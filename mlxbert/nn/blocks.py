"""The blocks of an encoder: attention and feed-forward with norms and residual connections.

Shapes: B batch, L length, D hidden size, I intermediate size.
"""

from typing import assert_never

from mlxbert.config import Convolution, EncoderConfig, Experts, PostNorm, PreNorm
from mlxbert.machine.device import mx, nn
from mlxbert.nn.activations import check_activation
from mlxbert.nn.attention import build_attention
from mlxbert.nn.dropout import KeyedDropout
from mlxbert.nn.norms import build_norm
from mlxbert.nn.ops import Linear, backend
from mlxbert.nn.positions import Context


class FeedForward(nn.Module):
    """Two dense layers with an activation in between, optionally gated (GLU)."""

    def __init__(self, config: EncoderConfig) -> None:
        super().__init__()
        self.up = Linear(config.hidden_size, config.intermediate_size, bias=config.biases.up)
        if config.gated:
            self.gate = Linear(config.hidden_size, config.intermediate_size, bias=config.biases.up)
        self.down = Linear(config.intermediate_size, config.hidden_size, bias=config.biases.down)
        self.activation = check_activation(config.hidden_act)
        self.dropout = KeyedDropout(config.dropout.activation)

    def __call__(self, x: mx.array) -> mx.array:
        """(B, L, D) → (B, L, D)."""
        inner = backend().activated(self.activation, self.gate if "gate" in self else self.up, x)
        return self.down(self.dropout(inner * self.up(x) if "gate" in self else inner))


class ExpertMatrices(nn.Module):
    """The two matrices of each expert, as two arrays (E I, D) in which the matrices of all experts are stacked."""

    def __init__(self, config: EncoderConfig, count: int) -> None:
        super().__init__()
        self.w1 = mx.zeros((count * config.intermediate_size, config.hidden_size))
        self.w2 = mx.zeros((count * config.intermediate_size, config.hidden_size))


class ExpertFeedForward(nn.Module):
    """Several feed-forward networks, the experts; each token uses a few of them. Shapes: E experts, N tokens."""

    def __init__(self, config: EncoderConfig, experts: Experts) -> None:
        super().__init__()
        self.router = Linear(config.hidden_size, experts.count, bias=False)
        self.experts = ExpertMatrices(config, experts.count)
        if config.biases.down:
            self.bias = mx.zeros(config.hidden_size)
        self.count, self.used = experts.count, experts.used
        self.activation = check_activation(config.hidden_act)

    def __call__(self, x: mx.array) -> mx.array:
        """(B, L, D) → (B, L, D)."""
        tokens = x.flatten(0, 1)
        shares = mx.softmax(self.router(tokens).astype(mx.float32), axis=-1)
        chosen = mx.stop_gradient(mx.argpartition(-shares, self.used - 1, axis=-1)[:, : self.used])
        weights = mx.take_along_axis(shares, chosen, axis=-1).astype(x.dtype)
        up, down = (matrix.reshape(self.count, -1, x.shape[-1]) for matrix in (self.experts.w1, self.experts.w2))
        mixed = backend().mixture(tokens, up, down, chosen, weights, self.activation).reshape(x.shape)
        return mixed + self.bias if "bias" in self else mixed


def build_feed_forward(config: EncoderConfig, layer: int) -> FeedForward | ExpertFeedForward:
    """Builds the feed-forward of a stored layer."""
    if config.experts is not None and layer in config.experts.layers:
        return ExpertFeedForward(config, config.experts)
    return FeedForward(config)


class PostNormBlock(nn.Module):
    """Attention, add, norm, feed-forward, add, norm."""

    def __init__(self, config: EncoderConfig, layer: int, *, adds_input_twice: bool) -> None:
        super().__init__()
        self.attention = build_attention(config, layer)
        self.attention_norm = build_norm(config)
        if adds_input_twice:
            self.second_attention_norm = build_norm(config)
        self.feed_forward = build_feed_forward(config, layer)
        self.feed_forward_norm = build_norm(config)
        self.attention_dropout = KeyedDropout(config.dropout.attention_output)
        self.feed_forward_dropout = KeyedDropout(config.dropout.feed_forward)

    def __call__(self, x: mx.array, context: Context) -> tuple[mx.array, mx.array | None]:
        """(B, L, D) → (B, L, D), and the attention weights if requested."""
        attended, weights = self.attention(x, context)
        normed = self.attention_norm(x + self.attention_dropout(attended))
        x = self.second_attention_norm(x + normed) if "second_attention_norm" in self else normed
        return self.feed_forward_norm(x + self.feed_forward_dropout(self.feed_forward(x))), weights


class PreNormBlock(nn.Module):
    """Norm, attention, add, norm, feed-forward, add; the outputs of attention and feed-forward may have norms."""

    def __init__(self, config: EncoderConfig, layer: int, block: PreNorm) -> None:
        super().__init__()
        if layer or block.first_norm:
            self.attention_norm = build_norm(config)
        self.attention = build_attention(config, layer)
        self.feed_forward_norm = build_norm(config)
        self.feed_forward = build_feed_forward(config, layer)
        if block.output_norms:
            self.attention_output_norm = build_norm(config)
            self.feed_forward_output_norm = build_norm(config)
        self.attention_dropout = KeyedDropout(config.dropout.attention_output)
        self.feed_forward_dropout = KeyedDropout(config.dropout.feed_forward)

    def __call__(self, x: mx.array, context: Context) -> tuple[mx.array, mx.array | None]:
        """(B, L, D) → (B, L, D), and the attention weights if requested."""
        attended, weights = self.attention(self.attention_norm(x) if "attention_norm" in self else x, context)
        x = x + self.attention_dropout(self._normed("attention_output_norm", attended))
        fed = self.feed_forward(self.feed_forward_norm(x))
        return x + self.feed_forward_dropout(self._normed("feed_forward_output_norm", fed)), weights

    def _normed(self, norm: str, x: mx.array) -> mx.array:
        return self[norm](x) if norm in self else x


class EmbeddingConvolution(nn.Module):
    """A convolution over the embeddings, added to the output of the first layer."""

    def __init__(self, config: EncoderConfig, convolution: Convolution) -> None:
        super().__init__()
        width, kernel = config.hidden_size, convolution.kernel_size
        self.conv = nn.Conv1d(width, width, kernel, padding=kernel // 2, groups=convolution.groups)
        self.norm = build_norm(config)
        self.activation = check_activation(convolution.activation)
        self.dropout = KeyedDropout(config.dropout.convolution)

    def __call__(self, embedded: mx.array, x: mx.array, mask: mx.array | None) -> mx.array:
        """Embeddings (B, L, D) and the first layer's output (B, L, D) → the layer's new output (B, L, D)."""
        if mask is not None:  # padding must not leak into its neighbours
            embedded = mx.where(mask[:, 0, 0, :, None], embedded, 0)
        return self.norm(x + backend().activate(self.activation, self.dropout(self.conv(embedded))))


def build_block(config: EncoderConfig, layer: int) -> PostNormBlock | PreNormBlock:
    """Builds the stored layer number `layer`; `config.block` chooses the class."""
    match config.block:
        case PostNorm(adds_input_twice=twice):
            return PostNormBlock(config, layer, adds_input_twice=twice)
        case PreNorm() as block:
            return PreNormBlock(config, layer, block)
        case _:
            assert_never(config.block)
