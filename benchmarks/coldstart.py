"""How long a whole process takes from nothing to the words for one mask, beside transformers; and what it imports.

`python benchmarks/coldstart.py [--checkpoint FOLDER] [--runs 10]`: `mlxbert fill-mask` with the built-in model, and
with FOLDER the same text through the transformers pipeline on that checkpoint (the one the built-in model was made
from), in turn; medians, and the ratio pair by pair. The imports are listed once, with Python's own clock.
"""

import argparse
import re
import statistics
import subprocess
import sys
import time
from collections.abc import Sequence

TEXT = "Tokyo is the largest city in [MASK]."
PIPELINE = """
import sys, transformers
fill = transformers.pipeline("fill-mask", model=sys.argv[1], dtype="float32", device="cpu")
print(fill(sys.argv[2])[0]["token_str"])
"""
SHOWN = ("mlx.core", "mlx.nn", "tokenizers", "typer", "rich.console", "numpy", "huggingface_hub", "mlxbert.model")


def seconds(command: Sequence[str]) -> float:
    """Wall time of a process that must succeed."""
    start = time.perf_counter()
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    taken = time.perf_counter() - start
    assert "japan" in done.stdout, done.stdout
    return taken


def imports() -> dict[str, float]:
    """Milliseconds of some imports, what they import in turn included; absent where it is not imported."""
    code = f"from mlxbert.cli.app import run; run(['fill-mask', {TEXT!r}, '--quiet'])"
    done = subprocess.run([sys.executable, "-X", "importtime", "-c", code], capture_output=True, text=True, check=True)
    rows = re.findall(r"import time:\s+\d+ \|\s+(\d+) \|\s+(\S+)", done.stderr)
    return {name: int(micro) / 1000 for micro, name in rows if name in SHOWN}


def main() -> None:
    """Prints medians, ratio and imports."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--checkpoint")
    parser.add_argument("--runs", type=int, default=10)
    arguments = parser.parse_args()
    commands = {"mlxbert": [sys.executable, "-m", "mlxbert", "fill-mask", TEXT, "--quiet"]}
    if arguments.checkpoint:
        commands["transformers"] = [sys.executable, "-c", PIPELINE, arguments.checkpoint, TEXT]
    times: dict[str, list[float]] = {name: [] for name in commands}
    for number in range(arguments.runs + 1):  # the first warms the page cache
        for name, command in commands.items():
            taken = seconds(command)
            times[name] += [taken] if number else []
    for name, found in times.items():
        low, high = min(found), max(found)
        print(f"{name:13} median {statistics.median(found):.3f} s, {low:.3f} to {high:.3f} s, {len(found)} runs")
    if "transformers" in times:
        ratios = [slow / fast for slow, fast in zip(times["transformers"], times["mlxbert"], strict=True)]
        print(
            f"transformers takes {statistics.median(ratios):.1f} times as long ({min(ratios):.1f} to {max(ratios):.1f})"
        )
    found_imports = imports()
    for name in SHOWN:
        print(f"  {name:16} {f'{found_imports[name]:6.1f} ms' if name in found_imports else 'not imported'}")


if __name__ == "__main__":
    main()
