"""Batches: every input in exactly one, within the budget, padded on the right."""

from itertools import pairwise

import pytest
from hypothesis import given, strategies as st

from mlxbert.config import Absolute
from mlxbert.errors import ArgumentError, InputError
from mlxbert.machine.device import mx
from mlxbert.text.batch import MOST_PADDING, bucket, make_batch, plan
from mlxbert.text.encoding import Encoding
from mlxbert.text.usage import Usage
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
def test_a_plan_puts_every_input_in_exactly_one_group(lengths: list[int], budget: int) -> None:
    groups = list(plan(lengths, budget))
    assert sorted(number for group in groups for number in group) == list(range(len(lengths)))
    assert all(groups)


@QUICK
@given(LENGTHS, BUDGETS)
def test_no_group_exceeds_the_budget_but_a_single_input(lengths: list[int], budget: int) -> None:
    for group in plan(lengths, budget):
        assert len(group) == 1 or len(group) * max(lengths[number] for number in group) <= budget


@QUICK
@given(LENGTHS, BUDGETS)
def test_groups_hold_inputs_of_like_length_and_no_fewer_than_fit(lengths: list[int], budget: int) -> None:
    groups = list(plan(lengths, budget))
    order = [number for group in groups for number in group]
    assert [lengths[number] for number in order] == sorted(lengths)
    for group in groups:
        assert padding(group, lengths) <= budget * MOST_PADDING
    for group, following in pairwise(groups):
        longer = [*group, following[0]]
        assert lengths[following[0]] * len(longer) > budget or padding(longer, lengths) > budget * MOST_PADDING


def padding(group: list[int], lengths: list[int]) -> int:
    """How many places of a group hold no token."""
    return max(lengths[number] for number in group) * len(group) - sum(lengths[number] for number in group)


@pytest.mark.parametrize("budget", [0, -1])
def test_a_budget_below_one_token_is_refused(budget: int) -> None:
    with pytest.raises(ArgumentError, match=f"batch_tokens.*{budget}.*1"):
        list(plan([3], budget))


def test_padding_is_a_share_of_the_padded_tokens() -> None:
    usage = Usage()
    usage.add([30, 31], 31)
    usage.add([50], 50)
    assert (usage.inputs, usage.tokens, usage.padded_tokens, usage.batches) == (3, 111, 31 * 2 + 50, 2)
    assert usage.padding == pytest.approx(1 / 112)
    assert Usage().padding == 0


@given(st.integers(1, 600), st.integers(1, 600))
def test_lengths_on_a_gpu_come_from_a_small_set(length: int, most: int) -> None:
    found = bucket(length, most)
    assert length <= found <= max(length, most)
    assert found in {length, most, *range(16, 129, 16), *range(192, 641, 64)}
    assert found < length + (16 if length <= 128 else 64)


IDS = st.lists(st.integers(0, 99), min_size=1, max_size=12)


@QUICK
@given(st.lists(st.tuples(IDS, st.integers(0, 12)), min_size=1, max_size=8))
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


def test_the_pad_id_among_real_tokens_is_not_masked() -> None:
    batch = make_batch([encoding([PAD, 1, PAD]), encoding([2])], CONFIG)
    assert batch.attention_mask is not None
    assert batch.attention_mask.tolist() == [[True, True, True], [True, False, False]]


def test_ids_that_are_not_in_the_vocabulary_make_no_batch() -> None:
    for wrong in (-1, CONFIG.vocab_size):
        with pytest.raises(InputError, match=f"{wrong}"):
            make_batch([encoding([1, 2]), encoding([3, wrong])], CONFIG)
