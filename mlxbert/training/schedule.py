"""The learning rate of every update."""

import math

from mlxbert.training.options import TrainingOptions


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
