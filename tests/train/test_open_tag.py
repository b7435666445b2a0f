"""Training to find entities of any types: targets, negative types, the loss, windows, and that a model learns."""

import random
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import mlxbert
from mlxbert.errors import ArgumentError
from mlxbert.machine.device import mx
from mlxbert.model import Model
from mlxbert.train.data.labelled_rows import read_rows
from mlxbert.train.objectives.open_tag import OpenTag
from mlxbert.train.objectives.predictions import predict
from mlxbert.train.training_plan import prepared

GOLDENS = Path(__file__).parents[1] / "tasks" / "gliner_goldens"
TEXT = "Ada Lovelace met Charles Babbage in London."
SPANS = [
    {"start": 0, "end": 12, "label": "person"},
    {"start": 17, "end": 32, "label": "person"},
    {"start": 36, "end": 42, "label": "city"},
]


def _objective(kind: str, rows: list[dict[str, Any]], **options: Any) -> tuple[OpenTag, Model, list[Any]]:
    objective, model = OpenTag(**options), mlxbert.load(GOLDENS / kind, dtype="float32", device="cpu")
    records = objective.read(read_rows(rows))
    objective.heads(records)
    objective.bind(model)
    return objective, model, records


@pytest.mark.parametrize("kind", ["bert", "deberta-v3-tokens"])
def test_the_loss_is_the_cross_entropy_of_all_spans(kind: str) -> None:
    rows: list[dict[str, Any]] = [{"text": TEXT, "spans": SPANS}, {"text": "the cat sat", "spans": []}]
    objective, model, records = _objective(kind, rows)
    examples = [example for record in records for example in objective.examples(record)]
    batch = objective.collate(examples, random.Random(1))
    total, words = objective.loss(model.network, batch)
    logits = np.array(model.network.logits("open_entities", batch.inputs), np.float64)
    targets, mask, _ = (np.array(array) for array in batch.targets)
    each = -np.log(1 / (1 + np.exp(np.where(targets > 0, -logits, logits))))
    assert float(total) == pytest.approx((each * mask).sum(), rel=1e-5)
    assert words == 8 + 3  # the period is a word
    if kind == "bert":  # spans of up to 4 words
        assert mask[0, :, :, 0].sum() == 8 + 7 + 6 + 5 and mask[1, :, :, 0].sum() == 3 + 2 + 1
        assert sorted(map(tuple, np.argwhere(targets[0].any(axis=-1)).tolist())) == [(0, 1), (3, 1), (6, 0)]
    else:
        assert targets[0].sum(axis=(0, 2)).tolist() == [3, 3, 5]  # first, last and inner words
    assert not targets[1].any()


def test_negative_types_are_a_random_choice_in_random_order() -> None:
    rows = [
        {"text": TEXT, "spans": SPANS},
        {"text": "the gene and the river", "spans": [{"start": 4, "end": 8, "label": "gene"}]},
    ]
    objective, _, records = _objective("bert", rows)
    assert objective.types == ("city", "gene", "person")
    (example,) = objective.examples(records[1])
    chosen = {tuple(objective._choose_types(example, random.Random(seed))) for seed in range(40)}
    assert all("gene" in types and len({*types}) == len(types) for types in chosen)
    assert {len(types) for types in chosen} == {1, 2, 3} and len({types[0] for types in chosen}) == 3


def test_entities_that_cannot_be_learned_are_counted() -> None:
    rows = [{"text": TEXT, "spans": [{"start": 0, "end": 42, "label": "person"}]}]
    objective, _, records = _objective("bert", rows)
    assert objective.prepare(records[0]).target == []
    assert any("1 entities" in note for note in objective.notes())


