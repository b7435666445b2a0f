"""Updates on a CPU. Starting an update computes its gradients; finishing it changes the parameters."""

from dataclasses import replace
from typing import cast

from mlxbert.machine.device import mx
from mlxbert.train.loop.adamw import Arrays, clipping, norm
from mlxbert.train.loop.gradients import Gradients
from mlxbert.train.loop.saved_run import RunState
from mlxbert.train.loop.updater import StartedUpdate, Updater


class CpuUpdater(Updater):
    """Computes one update at a time. An update overwrites the parameters unless something else uses their memory."""

    looks_ahead = False

    def start(self, batches: list[list[int]], lr: float) -> None:
        scale = self.state.progress.scale
        gradients = self.gradients(self.state.parameters, batches, self._step, scale)
        self.started.append(StartedUpdate(batches, lr, [*gradients.terms], gradients, _numbers(gradients, scale)))

    def numbers(self) -> list[float]:
        return cast(list[float], self.started[0].numbers)

    def finish(self, usable: bool) -> RunState:
        update, state = self.started.popleft(), self.state
        if not usable:
            return state
        assert update.gradients is not None
        _, weight, length, *_ = cast(list[float], update.numbers)
        return self._updated(state, update.gradients.arrays, weight * state.progress.scale, length, update.lr)

    def follow(self) -> None:
        """See `Updater.follow`. Does nothing on a CPU, where `finish` applies each update."""

    def attempt(self, batches: list[list[int]]) -> None:
        state = replace(self.state, optimizer=self.state.optimizer.shared())
        scale = state.progress.scale
        gradients = self.gradients(state.parameters, batches, state.progress.step, scale)
        _, weight, length, *_ = _numbers(gradients, scale)
        self._updated(state, gradients.arrays, weight * scale, length, lr=0.0)

    def _updated(self, state: RunState, gradients: Arrays, divisor: float, length: float, lr: float) -> RunState:
        """Returns the state after an update.

        Args:
            divisor: The number that turns the sums into means.
            length: The norm of the mean gradient.
        """
        factor = cast(float, clipping(length, self._training.options.max_grad_norm))
        rates = {name: lr * self._trained.factors[name] for name in state.parameters}
        optimizer, parameters = state.optimizer.update(
            state.parameters, gradients, factor / divisor, rates, self._trained.decays
        )
        return self._counted(replace(state, parameters=parameters, optimizer=optimizer), lr)


def _numbers(gradients: Gradients, scale: float) -> list[float]:
    """Reads the loss, its weight, the norm of the mean gradient and the terms of the loss, all at once."""
    weight = mx.where(gradients.weight == 0, 1.0, gradients.weight)  # a batch without targets changes nothing
    values = mx.stack([gradients.loss, weight, norm(gradients.arrays), *gradients.terms.values()])
    loss, divisor, length, *terms = cast(list[float], values.tolist())
    return [loss, divisor, length / (divisor * scale), *terms]
