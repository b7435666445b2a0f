"""Attention on a Linux CPU with numpy's vector instructions: all of it in inference, only its weights in training.

`mlxbert.cpu.numpy_layers` explains why numpy is faster. For attention, there is one more reason: to copy an array
with transposed axes, MLX takes 2 ns per element, numpy 0.3 ns. MLX also makes such copies of a product's operands again
for each block. Here they are made once, by numpy.
"""

import math
from dataclasses import dataclass
from functools import partial
from itertools import product
from typing import TypeAlias

from mlxbert.cpu import mlx_kernels
from mlxbert.cpu.cores import cores_at_hand, fill, over_cores
from mlxbert.cpu.numpy_layers import block_size, new, slices
from mlxbert.lazy_numpy import NDArray, np
from mlxbert.machine.device import mx

Floats: TypeAlias = "NDArray[np.float32]"

Ranges = tuple[slice, ...]
_MIN_WEIGHT = 2.0**-64  # see `mlx_kernels.exp2`
_MIN_QUERIES = 64  # in a block; with fewer, matrix products are slow
# If no score is further from 0, the maximum need not be subtracted: in float32 and in bfloat16, no sum of weights
# overflows, and no weight is subnormal. float16 ends at e^11.
_BOUND = 50.0
_MIN_BOUNDED_WEIGHT = 2.0**-110  # negligible next to e^-50; a query without any key gets the mean of all values
_ROTATED_SIZE = 2**16  # elements that are rotated at a time, to stay in the cache


