"""The arrays that encode positions in a forward pass, computed once for all layers.

Shapes: B batch, L length, D hidden size, H heads, R rows of the table of distances.
"""

import functools
import math
from dataclasses import dataclass, field, replace
from typing import NamedTuple, assert_never

from mlxbert.config import Absolute, Alibi, Disentangled, EncoderConfig, RelativeBias, Rotary, Rotation, Unordered
from mlxbert.machine.device import in_plain_graphs, mx, nn
from mlxbert.nn import ops
from mlxbert.nn.ops import backend


class Rotated(NamedTuple):
    """The rotation of every position, and the tokens that layers with this rotation may attend to."""

    cosines: mx.array  # (L, head size / 2)
    sines: mx.array  # (L, head size / 2)
    # bool, broadcast to (B, 1, L, L), true if a token may be attended to; `None` for no mask. The causal mask is
    # separate.
    mask: mx.array | None
    blocks: mx.array | None  # the same mask in the form of `Backend.window_blocks`


class Distances(NamedTuple):
    """The vectors of the distances -(L - 1) … L, as rows of a table."""

    vectors: mx.array  # (R, D), the table
    rows: mx.array  # int32 (2 L), the table's row for each distance


@dataclass(frozen=True)
class Context:
    """The inputs that all layers share in one forward pass."""

    # bool (B, 1, 1, L), true for real tokens; `None` when nothing is padded. The dtype is bool because a float mask
    # could promote a half-precision model to float32, or overflow.
    mask: mx.array | None
    output_attentions: bool = False  # whether layers also return their attention weights
    bias: mx.array | None = None  # (1, H, L, L), added to the scores of every layer; `None` for no bias
    rotated: dict[Rotation, Rotated] = field(default_factory=dict)  # the rotations of layers with rotary positions
    distances: Distances | None = None  # the distances of layers with disentangled attention
    # float32 (H,); the distance times the head's slope is subtracted from each score; `None` for no slopes.
    slopes: mx.array | None = None


class EmbeddedPositions(nn.Module):
    """Positions that are encoded in the embeddings only, or not at all."""

    def __call__(self, base: Context, length: int, dtype: mx.Dtype) -> Context:
        """The context of a forward pass over inputs of `length` tokens in `dtype`."""
        return base


class BiasTable(nn.Module):
    """A learned bias for each pair of a head and a distance."""

    def __init__(self, positions: RelativeBias, num_heads: int) -> None:
        super().__init__()
        self.weight = mx.zeros((positions.num_buckets, num_heads))
        self.num_buckets = positions.num_buckets
        self.max_distance = positions.max_distance

    def __call__(self, base: Context, length: int, dtype: mx.Dtype) -> Context:
        """The context of a forward pass over inputs of `length` tokens in `dtype`."""
        distances = range(1 - length, length)
        rows = [_bias_row(distance, self.num_buckets, self.max_distance) for distance in distances]
        by_distance = self.weight[mx.array(rows)].T  # (H, 2 L - 1)
        positions = mx.arange(length)
        bias = by_distance[:, positions[None, :] - positions[:, None] + (length - 1)]
        return replace(base, bias=bias[None])


@functools.cache
def _bias_row(distance: int, num_buckets: int, max_distance: int) -> int:
    """The bucket of a distance (positive for keys on the right): exact if short, logarithmic if long, as in T5."""
    half = num_buckets // 2
    first = half if distance > 0 else 0
    far, exact = abs(distance), half // 2
    if far < exact:
        return first + far
    steps = math.log(far / exact) / math.log(max_distance / exact) * (half - exact)
    return first + min(exact + int(steps), half - 1)


class AlibiSlopes(nn.Module):
    """A slope for each head; not learned."""

    def __init__(self, num_heads: int) -> None:
        super().__init__()
        self.slopes = _slopes(num_heads)

    def __call__(self, base: Context, length: int, dtype: mx.Dtype) -> Context:
        """The context of a forward pass over inputs of `length` tokens in `dtype`."""
        return replace(base, slopes=mx.array(self.slopes))


