"""transformers' own training on the sets of `finetune_sets.py`; a line of JSON per run.

Run: python benchmarks/finetune_reference.py SETS MODEL RESULTS.jsonl [--only NAME] [--seeds 3] [--threads 1]

Runs that RESULTS holds are not repeated. Needs torch, transformers, accelerate, scikit-learn and scipy.
"""

import argparse
import csv
import json
import tempfile
import time
from pathlib import Path

import numpy as np
import torch
import transformers
from finetune_sets import CLIP, MAX_LENGTH, SETTINGS, WARMUP, WEIGHT_DECAY, Setting, score
from transformers import AutoModelForSequenceClassification, AutoTokenizer, Trainer, TrainingArguments


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


def run(name: str, sets: Path, model_folder: str, seed: int) -> dict[str, object]:
    """Trains once and scores the test set."""
    setting = SETTINGS[name]
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
        inputs = [tokenizer(*text, truncation=True, max_length=MAX_LENGTH) for text in texts]
        targets = _targets(setting, names, labels)
        return [{**one, "labels": target} for one, target in zip(inputs, targets, strict=True)]

    train, test = encoded(texts, labels), encoded(test_texts, test_labels)
    steps = -(-len(train) // setting.batch_size) * setting.epochs
    with tempfile.TemporaryDirectory() as folder:
        options = TrainingArguments(
            folder, num_train_epochs=setting.epochs, learning_rate=setting.lr, warmup_steps=round(WARMUP * steps),
            weight_decay=WEIGHT_DECAY, max_grad_norm=CLIP, per_device_train_batch_size=setting.batch_size,
            per_device_eval_batch_size=64, save_strategy="no", report_to=[], seed=seed, use_cpu=True,
            logging_steps=50, disable_tqdm=True, dataloader_pin_memory=False,
        )  # fmt: skip
        trainer = Trainer(model, options, train_dataset=train, processing_class=tokenizer)
        wall, cpu = time.perf_counter(), time.process_time()
        trainer.train()
        wall, cpu = time.perf_counter() - wall, time.process_time() - cpu
        logits = trainer.predict(test).predictions
        valid = None
        if setting.metric == "macro_f1":
            valid_texts, valid_labels = _read(sets / name / "valid.csv")
            found = trainer.predict(encoded(valid_texts, valid_labels)).predictions
            valid = (_sigmoid(found), _targets(setting, names, valid_labels))
            logits = _sigmoid(logits)
    targets = _targets(setting, names, test_labels)
    return {"set": name, "seed": seed, "score": score(setting, logits, targets, valid), "wall_s": wall, "cpu_s": cpu,
            "steps": steps, "threads": torch.get_num_threads()}  # fmt: skip


def main() -> None:
    """Runs what is missing."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("sets", type=Path)
    parser.add_argument("model")
    parser.add_argument("results", type=Path)
    parser.add_argument("--only", choices=list(SETTINGS), action="append")
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--threads", type=int, default=1)
    given = parser.parse_args()
    torch.set_num_threads(given.threads)
    known = [json.loads(line) for line in given.results.read_text().splitlines()] if given.results.exists() else []
    done = {(run["set"], run["seed"]) for run in known}
    for seed in range(given.seeds):
        for name in given.only or SETTINGS:
            if (name, seed) not in done:
                result = run(name, given.sets, given.model, seed)
                with given.results.open("a") as file:
                    file.write(json.dumps(result) + "\n")
                print(result, flush=True)


if __name__ == "__main__":
    main()
