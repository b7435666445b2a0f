"""The end of an update on a GPU: clipping, the check for numbers that are not finite, AdamW and the scale of float16.

All of it happens on the device. Python reads the loss and the norm later, while the device computes the next update. An
update that is not finite leaves the parameters and the moments as they are, and so do all updates after one that ends
the run.

It is compiled in two functions, each of one shape. In a single one, or in one with the gradients, `mx.compile` would
make six kernels of the update of a parameter instead of one, as scalars that are computed within are fused with it.
"""

import functools
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace

from mlxbert.machine.device import mx
from mlxbert.training.checkpoint import Progress
from mlxbert.training.gradients import Gradients
from mlxbert.training.optimizer import BETAS, EPS, AdamW, Arrays, clipping

FIRST_SCALE, _LARGEST_SCALE, _CALM = 2.0**15, 2.0**24, 1000  # of the loss in float16
_TERMS = 20  # of a sum, as many as one kernel takes
Moments = tuple[Arrays, Arrays, Arrays]


class DeviceStep:
    """Updates parameters on a GPU.

    Args:
        factors: The factor of each parameter's learning rate.
        decays: The weight decay of each.
        most: The norm that gradients are clipped to; 0 for no limit.
        scaled: Whether the loss has a scale, as in float16: then an update that overflows halves it.
    """

    def __init__(
        self, factors: Mapping[str, float], decays: Mapping[str, float], most: float | None, *, scaled: bool
    ) -> None:
        pairs = [(factors[name], decays[name]) for name in factors]
        kinds = sorted(set(pairs))
        # In one kernel for each parameter, if there is nothing in it that parameters share but scalars.
        self._kinds = {name: kinds.index(pair) for name, pair in zip(factors, pairs, strict=True)}
        self._decayed = [decay != 0 for _, decay in kinds]
        self._rates, self._decays = (mx.array([pair[part] for pair in kinds], mx.float32) for part in range(2))
        measure = functools.partial(_measured, rates=self._rates, decays=self._decays, most=most, scaled=scaled)
        self._measure: Callable[..., tuple[mx.array, Arrays, Arrays]] = mx.compile(measure)
        self._change: Callable[..., Moments] = mx.compile(functools.partial(_changed, self._kinds, self._decayed))

    def counters(self, progress: Progress) -> Arrays:
        """What changes with every update, on the device, after those that are finished."""
        return {
            "updates": mx.array(progress.updates, mx.float32),
            "scale": mx.array(progress.scale, mx.float32),
            "calm": mx.array(progress.calm, mx.float32),
            "going": mx.array(True),
        }

    def __call__(
        self, parameters: Arrays, optimizer: AdamW, found: Gradients, counters: Arrays, lr: float
    ) -> tuple[mx.array, Arrays, AdamW, Arrays]:
        """An update, not evaluated. Of the arrays that are given, each is freed after its kernel where nobody has them.

        Args:
            parameters: Their values.
            optimizer: The moments.
            found: The gradients.
            counters: As `counters` or the update before gave them.
            lr: The learning rate.

        Returns:
            The loss, its weight, the norm of the mean gradient and the terms; the parameters, the moments and the
            counters after the update.
        """
        sums = [found.loss, found.weight, *found.terms.values()]
        numbers, scalars, counters = self._measure(sums, found.arrays, counters, mx.array(lr, mx.float32))
        changed, means, squares = self._change(parameters, optimizer.means, optimizer.squares, found.arrays, scalars)
        return numbers, changed, replace(optimizer, means=means, squares=squares, own=None), counters


def _measured(
    sums: Sequence[mx.array],
    gradients: Arrays,
    counters: Arrays,
    lr: mx.array,
    *,
    rates: mx.array,
    decays: mx.array,
    most: float | None,
    scaled: bool,
) -> tuple[mx.array, Arrays, Arrays]:
    """The numbers that are read, the scalars of the update, and the counters after it."""
    loss, given, *terms = sums
    weight = mx.where(given == 0, 1.0, given)  # batches without a target change nothing
    divisor = weight * counters["scale"]
    length = _length(gradients) / divisor
    usable = counters["going"] & mx.isfinite(length) & mx.isfinite(loss)
    updates = counters["updates"] + usable
    first, second = ((1 - beta) / -mx.expm1(mx.maximum(updates, 1) * math.log(beta)) for beta in BETAS)
    root, each = mx.sqrt(second), lr * rates
    scalars = {
        "usable": usable,
        "factor": mx.where(usable, clipping(length, most) / divisor, 0.0),
        "mean": mx.where(usable, BETAS[0], 1.0),
        "square": mx.where(usable, BETAS[1], 1.0),
        "eps": EPS / root,
        "rates": mx.where(usable, each * first / root, 0.0),
        "kept": mx.where(usable, 1 - each * decays, 1.0),
    }
    going = usable
    scale, calm = counters["scale"], counters["calm"]
    if scaled:
        going = usable | (counters["going"] & mx.isfinite(loss) & (scale > 1))
        grown = calm + 1 == _CALM
        larger = mx.where(grown, mx.minimum(scale * 2, _LARGEST_SCALE), scale)
        scale, calm = mx.where(usable, larger, scale / 2), mx.where(usable & ~grown, calm + 1, 0.0)
    after = {"updates": updates, "scale": scale, "calm": calm, "going": going}
    return mx.stack([loss, weight, length, *terms]), scalars, after


def _length(gradients: Arrays) -> mx.array:
    """See `optimizer.norm`. Of a vector the sum of squares is one kernel, as a product with itself."""
    found = [gradients[name].reshape(-1) if gradients[name].ndim < 2 else gradients[name] for name in sorted(gradients)]
    sums = [one @ one if one.ndim == 1 else mx.square(one).sum() for one in found]
    while len(sums) > 1:
        sums = [sum(sums[start + 1 : start + _TERMS], sums[start]) for start in range(0, len(sums), _TERMS)]
    return mx.sqrt(sums[0])


def _changed(
    kinds: Mapping[str, int],
    decayed: Sequence[bool],
    parameters: Arrays,
    means: Arrays,
    squares: Arrays,
    gradients: Arrays,
    scalars: Arrays,
) -> Moments:
    """The parameters and the moments after an update, each as it is where the update is not usable."""
    usable, factor, eps = scalars["usable"], scalars["factor"], scalars["eps"]
    after: Moments = {}, {}, {}
    for name, parameter in parameters.items():
        kind = kinds[name]
        gradient = mx.where(usable, gradients[name] * factor, 0.0)
        mean = means[name] * scalars["mean"] + gradient
        square = squares[name] * scalars["square"] + mx.square(gradient)
        kept = parameter * scalars["kept"][kind] if decayed[kind] else parameter
        changed = kept - mean * scalars["rates"][kind] / (mx.sqrt(square) + eps)
        for arrays, array in zip(after, (changed, mean, square), strict=True):
            arrays[name] = array
    return after


def rescaled(progress: Progress, usable: bool) -> Progress:
    """Halves the scale of the loss after an overflow; doubles it after a long time without one."""
    if not usable:
        return replace(progress, scale=progress.scale / 2, calm=0)
    if progress.calm + 1 == _CALM:
        return replace(progress, scale=min(progress.scale * 2, _LARGEST_SCALE), calm=0)
    return replace(progress, calm=progress.calm + 1)
