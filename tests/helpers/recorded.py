"""Results that the documentation shows: files in `benchmarks/results` with one JSON object per line, newest last."""

import datetime
import json
import os
from importlib.metadata import version
from pathlib import Path
from typing import Any

RESULTS = Path(__file__).parents[2] / "benchmarks/results"
PACKAGES = "mlx", "torch", "transformers"


def read(name: str) -> list[dict[str, Any]]:
    path = RESULTS / f"{name}.jsonl"
    return [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()] if path.exists() else []


def record(name: str, key: dict[str, Any], result: dict[str, Any]) -> None:
    """Adds a result with the versions, the machine and the date. It replaces an earlier result with the same key."""
    from mlxbert.machine.device import describe

    others = [entry for entry in read(name) if {part: entry[part] for part in key} != key]
    origin = {
        "versions": {package: version(package) for package in PACKAGES},
        "machine": f"{describe()['chip']}, {os.cpu_count()} cores",
        "date": datetime.date.today().isoformat(),
    }
    lines = [json.dumps(entry) + "\n" for entry in (*others, key | result | origin)]
    (RESULTS / f"{name}.jsonl").write_text("".join(lines), encoding="utf-8")
