"""Sliding-window attention: each block of queries attends to three blocks of keys instead of all.

Shapes: B batch, L length.
"""

from mlxbert.machine.device import mx

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
