"""What a run will take, measured on a few of its batches."""

import time
from collections.abc import Callable

from mlxbert.machine.device import available_memory, mx
from mlxbert.training.events import Estimate
from mlxbert.training.loop import Run
from mlxbert.training.plan import Plan

_TIMED = 3  # updates
_FORWARD = 1 / 3  # of the time of an update


def estimate(run: Run, plan: Plan) -> Estimate:
    """Time and memory of a run: updates are computed, and dropped.

    Args:
        run: A run that has not begun.
        plan: Its data.
    """
    lengths = [len(example) for example in plan.train.examples]
    order = run.order
    updates = [order.batches(step) for step in range(order.epoch_steps)]
    tokens = [sum(map(order.tokens, update)) for update in updates]
    largest = max(updates, key=lambda update: max(len(batch) * max(lengths[n] for n in batch) for batch in update))
    run.try_update(largest)  # also warms up
    asking, seconds, timed = 0.0, 0.0, 0
    for step in range(0, len(updates), max(len(updates) // _TIMED, 1)):
        first, again = (_seconds(run.try_batches, updates[step]) for _ in range(2))
        asking += max(first - again, 0.0)  # a teacher is asked once for each example
        seconds, timed = seconds + _seconds(run.try_update, updates[step]), timed + tokens[step]
    training = sum(tokens) * order.epochs(run.steps) * seconds / timed
    evaluating = sum(map(len, plan.valid.examples)) * run.evaluations * seconds / timed * _FORWARD
    learning = sum(tokens) * asking / timed
    return Estimate(seconds=training + evaluating + learning, memory=mx.get_peak_memory(), available=available_memory())


def _seconds(attempt: Callable[[list[list[int]]], None], batches: list[list[int]]) -> float:
    start = time.perf_counter()
    attempt(batches)
    return time.perf_counter() - start
