"""Python waits for the device once per batch and once per update, and batches have few shapes."""

import itertools
import random
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

import mlxbert
from mlxbert.machine.device import mx, nn
from mlxbert.text.batch import WINDOW, padded_length, window_size
from mlxbert.text.usage import Usage
from tests.helpers.batches import as_on_a_gpu, shapes_of
from tests.helpers.cases import fast, together
from tests.helpers.rooms import needs

_READS = ("item", "tolist", "__bool__", "__int__", "__float__", "__array__")
_WAITING: list[tuple[Any, str]] = [
    *((mx.array, name) for name in _READS), (mx, "eval"), (np, "array"), (np, "asarray"),
]  # fmt: skip


class Waits:
    """A counter of waits: every call that needs the values of an array is one."""

    def __init__(self) -> None:
        self.count = 0
        self._known: dict[int, mx.array] = {}  # the arrays themselves: an id may be given to another

    def note(self, arrays: list[mx.array]) -> None:
        """Counts one wait, unless all of these arrays have been waited for before."""
        new = [array for array in arrays if id(array) not in self._known]
        self._known |= {id(array): array for array in new}
        self.count += bool(new)


@contextmanager
def counted(patch: pytest.MonkeyPatch) -> Iterator[Waits]:
    """Counts the waits within the context, on the code paths of a GPU.

    Compiling is disabled, because it needs a C++ compiler.
    """
    waits = Waits()

    def noting(call: Callable[..., Any]) -> Callable[..., Any]:
        def instead(*arguments: Any, **named: Any) -> Any:
            leaves = dict(nn.utils.tree_flatten(list(arguments))).values()
            waits.note([leaf for leaf in leaves if isinstance(leaf, mx.array)])
            return call(*arguments, **named)

        return instead

    with patch.context() as within:
        within.setattr(mx, "default_device", lambda: SimpleNamespace(type=mx.DeviceType.gpu))
        within.setattr(mx, "set_default_device", lambda device: None)
        for place, name in _WAITING:
            within.setattr(place, name, noting(getattr(place, name)))
        within.setattr(mx, "synchronize", lambda: waits.note([mx.array(0)]))
        mx.disable_compile()
        try:
            yield waits
        finally:
            mx.enable_compile()


TEXTS = ["the cat sat " * (number % 7 + 1) for number in range(20)]
MASKED = [text + "[MASK]" for text in TEXTS]
QUESTIONS = [("the cat", text) for text in TEXTS]
PAIRS = [(text, "he bought milk") for text in TEXTS]


# By the task: its model, and a call for texts of several lengths.
CALLS: dict[str, tuple[str, Callable[..., Any]]] = {
    "embed": ("embed", lambda model, **more: mlxbert.embed(model, TEXTS, **more)),
    "similarity": ("embed", lambda model, **more: mlxbert.similarity(model, TEXTS[0], TEXTS, **more)),
    "fill_mask": ("fill-mask", lambda model, **more: [*mlxbert.fill_mask(model, MASKED, **more)]),
    "next_sentence": ("fill-mask", lambda model, **more: [*mlxbert.next_sentence(model, PAIRS, **more)]),
    "classify": ("sentiment", lambda model, **more: [*mlxbert.classify(model, TEXTS, **more)]),
    "classify, several labels": ("emotions", lambda model, **more: [*mlxbert.classify(model, TEXTS, **more)]),
    "classify, zero-shot": ("nli", lambda model, **more: [*mlxbert.classify(model, TEXTS, labels=["a", "b"], **more)]),
    "rerank": ("stars", lambda model, **more: mlxbert.rerank(model, "the cat", TEXTS, **more)),
    "tag": ("tag", lambda model, **more: [*mlxbert.tag(model, TEXTS, **more)]),
    "answer": ("answer", lambda model, **more: [*mlxbert.answer(model, QUESTIONS, **more)]),
}


@pytest.mark.parametrize("task", CALLS)
def test_a_batch_is_waited_for_once(task: str, folders: dict[str, Path], monkeypatch: pytest.MonkeyPatch) -> None:
    name, call = CALLS[task]
    model, usage, on_cpu = mlxbert.load(folders[name], dtype="float32", device="cpu"), Usage(), Usage()
    expected = call(model, usage=on_cpu, batch_tokens=160)
    with counted(monkeypatch) as waits:
        found = call(model, usage=usage, batch_tokens=160)
    assert usage.batches > 3 and waits.count == usage.batches
    counts = "texts", "inputs", "tokens", "truncated", "only_unknown"
    assert [getattr(usage, one) for one in counts] == [getattr(on_cpu, one) for one in counts]
    assert numbers_of(found) == pytest.approx(numbers_of(expected), abs=1e-5)


def numbers_of(results: Any) -> list[float]:
    """All numbers in results."""
    if isinstance(results, float | int):
        return [results]
    if isinstance(results, str | bool | None):
        return []
    parts = results.flatten().tolist() if isinstance(results, np.ndarray) else results
    parts = parts if isinstance(parts, Iterable) else vars(parts).values()
    return [number for part in parts for number in numbers_of(part)]


