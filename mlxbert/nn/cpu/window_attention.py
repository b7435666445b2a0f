"""Sliding-window attention: each block of queries attends to three blocks of keys instead of all.

`divided` is for CPUs. GPUs use the same mask; `mlxbert.nn.gpu_attention` splits texts for them.

Shapes: B batch, L length, H heads, d head size.
"""

from mlxbert.machine.device import mx
from mlxbert.nn.cpu import numpy_attention, numpy_layers

_SMALLEST_BLOCK = 32  # tokens; smaller matrix products are not worth it


def blocks(length: int, window: int, mask: mx.array | None) -> mx.array | None:
    """Computes `ops.window_blocks`: bool (B or 1, 1, blocks, size, 3 * size); `None` if blocks are not faster."""
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


def divided(q: mx.array, k: mx.array, v: mx.array, size: int) -> tuple[mx.array, mx.array, mx.array]:
    """Splits queries into blocks, and copies the keys and the values around each block.

    Returns:
        Queries (B, H, blocks, size, d), keys and values (B, H, blocks, 3 * size, d).
    """
    padding = -q.shape[2] % size
    queries = mx.pad(q, [(0, 0), (0, 0), (0, padding), (0, 0)]).reshape(*q.shape[:2], -1, size, q.shape[-1])
    return queries, with_neighbours(k, size, padding), with_neighbours(v, size, padding)


def with_neighbours(x: mx.array, size: int, padding: int) -> mx.array:
    """(B, H, L, d) → (B, H, blocks, 3 * size, d): each block together with its two neighbours."""
    if x.dtype == mx.float32 and numpy_layers.pays(3 * x.size):  # each block is in three windows
        return numpy_attention.with_neighbours(x, size, padding)
    padded = mx.pad(x, [(0, 0), (0, 0), (size, padding + size), (0, 0)])
    parts = padded.reshape(*x.shape[:2], -1, size, x.shape[-1])
    return mx.concatenate([parts[:, :, :-2], parts[:, :, 1:-1], parts[:, :, 2:]], axis=3)
