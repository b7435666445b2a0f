"""`embed --output` takes as much memory for a large file as for a small one, and little for a long line.

`index` takes little more for a large table: only hashes are in memory, and what SQLite has in its cache.
"""

import gzip
import json
import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from tests.helpers.program import TIMEOUT, command, environment, tiny_model

pytestmark = [pytest.mark.slow, pytest.mark.skipif(not hasattr(os, "wait4"), reason="no wait4")]

SMALL, LARGE = 10_000, 60_000
UNIT = 1 if sys.platform == "darwin" else 1024  # of what the system says
# On Linux a process begins with the peak of the one that started it: that one has to be small.
LAUNCHER = """
import os, sys
child = os.spawnv(os.P_NOWAIT, sys.argv[1], sys.argv[1:])
_, status, usage = os.wait4(child, 0)
print(usage.ru_maxrss)
sys.exit(os.waitstatus_to_exitcode(status))
"""


def run(*arguments: str) -> tuple[int, int]:
    """The most bytes that a command holds at any time, and its exit status."""
    launcher = [sys.executable, "-c", LAUNCHER, *command(*arguments)]
    launched = subprocess.run(launcher, env=environment(), stdout=subprocess.PIPE, timeout=5 * TIMEOUT)
    return int(launched.stdout.split()[-1]) * UNIT, launched.returncode


def test_memory_does_not_grow_with_the_file(tmp_path: Path) -> None:
    model, target, peaks = tiny_model(tmp_path / "model"), tmp_path / "x.npy", []
    for count in (SMALL, LARGE):
        (tmp_path / "in.txt").write_text("".join(f"{'cat ' * (n % 4)}w{n % 42}\n" for n in range(count)))
        arguments = ["--model", str(model), "--input", str(tmp_path / "in.txt"), "--output", str(target)]
        memory, status = run("embed", *arguments, "--quiet", "--overwrite")
        assert status == 0 and np.load(target, mmap_mode="r").shape == (count, 16)
        peaks.append(memory)
    assert peaks[1] <= 1.07 * peaks[0], peaks


def test_a_line_takes_little_memory_however_long_it_is(tmp_path: Path) -> None:
    model = tiny_model(tmp_path / "model")
    target = tmp_path / "out.jsonl"

    def embed(name: str) -> int:
        arguments = ["--model", str(model), "--input", str(tmp_path / name), "--output", str(target)]
        memory, status = run("embed", *arguments, "--quiet", "--overwrite")
        records = [json.loads(line) for line in target.read_text().splitlines()]
        assert [record.get("text", "")[:3] for record in records] == ["the", "the" * (status == 0), "dog"]
        return memory

    (tmp_path / "short.txt").write_text("the\nthe\ndog\n")
    (tmp_path / "long.txt").write_text("the\n" + "the cat " * 2_500_000 + "\ndog\n")  # 20 MB
    with gzip.open(tmp_path / "longer.txt.gz", "wb", 1) as file:  # 300 MB
        file.writelines([b"the\n", *[b"the cat " * 125_000] * 300, b"\ndog\n"])
    small = embed("short.txt")
    assert embed("long.txt") - small < 300 * 2**20  # a few copies of the text
    assert embed("longer.txt.gz") - small < 200 * 2**20


@pytest.mark.weekly
def test_an_index_of_a_large_table_takes_little_more_memory(tmp_path: Path) -> None:
    model = tiny_model(tmp_path / "model")
    peaks = []
    for count in (2000, 11_000):
        table = tmp_path / f"{count}.csv"
        rows = (f"the {'cat sat on ' * 3}w{row % 42} {row},{row},de\n" for row in range(count))
        table.write_text("text,number,lang\n" + "".join(rows))
        memory, status = run("index", str(table), "--model", str(model), "--index", f"{table}.db", "--quiet")
        assert status == 0
        peaks.append(memory)
    assert peaks[1] - peaks[0] < 10 * 2**20, peaks  # 18,000 rows took 31 MB when they were in memory
