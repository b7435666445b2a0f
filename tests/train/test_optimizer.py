"""AdamW, which parameters it trains how, and the sums of the gradients of the parts of a batch."""

import itertools
import math
from typing import Any

import numpy as np
import pytest

from mlxbert.config import Absolute, RelativeBias
from mlxbert.cpu import cores, numpy_layers
from mlxbert.errors import InputError
from mlxbert.machine.device import mx
from mlxbert.nn.encoder import Batch, KnownIds
from mlxbert.nn.ops import backend
from mlxbert.train.loop.adamw import AdamW, Arrays
from mlxbert.train.loop.gradients import Gradients, _Sums
from mlxbert.train.loop.optimizer_steps import CpuStep, DeviceStep, optimizer_step
from mlxbert.train.loop.saved_run import Progress
from mlxbert.train.loop.trained_parameters import TABLE, SparseRows, depth_factors, is_frozen, weight_decays
from mlxbert.train.options.loop_options import TrainingOptions
from tests.helpers.tiny import tiny_config

needs_memory = pytest.mark.skipif(backend().adamw is None, reason="numpy does not see the memory of MLX's arrays here")
NAMES = [
    "encoder.embeddings.word.weight", "encoder.embeddings.norm.bias", "encoder.layers.0.attention.query.weight",
    "encoder.layers.1.feed_forward.up.bias", "encoder.pooler.dense.weight", "heads.sequence_classifier.out.weight",
]  # fmt: skip


def by_hand(weight: float, gradients: list[float], lr: float, decay: float) -> float:
    """Algorithm 2 of arXiv:1711.05101, one number, in double precision."""
    mean = square = 0.0
    for update, gradient in enumerate(gradients, 1):
        weight *= 1 - lr * decay
        mean, square = 0.9 * mean + 0.1 * gradient, 0.999 * square + 0.001 * gradient**2
        weight -= lr * (mean / (1 - 0.9**update)) / (math.sqrt(square / (1 - 0.999**update)) + 1e-8)
    return weight


def summed(gradients: Arrays, weight: float = 1.0) -> Gradients:
    return Gradients(mx.array(1.0), mx.array(weight), gradients)


