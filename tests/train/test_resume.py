"""An interrupted run ends in the bits of one that was not, whatever it trains; which command may continue a run.

What is left of a run that was killed at its end is removed.
"""

import json
import logging
from pathlib import Path
from typing import Any

import pytest

import mlxbert
from mlxbert.durable_files import acquire_lock
from mlxbert.errors import ArgumentError
from mlxbert.machine.device import mx
from mlxbert.train.loop.events import Saved, Started
from mlxbert.train.training_folders import Workspace, clean_up
from tests.helpers.cases import fast
from tests.helpers.st_folder import NORMALIZE, pooling, save_st
from tests.train import test_answer_objective, test_embed_objective, test_few_shot, test_finetune, test_rerank
from tests.train.pretraining import electras
from tests.train.pretraining.files import model_folder

TEXTS = [{"text": text, "label": label} for text, label in test_finetune.rows(40)]
LORA = {"lora": 4, "lr": 2e-2}
# By name: the task, its data, options, and an option whose change makes another run.
CASES: dict[str, tuple[str, Any, dict[str, Any], dict[str, Any]]] = {
    "answer": ("answer", test_answer_objective.records(40), {}, {"stride": 3}),
    "vectors in chunks": ("embed", test_embed_objective.pairs(40), {"chunk": 3}, {"temperature": 0.3}),
    "few shot": ("classify", test_few_shot.records(4, 8), {"few_shot": True, "lr": 1e-3}, {"few_shot": False}),
    "rerank": ("rerank", test_rerank.groups(30), {}, {"loss": "mse"}),
    "teacher": ("classify", TEXTS, {"teacher": "", "gradient_accumulation": 2}, {"teacher": None}),
    "teacher, weighted": ("classify", TEXTS, {"teacher": "", "class_weights": "balanced"}, {"temperature": 3.0}),
    "dora": ("classify", TEXTS, {**LORA, "lora_dropout": 0.2, "dora": True}, {"lora": 5}),
    "rslora": ("classify", TEXTS, {**LORA, "rslora": True, "lora_layers": "all-linear"}, {"lora_alpha": 5}),
    "words": ("pretrain", None, {"objective": "mlm,nsp", "whole_words": True}, {"whole_words": False}),
    "words, adapters": ("pretrain", None, {"lora": 4, "lora_dropout": 0.2, "dropout": 0.1}, {"lora": 5}),
    "student": ("distill", None, {"layers": "0"}, {"layers": "1"}),
    "ELECTRA": ("pretrain", None, {"objective": "electra"}, {"generator": 0.5}),
}


@pytest.mark.parametrize("case", fast(CASES, "dora", "words"))
def test_an_interrupted_run_ends_in_the_same_bits(case: str, base: Path, tmp_path: Path) -> None:
    task, data, changes, other = CASES[case]
    options: dict[str, Any] = {"lr": 1e-2, "batch_size": 8, "device": "cpu", "save_every": 2}
    if data is None:
        folder, model = electras.Folder(tmp_path), model_folder(tmp_path / "tiny")
        starts = {"distill": {"teacher": model}, "electra": {"config": folder.config, "vocabulary": folder.vocabulary}}
        options |= starts.get(changes.get("objective", task), {"model": model}) | {"length": "24", "steps": 4}
    else:
        options |= {"model": base, "epochs": 2}
    if task == "embed" or "few_shot" in changes:
        options["model"] = save_st(tmp_path / "start", pooling("mean", old=True), NORMALIZE)
    if "teacher" in changes:
        [*mlxbert.finetune("classify", train=TEXTS, model=base, output=tmp_path / "teacher", epochs=1)]
        changes = changes | {"teacher": tmp_path / "teacher"}

    def start(name: str, **more: Any) -> Any:
        given = options | changes | more | {"output": tmp_path / name}
        return (
            getattr(mlxbert, task)(folder.corpus, **given)
            if data is None
            else mlxbert.finetune(task, train=data, **given)
        )

    [*start("whole")]
    stream = start("parts")
    next(event for event in stream if isinstance(event, Saved))
    stream.close()
    if "lora" in changes:  # the base is not written
        stored = [mx.load(str(path)) for path in (tmp_path / "parts.partial").rglob("*.safetensors")]
        assert stored and all("word" not in name for arrays in stored for name in arrays)
    with pytest.raises(ArgumentError, match="unfinished"):
        [*start("parts", **other)]
    [started, *_] = start("parts")
    assert isinstance(started, Started) and started.first_step > 0
    files = [*(tmp_path / "whole").rglob("*.safetensors")]
    assert files
    for path in files:
        assert (tmp_path / "parts" / path.relative_to(tmp_path / "whole")).read_bytes() == path.read_bytes()


