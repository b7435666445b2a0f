"""The gradients of the parts of a batch are added module by module, in the order of the parts."""

import itertools

import numpy as np
import pytest

from mlxbert.machine.device import mx
from mlxbert.train.loop.adamw import AdamW
from mlxbert.train.loop.gradients import Gradients, _Sums
from mlxbert.train.loop.optimizer_steps import optimizer_step
from mlxbert.train.loop.saved_run import Progress

_MODULES = ("head", "layers.1", "layers.0")


def gradients(part: int, module: str) -> dict[str, mx.array]:
    key = mx.random.key(31 * part + len(module))
    return {f"{module}.weight": mx.random.normal((40,), key=key) * 10.0**part, f"{module}.bias": mx.full((3,), part)}


@pytest.mark.parametrize("order", itertools.permutations(range(3)), ids=str)
def test_the_last_digits_do_not_depend_on_which_part_is_first(order: tuple[int, ...]) -> None:
    sums = _Sums()
    for part in order:
        for module in _MODULES:
            sums.add(part, module, gradients(part, module))
    assert len(sums.arrays) == 2 * len(_MODULES)
    for module in _MODULES:
        parts = [gradients(part, module) for part in range(3)]
        for name, array in parts[0].items():
            wanted = (array + parts[1][name]) + parts[2][name]
            assert np.array_equal(np.array(sums.arrays[name]), np.array(wanted))


def test_a_part_waits_for_the_one_before() -> None:
    sums = _Sums()
    sums.add(1, "head", gradients(1, "head"))
    assert not sums.arrays
    sums.add(0, "head", gradients(0, "head"))
    assert sums.arrays.keys() == gradients(0, "head").keys()


def test_the_first_update_gives_the_numbers_of_moments_of_zeros() -> None:
    weights = {"a": mx.random.normal((7, 5)), "b": mx.random.normal((4,))}
    steps = {name: mx.random.normal(array.shape) for name, array in weights.items()}
    step = optimizer_step(dict.fromkeys(weights, 1.0), dict.fromkeys(weights, 0.01), 0, scaled=False)
    found = Gradients(mx.array(1.0), mx.array(2.0), steps)
    _, changed, state, _ = step(weights, AdamW.new(weights), found, step.counters(Progress()), 1e-3)
    for name, array in weights.items():
        gradient = np.array(steps[name], np.float64) * 0.5
        moved = np.array(array, np.float64) * (1 - 1e-3 * 0.01) - 1e-3 * gradient / (np.abs(gradient) + 1e-8)
        assert np.allclose(np.array(changed[name]), moved, atol=1e-6)
        assert np.allclose(np.array(state.means[name]), gradient, atol=1e-6)
        assert not np.shares_memory(np.array(changed[name], copy=False), np.array(array, copy=False))
