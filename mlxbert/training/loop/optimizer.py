"""AdamW (arXiv:1711.05101) with bias correction, as torch computes it, and the learning rate of every update.

Parameters are flat dictionaries of float32 arrays by their full names.
"""

import math
import re
from dataclasses import dataclass, field, replace

from mlxbert.config import EncoderConfig, RelativeBias
from mlxbert.machine.device import dispatch, mx
from mlxbert.training.loop import numpy_adamw
from mlxbert.training.options.loop_options import TrainingOptions

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
        own: The parameters after the last of them, if nobody else has their memory or that of the moments: then the
            next one may be written into it, on a Linux CPU.
    """

    means: Arrays
    squares: Arrays
    updates: int = 0
    own: Arrays | None = field(default=None, repr=False)

    @classmethod
    def new(cls, parameters: Arrays) -> "AdamW":
        """The state before the first update."""
        zeros = {name: mx.zeros_like(array) for name, array in parameters.items()}
        return cls(zeros, dict(zeros))

    def shared(self) -> "AdamW":
        """The same where others have the parameters, too: the next update leaves them, and the moments, as they are."""
        return replace(self, own=None)

    def update(
        self,
        parameters: Arrays,
        gradients: Arrays,
        factor: float,
        rates: dict[str, float],
        decays: dict[str, float],
    ) -> tuple["AdamW", Arrays]:
        """The state and the parameters after an update on a CPU, evaluated; `DeviceStep` is for a GPU.

        Args:
            parameters: Their values; those that it owns may be changed, and its moments with them.
            gradients: Of the same names.
            factor: Factor of the gradients: clips them, and divides sums.
            rates: The learning rate of each.
            decays: The weight decay of each: the share of it that is subtracted, times the learning rate.
        """
        updates = self.updates + 1
        first, second = ((1 - beta) / (1 - beta**updates) for beta in BETAS)
        kept = {name: 1 - rate * decays[name] for name, rate in rates.items()}
        rates = {name: rate * first / math.sqrt(second) for name, rate in rates.items()}
        eps = EPS / math.sqrt(second)
        given = parameters, self.means, self.squares
        dispatch(given, gradients)
        if numpy_adamw.applies():
            changed, means, squares = given if self.own is parameters else map(numpy_adamw.copied, given)
            numpy_adamw.update((changed, means, squares, gradients), factor, rates, kept, BETAS, eps)
            return AdamW(means, squares, updates, changed), changed
        changed, means, squares = Arrays(), Arrays(), Arrays()
        for name, gradient in gradients.items():
            of_it = parameters[name], gradient, self.means[name], self.squares[name]
            changed[name], means[name], squares[name] = _step(*of_it, factor, rates[name], kept[name], eps)
        dispatch(means, squares, changed)
        return AdamW(means, squares, updates), changed


def _step(
    parameter: mx.array,
    gradient: mx.array,
    mean: mx.array,
    square: mx.array,
    factor: float,
    rate: float,
    kept: float,
    eps: float,
) -> tuple[mx.array, mx.array, mx.array]:
    """A parameter and its moments after an update."""
    gradient = gradient * factor
    mean = mean * BETAS[0] + gradient
    square = square * BETAS[1] + mx.square(gradient)
    return (parameter if kept == 1 else parameter * kept) - mean * rate / (mx.sqrt(square) + eps), mean, square


def norm(gradients: Arrays) -> mx.array:
    """The length of all gradients together, float32, on a CPU; the same to the bit in whatever order they come."""
    dispatch(gradients)
    if numpy_adamw.applies():
        return numpy_adamw.norm(gradients)
    squares = {name: mx.square(gradients[name].reshape(-1)).sum() for name in sorted(gradients)}
    dispatch(squares)
    return mx.sqrt(sum(squares.values(), mx.array(0.0)))


def clipping(length: Scalar, most: float | None) -> Scalar:
    """The factor that shortens a gradient of this length to `most`; 1 if that is 0 or `None`."""
    if not most:
        return 1.0
    factor = most / (length + 1e-6)
    return mx.minimum(factor, 1.0) if isinstance(factor, mx.array) else min(factor, 1.0)


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
