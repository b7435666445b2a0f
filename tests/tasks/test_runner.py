"""Batches of many inputs: outputs in the order of the inputs, counted, with padded lengths on a GPU."""

import threading
from collections.abc import Iterator, Sequence
from typing import Any

import pytest
from hypothesis import given, strategies as st

from mlxbert.errors import InputError
from mlxbert.machine.device import mx
from mlxbert.nn.encoder import Batch
from mlxbert.readers.delimited import SurplusCellsError
from mlxbert.tasks.runner import run, run_batches
from mlxbert.text.batch import default_batch_tokens, padded_count, plan
from mlxbert.text.encoding import Encoding
from mlxbert.text.usage import Usage
from tests.helpers.batches import as_on_a_gpu
from tests.helpers.faults import MEMORY
from tests.readers.test_stream import Arriving, stream_of
from tests.text.test_batch import BUDGETS, CONFIG, LENGTHS, QUICK, encoding


def of_lengths(lengths: list[int]) -> list[Encoding]:
    return [encoding([number + 1] * length) for number, length in enumerate(lengths)]


def ids_of(batch: Batch, group: list[int]) -> mx.array:
    return batch.input_ids


def numbers(found: mx.array, group: list[int]) -> list[int]:
    return group


@QUICK
@given(LENGTHS, BUDGETS | st.none())
@pytest.mark.usefixtures("exact_lengths")
def test_results_come_in_the_order_of_the_inputs(lengths: list[int], budget: int | None) -> None:
    calls: list[list[int]] = []

    def forward(batch: Batch, group: list[int]) -> mx.array:
        calls.append(group)
        assert batch.input_ids.shape == (len(group), max(lengths[number] for number in group))
        return batch.input_ids

    def read(ids: mx.array, group: list[int]) -> list[tuple[int, int]]:
        first: Any = ids[:, 0].tolist()
        return [(one - 1, lengths[number]) for one, number in zip(first, group, strict=True)]

    assert list(run_batches(of_lengths(lengths), forward, read, CONFIG, budget)) == list(enumerate(lengths))
    assert calls == sorted(plan(lengths, default_batch_tokens() if budget is None else budget), key=min)


def test_a_computation_that_loses_a_result_is_noticed() -> None:
    with pytest.raises(ValueError, match="shorter"):
        list(run_batches(of_lengths([3, 4]), ids_of, lambda _, group: group[:-1], CONFIG, 100))


@pytest.mark.usefixtures("exact_lengths")
def test_what_is_computed_is_counted() -> None:
    usage = Usage()
    list(run_batches(of_lengths([30, 50, 31]), ids_of, numbers, CONFIG, 80, usage))
    assert (usage.inputs, usage.tokens, usage.padded_tokens, usage.batches) == (3, 111, 31 * 2 + 50, 2)


