"""The learning rate of each update: warmup, then a schedule."""

import math

from mlxbert.train.options.loop_options import TrainingOptions


def learning_rate(step: int, steps: int, options: TrainingOptions) -> float:
    """Returns the learning rate of an update as in transformers' schedules, after rounded warmup updates."""
    warmup = round(options.warmup * steps)
    if step < warmup:
        return options.lr * step / warmup
    if options.schedule == "constant":
        return options.lr
    done = (step - warmup) / max(steps - warmup, 1)
    return options.lr * ((1 - done) if options.schedule == "linear" else (1 + math.cos(math.pi * done)) / 2)
