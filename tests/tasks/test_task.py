"""The base of all tasks: jobs of several encodings, evaluation mode, and the public functions made of tasks."""

import itertools
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import mlxbert
from mlxbert.labels.labels import Labels
from mlxbert.machine.device import mx
from mlxbert.nn.encoder import Batch
from mlxbert.results.json import to_json
from mlxbert.tasks.catalogue import CATALOGUE
from mlxbert.tasks.fill_mask import FillMaskTask
from mlxbert.tasks.keywords import CallOptions, takes_keywords
from mlxbert.tasks.next_sentence import Pair
from mlxbert.tasks.options import EmbedOptions, FillMaskOptions, TagOptions, WindowedOptions
from mlxbert.tasks.task import PreparedItem, Task, evaluation_mode, one_or_many
from mlxbert.text.usage import Usage
from tests.helpers.cases import together
from tests.helpers.tiny import CONFIG, random_network, save, tiny_config

pytestmark = pytest.mark.usefixtures("exact_lengths")
TEXT = "the [MASK] sat on the mat"
PAIR = ("the cat sat", "he bought milk")


class Widths(Task[Pair, PreparedItem[Pair], tuple[int, int], list[int]]):
    """A task of several windows per pair: the length of each."""

    name = "embed"  # any model can do it

    def prepare(self, item: Pair) -> PreparedItem[Pair]:
        return PreparedItem(item, self.model.tokenizer.windows(*item, stride=3), False)

    def forward(self, batch: Batch, parts: Sequence[tuple[PreparedItem[Pair], int]]) -> mx.array:
        assert not self.model.network.training
        return batch.input_ids

    def read(self, found: mx.array, parts: Sequence[tuple[PreparedItem[Pair], int]]) -> list[tuple[int, int]]:
        """The number of each encoding and its length, which has to be that of its row."""
        lengths = [len(job.encodings[number]) for job, number in parts]
        assert found.shape == (len(parts), max(lengths))
        ids = [row[: len(job.encodings[n])] for row, (job, n) in zip(found.tolist(), parts, strict=True)]  # type: ignore[arg-type, index]
        assert ids == [job.encodings[number].ids for job, number in parts]
        return [(number, length) for (_, number), length in zip(parts, lengths, strict=True)]

    def result(self, job: PreparedItem[Pair], outputs: Sequence[tuple[int, int]]) -> list[int]:
        assert [number for number, _ in outputs] == list(range(len(job.encodings)))
        return [length for _, length in outputs]


@takes_keywords
def widths(model: mlxbert.Model, pairs: Any, *, options: WindowedOptions, call: CallOptions) -> Any:
    """Measures windows."""
    return one_or_many(Widths, model, pairs, options, call, name="pairs")


@together("batch_tokens", [None, 1, 70])
def test_a_job_has_one_output_for_each_of_its_windows(tiny: mlxbert.Model, batch_tokens: int | None) -> None:
    pairs = [("the cat", "a dog " * count) for count in (1, 40, 3, 13, 0)]
    usage = Usage()
    tiny.network.train()
    found = list(widths(tiny, pairs, batch_tokens=batch_tokens, usage=usage))
    assert found == [[len(one) for one in tiny.tokenizer.windows(*pair, stride=3)] for pair in pairs]
    assert max(map(len, found)) == 4 and usage.texts == 5 and usage.inputs == sum(map(len, found))
    assert usage.tokens == sum(map(sum, found)) and usage.truncated == 0


CALLS: dict[str, Callable[[mlxbert.Model], Any]] = {
    "fill_mask": lambda model: [(one.token_id, one.score) for one in mlxbert.fill_mask(model, TEXT).masks[0].fills],
    "next_sentence": lambda model: mlxbert.next_sentence(model, PAIR).score,
    "embed": lambda model: mlxbert.embed(model, TEXT),
    "similarity": lambda model: [one.score for one in mlxbert.similarity(model, TEXT, PAIR)],
}


@pytest.fixture(scope="module")
def dropping(tmp_path_factory: pytest.TempPathFactory) -> mlxbert.Model:
    config = CONFIG | {"hidden_dropout_prob": 0.4, "attention_probs_dropout_prob": 0.4}
    return mlxbert.load(save(tmp_path_factory.mktemp("dropping") / "model", config=config), dtype="float32")


