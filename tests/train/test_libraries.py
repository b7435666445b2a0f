"""How much a GPU has to build before the first update: the libraries of fused kernels of a whole step.

They are counted where MLX compiles for a CPU, see `benchmarks/step_kernels.py`.
"""

import json
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from tests.helpers.cells import cells

ROOT = Path(__file__).parents[2]
MOST = {"bert-base": 12, "MiniLM": 12, "DeBERTa-v3": 12, "ELECTRA pre-training": 21}
DTYPES = ("float32", "bfloat16", "float16")
ARRAYS = 28  # Metal binds 31, of which shape and strides take up to 3


@pytest.mark.slow
@pytest.mark.skipif(shutil.which("g++") is None, reason="MLX compiles for a CPU with g++")
@pytest.mark.parametrize(("model", "dtype"), cells(MOST, DTYPES))
def test_a_step_has_few_libraries_of_few_arrays(model: str, dtype: str) -> None:
    command = [sys.executable, "-m", "benchmarks.step_kernels", model, "--dtype", dtype, "--json"]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True)
    found = json.loads(done.stdout)
    assert 3 <= found["libraries"] <= MOST[model]
    assert found["update"]["libraries"] == 2  # AdamW, and a sum of sixteen numbers
    assert found["most_arrays"] <= ARRAYS
