"""The last stages of an update: clipping, the check for numbers that are not finite, AdamW, and the loss scale.

`DeviceStep` computes them with MLX, on the device, without waiting for it. `CpuStep` computes them at once, with numpy,
where numpy can read and write MLX's arrays. An update that is not finite changes neither the parameters nor the
moments; on a device, neither does any update after one that ends the run.

On a GPU, two functions are compiled, each once for all shapes: AdamW, which is called for each parameter, and the sum
of sixteen numbers. Each becomes a library of kernels, which takes seconds to build with CUDA and a tenth of a second
with Metal. The code that calls these functions is not compiled, so that each call remains a separate kernel. Otherwise
`mx.compile` would fuse several sums into a kernel with more than 31 arrays, the maximum that Metal can bind, and would
fuse AdamW and the computation of its scalars into different kernels for different parameters. On a CPU, compiling needs
a C++ compiler, which users may lack.
"""

import functools
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any, cast

from mlxbert.machine.device import dispatch, mx, on_gpu
from mlxbert.nn.ops import backend
from mlxbert.train.loop.adamw import BETAS, EPS, AdamW, Arrays, clipping
from mlxbert.train.loop.gradients import Gradients
from mlxbert.train.loop.saved_run import Progress

FIRST_SCALE, _MAX_SCALE = 2.0**15, 2.0**24  # the first and the maximum scale of a float16 loss
_GROWTH_INTERVAL = 1000  # number of updates without an overflow, after which the scale doubles
_TERMS = 16  # number of terms that one kernel sums up


@functools.cache
def _compiled(function: Callable[..., Any]) -> Callable[..., Any]:
    compiled: Callable[..., Any] = mx.compile(function, shapeless=True)
    return compiled


class DeviceStep:
    """Applies AdamW to the parameters with MLX, after clipping gradients to `max_norm` (unless it is 0 or `None`).

    If the loss is `scaled`, as in float16, an update that overflows halves the scale.
    """

    def __init__(
        self, factors: Mapping[str, float], decays: Mapping[str, float], max_norm: float | None, *, scaled: bool
    ) -> None:
        pairs = {name: (factors[name], factors[name] * decays[name]) for name in factors}
        groups = sorted({*pairs.values()})  # parameters with the same rate and decay share scalars
        self._group_of = {name: groups.index(pair) for name, pair in pairs.items()}
        self._factors, self._decays = (mx.array([pair[part] for pair in groups], mx.float32) for part in range(2))
        self._max_norm, self._scaled = max_norm, scaled

    def counters(self, progress: Progress) -> dict[str, Any]:
        """Returns the values that every update changes, such as the loss scale, as arrays on the device."""
        return {
            "updates": mx.array(progress.updates, mx.float32),
            "scale": mx.array(progress.scale, mx.float32),
            "calm": mx.array(progress.calm, mx.float32),
            "going": mx.array(True),
        }

    def __call__(
        self, parameters: Arrays, optimizer: AdamW, gradients: Gradients, counters: dict[str, Any], lr: float
    ) -> tuple[mx.array, Arrays, AdamW, dict[str, Any]]:
        """Builds an update without evaluating it. Arguments that nothing else refers to are freed once used.

        Returns an array that holds the loss, its weight, the norm of the mean gradient and the terms of the loss; and
        the parameters, the moments and the counters after the update.
        """
        weight = mx.where(gradients.weight == 0, 1.0, gradients.weight)  # a batch without targets changes nothing
        divisor = weight * counters["scale"]
        norm = _norm(gradients.arrays) / divisor
        usable = counters["going"] & mx.isfinite(norm) & mx.isfinite(gradients.loss)
        updates = counters["updates"] + usable
        factor = mx.where(usable, clipping(norm, self._max_norm) / divisor, 0.0)
        scalars = self._scalars(usable, updates, lr)
        updated, means, squares = Arrays(), Arrays(), Arrays()
        update = _compiled(_update) if on_gpu() else _update
        for name, parameter in parameters.items():
            arrays = parameter, gradients.arrays[name], optimizer.means[name], optimizer.squares[name]
            updated[name], means[name], squares[name] = update(*arrays, usable, factor, *scalars[self._group_of[name]])
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


