"""AdamW (arXiv:1711.05101) with bias correction, as in torch, and the learning rates of a schedule.

Parameters are flat dictionaries of float32 arrays, keyed by their full names.
"""

import math
import re
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import cast

from mlxbert.config import EncoderConfig, RelativeBias
from mlxbert.machine.device import dispatch, mx
from mlxbert.nn.ops import backend
from mlxbert.train.options.loop_options import TrainingOptions

BETAS, EPS = (0.9, 0.999), 1e-8
Arrays = dict[str, mx.array]
Scalar = float | mx.array
_POSITION_BIASES = "encoder.positions.weight"
_LAYER = re.compile(r"encoder\.layers\.(\d+)\.")


@dataclass(frozen=True)
class AdamW:
    """The state of the optimizer."""

    # The decayed sums of gradients: every update multiplies them by the first beta, then adds the gradients. They are
    # the first moment of Adam divided by (1 - beta), which saves a pass over the numbers.
    means: Arrays
    # The decayed sums of squared gradients, with the second beta. They are the second moment divided by (1 - beta).
    squares: Arrays
    updates: int = 0  # the number of updates so far
    # The parameters after the last update, if nothing else uses their memory or the memory of the moments; otherwise
    # `None`. On a Linux CPU, an update of these parameters may overwrite them and the moments.
    own: Arrays | None = field(default=None, repr=False)

    @classmethod
    def new(cls, parameters: Arrays) -> "AdamW":
        """Returns the state before the first update."""
        zeros = {name: mx.zeros_like(array) for name, array in parameters.items()}
        return cls(zeros, dict(zeros))

    def shared(self) -> "AdamW":
        """Returns the state without `own`, so that the next update overwrites neither parameters nor moments."""
        return replace(self, own=None)

    def update(
        self,
        parameters: Arrays,
        gradients: Arrays,
        factor: float,
        rates: dict[str, float],
        decays: dict[str, float],
    ) -> tuple["AdamW", Arrays]:
        """Updates the parameters on a CPU, and returns the new state and the new parameters, both evaluated.

        `DeviceStep` is the equivalent for a GPU.

        Args:
            parameters: The values of the parameters. If they are the `own` parameters of the state, the update may
                overwrite them and the moments.
            factor: The factor by which gradients are multiplied, to clip them and to turn sums into means.
            decays: The weight decay of each parameter. An update subtracts the product of the parameter, its weight
                decay and its learning rate.
        """
        updates = self.updates + 1
        first, second = ((1 - beta) / (1 - beta**updates) for beta in BETAS)
        kept = {name: 1 - rate * decays[name] for name, rate in rates.items()}
        rates = {name: rate * first / math.sqrt(second) for name, rate in rates.items()}
        eps = EPS / math.sqrt(second)
        if (fast := backend().adamw) is not None:
            changed, means, squares = self._to_overwrite(parameters, fast.copied)
            dispatch(changed, means, squares, gradients)
            fast.update((changed, means, squares, gradients), factor, rates, kept, BETAS, eps)
            return AdamW(means, squares, updates, changed), changed
        dispatch(parameters, self.means, self.squares, gradients)
        changed, means, squares = Arrays(), Arrays(), Arrays()
        for name, gradient in gradients.items():
            inputs = parameters[name], gradient, self.means[name], self.squares[name]
            changed[name], means[name], squares[name] = _step(*inputs, factor, rates[name], kept[name], eps)
        dispatch(means, squares, changed)
        return AdamW(means, squares, updates), changed

    def _to_overwrite(self, parameters: Arrays, copied: Callable[[Arrays], Arrays]) -> tuple[Arrays, Arrays, Arrays]:
        """Returns the parameters, means and squares in memory that an update may overwrite."""
        arrays = parameters, self.means, self.squares
        if self.own is parameters:
            return arrays
        if self.updates:
            dispatch(arrays)
            changed, means, squares = map(copied, arrays)
            return changed, means, squares
        dispatch(parameters)  # before the first update, the moments are 0: no copies, which would take memory
        means, squares = ({name: mx.zeros_like(array) for name, array in parameters.items()} for _ in range(2))
        return copied(parameters), means, squares


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
    """Returns a parameter and its moments after an update."""
    gradient = gradient * factor
    mean = mean * BETAS[0] + gradient
    square = square * BETAS[1] + mx.square(gradient)
    return (parameter if kept == 1 else parameter * kept) - mean * rate / (mx.sqrt(square) + eps), mean, square


def norm(gradients: Arrays) -> mx.array:
    """Returns the norm of all gradients together, float32, on a CPU. The order of the gradients does not matter."""
    dispatch(gradients)
    if (fast := backend().adamw) is not None:
        return cast(mx.array, fast.norm(gradients))
    squares = {name: mx.square(gradients[name].reshape(-1)).sum() for name in sorted(gradients)}
    dispatch(squares)
    return mx.sqrt(sum(squares.values(), mx.array(0.0)))


def clipping(length: Scalar, max_norm: float | None) -> Scalar:
    """Returns the factor that clips gradients from norm `length` to `max_norm`; 1 if `max_norm` is 0 or `None`."""
    if not max_norm:
        return 1.0
    factor = max_norm / (length + 1e-6)
    return mx.minimum(factor, 1.0) if isinstance(factor, mx.array) else min(factor, 1.0)


def weight_decays(parameters: Arrays, config: EncoderConfig, options: TrainingOptions) -> dict[str, float]:
    """Returns the weight decay of each parameter: `options.weight_decay` for matrices, 0 for biases and norms."""
    biases = _POSITION_BIASES if isinstance(config.positions, RelativeBias) else None  # a table, but of biases
    matrices = {name for name, array in parameters.items() if array.ndim > 1 and name != biases}
    return {name: options.weight_decay if name in matrices else 0.0 for name in parameters}


def depth_factors(names: list[str], num_layers: int, options: TrainingOptions) -> dict[str, float]:
    """Returns the factor of each parameter's learning rate.

    It is 1 for heads, `layer_decay` for the last layer, the square of `layer_decay` for the layer below, and so on.
    """
    return {name: options.layer_decay ** (num_layers + 1 - _depth(name, num_layers)) for name in names}


def _depth(name: str, num_layers: int) -> int:
    """Returns the depth of a parameter: 0 for embeddings, N for layer N (from 1), `num_layers + 1` for heads."""
    if match := _LAYER.match(name):
        return int(match[1]) + 1
    below = ("encoder.embeddings.", "encoder.positions.", "encoder.convolution.")
    return 0 if name.startswith(below) else num_layers + 1


def is_frozen(name: str, num_layers: int, options: TrainingOptions) -> bool:
    """Returns whether `freeze` excludes a parameter from training.

    Only the embeddings and the first layers can be excluded.
    """
    return options.freeze > 0 and _depth(name, num_layers) <= min(options.freeze, num_layers)


def learning_rate(step: int, steps: int, options: TrainingOptions) -> float:
    """Returns the learning rate of an update as in transformers' schedules, after rounded warmup updates."""
    warmup = round(options.warmup * steps)
    if step < warmup:
        return options.lr * step / warmup
    if options.schedule == "constant":
        return options.lr
    done = (step - warmup) / max(steps - warmup, 1)
    return options.lr * ((1 - done) if options.schedule == "linear" else (1 + math.cos(math.pi * done)) / 2)
