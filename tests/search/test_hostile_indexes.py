"""Damaged indexes of every kind of vectors raise the index's own error, or are answered."""

import subprocess
import sys
from pathlib import Path

import pytest

from tests.helpers.cases import ALL

SCRIPT = Path(__file__).parents[2] / "benchmarks" / "hostile_indexes.py"
COUNT = 2_000 if ALL else 90


@pytest.mark.slow
@pytest.mark.parametrize("vectors", ["dense", "sparse", "tokens"])
def test_mutations_are_refused_or_answered(vectors: str) -> None:
    command = [sys.executable, str(SCRIPT), "--count", str(COUNT), "--vectors", vectors]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout[-2000:]
    assert f"{COUNT:,} indexes in" in done.stdout
