"""Compares the updates of weights in training with AdamW in float64, computed by the formulas of the paper."""

import math
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np

from mlxbert.doctor.check.formulas import F64, Adam
from mlxbert.doctor.check.operations import DTYPES, CheckedOperation, ComputedOperation, RandomInputs
from mlxbert.machine.device import mx
from mlxbert.nn.ops import backend
from mlxbert.train.loop.adamw import AdamW, Arrays
from mlxbert.train.loop.gradients import Gradients
from mlxbert.train.loop.optimizer_steps import FIRST_SCALE, CpuStep, DeviceStep
from mlxbert.train.loop.saved_run import Progress

ARRAYS = 204  # more than in bert-base; from about 60 arrays on, a single kernel for all would be too large for Metal
_RATE, _WEIGHT, _MAX_NORM = 1e-2, 4.0, 1.0  # the learning rate, the weight of the batch, the norm to clip to
_NAMES = [f"array {number}" for number in range(ARRAYS)]
_KINDS = ((1.0, 0.01), (0.5, 0.0))  # factors of the learning rate and weight decays
# Factor of the allowed error of changes of about 1: a change of 0.01 to a float32 parameter of 1 is rounded to 6e-6.
_NEAR = 10.0


def updates() -> Iterator[CheckedOperation]:
    """Yields the operation `update`, whose checks cover the update by MLX and, on a Linux CPU, the one by numpy."""
    # It uses products of vectors with themselves, for the norm.
    yield CheckedOperation("update", "update", _updates, DTYPES[:1], frozenset({"products"}), quick=DTYPES[:1])


@dataclass(frozen=True)
class _CheckedModel:
    """Random parameters and the gradients of two updates."""

    parameters: Arrays  # the parameters by name
    gradients: list[Arrays]  # the gradients of each update by name, summed over a batch
    values: dict[str, F64]  # the parameters in float64
    slopes: list[dict[str, F64]]  # the gradients in float64


def _draw_model(inputs: RandomInputs) -> _CheckedModel:
    """Draws vectors, matrices, and matrices whose gradients are transposed, like those of dense layers."""
    parameters, values = Arrays(), dict[str, F64]()
    gradients, slopes = ([Arrays(), Arrays()], [dict[str, F64](), dict[str, F64]()])
    for number, name in enumerate(_NAMES):
        shape = ((33,), (6, 10), (10, 6))[number % 3]
        parameters[name], values[name] = inputs.draw(*shape)
        for update in range(2):
            transposed = number % 3 == 2
            array, slope = inputs.draw(*(shape[::-1] if transposed else shape), scale=_WEIGHT)
            gradients[update][name], slopes[update][name] = (array.T, slope.T) if transposed else (array, slope)
    return _CheckedModel(parameters, gradients, values, slopes)


def _kind(name: str) -> tuple[float, float]:
    return _KINDS[_NAMES.index(name) % len(_KINDS)]


def _expected(model: _CheckedModel) -> tuple[dict[str, Adam], list[float]]:
    """Computes the expected arrays after two clipped updates, and the norm of the mean gradients of each update."""
    adams, lengths = {name: Adam(value) for name, value in model.values.items()}, []
    for slopes in model.slopes:
        lengths.append(math.sqrt(sum(float((slope**2).sum()) for slope in slopes.values())) / _WEIGHT)
        factor = min(1.0, _MAX_NORM / (lengths[-1] + 1e-6)) / _WEIGHT
        for name, adam in adams.items():
            rate, decay = _kind(name)
            adam.update(slopes[name] * factor, _RATE * rate, decay)
    return adams, lengths


def _updates(inputs: RandomInputs) -> Iterator[ComputedOperation]:
    model = _draw_model(inputs)
    adams, lengths = _expected(model)
    settings = {n: _kind(n)[0] for n in _NAMES}, {n: _kind(n)[1] for n in _NAMES}, _MAX_NORM
    for scaled in (False, True):
        name, step = f"update of {ARRAYS} arrays{', scaled' * scaled}", DeviceStep(*settings, scaled=scaled)
        updated, optimizer, numbers, counters = _updated(step, model, FIRST_SCALE if scaled else 1.0)
        yield from _compare(name, model, adams, updated, optimizer)
        expected = np.array([[1.0, _WEIGHT, length] for length in lengths])
        yield ComputedOperation(f"{name}: loss, weight, norm", mx.stack(numbers)[:, :3], expected)
        if scaled:
            yield _overflowed(step, model, updated, optimizer, counters)
    if backend().adamw is not None:
        updated, optimizer, *_ = _updated(CpuStep(*settings, scaled=False), model, 1.0)
        yield from _compare(f"update of {ARRAYS} arrays, on the CPU", model, adams, updated, optimizer)


def _compare(
    name: str, model: _CheckedModel, adams: dict[str, Adam], updated: Arrays, optimizer: AdamW
) -> Iterator[ComputedOperation]:
    """Compares the parameters and moments after two updates with the expected ones.

    Changes of parameters are measured in units of the learning rate. `AdamW` keeps the moments divided by (1 - beta).
    """
    for part, arrays, right in (
        ("parameters", {n: (updated[n] - model.parameters[n]) / _RATE for n in _NAMES},
         {n: (adams[n].parameter - model.values[n]) / _RATE for n in _NAMES}),
        ("first moments", {n: optimizer.means[n] for n in _NAMES}, {n: adams[n].mean / 0.1 for n in _NAMES}),
        ("second moments", {n: optimizer.squares[n] for n in _NAMES}, {n: adams[n].square / 0.001 for n in _NAMES}),
    ):  # fmt: skip
        flat = mx.concatenate([arrays[name].reshape(-1) for name in _NAMES])
        expected = np.concatenate([right[name].ravel() for name in _NAMES])
        yield ComputedOperation(f"{name}: {part}", flat, expected, factor=_NEAR)


def _updated(
    step: DeviceStep | CpuStep, model: _CheckedModel, scale: float
) -> tuple[Arrays, AdamW, list[Any], dict[str, Any]]:
    """Makes two updates; returns the parameters, the optimizer, the numbers of each update, and the counters."""
    counters = step.counters(Progress(scale=scale))
    parameters, optimizer, numbers = dict(model.parameters), AdamW.new(model.parameters), []
    for gradients in model.gradients:
        batch = _batch({name: gradient * scale for name, gradient in gradients.items()})
        reported, parameters, optimizer, counters = step(parameters, optimizer, batch, counters, _RATE)
        numbers.append(reported)
    mx.eval(parameters, optimizer.means, optimizer.squares, numbers, counters)
    return parameters, optimizer, numbers, counters


def _overflowed(
    step: DeviceStep, model: _CheckedModel, parameters: Arrays, optimizer: AdamW, counters: dict[str, Any]
) -> ComputedOperation:
    """Checks that an update whose gradients overflow changes nothing and halves the scale."""
    infinite = {name: gradient * math.inf for name, gradient in model.gradients[0].items()}
    _, after, _, counters = step(dict(parameters), optimizer, _batch(infinite), counters, _RATE)
    moved = mx.stack([mx.abs(after[name] - parameters[name]).max() for name in _NAMES]).max()
    found = mx.stack([moved, counters["scale"]])
    mx.eval(found)
    return ComputedOperation(
        "update that overflows: largest change, scale", found, np.array([0.0, FIRST_SCALE / 2]), exact=True
    )


def _batch(gradients: Arrays) -> Gradients:
    return Gradients(mx.array(1.0), mx.array(_WEIGHT), gradients)