@pytest.mark.parametrize("seed", range(2))
def test_an_epoch_has_few_shapes(seed: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """A GPU compiles and keeps memory by shape; the lengths are about those of SST-2, and of sentences and articles."""
    as_on_a_gpu(monkeypatch)
    rng = random.Random(seed)
    short = [min(3 + int(rng.expovariate(1 / 10)), 66) for _ in range(5_000)]
    mixed = [min(3 + int(rng.lognormvariate(4, 1.2)), 512) for _ in range(5_000)]
    for found, most_lengths, most_shapes in ((short, 5, 14), (mixed, 14, 55)):
        lengths, shapes = {padded_length(one, 512) for one in found}, {*shapes_of(found, WINDOW)}
        assert {length for _, length in shapes} <= lengths
        assert len(lengths) <= most_lengths and len(shapes) <= most_shapes


# For 20,000 texts of 3 to 300 words, sentences, articles, and both, in windows of 4,096.
@together(
    ("mean", "deviation", "most", "most_shapes", "most_padding"),  # the first two: of the logarithm of a length
    [(3.2, 0.9, 75, 28, 0.21), (2.5, 0.5, 39, 10, 0.31), (6.1, 0.5, 534, 20, 0.05), (4.0, 1.2, 163, 39, 0.13)],
)
def test_the_batches_of_many_texts_are_few_and_full(
    mean: float, deviation: float, most: int, most_shapes: int, most_padding: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    as_on_a_gpu(monkeypatch)
    rng = random.Random(3)
    lengths = [min(3 + int(rng.lognormvariate(mean, deviation)), 512) for _ in range(20_000)]
    shapes = [*shapes_of(lengths, window_size())]
    assert len(shapes) <= most and len(set(shapes)) <= most_shapes
    assert 1 - sum(lengths) / sum(rows * length for rows, length in shapes) <= most_padding


def waits_of_an_update(start: "Callable[..., Iterator[mlxbert.Event]]", patch: pytest.MonkeyPatch) -> int:
    """The waits up to the next event, after updates that make tables."""
    with counted(patch) as waits:
        steps = (event for event in start(dtype="float32") if isinstance(event, mlxbert.Step))
        next(steps), next(steps)
        before, _ = waits.count, next(steps)
        return waits.count - before


@needs("train")
@pytest.mark.parametrize(
    ("task", "accumulation"),
    fast(itertools.product(["classify", "tag", "answer", "embed"], [1, 2]), ("classify", 1), ("embed", 2)),
)
def test_an_update_is_waited_for_once(
    task: str, accumulation: int, folders: dict[str, Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from tests.train.files import data_file

    start = partial(
        mlxbert.finetune, task, train=data_file(tmp_path, task, 32), model=folders["fill-mask"], batch_size=4,
        output=tmp_path / "out", gradient_accumulation=accumulation,
    )  # fmt: skip
    assert waits_of_an_update(start, monkeypatch) == 1  # for the numbers of the update before


@needs("train")
@pytest.mark.parametrize("objective", ["mlm", "mlm,nsp"])
def test_an_update_of_pretraining_is_waited_for_once(
    objective: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from tests.train.pretraining.files import model_folder, text_file

    start = partial(
        mlxbert.pretrain, text_file(tmp_path / "text.txt"), model=model_folder(tmp_path / "tiny"),
        output=tmp_path / "out", objective=objective, length="24", batch_size=8, steps=6, eval_every=6,
    )  # fmt: skip
    assert waits_of_an_update(start, monkeypatch) == 1


@needs("train")
@pytest.mark.parametrize(
    "options", fast([{"gradient_accumulation": 2, "max_grad_norm": 0.5}, {"dtype": mx.float16}], {"dtype": mx.float16})
)
def test_updates_that_are_not_waited_for_are_those_of_a_cpu(
    options: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    from tests.train.runs import make_run, steps

    # Too large for the first updates in float16.
    monkeypatch.setattr("mlxbert.train.loop.training_run.FIRST_SCALE", 2.0**24)
    cpu = make_run(rate=0.0, data=50, evaluate=None, epochs=3, **options)
    expected = steps(cpu.events())
    with counted(monkeypatch):
        gpu = make_run(rate=0.0, data=50, evaluate=None, epochs=3, **options)
        found = steps(gpu.events())
    assert [one.loss for one in found] == pytest.approx(
        [one.loss for one in expected], rel=2e-2 if "dtype" in options else 1e-4
    )
    assert len(expected) > 8 and expected[-1].loss != expected[0].loss
    here, there = cpu.state.progress, gpu.state.progress
    assert (here.updates, here.scale, here.step) == (there.updates, there.scale, there.step)
    assert here.updates < here.step if "dtype" in options else here.updates == here.step
