"""The learning rate of each update and each parameter, the weight decay of a parameter, and what is not trained."""

import math
import re

from mlxbert.config import EncoderConfig, RelativeBias
from mlxbert.train.loop.adamw import Arrays
from mlxbert.train.options.loop_options import TrainingOptions

_POSITION_BIASES = "encoder.positions.weight"
_LAYER = re.compile(r"encoder\.layers\.(\d+)\.")


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
