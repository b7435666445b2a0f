"""SIGTERM and SIGHUP in the middle of every long command: the exit status, what is said, and what stays on disk."""

import json
import os
import random
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from tests.helpers.program import TIMEOUT, call, command, environment
from tests.train.files import data_file
from tests.train.pretraining.files import model_folder, text_file

pytestmark = pytest.mark.slow

# The first call of a function, in the middle of the work, tells the test, and takes long.
WAIT = """
import importlib, sys, time
module, _, name = {place!r}.partition(":")
owner = importlib.import_module(module)
*inner, name = name.split(".")
owner = getattr(owner, inner[0]) if inner else owner
real = getattr(owner, name)
def slow(*arguments, **named):
    open("now", "x").close()
    time.sleep(600)
setattr(owner, name, slow)
"""
FORWARD = "mlxbert.nn.encoder:Encoder.__call__"
UPDATE = "mlxbert.train.loop.training_run:Run._step"
FORMATS = {"classify": "csv", "tag": "conll", "embed": "jsonl"}


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Texts, labelled data, a tiny model, and two that are trained from it."""
    folder = tmp_path_factory.mktemp("data")
    model_folder(folder / "tiny")
    text_file(folder / "text.txt", 400)
    for task in FORMATS:
        data_file(folder, task, 60).rename(folder / task)
    for task in ("classify", "tag"):
        assert call(*typed(f"finetune {task} {TRAIN[task]} --epochs 1 --output {{}}/my-{task}", folder)).status == 0
    return folder


def typed(words: str, folder: Path) -> list[str]:
    """A command line, in which {} is a folder."""
    return [word.replace("{}", str(folder)) for word in words.split()]


TEXTS = "--input {}/text.txt --model {}"
TRAIN = {task: f"--train {{}}/{task} --format {kind} --model {{}}/tiny" for task, kind in FORMATS.items()}
CORPUS = "{}/text.txt --length 16 --steps 9 --output out"
# Each long command: where it is when the signal comes, what is typed, and what is left of its output.
LONG: dict[str, tuple[str, str, list[str]]] = {
    "embed": (FORWARD, f"embed {TEXTS}/tiny --output out.npy", []),
    "classify": (FORWARD, f"classify {TEXTS}/my-classify", []),
    "tag": (FORWARD, f"tag {TEXTS}/my-tag --output out.jsonl", []),
    "similarity": (FORWARD, f"similarity {TEXTS}/tiny cat", []),
    "mine": (FORWARD, "mine {}/embed --format jsonl --output out.jsonl --model {}/tiny", []),
    "evaluate": (FORWARD, "evaluate classify --data {}/classify --format csv --model {}/my-classify", []),
    "evaluate tag": (FORWARD, "evaluate tag --data {}/tag --format conll --model {}/my-tag", []),
    "finetune": (UPDATE, f"finetune classify {TRAIN['classify']} --output out", ["out.partial"]),
    "finetune embed": (UPDATE, f"finetune embed {TRAIN['embed']} --output out", ["out.partial"]),
    "pretrain": (UPDATE, f"pretrain {CORPUS} --model {{}}/tiny", ["out.partial"]),
    "reading": (
        "mlxbert.train.pretraining.corpus.token_writer:tokenize",
        f"pretrain {CORPUS} --model {{}}/tiny", ["out.partial"],
    ),
    "distill": (UPDATE, f"distill {CORPUS} --teacher {{}}/tiny", ["out.partial"]),
    "vocabulary": (
        "mlxbert.train.pretraining.corpus.documents:_pieces", "vocabulary {}/text.txt --output out", [],
    ),
    "training a vocabulary": (  # in the thread of the trainer
        "mlxbert.train.pretraining.subword_training:itertools.takewhile", "vocabulary {}/text.txt --output out", [],
    ),
    "convert": ("mlxbert.weights.save:write_file", "convert {}/tiny out", []),
    "verify": (FORWARD, "verify {}/tiny {}/tiny", []),
    "bench": ("mlxbert.doctor.bench:_BenchWorker.ask", "bench --model {}/tiny", []),
    "doctor": ("mlxbert.doctor.device_speed:measure_gflops", "doctor", []),
}  # fmt: skip


def started(name: str, folder: Path, place: Path, before: str = "") -> "subprocess.Popen[bytes]":
    """A command that is in the middle of its work."""
    where, words, _ = LONG[name]
    running = subprocess.Popen(
        command(*typed(words, folder), prelude=before + WAIT.format(place=where)),
        env=environment(), cwd=place, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.PIPE,
    )  # fmt: skip
    end = time.monotonic() + TIMEOUT
    while not (place / "now").exists():
        if running.poll() is not None or time.monotonic() > end:
            running.kill()
            raise AssertionError(running.communicate())
        time.sleep(0.01)
    time.sleep(0.1)
    return running


@pytest.mark.parametrize(
    ("name", "by"), [*((name, signal.SIGTERM) for name in LONG), ("embed", signal.SIGHUP), ("finetune", signal.SIGHUP)]
)
def test_a_signal_ends_every_long_command(name: str, by: signal.Signals, folder: Path, tmp_path: Path) -> None:
    running = started(name, folder, tmp_path)
    begun = time.monotonic()
    running.send_signal(by)
    running.send_signal(by)  # a second one, while the first has its effect
    _, said = running.communicate(timeout=TIMEOUT)
    assert running.returncode == 128 + by, said
    assert b"Traceback" not in said and b"error: " not in said
    assert time.monotonic() - begun < 30
    kept = LONG[name][2]
    assert sorted(path.name for path in tmp_path.iterdir()) == sorted(["now", *kept])
    assert (b"the same command resumes" in said) == bool(kept)


def test_an_ignored_hangup_stays_ignored(folder: Path, tmp_path: Path) -> None:
    running = started("embed", folder, tmp_path, "import signal; signal.signal(signal.SIGHUP, signal.SIG_IGN)\n")
    running.send_signal(signal.SIGHUP)
    with pytest.raises(subprocess.TimeoutExpired):
        running.wait(1)
    running.send_signal(signal.SIGTERM)
    running.communicate(timeout=TIMEOUT)
    assert running.returncode == 128 + signal.SIGTERM


def test_a_closed_terminal_saves_the_state(folder: Path, tmp_path: Path) -> None:
    """Whether the signal or an error of writing comes first."""
    words = typed(f"finetune classify {TRAIN['classify']} --epochs 400 --output out", folder)
    child, terminal = os.forkpty()
    if child == 0:
        os.chdir(tmp_path)
        os.execve(sys.executable, [str(word) for word in command(*words)], environment(TERM="xterm-256color"))
    end = time.monotonic() + TIMEOUT
    state = tmp_path / "out.partial/runs/000/state.json"
    while not state.exists():
        assert time.monotonic() < end
        os.read(terminal, 65536)
    before = state.stat().st_mtime_ns
    os.close(terminal)
    _, status = os.waitpid(child, 0)
    assert os.waitstatus_to_exitcode(status) in (1, 128 + signal.SIGHUP)
    assert state.stat().st_mtime_ns > before and json.loads(state.read_bytes())["step"] > 0


def test_a_signal_that_python_drops_comes_again() -> None:
    script = """
import os, signal, time
from mlxbert.cli import signals
signals.catch()
class Dropping:
    def __del__(self):
        os.kill(os.getpid(), signal.SIGTERM)
        time.sleep(0)
Dropping()
try:
    time.sleep(60)
except KeyboardInterrupt:
    os._exit(signals.status(1))
"""
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, timeout=TIMEOUT, check=False)
    assert (done.returncode, done.stderr) == (128 + signal.SIGTERM, b"")


def test_an_interrupt_while_the_program_starts_says_nothing() -> None:
    """From the first line of the program on: Python itself, which starts before it, shows where it was."""
    rng = random.Random(7)
    for _ in range(10):
        words = command("embed", "the cat", prelude="import os; os.write(1, b'.')\n")
        running = subprocess.Popen(words, env=environment(), stdout=subprocess.PIPE, stderr=subprocess.PIPE)
        assert running.stdout is not None and running.stdout.read(1) == b"."
        time.sleep(rng.uniform(0, 0.5))
        running.send_signal(signal.SIGINT)
        _, said = running.communicate(timeout=TIMEOUT)
        assert running.returncode in (0, 130, -signal.SIGINT)  # the last is 130 for a shell
        assert b"Traceback" not in said
