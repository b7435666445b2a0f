"""Batches of many inputs: outputs in the order of the inputs, counted, on a GPU as on a CPU, whatever fails."""

import gc
import itertools
import threading
import weakref
from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from hypothesis import given, strategies as st

import mlxbert
from mlxbert.errors import DeviceError, InputError, OutOfMemoryError
from mlxbert.labels.labels import Labels
from mlxbert.machine.device import hint_once, mx
from mlxbert.machine.device_errors import StoppedError
from mlxbert.nn.encoder import Batch
from mlxbert.readers.delimited import SurplusCellsError
from mlxbert.tasks import runner
from mlxbert.tasks.embed import EmbedTask, embed_stream
from mlxbert.tasks.embed_words import EmbedWordsTask
from mlxbert.tasks.fill_mask import FillMaskTask
from mlxbert.tasks.options import ClassifyOptions, EmbedOptions, EmbedWordsOptions, FillMaskOptions
from mlxbert.tasks.runner import run, run_batches
from mlxbert.tasks.zero_shot import ZeroShotTask
from mlxbert.text import batch
from mlxbert.text.batch import WINDOW, WINDOWS, default_batch_tokens, padded_count, plan
from mlxbert.text.encoding import Encoding
from mlxbert.text.usage import Usage
from tests.helpers.batches import as_on_a_gpu
from tests.helpers.cases import together
from tests.helpers.classifiers import NLI, save_classifier
from tests.helpers.faults import DISPLAY, MEMORY, NO_FAULTS, OTHER, REFUSED, STOPPED, LateDevice, small_memory
from tests.helpers.rooms import needs
from tests.helpers.taggers import NER, save_random_tagger
from tests.helpers.tiny import save as save_tiny, with_nan
from tests.readers.test_stream import Arriving, stream_of
from tests.text.test_batch import BUDGETS, CONFIG, LENGTHS, QUICK, encoding


def of_lengths(lengths: list[int]) -> list[Encoding]:
    return [encoding([number + 1] * length) for number, length in enumerate(lengths)]


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
        list(
            run_batches(of_lengths([3, 4]), lambda batch, _: batch.input_ids, lambda _, group: group[:-1], CONFIG, 100)
        )


@pytest.mark.usefixtures("exact_lengths")
def test_what_is_computed_is_counted() -> None:
    usage = Usage()
    list(run_batches(of_lengths([30, 50, 31]), lambda batch, _: batch.input_ids, numbers, CONFIG, 80, usage))
    assert (usage.inputs, usage.tokens, usage.padded_tokens, usage.batches) == (3, 111, 31 * 2 + 50, 2)
    assert usage.padding == pytest.approx(1 / 112) and Usage().padding == 0


