"""The steps of training that `mlxbert bench --train` measures."""

import time
from collections.abc import Callable, Sequence
from pathlib import Path

import numpy as np
import pytest

import mlxbert
from mlxbert.bench import steps
from mlxbert.bench.job import Spent
from mlxbert.bench.steps import Clock, Step, measured, our_classifier, our_step, token_ids
from mlxbert.labels.labels import Labels
from mlxbert.model import Model
from mlxbert.weights.build import parameters

LENGTHS = (5, 9, 7)


@pytest.fixture
def model(tiny_folder: Path) -> Model:
    labels = Labels(("a", "b"), "single_label_classification")
    return mlxbert.load(tiny_folder, new_heads={"sequence_classifier": labels}, dtype="float32")


def test_batches_have_the_lengths_asked_for_and_no_padding_among_the_words() -> None:
    found = token_ids(LENGTHS, 50, pad_id=3)
    assert len(found) == steps.BATCHES and all([*map(len, batch)] == [*LENGTHS] for batch in found)
    words = [word for batch in found for row in batch for word in row]
    assert {*words} <= {*range(50)} - {3} and found == token_ids(LENGTHS, 50, pad_id=3) and found[0] != found[1]


def test_both_sides_get_the_same_batches(model: Model) -> None:
    pytest.importorskip("torch")
    ids, pad = token_ids(LENGTHS, model.config.vocab_size, model.config.pad_token_id), model.config.pad_token_id
    objective, batches = our_classifier(model, ids)
    for examples, theirs in zip(batches, steps.their_classifier(ids, pad), strict=True):
        ours = objective.collate(examples, None)
        assert ours.inputs.attention_mask is not None and ours.targets.tolist() == theirs["labels"].tolist()
        assert (
            np.array(ours.inputs.attention_mask).sum(1).tolist()
            == [*LENGTHS]
            == theirs["attention_mask"].sum(1).tolist()
        )
        for row, (length, expected) in enumerate(zip(LENGTHS, theirs["input_ids"].tolist(), strict=True)):
            assert np.array(ours.inputs.input_ids)[row, :length].tolist() == expected[:length]


def test_every_step_is_an_update(model: Model, monkeypatch: pytest.MonkeyPatch) -> None:
    ids = token_ids(LENGTHS, model.config.vocab_size, model.config.pad_token_id)
    objective, batches = our_classifier(model, ids)
    seen: list[list[int]] = []
    collate = objective.collate

    def noted(examples: Sequence[mlxbert.Example], rng: object) -> object:
        seen.extend(example.encoding.ids for example in examples)
        return collate(examples, rng)

    monkeypatch.setattr(objective, "collate", noted)
    before = {name: np.array(array) for name, array in parameters(model.network).items()}
    step = our_step(model, objective, batches, "float32")
    found = [step() for _ in range(steps.BATCHES + 1)]  # they come again
    assert sorted(seen) == sorted(row for batch in [*ids, ids[0]] for row in batch)
    for one in found:
        assert one["network"] > 0 and one["update"] > 0
        assert one["network"] + one["update"] == pytest.approx(one["seconds"])
    changed = {name for name, array in parameters(model.network).items() if not np.array_equal(array, before[name])}
    assert "heads.sequence_classifier.out.weight" in changed and any("layers.0" in name for name in changed)


@pytest.mark.slow
@pytest.mark.parametrize("dtype", ["float32", "bfloat16", "float16"])
def test_torch_updates_all_weights(dtype: str, model: Model, tmp_path: Path) -> None:
    torch = pytest.importorskip("torch")
    from transformers import AutoModelForSequenceClassification

    mlxbert.save(model, tmp_path / "saved")
    theirs = AutoModelForSequenceClassification.from_pretrained(tmp_path / "saved", dtype=torch.float32).train()
    before = {name: one.detach().clone() for name, one in theirs.named_parameters()}
    ids = token_ids(LENGTHS, model.config.vocab_size, model.config.pad_token_id)
    step = steps.their_step(theirs, steps.their_classifier(ids, model.config.pad_token_id), dtype)
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
