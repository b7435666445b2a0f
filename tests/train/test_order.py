"""The order of the data, and the learning rate."""

import random
from typing import Any

import pytest
from hypothesis import given, strategies as st

from mlxbert.errors import ArgumentError
from mlxbert.train.loop.data_order import batches, parts, shares
from mlxbert.train.loop.learning_rate import learning_rate
from mlxbert.train.options.loop_options import Schedule, TrainingOptions, check_sweep


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


@pytest.mark.parametrize(
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


def test_without_warmup_the_first_update_has_the_highest_rate() -> None:
    assert learning_rate(0, 5, TrainingOptions(lr=0.5, warmup=0)) == 0.5


@pytest.mark.parametrize(
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
