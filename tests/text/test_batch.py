"""Batches: every input in exactly one, within the budget, padded on the right."""

import itertools
from itertools import pairwise

import pytest
from hypothesis import HealthCheck, example, given, settings, strategies as st

from mlxbert.config import Absolute
from mlxbert.errors import ArgumentError, InputError
from mlxbert.machine.device import mx
from mlxbert.machine.mac import GpuSize
from mlxbert.text.batch import (
    MAX_PADDING,
    OUTPUTS,
    WINDOW,
    WINDOWS,
    bucket,
    make_batch,
    padded_count,
    padded_rows,
    plan,
    row_counts,
    window_size,
)
from mlxbert.text.encoding import Encoding
from tests.helpers.batches import as_on_a_gpu
from tests.helpers.cases import together
from tests.helpers.cells import quick
from tests.helpers.tiny import tiny_config

QUICK = quick(100)
LENGTHS = st.lists(st.integers(1, 600), max_size=60)
BUDGETS = st.integers(1, 2000)
PAD = 7
CONFIG = tiny_config(pad_token_id=PAD, vocab_size=1000, positions=Absolute(600))


def encoding(ids: list[int], second: int = 0) -> Encoding:
    """An input of these ids, the last `second` of them in segment 1."""
    length = len(ids)
    segments = [int(place >= length - second) for place in range(length)]
    return Encoding(ids, segments, [(0, 0)] * length, [None] * length, [None] * length, list(range(length)), False)


@QUICK
@given(LENGTHS, BUDGETS)
def test_groups_hold_each_input_once_in_the_order_of_lengths_and_as_many_as_fit(
    lengths: list[int], budget: int
) -> None:
    groups = list(plan(lengths, budget))
    order = [number for group in groups for number in group]
    assert all(groups) and sorted(order) == list(range(len(lengths)))
    assert [lengths[number] for number in order] == sorted(lengths)
    for group in groups:
        assert len(group) == 1 or len(group) * max(lengths[number] for number in group) <= budget
        assert padding(group, lengths) <= budget * MAX_PADDING
    for group, following in pairwise(groups):
        longer = [*group, following[0]]
        assert lengths[following[0]] * len(longer) > budget or padding(longer, lengths) > budget * MAX_PADDING


def padding(group: list[int], lengths: list[int]) -> int:
    return max(lengths[number] for number in group) * len(group) - sum(lengths[number] for number in group)


@together("budget", [0, -1])
def test_a_budget_below_one_token_is_refused(budget: int) -> None:
    with pytest.raises(ArgumentError, match=f"batch_tokens.*{budget}.*1"):
        list(plan([3], budget))


@given(st.integers(1, 600), st.integers(1, 600))
def test_lengths_on_a_gpu_come_from_a_small_set(length: int, most: int) -> None:
    found = bucket(length, most)
    assert length <= found <= max(length, most)
    assert found in {length, most, *range(16, 129, 16), *range(192, 641, 64)}
    assert found < length + (16 if length <= 128 else 64)


@pytest.fixture
def gpu(monkeypatch: pytest.MonkeyPatch) -> None:
    as_on_a_gpu(monkeypatch)


FIXED = settings(QUICK, suppress_health_check=[HealthCheck.function_scoped_fixture])
BUCKETS = st.lists(st.sampled_from([16, 32, 48, 64, 128, 192, 512]), max_size=60)


@FIXED
@given(BUCKETS, BUDGETS)
@pytest.mark.usefixtures("gpu")
def test_groups_of_a_gpu_have_a_few_numbers_of_rows(lengths: list[int], budget: int) -> None:
    groups = list(plan(lengths, budget))
    assert groups == list(plan(lengths, budget))
    order = [number for group in groups for number in group]
    assert sorted(order) == [*range(len(lengths))] and [lengths[number] for number in order] == sorted(lengths)
    for number, group in enumerate(groups):
        longest = lengths[group[-1]]
        rows = padded_rows(len(group), longest, budget)
        assert rows in row_counts(longest, budget) and (rows == 1 or rows * longest <= budget)
        assert rows == len(group) or number == 0  # only the shortest inputs have company