MANIFEST: dict[str, Any] = {"task": "classify", "variants": [{"seed": 0}], "sha256": {"a.csv": "1", "b.csv": "2"}}


def begun(target: Path, manifest: dict[str, Any] = MANIFEST) -> Path:
    """Work that was interrupted; the file that holds its state."""
    workspace = Workspace(target, manifest)
    with workspace.locked(overwrite=False):
        state = workspace.folder / "runs/000/state.json"
        state.parent.mkdir(parents=True, exist_ok=True)
        state.write_text("{}")
    return state


def test_the_same_content_is_the_same_data_whatever_its_path(tmp_path: Path) -> None:
    state = begun(tmp_path / "out")
    moved = {**MANIFEST, "sha256": {"./a.csv": "1", "/data/b.csv": "2"}}
    with Workspace(tmp_path / "out", moved).locked(overwrite=False):
        assert state.is_file()
    for hashes, told in (
        ({"b.csv": "2", "a.csv": "1"}, r"order\)"),
        ({"a.csv": "1", "b.csv": "3"}, r"b.csv has changed\)"),
        ({"./a.csv": "1", "b.csv": "3"}, r"b.csv has changed\)"),
        ({"a.csv": "1"}, r"b.csv is no longer there\)"),
    ):
        with (
            pytest.raises(ArgumentError, match=f"the training data differ, because .*{told}"),
            Workspace(tmp_path / "out", {**MANIFEST, "sha256": hashes}).locked(overwrite=False),
        ):
            pass
    assert state.is_file()


@pytest.fixture
def killed(tmp_path: Path) -> Path:
    """A folder that is complete, next to the work that made it, as if its process was killed in between."""
    state = begun(tmp_path / "out")
    state.with_name("result.json").write_text("{}")
    (tmp_path / "out").mkdir()
    moved = {**MANIFEST, "sha256": {"./a.csv": "1", "./b.csv": "2"}}
    (tmp_path / "out/training.json").write_text(json.dumps({"command": "…", **moved, "metrics": {}}))
    return tmp_path / "out"


def test_work_whose_result_is_there_is_removed_and_said(killed: Path, caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.WARNING, "mlxbert"):
        clean_up(killed)
    assert [path.name for path in killed.parent.iterdir()] == ["out"] and [*killed.iterdir()] != []
    assert "out is complete" in caplog.text
    clean_up(killed)  # nothing is left
    assert len(caplog.records) == 1


@pytest.mark.parametrize("case", ["unfinished", "writing", "another", "none", "damaged", "at work"])
def test_other_work_is_kept(killed: Path, case: str) -> None:
    folder = killed.with_name("out.partial")
    lock = None
    match case:
        case "unfinished":
            (folder / "runs/000/result.json").unlink()
        case "writing":
            (folder / "model").mkdir()
        case "another":
            (killed / "training.json").write_text(json.dumps({**MANIFEST, "task": "regress"}))
        case "none":
            (killed / "training.json").unlink()
        case "damaged":
            (folder / "manifest.json").write_text("[")
        case "at work":
            lock = acquire_lock(folder / "lock", "run")
    clean_up(killed)
    assert folder.is_dir()
    if lock is not None:
        lock.close()