def attention(
    q: mx.array,
    k: mx.array,
    v: mx.array,
    scale: float,
    mask: mx.array | None,
    bias: mx.array | None = None,
    *,
    causal: bool = False,
    slopes: mx.array | None = None,
) -> mx.array:
    """Computes `mlx_kernels.attention` without dropout, in blocks of texts, heads or queries.

    `causal` and `slopes` (see `PositionedQK`) are applied to each block, so that no array has (L, L) elements.
    """
    batch, heads, rows = q.shape[0], q.shape[1], q.shape[-2]
    size = math.prod(q.shape[2:-1]) * k.shape[-2]  # of a head
    texts = max(1, block_size() // (size * heads))
    heads_in_block = max(1, min(heads, block_size() // size))
    queries = min(rows, max(_MIN_QUERIES, block_size() * rows // size))
    added = [] if bias is None else [bias.astype(mx.float32).swapaxes(-1, -2)]
    added += [] if mask is None else [mx.contiguous(mx.where(mask, 0.0, mlx_kernels.MASKED).swapaxes(-1, -2))]
    q = q * scale
    mx.eval(q, k, v, added)
    q, k, v = _contiguous(q), _contiguous(k), _contiguous(v)
    has_bounds = bias is None and v.dtype != mx.float16
    bounds, slope_values = _bounds(q, k) if has_bounds else None, None if slopes is None else np.asarray(slopes)
    inputs = _AttentionInputs(q, k, v, [np.asarray(array) for array in added], bounds, causal, slope_values)
    parts = [slices(*axis) for axis in ((batch, texts), (heads, heads_in_block, cores_at_hand()), (rows, queries))]
    blocks = over_cores(partial(_attend_all, inputs=inputs), list(product(*parts)))
    for axis, count in ((-2, len(parts[2])), (1, len(parts[1])), (0, len(parts[0]))):
        blocks = [_joined(blocks[start : start + count], axis) for start in range(0, len(blocks), count)]
    return blocks[0]


@dataclass(frozen=True)
class _AttentionInputs:
    q: mx.array  # (B, H, …, L, head size), scaled
    k: mx.array  # (B, H, …, K, head size)
    v: mx.array  # (B, H, …, K, head size)
    added: list["Floats"]  # arrays that are added to the scores, each broadcast to (B, H, …, K, L)
    bounds: "Floats | None"  # (B, H), of the absolute scores of each head; `None` if unknown or not useful (float16)
    causal: bool
    slopes: "Floats | None"  # (H,); see `PositionedQK`

    @property
    def plain(self) -> bool:
        """Whether scores are products of queries and keys only, without a bias, mask or slopes."""
        return not self.added and not self.causal and self.slopes is None


def _bounds(q: mx.array, k: mx.array) -> "Floats":
    """Upper bounds of the scores, (B, H): the product of two vectors is at most the product of their norms."""
    squares = [(wide * wide @ mx.ones((wide.shape[-1], 1))).flatten(2).max(axis=-1) for wide in map(_wide, (q, k))]
    return np.asarray(mx.sqrt(squares[0] * squares[1]))


def _wide(x: mx.array) -> mx.array:
    return x.astype(mx.float32)


def _attend_all(blocks: list[Ranges], inputs: _AttentionInputs) -> list[mx.array]:
    with np.errstate(all="ignore"):  # NaN and infinity are detected later, with the text that they belong to
        attended = [_attend(ranges, inputs) for ranges in blocks]
    mx.eval(attended)
    return attended


def _attend(ranges: Ranges, inputs: _AttentionInputs) -> mx.array:
    """Computes a block of attention. Scores have keys as rows, which makes numpy's maxima and sums twice as fast."""
    texts, heads, queries = ranges
    keys = slice(queries.stop if inputs.causal else None)  # later keys would be masked
    v = inputs.v[texts, heads, ..., keys, :]
    scores = inputs.k[texts, heads, ..., keys, :] @ inputs.q[texts, heads, ..., queries, :].swapaxes(-1, -2)
    scores = scores.astype(mx.float32)
    mx.eval(scores)
    weights: Floats = np.asarray(scores)  # shares memory with `scores`, which nothing else uses
    for array in inputs.added:
        weights += _part(array, ranges)
    _apply_positions(weights, ranges, inputs)
    bounded = inputs.bounds is not None and inputs.bounds[texts, heads].max() <= _BOUND
    if not bounded:  # also if the bound is NaN
        weights -= weights.max(axis=-2, keepdims=True)
    np.exp(weights, out=weights)
    if not (inputs.plain and bounded):
        weights += _MIN_BOUNDED_WEIGHT if bounded else _MIN_WEIGHT
    share = mx.array(1 / weights.sum(axis=-2)[..., None])
    mixed = scores.astype(v.dtype).swapaxes(-1, -2) @ v
    mixed = (mixed.astype(mx.float32) * share).astype(v.dtype)
    mx.async_eval(mixed)  # in parallel with the next block's scores
    return mixed


def weigh(scores: mx.array) -> tuple[mx.array, mx.array]:
    """Computes attention weights from scores in a training step (see `mlx_kernels.Weigh`)."""
    (weights, memory), (sums, memory_of_sums) = new(scores.shape), new((*scores.shape[:-1], 1))
    fill(partial(_weigh, scores, memory, memory_of_sums))
    return weights, sums


def _weigh(scores: mx.array, weights: "Floats", sums: "Floats") -> None:
    mx.eval(scores)
    rows, weights, sums = (array.reshape(-1, array.shape[-1]) for array in (np.asarray(scores), weights, sums))
    with np.errstate(all="ignore"):
        for part in slices(len(rows), max(1, block_size() // 4 // rows.shape[1])):
            block, powers = rows[part], weights[part]
            np.subtract(block, block.max(axis=-1, keepdims=True), out=powers)
            powers *= math.log(2)
            np.exp(powers, out=powers)
            powers += _MIN_WEIGHT
            powers.sum(axis=-1, keepdims=True, out=sums[part])


def _apply_positions(scores: "Floats", ranges: Ranges, inputs: _AttentionInputs) -> None:
    """Subtracts the slopes times the distances from a block's scores (…, K, L), and masks later keys."""
    _, heads, queries = ranges
    if inputs.slopes is not None:
        distances = np.abs(np.arange(scores.shape[-2])[:, None] - np.arange(queries.start, queries.stop))
        scores -= inputs.slopes[heads, None, None] * distances.astype(np.float32)
    if inputs.causal:
        size = queries.stop - queries.start
        scores[..., queries.start :, :] += np.tril(np.full((size, size), mlx_kernels.MASKED, dtype=np.float32), -1)


def _part(x: "Floats", ranges: Ranges) -> "Floats":
    """Returns the part of an array that broadcasts to a block of (B, H, …, K, L)."""
    everything = slice(None)
    texts, heads, queries = (
        part if x.shape[axis] > 1 else everything for part, axis in zip(ranges, (0, 1, -1), strict=True)
    )
    return x[texts, heads, ..., queries]


def _joined(parts: list[mx.array], axis: int) -> mx.array:
    return parts[0] if len(parts) == 1 else mx.concatenate(parts, axis=axis)


def _contiguous(x: mx.array) -> mx.array:
    """Makes each matrix of an evaluated array contiguous; its vectors must be contiguous already."""
    if x.dtype != mx.float32:
        x = mx.contiguous(x)
        mx.eval(x)
        return x
    source: Floats = np.asarray(x)
    if source.strides[-2:] == (4 * source.shape[-1], 4):
        return x
    copy, memory = new(x.shape)
    vector = f"V{4 * source.shape[-1]}"  # copying a vector as one element takes half the time
    memory.view(vector)[...] = source.view(vector)
    return copy


def rotated(x: mx.array, cosines: mx.array, sines: mx.array) -> mx.array:
    """Computes `Backend.rotate` from float32 (B, H, L, d), a view of (B, L, H d); the result is contiguous."""
    mx.eval(x, cosines, sines)
    copy, memory = new(x.shape)
    source, memory = np.asarray(x).swapaxes(1, 2), memory.swapaxes(1, 2)  # (B, L, H, d)
    along, half = np.tile(np.asarray(cosines), 2)[:, None], source.shape[-1] // 2
    across = np.concatenate([-np.asarray(sines), np.asarray(sines)], axis=-1)[:, None]
    parts = slices(source.shape[1], max(1, _ROTATED_SIZE // math.prod(source.shape[2:])))
    first, second = np.empty((2, parts[-1].stop - parts[-1].start, *source.shape[2:]), dtype=np.float32)
    with np.errstate(all="ignore"):  # as in `_attend_all`
        for text, part in product(range(len(source)), parts):
            vectors = source[text, part]
            mixed, swapped = first[: len(vectors)], second[: len(vectors)]
            swapped[..., :half], swapped[..., half:] = vectors[..., half:], vectors[..., :half]
            np.multiply(vectors, along[part], out=mixed)
            swapped *= across[part]
            np.add(mixed, swapped, out=memory[text, part])
    return copy


def with_neighbours(x: mx.array, size: int, padding: int) -> mx.array:
    """(B, H, L, d) → (B, H, blocks, 3 * size, d): each block with its two neighbours, as views of a single copy."""
    mx.eval(x)
    batch, heads, length, width = x.shape
    padded = length + padding + 2 * size
    copy, memory = new((batch, heads, padded, width), 0.0)
    memory[:, :, size : size + length] = np.asarray(x)
    strides = (heads * padded * width, padded * width, size * width, width, 1)
    windows = mx.as_strided(copy, (batch, heads, padded // size - 2, 3 * size, width), strides)
    mx.eval(windows)
    return windows
