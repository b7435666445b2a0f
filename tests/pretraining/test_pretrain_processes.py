"""Pre-training in processes: killed at any moment, and shared by two."""

import os
import random
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from tests.pretraining.files import model_folder, text_file
from tests.training.test_distributed import alone, both, losses
from tests.training.test_kills import finished, stop

pytestmark = pytest.mark.slow
KILLS = int(os.environ.get("MLXBERT_TEST_KILLS", "4"))


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("data")
    text_file(folder / "text.txt", 400)
    model_folder(folder / "tiny")
    return folder


def words(folder: Path, *more: str) -> list[str]:
    return [
        *("pretrain", str(folder / "text.txt"), "--model", str(folder / "tiny"), "--objective", "mlm,nsp"),
        *("--length", "24", "--batch-size", "8", "--steps", "60", "--eval-every", "25", *more),
    ]


def test_killed_at_random_moments(folder: Path, tmp_path: Path) -> None:
    command = [sys.executable, "-m", "mlxbert", *words(folder, "--save-every", "5", "--quiet", "--whole-words")]
    start = time.monotonic()
    expected = finished(command, tmp_path / "whole")
    seconds = time.monotonic() - start
    rng = random.Random(7)
    kills = 0
    while kills < KILLS and not (tmp_path / "parts").exists():
        how = rng.choice([signal.SIGKILL, signal.SIGINT])
        status = stop(command, tmp_path / "parts", rng.uniform(0, seconds / 8), how)
        assert not status
        kills += status is None
    assert kills > 2
    found = (tmp_path / "parts/model.safetensors").read_bytes() if (tmp_path / "parts").exists() else None
    assert (found or finished(command, tmp_path / "parts")) == expected
    assert not (tmp_path / "parts.partial").exists()


def test_killed_while_it_reads(folder: Path, tmp_path: Path) -> None:
    text = text_file(tmp_path / "long.txt", 20_000)
    command = [sys.executable, "-m", "mlxbert", *words(folder, "--quiet")]
    command[command.index(str(folder / "text.txt"))] = str(text)
    command[command.index("--steps") + 1] = "2"
    expected = finished(command, tmp_path / "whole")
    corpus = tmp_path / "parts.partial" / "corpus"
    for _ in range(3):
        with subprocess.Popen([*command, "--output", str(tmp_path / "parts")], stderr=subprocess.PIPE) as process:
            while not (corpus / "ids.bin").exists() and process.poll() is None:
                time.sleep(0.005)
            time.sleep(random.Random(1).uniform(0.02, 0.2))
            process.kill()
    assert finished(command, tmp_path / "parts") == expected


def test_two_processes_train_as_one_does(folder: Path, tmp_path: Path) -> None:
    given = words(folder, "--dropout", "0", "--lr", "1e-3")
    first, second = both([*given, "--output", str(tmp_path / "two"), "--log", str(tmp_path / "log")], tmp_path)
    assert (first.status, second.status, second.out, second.err) == (0, 0, "", "")
    single = alone([*given, "--output", str(tmp_path / "one")])
    assert len(losses(single)) == 60
    assert losses(first) == pytest.approx(losses(single), rel=1e-4)
    assert (tmp_path / "two" / "config.json").exists() and not (tmp_path / "two.partial").exists()
