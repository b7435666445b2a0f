"""Compares the scores and times of reranking with sentence-transformers' CrossEncoder.

Run: python benchmarks/rerank.py MODEL STSB.csv [--rounds 3] [--threads 2]

MODEL is a folder of a cross-encoder with one score, STSB.csv has rows of two sentences and a score. Prints the largest
difference of the scores of the first 500 pairs, and the times for 2,000 texts and one query, both libraries in turn,
with medians over the rounds. Needs torch and sentence-transformers.
"""

import argparse
import csv
import statistics
import time
from collections.abc import Callable
from pathlib import Path

from cores import keep_to_cores

PAIRS, TEXTS = 500, 2000


def _timed(work: Callable[[], object]) -> float:
    start = time.perf_counter()
    work()
    return time.perf_counter() - start


def main() -> None:
    """Prints both tables."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("model", type=Path)
    parser.add_argument("data", type=Path)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--threads", type=int, default=2, help="cores to run on")
    args = parser.parse_args()
    keep_to_cores(args.threads)
    import torch
    from sentence_transformers import CrossEncoder

    import mlxbert

    torch.set_num_threads(args.threads)
    with args.data.open(encoding="utf-8", newline="") as file:
        rows = list(csv.reader(file))
    theirs = CrossEncoder(str(args.model), device="cpu")
    ours = mlxbert.load(args.model, task="classify", dtype="float32")
    pairs = [(row[0], row[1]) for row in rows[:PAIRS]]
    expected = theirs.predict(pairs)
    scores = [mlxbert.rerank(ours, query, [text])[0].score for query, text in pairs]
    largest = max(abs(a - float(b)) for a, b in zip(scores, expected, strict=True))
    print(f"{len(pairs)} pairs: largest difference of a score {largest:.1e}")
    query, texts = rows[0][0], [row[1] for row in rows[:TEXTS]]
    times: dict[str, list[float]] = {"mlxbert": [], "sentence-transformers": []}
    mlxbert.rerank(ours, query, texts[:64])
    theirs.rank(query, texts[:64])
    for number in range(args.rounds):
        times["mlxbert"].append(_timed(lambda: mlxbert.rerank(ours, query, texts)))
        times["sentence-transformers"].append(_timed(lambda: theirs.rank(query, texts)))
        print(f"round {number + 1}: " + ", ".join(f"{name} {spent[-1]:.2f} s" for name, spent in times.items()))
    medians = {name: statistics.median(spent) for name, spent in times.items()}
    ratio = medians["sentence-transformers"] / medians["mlxbert"]
    print(f"{len(texts)} texts: " + ", ".join(f"{name} {spent:.2f} s" for name, spent in medians.items()))
    print(f"ratio {ratio:.2f}")


if __name__ == "__main__":
    main()