def test_a_gpu_gets_padded_lengths(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("mlxbert.text.batch.on_gpu", lambda: True)
    shapes = []

    def compute(batch: Batch, group: list[int]) -> mx.array:
        shapes.append(batch.input_ids.shape)
        assert batch.attention_mask is not None and batch.attention_mask.sum().item() == sum(map(len, batch_of(group)))
        return batch.input_ids

    inputs = of_lengths([3, 130, 17, 590])

    def batch_of(group: list[int]) -> list[Encoding]:
        return [inputs[number] for number in group]

    assert list(run_batches(inputs, compute, numbers, CONFIG, 40)) == [0, 1, 2, 3]
    assert shapes == [(1, 16), (1, 192), (1, 32), (1, 600)]
    assert list(run_batches(of_lengths([3, 5]), ids_of, numbers, CONFIG, 32)) == [0, 1]


@pytest.mark.parametrize("lengths", [[3] * 5, [16] * 7, [3, 9, 16, 16, 14]])
def test_a_gpu_gets_rows_of_padding_whose_outputs_nobody_sees(
    lengths: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    as_on_a_gpu(monkeypatch)
    batches: list[Batch] = []

    def compute(batch: Batch, group: list[int]) -> dict[str, mx.array]:
        batches.append(batch)
        assert batch.ids is not None
        return {"ids": batch.input_ids, "row": mx.arange(len(batch.input_ids))}

    def read(found: dict[str, mx.array], group: list[int]) -> list[tuple[Any, Any]]:
        assert len(found["ids"]) == len(found["row"]) == len(group)
        return [*zip(found["ids"].tolist(), found["row"].tolist(), strict=True)]  # type: ignore[arg-type]

    usage, inputs = Usage(), of_lengths(lengths)
    found = [*run_batches(inputs, compute, read, CONFIG, 16 * 64, usage)]
    assert [ids[: len(one)] for (ids, _), one in zip(found, inputs, strict=True)] == [one.ids for one in inputs]
    assert sorted(row for _, row in found) == [*range(len(lengths))]
    (batch,) = batches
    rows = padded_count(len(lengths))
    assert batch.input_ids.shape == (rows, 16) and rows > len(lengths)
    assert (usage.inputs, usage.tokens, usage.batches) == (len(lengths), sum(lengths), 1)
    assert usage.padded_tokens == rows * 16
    assert (batch.attention_mask is None) == (min(lengths) == 16)  # a repeated row needs no mask of its own
    if batch.attention_mask is not None:
        assert batch.attention_mask.any(axis=1).all().item()


def test_halves_of_a_batch_are_no_larger(monkeypatch: pytest.MonkeyPatch) -> None:
    as_on_a_gpu(monkeypatch)
    tried: list[int] = []

    def compute(batch: Batch, group: list[int]) -> mx.array:
        tried.append(len(batch.input_ids))
        if len(batch.input_ids) > 3:
            raise RuntimeError(MEMORY[0])
        return batch.input_ids

    assert [*run_batches(of_lengths([16] * 13), compute, numbers, CONFIG, 16 * 64)] == [*range(13)]
    assert max(tried) == 16 and {*tried} == {16, 8, 6, 4, 3, 2}


@pytest.mark.usefixtures("gpu")
def test_the_first_results_do_not_wait_for_a_large_window() -> None:
    """The second window cannot be tokenized before the first result is there."""
    arrived, prepared = threading.Event(), list[Encoding]()

    def prepare(item: Encoding) -> Encoding:
        if len(prepared) >= 2:
            assert arrived.wait(20)
        prepared.append(item)
        return item

    results = run(of_lengths([8] * 40), prepare, Recorder().compute, "raise", window=16, usual=2)
    assert next(results) == 0
    arrived.set()
    assert len([*results]) == 39


def test_results_in_a_file_have_windows_of_one_size() -> None:
    for waited_for, expected in ((True, [8, 16, 24]), (False, [24, 24])):
        sizes = list[int]()
        stream: Any = stream_of(map(str, range(48)))
        stream.waited_for = waited_for

        def compute(jobs: Sequence[int], sizes: list[int] = sizes) -> Sequence[int]:
            sizes.append(len(jobs))
            return jobs

        assert [*run(stream, int, compute, "raise", window=24, usual=8)] == [*range(48)]
        assert sizes == expected


def test_an_output_is_there_as_soon_as_those_before_it_are() -> None:
    calls: list[list[int]] = []

    def compute(batch: Batch, group: list[int]) -> mx.array:
        calls.append(group)
        return batch.input_ids

    outputs = run_batches(of_lengths([50, 3, 50, 3]), compute, numbers, CONFIG, 50)
    assert next(outputs) == 0
    assert calls == [[0]]
    assert list(outputs) == [1, 2, 3]
    assert calls == [[0], [1, 3], [2]]


def test_results_do_not_wait_for_items_that_have_not_arrived() -> None:
    arrived = [1, 2]

    def items() -> Iterator[str]:
        while arrived:
            yield str(arrived.pop(0))

    stream: Any = stream_of(items(), Arriving(lambda: bool(arrived)))
    results = run(stream, float, lambda jobs: jobs, "raise", window=8)
    assert [next(results), next(results)] == [1.0, 2.0]
    arrived.extend([3, 4, 5])
    assert list(results) == [3.0, 4.0, 5.0]


def test_an_error_of_any_kind_names_its_item() -> None:
    given = SurplusCellsError("three cells", {"text": "a"}, "quote it")
    with pytest.raises(SurplusCellsError) as caught:
        [*run([3, given], lambda one: one, lambda jobs: jobs, "raise")]
    assert str(caught.value) == caught.value.message == "input 1: three cells"
    assert caught.value.values == given.values and given.message == "three cells"


def test_items_before_a_source_that_fails_have_results() -> None:
    def items() -> Iterator[int]:
        yield from range(5)
        raise OSError

    results = run(items(), float, lambda jobs: jobs, "raise", window=3)
    assert [next(results) for _ in range(5)] == [0.0, 1.0, 2.0, 3.0, 4.0]
    with pytest.raises(OSError):
        next(results)


@pytest.fixture
def gpu(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("mlxbert.tasks.runner.on_gpu", lambda: True)


class Recorder:
    """Notes when batches are started and read."""

    def __init__(self) -> None:
        self.log: list[str] = []

    def forward(self, batch: Batch, group: list[int]) -> mx.array:
        self.log.append(f"start {group}")
        return batch.input_ids

    def read(self, found: mx.array, group: list[int]) -> list[int]:
        self.log.append(f"read {group}")
        return group

    def compute(self, jobs: Sequence[Encoding]) -> Iterator[int]:
        return run_batches(jobs, self.forward, self.read, CONFIG, 8)


@pytest.mark.usefixtures("gpu")
def test_a_gpu_has_the_next_batch_before_one_is_read() -> None:
    notes = Recorder()
    outputs = notes.compute(of_lengths([8, 8, 8]))
    assert notes.log == ["start [0]"]
    assert next(outputs) == 0 and notes.log == ["start [0]", "start [1]", "read [0]"]
    assert list(outputs) == [1, 2] and notes.log[3:] == ["start [2]", "read [1]", "read [2]"]


@pytest.mark.usefixtures("gpu")
def test_a_gpu_has_the_next_window_before_one_is_read() -> None:
    notes = Recorder()
    results = run(iter(of_lengths([8] * 3)), lambda one: one, notes.compute, "raise", window=1)
    assert list(results) == [0, 0, 0]  # the first of each window
    assert notes.log == ["start [0]", "start [0]", "read [0]", "start [0]", "read [0]", "read [0]"]


@pytest.mark.usefixtures("gpu")
def test_a_batch_that_fails_does_so_after_the_outputs_in_front_of_it() -> None:
    outputs = Recorder().compute([*of_lengths([8]), encoding([CONFIG.vocab_size] * 8), *of_lengths([8])])
    assert next(outputs) == 0
    with pytest.raises(InputError, match=str(CONFIG.vocab_size)):
        next(outputs)
