"""Pre-training in processes: killed at any moment, and shared by two."""

import sys
from pathlib import Path

import pytest

from tests.train.pretraining.files import model_folder, text_file
from tests.train.test_distributed import alone, both, losses
from tests.train.test_kills import NEEDS_DISK, check_full_disk, check_kills

pytestmark = pytest.mark.slow


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
    command[command.index("--steps") + 1] = "300"
    check_kills(command, tmp_path, seed=7)


@NEEDS_DISK
@pytest.mark.parametrize("free", [20_000, 300_000])  # too little for the corpus, and for the state of training
def test_a_full_disk(free: int, folder: Path, tmp_path: Path) -> None:
    command = [sys.executable, "-m", "mlxbert", *words(folder, "--save-every", "5", "--quiet")]
    check_full_disk(command, tmp_path, 2**22, free)


def test_two_processes_train_as_one_does(folder: Path, tmp_path: Path) -> None:
    given = words(folder, "--dropout", "0", "--lr", "1e-3")
    first, second = both([*given, "--output", str(tmp_path / "two"), "--log", str(tmp_path / "log")], tmp_path)
    assert (first.status, second.status, second.out, second.err) == (0, 0, "", "")
    single = alone([*given, "--output", str(tmp_path / "one")])
    assert len(losses(single)) == 60
    assert losses(first) == pytest.approx(losses(single), rel=1e-4)
    assert (tmp_path / "two" / "config.json").exists() and not (tmp_path / "two.partial").exists()
