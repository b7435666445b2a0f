"""Runs the program for tests of the command line: in this process, in a new process, or in a terminal."""

import ctypes
import functools
import io
import json
import os
import signal
import subprocess
import sys
import warnings
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from unittest import mock

import pytest
import typer

from mlxbert.machine.device import BLAS, mx, nn, use
from mlxbert.nn.heads import Network
from mlxbert.weights.families.registry import FAMILIES
from mlxbert.weights.formats.config_json import ConfigJson
from mlxbert.weights.model_source import builtin_folder
from tests.helpers.screen import Screen
from tests.helpers.tiny import to_theirs

PROGRAM = "from mlxbert.cli import main; main()"
ENDING = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)  # signals that end it
TIMEOUT = 120  # seconds, against a hanging process; nothing is measured
# Root reads and writes whatever it likes; without its capabilities file permissions apply to it, too.
WITHOUT_PRIVILEGES = """
import ctypes, os, sys
if os.geteuid() == 0 and ctypes.CDLL(None).capset((ctypes.c_uint32 * 2)(0x20080522, 0), (ctypes.c_uint32 * 6)()):
    sys.exit("capabilities stay")
"""
_CAPABILITIES = 0x20080522  # version 3 of the structures of capget(2)
_VARIABLES: tuple[str, ...] = ("MLXBERT_MODEL", "NO_COLOR", "FORCE_COLOR", "COLUMNS", "LINES", "COLORTERM", "TERM")
_VARIABLES += ("PYTHONUNBUFFERED", "PYTHONIOENCODING", "PYTHONUTF8")  # streams as a user has them

WORDS = ("the", "cat", "dog", "sat", "on", "mat", "paris", "tokyo", "##s", ".", ",", "!", "?")
VOCABULARY = ("[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", *WORDS, *(f"w{number}" for number in range(42)))
CONFIG: dict[str, Any] = {
    "model_type": "bert", "vocab_size": len(VOCABULARY), "hidden_size": 16, "num_hidden_layers": 2,
    "num_attention_heads": 2, "intermediate_size": 32, "hidden_act": "gelu", "max_position_embeddings": 24,
    "type_vocab_size": 2,
}  # fmt: skip


@dataclass(frozen=True)
class Outcome:
    """The result of running the program: its exit status, stdout and stderr."""

    status: int
    out: str
    err: str

    @property
    def lines(self) -> list[Any]:
        """The objects on stdout, which may hold nothing but lines of JSON."""
        assert self.out == "" or self.out.endswith("\n")
        return [json.loads(line) for line in self.out.split("\n")[:-1]]

    def fails(self, status: int, *expected: str) -> None:
        """Checks that the run failed with `error:` and these pieces of text on stderr, and without a traceback."""
        assert self.status == status, self
        assert "error: " in self.err
        assert "Traceback" not in self.out + self.err
        for piece in expected:
            assert piece in self.err


@contextmanager
def unprivileged() -> Iterator[None]:
    """Makes file permissions apply to root in this thread of the process."""
    if os.geteuid():
        yield
        return
    if sys.platform != "linux":
        pytest.skip("permissions do not apply to root")
    system, header, before = ctypes.CDLL(None), (ctypes.c_uint32 * 2)(_CAPABILITIES, 0), (ctypes.c_uint32 * 6)()
    assert not system.capget(header, before)
    assert not system.capset(header, (ctypes.c_uint32 * 6)(0, *before[1:3], 0, *before[4:]))  # none is in effect
    try:
        yield
    finally:
        assert not system.capset(header, before)


def environment(**more: str) -> dict[str, str]:
    """Returns this environment without variables that affect the program, and without the hint about a slow BLAS."""
    kept = {name: value for name, value in os.environ.items() if name not in _VARIABLES}
    kept["PYTHONIOENCODING"] = "utf-8:strict"  # as on most machines; the locale of a container may forgive more
    return kept | ({"MLXBERT_BLAS": "off"} if BLAS.hint else {}) | more


class _TerminalStream(io.TextIOWrapper):
    """A stream that claims to be a terminal."""

    def isatty(self) -> bool:
        return True


@functools.cache
def _once(make: Callable[..., Any]) -> Callable[..., Any]:
    """Caches the results of a function: building the program takes longer than running most commands in tests."""
    return functools.cache(make)


def _run(
    arguments: Sequence[str | bytes], variables: dict[str, str], stdin: bytes = b"", on: Iterable[str] = ()
) -> tuple[Outcome, str]:
    """Returns the outcome, with what went to pipes, and what went to a simulated terminal."""
    handler = signal.getsignal(signal.SIGINT)
    from mlxbert.cli import app

    signal.signal(signal.SIGINT, handler)  # the program sets its own on import
    use()  # a hint about a slow BLAS is given once, and not to a test
    screen, pipes = io.BytesIO(), {"stdin": io.BytesIO(stdin), "stdout": io.BytesIO(), "stderr": io.BytesIO()}
    streams: dict[str, Any] = {
        name: _TerminalStream(screen, encoding="utf-8", newline="", write_through=True)
        if name in on
        else io.TextIOWrapper(pipe, encoding="utf-8", newline="")
        for name, pipe in pipes.items()
    }
    with (
        mock.patch.dict(os.environ, environment(**variables), clear=True),
        mock.patch.multiple(sys, **streams),
        mock.patch.object(app, "make_app", _once(app.make_app)),
        mock.patch.object(typer.main, "get_command", _once(typer.main.get_command)),
        warnings.catch_warnings(action="ignore", category=ResourceWarning),  # inputs are closed with the process
    ):
        status = app.run([os.fsdecode(argument) for argument in arguments])
        for stream in streams.values():
            stream.flush()
    outcome = Outcome(status, pipes["stdout"].getvalue().decode(), pipes["stderr"].getvalue().decode())
    return outcome, screen.getvalue().decode()


