"""Updates of the weights as the product makes them, next to AdamW in float64 by the paper's formulas."""

import contextlib
import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass

import numpy as np

from mlxbert.bench.device_check.formulas import F64, Adam
from mlxbert.bench.device_check.operations import DTYPES, CheckedOperation, ComputedOperation, RandomInputs
from mlxbert.machine.device import mx, on_gpu, scalar
from mlxbert.training.loop.gpu_updater import FIRST_SCALE, DeviceStep
from mlxbert.training.loop.gradients import Gradients
from mlxbert.training.loop.optimizer import AdamW, Arrays, clipping, norm
from mlxbert.training.loop.saved_run import Progress

ARRAYS = 204  # more than bert-base has: from some sixty on, a kernel that takes them all would be too large for Metal
_RATE, _WEIGHT, _MOST = 1e-2, 4.0, 1.0  # the learning rate, the weight of the batch, the norm to clip to
_NAMES = [f"array {number}" for number in range(ARRAYS)]
_KINDS = ((1.0, 0.01), (0.5, 0.0))  # factors of the learning rate and weight decays
# Of what an update changes by about 1: float32 parameters of 1 have 6e-6 left of a change of 0.01.
_NEAR = 10.0


def updates() -> Iterator[CheckedOperation]:
    """The update of a GPU, and on a CPU that of a CPU as well."""
    # Products: of vectors with themselves, for the norm.
    yield CheckedOperation("update", "update", _updates, DTYPES[:1], frozenset({"products"}), quick=DTYPES[:1])


@dataclass(frozen=True)
class _CheckedModel:
    """Parameters, and the gradients of two updates, as the sum over a batch; each in float64, too."""

    parameters: Arrays
    gradients: list[Arrays]
    values: dict[str, F64]
    slopes: list[dict[str, F64]]


def _drawn(inputs: RandomInputs) -> _CheckedModel:
    """Vectors, matrices, and matrices whose gradient is transposed, as that of a dense layer's weight is."""
    parameters, values = Arrays(), dict[str, F64]()
    gradients, slopes = ([Arrays(), Arrays()], [dict[str, F64](), dict[str, F64]()])
    for number, name in enumerate(_NAMES):
        shape = ((33,), (6, 10), (10, 6))[number % 3]
        parameters[name], values[name] = inputs.draw(*shape)
        for update in range(2):
            turned = number % 3 == 2
            one, slope = inputs.draw(*(shape[::-1] if turned else shape), scale=_WEIGHT)
            gradients[update][name], slopes[update][name] = (one.T, slope.T) if turned else (one, slope)
    return _CheckedModel(parameters, gradients, values, slopes)


def _kind(name: str) -> tuple[float, float]:
    return _KINDS[_NAMES.index(name) % len(_KINDS)]


def _expected(model: _CheckedModel) -> tuple[dict[str, Adam], list[float]]:
    """Every array after two clipped updates, and the norms of the mean gradients."""
    adams, lengths = {name: Adam(value) for name, value in model.values.items()}, []
    for slopes in model.slopes:
        lengths.append(math.sqrt(sum(float((one**2).sum()) for one in slopes.values())) / _WEIGHT)
        factor = min(1.0, _MOST / (lengths[-1] + 1e-6)) / _WEIGHT
        for name, adam in adams.items():
            rate, decay = _kind(name)
            adam.update(slopes[name] * factor, _RATE * rate, decay)
    return adams, lengths


def _updates(inputs: RandomInputs) -> Iterator[ComputedOperation]:
    model = _drawn(inputs)
    adams, lengths = _expected(model)
    for scaled in (False, True):
        with _by_hand():
            name = f"update of {ARRAYS} arrays{', scaled' * scaled}"
            found, optimizer, numbers, overflowed = _on_a_gpu(model, scaled=scaled)
            yield from _compared(name, model, adams, found, optimizer)
            expected = np.array([[1.0, _WEIGHT, length] for length in lengths])
            yield ComputedOperation(f"{name}: loss, weight, norm", numbers, expected)
            if overflowed is not None:
                yield overflowed
    if not on_gpu():
        yield from _compared(f"update of {ARRAYS} arrays, a CPU's", model, adams, *_on_a_cpu(model))


