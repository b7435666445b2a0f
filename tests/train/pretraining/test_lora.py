"""Pre-training with adapters: what is trained, what opens the folder, and how a run resumes."""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import mlxbert
from mlxbert.errors import ArgumentError
from mlxbert.machine.device import mx
from mlxbert.weights.build import parameters
from tests.helpers.cases import fast
from tests.helpers.tiny import CONFIG
from tests.train.pretraining.files import model_folder, text_file

OPTIONS: dict[str, Any] = {"length": "24", "batch_size": 8, "steps": 4, "eval_every": 2, "lora": 4, "lr": 1e-2}
TEXT = "the [MASK] sat on the mat"


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return models(tmp_path_factory.mktemp("adapters"))


def models(folder: Path) -> Path:
    """A text and three models: with both heads of pre-training, with the masked-LM head, and with none."""
    text_file(folder / "text.txt")
    model_folder(folder / "both")
    config = {**CONFIG, "initializer_range": 0.15, "num_hidden_layers": 1}
    heads: dict[str, dict[str, None]] = {"words": {"masked_lm": None}, "bare": {}}
    for name, some in heads.items():
        model = mlxbert.new_model(config, folder / "both", heads=some)
        mlxbert.save(model, folder / name)
    return folder


def start(folder: Path, model: str, output: Path, **changes: Any) -> Iterator[mlxbert.Event]:
    return mlxbert.pretrain(folder / "text.txt", model=folder / model, output=output, **{**OPTIONS, **changes})


CASES: dict[str, tuple[str, str, list[str] | None, set[str]]] = {
    "words": ("words", "mlm", None, {"masked_lm"}),
    "sentences": ("words", "mlm,nsp", ["cls.seq_relationship", "pooler.dense"], {"masked_lm", "next_sentence"}),
    "both": ("both", "mlm,nsp", None, {"masked_lm", "next_sentence"}),
    "fresh": ("bare", "mlm", ["cls.predictions"], {"masked_lm"}),
    "vectors": ("bare", "vectors", None, set()),
}


DORA = {"dora": True, "lora_layers": "all-linear", "lora_dropout": 0.1}
EVERY: list[tuple[str, dict[str, Any]]] = [(case, options) for case in CASES for options in ({}, DORA)]


@pytest.mark.parametrize(("case", "options"), fast(EVERY, ("sentences", DORA), ("vectors", {})), ids=str)
def test_what_is_trained_and_what_is_not(case: str, options: dict[str, Any], folder: Path, tmp_path: Path) -> None:
    model, objective, saved, heads = CASES[case]
    events = [*start(folder, model, tmp_path / "out", objective=objective, **options)]
    config = json.loads((tmp_path / "out" / "adapter_config.json").read_text(encoding="utf-8"))
    assert config["modules_to_save"] == saved
    assert config["task_type"] == ("FEATURE_EXTRACTION" if case == "vectors" else None)
    started = events[0]
    assert isinstance(started, mlxbert.Started) and started.frozen > started.parameters > 0
    found = mlxbert.load(tmp_path / "out", dtype="float32")
    assert {*found.network.heads} == heads
    # Of the base only matrices with adapters have changed.
    base, now = (parameters(one.network) for one in (mlxbert.load(folder / model, dtype="float32"), found))
    changed = {name for name in base.keys() & now.keys() if not mx.array_equal(base[name], now[name]).item()}
    assert changed and all(name.startswith("encoder.layers.") and name.endswith(".weight") for name in changed)


@pytest.mark.parametrize("base", fast(["words", "bare"], "bare"))
def test_the_numbers_of_training_are_those_of_the_folder(base: str, folder: Path, tmp_path: Path) -> None:
    given: dict[str, Any] = {"objective": "mlm,nsp", "valid": text_file(tmp_path / "other.txt", 9, seed=9)}
    events = [*start(folder, base, tmp_path / "out", fill=TEXT, **given)]
    finished = events[-1]
    assert isinstance(finished, mlxbert.Finished)
    [best] = [event for event in events if isinstance(event, mlxbert.Evaluated) and event.step == finished.step]
    with pytest.raises(ArgumentError, match="is an adapter"):
        start(folder, base, tmp_path / "other", adapter=tmp_path / "out")
    mlxbert.convert(folder / base, tmp_path / "merged", adapter=tmp_path / "out")
    for model in (
        mlxbert.load(tmp_path / "out"), mlxbert.load(folder / base, adapter=tmp_path / "out"),
        mlxbert.load(tmp_path / "merged"),
    ):  # fmt: skip
        found = mlxbert.evaluate_words(model, tmp_path / "other.txt", objective="mlm,nsp", length=24)
        assert found.metrics == pytest.approx(best.metrics, rel=1e-4)
        filled = mlxbert.fill_mask(model, TEXT, top_k=1)
        assert TEXT.replace("[MASK]", filled.masks[0].fills[0].token) == best.filled[0]
