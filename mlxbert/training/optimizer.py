"""AdamW (arXiv:1711.05101) with bias correction, as torch computes it, and the learning rate of every update.

Parameters are flat dictionaries of float32 arrays by their full names.
"""

import functools
import math
import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

from mlxbert.config import EncoderConfig, RelativeBias
from mlxbert.machine.cores import in_parallel, training_workers
from mlxbert.machine.device import dispatch, mx, on_gpu
from mlxbert.training.options import TrainingOptions

BETAS, EPS = (0.9, 0.999), 1e-8
Arrays = dict[str, mx.array]
Scalar = float | mx.array
_POSITIONS = "encoder.positions.weight"
_LAYER = re.compile(r"encoder\.layers\.(\d+)\.")


@dataclass(frozen=True)
class AdamW:
    """The optimizer's memory.

    Attributes:
        means: Sums of gradients, each decayed by the first beta with every update: the first moment of Adam divided by
            (1 - beta), which saves a pass over the numbers.
        squares: The same of squared gradients, with the second beta.
        updates: How many updates it has made.
    """

    means: Arrays
    squares: Arrays
    updates: int = 0

    @classmethod
    def new(cls, parameters: Arrays) -> "AdamW":
        """The state before the first update."""
        zeros = {name: mx.zeros_like(array) for name, array in parameters.items()}
        return cls(zeros, dict(zeros))

    def update(
        self,
        parameters: Arrays,
        gradients: Arrays,
        factor: float | mx.array,
        rates: dict[str, float],
        decays: dict[str, float],
    ) -> tuple["AdamW", Arrays]:
        """The state and the parameters after an update; on a CPU they are evaluated, a GPU computes them meanwhile.

        Args:
            parameters: Their values.
            gradients: Of the same names.
            factor: Factor of the gradients: clips them, and divides sums.
            rates: The learning rate of each.
            decays: The weight decay of each: the share of it that is subtracted, times the learning rate.
        """
        updates = self.updates + 1
        first, second = ((1 - beta) / (1 - beta**updates) for beta in BETAS)

        dispatch(parameters, gradients, self.means, self.squares)
        step = _step_in_one_kernel if on_gpu() else _step

        def change(names: Sequence[str]) -> tuple[Arrays, Arrays, Arrays]:
            means, squares, changed = Arrays(), Arrays(), Arrays()
            for name in names:
                scalars = factor, rates[name] * first / math.sqrt(second), 1 - rates[name] * decays[name]
                given = parameters[name], gradients[name], self.means[name], self.squares[name]
                changed[name], means[name], squares[name] = step(*given, *scalars, EPS / math.sqrt(second))
            dispatch(means, squares, changed)
            return means, squares, changed

        parts = in_parallel([partial(change, names) for names in _shares(parameters)])
        means, squares, changed = map(_merged, zip(*parts, strict=True))
        return AdamW(means, squares, updates), changed


def _step(
    parameter: mx.array,
    gradient: mx.array,
    mean: mx.array,
    square: mx.array,
    factor: Scalar,
    rate: Scalar,
    kept: Scalar,
    eps: Scalar,
) -> tuple[mx.array, mx.array, mx.array]:
    """A parameter and its moments after an update."""
    gradient = gradient * factor
    mean = mean * BETAS[0] + gradient
    square = square * BETAS[1] + mx.square(gradient)
    whole = isinstance(kept, float) and kept == 1
    return (parameter if whole else parameter * kept) - mean * rate / (mx.sqrt(square) + eps), mean, square


def _step_in_one_kernel(*given: Any) -> tuple[mx.array, mx.array, mx.array]:
    """`_step` compiled: its 15 operations are one kernel. Numbers are arrays, or each value would be compiled anew."""
    arrays = (one if isinstance(one, mx.array) else mx.array(one, mx.float32) for one in given)
    found: tuple[mx.array, mx.array, mx.array] = _compiled()(*arrays)
    return found


@functools.cache
def _compiled() -> Any:
    return mx.compile(_step, shapeless=True)


def norm(gradients: Arrays) -> mx.array:
    """The length of all gradients together, float32; the same to the bit in whatever order they come."""
    dispatch(gradients)

    def square(names: Sequence[str]) -> Arrays:
        found = {name: mx.square(gradients[name].reshape(-1)).sum() for name in names}
        dispatch(found)
        return found

    parts = in_parallel([partial(square, names) for names in _shares(gradients)])
    squares = _merged(parts)
    return mx.sqrt(sum((squares[name] for name in sorted(gradients)), mx.array(0.0)))


def clipping(length: float | mx.array, most: float | None) -> float | mx.array:
    """The factor that shortens a gradient of this length to `most`; 1 if that is 0 or `None`."""
    if not most:
        return 1.0
    factor = most / (length + 1e-6)
    return mx.minimum(factor, 1.0) if isinstance(factor, mx.array) else min(factor, 1.0)


def _merged(parts: Iterable[Arrays]) -> Arrays:
    return {name: array for part in parts for name, array in part.items()}


def _shares(arrays: Arrays) -> list[list[str]]:
    """The names of arrays in as many groups as there are workers, of about the same size."""
    shares: list[list[str]] = [[] for _ in range(max(len(training_workers()), 1))]
    sizes = [0] * len(shares)
    for name in sorted(arrays, key=lambda name: -arrays[name].size):
        least = sizes.index(min(sizes))
        shares[least].append(name)
        sizes[least] += arrays[name].size
    return shares


def weight_decays(parameters: Arrays, config: EncoderConfig, options: TrainingOptions) -> dict[str, float]:
    """The weight decay of each parameter: that of the options for matrices, none for biases and norms."""
    biases = _POSITIONS if isinstance(config.positions, RelativeBias) else None  # a table of them, for each distance
    matrices = {name for name, array in parameters.items() if array.ndim > 1 and name != biases}
    return {name: options.weight_decay if name in matrices else 0.0 for name in parameters}


def depth_factors(names: list[str], num_layers: int, options: TrainingOptions) -> dict[str, float]:
    """The factor of each parameter's learning rate: 1 for the heads, less by `layer_decay` for every layer below."""
    return {name: options.layer_decay ** (num_layers + 1 - _depth(name, num_layers)) for name in names}


def _depth(name: str, num_layers: int) -> int:
    """0 for the embeddings, the number of a layer from 1, and one more for everything above the layers."""
    if found := _LAYER.match(name):
        return int(found[1]) + 1
    below = ("encoder.embeddings.", "encoder.positions.", "encoder.convolution.")
    return 0 if name.startswith(below) else num_layers + 1


def is_frozen(name: str, num_layers: int, options: TrainingOptions) -> bool:
    """Whether a parameter belongs to the embeddings or layers that `freeze` leaves as they are."""
    return options.freeze > 0 and _depth(name, num_layers) <= min(options.freeze, num_layers)


def learning_rate(step: int, steps: int, options: TrainingOptions) -> float:
    """The learning rate of an update, as in transformers' schedules, with a whole number of updates to warm up.

    Args:
        step: The number of the update, from 0.
        steps: How many updates there are.
        options: The highest rate, the share of the warm-up, and the schedule.
    """
    warmup = round(options.warmup * steps)
    if step < warmup:
        return options.lr * step / warmup
    if options.schedule == "constant":
        return options.lr
    done = (step - warmup) / max(steps - warmup, 1)
    return options.lr * ((1 - done) if options.schedule == "linear" else (1 + math.cos(math.pi * done)) / 2)
