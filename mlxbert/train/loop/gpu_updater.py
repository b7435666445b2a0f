"""Updates on a GPU. While the GPU computes an update, Python reads the numbers of the previous update.

`DeviceStep` computes the last stages of an update on the device: clipping, the check for numbers that are not finite,
AdamW, and the loss scale of float16. An update that is not finite changes neither the parameters nor the moments, and
neither does any update after one that ends the run.

Two functions are compiled, each once for all shapes: AdamW, which is called for each parameter, and the sum of sixteen
numbers. Each becomes a library of kernels, which takes seconds to build with CUDA and a tenth of a second with Metal.
The code that calls these functions is not compiled, so that each call remains a separate kernel. Otherwise `mx.compile`
would fuse several sums into a kernel with more than 31 arrays, the maximum that Metal can bind, and would fuse AdamW
and the computation of its scalars into different kernels for different parameters.
"""

import functools
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import cast

from mlxbert.machine import interrupts
from mlxbert.machine.device import dispatch, mx
from mlxbert.machine.device_errors import device_errors
from mlxbert.train.loop.adamw import BETAS, EPS, AdamW, Arrays, clipping
from mlxbert.train.loop.gradients import Gradients
from mlxbert.train.loop.saved_run import Progress, RunState
from mlxbert.train.loop.trained_parameters import TrainedParameters
from mlxbert.train.loop.training_inputs import Training
from mlxbert.train.loop.updater import StartedUpdate, Updater, less_memory

FIRST_SCALE, _MAX_SCALE = 2.0**15, 2.0**24  # the first and the maximum scale of a float16 loss
_GROWTH_INTERVAL = 1000  # number of updates without an overflow, after which the scale doubles
_TERMS = 16  # number of terms that one kernel sums up


class GpuUpdater(Updater):
    """Starts an update before waiting for the previous one. Keeps at most two sets of parameters and moments."""

    looks_ahead = True

    def __init__(self, training: Training, trained: TrainedParameters, state: RunState) -> None:
        super().__init__(training, trained, state)
        options, half = training.options, training.dtype == mx.float16
        self._change = DeviceStep(trained.factors, trained.decays, options.max_grad_norm, scaled=half)

    def start(self, batches: list[list[int]], lr: float) -> None:
        if not self.started:  # the state may have been evaluated or saved in between
            self._counters = self._change.counters(self.state.progress)
            self.gradients.differentiate.let_go(self.state.parameters)
        gradients = self.gradients(self.state.parameters, batches, self._step, self._counters["scale"])
        self.started.append(StartedUpdate(batches, lr, [*gradients.terms], gradients))
        del gradients  # `started` has the only reference, so that each gradient is freed as soon as it is used
        if len(self.started) == 1:
            self.follow()

    def follow(self) -> None:
        """Submits the last stages of the oldest started update, whose gradients the GPU may still be computing.

        The GPU has already computed the previous update, so at most two sets of parameters and moments are in memory.
        """
        if not self.started:
            return
        with interrupts.held():
            update, before = self.started[0], (self.state.parameters, self.state.optimizer)
            assert update.gradients is not None
            numbers, parameters, optimizer, self._counters = self._change(
                *before, update.gradients, self._counters, update.lr
            )
            self.started[0] = replace(update, numbers=numbers, gradients=None, before=before)
            self.state = replace(self.state, parameters=parameters, optimizer=optimizer)
            del update
            dispatch(numbers, parameters, optimizer.means, optimizer.squares, self._counters)

    def numbers(self) -> list[float]:
        """See `Updater.numbers`. When it returns, the GPU has computed the update and is computing the next one.

        The previous state must be kept until this method returns: arrays that a GPU failed to compute can be read
        without an error, but their contents are arbitrary.
        """
        numbers, parameters, optimizer = self.started[0].numbers, self.state.parameters, self.state.optimizer
        if isinstance(numbers, mx.array):
            with device_errors(less_memory(self._training), wait=False):
                mx.eval(numbers, parameters, optimizer.means, optimizer.squares)
            numbers = cast(list[float], numbers.tolist())
        assert numbers is not None
        return numbers

    def finish(self, usable: bool) -> RunState:
        update = self.started.popleft()
        return self._counted(self.state, update.lr) if usable else self.state

    def drop(self) -> None:
        """See `Updater.drop`. The GPU may not have computed the started updates yet."""
        if self.started and self.started[0].before is not None:
            parameters, optimizer = self.started[0].before
            self.state = replace(self.state, parameters=parameters, optimizer=optimizer)
        self.started.clear()

    def attempt(self, batches: list[list[int]]) -> None:
        state = replace(self.state, optimizer=self.state.optimizer.shared())
        gradients = self.gradients(state.parameters, batches, state.progress.step, state.progress.scale)
        counters = self._change.counters(state.progress)
        _, parameters, optimizer, _ = self._change(state.parameters, state.optimizer, gradients, counters, 0.0)
        dispatch(parameters, optimizer.means, optimizer.squares)


