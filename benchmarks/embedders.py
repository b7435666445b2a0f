"""Embedding models trained on STS-B, by mlxbert or by sentence-transformers: a line of JSON per run.

Run: python benchmarks/embedders.py SETS MODEL RESULTS.jsonl --side ours|theirs [--seeds 3] [--first N] [--threads 1]

SETS is made by `finetune_sets.py`. CoSENT on the scores, the weights after the last update are scored on the test set:
Spearman's correlation of cosines and scores, before and after. Runs that RESULTS holds are not repeated. Needs scipy,
and for `theirs` sentence-transformers and datasets.
"""

import argparse
import csv
import tempfile
from pathlib import Path
from typing import Any

import numpy as np
from runs import CLIP, WARMUP, WEIGHT_DECAY, Setting, run_missing, sampled, timed, train_ours, use_cores

SETTINGS = {"stsb": Setting("embed", epochs=2, metric="spearman", lr=5e-5, batch_size=32)}
Texts = list[tuple[str, str, float]]


def _read(path: Path) -> Texts:
    with path.open(encoding="utf-8", newline="") as file:
        return [(row["text"], row["pair"], float(row["label"])) for row in csv.DictReader(file)]


def _spearman(first: Any, second: Any, scores: list[float]) -> float:
    from scipy.stats import spearmanr

    first, second = (one / np.linalg.norm(one, axis=1, keepdims=True) for one in (first, second))
    return float(spearmanr((first * second).sum(1), scores).statistic)


def _ours(name: str, seed: int, given: argparse.Namespace, train: Texts, test: Texts) -> dict[str, Any]:
    from mlxbert.model import load
    from mlxbert.readers.rows import read_rows
    from mlxbert.training.objectives.embed import Embed
    from mlxbert.training.predict import predict

    objective = Embed(max_length=SETTINGS[name].max_length)
    parts = [
        objective.read(read_rows([{"sentence1": a, "sentence2": b, "score": score} for a, b, score in part]))
        for part in (train, test)
    ]
    objective.check(parts[0])
    model = load(given.model, task="embed", dtype="float32")
    objective.bind(model)
    examples, asked = ([objective.prepare(record) for record in part] for part in parts)

    def score() -> float:
        vectors = np.asarray(predict(model.network, objective, asked))
        return _spearman(vectors[::2], vectors[1::2], [one.target for one in asked])

    before = score()
    spent = train_ours(model, objective, examples, SETTINGS[name], seed)
    return {"before": before, "score": score(), **spent}


def _theirs(name: str, seed: int, given: argparse.Namespace, train: Texts, test: Texts) -> dict[str, Any]:
    import torch
    from datasets import Dataset
    from sentence_transformers import (
        SentenceTransformer,
        SentenceTransformerTrainer,
        SentenceTransformerTrainingArguments,
    )
    from sentence_transformers.sentence_transformer.losses import CoSENTLoss
    from transformers import set_seed

    torch.set_num_threads(given.threads)
    set_seed(seed)
    setting = SETTINGS[name]
    model = SentenceTransformer(
        str(given.model), device="cuda" if given.gpu else "cpu", model_kwargs={"dtype": torch.float32}
    )
    model.max_seq_length = setting.max_length
    data = Dataset.from_dict(dict(zip(("sentence1", "sentence2", "score"), map(list, zip(*train)))))  # noqa: B905

    def score() -> float:
        first, second, scores = zip(*test, strict=True)
        return _spearman(model.encode(list(first)), model.encode(list(second)), list(scores))

    before = score()
    steps = -(-len(train) // setting.batch_size) * setting.epochs
    with tempfile.TemporaryDirectory() as folder:
        options = SentenceTransformerTrainingArguments(
            folder, num_train_epochs=setting.epochs, learning_rate=setting.lr, warmup_steps=round(WARMUP * steps),
            weight_decay=WEIGHT_DECAY, max_grad_norm=CLIP, per_device_train_batch_size=setting.batch_size,
            save_strategy="no", report_to=[], seed=seed, use_cpu=not given.gpu, disable_tqdm=True,
            dataloader_pin_memory=False,
        )  # fmt: skip
        trainer = SentenceTransformerTrainer(model, options, train_dataset=data, loss=CoSENTLoss(model))
        spent = timed(trainer.train)
    return {"before": before, "score": score(), **spent, "steps": steps}


def run(name: str, seed: int, given: argparse.Namespace) -> dict[str, Any]:
    """Trains once and scores the test set before and after."""
    use_cores(given, given.threads)
    train, test = (_read(given.sets / name / f"{part}.csv") for part in ("train", "test"))
    train = sampled(train, given.first)
    found = (_ours if given.side == "ours" else _theirs)(name, seed, given, train, test)
    return {**found, "threads": given.threads}


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--side", choices=["ours", "theirs"], required=True)
    parser.add_argument("--threads", type=int, default=1, help="cores to run on")
    run_missing(parser, SETTINGS, run, ["side"])
