"""`embed --output` through kills, other commands, full disks and forbidden folders: what is finished is kept."""

import random
import shutil
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

from mlxbert.cli.output.parts import PART
from tests.cli.test_output_survives import finished_parts
from tests.helpers.program import (
    TIMEOUT,
    WITHOUT_PRIVILEGES,
    Outcome,
    call,
    changed,
    command,
    environment,
    process,
    tiny_model,
)

PARTS = 8
TOTAL = PARTS * PART - 300  # the last part is not full
ENDINGS = pytest.mark.parametrize("ending", [".npy", ".jsonl"])


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> str:
    return str(tiny_model(tmp_path_factory.mktemp("models") / "tiny"))


@pytest.fixture(scope="module")
def texts(tmp_path_factory: pytest.TempPathFactory) -> str:
    """Lines of many lengths, some too long."""
    path = tmp_path_factory.mktemp("inputs") / "in.txt"
    path.write_text("".join(f"{'the cat ' * (number % 14)}w{number % 42}\n" for number in range(TOTAL)))
    return str(path)


@pytest.fixture(scope="module")
def wholes(model: str, texts: str, tmp_path_factory: pytest.TempPathFactory) -> dict[str, bytes]:
    """What an uninterrupted run writes."""
    folder = tmp_path_factory.mktemp("wholes")
    found = {}
    for ending in (".npy", ".jsonl"):
        path = folder / f"x{ending}"
        assert call(*embed(model, texts, path)).status == 0
        found[ending] = path.read_bytes()
    return found


def embed(model: str, texts: str, path: Path) -> list[str]:
    return ["embed", "--model", model, "--input", texts, "--output", str(path)]


def kill(arguments: list[str], path: Path, parts: int, pause: float) -> bool:
    """Runs a command, and kills it some time after it has finished as many parts; gives whether it was in time."""
    folder = Path(f"{path}.partial")
    running = subprocess.Popen(command(*arguments), env=environment(), stderr=subprocess.DEVNULL)
    while running.poll() is None and len(list(folder.glob("part-*.json"))) < parts:
        time.sleep(0.001)
    time.sleep(pause)
    running.kill()
    return running.wait(TIMEOUT) != 0


def same(kept: dict[str, tuple[int, int]], path: Path) -> bool:
    """Whether finished parts are the files that they were."""
    return kept.items() <= finished_parts(path).items()


@ENDINGS
@pytest.mark.slow
@pytest.mark.sampled
def test_a_command_killed_at_ten_moments_goes_on_each_time_and_ends_the_same(
    ending: str, model: str, texts: str, wholes: dict[str, bytes], tmp_path: Path
) -> None:
    chance = random.Random(11)
    path = tmp_path / f"x{ending}"
    arguments = embed(model, texts, path)
    kept: dict[str, tuple[int, int]] = {}
    moments = [0, 0, 1, 2, 3, 4, 5, 5, 6, 6]
    killed = 0
    for parts in moments:  # as many parts are there, from this run and those before
        killed += kill(arguments, path, parts, chance.uniform(0, 0.01 if parts else 0.3))
        if path.exists():
            break
        assert same(kept, path)
        kept = finished_parts(path)
        assert len(kept) >= 2 * parts
    assert killed >= 8  # the last one or two may come too late
    if not path.exists():
        assert process(*arguments).status == 0
        assert [entry.name for entry in tmp_path.iterdir()] == [path.name]
    assert path.read_bytes() == wholes[ending]


@ENDINGS
@pytest.mark.parametrize("parts", [1, 4])
@pytest.mark.slow
@pytest.mark.sampled
def test_each_killed_command_ends_like_one_that_was_not(
    ending: str, parts: int, model: str, texts: str, wholes: dict[str, bytes], tmp_path: Path
) -> None:
    path = tmp_path / f"x{ending}"
    arguments = embed(model, texts, path)
    assert kill(arguments, path, parts, 0)
    kept = finished_parts(path)
    assert len(kept) >= 2 * parts and not path.exists()
    with Watch(path, kept) as watch:
        outcome = call(*arguments)
    assert outcome.status == 0
    assert watch.seen and f"after {len(kept) // 2 * PART:,} of an earlier run" in outcome.err
    assert "--overflow" in outcome.err and f" of {TOTAL:,}" in outcome.err
    assert path.read_bytes() == wholes[ending]


