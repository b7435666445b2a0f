"""A training run that a signal ends saves its state. `tests/test_kills.py` kills it."""

import json
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from tests.helpers.program import ENDING
from tests.train.files import data_file

pytestmark = pytest.mark.slow


@pytest.fixture
def command(base: Path, tmp_path: Path) -> list[str]:
    return command_of("classify", base, tmp_path)


def command_of(task: str, base: Path, folder: Path) -> list[str]:
    return [
        *(sys.executable, "-m", "mlxbert", "finetune", task, "--train", str(data_file(folder, task, 120)), "--quiet"),
        *("--model", str(base), "--epochs", "6", "--batch-size", "8", "--seeds", "2", "--save-every", "5"),
        *(["--crf"] if task == "tag" else []),
    ]


@pytest.mark.parametrize("by", ENDING)
def test_a_signal_saves_and_says_how_to_go_on(by: signal.Signals, command: list[str], tmp_path: Path) -> None:
    output = tmp_path / "out"
    talking = [word for word in command if word != "--quiet"]
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
