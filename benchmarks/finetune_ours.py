"""Trains with mlxbert on the sets of `finetune_sets.py`, like `finetune_reference.py`; writes a line of JSON per run.

Run: python benchmarks/finetune_ours.py SETS MODEL RESULTS.jsonl [--only NAME] [--seeds 3] [--threads 1]

The weights after the last update are scored on the test set; there is no validation, as in the reference. Runs in
RESULTS are not repeated. Needs scikit-learn and scipy, which score both sides.
"""

import argparse
from typing import Any

from finetune_sets import SETTINGS, score
from runs import run_missing, sampled, train_ours, use_cores


def run(name: str, seed: int, arguments: argparse.Namespace) -> dict[str, Any]:
    """Trains once and scores the test set."""
    use_cores(arguments, arguments.threads)
    from mlxbert.loading import load
    from mlxbert.train.data.labelled_rows import read_rows
    from mlxbert.train.objectives import make_objective
    from mlxbert.train.objectives.predictions import predict

    setting = SETTINGS[name]
    columns = {"text_column": "text", "label_column": "label"}
    if name in ("mrpc", "stsb"):
        columns["pair_column"] = "pair"
    objective: Any = make_objective(setting.task, max_length=setting.max_length, **columns)
    records, test = (objective.read(read_rows(arguments.sets / name / f"{part}.csv")) for part in ("train", "test"))
    records = sampled(records, arguments.first)
    model = load(arguments.model, new_heads=objective.heads(records), dtype="float32", seed=seed)
    objective.bind(model)
    examples, tested = ([objective.prepare(record) for record in part] for part in (records, test))
    spent = train_ours(model, objective, examples, setting, seed)
    predictions = predict(model.network, objective, tested)
    valid = None
    if setting.metric == "macro_f1":
        valid_examples = [
            objective.prepare(record) for record in objective.read(read_rows(arguments.sets / name / "valid.csv"))
        ]
        valid = (predict(model.network, objective, valid_examples), [example.target for example in valid_examples])
    targets = [example.target for example in tested]
    test_score = score(setting, predictions, targets, valid)
    return {"score": test_score, **spent, "threads": arguments.threads}


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--threads", type=int, default=1, help="cores to run on")
    run_missing(parser, SETTINGS, run)