def call(*arguments: str | bytes, stdin: bytes = b"", **variables: str) -> Outcome:
    """Runs the program in this process, with pipes instead of a terminal."""
    return _run(arguments, variables, stdin)[0]


def terminal(*arguments: str, on: Iterable[str] = ("stdout",), **variables: str) -> tuple[Outcome, str]:
    """Runs the program in this process, with some of its streams on a simulated terminal of 100 columns."""
    return _run(arguments, {"TERM": "xterm-256color", "COLUMNS": "100"} | variables, on=on)


def command(*arguments: str | bytes, prelude: str = "") -> list[str | bytes]:
    return [sys.executable, "-c", prelude + PROGRAM, *arguments]


def process(
    *arguments: str | bytes, stdin: bytes = b"", prelude: str = "", timeout: float = TIMEOUT, **variables: str
) -> Outcome:
    done = subprocess.run(
        command(*arguments, prelude=prelude), input=stdin, capture_output=True, env=environment(**variables),
        timeout=timeout, check=False,
    )  # fmt: skip
    return Outcome(done.returncode, done.stdout.decode(), done.stderr.decode(errors="replace"))


def real_terminal(*arguments: str, on: Iterable[str] = ("stdout",), **variables: str) -> tuple[Outcome, str]:
    """Returns the output to pipes, and to a terminal of 100 columns, of a run in a new process."""
    streams: dict[str, Any] = {"stdin": subprocess.DEVNULL, "stdout": subprocess.PIPE, "stderr": subprocess.PIPE}
    variables = {"TERM": "xterm-256color", "COLUMNS": "100"} | variables
    with Screen() as screen:
        streams |= dict.fromkeys(on, screen.inner)
        running = subprocess.Popen(command(*arguments), env=environment(**variables), **streams)
        out, err = (pipe or b"" for pipe in running.communicate(timeout=TIMEOUT))
        shown = screen.shown().decode().replace("\r\n", "\n")
    return Outcome(running.returncode, out.decode(), err.decode()), shown


# For tests of what is drawn: in this process, and in the slow tests on a real terminal, too.
Terminal = Callable[..., tuple[Outcome, str]]
TERMINALS = pytest.mark.parametrize("show", [terminal, pytest.param(real_terminal, marks=pytest.mark.slow)])


@functools.cache
def _tensors(**changes: object) -> dict[str, mx.array]:
    config = FAMILIES["bert"].read_config(ConfigJson(Path("config.json"), CONFIG | changes))
    mx.random.seed(7)
    arrays = dict(nn.utils.tree_flatten(Network(config, ["masked_lm", "next_sentence"]).parameters()))
    return to_theirs(FAMILIES["bert"], config, arrays)


def tiny_model(folder: Path, **changes: object) -> Path:
    """Writes a random BERT with a vocabulary of 60 tokens and inputs of up to 24 tokens; returns the folder."""
    folder.mkdir()
    mx.save_safetensors(str(folder / "model.safetensors"), _tensors(**changes))
    mx.random.seed(7)  # whether they were drawn now or before
    (folder / "config.json").write_text(json.dumps(CONFIG | changes), encoding="utf-8")
    (folder / "vocab.txt").write_text("".join(f"{token}\n" for token in VOCABULARY), encoding="utf-8")
    return folder


def names(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir())


def snapshot(folder: Path) -> dict[str, bytes]:
    return {str(path.relative_to(folder)): path.read_bytes() for path in folder.rglob("*") if path.is_file()}


def change_config(folder: Path, **changes: object) -> None:
    path = folder / "config.json"
    path.write_text(json.dumps(json.loads(path.read_text(encoding="utf-8")) | changes), encoding="utf-8")


def change_weights(folder: Path, change: Callable[[dict[str, mx.array]], object]) -> None:
    path = folder / "model.safetensors"
    arrays = mx.load(str(path))
    assert isinstance(arrays, dict)
    mx.eval(arrays)
    change(arrays)
    path.unlink()  # a file that is overwritten is flushed to the disk, which takes long
    mx.save_safetensors(str(path), arrays)


def builtin_copy(folder: Path, *names: str) -> Path:
    folder.mkdir()
    for name in names:
        (folder / name).write_bytes((builtin_folder() / name).read_bytes())
    return folder


def changed(arguments: list[str], option: str, *value: str) -> list[str]:
    """Returns the arguments with this value of an option; an existing value is replaced."""
    if option not in arguments:
        return [*arguments, option, *value]
    place = arguments.index(option)
    return [*arguments[:place], option, *value, *arguments[place + 1 + len(value) :]]