@pytest.mark.parametrize("name", CALLS)
def test_tasks_compute_in_evaluation_mode(name: str, dropping: mlxbert.Model) -> None:
    expected = CALLS[name](dropping)
    dropping.network.train()
    encoding = dropping.tokenizer.encode(TEXT)
    ids = mx.array([encoding.ids])
    one, other = (np.array(dropping.network(ids).last_hidden_state) for _ in range(2))
    assert not np.array_equal(one, other)  # the network itself drops
    assert np.array_equal(CALLS[name](dropping), expected) and np.array_equal(CALLS[name](dropping), expected)
    assert dropping.network.training and dropping.network.encoder.layers[0].training
    if name == "fill_mask":  # an iterator that is left unfinished
        results = mlxbert.fill_mask(dropping, itertools.repeat(TEXT))
        assert all(next(results) and dropping.network.training for _ in range(3))
    dropping.network.eval()


def test_each_module_gets_its_own_mode_back_even_after_an_error() -> None:
    network = random_network(tiny_config())
    network.train()
    network.encoder.eval()
    network.encoder.layers[1].train()
    modes = [module.training for module in network.modules()]
    assert len(set(modes)) == 2
    with pytest.raises(KeyError), evaluation_mode(network):
        assert not any(module.training for module in network.modules())
        raise KeyError
    assert [module.training for module in network.modules()] == modes


def test_what_is_wrong_is_said_at_the_call(tiny: mlxbert.Model) -> None:
    def read() -> Iterator[Any]:
        raise AssertionError("read")
        yield TEXT

    for name in ("fill_mask", "next_sentence", "embed_stream", "classify", "replaced"):
        function = getattr(mlxbert, name)
        wrong = [("batch_tokens", 0), ("overflow", "cut"), ("on_error", "skip")]
        for option, value in wrong if name not in ("replaced", "classify") else []:
            with pytest.raises(mlxbert.ArgumentError, match=option):
                function(tiny, read(), **{option: value})
        with pytest.raises(mlxbert.ArgumentError, match="`model` is 'builtin'"):
            function("builtin", read())


@together("task", ["classify", "tag", "answer", "replaced"])
def test_a_model_without_the_head_is_refused_with_what_has_or_makes_one(task: str) -> None:
    with pytest.raises(mlxbert.CheckpointError, match="this checkpoint has no") as caught:
        mlxbert.load("builtin", task=task)
    hint = "google/electra-small-discriminator" if task == "replaced" else f"mlxbert.finetune({task!r}, "
    assert hint in (caught.value.hint or "")


@pytest.mark.usefixtures("all_cores")
def test_a_task_prepares_on_any_thread_and_computes_on_the_models(tiny: mlxbert.Model) -> None:
    task = FillMaskTask(tiny, FillMaskOptions(top_k=2))
    with ThreadPoolExecutor(1) as thread:
        job = thread.submit(task.prepare, TEXT).result()
        assert isinstance(thread.submit(task.compute, [job]).exception(), mlxbert.ThreadError)
    assert task.compute([job, job]) == list(mlxbert.fill_mask(tiny, [TEXT, TEXT], top_k=2))


@pytest.mark.parametrize("name", ["embed", "tag"])
def test_a_pause_comes_before_each_batch_of_a_long_text(name: str, tiny_folder: Path) -> None:
    model = mlxbert.load(tiny_folder, new_heads={"token_classifier": Labels(("O", "B-x", "I-x"))}, dtype="float32")
    options = EmbedOptions(overflow="window") if name == "embed" else TagOptions(overflow="window")
    task: Task[Any, Any, Any, Any] = CATALOGUE[name].make(model, options)
    task.batch_tokens = 128
    text, said = "the cat sat on the mat " * 300, list[int]()

    def pause(batch: bool) -> None:
        if batch and len(said) < 3:
            said.append(task.usage.batches if task.usage else -1)
            other = task.compute([task.job("a dog")])  # another request for the same task
            assert len(other) == 1

    task.usage = usage = Usage()
    (found,) = task.compute([task.job(text)], pause)
    assert said == [0, 2, 4] and usage.batches > 8
    (expected,) = task.compute([task.job(text)])
    assert to_json(found.to_dict()) == to_json(expected.to_dict())
    with pytest.raises(ZeroDivisionError):
        task.compute([task.job(text)], lambda batch: 1 / 0)  # type: ignore[arg-type]
    assert task.compute([task.job("a dog")])
