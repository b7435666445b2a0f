"""Estimates the time and memory of a run from a few updates, and the number of updates that fit into a given time."""

import itertools
from collections.abc import Callable
from dataclasses import dataclass

from mlxbert.machine import device as devices
from mlxbert.machine.device import mx
from mlxbert.train.loop import phase_times
from mlxbert.train.loop.events import Estimate
from mlxbert.train.loop.training_run import Run

_COUNTED_UPDATES = 200  # spread over the run, to count the tokens of an average update
_TIMED_UPDATES = 3
_TIME_LIMIT = 20.0  # seconds; no more updates are timed afterwards
_FORWARD = 1 / 3  # the share of the forward pass in the time of an update


@dataclass(frozen=True)
class Costs:
    """The time and memory of a run."""

    update: float  # the time of an update in seconds
    evaluation: float  # the time of an evaluation in seconds
    # The time in seconds of everything that is computed only once: a teacher's scores and the final evaluation.
    once: float
    memory: int  # the peak memory in bytes
    free: int | None  # the memory in bytes that other programs do not hold

    def estimate(self, run: Run, runs: int) -> Estimate:
        """Estimates the remaining time and the memory of all runs, which have the same number of updates."""
        updates = runs * run.steps - run.state.progress.step
        seconds = updates * self.cycle(run) + runs * self.evaluation + self.once
        return Estimate(seconds=seconds, memory=self.memory, available=devices.available_memory(), free=self.free)

    def updates(self, run: Run, seconds: float) -> int:
        """Returns how many updates, with the evaluations between them, fit into a given time.

        The time of the evaluation after the last update is not included.
        """
        steps = int(seconds / self.update)
        while steps > 0:
            run.order.end_after(steps)  # the interval between evaluations may depend on it
            fitting = int(seconds / self.cycle(run))
            if fitting >= steps:
                break
            steps = fitting
        return steps

    def cycle(self, run: Run) -> float:
        """Returns the time of an update in seconds, including its share of an evaluation."""
        return self.update + self.evaluation / run.every


def measure(run: Run, evaluated: int, after: int) -> Costs:
    """Times a few updates of a run, and discards their results.

    An evaluation processes `evaluated` tokens, and the final evaluation `after` tokens.
    """
    order, unused, own = run.order, devices.unused_memory(), mx.get_active_memory()  # a CPU keeps what updates free

    def padded(batch: list[int]) -> int:
        return len(batch) * max(order.tokens([number]) for number in batch)

    updates = [order.batches(step) for step in range(0, run.steps, max(run.steps // _COUNTED_UPDATES, 1))]
    first = _seconds(run.try_update, max(updates, key=lambda update: max(map(padded, update))))  # also warms up
    teaching, seconds, timed = 0.0, 0.0, 0
    for update in updates[:: max(len(updates) // _TIMED_UPDATES, 1)]:
        new, repeated = (_seconds(run.try_batches, update) for _ in range(2))
        teaching += max(new - repeated, 0.0)  # a teacher computes each example only once
        seconds, timed = seconds + _seconds(run.try_update, update), timed + sum(map(order.tokens, update))
        if first + seconds > _TIME_LIMIT:
            break
    tokens = sum(map(order.tokens, itertools.chain(*updates))) / len(updates)
    forward = seconds / timed * _FORWARD
    return Costs(
        update=tokens * seconds / timed, evaluation=evaluated * forward, memory=mx.get_peak_memory(),
        free=None if unused is None else unused + own,
        once=after * forward + tokens * order.epoch_steps * teaching / timed,
    )  # fmt: skip


def _seconds(attempt: Callable[[list[list[int]]], None], batches: list[list[int]]) -> float:
    start = phase_times.clock()
    attempt(batches)
    return phase_times.clock() - start
