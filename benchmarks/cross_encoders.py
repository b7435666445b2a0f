"""Cross-encoders trained by mlxbert and by sentence-transformers on the sets of `finetune_sets.py`: JSON per run.

Run: python benchmarks/cross_encoders.py SETS MODEL RESULTS.jsonl --side ours|theirs [--only SET] [--seeds 3]
    [--first N]

Both have the same data in the same order, first weights and hyper-parameters, and binary cross-entropy; the weights
after the last update are scored on the test set by scikit-learn and scipy. Runs that RESULTS holds are not repeated.
The other side is the model and the loss of sentence-transformers in transformers' Trainer; it needs torch, both
libraries and accelerate.
"""

import argparse
import csv
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
from runs import Setting, run_missing, sampled, train_ours, train_theirs, use_cores
from scipy.stats import spearmanr
from sklearn.metrics import average_precision_score

SETTINGS = {
    "mrpc": Setting("rerank", 3, "average_precision"),
    "stsb": Setting("rerank", 2, "spearman"),
}
_LARGEST = 5.0  # score of STS-B
Pairs = list[dict[str, Any]]


def _read(path: Path) -> Pairs:
    """Pairs with labels from 0 to 1."""
    with path.open(encoding="utf-8", newline="") as file:
        rows = list(csv.reader(file))[1:]
    labels = {"same": 1.0, "different": 0.0}
    return [
        {"query": first, "text": second, "label": labels[label] if label in labels else float(label) / _LARGEST}
        for first, second, label in rows
    ]


def _start(setting: Setting, seed: int, given: Any) -> tuple[Any, Any]:
    """The model with the new head that both sides begin with, and the objective."""
    from mlxbert.model import load
    from mlxbert.training.objectives import make_objective

    objective: Any = make_objective("rerank", max_length=setting.max_length)
    return load(given.model, new_heads=objective.heads([]), dtype="float32", seed=seed), objective


def _ours(pairs: Pairs, asked: Pairs, setting: Setting, seed: int, given: Any) -> tuple[Any, dict[str, Any]]:
    """The scores of the test pairs, and what training took."""
    from mlxbert.readers.rows import read_rows
    from mlxbert.training.predict import predict

    loaded, objective = _start(setting, seed, given)
    objective.bind(loaded)
    records, test = (objective.read(read_rows(part)) for part in (pairs, asked))
    examples, tested = ([objective.prepare(record) for record in part] for part in (records, test))
    spent = train_ours(loaded, objective, examples, setting, seed)
    return predict(loaded.network, objective, tested), spent


def _theirs(pairs: Pairs, asked: Pairs, setting: Setting, seed: int, given: Any) -> tuple[Any, dict[str, Any]]:
    import torch
    import transformers
    from sentence_transformers.cross_encoder import CrossEncoder, losses

    import mlxbert

    class Scored(torch.nn.Module):  # type: ignore[misc]
        """The loss of sentence-transformers as transformers' Trainer takes it."""

        def __init__(self, encoder: Any) -> None:
            super().__init__()
            self.loss = losses.BinaryCrossEntropyLoss(encoder)

        def forward(self, query: list[str], text: list[str], label: Any) -> dict[str, Any]:
            return {"loss": self.loss([query, text], label)}

    def collate(batch: Pairs) -> dict[str, Any]:
        columns = {key: [one[key] for one in batch] for key in ("query", "text")}
        return {**columns, "label": torch.tensor([one["label"] for one in batch])}

    transformers.set_seed(seed)
    device = "cuda" if given.gpu else "cpu"
    with tempfile.TemporaryDirectory() as folder:
        start = Path(folder) / "start"
        mlxbert.save(_start(setting, seed, given)[0], start)
        encoder = CrossEncoder(str(start), num_labels=1, max_length=setting.max_length, device=device)
    _, spent = train_theirs(Scored(encoder), collate, pairs, setting, seed, given.gpu)
    encoder.eval()
    return encoder.predict([(one["query"], one["text"]) for one in asked]), spent


def score(setting: Setting, scores: Any, labels: Sequence[float]) -> float:
    """The metric of a set."""
    if setting.metric == "spearman":
        return float(spearmanr(scores, labels).statistic)
    return float(average_precision_score(labels, scores))


def run(name: str, seed: int, given: argparse.Namespace) -> dict[str, Any]:
    """Trains once and scores the test set."""
    use_cores(given, given.threads)
    setting = SETTINGS[name]
    pairs, asked = (_read(given.sets / name / f"{part}.csv") for part in ("train", "test"))
    pairs = sampled(pairs, given.first)
    if given.side == "theirs":
        import torch

        torch.set_num_threads(given.threads)
    train = _ours if given.side == "ours" else _theirs
    scores, spent = train(pairs, asked, setting, seed, given)
    found = score(setting, np.asarray(scores), [one["label"] for one in asked])
    return {"metric": setting.metric, "score": found, **spent, "threads": given.threads}


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--side", choices=("ours", "theirs"), required=True)
    parser.add_argument("--threads", type=int, default=1, help="cores to run on")
    run_missing(parser, SETTINGS, run, kinds=("side",))
