"""Processes that train are killed for real: what they leave resumes to the bits of a run that nobody killed."""

import json
import os
import random
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from tests.helpers.program import ENDING
from tests.train.files import TASKS, data_file
from tests.train.pretraining.files import model_folder, text_file

pytestmark = pytest.mark.slow
KILLS = int(os.environ.get("MLXBERT_TEST_KILLS", "4"))


def command_of(task: str, base: Path, folder: Path) -> list[str]:
    common = sys.executable, "-m", "mlxbert"
    options = "--quiet", "--batch-size", "8", "--save-every", "5", "--model"
    if task == "pretrain":
        text, model = text_file(folder / "text.txt", 400), model_folder(folder / "tiny")
        words = "--objective", "mlm,nsp", "--whole-words", "--length", "24", "--steps", "200", "--eval-every", "25"
        return [*common, "pretrain", str(text), *options, str(model), *words]
    return [
        *(*common, "finetune", task, "--train", str(data_file(folder, task, 120)), *options, str(base)),
        *("--epochs", "6", "--seeds", "2", *(["--crf"] if task == "tag" else [])),
    ]


def finished(command: list[str], output: Path) -> bytes:
    """Runs to the end; the weights."""
    subprocess.run([*command, "--output", str(output)], check=True, capture_output=True)
    return (output / "model.safetensors").read_bytes()


def stop(command: list[str], output: Path, seconds: float, how: signal.Signals) -> int | None:
    """Starts a process, and sends it a signal once it has trained for so long; its exit status if it ended before."""
    with subprocess.Popen(
        [*command, "--output", str(output)], stdout=subprocess.PIPE, stderr=subprocess.PIPE
    ) as process:
        partial = output.with_name(output.name + ".partial")
        before = _saved(partial)
        while _saved(partial) == before and process.poll() is None:
            time.sleep(0.01)
        try:
            return process.wait(seconds)
        except subprocess.TimeoutExpired:
            process.send_signal(how)
            status = process.wait()
            assert status in (0, -how if how == signal.SIGKILL else 128 + how)
            return None


def _saved(partial: Path) -> dict[str, int]:
    """When each of the states was saved that an unfinished run has."""
    return {str(path): path.stat().st_mtime_ns for path in partial.glob("runs/*/state.json")}


@pytest.mark.parametrize("task", [*TASKS, "pretrain"])
@pytest.mark.sampled
def test_killed_at_random_moments(task: str, base: Path, tmp_path: Path) -> None:
    """What a command ends with is compared to a run that nobody killed."""
    command, start = command_of(task, base, tmp_path), time.monotonic()
    expected = finished(command, tmp_path / "whole")
    seconds = time.monotonic() - start
    rng = random.Random(5)
    kills: list[signal.Signals] = []
    while len(kills) < KILLS and not (tmp_path / "parts").exists():
        how = rng.choice([signal.SIGKILL, *ENDING])
        status = stop(command, tmp_path / "parts", rng.uniform(0, seconds / (2 * KILLS)), how)
        assert not status
        kills += [how] if status is None else []
    print(f"killed {len(kills)} times:", *(how.name for how in kills))  # noqa: T201
    assert len(kills) > 2
    found = (tmp_path / "parts/model.safetensors").read_bytes() if (tmp_path / "parts").exists() else None
    assert (found or finished(command, tmp_path / "parts")) == expected
    assert not (tmp_path / "parts.partial").exists()


@pytest.mark.parametrize("by", ENDING)
def test_a_signal_saves_and_says_how_to_go_on(by: signal.Signals, base: Path, tmp_path: Path) -> None:
    output = tmp_path / "out"
    talking = [word for word in command_of("classify", base, tmp_path) if word != "--quiet"]
    talking[talking.index("--save-every") + 1] = "1000000"
    talking[talking.index("--epochs") + 1] = "100"
    with subprocess.Popen(
        [*talking, "--output", str(output)], stdout=subprocess.PIPE, stderr=subprocess.PIPE
    ) as process:
        while not (tmp_path / "out.partial").exists():
            assert process.poll() is None
            time.sleep(0.01)
        time.sleep(1.5)
        process.send_signal(by)
        process.send_signal(signal.SIGHUP)  # as systemd does after SIGTERM; the state is saved all the same
        events, errors = process.communicate()
    assert process.returncode in (128 + by, 128 + signal.SIGHUP) and b"Traceback" not in errors
    steps = [event["step"] for event in map(json.loads, events.splitlines()) if event["event"] == "step"]
    saved = json.loads((tmp_path / "out.partial/runs/000/state.json").read_bytes())["step"]
    assert saved in (len(steps), len(steps) + 1)  # one that was not told any more
    assert f"saved at step {saved}; the same command resumes: mlxbert finetune" in errors.decode()


@pytest.mark.skipif(not Path("/dev/shm").is_dir() or os.geteuid() != 0, reason="mounts a small disk, which takes root")
@pytest.mark.parametrize(("task", "size", "free"), [
    ("classify", 2**21, 200_000),
    *(("pretrain", 2**22, free) for free in (20_000, 300_000)),  # too little for the corpus, and for the state
])  # fmt: skip
def test_a_full_disk(task: str, size: int, free: int, base: Path, tmp_path: Path) -> None:
    """Runs a command with that many bytes left of a disk of that size, and again with room."""
    command = command_of(task, base, tmp_path)
    expected = finished(command, tmp_path / "whole")
    disk = tmp_path / "disk"
    disk.mkdir()
    options = ["-t", "tmpfs", "-o", f"size={size}", "tmpfs"]
    if subprocess.run(["mount", *options, str(disk)], capture_output=True).returncode:
        pytest.skip("a small disk cannot be mounted here")
    try:
        filler = disk / "filler"
        filler.write_bytes(bytes(size - free))
        failed = subprocess.run([*command, "--output", str(disk / "out")], capture_output=True)
        assert failed.returncode == 1 and b"error:" in failed.stderr and b"Traceback" not in failed.stderr
        assert not (disk / "out").exists()
        filler.unlink()
        assert finished(command, disk / "out") == expected
    finally:
        subprocess.run(["umount", str(disk)], check=True)
