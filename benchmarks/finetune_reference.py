"""Trains with transformers on the sets of `finetune_sets.py`; writes a line of JSON per run.

Run: python benchmarks/finetune_reference.py SETS MODEL RESULTS.jsonl [--only NAME] [--seeds 3] [--threads 1]

Runs in RESULTS are not repeated. Needs torch, transformers, accelerate, scikit-learn and scipy.
"""

import argparse
import csv
from pathlib import Path
from typing import Any

import numpy as np
import torch
import transformers
from finetune_sets import SETTINGS, score
from runs import Setting, run_missing, sampled, train_theirs
from transformers import AutoModelForSequenceClassification, AutoTokenizer, DataCollatorWithPadding


def _read(path: Path) -> tuple[list[list[str]], list[str]]:
    with path.open(encoding="utf-8", newline="") as file:
        rows = list(csv.reader(file))[1:]
    return [row[:-1] for row in rows], [row[-1] for row in rows]


def _targets(setting: Setting, names: list[str], labels: list[str]) -> list[object]:
    if setting.task == "regress":
        return [float(label) for label in labels]
    if setting.task == "multilabel":
        return [[float(name in label.split(",")) for name in names] for label in labels]
    return [names.index(label) for label in labels]


def _sigmoid(logits: np.ndarray) -> np.ndarray:
    return 1 / (1 + np.exp(-logits))


def run(name: str, seed: int, arguments: argparse.Namespace) -> dict[str, Any]:
    """Trains once and scores the test set."""
    torch.set_num_threads(arguments.threads)
    setting, sets, model_folder = SETTINGS[name], arguments.sets, arguments.model
    texts, labels = _read(sets / name / "train.csv")
    test_texts, test_labels = _read(sets / name / "test.csv")
    names = sorted({part for label in labels for part in label.split(",")})
    tokenizer = AutoTokenizer.from_pretrained(model_folder)
    kinds = {"regress": "regression", "multilabel": "multi_label_classification"}
    kind = kinds.get(setting.task, "single_label_classification")
    transformers.set_seed(seed)
    count = 1 if setting.task == "regress" else len(names)
    model = AutoModelForSequenceClassification.from_pretrained(model_folder, num_labels=count, problem_type=kind)

    def encoded(texts: list[list[str]], labels: list[str]) -> list[dict[str, object]]:
        inputs = [tokenizer(*text, truncation=True, max_length=setting.max_length) for text in texts]
        targets = _targets(setting, names, labels)
        return [{**encoding, "labels": target} for encoding, target in zip(inputs, targets, strict=True)]

    train, test = sampled(encoded(texts, labels), arguments.first), encoded(test_texts, test_labels)
    trainer, spent = train_theirs(model, DataCollatorWithPadding(tokenizer), train, setting, seed, arguments.gpu)
    logits, valid = trainer.predict(test).predictions, None
    if setting.metric == "macro_f1":
        valid_texts, valid_labels = _read(sets / name / "valid.csv")
        valid_logits = trainer.predict(encoded(valid_texts, valid_labels)).predictions
        valid = (_sigmoid(valid_logits), _targets(setting, names, valid_labels))
        logits = _sigmoid(logits)
    targets = _targets(setting, names, test_labels)
    return {"score": score(setting, logits, targets, valid), **spent, "threads": arguments.threads}


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--threads", type=int, default=1, help="cores to run on")
    run_missing(parser, SETTINGS, run)
