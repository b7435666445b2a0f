"""A batch that is too large for the memory is computed in parts, with the results of the whole."""

import itertools
import weakref
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import mlxbert
from mlxbert.errors import DeviceError, OutOfMemoryError
from mlxbert.labels.labels import Labels
from mlxbert.machine.device import hint_once, mx
from mlxbert.machine.device_errors import StoppedError
from mlxbert.nn.encoder import Batch
from mlxbert.nn.heads import TASKS
from mlxbert.tasks.runner import run, run_batches
from mlxbert.text.usage import Usage
from tests.helpers.answering import save_answering
from tests.helpers.cases import together
from tests.helpers.classifiers import SENTIMENT, save_classifier
from tests.helpers.faults import DISPLAY, MEMORY, NO_FAULTS, OTHER, REFUSED, STOPPED, LateDevice, small_memory
from tests.helpers.rooms import needs
from tests.helpers.taggers import NER, save_random_tagger
from tests.helpers.tiny import save as save_tiny, with_nan
from tests.tasks.test_runner import of_lengths
from tests.text.test_batch import CONFIG

INPUTS = of_lengths([4, 3, 5, 9, 9, 9, 2, 8, 7, 1, 5])
TEXTS = ["the cat sat on the mat .", "the dog", "paris is the largest city", "a man went to the store", "he play ##s !"]


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


CALLS: dict[str, Callable[[mlxbert.Model, list[str]], Any]] = {
    "embed": lambda model, texts: list(mlxbert.embed_stream(model, texts)),
    "classify": lambda model, texts: list(mlxbert.classify(model, texts)),
    "tag": lambda model, texts: list(mlxbert.tag(model, texts)),
    "answer": lambda model, texts: list(mlxbert.answer(model, [("the cat ?", text) for text in texts])),
    "fill-mask": lambda model, texts: list(mlxbert.fill_mask(model, [f"{text} [MASK]" for text in texts])),
    "next-sentence": lambda model, texts: list(mlxbert.next_sentence(model, [(text, "he sat") for text in texts])),
}


@pytest.mark.parametrize(
    ("name", "rows", "sentence"),
    [(name, *fault) for name, fault in zip(CALLS, [(1, MEMORY[0]), (3, MEMORY[0]), (0, DISPLAY)] * 2, strict=True)],
)
def test_results_are_those_of_a_device_that_does_not_fail(
    name: str, rows: int, sentence: str, tiny_folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    labels = {"classify": Labels(("a", "b")), "tag": Labels(("O", "B-x")), "answer": None}
    heads = {str(TASKS[name]): labels[name]} if name in labels else None
    model = mlxbert.load(tiny_folder, dtype="float32", new_heads=heads)
    expected = CALLS[name](model, TEXTS * 4)
    tried = small_memory(monkeypatch, rows, sentence, times=None if sentence in MEMORY else 1)
    found = CALLS[name](model, TEXTS * 4)
    assert max(tried) > rows
    assert len(found) == len(expected) == 20
    for one, other in zip(found, expected, strict=True):
        close(one.to_dict(), other.to_dict())


def close(found: Any, expected: Any) -> None:
    """Both are the same but for rounding."""
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


class Late:
    """Computes the numbers of encodings on a device whose errors come late; what failed is -1."""

    def __init__(self, patch: pytest.MonkeyPatch, *failing: int, sentence: str = MEMORY[0]) -> None:
        self.failing, self.groups = {*failing}, list[list[int]]()
        LateDevice(patch, lambda arrays: any((array < 0).any().item() for array in arrays), sentence)

    def forward(self, batch: Batch, group: list[int]) -> mx.array:
        """The first attempt of some numbers fails."""
        self.groups.append(group)
        failed = self.failing & {*group}
        self.failing -= failed
        return mx.array(group) * (0 if failed else 1) - bool(failed)

    def read(self, found: mx.array, group: list[int]) -> Any:
        return found.tolist()

    def run(self, batch: int = 1) -> list[int]:
        return [*run_batches(of_lengths([16] * 6), self.forward, self.read, CONFIG, 16 * batch)]


@pytest.mark.parametrize("failing", [[0], [1], [5]])
def test_an_input_that_failed_with_another_one_is_computed_alone(
    failing: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    work = Late(monkeypatch, *failing)
    assert work.run() == [*range(6)] and not work.failing
    assert len(work.groups) <= 8


@pytest.mark.parametrize("sentence", [MEMORY[0], DISPLAY])
@pytest.mark.parametrize("failing", [[0, 1], [1, 2], [2, 4], [0, 1, 2, 3, 4, 5]])
def test_what_a_gpu_did_not_compute_is_computed_again(
    failing: list[int], sentence: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    work = Late(monkeypatch, *failing, sentence=sentence)
    assert work.run(2) == [*range(6)] and not work.failing
    assert len(work.groups) <= 9


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


ASKED: dict[str, Any] = {
    "embed": lambda model, texts, how: mlxbert.embed_stream(model, texts, on_error=how),
    "similarity": lambda model, texts, how: mlxbert.similarity_pairs(
        model, [(t, "a cat") for t in texts], on_error=how
    ),
    "embed-words": lambda model, texts, how: mlxbert.embed_words(model, texts, on_error=how),
    "classify": lambda model, texts, how: mlxbert.classify(model, texts, on_error=how),
    "tag": lambda model, texts, how: mlxbert.tag(model, texts, on_error=how),
    "answer": lambda model, texts, how: mlxbert.answer(model, [("who ?", text) for text in texts], on_error=how),
    "next-sentence": lambda model, texts, how: mlxbert.next_sentence(
        model, [(t, "a cat") for t in texts], on_error=how
    ),
}


@pytest.mark.parametrize("task", ASKED)
def test_a_text_without_numbers_costs_only_itself(task: str, tmp_path: Path) -> None:
    save: Any = {
        "classify": lambda folder: save_classifier(folder, SENTIMENT),
        "tag": lambda folder: save_random_tagger(folder, NER),
        "answer": save_answering,
    }.get(task, save_tiny)
    model = mlxbert.load(with_nan(save(tmp_path / "model")), dtype="float32")
    found = [*ASKED[task](model, ONE_BAD, "return")]
    assert [isinstance(one, mlxbert.Failure) for one in found] == [False, True, False]
    with pytest.raises(mlxbert.MlxbertError, match=r"input 1: .*not finite"):
        [*ASKED[task](model, ONE_BAD, "raise")]


@needs("serve")
def test_a_text_without_numbers_costs_only_itself_in_an_engine(tmp_path: Path) -> None:
    from mlxbert.serve.engine.engine import Engine

    with Engine({"m": str(with_nan(save_random_tagger(tmp_path / "model", NER)))}) as engine:
        results = engine.submit("m", "tag", ONE_BAD).result().results
    assert [isinstance(one, mlxbert.Failure) for one in results] == [False, True, False]