class CpuStep:
    """Applies AdamW to the parameters on a Linux CPU, in place of `DeviceStep`.

    Parameters and moments are overwritten if nothing else uses their memory (see `AdamW.own`).
    """

    def __init__(
        self, factors: Mapping[str, float], decays: Mapping[str, float], max_norm: float | None, *, scaled: bool
    ) -> None:
        self._factors, self._decays, self._max_norm = factors, decays, max_norm

    def counters(self, progress: Progress) -> dict[str, Any]:
        """See `DeviceStep.counters`."""
        return {"updates": progress.updates, "scale": progress.scale}

    def __call__(
        self, parameters: Arrays, optimizer: AdamW, gradients: Gradients, counters: dict[str, Any], lr: float
    ) -> tuple[list[float], Arrays, AdamW, dict[str, Any]]:
        """Computes an update (see `DeviceStep.__call__`)."""
        weight = mx.where(gradients.weight == 0, 1.0, gradients.weight)  # a batch without targets changes nothing
        dispatch(gradients.arrays)
        norm = backend().adamw.norm(gradients.arrays)
        sums = mx.stack([gradients.loss, weight, norm, *gradients.terms.values()])
        loss, divisor, length, *terms = cast(list[float], sums.tolist())
        numbers = [loss, divisor, length / (divisor * counters["scale"]), *terms]
        if math.isfinite(loss) and math.isfinite(numbers[2]):
            factor = cast(float, clipping(numbers[2], self._max_norm)) / (divisor * counters["scale"])
            counters = counters | {"updates": counters["updates"] + 1}
            arrays = *_to_overwrite(parameters, optimizer, first=counters["updates"] == 1), gradients.arrays
            self._update(arrays, factor, counters["updates"], lr)
            parameters, optimizer = arrays[0], AdamW(arrays[1], arrays[2], arrays[0])
        return numbers, parameters, optimizer, counters

    def _update(self, arrays: tuple[Arrays, Arrays, Arrays, Arrays], factor: float, updates: int, lr: float) -> None:
        """Overwrites parameters, means and squares with their values after an update with gradients."""
        first, second = ((1 - beta) / (1 - beta**updates) for beta in BETAS)
        rates = {name: lr * self._factors[name] for name in arrays[0]}
        kept = {name: 1 - rate * self._decays[name] for name, rate in rates.items()}
        rates = {name: rate * first / math.sqrt(second) for name, rate in rates.items()}
        dispatch(arrays)
        backend().adamw.update(arrays, factor, rates, kept, BETAS, EPS / math.sqrt(second))


def _to_overwrite(parameters: Arrays, optimizer: AdamW, *, first: bool) -> tuple[Arrays, Arrays, Arrays]:
    """Returns the parameters, means and squares in memory that an update may overwrite."""
    arrays, copied = (parameters, optimizer.means, optimizer.squares), backend().adamw.copied
    if optimizer.own is parameters:
        return arrays
    if not first:
        dispatch(arrays)
        changed, means, squares = map(copied, arrays)
        return changed, means, squares
    dispatch(parameters)  # before the first update, the moments are 0: no copies, which would take memory
    means, squares = ({name: mx.zeros_like(array) for name, array in parameters.items()} for _ in range(2))
    return copied(parameters), means, squares


def optimizer_step(
    factors: Mapping[str, float], decays: Mapping[str, float], max_norm: float | None, *, scaled: bool
) -> DeviceStep | CpuStep:
    """Returns what applies AdamW on the device in use (see `DeviceStep`)."""
    return (DeviceStep if backend().adamw is None else CpuStep)(factors, decays, max_norm, scaled=scaled)


def _norm(gradients: Arrays) -> mx.array:
    """Returns the norm of all gradients together. The order of the gradients does not matter.

    The sum of squares of a vector is a single kernel: the product of the vector with itself.
    """
    arrays = [gradients[name] for name in sorted(gradients)]
    sums = [mx.square(array).sum() if array.ndim > 1 else array.reshape(-1) @ array.reshape(-1) for array in arrays]
    return mx.sqrt(_sum(sums))


def _sum(numbers: Sequence[mx.array]) -> mx.array:
    """Returns the sum of scalars. Groups of sixteen scalars are added up first, then their sums."""
    if len(numbers) == 1:
        return numbers[0]
    filled = [*numbers, *[mx.array(0.0)] * (-len(numbers) % _TERMS)]
    add = _compiled(_balanced) if on_gpu() else _balanced
    return _sum([add(*filled[start : start + _TERMS]) for start in range(0, len(filled), _TERMS)])


def _balanced(*numbers: mx.array) -> mx.array:
    middle = len(numbers) // 2
    return numbers[0] if len(numbers) == 1 else _balanced(*numbers[:middle]) + _balanced(*numbers[middle:])


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
