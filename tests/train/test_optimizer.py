"""What an update is computed of: losses, the order of the data, gradients and their sums, rates, AdamW."""

import itertools
import math
import random
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from hypothesis import given, strategies as st
from numpy.typing import NDArray

from mlxbert.config import Absolute, RelativeBias
from mlxbert.cpu import cores, numpy_layers
from mlxbert.errors import ArgumentError, InputError
from mlxbert.machine.device import mx
from mlxbert.nn.encoder import Batch, KnownIds
from mlxbert.nn.ops import backend
from mlxbert.train.loop.adamw import AdamW, Arrays
from mlxbert.train.loop.data_order import batches, parts, shares
from mlxbert.train.loop.gradients import Gradients, _Sums
from mlxbert.train.loop.learning_rate import learning_rate
from mlxbert.train.loop.optimizer_steps import CpuStep, DeviceStep, optimizer_step
from mlxbert.train.loop.saved_run import Progress
from mlxbert.train.loop.trained_parameters import TABLE, SparseRows, depth_factors, is_frozen, weight_decays
from mlxbert.train.nn.losses import binary_cross_entropy, cross_entropy, mean_squared_error, soft_cross_entropies
from mlxbert.train.options.loop_options import Schedule, TrainingOptions, check_sweep
from tests.helpers.cases import together
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


@pytest.mark.parametrize("kind", [optimizer_step, DeviceStep])
def test_the_weight_and_the_scale_divide_gradients(kind: Any) -> None:
    parameters, gradients = {"a": mx.array([1.0, 2.0])}, {"a": mx.array([1.6, -3.2])}
    step = kind({"a": 1.0}, {"a": 0.0}, 0, scaled=True)
    found = Gradients(mx.array(6.0), mx.array(2.0), gradients, {"term": mx.array(5.0)})
    numbers, _, halved, _ = step(parameters, AdamW.new(parameters), found, step.counters(Progress(scale=4.0)), 0.1)
    np.testing.assert_allclose(np.array(numbers), [6, 2, math.hypot(0.2, 0.4), 5], rtol=1e-6)
    assert halved.means["a"].tolist() == pytest.approx([0.2, -0.4])
    assert halved.squares["a"].tolist() == pytest.approx([0.04, 0.16])


def test_which_parameters_are_frozen_learn_more_slowly_and_decay() -> None:
    for freeze, frozen in ((0, 0), (1, 3), (2, 4), (9, 4)):
        options = TrainingOptions(freeze=freeze)
        assert [is_frozen(name, 2, options) for name in NAMES] == [number < frozen for number in range(len(NAMES))]
    factors = depth_factors(NAMES, 2, TrainingOptions(layer_decay=0.5))
    assert [factors[name] for name in NAMES] == [0.125, 0.125, 0.25, 0.5, 1, 1]
    table = {"encoder.positions.weight": mx.zeros((32, 3)), "encoder.embeddings.position.weight": mx.zeros((9, 3))}
    options = TrainingOptions(weight_decay=0.1)
    assert [*weight_decays(table, tiny_config(positions=RelativeBias(Absolute(9))), options).values()] == [0.0, 0.1]
    assert [*weight_decays(table, tiny_config(), options).values()] == [0.1, 0.1]


def test_rows_that_are_not_used_only_decay_and_their_tokens_are_refused() -> None:
    table = mx.arange(12, dtype=mx.float32).reshape(6, 2) + 1
    used = SparseRows(table, [5, 3], fixed=1)
    assert used.take().tolist() == [table[row].tolist() for row in (0, 1, 3, 5)]
    whole = used.whole({TABLE: used.take() * 10, "other": mx.array(1)}, decay=0.5)
    assert whole[TABLE].tolist() == [
        (table[row] * (10 if row in (0, 1, 3, 5) else 0.5)).tolist() for row in range(6)
    ]  # fmt: skip
    assert table.tolist() == (mx.arange(12).reshape(6, 2) + 1).tolist()  # untouched
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
def test_an_update_has_the_same_bits_on_any_number_of_cores(monkeypatch: pytest.MonkeyPatch) -> None:
    expected = updated(2)
    monkeypatch.setattr(numpy_layers, "block_size", lambda: 4 * 2**14)
    for count in (1, 2, 3):
        workers = [cores._worker(number) for number in range(count)]
        monkeypatch.setattr(cores, "training_workers", lambda workers=workers: workers)
        assert updated(2) == expected
    assert updated(2, own=False) == expected


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