@FIXED
@given(st.lists(st.sampled_from([16, 48, 128, 512]), min_size=1, max_size=9), st.integers(16, 2000))
@example([16] * 5, 96)  # a batch of four and one of one: six rows would cost more
@pytest.mark.usefixtures("gpu")
def test_no_other_groups_cost_a_gpu_less(lengths: list[int], budget: int) -> None:
    def cost(groups: list[list[int]]) -> float:
        shapes = [(len(group), max(lengths[number] for number in group)) for group in groups]
        assert all(rows <= max(budget // length, 1) for rows, length in shapes)
        return sum(padded_rows(rows, length, budget) * length + budget / 8 for rows, length in shapes)

    order = sorted(range(len(lengths)), key=lambda number: lengths[number])
    found = cost(list(plan(lengths, budget)))
    for count in range(len(order)):
        for ends in itertools.combinations(range(1, len(order)), count):
            groups = [order[start:end] for start, end in pairwise([0, *ends, len(order)])]
            if all(len(group) <= max(budget // lengths[group[-1]], 1) for group in groups):
                assert found <= cost(groups)


@pytest.mark.usefixtures("gpu")
def test_rows_on_a_gpu_come_from_a_small_set() -> None:
    assert [padded_count(count) for count in range(1, 18)] == [*range(1, 5), 6, 6, 8, 8, *[12] * 4, *[16] * 4, 24]
    assert row_counts(48, 1000) == (1, 2, 3, 4, 6, 8, 12, 16, 20)
    assert [padded_rows(rows, 48, 1000) for rows in (1, 5, 17, 20, 21)] == [1, 6, 20, 20, 21]
    assert list(plan([16], 16384)) == [[0]] and padded_rows(1, 16, 16384) == 1


def test_a_cpu_computes_the_rows_that_there_are() -> None:
    assert [padded_rows(rows, 48, 1000) for rows in (1, 5, 17)] == [1, 5, 17]
    assert [padded_count(count) for count in (1, 5, 17)] == [1, 5, 17]
    assert window_size() == WINDOW == 512


@together("size", ["small", "medium", "large"])
def test_a_window_grows_with_the_gpu_and_shrinks_with_what_is_kept(
    size: GpuSize, monkeypatch: pytest.MonkeyPatch
) -> None:
    as_on_a_gpu(monkeypatch, size)
    assert WINDOW < window_size() == WINDOWS[size]
    for kept in (1, 3072, 50_000, 100_000, 200_000, 2**18):
        found = window_size(kept)
        assert found % WINDOW == 0 and WINDOW <= found <= WINDOWS[size] and found * kept <= OUTPUTS


@together("kept", [2**18 + 1, 10**6, 4 * 10**6, 2**24, 10**8, 10**10])
def test_a_window_of_large_outputs_is_smaller_and_divides_a_usual_one(kept: int) -> None:
    found = window_size(kept)
    assert WINDOW % found == 0 and found < WINDOW and (found == 1 or found * kept <= OUTPUTS)


IDS = st.lists(st.integers(0, 99), min_size=1, max_size=12)


@QUICK
@given(st.lists(st.tuples(IDS, st.integers(0, 12)), min_size=1, max_size=8))
@example([([PAD, 1, PAD], 0), ([2], 0)])  # the pad id among real tokens is not masked
def test_inputs_are_padded_on_the_right(inputs: list[tuple[list[int], int]]) -> None:
    encodings = [encoding(ids, second) for ids, second in inputs]
    batch, length = make_batch(encodings, CONFIG), max(len(ids) for ids, _ in inputs)
    assert batch.input_ids.dtype == mx.int32 and batch.input_ids.shape == (len(inputs), length)
    assert batch.input_ids.tolist() == [ids + [PAD] * (length - len(ids)) for ids, _ in inputs]

    assert (batch.attention_mask is None) == all(len(ids) == length for ids, _ in inputs)
    if batch.attention_mask is not None:
        assert batch.attention_mask.dtype == mx.bool_
        assert batch.attention_mask.tolist() == [[place < len(ids) for place in range(length)] for ids, _ in inputs]

    assert (batch.token_type_ids is None) == all(not any(one.token_type_ids) for one in encodings)
    if batch.token_type_ids is not None:
        assert batch.token_type_ids.dtype == mx.int32
        assert batch.token_type_ids.tolist() == [one.token_type_ids + [0] * (length - len(one)) for one in encodings]


def test_ids_that_are_not_in_the_vocabulary_make_no_batch() -> None:
    for wrong in (-1, CONFIG.vocab_size):
        with pytest.raises(InputError, match=f"{wrong}"):
            make_batch([encoding([1, 2]), encoding([3, wrong])], CONFIG)
