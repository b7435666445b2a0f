"""`mlxbert attention`: JSON, tables that fit, and files."""

import base64
import json
import re
import subprocess
import zlib
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from mlxbert.explore.pages.attention import write
from mlxbert.explore.results import Attention
from mlxbert.results.text_results import Token
from tests.helpers.browser import chromium
from tests.helpers.program import call, terminal

pytestmark = pytest.mark.usefixtures("loaded_once")
TEXT = "the cat sat on the mat ."


def test_a_pipe_has_all_weights(tiny_folder: Path) -> None:
    outcome = call("attention", TEXT, "--pair", "paris", "--model", str(tiny_folder), "--layer", "-1", "--head", "0")
    (found,) = outcome.lines
    assert found["layers"] == [1] and found["heads"] == [0] and found["pair"] == "paris"
    assert np.abs(np.array(found["attention"]).sum(-1) - 1).max() < 1e-5
    assert len(found["tokens"]) == len(found["attention"][0][0])


@pytest.mark.parametrize("width", ["40", "120"])
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


def test_files_that_cannot_be_written_are_refused(tiny_folder: Path, tmp_path: Path) -> None:
    call("attention", TEXT, "--model", str(tiny_folder), "--output", str(tmp_path / "out.csv")).fails(2, "--output")
    call("attention", TEXT, "--model", str(tiny_folder), "--layer", "7").fails(2, "--layer is 7", "a number from")


def unpacked(path: Path) -> tuple[dict[str, Any], Any]:
    """The data of a page, and its weights: the mean first, then those of each head."""
    match = re.search(r"^const data = (.*);$", path.read_text(), re.MULTILINE)
    assert match is not None
    data: dict[str, Any] = json.loads(match[1])
    levels = np.frombuffer(zlib.decompress(base64.b64decode(data["weights"])), np.uint8)
    return data, (levels.reshape(-1, len(data["tokens"]), len(data["tokens"])) / 255.0) ** 2


def weighed(length: int, layers: int, heads: int) -> Attention:
    """Random weights as those of a trained model: most are small, some are large."""
    rng = np.random.default_rng(0)
    powers = np.exp(2.5 * rng.standard_normal((layers, heads, length, length), np.float32))
    tokens = tuple(Token(f"t{number}", number, 0, number, number, number + 1) for number in range(length))
    names = tuple(range(layers)), tuple(range(heads))
    return Attention("text", None, tokens, *names, powers / powers.sum(-1, keepdims=True))


def test_a_page_has_the_weights(tmp_path: Path) -> None:
    result = weighed(24, 2, 3)
    write(result, tmp_path / "page.html", "model")
    data, levels = unpacked(tmp_path / "page.html")
    assert data["least"] == 0
    assert np.abs(levels[0] - result.mean).max() < 0.005
    assert np.abs(levels[1:] - result.weights.reshape(6, 24, 24)).max() < 0.005


@pytest.mark.slow
def test_a_page_of_512_tokens_of_a_large_model_has_less_than_3_mb(tmp_path: Path) -> None:
    result = weighed(512, 12, 12)
    write(result, path := tmp_path / "page.html", "model")
    assert path.stat().st_size <= 3_000_000
    data, levels = unpacked(path)
    assert 0 < data["least"] <= 0.05 and np.abs(levels[0] - result.mean).max() < 0.005
    weights = result.weights.reshape(-1, 512, 512)
    kept = weights >= data["least"]
    assert kept.any(-1).mean() > 0.9 and (levels[1:][~kept] == 0).all()
    assert np.abs(levels[1:][kept] - weights[kept]).max() < 0.005


def test_a_rollout_in_a_pipe_a_table_and_a_page(tiny_folder: Path, tmp_path: Path) -> None:
    command = ["attention", TEXT, "--model", str(tiny_folder), "--rollout"]
    (found,) = call(*command).lines
    assert found["rollout"] is True and np.array(found["attention"]).shape[:2] == (2, 1)
    _, shown = terminal(*command, COLUMNS="120")
    assert "cat" in shown and "rollout" in shown
    assert call(*command, "--output", str(tmp_path / "out.html")).status == 0
    data, levels = unpacked(tmp_path / "out.html")
    assert data["special"] == [token in ("[CLS]", "[SEP]") for token in data["tokens"]] and any(data["special"])
    assert data["heads"] == [] and np.abs(levels[1:] - np.array(found["attention"])[:, 0]).max() < 0.005
    call(*command, "--head", "0").fails(2, "--head")


_CLICKS = """<script>setTimeout(() => {
  const squares = document.querySelectorAll("#heads td"), left = document.querySelectorAll(".left");
  const lines = () => document.querySelectorAll("line").length, found = [squares.length, left.length, lines()];
  squares[4].click(); left[2].click(); left[2].onmouseleave();
  found.push(document.getElementById("said").textContent, lines(), document.querySelectorAll(".left.on").length);
  left[2].click(); left[2].onmouseleave(); squares[4].onmouseleave(); document.getElementById("mean").click();
  document.getElementById("hide").click();
  found.push(lines(), [...left].filter((one) => getComputedStyle(one).visibility === "hidden").length);
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
    squares, tokens, lines, said, fewer, kept, of_words, hidden = json.loads(found[1])
    assert (squares, tokens, said, kept) == (6, 7, "Layer 1, head 1", 1) and 0 < fewer <= tokens < lines
    assert hidden == 2 and 0 < of_words <= (tokens - 2) ** 2 < tokens**2
