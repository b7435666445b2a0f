"""The norm of gradients and AdamW on a Linux CPU, by numpy's vector instructions in blocks that stay in a core's cache.

MLX makes each of some ten operations in a pass of its own through all parameters, and takes 5 ns for each of them; here
it is 1.8. An update is written into the memory of what it changes, which nobody else may have then: see `AdamW.own`.
"""

import math
import sys
from functools import partial
from typing import TYPE_CHECKING

from mlxbert.machine.cores import over_cores
from mlxbert.machine.device import mx
from mlxbert.nn.cpu import numpy_layers

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    Floats = NDArray[np.float32]
    Block = tuple[Floats, Floats, Floats, Floats, float, float]  # as `update` takes them; rate, and what is kept

Arrays = dict[str, mx.array]
_SUMMED = 2**15  # numbers; the same on every machine, as the last digits of a sum depend on it


def applies() -> bool:
    """Whether this system lets numpy write into the memory of MLX."""
    return sys.platform == "linux" and numpy_layers.shares_memory()


def copied(arrays: Arrays) -> Arrays:
    """Arrays of the same numbers, with memory that is not shared."""
    import numpy as np

    return {name: mx.array(np.asarray(array, order="C")) for name, array in arrays.items()}


def norm(gradients: Arrays) -> mx.array:
    """See `optimizer.norm`; the arrays are evaluated."""
    import numpy as np

    flat = [np.asarray(gradients[name]).ravel(order="K") for name in sorted(gradients)]
    blocks = [array[part] for array in flat for part in numpy_layers.slices(len(array), _SUMMED)]
    return mx.array(math.sqrt(sum(over_cores(_squares, blocks))))


def _squares(blocks: "list[Floats]") -> list[float]:
    """The sum of squares of each. Not `np.dot`, which takes several threads, and sums as many parts."""
    import numpy as np

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
    """Writes an update of AdamW into the parameters and moments, see `optimizer.AdamW`.

    Args:
        arrays: Parameters, means and squares, which are C-contiguous, and gradients; all evaluated.
        factor: Factor of the gradients.
        rates: The learning rate of each parameter, with all corrections.
        kept: The factor of each parameter that weight decay leaves.
        betas: The decay of the means and of the squares.
        eps: Added to the roots of the squares.
    """
    import numpy as np

    blocks: list[Block] = []
    for name, parameter in arrays[0].items():
        given = [np.atleast_1d(np.asarray(one[name])) for one in arrays]
        rows = max(1, numpy_layers.block_size() // 4 * len(given[0]) // parameter.size)
        for part in numpy_layers.slices(len(given[0]), rows):
            one, mean, square, gradient = (array[part] for array in given)
            blocks.append((one, mean, square, gradient, rates[name], kept[name]))
    over_cores(partial(_change, factor=factor, betas=betas, eps=eps), blocks)


def _change(blocks: "list[Block]", factor: float, betas: tuple[float, float], eps: float) -> list[None]:
    import numpy as np

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
