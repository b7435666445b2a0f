"""AdamW (arXiv:1711.05101) with bias correction, as torch computes it, and the learning rate of every update.

Parameters are flat dictionaries of float32 arrays, keyed by their full names.
"""

import math
import re
from dataclasses import dataclass, field, replace

from mlxbert.config import EncoderConfig, RelativeBias
from mlxbert.machine.device import dispatch, mx
from mlxbert.training.loop import adamw_numpy
from mlxbert.training.options.loop_options import TrainingOptions

BETAS, EPS = (0.9, 0.999), 1e-8
Arrays = dict[str, mx.array]
Scalar = float | mx.array
_POSITION_BIASES = "encoder.positions.weight"
_LAYER = re.compile(r"encoder\.layers\.(\d+)\.")


@dataclass(frozen=True)
class AdamW:
    """The state of the optimizer.

    Attributes:
        means: Sums of gradients, each decayed by the first beta with every update: the first moment of Adam divided by
            (1 - beta), which saves a pass over the numbers.
        squares: Sums of squared gradients, decayed by the second beta: the second moment divided by (1 - beta).
        updates: The number of updates so far.
        own: The parameters after the last update, if nothing else refers to their memory or to the moments. Then the
            next update may be written into the same memory, on a Linux CPU.
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
        """The state for parameters that are used elsewhere: the next update overwrites neither them nor the moments."""
        return replace(self, own=None)

    def update(
        self,
        parameters: Arrays,
        gradients: Arrays,
        factor: float,
        rates: dict[str, float],
        decays: dict[str, float],
    ) -> tuple["AdamW", Arrays]:
        """The evaluated state and parameters after an update on a CPU; `DeviceStep` is the equivalent for a GPU.

        Args:
            parameters: The values of the parameters. If they are `own`, they and the moments may be overwritten.
            gradients: The gradients, with the names of the parameters.
            factor: A factor of the gradients, for clipping and for dividing sums.
            rates: The learning rate of each parameter.
            decays: The weight decay of each parameter: the share that is subtracted, times the learning rate.
        """
        updates = self.updates + 1
        first, second = ((1 - beta) / (1 - beta**updates) for beta in BETAS)
        kept = {name: 1 - rate * decays[name] for name, rate in rates.items()}
        rates = {name: rate * first / math.sqrt(second) for name, rate in rates.items()}
        eps = EPS / math.sqrt(second)
        arrays = parameters, self.means, self.squares
        dispatch(arrays, gradients)
        if adamw_numpy.applies():
            changed, means, squares = arrays if self.own is parameters else map(adamw_numpy.copied, arrays)
            adamw_numpy.update((changed, means, squares, gradients), factor, rates, kept, BETAS, eps)
            return AdamW(means, squares, updates, changed), changed
        changed, means, squares = Arrays(), Arrays(), Arrays()
        for name, gradient in gradients.items():
            inputs = parameters[name], gradient, self.means[name], self.squares[name]
            changed[name], means[name], squares[name] = _step(*inputs, factor, rates[name], kept[name], eps)
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
    """The norm of all gradients together, float32, on a CPU; the bits do not depend on their order."""
    dispatch(gradients)
    if adamw_numpy.applies():
        return adamw_numpy.norm(gradients)
    squares = {name: mx.square(gradients[name].reshape(-1)).sum() for name in sorted(gradients)}
    dispatch(squares)
    return mx.sqrt(sum(squares.values(), mx.array(0.0)))


def clipping(length: Scalar, max_norm: float | None) -> Scalar:
    """The factor that clips a gradient of this length to `max_norm`; 1 if `max_norm` is 0 or `None`."""
    if not max_norm:
        return 1.0
    factor = max_norm / (length + 1e-6)
    return mx.minimum(factor, 1.0) if isinstance(factor, mx.array) else min(factor, 1.0)


def weight_decays(parameters: Arrays, config: EncoderConfig, options: TrainingOptions) -> dict[str, float]:
    """The weight decay of each parameter: `options.weight_decay` for matrices, 0 for biases and norms."""
    biases = _POSITION_BIASES if isinstance(config.positions, RelativeBias) else None  # a table: biases by distance
    matrices = {name for name, array in parameters.items() if array.ndim > 1 and name != biases}
    return {name: options.weight_decay if name in matrices else 0.0 for name in parameters}


def depth_factors(names: list[str], num_layers: int, options: TrainingOptions) -> dict[str, float]:
    """The factor of each parameter's learning rate: 1 for the heads, times `layer_decay` for every layer below."""
    return {name: options.layer_decay ** (num_layers + 1 - _depth(name, num_layers)) for name in names}


def _depth(name: str, num_layers: int) -> int:
    """The depth of a parameter: 0 for the embeddings, N for layer N (from 1), `num_layers + 1` for everything above."""
    if match := _LAYER.match(name):
        return int(match[1]) + 1
    below = ("encoder.embeddings.", "encoder.positions.", "encoder.convolution.")
    return 0 if name.startswith(below) else num_layers + 1


def is_frozen(name: str, num_layers: int, options: TrainingOptions) -> bool:
    """Whether a parameter belongs to the embeddings or to a layer that `freeze` excludes from training."""
    return options.freeze > 0 and _depth(name, num_layers) <= min(options.freeze, num_layers)


def learning_rate(step: int, steps: int, options: TrainingOptions) -> float:
    """The learning rate of an update, as in transformers' schedules, with a whole number of warmup updates.

    Args:
        step: The number of the update, from 0.
        steps: The total number of updates.
        options: The peak learning rate, the share of the warmup, and the schedule.
    """
    warmup = round(options.warmup * steps)
    if step < warmup:
        return options.lr * step / warmup
    if options.schedule == "constant":
        return options.lr
    done = (step - warmup) / max(steps - warmup, 1)
    return options.lr * ((1 - done) if options.schedule == "linear" else (1 + math.cos(math.pi * done)) / 2)
