"""Seconds and peak memory of converting a checkpoint of bert-large's size, beside transformers.

`python benchmarks/convert.py VOCABULARY [--shards 400MB] [--rounds 3]` makes a bert-large of random float32 weights in
one file, with the vocab.txt, and converts it in processes of their own, in turn: by transformers, which loads and saves
it, and by mlxbert, which also measures how far the result lies from the source; how long it took until the weights were
written is printed apart. Needs transformers, and Linux for the peaks.
"""

import argparse
import json
import os
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

MAKE = """
import sys, torch, transformers
torch.manual_seed(0)
large = dict(hidden_size=1024, num_hidden_layers=24, num_attention_heads=16, intermediate_size=4096)
transformers.BertForPreTraining(transformers.BertConfig(**large)).save_pretrained(sys.argv[1], max_shard_size="9GB")
"""
TRANSFORMERS = """
import sys, transformers
source, target, shards, dtype = sys.argv[1:]
model = transformers.BertForPreTraining.from_pretrained(source, dtype=dtype)
model.save_pretrained(target, max_shard_size=shards)
"""
MLXBERT = """
import json, sys, time
start = time.perf_counter()
import mlxbert
source, target, shards, dtype = sys.argv[1:]
at = []
note = lambda *_: at.append(time.perf_counter())
mlxbert.convert(source, target, max_shard_size=shards, dtype=dtype, on_written=note)
print(json.dumps(at[-1] - start))
"""
PROGRAMS = {"transformers": TRANSFORMERS, "mlxbert": MLXBERT}


def run(code: str, *arguments: str) -> tuple[float, float, str]:
    """Seconds, megabytes at the peak, and output of a process that must succeed."""
    start = time.perf_counter()
    child = subprocess.Popen(
        [sys.executable, "-c", code, *arguments], stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True
    )
    assert child.stdout is not None
    output = child.stdout.read()
    _, status, usage = os.wait4(child.pid, 0)
    taken = time.perf_counter() - start
    if status:
        raise SystemExit(f"a process ended with {status}")
    return taken, usage.ru_maxrss * 1024 / 1e6, output


def main() -> None:
    """Prints medians and ratios."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("vocabulary", type=Path)
    parser.add_argument("--shards", default="400MB")
    parser.add_argument("--rounds", type=int, default=3)
    given = parser.parse_args()
    with tempfile.TemporaryDirectory() as place:
        source, target = Path(place, "source"), Path(place, "target")
        run(MAKE, str(source))
        shutil.copy(given.vocabulary, source / "vocab.txt")
        print(f"{(source / 'model.safetensors').stat().st_size / 1e6:,.0f} MB in one file, shards of {given.shards}")
        print(f"{'to':9} {'program':13} {'seconds':>8} {'of these writing':>17} {'peak, MB':>9}")
        for dtype in ("float32", "float16"):
            found: dict[str, list[tuple[float, float, str]]] = {name: [] for name in PROGRAMS}
            for _ in range(given.rounds):
                for name, code in PROGRAMS.items():
                    found[name].append(run(code, str(source), str(target), given.shards, dtype))
                    shutil.rmtree(target)
            for name, runs in found.items():
                seconds, peak = (statistics.median(column) for column in ([r[0] for r in runs], [r[1] for r in runs]))
                written = f"{statistics.median(json.loads(r[2]) for r in runs):.1f}" if runs[0][2] else ""
                print(f"{dtype:9} {name:13} {seconds:8.1f} {written:>17} {peak:9,.0f}", flush=True)


if __name__ == "__main__":
    main()
