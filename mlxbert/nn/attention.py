"""Self-attention: one class for each way of encoding positions.

Scores, masks and softmax are computed by `Backend.attention` (`mlxbert.nn.backend`).

Shapes: B batch, L length, D hidden size, H heads, d head size.
"""

import math
from typing import assert_never, cast

from mlxbert.config import Absolute, Alibi, Disentangled, EncoderConfig, RelativeBias, Rotary, Rotation, Unordered
from mlxbert.machine.device import in_plain_graphs, mx, nn
from mlxbert.nn.backend import PositionedQK
from mlxbert.nn.dropout import KeyedDropout
from mlxbert.nn.norms import Norm, build_norm
from mlxbert.nn.ops import Linear, backend
from mlxbert.nn.positions import Context, Distances


class SelfAttention(nn.Module):
    """Multi-head self-attention with the output projection."""

    def __init__(self, config: EncoderConfig) -> None:
        super().__init__()
        width, bias, self.head_size = config.hidden_size, config.biases.attention, config.head_size
        inner = self.head_size * config.num_attention_heads
        shared = self.head_size * (config.num_key_value_heads or config.num_attention_heads)
        self.query = Linear(width, inner, bias=bias)
        self.key = Linear(width, shared, bias=bias)
        self.value = Linear(width, shared, bias=bias)
        self.output = Linear(inner, width, bias=config.biases.attention_output)
        if config.query_key_norm is not None:
            per_head = config.query_key_norm == "head"
            self.query_norm = build_norm(config, self.head_size if per_head else inner)
            self.key_norm = build_norm(config, self.head_size if per_head else shared)
        self.scale = config.attention_scale or 1 / math.sqrt(self.head_size)
        self.dropout = KeyedDropout(config.dropout.attention)

    def split(self, x: mx.array) -> mx.array:
        """(B, L, H d) → (B, H, L, d)."""
        return x.reshape(*x.shape[:2], -1, self.head_size).transpose(0, 2, 1, 3)

    def queries_and_keys(self, x: mx.array) -> tuple[mx.array, mx.array]:
        """(B, L, D) → (B, H, L, d) and (B, key heads, L, d), without positions."""
        q, k = self.query(x), self.key(x)
        if "query_norm" in self:
            q, k = _normed(self.query_norm, q), _normed(self.key_norm, k)
        return self.split(q), self.split(k)

    def apply_positions(self, q: mx.array, k: mx.array, context: Context) -> PositionedQK:
        """Returns queries and keys (B, H, L, d) with positions applied."""
        return PositionedQK(q, k, context.bias, context.mask, slopes=context.slopes)

    def __call__(self, x: mx.array, context: Context) -> tuple[mx.array, mx.array | None]:
        """(B, L, D) → (B, L, D), and the weights (B, H, L, L) if requested.

        `Backend.attention` returns no weights. They are computed separately and lazily: unused weights cost nothing.
        """
        positioned = self.apply_positions(*self.queries_and_keys(x), context)
        v = self.split(self.value(x))
        weights = backend().attention_weights(positioned, self.scale) if context.output_attentions else None
        mixed = backend().attention(positioned, v, self.scale, self.dropout)
        merged = mixed.transpose(0, 2, 1, 3).reshape(*x.shape[:2], -1)
        return self.output(merged), weights


def _normed(norm: Norm, x: mx.array) -> mx.array:
    """Splits each vector of `x` (B, L, D) into slices as wide as the norm, and applies the norm to each slice."""
    return norm(x.reshape(*x.shape[:2], -1, norm.weight.size)).reshape(x.shape)


class RotaryAttention(SelfAttention):
    """Attention with rotary positions; a layer may have a sliding window."""

    def __init__(self, config: EncoderConfig, rotation: Rotation) -> None:
        super().__init__(config)
        self.rotation = rotation

    def apply_positions(self, q: mx.array, k: mx.array, context: Context) -> PositionedQK:
        rotated = context.rotated[self.rotation]
        q, k = (backend().rotate(x, rotated.cosines, rotated.sines) for x in (q, k))
        return PositionedQK(q, k, mask=rotated.mask, blocks=rotated.blocks, causal=self.rotation.causal)


