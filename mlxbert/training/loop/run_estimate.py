"""What a run will take, measured on a few of its updates, and how many updates a given time allows."""

import itertools
from collections.abc import Callable
from dataclasses import dataclass

from mlxbert.machine.device import available_memory, mx
from mlxbert.training.loop import phase_times
from mlxbert.training.loop.events import Estimate
from mlxbert.training.loop.training_run import Run

_SEEN = 200  # updates whose tokens are counted, of the whole run
_TIMED = 3  # updates
_LONG = 20.0  # seconds, after which no more updates are timed
_FORWARD = 1 / 3  # of the time of an update


@dataclass(frozen=True)
class Costs:
    """What a run takes.

    Attributes:
        update: Seconds of an update.
        evaluation: Seconds of an evaluation.
        once: Seconds of what is computed once: the scores of a teacher, and what follows training.
        memory: Bytes at the peak.
    """

    update: float
    evaluation: float
    once: float
    memory: int

    def estimate(self, run: Run, runs: int) -> Estimate:
        """What is left of a run, with the others of as many updates that follow it; `runs` in all."""
        updates = runs * run.steps - run.state.progress.step
        seconds = updates * self.cycle(run) + runs * (self.evaluation + self.once)
        return Estimate(seconds=seconds, memory=self.memory, available=available_memory())

    def updates(self, run: Run, seconds: float) -> int:
        """How many updates, with the evaluations between them, fit into a time that excludes the last evaluation."""
        steps = int(seconds / self.update)
        while steps > 0:
            run.order.end_after(steps)  # how many there are may decide how often it is evaluated
            fitting = int(seconds / self.cycle(run))
            if fitting >= steps:
                break
            steps = fitting
        return steps

    def cycle(self, run: Run) -> float:
        """Seconds of an update with its share of the evaluation that follows some of them."""
        return self.update + self.evaluation / run.every


def measure(run: Run, evaluated: int, after: int) -> Costs:
    """Computes some updates, and drops them.

    Args:
        run: The run.
        evaluated: The tokens of the validation data.
        after: The tokens that the model reads after training.
    """
    order = run.order

    def padded(batch: list[int]) -> int:
        return len(batch) * max(order.tokens([number]) for number in batch)

    updates = [order.batches(step) for step in range(0, run.steps, max(run.steps // _SEEN, 1))]
    first = _seconds(run.try_update, max(updates, key=lambda update: max(map(padded, update))))  # also warms up
    asking, seconds, timed = 0.0, 0.0, 0
    for update in updates[:: max(len(updates) // _TIMED, 1)]:
        new, again = (_seconds(run.try_batches, update) for _ in range(2))
        asking += max(new - again, 0.0)  # a teacher is asked once for each example
        seconds, timed = seconds + _seconds(run.try_update, update), timed + sum(map(order.tokens, update))
        if first + seconds > _LONG:
            break
    tokens = sum(map(order.tokens, itertools.chain(*updates))) / len(updates)
    forward = seconds / timed * _FORWARD
    return Costs(
        update=tokens * seconds / timed, evaluation=evaluated * forward, memory=mx.get_peak_memory(),
        once=after * forward + tokens * order.epoch_steps * asking / timed,
    )  # fmt: skip


def _seconds(attempt: Callable[[list[list[int]]], None], batches: list[list[int]]) -> float:
    start = phase_times.clock()
    attempt(batches)
    return phase_times.clock() - start
