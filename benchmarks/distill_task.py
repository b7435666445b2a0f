"""Three layers of a model fine-tuned on SST-2, alone and with a teacher of all layers; a line of JSON per model.

Run: python benchmarks/distill_task.py SETS MODEL RESULTS.jsonl [--first 4000] [--seeds 3] [--layers 0,2,4] [--gpu]

SETS is made by `finetune_sets.py`. The teacher is MODEL, fine-tuned on the same examples; all have mlxbert's defaults.
The speed of the first student is compared with that of its teacher: both classify all test texts in turn, five times.
"""

import argparse
import csv
import json
import os
import statistics
import tempfile
import time
from pathlib import Path
from typing import Any

from runs import sampled, use_cores

_ROUNDS = 5
Records = list[dict[str, str]]


def _read(path: Path) -> Records:
    with path.open(encoding="utf-8", newline="") as file:
        return [{"text": row["text"], "label": row["label"]} for row in csv.DictReader(file)]


def train(model: Any, output: Path, examples: Records, test: Records, **options: Any) -> float:
    """Fine-tunes and returns the accuracy on the test texts."""
    import mlxbert

    for _ in mlxbert.finetune("classify", train=examples, model=model, output=output, **options):
        pass
    return mlxbert.evaluate("classify", mlxbert.load(output, task="classify"), data=test).metrics["accuracy"]


def speed(folders: list[Path], test: Records) -> list[float]:
    """Texts per second of each model: medians, in turn."""
    import mlxbert

    models = [mlxbert.load(folder, task="classify") for folder in folders]
    texts, spent = [one["text"] for one in test], [[0.0] for _ in models]
    for _ in range(_ROUNDS + 1):  # the first round warms up
        for model, seconds in zip(models, spent, strict=True):
            begun = time.perf_counter()
            list(mlxbert.classify(model, texts))
            seconds.append(time.perf_counter() - begun)
    return [len(texts) / statistics.median(seconds[2:]) for seconds in spent]


def main() -> None:
    """Trains the teacher and both students with each seed."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("sets", type=Path)
    parser.add_argument("model", type=Path)
    parser.add_argument("results", type=Path)
    parser.add_argument("--first", type=int, default=4000, help="only so many training examples, drawn by chance")
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--layers", default="0,2,4")
    parser.add_argument("--gpu", action="store_true", help="compute on the GPU; otherwise on the CPU")
    given = parser.parse_args()
    os.environ["MLXBERT_DEVICE"] = "gpu" if given.gpu else "cpu"
    use_cores(given)
    import mlxbert
    from mlxbert.pretraining.initial import with_layers

    examples = sampled(_read(given.sets / "sst2" / "train.csv"), given.first)
    test = _read(given.sets / "sst2" / "test.csv")
    with tempfile.TemporaryDirectory() as place:
        folder = Path(place)
        layers = [int(layer) for layer in given.layers.split(",")]
        mlxbert.save(with_layers(mlxbert.load(given.model, dtype="float32"), layers), folder / "student")
        for seed in range(given.seeds):
            teacher, alone, taught = (folder / f"{name} {seed}" for name in ("teacher", "alone", "taught"))
            found: dict[str, Any] = {"seed": seed, "examples": len(examples), "layers": given.layers}
            found["teacher"] = train(given.model, teacher, examples, test, seed=seed)
            found["alone"] = train(folder / "student", alone, examples, test, seed=seed)
            found["taught"] = train(folder / "student", taught, examples, test, seed=seed, teacher=teacher)
            if not seed:
                speeds = speed([teacher, taught], test)
                found["texts_per_second"] = dict(zip(("teacher", "student"), speeds, strict=True))
            with given.results.open("a", encoding="utf-8") as file:
                file.write(json.dumps(found) + "\n")
            print(found, flush=True)


if __name__ == "__main__":
    main()
