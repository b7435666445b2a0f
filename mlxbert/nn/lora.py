"""Low-rank adaptation of linear layers: LoRA (arXiv:2106.09685), rsLoRA (arXiv:2312.03732), DoRA (arXiv:2402.09353).

    y = x Wᵀ + b + scale · dropout(x) Aᵀ Bᵀ        DoRA: the rows of W + scale · B A have learned norms

Shapes: I inputs, O outputs, r rank.
"""

import math

from mlxbert.machine.device import mx


def scale_of(rank: int, alpha: float, *, rslora: bool) -> float:
    """The factor of an update of this rank: alpha / r, or for rsLoRA alpha / √r."""
    return alpha / (math.sqrt(rank) if rslora else rank)


def row_norms(matrix: mx.array) -> mx.array:
    """The norm of each row, float32 (O,)."""
    return mx.sqrt(mx.square(matrix.astype(mx.float32)).sum(axis=1))


def merged(weight: mx.array, update: mx.array, magnitude: mx.array | None) -> mx.array:
    """Returns the adapted matrix, float32 (O, I).

    Args:
        update: scale · B A.
        magnitude: The norms of the adapted matrix's rows, (O,); only for DoRA.
    """
    rows = weight.astype(mx.float32) + update.astype(mx.float32)
    if magnitude is None:
        return rows
    return rows * (magnitude.astype(mx.float32) / row_norms(rows))[:, None]
