"""A student of half the layers, trained with its teacher and without: hidden words, next to the teacher's; JSON.

Run: python benchmarks/distill.py CORPUS TEACHER RESULTS.jsonl [--steps 200] [--batch-size 32] [--length 64]
    [--layers 0,2,4] [--threads 1]

Both students begin from the same layers of the teacher, and see the same batches with the same hidden words. Accuracy
is that of hidden words that were not trained on. A student that RESULTS holds is not trained again.
"""

import argparse
import json
import os
import tempfile
import time
from pathlib import Path
from typing import Any

from runs import use_cores

OBJECTIVES = {"alone": "mlm", "with the teacher": "mlm:2,soft:5,hidden:1"}


def run(name: str, given: argparse.Namespace, folder: Path) -> dict[str, Any]:
    """Trains a student."""
    import mlxbert

    begun = time.process_time()
    metrics = []
    for event in mlxbert.pretrain(
        given.corpus, output=folder / name, model=given.teacher, objective=OBJECTIVES[name], steps=given.steps,
        layers=[int(layer) for layer in given.layers.split(",")], batch_size=given.batch_size,
        length=str(given.length), shards=folder / "shards", eval_every=given.steps // 2,
        validation_share=0.02,
    ):  # fmt: skip
        if isinstance(event, mlxbert.Evaluated):
            metrics.append({"step": event.step, **event.metrics})
    return {"student": name, "history": metrics, "cpu_s": time.process_time() - begun}


def main() -> None:
    """Trains both."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("corpus", type=Path)
    parser.add_argument("teacher")
    parser.add_argument("results", type=Path)
    parser.add_argument("--layers", default="0,2,4")
    for name, default in (("steps", 200), ("batch-size", 32), ("length", 64), ("threads", 1)):
        parser.add_argument(f"--{name}", type=int, default=default)
    parser.add_argument("--gpu", action="store_true", help="compute on the GPU; otherwise on the CPU")
    given = parser.parse_args()
    os.environ["MLXBERT_DEVICE"] = "gpu" if given.gpu else "cpu"
    use_cores(given, given.threads)
    known = [json.loads(line) for line in given.results.read_text().splitlines()] if given.results.exists() else []
    with tempfile.TemporaryDirectory() as place:
        for name in OBJECTIVES:
            which = {"student": name, "steps": given.steps, "layers": given.layers}
            if any(which.items() <= line.items() for line in known):
                continue
            found = run(name, given, Path(place)) | which
            with given.results.open("a", encoding="utf-8") as file:
                file.write(json.dumps(found) + "\n")
            print(found, flush=True)


if __name__ == "__main__":
    main()
