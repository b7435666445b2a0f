"""Benchmarks MaxSim of a query with many documents whose vectors are in a file: time and memory, also of PyLate.

Run: python benchmarks/maxsim.py [--documents 100000] [--tokens 180] [--size 128] [--folder maxsim-benchmark]
     [--peer PYTHON]

The vectors are random, in float16, and are mapped into memory. The query has 32 tokens. Each program is a process of
its own; it scores the first documents once to start, and then all of them twice. `peak_mb` is the most memory of the
process that is not mapped from the file. With --peer PYTHON, an interpreter with PyLate, its `colbert_scores` scores
the same documents, a thousand at a time, because it takes padded arrays in float32. The scores of both are compared.
Prints lines of JSON.
"""

import argparse
import json
import subprocess
import sys
from pathlib import Path

CHUNK = 1000  # documents that PyLate scores together
OURS = """
import mlxbert
def score(query, documents):
    return mlxbert.maxsim(query, documents)
"""
PYLATE = """
import torch
from pylate.scores import colbert_scores
def score(query, documents):
    parts = []
    for start in range(0, len(documents), CHUNK):
        chunk = torch.from_numpy(documents[start : start + CHUNK].astype(np.float32))
        parts.append(colbert_scores(torch.from_numpy(query)[None], chunk)[0])
    return torch.cat(parts).numpy()
"""
MEASURE = """
documents = np.memmap(path, np.float16, "r", shape=(count, tokens, size))
query = np.random.default_rng(1).normal(size=(32, size)).astype(np.float32)
score(query, documents[:100])
times = []
for _ in range(2):
    start = time.perf_counter()
    scores = score(query, documents)
    times.append(time.perf_counter() - start)
print(json.dumps({"seconds": min(times), "peak_mb": peak[0] / 1024, "scores": scores[::997].tolist()}))
"""
WATCH = """
import json, sys, threading, time
import numpy as np
path, count, tokens, size, CHUNK = sys.argv[1], *map(int, sys.argv[2:])
peak = [0]
def watch():
    while True:
        status = dict(line.split(":", 1) for line in open("/proc/self/status"))
        peak[0] = max(peak[0], int(status["RssAnon"].split()[0]))
        time.sleep(0.02)
threading.Thread(target=watch, daemon=True).start()
"""


def write(path: Path, count: int, tokens: int, size: int) -> None:
    """Writes random unit vectors, unless the file exists; every thousand documents repeat."""
    import numpy as np

    if path.exists() and path.stat().st_size == 2 * count * tokens * size:
        return
    block = np.random.default_rng(0).normal(size=(1000, tokens, size)).astype(np.float32)
    block /= np.linalg.norm(block, axis=-1, keepdims=True)
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("wb") as file:
        for start in range(0, count, 1000):
            np.roll(block, start, axis=0)[: count - start].astype(np.float16).tofile(file)


def measured(python: str, program: str, *arguments: str) -> dict[str, object]:
    """Runs a program in a process of its own, and returns what it prints."""
    command = [python, "-c", WATCH + program + MEASURE, *arguments]
    output = subprocess.run(command, check=True, capture_output=True, text=True).stdout
    result: dict[str, object] = json.loads(output.splitlines()[-1])
    return result


def main() -> None:
    """Reads the arguments and prints the measurements."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--documents", type=int, default=100_000)
    parser.add_argument("--tokens", type=int, default=180)
    parser.add_argument("--size", type=int, default=128)
    parser.add_argument("--folder", type=Path, default=Path("maxsim-benchmark"))
    parser.add_argument("--peer")
    args = parser.parse_args()
    path = args.folder / "vectors.f16"
    write(path, args.documents, args.tokens, args.size)
    arguments = [str(path), *map(str, (args.documents, args.tokens, args.size, CHUNK))]
    programs = {"mlxbert": (sys.executable, OURS)} | ({"PyLate": (args.peer, PYLATE)} if args.peer else {})
    found = {}
    for name, (python, program) in programs.items():
        result = measured(python, program, *arguments)
        found[name] = result.pop("scores")
        print(json.dumps({"program": name, "documents": args.documents, "tokens": args.tokens, **result}), flush=True)
    if args.peer:
        pairs = zip(found["mlxbert"], found["PyLate"], strict=True)  # type: ignore[call-overload]
        print(json.dumps({"largest_difference": max(abs(a - b) for a, b in pairs)}))


if __name__ == "__main__":
    main()
