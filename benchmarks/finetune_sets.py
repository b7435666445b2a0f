"""Public task data as CSV files for both sides, with shared hyper-parameters and scores.

Run: python benchmarks/finetune_sets.py DATA OUT
"""

import csv
import sys
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import numpy as np
from runs import Setting
from scipy.stats import spearmanr
from sklearn.metrics import accuracy_score, f1_score, matthews_corrcoef

from mlxbert.train.scores.metrics import tune_thresholds

SETTINGS = {
    "trec": Setting("classify", 3, "accuracy"),
    "mrpc": Setting("classify", 3, "accuracy"),
    "stsb": Setting("regress", 2, "spearman"),
    "sst2": Setting("classify", 1, "accuracy", first=4000),
    "cola": Setting("classify", 2, "matthews", first=4000),
    "goemotions": Setting("multilabel", 1, "macro_f1", first=4000, lr=3e-4, batch_size=16),
}
Rows = Iterable[tuple[str, ...]]
_QUESTIONS = ("DESC", "ENTY", "ABBR", "HUM", "LOC", "NUM")


def score(setting: Setting, scores: Any, targets: Any, valid: tuple[Any, Any] | None = None) -> float:
    """The metric of a set, by scikit-learn and scipy; larger scores mean more likely labels.

    Args:
        setting: The task.
        scores: The scores of the test data, (N, C).
        targets: The targets of the test data.
        valid: Scores and targets of the validation data, for tuning the thresholds of multi-label data: after an epoch
            on few examples, hardly any label has a probability above one half.
    """
    if setting.metric == "spearman":
        return float(spearmanr(scores[:, 0], targets).statistic)
    if setting.metric == "macro_f1":
        assert valid is not None
        thresholds = tune_thresholds(np.asarray(valid[0]), np.array(valid[1]) > 0.5)
        return float(f1_score(np.array(targets) > 0.5, scores >= thresholds, average="macro", zero_division=0))
    if setting.metric == "matthews":
        return float(matthews_corrcoef(targets, scores.argmax(-1)))
    return float(accuracy_score(targets, scores.argmax(-1)))


def _lines(path: Path, encoding: str = "utf-8-sig") -> list[str]:
    return path.read_text(encoding=encoding).rstrip("\n").split("\n")


def _trec(path: Path) -> Rows:
    for line in _lines(path, "latin-1"):
        label, _, text = line.partition(" ")
        yield text, _QUESTIONS[int(label)]


def _mrpc(path: Path) -> Rows:
    for line in _lines(path)[1:]:
        label, _, _, first, second = line.split("\t")
        yield first, second, ("different", "same")[int(label)]


def _stsb(path: Path) -> Rows:
    with path.open(encoding="utf-8", newline="") as file:
        yield from (tuple(row) for row in csv.reader(file))


def _sst2(path: Path) -> Rows:
    for line in _lines(path)[1:]:
        text, label = line.split("\t")
        yield text.strip(), ("negative", "positive")[int(label)]


def _cola(path: Path) -> Rows:
    for line in _lines(path):
        _, label, _, text = line.split("\t")
        yield text, ("unacceptable", "acceptable")[int(label)]


def _goemotions(path: Path) -> Rows:
    names = _lines(path.with_name("labels.txt"))
    for line in _lines(path):
        text, ids, _ = line.split("\t")
        yield text, ",".join(names[int(number)] for number in ids.split(","))


_SOURCES = {
    "trec": (_trec, "trec/TREC.train.all", None, "trec/TREC.test.all"),
    "mrpc": (_mrpc, "mrpc/msr-para-train.tsv", "mrpc/msr-para-val.tsv", "mrpc/msr-para-test.tsv"),
    "stsb": (_stsb, "stsb-en/stsb-en-train.csv", "stsb-en/stsb-en-dev.csv", "stsb-en/stsb-en-test.csv"),
    "sst2": (_sst2, "sst2/train.tsv", None, "sst2/dev.tsv"),
    "cola": (_cola, "cola/in_domain_train.tsv", None, "cola/in_domain_dev.tsv"),
    "goemotions": (_goemotions, "goemotions/train.tsv", "goemotions/dev.tsv", "goemotions/test.tsv"),
}


def read_split(data: Path, name: str, split: str) -> list[tuple[str, ...]]:
    """The rows of a set as published: texts, then the label."""
    read, *files = _SOURCES[name]
    file = files[("train", "valid", "test").index(split)]
    assert file is not None
    return list(read(data / file))


def write(data: Path, out: Path) -> None:
    """Writes `NAME/train.csv`, `valid.csv` if the set has one, and `test.csv` of every set."""
    for name, (read, *files) in _SOURCES.items():
        folder = out / name
        folder.mkdir(parents=True, exist_ok=True)
        for split, source in zip(("train", "valid", "test"), files, strict=True):
            if source is None:
                continue
            rows = list(read(data / source))
            rows = rows[: SETTINGS[name].first] if split == "train" else rows
            header = ("text", "pair", "label") if len(rows[0]) == 3 else ("text", "label")
            with (folder / f"{split}.csv").open("w", encoding="utf-8", newline="") as file:
                csv.writer(file).writerows([header, *rows])
            print(f"{folder / split}.csv: {len(rows):,} rows")


if __name__ == "__main__":
    write(Path(sys.argv[1]), Path(sys.argv[2]))
