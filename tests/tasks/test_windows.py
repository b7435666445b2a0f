"""The windows and batches of a GPU: results, counts and order are those of a CPU, and memory is bounded."""

import gc
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import mlxbert
from mlxbert.labels.labels import Labels
from mlxbert.tasks import runner
from mlxbert.tasks.embed import EmbedTask, embed_stream
from mlxbert.tasks.embed_words import EmbedWordsTask
from mlxbert.tasks.fill_mask import FillMaskTask
from mlxbert.tasks.options import ClassifyOptions, EmbedOptions, EmbedWordsOptions, FillMaskOptions
from mlxbert.tasks.zero_shot import ZeroShotTask
from mlxbert.text import batch
from mlxbert.text.batch import WINDOW, WINDOWS, padded_count
from mlxbert.text.usage import Usage
from tests.helpers.batches import as_on_a_gpu
from tests.helpers.classifiers import NLI, save_classifier
from tests.helpers.rooms import needs
from tests.tasks.test_faults import close

LARGE = WINDOWS["large"]
TEXTS = ["the cat sat on a mat " * (number % 9) + "[MASK]" for number in range(45)]
CALLS: dict[str, Callable[..., Any]] = {
    "embed": mlxbert.embed_stream,
    "classify": mlxbert.classify,
    "tag": mlxbert.tag,
    "embed_words": mlxbert.embed_words,
    "fill_mask": lambda model, texts, **more: mlxbert.fill_mask(model, [_with_masks(one) for one in texts], **more),
    "answer": lambda model, texts, **more: mlxbert.answer(model, [("the cat ?", text) for text in texts], **more),
    "next_sentence": lambda model, texts, **more: mlxbert.next_sentence(model, [(one, "he") for one in texts], **more),
}
HEADS: dict[str, dict[str, Labels | None]] = {
    "classify": {"sequence_classifier": Labels(("a", "b", "c"))},
    "tag": {"token_classifier": Labels(("O", "B-x"))},
    "answer": {"question_answering": None},
}


def _with_masks(text: Any) -> Any:
    """The text with two masks; a tiny model's texts have room for them."""
    return text.replace("[MASK]", "[MASK] [MASK]") if isinstance(text, str) else text


@pytest.fixture(scope="module")
def model(tiny_folder: Path) -> mlxbert.Model:
    return mlxbert.load(tiny_folder, dtype="float32")


@pytest.mark.sampled
@pytest.mark.parametrize("name", CALLS)
def test_results_and_counts_are_those_of_a_cpu(name: str, tiny_folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    model = mlxbert.load(tiny_folder, dtype="float32", new_heads=HEADS.get(name))
    on_cpu, on_gpu = Usage(), Usage()
    texts: list[Any] = [*TEXTS[:20], 5, *TEXTS[20:]]
    if name in ("answer", "next_sentence"):
        texts.remove(5)
    expected = [*CALLS[name](model, texts, usage=on_cpu, on_error="return")]
    as_on_a_gpu(monkeypatch)
    shapes, make_batch = list[tuple[int, ...]](), batch.make_batch

    def noted(*given: Any) -> Any:
        made = make_batch(*given)
        shapes.append(made.input_ids.shape)
        return made

    monkeypatch.setattr(runner, "make_batch", noted)
    found = [*CALLS[name](model, texts, usage=on_gpu, on_error="return")]
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


def test_a_single_text_is_one_row(model: mlxbert.Model, monkeypatch: pytest.MonkeyPatch) -> None:
    as_on_a_gpu(monkeypatch)
    usage = Usage()
    mlxbert.embed(model, "the cat sat", usage=usage)
    assert usage.padded_tokens == 16 and usage.batches == 1


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


@needs("serve")
def test_tasks_with_large_outputs_keep_usual_windows(
    model: mlxbert.Model, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from mlxbert.serve.protocols.tei import EmbedTokensTask

    as_on_a_gpu(monkeypatch)
    monkeypatch.setattr("mlxbert.text.batch.OUTPUTS", 2**22)  # the tiny model's are small
    assert EmbedTask(model, EmbedOptions()).window == FillMaskTask(model, FillMaskOptions()).window == LARGE
    for task in (EmbedWordsTask(model, EmbedWordsOptions(overflow="window")), EmbedTokensTask(model, EmbedOptions())):
        assert task.output_bytes == 4 * model.config.hidden_size * task.tokenizer.max_length
        assert task.window == 2**22 // task.output_bytes // WINDOW * WINDOW
    monkeypatch.setattr("mlxbert.text.batch.OUTPUTS", 2**20)
    everything = FillMaskTask(model, FillMaskOptions(top_k=model.tokenizer.vocab_size))
    assert everything.window < LARGE
    monkeypatch.setattr("mlxbert.text.batch.OUTPUTS", 2**22)
    nli = mlxbert.load(save_classifier(tmp_path / "nli", NLI), dtype="float32")
    for labels in (("a",), ("a", "b", "c"), tuple(str(number) for number in range(1000))):
        assert ZeroShotTask(nli, ClassifyOptions(labels=labels)).window == max(LARGE // len(labels), 1)


def test_no_more_than_three_windows_are_in_memory(model: mlxbert.Model, monkeypatch: pytest.MonkeyPatch) -> None:
    """Texts so long that a window may not have more than a usual one."""

    class Text(str):
        """Counts those that are alive."""

        alive = most = 0

        def __new__(cls, text: str) -> "Text":
            Text.alive += 1
            Text.most = max(Text.most, Text.alive)
            return super().__new__(cls, text)

        def __del__(self) -> None:
            Text.alive -= 1

    as_on_a_gpu(monkeypatch, "small")
    monkeypatch.setattr(EmbedTask, "prepare", lambda task, text: _Held(text))
    monkeypatch.setattr(EmbedTask, "texts", lambda task, text: [])
    monkeypatch.setattr(EmbedTask, "results", lambda task, jobs: (len(job.text) for job in jobs))

    def texts() -> Iterator[str]:
        for _ in range(6000):
            yield Text("x" * 2**12)

    results: Iterable[Any] = EmbedTask(model, EmbedOptions()).run(texts())
    assert sum(results) == 6000 * 2**12
    gc.collect()
    assert WINDOW < Text.most <= 3 * WINDOW + 3 and Text.alive <= 1


class _Held:
    """A job that holds its text."""

    tokens = 1

    def __init__(self, text: str) -> None:
        self.text = text
