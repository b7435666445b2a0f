"""`embed --output` through kills and other commands: what is finished is kept."""

import subprocess
import time
from pathlib import Path

import pytest

from mlxbert.text.batch import WINDOW
from tests.cli.test_output_survives import finished_parts
from tests.helpers.program import (
    TIMEOUT,
    call,
    changed,
    command,
    environment,
    tiny_model,
)

PARTS = 8
TOTAL = PARTS * WINDOW - 300  # the last part is not full
ENDINGS = pytest.mark.parametrize("ending", [".npy", ".jsonl"])


@pytest.fixture(scope="module")
def texts(tmp_path_factory: pytest.TempPathFactory) -> str:
    """Lines of many lengths, some too long."""
    path = tmp_path_factory.mktemp("inputs") / "in.txt"
    path.write_text("".join(f"{'the cat ' * (number % 14)}w{number % 42}\n" for number in range(TOTAL)))
    return str(path)


@pytest.fixture(scope="module")
def wholes(small: str, texts: str, tmp_path_factory: pytest.TempPathFactory) -> dict[str, bytes]:
    """What an uninterrupted run writes."""
    folder = tmp_path_factory.mktemp("wholes")
    found = {}
    for ending in (".npy", ".jsonl"):
        path = folder / f"x{ending}"
        assert call(*embed(small, texts, path)).status == 0
        found[ending] = path.read_bytes()
    return found


def embed(model: str, texts: str, path: Path) -> list[str]:
    return ["embed", "--model", model, "--input", texts, "--output", str(path)]


def kill(arguments: list[str], path: Path, parts: int) -> bool:
    """Runs a command, and kills it when it has finished as many parts; gives whether it was in time."""
    folder = Path(f"{path}.partial")
    running = subprocess.Popen(command(*arguments), env=environment(), stderr=subprocess.DEVNULL)
    while running.poll() is None and len(list(folder.glob("part-*.json"))) < parts:
        time.sleep(0.001)
    running.kill()
    return running.wait(TIMEOUT) != 0


@ENDINGS
@pytest.mark.slow
def test_a_killed_command_ends_like_one_that_was_not(
    ending: str, small: str, texts: str, wholes: dict[str, bytes], tmp_path: Path
) -> None:
    path = tmp_path / f"x{ending}"
    arguments = embed(small, texts, path)
    assert kill(arguments, path, 4)
    kept = finished_parts(path)
    assert len(kept) >= 8 and not path.exists()
    outcome = call(*arguments)
    assert outcome.status == 0 and f"after {len(kept) // 2 * WINDOW:,} of an earlier run" in outcome.err
    assert "--overflow" in outcome.err and f" of {TOTAL:,}" in outcome.err
    assert path.read_bytes() == wholes[ending]


@pytest.fixture
def killed(small: str, texts: str, tmp_path: Path) -> list[str]:
    """The command of a run that was killed after its first part."""
    path = tmp_path / "x.npy"
    arguments = embed(small, texts, path)
    assert kill(arguments, path, 1)
    return arguments


@pytest.mark.slow
def test_another_command_is_refused_and_what_is_finished_is_kept(
    killed: list[str], wholes: dict[str, bytes], tmp_path: Path
) -> None:
    path = Path(killed[-1])
    kept = finished_parts(path)
    assert kept
    other_model = str(tiny_model(tmp_path / "other", hidden_act="relu"))
    (tmp_path / "other.txt").write_text("the cat\n")
    for change in (
        ["--pooling", "cls"],
        ["--dimensions", "8"],
        ["--prompt", "the"],
        ["--normalize"],
        ["--no-normalize"],
        ["--overflow", "window"],
        ["--batch-tokens", "7"],
        ["--dtype", "float16"],
        ["--format", "csv", "--text-column", "the"],
        ["--model", other_model],
        ["--input", str(tmp_path / "other.txt")],
    ):
        call(*changed(killed, *change)).fails(2, "x.npy.partial", "unfinished", "another", "\nhint: ")
        assert finished_parts(path) == kept
    outcome = call(*killed[:-1], str(path), "--quiet")  # how much is said makes no other command of it
    assert (outcome.status, path.read_bytes()) == (0, wholes[".npy"])


@pytest.mark.slow
def test_overwrite_does_not_throw_away_what_can_be_gone_on_from(killed: list[str], wholes: dict[str, bytes]) -> None:
    path = Path(killed[-1])
    taken = len(finished_parts(path)) // 2 * WINDOW
    path.write_text("an older file")
    call(*killed).fails(2, "exists", "hint: --overwrite")
    outcome = call(*killed, "--overwrite")
    assert outcome.status == 0 and f"after {taken:,} of an earlier run" in outcome.err
    assert path.read_bytes() == wholes[".npy"]
