"""The steps of training that `mlxbert bench` measures."""

import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import mlxbert
from mlxbert.doctor import training_steps
from mlxbert.doctor.training_steps import Clock, Step, measured, our_classifier, our_step, token_ids
from mlxbert.doctor.worker_job import Spent
from mlxbert.labels.labels import Labels
from mlxbert.machine.device import mx
from mlxbert.model import Model
from mlxbert.train.loop.training_run import Run
from mlxbert.weights.build import parameters

LENGTHS = (5, 9, 7)


@pytest.fixture
def model(tiny_folder: Path) -> Model:
    return mlxbert.load(tiny_folder, new_heads={"sequence_classifier": Labels(("a", "b"))}, dtype="float32")


def ids_of(model: Model) -> list[list[list[int]]]:
    return token_ids(LENGTHS, model.config.vocab_size, model.config.pad_token_id)


def test_batches_have_the_lengths_asked_for_and_no_padding_among_the_words() -> None:
    found = token_ids(LENGTHS, 50, pad_id=3)
    assert len(found) == training_steps.BATCHES and all([*map(len, batch)] == [*LENGTHS] for batch in found)
    words = [word for batch in found for row in batch for word in row]
    assert {*words} <= {*range(50)} - {3} and found == token_ids(LENGTHS, 50, pad_id=3) and found[0] != found[1]


@pytest.mark.slow
def test_both_sides_get_the_same_batches(model: Model) -> None:
    pytest.importorskip("torch")
    ids, pad = token_ids(LENGTHS, model.config.vocab_size, model.config.pad_token_id), model.config.pad_token_id
    objective, batches = our_classifier(model, ids)
    for examples, theirs in zip(batches, training_steps.their_classifier(ids, pad), strict=True):
        ours = objective.collate(examples, None)
        assert ours.inputs.attention_mask is not None and ours.targets.tolist() == theirs["labels"].tolist()
        masks = np.array(ours.inputs.attention_mask), theirs["attention_mask"]
        assert [mask.sum(1).tolist() for mask in masks] == [[*LENGTHS]] * 2
        for row, (length, expected) in enumerate(zip(LENGTHS, theirs["input_ids"].tolist(), strict=True)):
            assert np.array(ours.inputs.input_ids)[row, :length].tolist() == expected[:length]


def test_every_step_is_an_update(model: Model, monkeypatch: pytest.MonkeyPatch) -> None:
    ids = ids_of(model)
    objective, batches = our_classifier(model, ids)
    seen: list[list[int]] = []
    collate = objective.collate

    def noted(examples: Sequence[mlxbert.Example], rng: object) -> object:
        seen.extend(example.encoding.ids for example in examples)
        return collate(examples, rng)

    monkeypatch.setattr(objective, "collate", noted)
    before = {name: np.array(array) for name, array in parameters(model.network).items()}
    step = our_step(model, objective, batches, "float32")
    found = [step() for _ in range(training_steps.BATCHES + 1)]  # they come again
    assert sorted(seen) == sorted(row for batch in [*ids, ids[0]] for row in batch)
    for one in found:
        assert one["network"] > 0 and one["update"] > 0
        assert one["network"] + one["update"] == pytest.approx(one["seconds"])
    changed = {name for name, array in parameters(model.network).items() if not np.array_equal(array, before[name])}
    assert "heads.sequence_classifier.out.weight" in changed and any("layers.0" in name for name in changed)


def test_each_step_of_a_gpu_is_one_update_that_is_waited_for(model: Model, monkeypatch: pytest.MonkeyPatch) -> None:
    """The loop starts an update before it finishes the one before it; the first is measured alone."""
    for name, loaded in [*sys.modules.items()]:
        if name.partition(".")[0] == "mlxbert" and "on_gpu" in vars(loaded):
            monkeypatch.setattr(loaded, "on_gpu", lambda: True)
    calls: list[str] = []

    def noted(name: str, right: Callable[..., Any]) -> Callable[..., Any]:
        def call(*given: Any) -> Any:
            calls.append(name)
            return right(*given)

        return call

    for owner, name in ((Clock, "__init__"), (Clock, "spent"), (Run, "_start"), (mx, "synchronize")):
        monkeypatch.setattr(owner, name, noted(name, getattr(owner, name)))
    mx.disable_compile()
    try:
        step = our_step(model, *our_classifier(model, ids_of(model)), "float32")
        found = [step() for _ in range(4)]
    finally:
        mx.enable_compile()
    update = ["__init__", "_start", "synchronize", "spent"]
    assert calls == [*update, "_start", "_start", "synchronize", *update * 3]
    assert all({*one} == {"seconds"} for one in found)


def test_a_check_follows_the_first_step_and_says_why_it_fails() -> None:
    done: list[str] = []

    def step() -> Spent:
        done.append("step")
        return {"seconds": 1.0}

    checks: list[Callable[[], None]] = [lambda: done.append("check")]
    for _ in range(2):
        made = training_steps.checked(step, checks)
        assert made() == made() == {"seconds": 1.0}
    assert done == ["step", "check", "step", "step", "step"]

    def refused() -> None:
        raise mlxbert.MlxbertError("torch cannot train in float16")

    for fails in (step, lambda: {"seconds": 1 / 0}):
        with pytest.raises(mlxbert.MlxbertError, match="cannot train in float16"):
            training_steps.checked(fails, [refused])()


@pytest.mark.slow
@pytest.mark.parametrize("dtype", ["float32", "bfloat16", "float16"])
def test_torch_updates_all_weights(dtype: str, model: Model, tmp_path: Path) -> None:
    torch = pytest.importorskip("torch")
    from transformers import AutoModelForSequenceClassification

    mlxbert.save(model, tmp_path / "saved")
    theirs = AutoModelForSequenceClassification.from_pretrained(tmp_path / "saved", dtype=torch.float32).train()
    before = {name: one.detach().clone() for name, one in theirs.named_parameters()}
    batches = training_steps.their_classifier(ids_of(model), model.config.pad_token_id)
    step = training_steps.their_step(theirs, batches, dtype)
    found = step()
    assert found["network"] + found["update"] == pytest.approx(found["seconds"])
    assert all(not torch.equal(one, before[name]) for name, one in theirs.named_parameters())


def test_what_a_step_needed_is_freed_before_another_shape_is_measured() -> None:
    alive: set[int] = set()

    class Held:
        def __init__(self, size: int) -> None:
            assert not alive
            alive.add(size)
            self.size = size

        def __del__(self) -> None:
            alive.discard(self.size)

    made: list[int] = []

    def make(lengths: Sequence[int]) -> Step:
        made.append(len(lengths))
        held = Held(len(lengths))
        return lambda: {"seconds": float(held.size)}

    measure: Callable[[Sequence[int]], Spent] = measured(make)
    assert [measure([8] * count)["seconds"] for count in (1, 2, 2, 1)] == [1, 2, 2, 1] and made == [1, 2, 1]


def test_the_parts_of_a_step_add_up_and_cores_that_wait_are_not_busy() -> None:
    clock = Clock()
    time.sleep(0.05)
    found = clock.spent(time.perf_counter())
    assert found["network"] + found["update"] == pytest.approx(found["seconds"]) and found["busy"] < 0.9
    assert {*Clock().spent(None)} == {"seconds"}
