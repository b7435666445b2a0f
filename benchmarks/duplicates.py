"""Measures how many planted duplicates `dedupe` finds, and what else it takes for duplicates.

Run: python benchmarks/duplicates.py TEXTS.jsonl VECTORS.npy|MODEL [--threshold T]… [--all-pairs] [--show N]

TEXTS was written by `duplicates_data.py`, VECTORS by `mlxbert embed`. With the folder of a MODEL, the texts are
embedded in the measured time, and those with unknown tokens are treated as `dedupe` treats them. For each threshold, in
a process of its own, prints a line of JSON:

- `recall`: the share of the planted texts that are in one group with the text that they repeat, in all and by kind;
- `precision`: the share of the dropped texts that are planted duplicates of the text that is kept in their place.
  Duplicates that the corpus has by itself count as wrong, so that this is a lower bound;
- CPU seconds and wall seconds of `dedupe`, and the peak memory of the process, with the texts.

`--show N` prints N random dropped texts that were not planted, with the kept ones.
"""

import argparse
import json
import random
import resource
import subprocess
import sys
import time
from pathlib import Path

KINDS = ("swap", "case", "punctuation", "cut")


def measure(texts_path: Path, vectors_path: Path, threshold: float, *, all_pairs: bool, show: int) -> None:
    """Prints the measurements at a threshold."""
    import numpy as np

    import mlxbert

    with texts_path.open(encoding="utf-8") as lines:
        rows = [json.loads(line) for line in lines]
    texts = [row["text"] for row in rows]
    model = mlxbert.load(vectors_path) if vectors_path.is_dir() else None
    vectors = np.load(vectors_path) if model is None else None
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    wall, cpu = time.perf_counter(), time.process_time()
    duplicates = mlxbert.dedupe(model, texts, vectors=vectors, threshold=threshold, all_pairs=all_pairs)
    wall, cpu = time.perf_counter() - wall, time.process_time() - cpu
    source = [number if row["original"] is None else row["original"] for number, row in enumerate(rows)]
    kept = [*range(len(texts))]
    for group in duplicates.groups:
        for duplicate in group.duplicates:
            kept[duplicate] = group.kept
    dropped = [number for number, leader in enumerate(kept) if leader != number]
    wrong = [number for number in dropped if source[number] != source[kept[number]]]
    found = {
        kind: [kept[n] == kept[source[n]] for n, row in enumerate(rows) if row.get("kind") == kind] for kind in KINDS
    }
    every = [hit for hits in found.values() for hit in hits]
    print(
        json.dumps({
            "texts": len(texts), "planted": len(every), "threshold": threshold, "all_pairs": all_pairs,
            "recall": round(sum(every) / len(every), 4),
            **{kind: round(sum(hits) / len(hits), 4) for kind, hits in found.items()},
            "dropped": len(dropped), "precision": round(1 - len(wrong) / max(len(dropped), 1), 4),
            "groups": len(duplicates.groups), "cpu_s": round(cpu, 1), "wall_s": round(wall, 1),
            "mb_before": before // 1024, "peak_mb": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss // 1024,
        }), flush=True,
    )  # fmt: skip
    for number in random.Random(0).sample(wrong, min(show, len(wrong))):
        print(f"  - {texts[number]}\n    {texts[kept[number]]}")


def main() -> None:
    """Measures each threshold in a process of its own."""
    arguments = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    arguments.add_argument("texts", type=Path)
    arguments.add_argument("vectors", type=Path)
    arguments.add_argument("--threshold", type=float, action="append")
    arguments.add_argument("--all-pairs", action="store_true")
    arguments.add_argument("--show", type=int, default=0)
    arguments.add_argument("--here", action="store_true", help=argparse.SUPPRESS)
    options = arguments.parse_args()
    for threshold in options.threshold or [0.9]:
        if options.here:
            measure(options.texts, options.vectors, threshold, all_pairs=options.all_pairs, show=options.show)
        else:
            command = [sys.executable, __file__, str(options.texts), str(options.vectors), "--here"]
            command += ["--threshold", str(threshold), "--show", str(options.show)]
            subprocess.run([*command, *(["--all-pairs"] if options.all_pairs else [])], check=True)


if __name__ == "__main__":
    main()