def _compared(
    name: str, model: _CheckedModel, adams: dict[str, Adam], found: Arrays, optimizer: AdamW
) -> Iterator[ComputedOperation]:
    """What two updates changed, in learning rates; the moments, which `AdamW` keeps divided by (1 - beta)."""
    for part, arrays, right in (
        ("parameters", {n: (found[n] - model.parameters[n]) / _RATE for n in _NAMES},
         {n: (adams[n].parameter - model.values[n]) / _RATE for n in _NAMES}),
        ("first moments", {n: optimizer.means[n] for n in _NAMES}, {n: adams[n].mean / 0.1 for n in _NAMES}),
        ("second moments", {n: optimizer.squares[n] for n in _NAMES}, {n: adams[n].square / 0.001 for n in _NAMES}),
    ):  # fmt: skip
        flat = mx.concatenate([arrays[name].reshape(-1) for name in _NAMES])
        expected = np.concatenate([right[name].ravel() for name in _NAMES])
        yield ComputedOperation(f"{name}: {part}", flat, expected, factor=_NEAR)


def _on_a_gpu(model: _CheckedModel, *, scaled: bool) -> tuple[Arrays, AdamW, mx.array, ComputedOperation | None]:
    """Two updates as on a GPU, the numbers of each, and of a loss with a scale: whether an overflow changes nothing."""
    step = DeviceStep({n: _kind(n)[0] for n in _NAMES}, {n: _kind(n)[1] for n in _NAMES}, _MOST, scaled=scaled)
    scale = FIRST_SCALE if scaled else 1.0
    counters = step.counters(Progress(scale=scale))
    parameters, optimizer, numbers = dict(model.parameters), AdamW.new(model.parameters), []
    for gradients in model.gradients:
        given = {name: one * scale for name, one in gradients.items()}
        said, parameters, optimizer, counters = step(parameters, optimizer, _batch(given), counters, _RATE)
        numbers.append(said)
    mx.eval(parameters, optimizer.means, optimizer.squares, numbers, counters)
    overflowed = None
    if scaled:
        infinite = {name: one * math.inf for name, one in model.gradients[0].items()}
        kept = dict(parameters)
        _, after, _, counters = step(dict(kept), optimizer, _batch(infinite), counters, _RATE)
        moved = mx.stack([mx.abs(after[name] - kept[name]).max() for name in _NAMES]).max()
        overflowed = ComputedOperation(
            "update that overflows: what changes, the scale", mx.stack([moved, counters["scale"]]),
            np.array([0.0, scale / 2]), exact=True,
        )  # fmt: skip
        mx.eval(overflowed.found)
    return parameters, optimizer, mx.stack(numbers)[:, :3], overflowed


def _batch(gradients: Arrays) -> Gradients:
    return Gradients(mx.array(1.0), mx.array(_WEIGHT), gradients)


def _on_a_cpu(model: _CheckedModel) -> tuple[Arrays, AdamW]:
    """Two updates as on a CPU."""
    parameters, optimizer = dict(model.parameters), AdamW.new(model.parameters)
    for gradients in model.gradients:
        factor = clipping(scalar(norm(gradients)) / _WEIGHT, _MOST) / _WEIGHT
        assert isinstance(factor, float)
        rates = {name: _RATE * _kind(name)[0] for name in _NAMES}
        optimizer, parameters = optimizer.update(
            parameters, gradients, factor, rates, {name: _kind(name)[1] for name in _NAMES}
        )
    return parameters, optimizer


@contextlib.contextmanager
def _by_hand() -> Iterator[None]:
    """Within it a CPU compiles nothing: that takes a C++ compiler, which users lack."""
    if on_gpu() or not _compiles():
        yield
        return
    mx.disable_compile()
    try:
        yield
    finally:
        mx.enable_compile()


def _compiles() -> bool:
    """Whether MLX compiles now: a function that is compiled runs once, and is repeated the second time."""
    calls = []

    def count(x: mx.array) -> mx.array:
        calls.append(0)
        return x

    compiled: Callable[[mx.array], mx.array] = mx.compile(count)
    for _ in range(2):
        compiled(mx.array(0.0))
    return len(calls) == 1
