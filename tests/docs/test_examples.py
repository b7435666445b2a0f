"""The examples of the documentation, run: commands print what is shown, Python prints what is shown."""

import csv
import json
import os
import re
import runpy
import shutil
import subprocess
import sys
from itertools import zip_longest
from pathlib import Path
from typing import Any

import pytest

from tests.docs.pages import DOCS, ROOT, blocks, installs
from tests.helpers.screen import Screen

pytestmark = pytest.mark.slow

ELLIPSIS = "…"  # on a line of its own: lines left out
RUN = ("console", "sh", "python")
PAGES = [page for page in DOCS if any(language in RUN and not installs(text) for language, text in blocks(page))]


@pytest.mark.parametrize("page", [
    page if page in ("README.md", "docs/tutorial.md") else pytest.param(page, marks=pytest.mark.weekly)
    for page in PAGES
])  # fmt: skip
def test_the_examples_of_a_page_work_one_after_the_other(page: str, tmp_path: Path) -> None:
    shutil.copytree(ROOT / "examples", tmp_path / "examples")  # which a reader has in the clone
    printed, replies = None, []
    for language, text in blocks(page):
        if language == "console":
            for part in re.split(r"^\$ ", text, flags=re.MULTILINE)[1:]:
                command, _, shown = part.partition("\n")
                check(shown, at_terminal(command, tmp_path))
        elif language == "sh" and not installs(text):
            replies.append(run("bash", "-ec", text, folder=tmp_path))
        elif language == "python":
            printed = run(sys.executable, "-c", text, folder=tmp_path)
        elif language == "text":
            assert printed is not None
            check(text, printed)
            printed = None
    assert not printed, f"{page} does not show what its Python prints: {printed}"
    if page == "docs/tutorial.md":
        check_classifier(tmp_path, reply=replies[-1])


def check_classifier(folder: Path, *, reply: str) -> None:
    """The classifier of the tutorial is better than chance, 0.25; its exact score depends on the machine."""
    (result,) = json.loads(reply)["results"]
    assert [label["label"] for label in result["labels"]] == ["sync"]
    labels = [row["top_label"] for row in csv.DictReader((folder / "labelled.csv").open(encoding="utf-8", newline=""))]
    assert len(labels) == 60 and set(labels) == {"login", "sync", "billing", "printing"}
    options = ("--data", "test.csv", "--model", "ticket-model", "--json", "--quiet")
    measured = json.loads(run("mlxbert", "evaluate", "classify", *options, folder=folder))
    assert measured["examples"] == 16 and measured["metrics"]["accuracy"] >= 0.6


def environment(folder: Path) -> dict[str, str]:
    """One in which `mlxbert` is the program under test, in a terminal of 100 columns without colours."""
    program = folder / ".bin" / "mlxbert"
    program.parent.mkdir(exist_ok=True)
    program.write_text(f'#!/bin/sh\nexec "{sys.executable}" -m mlxbert "$@"\n')
    program.chmod(0o755)
    path = f"{program.parent}{os.pathsep}{os.environ['PATH']}"
    own = {"PATH": path, "MLXBERT_DATA": str(folder / ".data")}
    return {**os.environ, **own, "NO_COLOR": "1", "COLUMNS": "100", "TERM": "xterm"}


def run(*command: str, folder: Path) -> str:
    how: Any = {"cwd": folder, "env": environment(folder), "stdin": subprocess.DEVNULL}
    done = subprocess.run(command, capture_output=True, text=True, **how)
    assert done.returncode == 0, done.stderr
    return done.stdout


def at_terminal(command: str, folder: Path) -> str:
    """What a command prints in a terminal."""
    with Screen() as screen:
        how: Any = {"cwd": folder, "env": environment(folder), "stdin": screen.inner, "stdout": screen.inner}
        subprocess.run(["bash", "-c", command], check=True, **how)
        found = screen.shown()
    return re.sub(r"\x1b\[[0-9;]*m|\x1b\]8;.*?\x1b\\", "", found.decode("utf-8"))


def check(shown: str, printed: str) -> None:
    """Compares line by line: words are equal, numbers close."""
    wanted, found = ([line for line in text.splitlines() if line.strip()] for text in (shown, printed))
    assert agree(wanted, found), f"shown:\n{shown}\nprinted:\n{printed}"


def agree(shown: list[str], printed: list[str]) -> bool:
    if not shown:
        return not printed
    if shown[0] == ELLIPSIS:
        return any(agree(shown[1:], printed[start:]) for start in range(len(printed) + 1))
    pairs = [*zip_longest(words(shown[0]), words(printed[0] if printed else ""), fillvalue="")]
    return bool(printed) and all(close(*pair) for pair in pairs) and agree(shown[1:], printed[1:])


def words(line: str) -> list[str]:
    """Words and numbers, without the marks of JSON and without bars."""
    return [word for word in re.split(r"[\s,{}\[\]()]+", line) if word and not set(word) <= set("█▉▊▋▌▍▎▏")]


def close(shown: str, printed: str) -> bool:
    """Equal, or numbers as near as other hardware brings them: 0.3 percentage points, or a unit of the last digit."""
    number = re.fullmatch(r"-?\d+\.(\d+)(%?)", shown)
    other = re.fullmatch(r"-?\d+\.\d+(?:e-\d+)?(%?)", printed)
    if number is None or other is None or number[2] != other[1]:
        return shown == printed
    allowed = 0.3 if number[2] else max(0.001, 1.1 * 10 ** -len(number[1]))
    return abs(float(shown.rstrip("%")) - float(printed.rstrip("%"))) < allowed


def test_the_manual_is_the_one_that_its_script_writes() -> None:
    script = runpy.run_path(str(ROOT / "scripts/make_manual.py"))
    assert (ROOT / "examples/data/manual.pdf").read_bytes() == script["manual"]()


def test_what_differs_is_noticed_and_pages_have_examples() -> None:
    assert {"README.md", "docs/command-line.md", "docs/embeddings.md", "docs/python.md"} <= {*PAGES}
    assert sum(language == "console" for page in PAGES for language, _ in blocks(page)) >= 6
    check("a 0.585  ██\n…\nc 1.0%", "a 0.5853 █\nb\nb\nc 1.2%\n")
    for shown, printed in (("a", "b"), ("a 0.585", "a 0.590"), ("a", "a\nb"), ("…\nc", "a\nb"), ("1.0%", "1.5%")):
        with pytest.raises(AssertionError):
            check(shown, printed)