class DisentangledAttention(SelfAttention):
    """DeBERTa's attention: the sum of content-to-content, content-to-position and position-to-content scores."""

    def __init__(self, config: EncoderConfig, positions: Disentangled) -> None:
        super().__init__(config)
        width = config.hidden_size
        self.content_to_position = positions.content_to_position
        self.position_to_content = positions.position_to_content
        self.distance_dropout = KeyedDropout(config.dropout.distances)
        if not positions.shared_projections:
            if positions.content_to_position:
                self.position_key = Linear(width, width)
            if positions.position_to_content:
                self.position_query = Linear(width, width)
        kinds = 1 + positions.content_to_position + positions.position_to_content
        self.scale = 1 / math.sqrt(config.head_size * kinds)

    def apply_positions(self, q: mx.array, k: mx.array, context: Context) -> PositionedQK:
        assert context.distances is not None
        # One dropout mask for both kinds of scores, a new one in every layer, as in transformers.
        distances = context.distances._replace(vectors=self.distance_dropout(context.distances.vectors))
        bias = None
        if self.content_to_position:
            project = self.position_key if "position_key" in self else self.key
            vectors = self._project_distances(project, distances, from_keys=False)
            bias = _by_distance(backend().scaled(q, self.scale), vectors)
        if self.position_to_content:
            project = self.position_query if "position_query" in self else self.query
            vectors = self._project_distances(project, distances, from_keys=True)
            transposed = _by_distance(backend().scaled(k, self.scale), vectors)
            bias = transposed.swapaxes(-1, -2) if bias is None else bias + transposed.swapaxes(-1, -2)
        return PositionedQK(q, k, bias, context.mask)

    def _project_distances(self, project: nn.Linear, distances: Distances, *, from_keys: bool) -> mx.array:
        """Returns the projected distance vectors of tokens at the offsets -(L - 1) … L, (H, 2 L, d).

        A distance is the query's position minus the key's position. If `from_keys`, the offset of a query from a key is
        the distance; otherwise, the offset of a key from a query is minus the distance.
        """
        vectors, rows = distances
        rows = rows if from_keys else mx.concatenate([rows[-2::-1], rows[-1:]])
        # Project the selected rows or the whole table, whichever is smaller. (In an export, the table is a constant.)
        selects = rows.size < vectors.shape[0] and not in_plain_graphs()
        projected = project(vectors[rows]) if selects else project(vectors)[rows]
        return self.split(projected[None])[0]


def _by_distance(x: mx.array, vectors: mx.array) -> mx.array:
    """Returns the products of each token with the vectors of its distances to all tokens.

    Args:
        x: (B, H, L, d).
        vectors: (H, 2 L, d), for the offsets -(L - 1) … L.

    Returns:
        (B, H, L, L).
    """
    products = x @ vectors.swapaxes(-1, -2)
    if in_plain_graphs():  # `_shifted` without a view: in the flat array, the rows of the result are 2 L - 1 apart
        length = x.shape[2]
        rows = products.flatten(2)[:, :, length - 1 : -1].reshape(*x.shape[:3], 2 * length - 1)
        return rows[..., :length]
    return cast(mx.array, _shifted(products))


@mx.custom_function
def _shifted(products: mx.array) -> mx.array:
    """(B, H, L, 2 L) → (B, H, L, L): row i keeps L columns, from number L - 1 - i on.

    In row i, column j - i + L - 1 holds the product of token i with the vector of its distance to token j. Each row
    starts one column further left, so a strided view is enough.
    """
    batch, heads, length, row = products.shape
    strides = (heads * length * row, length * row, row - 1, 1)
    return mx.as_strided(mx.contiguous(products), (batch, heads, length, length), strides, offset=length - 1)


@_shifted.vjp
def _shifted_vjp(products: mx.array, cotangent: mx.array, output: mx.array) -> mx.array:
    # In memory the rows of the view are 2 L - 1 apart. MLX's own derivative of a view is a scatter-add.
    length = cotangent.shape[-1]
    rows = mx.pad(cotangent, [(0, 0)] * 3 + [(0, length - 1)]).flatten(2)
    return mx.pad(rows, [(0, 0)] * 2 + [(length - 1, 1)]).reshape(products.shape)


def build_attention(config: EncoderConfig, layer: int) -> SelfAttention:
    """Builds the attention of a stored layer; `config.positions` chooses the class."""
    match config.positions:
        case Absolute() | RelativeBias() | Alibi() | Unordered():
            return SelfAttention(config)
        case Rotary(rotations=rotations):
            return RotaryAttention(config, rotations[layer])
        case Disentangled():
            return DisentangledAttention(config, config.positions)
        case _:
            assert_never(config.positions)
