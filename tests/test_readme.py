"""The README does what it says: its commands run, its printed words and numbers are right, its Python works."""

import os
import pty
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from mlxbert.cli.app import app

ROOT = Path(__file__).parents[1]
README = (ROOT / "README.md").read_text(encoding="utf-8")
MAIN = (
    "python3 -m venv .venv && . .venv/bin/activate && pip install . && "
    'mlxbert fill-mask "Tokyo is the largest city in [MASK]."'
)
TESTS = 'python3 -m venv .venv && . .venv/bin/activate && pip install -e ".[test]" && pytest -n auto --dist loadfile'


def _blocks(language: str) -> list[str]:
    return re.findall(rf"^```{language}\n(.*?)^```$", README, flags=re.DOTALL | re.MULTILINE)


def _shown() -> Iterator[tuple[str, str]]:
    """The commands of console blocks, and what stands under each."""
    for block in _blocks("console"):
        for part in re.split(r"^\$ ", block, flags=re.MULTILINE)[1:]:
            command, _, output = part.partition("\n")
            yield command, output


def _at_terminal(command: str) -> str:
    """What a command prints at a terminal of 100 columns without colours."""
    ours, theirs = pty.openpty()
    environment = {**os.environ, "NO_COLOR": "1", "COLUMNS": "100", "TERM": "xterm"}
    process = subprocess.Popen(["bash", "-c", command], stdin=theirs, stdout=theirs, env=environment)
    os.close(theirs)
    found = b""
    while True:
        try:
            piece = os.read(ours, 65536)
        except OSError:  # Linux's way to say that the other end was closed
            break
        if not piece:
            break
        found += piece
    os.close(ours)
    assert process.wait() == 0
    return re.sub(r"\x1b\[[0-9;]*m", "", found.decode("utf-8"))


def _words(text: str) -> list[str]:
    """Words and numbers, without bars."""
    return [word for word in re.split(r"[\s,]+", text) if word and not set(word) <= set("█▉▊▋▌▍▎▏")]


@pytest.mark.parametrize(("command", "printed"), list(_shown()))
def test_a_command_prints_what_the_readme_shows(command: str, printed: str) -> None:
    program = f'"{sys.executable}" -m mlxbert'
    if " | mlxbert" in command:
        run = command.replace("| mlxbert", f"| {program}")
        found = subprocess.run(["bash", "-c", run], capture_output=True, text=True, check=True).stdout
    else:
        found = _at_terminal(command.replace("mlxbert", program, 1))
    shown, real = _words(printed), _words(found)
    assert len(shown) == len(real), found
    for one, other in zip(shown, real, strict=True):
        number = re.fullmatch(r"(\d+\.\d+)(%?)", one)
        if number:
            assert abs(float(number[1]) - float(other.rstrip("%"))) < (0.3 if number[2] else 0.001)
        else:
            assert one == other


def test_there_are_commands_to_check() -> None:
    assert len(list(_shown())) >= 4


def test_the_two_commands_stand_there_verbatim() -> None:
    lines = [line for block in _blocks("sh") for line in block.split("\n")]
    assert MAIN in lines and TESTS in lines


def test_the_python_works() -> None:
    *_, code = _blocks("python")
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    score, nearest = done.stdout.splitlines()
    assert 0 < float(score) < 1
    assert nearest == "He has lunch."


def test_the_story_of_the_notes_comes_true(tmp_path: Path) -> None:
    (script,) = (block for block in _blocks("sh") if "notes.csv" in block)
    code, *_ = _blocks("python")
    program = f'"{sys.executable}" -m mlxbert'
    subprocess.run(["bash", "-ec", script.replace("\nmlxbert", f"\n{program}")], cwd=tmp_path, check=True)
    done = subprocess.run([sys.executable, "-c", code], cwd=tmp_path, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    (printed,) = _blocks("text")
    for line, shown in zip(done.stdout.splitlines(), printed.splitlines(), strict=True):
        score, text = shown.split("  ")
        assert line.endswith(f"  {text}")
        assert abs(float(line.split("  ")[0]) - float(score)) < 0.011


def test_every_command_stands_in_the_readme() -> None:
    names = {command.name or "" for command in app.registered_commands}
    names |= {f"{group.name} {command.name}" for group in app.registered_groups for command in _commands(group)}
    assert {"fill-mask", "models list"} <= names
    for name in names:
        assert f"| `mlxbert {name}" in README, name


def _commands(group: Any) -> list[Any]:
    found: list[Any] = group.typer_instance.registered_commands
    return found


@pytest.mark.parametrize("name", re.findall(r"\]\(([^):#]+)\)", README))
def test_links_lead_somewhere(name: str) -> None:
    assert (ROOT / name).exists()
