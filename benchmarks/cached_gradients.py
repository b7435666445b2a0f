"""In-batch negatives with cached gradients beside the plain way: the same gradients, and the peak memory of each.

Run: python benchmarks/cached_gradients.py MODEL PAIRS [--sizes 512 4096] [--chunk 32] [--kinds plain cached]

PAIRS is a file of pairs with usual column names. One process per measurement; the gradients of both ways are compared
at the first size. No dropout.
"""

import argparse
import json
import random
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import numpy as np


def gradients(given: argparse.Namespace, size: int, kind: str) -> tuple[dict[str, Any], dict[str, np.ndarray]]:
    """Memory, seconds and loss of a step, and its gradients."""
    from mlxbert.machine.device import mx, nn
    from mlxbert.model import load
    from mlxbert.nn import dropout
    from mlxbert.readers.rows import read_rows
    from mlxbert.training.gradients import Differentiator, Whole, dropout_key
    from mlxbert.training.objectives.embed import Embed

    objective = Embed(max_length=64)
    rows = read_rows(given.pairs)
    records = objective.read(rows)
    objective.check(records)
    model = load(given.model, task="embed", dtype="float32")
    objective.bind(model)
    dropout.set_rate(model.network, 0.0)
    model.network.train()
    examples = [objective.prepare(record) for record in (records * (size // len(records) + 1))[:size]]
    step = len(examples) if kind == "plain" else given.chunk
    shares = [examples[start : start + step] for start in range(0, size, step)]
    parts = [
        lambda some=some, number=number: (objective.collate(some, random.Random(0)), dropout_key(number))
        for number, some in enumerate(shares)
    ]
    whole = Whole(lambda outputs: objective.compare(outputs, examples), None, objective.width)
    parameters = dict(nn.utils.tree_flatten(model.network.parameters()))
    mx.eval(parameters)
    mx.reset_peak_memory()
    started = time.perf_counter()
    found = Differentiator(model.network, objective, mx.float32).compared(
        parameters, parts, [sum(len(one.encodings) for one in some) for some in shares], whole
    )
    facts = {
        "kind": kind, "pairs": size, "chunk": step, "seconds": round(time.perf_counter() - started, 1),
        "peak_mib": round(mx.get_peak_memory() / 2**20), "loss": float(np.array(found.loss)) / size,
    }  # fmt: skip
    return facts, {name: np.array(array) for name, array in found.arrays.items()}


def main() -> None:
    """Measures each way in a process of its own."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("model")
    parser.add_argument("pairs", type=Path)
    parser.add_argument("--sizes", type=int, nargs="+", default=[512, 4096])
    parser.add_argument("--chunk", type=int, default=32)
    parser.add_argument("--kinds", nargs="+", default=["plain", "cached"], choices=["plain", "cached"])
    parser.add_argument("--one", nargs=2, help=argparse.SUPPRESS)
    given = parser.parse_args()
    if given.one:
        print(json.dumps(gradients(given, int(given.one[0]), given.one[1])[0]), flush=True)
        return
    for size in given.sizes:
        for kind in given.kinds:
            subprocess.run([sys.executable, *sys.argv, "--one", str(size), kind], check=False)
    if len(given.kinds) == 2:
        (_, plain), (_, cached) = (gradients(given, given.sizes[0], kind) for kind in given.kinds)
        largest = max(float(np.abs(array).max()) for array in plain.values())
        difference = max(float(np.abs(plain[name] - cached[name]).max()) for name in plain)
        print(json.dumps({"pairs": given.sizes[0], "largest": largest, "relative_difference": difference / largest}))


if __name__ == "__main__":
    main()
