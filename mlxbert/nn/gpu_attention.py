"""Attention on a GPU: the shapes that Metal has a fused kernel for, and how other shapes are padded or split to fit it.

With a sliding window, each block of queries attends to three blocks of keys instead of all.

Shapes: B batch, L length, H heads, d head size.
"""

from typing import Literal

from mlxbert.machine.device import fused_attention_gradient, mx

_SMALLEST_BLOCK = 32  # tokens; smaller matrix products are not worth it


def blocks(length: int, window: int, mask: mx.array | None) -> mx.array | None:
    """Computes `Backend.window_blocks`; returns `None` if the text is not longer than three blocks."""
    size = max(window, _SMALLEST_BLOCK)
    if length <= 3 * size:
        return None
    query, key = mx.arange(size)[:, None], mx.arange(3 * size) - size
    near = mx.abs(key - query) <= window
    count = -(-length // size)
    positions = size * mx.arange(count)[:, None] + key  # (blocks, 3 * size)
    real = mx.logical_and(positions >= 0, positions < length)[None]
    if mask is not None:
        real = mx.logical_and(real, mask[:, 0, 0][:, mx.clip(positions, 0, length - 1)])
    return mx.logical_and(near, real[:, None, :, None])


# The head sizes for which Metal computes attention in one kernel: `use_fallback` in
# mlx/backend/metal/scaled_dot_product_attention.cpp (0.32.1, and commit 846d176 of 0.32.2). From 0.32.2 on there are
# kernels for 192 and 256, too, which MLX does not choose for more than 8 queries, because they are slower (except for
# 256 with a causal mask on M5 chips). Otherwise, (B, H, L, L) scores are in memory.
_HEAD_SIZES = (64, 72, 80, 96, 128)
_HEAD_SIZES_OF_FEW = (64, 96, 128, 256)
_FEW = 8  # the maximum number of queries of the kernel for few queries
# Estimates from bytes and operations, not yet measured on a Mac (`mlxbert bench --json` does). Padding copies 3 d'
# numbers per token and head, and saves some 10 bytes for each key of a query: from 80 keys on, it costs less.
PADDED_FROM = 256  # keys
# Neighbours are copied three times; meanwhile, a GPU could compute the products with some 270 keys.
BLOCKS_FROM = 8  # blocks


def on_metal() -> bool:
    """Whether the GPU is Apple's."""
    return mx.metal.is_available()


def is_fused(head_size: int, queries: int, dtype: mx.Dtype, mask: mx.Dtype | None, *, gradient: bool) -> bool:
    """Whether Metal computes attention in one kernel, given at least as many keys as queries.

    Args:
        head_size: d, also the head size of values.
        queries: The number of queries.
        dtype: The dtype of queries, keys and values.
        mask: The dtype of a mask array: bool, or the dtype of an additive mask; MLX rejects a wider dtype than the
            queries' (`mlx/fast.cpp`). `None` for no mask.
        gradient: Whether a gradient is computed, as in `mx.grad` (see `differentiates_attention`).
    """
    if gradient or (mask is not None and mx.result_type(mx.zeros(0, mask), mx.zeros(0, dtype)) != dtype):
        return False
    return head_size in (_HEAD_SIZES_OF_FEW if queries <= _FEW else _HEAD_SIZES)


def differentiates_attention(dtype: mx.Dtype) -> bool:
    """Whether a fused kernel may compute the gradient of attention.

    On Metal, `MLX_SDPA_VJP_FALLBACK` decides; on CUDA, cuDNN has such a kernel for half precision only.
    """
    return fused_attention_gradient() if on_metal() else dtype != mx.float32


def differentiates_norms(width: int, dtype: mx.Dtype) -> bool:
    """Whether the gradient of MLX's layer norm is correct for rows of `width` numbers.

    On CUDA a thread reads 16 bytes. If some of these lie beyond the end of a row, the numbers there are added to the
    sums over the row (mlx/backend/cuda/layer_norm.cu, `layer_norm_vjp`, up to 0.32.4 at least).
    """
    return on_metal() or width % (16 // dtype.size) == 0


def padded_head_size(head_size: int, keys: int) -> int:
    """The head size to which to pad queries, keys and values for Metal's kernel; `head_size` if that is not faster."""
    if keys < PADDED_FROM or 2 * head_size < _HEAD_SIZES[0]:
        return head_size
    return min((size for size in _HEAD_SIZES if size >= head_size), default=head_size)


def attention(
    q: mx.array, k: mx.array, v: mx.array, scale: float, mask: mx.array | Literal["causal"] | None, *, gradient: bool
) -> mx.array:
    """`mx.fast.scaled_dot_product_attention`, in a single kernel if there is one for the shape.

    If a gradient is computed, there is none, and padding is useless.
    """
    size = q.shape[-1]
    wide = size if gradient or not on_metal() else padded_head_size(size, k.shape[2])
    return padded_attention(q, k, v, scale, mask, wide)


def padded_attention(
    q: mx.array, k: mx.array, v: mx.array, scale: float, mask: mx.array | Literal["causal"] | None, wide: int
) -> mx.array:
    """`attention` with heads that are padded to `wide` values."""
    size = q.shape[-1]
    if wide != size:
        q, k, v = (mx.pad(x, [(0, 0)] * 3 + [(0, wide - size)]) for x in (q, k, v))
    mixed = mx.fast.scaled_dot_product_attention(q, k, v, scale=scale, mask=mask)
    return mixed if wide == size else mixed[..., :size]


def is_fused_here(head_size: int, length: int, dtype: mx.Dtype) -> bool:
    """Whether one kernel computes attention over a text of `length` tokens, without a mask array.

    On CUDA, it is cuDNN's kernel (mlx/backend/cuda/scaled_dot_product_attention.cpp, `supports_sdpa_cudnn`).
    """
    if on_metal():
        return is_fused(padded_head_size(head_size, length), length, dtype, None, gradient=False)
    return dtype != mx.float32 and head_size % 8 == 0 and head_size <= 128


def blocks_pay(length: int, window: int) -> bool:
    """Whether attention to neighbouring blocks of `window` tokens is faster than masked attention to all tokens."""
    return length >= BLOCKS_FROM * window


def divided(q: mx.array, k: mx.array, v: mx.array, blocks: mx.array) -> tuple[mx.array, mx.array, mx.array, mx.array]:
    """Splits texts (B, H, L, d) into the N blocks of a mask, the texts of a larger batch for the fused kernel.

    Returns queries (B * N, H, size, d), the keys and the values around them (B * N, H, 3 * size, d), and their mask
    (B * N, 1, size, 3 * size).
    """
    size, padding = blocks.shape[3], -q.shape[2] % blocks.shape[3]
    mask = mx.broadcast_to(blocks, (len(q), *blocks.shape[1:])).swapaxes(1, 2).flatten(0, 1)

    def parts(x: mx.array, outside: int) -> mx.array:
        """Splits (B, H, L, d) into (B, blocks, size, H, d), the axis order of values and outputs in memory."""
        padded = mx.pad(x.swapaxes(1, 2), [(0, 0), (outside, padding + outside), (0, 0), (0, 0)])
        return padded.reshape(len(x), -1, size, *padded.shape[2:])

    def around(x: mx.array) -> mx.array:
        blocked = parts(x, size)
        return mx.concatenate([blocked[:, :-2], blocked[:, 1:-1], blocked[:, 2:]], axis=2).flatten(0, 1).swapaxes(1, 2)

    return parts(q, 0).flatten(0, 1).swapaxes(1, 2), around(k), around(v), mask


def joined(x: mx.array, batch: int, length: int) -> mx.array:
    """Joins the blocks that `divided` makes: (B * N, H, size, d) → (B, H, L, d)."""
    return x.swapaxes(1, 2).reshape(batch, -1, x.shape[1], x.shape[3])[:, :length].swapaxes(1, 2)


def attention_in_blocks(q: mx.array, k: mx.array, v: mx.array, scale: float, blocks: mx.array) -> mx.array:
    """Computes the attention of each block to itself and its neighbours, with the mask `blocks` (see `divided`)."""
    parts, keys, values, mask = divided(q, k, v, blocks)
    return joined(attention(parts, keys, values, scale, mask, gradient=False), len(v), v.shape[2])
