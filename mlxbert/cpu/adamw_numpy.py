"""Computes AdamW and gradient norms on a Linux CPU with numpy's vector instructions, in blocks that fit a core's cache.

MLX makes a separate pass over all parameters for each of about ten operations, and takes 5 ns per parameter; numpy
takes 1.8 ns. An update overwrites the parameters and moments, so nothing else may use their memory (see `AdamW.own`).
"""

import math
from functools import partial
from typing import TypeAlias

from mlxbert.cpu import numpy_layers
from mlxbert.cpu.cores import over_cores
from mlxbert.lazy_numpy import NDArray, np
from mlxbert.machine.device import mx

Floats: TypeAlias = "NDArray[np.float32]"
# Parameter, mean, square, gradient; rate, kept share.
Block: TypeAlias = "tuple[Floats, Floats, Floats, Floats, float, float]"

Arrays = dict[str, mx.array]
_SUM_BLOCK = 2**15  # numbers per block; the same on every machine, because the last digits of a sum depend on it


def copied(arrays: Arrays) -> Arrays:
    """Returns copies of the arrays that share no memory with the originals."""
    return {name: mx.array(np.asarray(array, order="C")) for name, array in arrays.items()}


def norm(gradients: Arrays) -> mx.array:
    """See `adamw.norm`. The caller has evaluated the arrays."""
    flat = [np.asarray(gradients[name]).ravel(order="K") for name in sorted(gradients)]
    blocks = [array[part] for array in flat for part in numpy_layers.slices(len(array), _SUM_BLOCK)]
    return mx.array(math.sqrt(sum(over_cores(_squares, blocks))))


def _squares(blocks: "list[Floats]") -> list[float]:
    """Returns the sum of squares of each block of gradients. `np.dot` would give sums that depend on the threads."""
    with np.errstate(all="ignore"):
        return [float(np.einsum("i,i->", block, block)) for block in blocks]


def update(
    arrays: tuple[Arrays, Arrays, Arrays, Arrays],
    factor: float,
    rates: dict[str, float],
    kept: dict[str, float],
    betas: tuple[float, float],
    eps: float,
) -> None:
    """Overwrites parameters and moments with their values after an update of AdamW (see `adamw.AdamW`).

    The parameters, means, squares and gradients are evaluated; all except the gradients must be C-contiguous. The
    rates include the bias corrections; `kept` is the share of each parameter that remains after weight decay.
    """
    blocks: list[Block] = []
    for name, parameter in arrays[0].items():
        views = [np.atleast_1d(np.asarray(group[name])) for group in arrays]
        rows = max(1, numpy_layers.block_size() // 4 * len(views[0]) // parameter.size)
        for part in numpy_layers.slices(len(views[0]), rows):
            block, mean, square, gradient = (view[part] for view in views)
            blocks.append((block, mean, square, gradient, rates[name], kept[name]))
    over_cores(partial(_change, factor=factor, betas=betas, eps=eps), blocks)


def _change(blocks: "list[Block]", factor: float, betas: tuple[float, float], eps: float) -> list[None]:
    memory = np.empty(max(block[0].size for block in blocks), dtype=np.float32)
    with np.errstate(all="ignore"):
        for parameter, mean, square, gradient, rate, kept in blocks:
            step = memory[: parameter.size].reshape(parameter.shape)
            np.multiply(gradient, factor, out=step)
            mean *= betas[0]
            mean += step
            square *= betas[1]
            step *= step
            square += step
            np.sqrt(square, out=step)
            step += eps
            np.divide(mean, step, out=step)
            step *= rate
            if kept != 1:
                parameter *= kept
            parameter -= step
    return [None] * len(blocks)