@together("order", itertools.permutations(range(3)))
def test_the_last_digits_do_not_depend_on_which_part_is_first(order: tuple[int, ...]) -> None:
    sums = _Sums()
    for part in order:
        for module in _MODULES:
            sums.add(part, module, module_gradients(part, module))
        assert sums.arrays or 0 not in order[: order.index(part) + 1]  # a part waits for the one before
    assert len(sums.arrays) == 2 * len(_MODULES)
    for module in _MODULES:
        parts = [module_gradients(part, module) for part in range(3)]
        for name, array in parts[0].items():
            wanted = (array + parts[1][name]) + parts[2][name]
            assert np.array_equal(np.array(sums.arrays[name]), np.array(wanted))


Array = NDArray[np.float64]


def _random(*shape: int, scale: float = 3.0) -> NDArray[np.float32]:
    return (np.random.default_rng(1).standard_normal(shape) * scale).astype(np.float32)


def _with_gradient(loss: Callable[[mx.array], mx.array], logits: NDArray[np.float32]) -> tuple[float, Array]:
    value, gradient = mx.value_and_grad(loss)(mx.array(logits))
    return float(value), np.array(gradient.astype(mx.float32), dtype=np.float64)


def _softmax(logits: NDArray[np.float32]) -> Array:
    wide = np.exp(logits.astype(np.float64) - logits.max(axis=-1, keepdims=True))
    found: Array = wide / wide.sum(axis=-1, keepdims=True)
    return found


@together("classes", [2, 3, 17, 30_522])
def test_cross_entropy_is_exact(classes: int) -> None:
    logits = _random(4, classes)
    logits[0, 1] = 25  # next to a likely word the others are below the last digit
    targets = np.array([1, 0, classes - 1, 1])
    shares = _softmax(logits)
    value, gradient = _with_gradient(lambda x: cross_entropy(x, mx.array(targets)), logits)
    assert value == pytest.approx(-np.log(shares[np.arange(4), targets]).sum(), rel=1e-6)
    shares[np.arange(4), targets] -= 1
    assert np.abs(gradient - shares).max() < 1e-6


@together("dtype", [mx.float16, mx.bfloat16])
def test_half_precision_logits_give_a_float32_loss(dtype: mx.Dtype) -> None:
    logits = mx.array(_random(5, 7)).astype(dtype)
    targets = mx.array([0, 1, 2, 3, 4])
    found = cross_entropy(logits, targets)
    assert found.dtype == mx.float32
    assert float(found) == pytest.approx(float(cross_entropy(logits.astype(mx.float32), targets)), rel=1e-6)
    assert mx.grad(lambda x: cross_entropy(x, targets))(logits).dtype == dtype


def test_other_losses_are_their_formulas() -> None:
    undecided, targets = np.array([0, 0, 60], np.float32), mx.array([0.0, 1.0, 1.0])
    value, gradient = _with_gradient(lambda x: binary_cross_entropy(x, targets), undecided)
    assert value == pytest.approx(2 * np.log(2)) and np.allclose(gradient, [0.5, -0.5, 0])
    logits, other = _random(4, 3), _random(4, 3, scale=1)
    value, gradient = _with_gradient(lambda x: mean_squared_error(x, mx.array(other)), logits)
    assert value == pytest.approx(((logits - other) ** 2).sum() / 3, rel=1e-6)
    assert np.allclose(gradient, 2 * (logits - other) / 3, atol=1e-6)
    value, gradient = _with_gradient(lambda x: soft_cross_entropies(x, mx.array(other)).sum(), logits)
    one, two = _softmax(logits), _softmax(other)
    assert value == pytest.approx((two * (np.log(two) - np.log(one))).sum(), rel=1e-5)
    assert np.allclose(gradient, one - two, atol=1e-6)
    weights = np.array([0.5, 1.0, 2.0], np.float32)
    found = cross_entropy(mx.array(logits), mx.array([0, 1, 2, 2]), mx.array(weights), 0.1)
    smooth = 0.9 * np.eye(3)[[0, 1, 2, 2]] + 0.1 / 3
    assert float(found) == pytest.approx(-(smooth * weights * np.log(one)).sum(), rel=1e-5)
    for loss in (binary_cross_entropy, mean_squared_error, cross_entropy):
        with pytest.raises(ArgumentError, match="`targets` have shape"):
            loss(mx.zeros((4, 1)), mx.zeros((4, 4)))