def test_long_sentences_and_many_types_are_evaluated_completely() -> None:
    """Perfect scores give perfect metrics, whatever the windows and the groups of types."""
    spans = [{"start": 8 * place, "end": 8 * place + 3, "label": f"type {place}"} for place in range(70)]
    objective, _, records = _objective("bert", [{"text": "cat sat " * 70, "spans": spans}])
    examples = objective.examples(records[0])
    assert len(examples) > 3 and len(objective._groups) > 1
    rows = []
    for example in examples:
        for group in objective._groups:
            logits = np.full((len(example.words), 4, len(group)), -9.0)
            for first, last, kind in example.target:
                if kind in group:
                    logits[first, last - first, group.index(kind)] = 9
            rows.append(logits)
    assert len(rows) == len(objective.inputs(examples))
    scores = objective.metrics(examples, rows)
    assert scores["f1"] == scores["macro_f1"] == 1


def test_options_of_taggers_are_refused() -> None:
    for option in ({"crf": True}, {"label_all_pieces": True}, {"stride": 3}):
        with pytest.raises(ArgumentError, match="open"):
            OpenTag(**option)
    with pytest.raises(ArgumentError, match="mark no entities"):
        _objective("bert", [{"words": ["the", "cat"], "tags": ["DET", "NOUN"]}])


def _sentences(count: int) -> list[dict[str, Any]]:
    rng = random.Random(0)
    rows = []
    for _ in range(count):
        name, city = rng.choice(["Ada", "Bob", "Eve", "Tom"]), rng.choice(["Paris", "Tokyo", "London"])
        text = f"{name} lives in {city} now."
        start = len(name) + 10
        spans = [{"start": 0, "end": len(name), "label": "person"}]
        rows.append({"text": text, "spans": [*spans, {"start": start, "end": start + len(city), "label": "city"}]})
    return rows


def test_a_model_learns_and_finds_what_it_is_asked_for(tmp_path: Path) -> None:
    data = _sentences(48)
    model = mlxbert.finetune(
        "tag", train=data[:40], valid=data[40:], model=GOLDENS / "bert", output=tmp_path / "model", open=True,
        epochs=10, batch_size=8, lr=4e-3, dropout=0.0,
    ).run()  # fmt: skip
    text = "Ada lives in Paris now."
    found = mlxbert.tag(mlxbert.load(tmp_path / "model"), text, labels=["person", "city"])
    assert [(entity.label, entity.text) for entity in found.entities] == [("person", "Ada"), ("city", "Paris")]
    turned = mlxbert.tag(model, text, labels=["city", "person"])
    assert [(entity.label, entity.text) for entity in turned.entities] == [("person", "Ada"), ("city", "Paris")]
    evaluation = mlxbert.evaluate("tag", model, data=data[40:])
    assert evaluation.metrics["f1"] > 0.9


def test_an_encoder_becomes_a_gliner_model(base: Path, tmp_path: Path) -> None:
    data = _sentences(12)
    folder = tmp_path / "model"
    model = mlxbert.finetune("tag", train=data, model=base, output=folder, open=True, epochs=1, freeze=1).run()
    opened = mlxbert.load(folder, task="tag")
    before = mlxbert.load(base, task="embed", dtype="float32").network.encoder.embeddings.word.weight
    words, size = before.shape
    assert model.tokenizer.token_id("<<ENT>>") == words + 1 and model.config.vocab_size == words + 3
    after = opened.network.encoder.embeddings.word.weight
    assert after.shape == (words + 3, size) and mx.allclose(after[:words], before, atol=1e-2).item()
    assert (folder / "gliner_config.json").is_file() and not (folder / "config.json").exists()
    options: Any = {"labels": ["person"], "threshold": 0.0}
    assert mlxbert.tag(opened, TEXT, **options) == mlxbert.tag(model, TEXT, **options)


def test_predictions_do_not_depend_on_the_batch() -> None:
    objective, model, records = _objective("bert", _sentences(8))
    part = prepared(objective, [(record, record.place) for record in records])
    scores = [
        objective.metrics(part.examples, predict(model.network, objective, part.examples, batch_tokens=tokens))
        for tokens in (60, 2000)
    ]
    assert scores[0] == scores[1]
