"""Compares trainings that end early with trainings of all epochs: writes a line of JSON per run, then prints a table.

Run: python benchmarks/early_end.py DATA RESULTS.jsonl [--model MODEL] [--seeds 3] [--only SET…]

DATA has the folders trec, sst2, cola, stsb-en and wnut17 as published. A run trains all of its 20 epochs on 320 short
texts of a set, and is scored after each epoch on 80 validation texts and on 200 test texts. The early end changes no
update before it, so the state that a patience selects is one of these 20. Runs in RESULTS are not repeated.
"""

import argparse
import csv
import itertools
import json
import random
import statistics
import tempfile
import time
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any
from unittest import mock

from finetune_sets import read_split

import mlxbert
from mlxbert.train.labelled_material import LabelledMaterial
from mlxbert.train.objectives.predictions import predict

TASKS = {"trec": "classify", "sst2": "classify", "cola": "classify", "stsb": "regress", "wnut17": "tag"}
TRAIN, VALID, TEST = 320, 80, 200
PATIENCES = (3, 4, 5)
_LOSSES = ("log_loss", "mse", "loss")
History = list[tuple[dict[str, float], dict[str, float]]]  # metrics of an epoch, on validation and on test data


def _sentences(path: Path) -> list[str]:
    """Sentences of at most 14 words that name something."""
    lines = path.read_text(encoding="utf-8").split("\n")
    words = [[*group] for filled, group in itertools.groupby(lines, lambda line: bool(line.strip())) if filled]
    return ["\n".join(group) for group in words if len(group) <= 14 and any("\tO" not in line for line in group)]


def _rows(data: Path, name: str, split: str) -> list[Any]:
    if name == "wnut17":
        return _sentences(data / name / {"train": "wnut17train.conll", "test": "emerging.test.annotated"}[split])
    return [row for row in read_split(data, name, split) if sum(map(len, row[:-1])) <= 90]


def _write(path: Path, rows: list[Any]) -> str:
    if isinstance(rows[0], str):
        path = path.with_suffix(".conll")
        path.write_text("\n\n".join(rows) + "\n", encoding="utf-8")
        return str(path)
    with path.open("w", encoding="utf-8", newline="") as file:
        names = ("text", "pair", "label") if len(rows[0]) == 3 else ("text", "label")
        csv.writer(file).writerows([names, *rows])
    return str(path)


def run(data: Path, name: str, seed: int, model: str) -> dict[str, Any]:
    """Trains all epochs, and returns the metrics of each."""
    train, test = _rows(data, name, "train"), _rows(data, name, "test")
    random.Random(seed).shuffle(train)
    random.Random(0).shuffle(test)
    history: History = []
    usual = LabelledMaterial.training

    def training(self: Any, call: Any, options: Any, trained: Any) -> Mapping[str, Any]:
        """The inputs of the loop, with an evaluation that hides the test records behind the validation records."""
        objective, valid = self.plan.objective, self.plan.valid
        own = sum(owner < VALID for owner in valid.owners)

        def evaluate() -> Mapping[str, float]:
            parts = valid.examples[:own], valid.examples[own:]
            here, there = (objective.metrics(part, predict(trained.network, objective, part)) for part in parts)
            history.append((dict(here), dict(there)))
            return here

        return {**usual(self, call, options, trained), "evaluate": evaluate}

    with tempfile.TemporaryDirectory() as folder, mock.patch.object(LabelledMaterial, "training", training):
        begun = time.process_time()
        options: dict[str, Any] = {"few_shot": False} if TASKS[name] == "classify" else {}
        options |= {
            "train": _write(Path(folder, "train.csv"), train[:TRAIN]),
            "valid": _write(Path(folder, "valid.csv"), train[TRAIN : TRAIN + VALID] + test[:TEST]),
            "output": f"{folder}/out", "model": model, "seed": seed, "patience": 1000, "device": "cpu",
        }  # fmt: skip
        *_, finished = mlxbert.finetune(TASKS[name], **options)
        seconds = round(time.process_time() - begun)
    assert isinstance(finished, mlxbert.Finished)
    return {"set": name, "seed": seed, "metric": finished.metric, "history": history, "cpu_seconds": seconds}


def chosen(history: History, metric: str, patience: float) -> tuple[int, int]:
    """Returns the epoch that a run keeps, and the one after which it ends; both count from 0."""
    pairs = [(here[metric], -next(here[name] for name in _LOSSES if name in here)) for here, _ in history]
    worse = 0
    for epoch, (score, loss) in enumerate(pairs):
        scores, losses = zip(*pairs[:epoch] or [(-2.0, -1e9)], strict=True)
        worse = 0 if score > max(scores) or loss > max(losses) else worse + 1
        if worse >= patience:
            break
    return max(range(epoch + 1), key=lambda place: (pairs[place], place)), epoch


def table(runs: list[dict[str, Any]]) -> Iterator[str]:
    """Yields the lines of the table."""
    ends = (1000, *PATIENCES)
    yield "| set | metric | all epochs | " + " | ".join(f"patience {end}" for end in PATIENCES) + " |"
    yield "|---" * (3 + len(PATIENCES)) + "|"
    for name in dict.fromkeys(one["set"] for one in runs):
        cells = []
        found = [one for one in runs if one["set"] == name]
        for end in ends:
            places = [chosen(one["history"], one["metric"], end) for one in found]
            scores = [one["history"][best][1][one["metric"]] for one, (best, _) in zip(found, places, strict=True)]
            spread = f" ± {statistics.stdev(scores):.3f}" if len(scores) > 1 else ""
            epochs = statistics.mean(last + 1 for _, last in places)
            cells.append(f"{statistics.mean(scores):.3f}{spread} ({epochs:.0f})")
        yield f"| {name}, {len(found)} seeds | {found[0]['metric']} | {' | '.join(cells)} |"


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("data", type=Path)
    parser.add_argument("results", type=Path)
    parser.add_argument("--model", default="builtin")
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--only", nargs="*", default=[*TASKS])
    given = parser.parse_args()
    results = given.results.read_text().splitlines() if given.results.exists() else []
    done = [json.loads(line) for line in results]
    for number in range(given.seeds):
        for subset in given.only:
            if (subset, number) not in {(one["set"], one["seed"]) for one in done}:
                done.append(run(given.data, subset, number, given.model))
                with given.results.open("a") as out:
                    out.write(json.dumps(done[-1]) + "\n")
    print("\n".join(table(done)))
