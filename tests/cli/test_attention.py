"""`mlxbert attention`: JSON, tables that fit, and files."""

import json
import re
import subprocess
from pathlib import Path

import numpy as np
import pytest

from tests.helpers.browser import chromium
from tests.helpers.program import call, terminal

TEXT = "the cat sat on the mat ."


def test_a_pipe_has_all_weights(tiny_folder: Path) -> None:
    outcome = call("attention", TEXT, "--pair", "paris", "--model", str(tiny_folder), "--layer", "-1", "--head", "0")
    (found,) = outcome.lines
    assert found["layers"] == [1] and found["heads"] == [0] and found["pair"] == "paris"
    assert np.abs(np.array(found["attention"]).sum(-1) - 1).max() < 1e-5
    assert len(found["tokens"]) == len(found["attention"][0][0])


@pytest.mark.parametrize("width", ["40", "80", "120"])
def test_a_table_fits_and_names_tokens(tiny_folder: Path, width: str) -> None:
    outcome, shown = terminal("attention", TEXT, "--model", str(tiny_folder), COLUMNS=width)
    assert outcome.status == 0 and "cat" in shown
    lines = re.sub(r"\x1b\[[0-9;]*m", "", shown).splitlines()
    assert max(map(len, lines)) <= int(width)
    assert ("→" in shown) == (width == "40")  # too narrow for a row of all tokens


@pytest.mark.parametrize("ending", ["html", "json", "npz"])
def test_files(tiny_folder: Path, tmp_path: Path, ending: str) -> None:
    path = tmp_path / f"out.{ending}"
    command = ["attention", "the </script> <!-- cat", "--model", str(tiny_folder), "--output", str(path)]
    outcome = call(*command)
    assert (outcome.status, outcome.out) == (0, "") and sorted(tmp_path.iterdir()) == [path]
    if ending == "npz":
        assert np.load(path)["attention"].shape[:2] == (2, 3)
    elif ending == "json":
        assert json.loads(path.read_text())["heads"] == [0, 1, 2]
    else:
        page = path.read_text()
        assert not re.search(r"(src|href)=|https?://(?!www\.w3\.org)|@import", page) and "default-src 'none'" in page
        assert page.count("</script>") == 1 and "<!--" not in page
        assert '"tokens": ["[CLS]"' in page
    call(*command).fails(2, str(path), "--overwrite")
    assert call(*command, "--overwrite").status == 0


@pytest.mark.parametrize("name", ["out.csv", "nowhere/out.html", "."])
def test_files_that_cannot_be_written_are_refused(tiny_folder: Path, tmp_path: Path, name: str) -> None:
    call("attention", TEXT, "--model", str(tiny_folder), "--output", str(tmp_path / name)).fails(2, "--output")
    call("attention", TEXT, "--model", str(tiny_folder), "--layer", "7").fails(2, "--layer is 7", "a number from")


_CLICKS = """<script>setTimeout(() => {
  const squares = document.querySelectorAll("#heads td"), left = document.querySelectorAll(".left");
  const lines = () => document.querySelectorAll("line").length, found = [squares.length, left.length, lines()];
  squares[4].click(); left[2].click(); left[2].onmouseleave();
  found.push(document.getElementById("said").textContent, lines(), document.querySelectorAll(".left.on").length);
  document.title = "found " + JSON.stringify(found);
}, 500)</script></body>"""


@pytest.mark.slow
def test_a_head_and_a_token_are_chosen_by_clicking(tiny_folder: Path, tmp_path: Path) -> None:
    browser = chromium()
    if browser is None:
        pytest.skip("needs Chromium or Chrome")
    path = tmp_path / "out.html"
    assert call("attention", "the <script> cat", "--model", str(tiny_folder), "--output", str(path)).status == 0
    path.write_text(path.read_text().replace("</body>", _CLICKS))
    own = ("--headless", "--no-sandbox", "--no-first-run", f"--user-data-dir={tmp_path / 'browser'}")
    command = [browser, *own, "--virtual-time-budget=4000", "--dump-dom", path.as_uri()]
    shown = subprocess.run(command, capture_output=True, text=True, timeout=60).stdout
    found = re.search("<title>found (.*)</title>", shown)
    assert found, shown
    squares, tokens, lines, said, fewer, kept = json.loads(found[1])
    assert (squares, tokens, said, kept) == (6, 7, "Layer 1, head 1", 1) and 0 < fewer <= tokens < lines