@given(st.integers(1, 300), st.integers(1, 40), st.integers(0, 5))
def test_every_example_is_in_one_batch(count: int, size: int, epoch: int) -> None:
    found = batches(count, size, seed=3, epoch=epoch)
    assert sorted(number for batch in found for number in batch) == list(range(count))
    sizes = [len(batch) for batch in found]
    assert len(found) == -(-count // size) and sizes[:-2] == [size] * (len(found) - 2)
    assert max(sizes) <= size and sizes[-1] <= sizes[-2:][0] <= sizes[-1] + (1 if count % size else 0)


def test_the_order_depends_on_seed_and_epoch_alone() -> None:
    first = batches(400, 8, seed=0, epoch=0)
    assert batches(400, 8, seed=0, epoch=0) == first
    assert batches(400, 8, seed=0, epoch=1) != first
    assert batches(400, 8, seed=1, epoch=0) != first


@given(st.lists(st.integers(1, 500), min_size=1, max_size=100), st.integers(1, 8))
def test_every_example_is_in_one_part(lengths: list[int], at_once: int) -> None:
    found = parts(lengths, at_once)
    assert sorted(number for part in found for number in part) == list(range(len(lengths)))
    assert all(found)


def test_parts_save_padding_where_lengths_differ() -> None:
    assert len(parts([60] * 32, 2)) == 2
    for at_once in (1, 2):
        lengths = [20, 90, 200] * 16
        found = parts(lengths, at_once)
        assert [sorted({lengths[number] for number in part}) for part in found] == [
            [length] for length in (200, 90, 20) for _ in range(at_once)
        ]
    assert [len(part) for part in parts([5], 4)] == [1]


@together(
    ("schedule", "expected"),
    [
        ("linear", [0, 0.5, 1, 0.75, 0.5, 0.25]),
        ("constant", [0, 0.5, 1, 1, 1, 1]),
        ("cosine", [0, 0.5, 1, 0.854, 0.5, 0.146]),
    ],
)
def test_learning_rates(schedule: Schedule, expected: list[float]) -> None:
    options = TrainingOptions(lr=1.0, schedule=schedule, warmup=1 / 3)
    assert [round(learning_rate(step, 6, options), 3) for step in range(6)] == expected
    assert learning_rate(0, 5, TrainingOptions(lr=0.5, warmup=0)) == 0.5  # without warmup the first is the highest


@together(
    ("option", "value"),
    [
        ("epochs", 0), ("epochs", 1.5), ("epochs", True), ("lr", 0), ("lr", -1e-5), ("lr", float("nan")), ("lr", "1"),
        ("batch_size", 0), ("gradient_accumulation", 0), ("schedule", "step"), ("warmup", 1.1), ("weight_decay", -0.1),
        ("max_grad_norm", -1), ("dropout", 1), ("layer_decay", 0), ("freeze", -1), ("patience", 0), ("save_every", 0),
        ("eval_every", 0), ("seed", -1), ("seed", "0"),
    ],
)  # fmt: skip
def test_invalid_options_are_refused_by_name(option: str, value: Any) -> None:
    with pytest.raises(ArgumentError, match=option):
        TrainingOptions(**{option: value})


def test_a_sweep_is_every_combination() -> None:
    assert check_sweep(None) == [{}]
    assert check_sweep({"lr": [1, 2], "warmup": [0]}) == [{"lr": 1, "warmup": 0}, {"lr": 2, "warmup": 0}]
    bad: dict[str, Any]
    for bad in ({"lr": []}, {"lr": 1e-5}, {"lr": "12"}, {"nothing": [1]}, {"save_every": [1]}):
        with pytest.raises(ArgumentError):
            check_sweep(bad)


def test_shares_hold_every_input_once_in_similar_lengths_and_amounts() -> None:
    rng = random.Random(2)
    lengths = [rng.choice((5, 9, 100, 128)) for _ in range(90)]
    for count in (1, 2, 5, 200):
        found = shares(lengths, count)
        assert sorted(number for share in found for number in share) == list(range(90))
        assert 1 <= len(found) <= count and all(found)
        ordered = [lengths[number] for share in found for number in share]
        assert ordered == sorted(ordered)
        if count <= 5:
            amounts = [sum(lengths[number] for number in share) for share in found]
            assert len(found) == count and max(amounts) - min(amounts) <= 2 * max(lengths)
