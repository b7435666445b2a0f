"""`embed --output` takes as much memory for a large file as for a small one."""

import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from tests.helpers.program import TIMEOUT, command, environment, tiny_model

pytestmark = pytest.mark.slow

SMALL, LARGE = 20_000, 100_000
# On Linux a process begins with the peak of the one that started it: that one has to be small.
LAUNCHER = """
import os, sys
child = os.spawnv(os.P_NOWAIT, sys.argv[1], sys.argv[1:])
_, status, usage = os.wait4(child, 0)
print(usage.ru_maxrss)
sys.exit(os.waitstatus_to_exitcode(status))
"""


def peak(model: Path, lines: int, folder: Path) -> int:
    """The most memory that the command holds at any time."""
    texts, target = folder / f"{lines}.txt", folder / f"{lines}.npy"
    texts.write_text("".join(f"{'cat ' * (number % 4)}w{number % 42}\n" for number in range(lines)))
    arguments = ["embed", "--model", str(model), "--input", str(texts), "--output", str(target), "--quiet"]
    launched = subprocess.run(
        [sys.executable, "-c", LAUNCHER, *command(*arguments)],
        env=environment(),
        stdout=subprocess.PIPE,
        timeout=5 * TIMEOUT,
        check=True,
    )
    assert np.load(target, mmap_mode="r").shape == (lines, 16)
    return int(launched.stdout)


@pytest.mark.skipif(not hasattr(os, "wait4"), reason="no wait4")
def test_memory_does_not_grow_with_the_file(tmp_path: Path) -> None:
    model = tiny_model(tmp_path / "model")
    small = peak(model, SMALL, tmp_path)
    large = peak(model, LARGE, tmp_path)
    assert large <= 1.1 * small, f"{small:,} for {SMALL:,} lines, {large:,} for {LARGE:,}"
