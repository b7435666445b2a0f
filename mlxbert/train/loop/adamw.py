"""AdamW (arXiv:1711.05101) with bias correction, as in torch, and the learning rates of a schedule.

Parameters are flat dictionaries of float32 arrays, keyed by their full names.
"""

import math
import re
from dataclasses import dataclass, field, replace

from mlxbert.config import EncoderConfig, RelativeBias
from mlxbert.machine.device import mx
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