class Watch:
    """Notes whether finished parts are still the same files when the whole is put together of them."""

    def __init__(self, path: Path, kept: dict[str, tuple[int, int]]) -> None:
        self.path, self.kept, self.seen = path, kept, False
        self.patch = pytest.MonkeyPatch()

    def __enter__(self) -> "Watch":
        from mlxbert.cli.output.file import FileOutput

        finish = FileOutput._finish

        def watched(output: FileOutput) -> None:
            self.seen = same(self.kept, self.path)
            finish(output)

        self.patch.setattr(FileOutput, "_finish", watched)
        return self

    def __exit__(self, *problem: object) -> None:
        self.patch.undo()


@pytest.fixture
def killed(model: str, texts: str, tmp_path: Path) -> list[str]:
    """The command of a run that was killed after its first part."""
    path = tmp_path / "x.npy"
    arguments = embed(model, texts, path)
    assert kill(arguments, path, 1, 0)
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
        ["--format", "csv", "--column", "the"],
        ["--model", other_model],
        ["--input", str(tmp_path / "other.txt")],
    ):
        outcome = call(*changed(killed, *change))
        try:
            outcome.fails(2, "x.npy.partial", "unfinished", "another", "\nhint: ")
        except AssertionError as problem:
            raise AssertionError(f"{change}: {outcome}") from problem
        assert finished_parts(path) == kept
    outcome = call(*killed[:-1], str(path), "--quiet")  # how much is said makes no other command of it
    assert (outcome.status, path.read_bytes()) == (0, wholes[".npy"])


@pytest.mark.slow
def test_overwrite_does_not_throw_away_what_can_be_gone_on_from(killed: list[str], wholes: dict[str, bytes]) -> None:
    path = Path(killed[-1])
    taken = len(finished_parts(path)) // 2 * PART
    path.write_text("an older file")
    call(*killed).fails(2, "exists already", "hint: --overwrite")
    outcome = call(*killed, "--overwrite")
    assert outcome.status == 0 and f"after {taken:,} of an earlier run" in outcome.err
    assert path.read_bytes() == wholes[".npy"]


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    """A disk of 160 kB."""
    folder = tmp_path / "disk"
    folder.mkdir()
    mounting = ["mount", "-t", "tmpfs", "-o", "size=160k", "tmpfs", str(folder)]
    if shutil.which("mount") is None or subprocess.run(mounting, capture_output=True, check=False).returncode:
        pytest.skip("a small disk can be mounted by root on Linux only")
    yield folder
    subprocess.run(["umount", str(folder)], check=True)


@pytest.mark.slow
def test_a_full_disk_keeps_what_is_finished_until_there_is_room(
    small_disk: Path, model: str, texts: str, wholes: dict[str, bytes]
) -> None:
    path = small_disk / "x.npy"
    arguments = embed(model, texts, path)

    def fails(outcome: Outcome) -> dict[str, tuple[int, int]]:
        kept = finished_parts(path)
        said = f"hint: {len(kept) // 2 * PART:,} results are kept in {path}.partial"
        outcome.fails(1, "x.npy.partial", "No space left on device", said)
        assert [entry.name for entry in small_disk.iterdir()] == ["x.npy.partial"]
        assert not list(Path(f"{path}.partial").glob("*.unfinished"))
        return kept

    kept = fails(process(*arguments))
    assert len(kept) == 8  # four parts of 32 kB
    assert fails(process(*arguments)) == kept
    enlarged = ["mount", "-o", "remount,size=2m", str(small_disk)]
    subprocess.run(enlarged, check=True)
    with Watch(path, kept) as watch:
        outcome = call(*arguments)
    assert (outcome.status, watch.seen) == (0, True)
    assert f"after {len(kept) // 2 * PART:,} of an earlier run" in outcome.err
    assert path.read_bytes() == wholes[".npy"]


@ENDINGS
@pytest.mark.slow
def test_a_folder_without_permission_is_refused_before_any_work(
    ending: str, model: str, texts: str, tmp_path: Path
) -> None:
    folder = tmp_path / "read-only"
    folder.mkdir(mode=0o500)
    outcome = process(*embed(model, texts, folder / f"x{ending}"), prelude=WITHOUT_PRIVILEGES)
    outcome.fails(1, f"{folder}/x{ending}", "Permission denied")
    assert "mean pooling is assumed" not in outcome.err  # the model was not loaded
    assert list(folder.iterdir()) == []


def test_stdin_is_embedded_afresh_each_time(model: str, tmp_path: Path) -> None:
    path = tmp_path / "x.npy"
    outcome = call("embed", "--model", model, "--output", str(path), stdin=b"the cat\n" * 3)
    assert outcome.status == 0 and "note: input is stdin" in outcome.err
    assert np.load(path).shape == (3, 16)