@pytest.mark.parametrize("kind", [DeviceStep, pytest.param(CpuStep, marks=needs_memory)])
def test_updates_are_those_of_the_paper(kind: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delattr(mx, "compile")  # on a CPU, it needs a C++ compiler, which users may lack
    gradients = [0.3, -0.2, 1e-5, 0.0, 2.0, -2.0]
    parameters = {"matrix": mx.array([[0.5]]), "bias": mx.array([0.5])}
    state = AdamW.new(parameters)
    decays = weight_decays(parameters, tiny_config(), TrainingOptions(weight_decay=0.1))
    step = kind(dict.fromkeys(parameters, 1.0), decays, 0, scaled=False)
    counters = step.counters(Progress())
    for gradient in gradients:
        found = summed({"matrix": mx.array([[gradient]]), "bias": mx.array([gradient])})
        _, parameters, state, counters = step(parameters, state, found, counters, 0.01)
    assert parameters["matrix"].item() == pytest.approx(by_hand(0.5, gradients, 0.01, 0.1), rel=1e-6)
    assert parameters["bias"].item() == pytest.approx(by_hand(0.5, gradients, 0.01, 0.0), rel=1e-6)


def test_a_table_of_biases_does_not_decay() -> None:
    table = {"encoder.positions.weight": mx.zeros((32, 3)), "encoder.embeddings.position.weight": mx.zeros((9, 3))}
    options = TrainingOptions(weight_decay=0.1)
    assert [*weight_decays(table, tiny_config(positions=RelativeBias(Absolute(9))), options).values()] == [0.0, 0.1]
    assert [*weight_decays(table, tiny_config(), options).values()] == [0.1, 0.1]


def test_the_weight_and_the_scale_divide_gradients() -> None:
    parameters = {"a": mx.array([1.0, 2.0])}
    gradients = {"a": mx.array([1.6, -3.2])}
    step = optimizer_step({"a": 1.0}, {"a": 0.0}, 0, scaled=True)
    counters = step.counters(Progress(scale=4.0))
    _, _, halved, _ = step(parameters, AdamW.new(parameters), summed(gradients, 2.0), counters, 0.1)
    assert halved.means["a"].tolist() == pytest.approx([0.2, -0.4])
    assert halved.squares["a"].tolist() == pytest.approx([0.04, 0.16])


def norm(gradients: Arrays, kind: Any = optimizer_step) -> float:
    """The norm that a step reports, by default that of this device."""
    ones = dict.fromkeys(gradients, 1.0)
    step = kind(ones, ones, 0, scaled=False)
    numbers, *_ = step(gradients, AdamW.new(gradients), summed(gradients), step.counters(Progress()), 0.0)
    return float(np.array(numbers)[2])


@pytest.mark.parametrize("kind", [optimizer_step, DeviceStep])
def test_the_norm_is_that_of_all_gradients(kind: Any) -> None:
    assert norm({"a": mx.array([[3.0]]), "b": mx.array([0.0, 4.0])}, kind) == 5
    assert norm({str(number): mx.array([2.0]) for number in range(49)}, kind) == 14


def test_layers_below_learn_more_slowly() -> None:
    factors = depth_factors(NAMES, 2, TrainingOptions(layer_decay=0.5))
    assert [factors[name] for name in NAMES] == [0.125, 0.125, 0.25, 0.5, 1, 1]


@pytest.mark.parametrize(("freeze", "frozen"), [(0, 0), (1, 3), (2, 4), (9, 4)])
def test_freezing_takes_the_embeddings_and_the_first_layers(freeze: int, frozen: int) -> None:
    options = TrainingOptions(freeze=freeze)
    assert [is_frozen(name, 2, options) for name in NAMES] == [number < frozen for number in range(len(NAMES))]


def test_rows_that_are_not_used_only_decay() -> None:
    table = mx.arange(12, dtype=mx.float32).reshape(6, 2) + 1
    used = SparseRows(table, [5, 3], fixed=1)
    assert used.take().tolist() == [table[row].tolist() for row in (0, 1, 3, 5)]
    whole = used.whole({TABLE: used.take() * 10, "other": mx.array(1)}, decay=0.5)
    assert whole[TABLE].tolist() == [
        (table[row] * (10 if row in (0, 1, 3, 5) else 0.5)).tolist() for row in range(6)
    ]  # fmt: skip
    assert table.tolist() == (mx.arange(12).reshape(6, 2) + 1).tolist()  # untouched


def test_a_token_that_is_not_in_the_training_data_is_refused() -> None:
    used = SparseRows(mx.ones((9, 2)), [5, 3], fixed=1)
    with pytest.raises(InputError, match="4"):
        used.renumbered(Batch(mx.array([[5, 4]]), ids=KnownIds(frozenset({5, 4}))))
    # Without known ids, the network refuses it.
    assert used.renumbered(Batch(mx.array([[5, 4]]), ids=None)).input_ids.tolist() == [[3, -1]]


def arrays(seed: int, scale: float = 1.0) -> dict[str, mx.array]:
    rng = np.random.default_rng(seed)
    shapes = {"matrix": (700, 300), "bias": (300,), "one": (), "row": (1, 9)}  # the first is several blocks
    return {name: mx.array(scale * rng.normal(size=shape), mx.float32) for name, shape in shapes.items()}


def updated(count: int, own: bool = True) -> list[dict[str, Any]]:
    """Parameters, means and squares after some updates; the norms of the gradients."""
    now, norms = arrays(0), list[float]()
    state = AdamW.new(now)
    decays = {"matrix": 0.1, "bias": 0.0, "one": 0.1, "row": 0.0}
    step = optimizer_step(dict.fromkeys(now, 1.0), decays, 0, scaled=False)
    counters = step.counters(Progress())
    for number in range(count):
        gradients = arrays(number + 1, scale=0.1)
        gradients["matrix"] = mx.array(np.asarray(gradients["matrix"]).T.copy()).T  # as MLX lays them out
        before = state if own else state.shared()
        numbers, now, state, counters = step(now, before, summed(gradients, 2.0), counters, 1e-2)
        norms.append(float(np.array(numbers)[2]))
    named = {"parameters": now, "means": state.means, "squares": state.squares}.values()
    return [*({name: array.tolist() for name, array in one.items()} for one in named), {"norms": norms}]


@needs_memory
@pytest.mark.parametrize("most", [0.0, 1.0, 1e3])
def test_updates_of_a_gpu_are_those_of_a_cpu(most: float) -> None:
    here = there = arrays(0)
    cpu = gpu = AdamW.new(here)
    factors, decays = dict.fromkeys(here, 1.0) | {"bias": 2.0}, dict.fromkeys(here, 0.1) | {"bias": 0.0}
    device, cores_step = (kind(factors, decays, most, scaled=True) for kind in (DeviceStep, CpuStep))
    counters, own = (step.counters(Progress(scale=4.0)) for step in (device, cores_step))
    for number, lr in enumerate((1e-3, 2e-3, 3e-3), 1):
        gradients = arrays(number)
        found = Gradients(mx.array(6.0), mx.array(2.0), gradients, {"one": mx.array(5.0)})
        expected, here, cpu, own = cores_step(here, cpu, found, own, lr)
        numbers, there, gpu, counters = device(there, gpu, found, counters, lr)
        length = math.sqrt(sum(float((np.array(one, np.float64) ** 2).sum()) for one in gradients.values())) / 8
        np.testing.assert_allclose(expected, [6, 2, length, 5], rtol=1e-6)
        np.testing.assert_allclose(np.array(numbers), expected, rtol=1e-4)  # MLX loses digits of the norm
    for one, other in ((here, there), (cpu.means, gpu.means), (cpu.squares, gpu.squares)):
        for name, array in one.items():
            np.testing.assert_allclose(np.array(other[name]), np.array(array), rtol=2e-6, atol=1e-6)


@needs_memory
@pytest.mark.parametrize("count", [1, 2, 3])
def test_an_update_has_the_same_bits_on_any_number_of_cores(count: int, monkeypatch: pytest.MonkeyPatch) -> None:
    expected = updated(3)
    monkeypatch.setattr(numpy_layers, "block_size", lambda: 4 * 2**14)
    monkeypatch.setattr(cores, "training_workers", lambda: [cores._worker(number) for number in range(count)])
    assert updated(3) == expected == updated(3, own=False)


@needs_memory
def test_an_update_writes_into_nothing_that_others_have() -> None:
    given, gradients = arrays(0), arrays(1)
    zeros = {name: mx.zeros_like(array) for name, array in given.items()}
    given["other"], gradients["other"], zeros["other"] = given["bias"], gradients["bias"], zeros["bias"]  # one memory
    before = {name: array.tolist() for name, array in (given | {f"g {n}": a for n, a in gradients.items()}).items()}
    step = CpuStep(dict.fromkeys(given, 1.0), dict.fromkeys(given, 0.1), 0, scaled=False)

    def update(parameters: Arrays, state: AdamW, before: int = 1) -> tuple[Arrays, AdamW]:
        return step(parameters, state, summed(gradients), {"scale": 1.0, "updates": before}, 1e-2)[1:3]

    one, first = update(given, AdamW(zeros, zeros), 0)
    kept = {name: array.tolist() for name, array in one.items()}
    two, other = update(one, first.shared())
    assert {name: array.tolist() for name, array in one.items()} == kept != {n: a.tolist() for n, a in two.items()}
    three, second = update(one, first)
    assert three is one and second.means is first.means  # in place
    assert all(mx.array_equal(three[name], two[name]) for name in two)
    assert all(mx.array_equal(second.squares[name], other.squares[name]) for name in two)

    assert {n: a.tolist() for n, a in (given | {f"g {n}": a for n, a in gradients.items()}).items()} == before
    assert all(not array.any().item() for array in zeros.values())
    assert mx.array_equal(two["other"], two["bias"])


@needs_memory
def test_the_norm_is_exact_and_of_numbers_that_are_too_large_not_finite() -> None:
    assert math.isinf(norm({"a": mx.array([1e30, 1.0])}))
    assert math.isnan(norm({"a": mx.array([math.nan, 1.0])}))
    assert norm({"a": mx.broadcast_to(mx.array(2.0), (3, 3))}) == 6
    exact = math.sqrt(sum(float((np.array(one, np.float64) ** 2).sum()) for one in arrays(1).values()))
    assert norm(arrays(1)) == pytest.approx(exact, rel=2e-7)


_MODULES = ("head", "layers.1", "layers.0")


def module_gradients(part: int, module: str) -> dict[str, mx.array]:
    key = mx.random.key(31 * part + len(module))
    return {f"{module}.weight": mx.random.normal((40,), key=key) * 10.0**part, f"{module}.bias": mx.full((3,), part)}


@pytest.mark.parametrize("order", itertools.permutations(range(3)), ids=str)
def test_the_last_digits_do_not_depend_on_which_part_is_first(order: tuple[int, ...]) -> None:
    sums = _Sums()
    for part in order:
        for module in _MODULES:
            sums.add(part, module, module_gradients(part, module))
    assert len(sums.arrays) == 2 * len(_MODULES)
    for module in _MODULES:
        parts = [module_gradients(part, module) for part in range(3)]
        for name, array in parts[0].items():
            wanted = (array + parts[1][name]) + parts[2][name]
            assert np.array_equal(np.array(sums.arrays[name]), np.array(wanted))


def test_a_part_waits_for_the_one_before() -> None:
    sums = _Sums()
    sums.add(1, "head", module_gradients(1, "head"))
    assert not sums.arrays
    sums.add(0, "head", module_gradients(0, "head"))
    assert sums.arrays.keys() == module_gradients(0, "head").keys()
