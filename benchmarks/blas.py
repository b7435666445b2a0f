"""Compares the BLAS that is installed with mlxbert with others: matrix products, and embedded texts.

`python benchmarks/blas.py [--model M] [--texts F.txt] [--first 300] [--against LIBRARY]… [--rounds 3]`: LIBRARY is the
path of a shared library, or `off` for the reference BLAS of MLX's wheel. Each library runs in a separate process, in
turn; prints medians, ratios to mlxbert's BLAS, and the largest difference from its vectors.
"""

import argparse
import json
import os
import statistics
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

OURS = ""  # the value of MLXBERT_BLAS


def measure(model: str, texts: list[str]) -> dict[str, Any]:
    """GFLOP/s of matrix products, and the seconds and vectors of texts, in this process."""
    import mlxbert
    from mlxbert.doctor.device_speed import measure_gflops
    from mlxbert.machine import device

    loaded = mlxbert.load(model, task="embed", device="cpu")
    mlxbert.embed(loaded, texts[:2])
    gflops = measure_gflops()
    start = time.perf_counter()
    vectors = mlxbert.embed(loaded, texts)
    seconds = time.perf_counter() - start
    return {"blas": device.BLAS.name, "gflops": gflops, "seconds": seconds, "vectors": vectors.tolist()}


def in_process(blas: str, args: argparse.Namespace) -> dict[str, Any]:
    """Runs `measure` in a process with another BLAS."""
    environment = {name: value for name, value in os.environ.items() if not name.startswith("OPENBLAS_")}
    command = [sys.executable, __file__, "--one", "--model", args.model, "--texts", args.texts,
               "--first", str(args.first)]  # fmt: skip
    done = subprocess.run(
        command, env=environment | {"MLXBERT_BLAS": blas}, stdout=subprocess.PIPE, text=True, check=True
    )
    return dict(json.loads(done.stdout))


def main() -> None:
    """Measures and prints."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--model", default="builtin")
    parser.add_argument("--texts", default=str(Path(__file__).parents[1] / "CONTRIBUTING.md"))
    parser.add_argument("--first", type=int, default=300)
    parser.add_argument("--against", action="append", default=[])
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--one", action="store_true", help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.one:
        lines = Path(args.texts).read_text(encoding="utf-8").split("\n")
        print(json.dumps(measure(args.model, [line for line in lines if line.strip()][: args.first])))
        return
    rounds = [{blas: in_process(blas, args) for blas in (OURS, *args.against)} for _ in range(args.rounds)]
    import numpy as np

    reference = np.array(rounds[0][OURS]["vectors"])
    print(f"{len(reference)} texts, {args.rounds} rounds in turn")
    for blas in rounds[0]:
        results = [each[blas] for each in rounds]
        gflops, seconds = (statistics.median(result[key] for result in results) for key in ("gflops", "seconds"))
        ratios = [each[OURS]["gflops"] / each[blas]["gflops"] for each in rounds]
        faster = [each[blas]["seconds"] / each[OURS]["seconds"] for each in rounds]
        difference = np.abs(np.array(results[0]["vectors"]) - reference).max()
        print(
            f"{results[0]['blas']}: {gflops:.1f} GFLOP/s, {seconds:.2f} s, vectors differ by {difference:.1e}; "
            f"ours has {statistics.median(ratios):.2f} of its GFLOP/s, {statistics.median(faster):.2f} of its texts/s"
        )


if __name__ == "__main__":
    main()
