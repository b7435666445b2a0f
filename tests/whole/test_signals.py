"""SIGTERM and SIGHUP in the middle of every long command: the exit status, what is said, and what stays on disk."""

import json
import os
import random
import signal
import subprocess
import sys
import time
from collections.abc import Callable
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
        words = [*labelled("finetune", task)(folder), "--epochs", "1", "--output", str(folder / f"my-{task}")]
        assert call(*words).status == 0
    return folder


Words = Callable[[Path], list[str]]


def labelled(group: str, task: str, model: str = "tiny", *more: str) -> Words:
    option = "--train" if group == "finetune" else "--data"
    return lambda folder: [
        *(group, task, option, str(folder / task), "--format", FORMATS[task]),
        *("--model", str(folder / model), *more),
    ]


def texts(name: str, model: str, *more: str) -> Words:
    return lambda folder: [name, "--input", str(folder / "text.txt"), "--model", str(folder / model), *more]


def corpus(name: str, *more: str) -> Words:
    return lambda folder: [name, str(folder / "text.txt"), "--length", "16", "--steps", "9", *more]


# Each long command: where it is when the signal comes, what is typed, and what is left of its output.
LONG: dict[str, tuple[str, Words, list[str]]] = {
    "embed": (FORWARD, texts("embed", "tiny", "--output", "out.npy"), []),
    "classify": (FORWARD, texts("classify", "my-classify"), []),
    "tag": (FORWARD, texts("tag", "my-tag", "--output", "out.jsonl"), []),
    "similarity": (FORWARD, lambda folder: [*texts("similarity", "tiny")(folder), "the cat"], []),
    "mine": (
        FORWARD,
        lambda folder: [
            *("mine", str(folder / "embed"), "--format", "jsonl", "--output", "out.jsonl"),
            *("--model", str(folder / "tiny")),
        ],
        [],
    ),
    "evaluate": (FORWARD, labelled("evaluate", "classify", "my-classify"), []),
    "evaluate tag": (FORWARD, labelled("evaluate", "tag", "my-tag"), []),
    "finetune": (UPDATE, labelled("finetune", "classify", "tiny", "--output", "out"), ["out.partial"]),
    "finetune embed": (UPDATE, labelled("finetune", "embed", "tiny", "--output", "out"), ["out.partial"]),
    "pretrain": (
        UPDATE,
        lambda folder: corpus("pretrain", "--model", str(folder / "tiny"), "--output", "out")(folder),
        ["out.partial"],
    ),
    "reading": (
        "mlxbert.train.pretraining.corpus.token_writer:tokenize",
        lambda folder: corpus("pretrain", "--model", str(folder / "tiny"), "--output", "out")(folder),
        ["out.partial"],
    ),
    "distill": (
        UPDATE,
        lambda folder: corpus("distill", "--teacher", str(folder / "tiny"), "--output", "out")(folder),
        ["out.partial"],
    ),
    "vocabulary": (
        "mlxbert.train.pretraining.corpus.documents:_pieces",
        lambda folder: ["vocabulary", str(folder / "text.txt"), "--output", "out"],
        [],
    ),
    "training a vocabulary": (  # in the thread of the trainer
        "mlxbert.train.pretraining.subword_training:itertools.takewhile",
        lambda folder: ["vocabulary", str(folder / "text.txt"), "--output", "out"],
        [],
    ),
    "convert": (
        "mlxbert.weights.save:write_file",
        lambda folder: ["convert", str(folder / "tiny"), "out"],
        [],
    ),
    "verify": (FORWARD, lambda folder: ["verify", str(folder / "tiny"), str(folder / "tiny")], []),
    "bench": (
        "mlxbert.doctor.bench:_BenchWorker.ask",
        lambda folder: ["bench", "--model", str(folder / "tiny")],
        [],
    ),
    "doctor": ("mlxbert.doctor.device_speed:measure_gflops", lambda folder: ["doctor"], []),
}  # fmt: skip


def started(name: str, folder: Path, place: Path, before: str = "") -> "subprocess.Popen[bytes]":
    """A command that is in the middle of its work."""
    where, words, _ = LONG[name]
    running = subprocess.Popen(
        command(*words(folder), prelude=before + WAIT.format(place=where)),
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


@pytest.mark.parametrize("by", [signal.SIGTERM, signal.SIGHUP])
@pytest.mark.parametrize("name", LONG)
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
    words = [*labelled("finetune", "classify")(folder), "--epochs", "400", "--output", "out"]
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
    for _ in range(20):
        words = command("embed", "the cat", prelude="import os; os.write(1, b'.')\n")
        running = subprocess.Popen(words, env=environment(), stdout=subprocess.PIPE, stderr=subprocess.PIPE)
        assert running.stdout is not None and running.stdout.read(1) == b"."
        time.sleep(rng.uniform(0, 0.5))
        running.send_signal(signal.SIGINT)
        _, said = running.communicate(timeout=TIMEOUT)
        assert running.returncode in (0, 130, -signal.SIGINT)  # the last is 130 for a shell
        assert b"Traceback" not in said