def test_a_gpu_gets_padded_lengths(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("mlxbert.text.batch.on_gpu", lambda: True)
    shapes, lengths = [], [3, 130, 17, 590]

    def compute(batch: Batch, group: list[int]) -> mx.array:
        shapes.append(batch.input_ids.shape)
        mask = batch.attention_mask
        assert mask is not None and mask.sum().item() == sum(lengths[number] for number in group)
        return batch.input_ids

    assert list(run_batches(of_lengths(lengths), compute, numbers, CONFIG, 40)) == [0, 1, 2, 3]
    assert shapes == [(1, 16), (1, 192), (1, 32), (1, 600)]


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


TEXTS = ["the cat sat on a mat " * (number % 9) + "[MASK]" for number in range(45)]
CALLS: dict[str, Callable[..., Any]] = {
    "embed": mlxbert.embed_stream,
    "classify": mlxbert.classify,
    "tag": mlxbert.tag,
    "embed_words": mlxbert.embed_words,
    "fill_mask": lambda model, texts, **more: mlxbert.fill_mask(
        model, [one.replace("[MASK]", "[MASK] [MASK]") if isinstance(one, str) else one for one in texts], **more
    ),
    "answer": lambda model, texts, **more: mlxbert.answer(model, [("the cat ?", text) for text in texts], **more),
    "next_sentence": lambda model, texts, **more: mlxbert.next_sentence(model, [(one, "he") for one in texts], **more),
    "similarity": lambda model, texts, **more: mlxbert.similarity_pairs(model, [(one, "he") for one in texts], **more),
}
HEADS: dict[str, dict[str, Labels | None]] = {
    "classify": {"sequence_classifier": Labels(("a", "b", "c"))},
    "tag": {"token_classifier": Labels(("O", "B-x"))},
    "answer": {"question_answering": None},
}


def close(found: Any, expected: Any) -> None:
    assert type(found) is type(expected)
    if isinstance(found, dict):
        close([*found.items()], [*expected.items()])
    elif isinstance(found, list | tuple):
        assert len(found) == len(expected)
        for one, other in zip(found, expected, strict=True):
            close(one, other)
    elif isinstance(found, float):
        assert found == pytest.approx(expected, rel=1e-5, abs=1e-6)
    else:
        assert np.all(found == expected)


INPUTS = of_lengths([4, 3, 5, 9, 9, 9, 2, 8, 7, 1, 5])


Compute = Callable[[Batch, list[int]], list[int]]


def batches(compute: Compute, most: int = 10_000, usage: Usage | None = None) -> Any:
    """The outputs of `INPUTS`, of which a function computes one number each."""

    def read(found: mx.array, numbers: list[int]) -> Any:
        return found.tolist()

    def forward(batch: Batch, numbers: list[int]) -> mx.array:
        return mx.array(compute(batch, numbers))

    return [*run_batches(INPUTS, forward, read, CONFIG, most, usage)]


@pytest.fixture(autouse=True)
def _untold() -> None:
    hint_once.cache_clear()


@pytest.mark.parametrize("rows", [1, 2, 3, 5])
def test_halves_until_they_fit(rows: int, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture) -> None:
    happened: list[object] = []
    monkeypatch.setattr(mx, "clear_cache", lambda: happened.append("cleared"))

    def compute(batch: Batch, group: list[int]) -> list[int]:
        happened.append(len(group))
        if len(group) > rows:
            raise RuntimeError(MEMORY[0])
        assert [ids[0] - 1 for ids in np.array(batch.input_ids)] == group
        return group

    usage = Usage()
    assert batches(compute, usage=usage) == [*range(11)]
    for one, following in itertools.pairwise(happened):  # every failure is followed by a cleared cache
        assert (following == "cleared") == (isinstance(one, int) and one > rows)
    assert (usage.inputs, usage.batches) == (11, 1)
    assert [record.levelname for record in caplog.records] == ["WARNING"]
    assert "batch_tokens=" in caplog.text


@pytest.mark.parametrize("sentence", MEMORY)
def test_memory_that_does_not_suffice_for_one_input(sentence: str) -> None:
    def compute(batch: Batch, group: list[int]) -> list[int]:
        if 3 in group:
            raise RuntimeError(sentence)
        return group

    with pytest.raises(OutOfMemoryError) as problem:
        batches(compute)
    assert sentence in problem.value.message and problem.value.hint and "batch_tokens" not in problem.value.hint


@together("sentence", [REFUSED, *OTHER, *NO_FAULTS])
def test_other_errors_end_the_run_at_once(sentence: str) -> None:
    calls = 0

    def compute(batch: Batch, group: list[int]) -> list[int]:
        nonlocal calls
        calls += 1
        raise RuntimeError(sentence)

    with pytest.raises(RuntimeError if sentence in NO_FAULTS else DeviceError):
        batches(compute)
    assert calls == 1


@pytest.mark.parametrize("most", [10_000, 1])  # one batch, or one for each input
@pytest.mark.parametrize("sentence", STOPPED)
def test_a_batch_that_is_stopped_is_computed_once_more(
    sentence: str, most: int, caplog: pytest.LogCaptureFixture
) -> None:
    tried: list[int] = []

    def compute(batch: Batch, group: list[int], times: int) -> list[int]:
        tried.append(len(group))
        if len(tried) <= times:
            raise RuntimeError(sentence)
        return group

    assert batches(partial(compute, times=1), most) == [*range(11)]
    assert tried == ([11, 5, 6] if most > 1 else [1] * 12)
    assert [record.levelname for record in caplog.records] == ["WARNING"]
    tried.clear()
    with pytest.raises(StoppedError):
        batches(partial(compute, times=99), most)
    assert tried == ([11, 5] if most > 1 else [1, 1])


def test_the_arrays_of_what_failed_are_gone_before_the_next_attempt() -> None:
    class Large: ...

    kept: list[weakref.ref[Large]] = []

    def compute(batch: Batch, group: list[int]) -> list[int]:
        assert all(reference() is None for reference in kept)
        large = Large()
        kept.append(weakref.ref(large))
        if len(group) > 2:
            raise RuntimeError(MEMORY[0])
        return group

    assert batches(compute) == [*range(11)]
    assert len(kept) > 3


@pytest.mark.parametrize(
    ("name", "rows", "sentence"),
    [(name, *fault) for name, fault in zip(CALLS, [(1, MEMORY[0]), (3, MEMORY[0]), (0, DISPLAY)] * 3, strict=False)],
)
def test_results_are_those_of_a_device_that_does_not_fail(
    name: str, rows: int, sentence: str, tiny_folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    model = mlxbert.load(tiny_folder, dtype="float32", new_heads=HEADS.get(name))
    expected = [*CALLS[name](model, TEXTS[:12])]
    tried = small_memory(monkeypatch, rows, sentence, times=None if sentence in MEMORY else 1)
    found = [*CALLS[name](model, TEXTS[:12])]
    assert max(tried) > rows
    for one, other in zip(found, expected, strict=True):
        close(one.to_dict(), other.to_dict())


class Late:
    """Computes the numbers of encodings on a device whose errors come late; what failed is -1."""

    def __init__(self, patch: pytest.MonkeyPatch, *failing: int, sentence: str = MEMORY[0]) -> None:
        self.failing, self.groups = {*failing}, list[list[int]]()
        LateDevice(patch, lambda arrays: any((array < 0).any().item() for array in arrays), sentence)

    def forward(self, batch: Batch, group: list[int]) -> mx.array:
        self.groups.append(group)
        failed = self.failing & {*group}
        self.failing -= failed
        return mx.array(group) * (0 if failed else 1) - bool(failed)

    def read(self, found: mx.array, group: list[int]) -> Any:
        return found.tolist()

    def run(self, batch: int = 1) -> list[int]:
        return [*run_batches(of_lengths([16] * 6), self.forward, self.read, CONFIG, 16 * batch)]


@pytest.mark.parametrize("sentence", [MEMORY[0], DISPLAY])
@pytest.mark.parametrize("failing", [[0], [1], [5], [0, 1], [1, 2], [2, 4], [0, 1, 2, 3, 4, 5]])
def test_what_a_gpu_did_not_compute_is_computed_again(
    failing: list[int], sentence: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    work = Late(monkeypatch, *failing, sentence=sentence)
    alone = len(failing) == 1
    assert work.run(1 if alone else 2) == [*range(6)] and not work.failing
    assert len(work.groups) <= (8 if alone else 9)


def test_another_window_was_not_computed(monkeypatch: pytest.MonkeyPatch) -> None:
    work = Late(monkeypatch, 3)

    def forward(batch: Batch, group: list[int]) -> mx.array:
        first: Any = batch.input_ids[:, 0].tolist()
        return work.forward(batch, first)

    def compute(jobs: Any) -> Any:
        return run_batches(jobs, forward, work.read, CONFIG, 16)

    assert [*run(of_lengths([16] * 6), lambda one: one, compute, "raise", window=1)] == [*range(1, 7)]


def test_numbers_that_were_not_computed_are_not_blamed_on_the_model(monkeypatch: pytest.MonkeyPatch) -> None:
    work = Late(monkeypatch, 0, 3)
    right = work.read

    def read(found: mx.array, group: list[int]) -> Any:
        if min(numbers := right(found, group)) < 0:
            raise mlxbert.MlxbertError("the model computed numbers that are not finite")
        return numbers

    monkeypatch.setattr(work, "read", read)
    assert work.run(2) == [*range(6)]


def test_another_error_that_comes_late_ends_the_run(monkeypatch: pytest.MonkeyPatch) -> None:
    work, found = Late(monkeypatch, *range(6), sentence=OTHER[0]), list[int]()
    with pytest.raises(DeviceError):
        found.extend(work.run())
    assert -1 not in found


@needs("explore")
def test_attention_says_that_memory_does_not_suffice(tiny_folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    model = mlxbert.load(tiny_folder)
    small_memory(monkeypatch, 0)
    with pytest.raises(OutOfMemoryError):
        mlxbert.attention(model, "the cat")


ONE_BAD = ["the cat sat", "a dog in paris", "he bought milk"]  # "paris" has no numbers


@pytest.mark.parametrize("task", [name for name in CALLS if name != "fill_mask"])  # whose words share the numbers
def test_a_text_without_numbers_costs_only_itself(task: str, tmp_path: Path) -> None:
    model = mlxbert.load(with_nan(save_tiny(tmp_path / "model")), dtype="float32", new_heads=HEADS.get(task))
    found = [*CALLS[task](model, ONE_BAD, on_error="return")]
    assert [isinstance(one, mlxbert.Failure) for one in found] == [False, True, False]
    with pytest.raises(mlxbert.MlxbertError, match=r"input 1: .*not finite"):
        [*CALLS[task](model, ONE_BAD)]


@needs("serve")
def test_a_text_without_numbers_costs_only_itself_in_an_engine(tmp_path: Path) -> None:
    from mlxbert.serve.engine.engine import Engine

    with Engine({"m": str(with_nan(save_random_tagger(tmp_path / "model", NER)))}) as engine:
        results = engine.submit("m", "tag", ONE_BAD).result().results
    assert [isinstance(one, mlxbert.Failure) for one in results] == [False, True, False]


@pytest.fixture(scope="module")
def model(tiny_folder: Path) -> mlxbert.Model:
    return mlxbert.load(tiny_folder, dtype="float32")


@pytest.mark.sampled
@pytest.mark.parametrize("name", CALLS)
def test_results_and_counts_are_those_of_a_cpu(name: str, tiny_folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    model = mlxbert.load(tiny_folder, dtype="float32", new_heads=HEADS.get(name))
    on_cpu, on_gpu = Usage(), Usage()
    texts: list[Any] = [*TEXTS[:20], 5, *TEXTS[20:]]
    if name in ("answer", "next_sentence", "similarity"):
        texts.remove(5)
    expected = [*CALLS[name](model, texts, usage=on_cpu, on_error="return")]
    as_on_a_gpu(monkeypatch)
    made, make_batch = list[Batch](), batch.make_batch

    def noted(*given: Any) -> Batch:
        made.append(make_batch(*given))
        return made[-1]

    monkeypatch.setattr(runner, "make_batch", noted)
    found = [*CALLS[name](model, texts, usage=on_gpu, on_error="return")]
    shapes = [one.input_ids.shape for one in made]
    for one, other in zip(found, expected, strict=True):
        close(one.to_dict(), other.to_dict())
    counts = "texts", "inputs", "tokens", "truncated", "only_unknown"
    assert [getattr(on_gpu, one) for one in counts] == [getattr(on_cpu, one) for one in counts]
    assert on_gpu.batches == len(shapes) and sum(rows for rows, _ in shapes) > on_gpu.inputs  # some rows are padding
    assert on_gpu.padded_tokens == sum(rows * length for rows, length in shapes)
    assert all(rows == padded_count(rows) for rows, _ in shapes)
    again = [*CALLS[name](model, texts, on_error="return")]
    assert [one.to_dict() for one in again] == [one.to_dict() for one in found]


def test_the_product_with_the_vocabulary_has_few_shapes(model: mlxbert.Model, monkeypatch: pytest.MonkeyPatch) -> None:
    forward, counts = FillMaskTask.forward, list[tuple[int, int]]()

    def noted(task: FillMaskTask, batch: Any, parts: Any) -> Any:
        best, scores = forward(task, batch, parts)
        counts.append((sum(len(job.masks[number]) for job, number in parts), len(best)))
        return best, scores

    monkeypatch.setattr(FillMaskTask, "forward", noted)
    texts = ["the [MASK] sat", "[MASK] [MASK]", "[MASK] sat on [MASK]"]
    for on_gpu in (False, True):
        if on_gpu:
            as_on_a_gpu(monkeypatch)
        assert len([*mlxbert.fill_mask(model, texts)]) == 3
    assert counts == [(5, 5), (5, 6)]


def test_many_texts_are_one_window_of_a_gpu_and_keep_their_order(
    model: mlxbert.Model, monkeypatch: pytest.MonkeyPatch
) -> None:
    size = WINDOWS["small"]
    texts = [f"the {'cat ' * (number % 13)}" for number in range(size + 40)]
    expected, sizes = mlxbert.embed(model, texts), list[int]()
    as_on_a_gpu(monkeypatch, "small")
    results = EmbedTask.results

    def noted(task: EmbedTask, jobs: Any) -> Any:
        sizes.append(len(jobs))
        return results(task, jobs)

    monkeypatch.setattr(EmbedTask, "results", noted)
    assert np.abs(mlxbert.embed(model, texts) - expected).max() < 1e-5
    assert sizes == [size, 40]
    sizes.clear()
    found = np.stack([one.embedding for one in embed_stream(model, texts)])
    assert np.abs(found - expected).max() < 1e-5
    assert sizes == [WINDOW, size - WINDOW, 40]
    usage = Usage()
    mlxbert.embed(model, "the cat sat", usage=usage)
    assert usage.padded_tokens == 16 and usage.batches == 1  # one text is one row


@needs("serve")
def test_tasks_with_large_outputs_keep_usual_windows(
    model: mlxbert.Model, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from mlxbert.serve.protocols.tei import EmbedTokensTask

    as_on_a_gpu(monkeypatch)
    monkeypatch.setattr("mlxbert.text.batch.OUTPUTS", 2**22)  # the tiny model's are small
    assert EmbedTask(model, EmbedOptions()).window == FillMaskTask(model, FillMaskOptions()).window == WINDOWS["large"]
    for task in (EmbedWordsTask(model, EmbedWordsOptions(overflow="window")), EmbedTokensTask(model, EmbedOptions())):
        assert task.output_bytes == 4 * model.config.hidden_size * task.tokenizer.max_length
        assert task.window == 2**22 // task.output_bytes // WINDOW * WINDOW
    monkeypatch.setattr("mlxbert.text.batch.OUTPUTS", 2**20)
    everything = FillMaskTask(model, FillMaskOptions(top_k=model.tokenizer.vocab_size))
    assert everything.window < WINDOWS["large"]
    monkeypatch.setattr("mlxbert.text.batch.OUTPUTS", 2**22)
    nli = mlxbert.load(save_classifier(tmp_path / "nli", NLI), dtype="float32")
    for labels in (("a",), ("a", "b", "c"), tuple(str(number) for number in range(1000))):
        assert ZeroShotTask(nli, ClassifyOptions(labels=labels)).window == max(WINDOWS["large"] // len(labels), 1)


class Text(str):
    """A text that a set of weak references tells from its equals."""

    __hash__, __eq__ = object.__hash__, object.__eq__


def test_no_more_than_three_windows_are_in_memory(model: mlxbert.Model, monkeypatch: pytest.MonkeyPatch) -> None:
    """Texts so long that a window may not have more than a usual one."""
    as_on_a_gpu(monkeypatch, "small")
    monkeypatch.setattr(EmbedTask, "prepare", lambda task, text: SimpleNamespace(tokens=1, text=text))
    monkeypatch.setattr(EmbedTask, "texts", lambda task, text: [])
    monkeypatch.setattr(EmbedTask, "results", lambda task, jobs: (len(job.text) for job in jobs))
    alive, counts = weakref.WeakSet[Text](), list[int]()

    def texts() -> Iterator[str]:
        for _ in range(4000):
            alive.add(text := Text("x" * 2**12))
            counts.append(len(alive))
            yield text

    results: Iterable[Any] = EmbedTask(model, EmbedOptions()).run(texts())
    assert sum(results) == 4000 * 2**12
    gc.collect()
    assert WINDOW < max(counts) <= 3 * WINDOW + 3 and len(alive) <= 1
