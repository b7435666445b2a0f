"""Batches of many inputs: outputs in the order of the inputs, counted, with padded lengths on a GPU."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mlxbert.errors import ArgumentError
from mlxbert.nn.encoder import Batch
from mlxbert.tasks.runner import run_batches
from mlxbert.text.batch import Usage, default_batch_tokens, plan
from mlxbert.text.encoding import Encoding
from tests.text.test_batch import BUDGETS, CONFIG, LENGTHS, QUICK, encoding


def of_lengths(lengths: list[int]) -> list[Encoding]:
    return [encoding([number + 1] * length) for number, length in enumerate(lengths)]


@pytest.mark.parametrize("budget", [0, -1])
def test_a_budget_below_one_token_is_refused(budget: int) -> None:
    with pytest.raises(ArgumentError, match="batch_tokens"):
        run_batches(of_lengths([3]), lambda _, group: group, CONFIG, budget)


@QUICK
@given(LENGTHS, BUDGETS | st.none())
def test_results_come_in_the_order_of_the_inputs(lengths: list[int], budget: int | None) -> None:
    calls: list[list[int]] = []

    def compute(batch: Batch, group: list[int]) -> list[tuple[int, int]]:
        calls.append(group)
        assert batch.input_ids.shape == (len(group), max(lengths[number] for number in group))
        return [(number, lengths[number]) for number in group]

    assert run_batches(of_lengths(lengths), compute, CONFIG, budget) == list(enumerate(lengths))
    assert calls == list(plan(lengths, default_batch_tokens() if budget is None else budget))


def test_a_computation_that_loses_a_result_is_noticed() -> None:
    with pytest.raises(ValueError, match="shorter"):
        run_batches(of_lengths([3, 4]), lambda _, group: group[:-1], CONFIG, 100)


def test_what_is_computed_is_counted() -> None:
    usage = Usage()
    run_batches(of_lengths([30, 50, 31]), lambda _, group: group, CONFIG, 80, usage)
    assert (usage.inputs, usage.tokens, usage.padded_tokens, usage.batches) == (3, 111, 31 * 2 + 50, 2)


def test_a_gpu_gets_padded_lengths_and_no_dummy_rows(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("mlxbert.text.batch.on_gpu", lambda: True)
    shapes = []

    def compute(batch: Batch, group: list[int]) -> list[int]:
        shapes.append(batch.input_ids.shape)
        assert batch.attention_mask is not None and batch.attention_mask.sum().item() == sum(map(len, batch_of(group)))
        return group

    inputs = of_lengths([3, 130, 17, 590])

    def batch_of(group: list[int]) -> list[Encoding]:
        return [inputs[number] for number in group]

    assert run_batches(inputs, compute, CONFIG, 40) == [0, 1, 2, 3]
    assert shapes == [(1, 16), (1, 32), (1, 192), (1, 600)]
    assert run_batches(of_lengths([3, 5]), lambda _, group: group, CONFIG, 32) == [0, 1]