class DeviceStep:
    """Applies AdamW to the parameters on a GPU.

    Args:
        max_norm: The norm to which gradients are clipped; 0 or `None` to disable clipping.
        scaled: Whether the loss is scaled, as in float16. An update that overflows halves the scale.
    """

    def __init__(
        self, factors: Mapping[str, float], decays: Mapping[str, float], max_norm: float | None, *, scaled: bool
    ) -> None:
        pairs = {name: (factors[name], factors[name] * decays[name]) for name in factors}
        groups = sorted({*pairs.values()})  # parameters with the same rate and decay share scalars
        self._group_of = {name: groups.index(pair) for name, pair in pairs.items()}
        self._factors, self._decays = (mx.array([pair[part] for pair in groups], mx.float32) for part in range(2))
        self._max_norm, self._scaled = max_norm, scaled

    def counters(self, progress: Progress) -> Arrays:
        """Returns the values that every update changes, such as the loss scale, as arrays on the device."""
        return {
            "updates": mx.array(progress.updates, mx.float32),
            "scale": mx.array(progress.scale, mx.float32),
            "calm": mx.array(progress.calm, mx.float32),
            "going": mx.array(True),
        }

    def __call__(
        self, parameters: Arrays, optimizer: AdamW, gradients: Gradients, counters: Arrays, lr: float
    ) -> tuple[mx.array, Arrays, AdamW, Arrays]:
        """Builds an update without evaluating it. Arguments that nothing else refers to are freed once used.

        Args:
            counters: The result of `counters`, or the counters that the previous update returned.

        Returns:
            An array that holds the loss, its weight, the norm of the mean gradient and the terms of the loss; the
            parameters, the moments and the counters after the update.
        """
        weight = mx.where(gradients.weight == 0, 1.0, gradients.weight)  # a batch without targets changes nothing
        divisor = weight * counters["scale"]
        norm = _norm(gradients.arrays) / divisor
        usable = counters["going"] & mx.isfinite(norm) & mx.isfinite(gradients.loss)
        updates = counters["updates"] + usable
        factor = mx.where(usable, clipping(norm, self._max_norm) / divisor, 0.0)
        scalars = self._scalars(usable, updates, lr)
        updated, means, squares = Arrays(), Arrays(), Arrays()
        for name, parameter in parameters.items():
            arrays = parameter, gradients.arrays[name], optimizer.means[name], optimizer.squares[name]
            updated[name], means[name], squares[name] = _adamw()(
                *arrays, usable, factor, *scalars[self._group_of[name]]
            )
        numbers = mx.stack([gradients.loss, weight, norm, *gradients.terms.values()])
        counters_after = {"updates": updates, **self._counted(gradients.loss, usable, counters)}
        return numbers, updated, replace(optimizer, means=means, squares=squares, own=None), counters_after

    def _scalars(self, usable: mx.array, updates: mx.array, lr: float) -> list[tuple[mx.array, ...]]:
        """Returns the last arguments of `_update` for each group of parameters with equal learning rates and decays.

        If `usable` is false, an update with these arguments changes nothing.
        """
        first, second = ((1 - beta) / -mx.expm1(mx.maximum(updates, 1) * math.log(beta)) for beta in BETAS)
        root = mx.sqrt(second)
        moments = *(mx.where(usable, beta, 1.0) for beta in BETAS), EPS / root
        rate = mx.where(usable, mx.array(lr, mx.float32), 0.0)
        groups = rate * (first / root) * self._factors, 1 - rate * self._decays
        # Not `[group]`, which would run a kernel for each group.
        rates, kept = ([scalar.reshape(()) for scalar in mx.split(numbers, numbers.size)] for numbers in groups)
        return [(*moments, *pair) for pair in zip(rates, kept, strict=True)]

    def _counted(self, loss: mx.array, usable: mx.array, counters: Arrays) -> Arrays:
        """Returns the loss scale and the other counters after an update, all except the number of updates."""
        scale, calm = counters["scale"], counters["calm"]
        if not self._scaled:
            return {"scale": scale, "calm": calm, "going": usable}
        grown = calm + 1 == _GROWTH_INTERVAL
        larger = mx.where(grown, mx.minimum(scale * 2, _MAX_SCALE), scale)
        return {
            "scale": mx.where(usable, larger, scale / 2),
            "calm": mx.where(usable & ~grown, calm + 1, 0.0),
            "going": usable | (counters["going"] & mx.isfinite(loss) & (scale > 1)),
        }


