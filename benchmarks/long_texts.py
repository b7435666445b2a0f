"""Compares the ways to classify texts that are too long for a model: truncating, both ends, and windows.

Run: python benchmarks/long_texts.py SETS MODEL [--texts 100] [--limit 128]

SETS has the folder bbc-news as published; MODEL was trained by `mlxbert finetune classify --max-length N` on training
texts of `few_shot.py`. The texts are held-out articles with more tokens than the limit. Intervals are those of a
bootstrap over texts; differences are from truncating.
"""

import argparse
import time
from pathlib import Path
from typing import Any

import numpy as np
from cores import keep_to_cores
from explain import interval
from few_shot import SETS

import mlxbert

WAYS = ("truncate", "head-tail", "window", "window-max")


def main() -> None:
    """Prints a row for each way."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("sets", type=Path)
    parser.add_argument("model", type=Path)
    parser.add_argument("--texts", type=int, default=100)
    parser.add_argument("--limit", type=int, help="tokens of an input; by default the maximum of the model")
    args = parser.parse_args()
    keep_to_cores(1)
    model = mlxbert.load(args.model, task="classify", dtype="float32")
    if args.limit is not None:
        model.tokenizer.max_length = args.limit
    limit = model.tokenizer.max_length
    held_out = [(text, label) for text, label in SETS["bbc"](args.sets)[1] if len(model.tokenizer.split(text)) > limit]
    rows = held_out[: args.texts]
    lengths = [len(model.tokenizer.split(text)) for text, _ in rows]
    print(
        f"{len(rows)} articles of {min(lengths)} to {max(lengths)} tokens (median {np.median(lengths):.0f}), {limit=}"
    )
    print("| way | accuracy | log loss | difference of log loss | CPU s |\n|---|---|---|---|---|")
    first: Any = None
    for way in WAYS:
        begun = time.process_time()
        results: Any = mlxbert.classify(model, [text for text, _ in rows], overflow=way)  # type: ignore[call-overload]
        scores = [{label.label: label.score for label in result.labels} for result in results]
        spent = time.process_time() - begun
        truth = np.array([row[label] / sum(row.values()) for row, (_, label) in zip(scores, rows, strict=True)])
        right = np.array([max(row, key=row.__getitem__) == label for row, (_, label) in zip(scores, rows, strict=True)])
        loss = -np.log(np.maximum(truth, 1e-9))
        first = loss if first is None else first
        print(f"| {way} | {interval(right)} | {interval(loss)} | {interval(loss - first)} | {spent:.0f} |", flush=True)


if __name__ == "__main__":
    main()
