"""mlxbert's training on the sets of `finetune_sets.py`, as `finetune_reference.py` trains: a line of JSON per run.

Run: python benchmarks/finetune_ours.py SETS MODEL RESULTS.jsonl [--only NAME] [--seeds 3] [--threads 1]

The weights after the last update are scored on the test set; there is no validation, as in the reference. Runs that
RESULTS holds are not repeated. Needs scikit-learn and scipy, which score both sides.
"""

import argparse
from typing import Any

from finetune_sets import SETTINGS, score
from runs import run_missing, sampled, train_ours, use_cores


def run(name: str, seed: int, given: argparse.Namespace) -> dict[str, Any]:
    """Trains once and scores the test set."""
    use_cores(given, given.threads)
    from mlxbert.loading import load
    from mlxbert.readers.labelled_rows import read_rows
    from mlxbert.training.objectives import make_objective
    from mlxbert.training.objectives.predictions import predict

    setting = SETTINGS[name]
    columns = {"text_column": "text", "label_column": "label"}
    if name in ("mrpc", "stsb"):
        columns["pair_column"] = "pair"
    objective: Any = make_objective(setting.task, max_length=setting.max_length, **columns)
    records, test = (objective.read(read_rows(given.sets / name / f"{part}.csv")) for part in ("train", "test"))
    records = sampled(records, given.first)
    model = load(given.model, new_heads=objective.heads(records), dtype="float32", seed=seed)
    objective.bind(model)
    examples, asked = ([objective.prepare(record) for record in part] for part in (records, test))
    spent = train_ours(model, objective, examples, setting, seed)
    predictions = predict(model.network, objective, asked)
    valid = None
    if setting.metric == "macro_f1":
        held = [objective.prepare(record) for record in objective.read(read_rows(given.sets / name / "valid.csv"))]
        valid = (predict(model.network, objective, held), [example.target for example in held])
    targets = [example.target for example in asked]
    found = score(setting, predictions, targets, valid)
    return {"score": found, **spent, "threads": given.threads}


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--threads", type=int, default=1, help="cores to run on")
    run_missing(parser, SETTINGS, run)