def _norm(gradients: Arrays) -> mx.array:
    """See `adamw.norm`. The sum of squares of a vector is a single kernel: the product of the vector with itself."""
    arrays = [gradients[name] for name in sorted(gradients)]
    sums = [mx.square(array).sum() if array.ndim > 1 else array.reshape(-1) @ array.reshape(-1) for array in arrays]
    return mx.sqrt(_sum(sums))


def _sum(numbers: Sequence[mx.array]) -> mx.array:
    """Returns the sum of scalars. Groups of sixteen scalars are added up first, then their sums."""
    if len(numbers) == 1:
        return numbers[0]
    filled = [*numbers, *[mx.array(0.0)] * (-len(numbers) % _TERMS)]
    return _sum([_sum_of_sixteen()(*filled[start : start + _TERMS]) for start in range(0, len(filled), _TERMS)])


@functools.cache
def _sum_of_sixteen() -> Callable[..., mx.array]:
    def balanced(*numbers: mx.array) -> mx.array:
        middle = len(numbers) // 2
        return numbers[0] if len(numbers) == 1 else balanced(*numbers[:middle]) + balanced(*numbers[middle:])

    compiled: Callable[..., mx.array] = mx.compile(balanced, shapeless=True)
    return compiled


@functools.cache
def _adamw() -> Callable[..., tuple[mx.array, mx.array, mx.array]]:
    compiled: Callable[..., tuple[mx.array, mx.array, mx.array]] = mx.compile(_update, shapeless=True)
    return compiled


def _update(
    parameter: mx.array,
    gradient: mx.array,
    mean: mx.array,
    square: mx.array,
    usable: mx.array,
    factor: mx.array,
    mean_decay: mx.array,
    square_decay: mx.array,
    eps: mx.array,
    rate: mx.array,
    kept: mx.array,
) -> tuple[mx.array, mx.array, mx.array]:
    """Returns a parameter and its moments after an update (see `adamw.AdamW`). Arguments after `square` are scalars."""
    gradient = mx.where(usable, gradient * factor, 0.0)
    mean = mean * mean_decay + gradient
    square = square * square_decay + mx.square(gradient)
    return parameter * kept - mean * rate / (mx.sqrt(square) + eps), mean, square


def rescaled(progress: Progress, usable: bool) -> Progress:
    """Returns the progress, with the loss scale halved after an overflow, or doubled after many good updates."""
    if not usable:
        return replace(progress, scale=progress.scale / 2, calm=0)
    if progress.calm + 1 == _GROWTH_INTERVAL:
        return replace(progress, scale=min(progress.scale * 2, _MAX_SCALE), calm=0)
    return replace(progress, calm=progress.calm + 1)
