"""Training runs and corpora as rows of `tests/test_kills.py`."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any
from unittest import mock

import mlxbert
from mlxbert.loading import load_tokenizer_of
from mlxbert.train.pretraining.corpus import token_writer
from mlxbert.train.pretraining.corpus.token_store import read_corpus
from mlxbert.weights.model_source import ModelRef
from tests.helpers.kills import Writer
from tests.helpers.program import CONFIG
from tests.helpers.tiny import save
from tests.train.files import TASKS, data_file
from tests.train.pretraining.files import model_folder, text_file
from tests.train.pretraining.test_corpus import content, many


def result(folder: Path, name: str = "out") -> tuple[bytes, Any]:
    """Returns the weights, and what the folder says of the runs, except how long they took."""
    record = json.loads((folder / name / "training.json").read_text())
    runs = [{name: value for name, value in run.items() if name != "seconds"} for run in record.get("runs", [])]
    return (folder / name / "model.safetensors").read_bytes(), (runs, record.get("metrics"))


def _finetune(task: str) -> Writer:
    """Two runs, each of which saves its state."""

    def prepare(folder: Path) -> dict[str, Any]:
        model = mlxbert.new_model({**CONFIG, "initializer_range": 0.15}, save(folder / "vocabulary"))
        base = mlxbert.save(model, folder / "tiny")
        options = {"crf": True} if task == "tag" else {}
        return {"train": data_file(folder, task, 32), "model": base, "seeds": 2, "epochs": 2, "lr": 1e-2, **options}

    def write(options: dict[str, Any], folder: Path) -> None:
        [*mlxbert.finetune(task, output=folder / "out", batch_size=16, save_every=1, **options)]

    finished = ("runs/000/result.json", "runs/000/weights.safetensors")
    stored = (*finished, "runs/001/state.json", "runs/001/state-*.safetensors", "runs/001/best-*.safetensors")
    files = ("out.partial/manifest.json", *(f"out.partial/{name}" for name in stored))
    return Writer(prepare, write, result, "out", refused=files if task == "classify" else ())


def _pretrain(function: Callable[..., Any], model: str, **more: Any) -> Writer:
    def prepare(folder: Path) -> dict[str, Any]:
        text_file(folder / "text.txt")
        return {"corpus": folder / "text.txt", model: model_folder(folder / "tiny")}

    def write(inputs: dict[str, Any], folder: Path) -> None:
        options = {"length": "24", "batch_size": 8, "steps": 6, "eval_every": 3, "save_every": 1, **more}
        corpus, *_ = inputs.values()
        [*function(corpus, output=folder / "out", **{model: inputs[model]}, **options)]

    corpus = tuple(
        f"out.partial/corpus/{name}" for name in ("ids.bin", "sentences.bin", "documents.bin", "corpus.json")
    )
    state = ("manifest.json", "runs/000/state.json", "runs/000/state-*.safetensors", "runs/000/best-*.safetensors")
    refused = tuple(f"out.partial/{name}" for name in state)
    if model == "teacher":
        return Writer(prepare, write, result, "out")
    return Writer(prepare, write, result, "out", refused=refused, mended=corpus)


def _read(paths: list[Path], folder: Path) -> None:
    tokenizer = load_tokenizer_of(ModelRef("builtin"))[1]
    with mock.patch.multiple(token_writer, BLOCK=50, BATCH_SENTENCES=30):
        read_corpus(paths, folder / "corpus", tokenizer)


WRITERS = {
    **{f"finetune {task}": _finetune(task) for task in TASKS},
    "pretrain": _pretrain(mlxbert.pretrain, "model", objective="mlm,nsp"),
    "distill": _pretrain(mlxbert.distill, "teacher"),
    "corpus": Writer(many, _read, lambda folder: content(folder / "corpus")),
}
