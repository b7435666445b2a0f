"""Full fine-tuning beside adapters: trained parameters, peak memory, seconds and score; a line of JSON per run.

Run: python benchmarks/lora.py SETS SPANS MODEL RESULTS.jsonl [--only trec] [--kinds full lora] [--seeds 1] [--epochs N]

SETS is what `finetune_sets.py` wrote, SPANS what `spans_sets.py` wrote: TREC and WNUT-17 are used. Every run is a
process of its own, so that its peak is its own; the test set is scored with the best state on a tenth of the training
data. `--options '{"lr": 1e-3}'` gives options of `mlxbert.finetune` to all runs.
"""

import argparse
import json
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

KINDS: dict[str, dict[str, Any]] = {
    "full": {},
    "lora": {"lora": 8},
    "lora, all linear": {"lora": 8, "lora_layers": "all-linear"},
    "dora": {"lora": 8, "dora": True},
}
SETS = {"trec": ("classify", "csv", "accuracy"), "wnut17": ("tag", "conll", "f1")}


def run(name: str, kind: str, seed: int, given: argparse.Namespace) -> dict[str, Any]:
    """Trains once and scores the test set."""
    import mlxbert
    from mlxbert.machine.device import mx

    task, ending, _ = SETS[name]
    folder = (given.sets if task == "classify" else given.spans) / name
    options = {**KINDS[kind], **json.loads(given.options), "seed": seed}
    options |= {} if given.epochs is None else {"epochs": given.epochs}
    found: dict[str, Any] = {"set": name, "kind": kind, **options}
    with tempfile.TemporaryDirectory() as place:
        for event in mlxbert.finetune(
            task, train=folder / f"train.{ending}", model=given.model, output=Path(place) / "out", **options
        ):
            if isinstance(event, mlxbert.Started):
                found |= {"trained": event.parameters, "frozen": event.frozen}
            elif isinstance(event, mlxbert.Step):
                found["memory"] = event.memory
            elif isinstance(event, mlxbert.Finished):
                found |= {"seconds": round(event.seconds, 1), "valid": event.score}
                found["bytes"] = sum(path.stat().st_size for path in Path(event.output).glob("*.safetensors"))
        mx.clear_cache()
        model = mlxbert.load(Path(place) / "out", dtype="float32")
        found["score"] = mlxbert.evaluate(task, model, data=folder / f"test.{ending}").score
    return found


def main() -> None:
    """Runs what is asked for, each run in a process; a run is this program with `--one`."""
    parser = argparse.ArgumentParser(description=__doc__)
    for name in ("sets", "spans", "model", "results"):
        parser.add_argument(name, type=Path)
    parser.add_argument("--only", nargs="*", default=[*SETS], choices=[*SETS])
    parser.add_argument("--kinds", nargs="*", default=[*KINDS], choices=[*KINDS])
    parser.add_argument("--seeds", type=int, default=1)
    parser.add_argument("--epochs", type=int, help="by default as many as `mlxbert finetune` makes")
    parser.add_argument("--options", default="{}", help="more options of mlxbert.finetune, as JSON")
    parser.add_argument("--one", nargs=3, metavar=("SET", "KIND", "SEED"), help=argparse.SUPPRESS)
    given = parser.parse_args()
    if given.one:
        name, kind, seed = given.one
        with given.results.open("a", encoding="utf-8") as file:
            file.write(json.dumps(run(name, kind, int(seed), given)) + "\n")
        return
    for name in given.only:
        for kind in given.kinds:
            for seed in range(given.seeds):
                subprocess.run([sys.executable, *sys.argv, "--one", name, kind, str(seed)], check=True)


if __name__ == "__main__":
    main()