def _slopes(num_heads: int) -> tuple[float, ...]:
    """Returns one ALiBi slope per head.

    If the number of heads is not a power of two, the slopes for the next lower power of two are followed by every other
    slope for the next higher one.
    """
    power = 1 << (num_heads.bit_length() - 1)
    slopes = [2 ** (-8 * (head + 1) / power) for head in range(power)]
    between = [2 ** (-4 * (head + 1) / power) for head in range(0, 2 * power, 2)]
    return tuple((slopes + between)[:num_heads])


class RotaryTables(nn.Module):
    """Cosines and sines for each rotation; not learned."""

    def __init__(self, positions: Rotary, head_size: int) -> None:
        super().__init__()
        self.kinds = tuple(dict.fromkeys(positions.rotations))
        self.head_size = head_size

    def __call__(self, base: Context, length: int, dtype: mx.Dtype) -> Context:
        """The context of a forward pass over inputs of `length` tokens in `dtype`."""
        positions = mx.arange(length)
        rotated = {}
        for kind in self.kinds:
            powers = [2 * number / self.head_size for number in range(self.head_size // 2)]
            frequencies = mx.array([kind.theta**-power / kind.wavelength_scale for power in powers])
            angles = positions[:, None] * frequencies
            # Padding is after the text, where causal attention does not reach it.
            mask, blocks = None if kind.causal else base.mask, None
            assert kind.window is None or not kind.causal
            if kind.window is not None and (kind.window < length - 1 or in_plain_graphs()):
                near = (mx.abs(positions[:, None] - positions) <= kind.window)[None, None]
                mask = near if mask is None else mx.logical_and(near, mask)
                blocks = backend().window_blocks(length, kind.window, base.mask)
            rotated[kind] = Rotated(mx.cos(angles).astype(dtype), mx.sin(angles).astype(dtype), mask, blocks)
        return replace(base, rotated=rotated)


class DistanceTable(nn.Module):
    """A learned vector for every distance; far distances share buckets."""

    def __init__(self, positions: Disentangled, width: int, eps: float) -> None:
        super().__init__()
        self.weight = mx.zeros((positions.rows, width))
        if positions.norm:
            self.norm = ops.LayerNorm(width, eps=eps)
        self.buckets = positions.buckets
        self.max_relative_positions = positions.max_relative_positions

    def __call__(self, base: Context, length: int, dtype: mx.Dtype) -> Context:
        """The context of a forward pass over inputs of `length` tokens in `dtype`."""
        vectors = self.norm(self.weight) if "norm" in self else self.weight
        distances = range(1 - length, length + 1)
        rows = [_distance_row(distance, self.buckets, self.max_relative_positions) for distance in distances]
        return replace(base, distances=Distances(vectors, mx.array(rows)))


@functools.cache
def _distance_row(distance: int, buckets: int, max_relative_positions: int) -> int:
    """Returns the table row of a distance; if there are buckets, long distances share rows on a logarithmic scale."""
    middle = buckets // 2
    far = abs(distance)
    if buckets and far > middle:
        octaves = math.log(far / middle) / math.log((max_relative_positions - 1) / middle)
        steps = math.ceil(octaves * (middle - 1))
        distance = int(math.copysign(steps + middle, distance))
    side = buckets or max_relative_positions
    return min(max(distance + side, 0), 2 * side - 1)


def build_positions(
    config: EncoderConfig,
) -> EmbeddedPositions | BiasTable | RotaryTables | AlibiSlopes | DistanceTable:
    """Builds the module that computes the context of a forward pass; `config.positions` chooses the class."""
    match config.positions:
        case Absolute() | Unordered():
            return EmbeddedPositions()
        case RelativeBias():
            return BiasTable(config.positions, config.num_attention_heads)
        case Rotary():
            return RotaryTables(config.positions, config.head_size)
        case Alibi():
            return AlibiSlopes(config.num_attention_heads)
        case Disentangled():
            return DistanceTable(config.positions, config.hidden_size, config.layer_norm_eps)
        case _:
            assert_never(config.positions)
