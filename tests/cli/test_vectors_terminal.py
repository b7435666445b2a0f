"""`embed` in a terminal: strips and the cosines of a few texts, a bar for a file, and no text steers it."""

import re
from pathlib import Path

import numpy as np
import pytest

import mlxbert
from mlxbert.machine.device import mx
from tests.cli.test_terminal import plain
from tests.helpers.program import TERMINALS, Terminal, call, terminal
from tests.helpers.st_folder import dense, pooling, save_st

TEXTS = ["the cat sat on the mat", "a dog", "paris , tokyo !"]


@pytest.fixture
def embed(unit_folder: Path) -> list[str]:
    return ["embed", "--model", str(unit_folder), "--dtype", "float32"]


def cosines(shown: str) -> list[list[str]]:
    """The numbers behind the heading of the matrix."""
    lines = plain(shown)
    rows = lines[lines.index("cosines") + 2 :]
    return [re.findall(r"-?\d\.\d\d", row) for row in rows if row]


@TERMINALS
def test_a_text_is_shown_with_its_size_its_norm_and_a_strip(
    show: Terminal, embed: list[str], unit: mlxbert.Model
) -> None:
    outcome, shown = show(*embed, "the cat", "--no-normalize")
    assert (outcome.status, outcome.out, outcome.err) == (0, "", "")
    first, strip, end = plain(shown)
    vector = mlxbert.embed(unit, ["the cat"], normalize=False)[0]
    assert first == f"the cat  24 values, norm {np.linalg.norm(vector):.3f}, 4 tokens"
    assert len(strip) == 24 and end == ""
    heights = ["▁▂▃▄▅▆▇█".index(mark) for mark in strip]
    assert sorted(heights) == [heights[place] for place in np.argsort(vector)]


def test_a_text_that_was_cut_says_so(embed: list[str]) -> None:
    outcome, shown = terminal(*embed, "cat " * 40)
    text, facts, *_ = plain(shown)
    assert len(text) == 100 and text.endswith("…") and facts == "24 values, norm 1.000, 32 tokens, truncated"
    assert outcome.err.count("\n") == 1 and "1 of 1" in outcome.err and "--overflow" in outcome.err


@pytest.mark.parametrize("given", [["--no-normalize"], ["--dimensions", "5"]], ids=" ".join)
def test_several_texts_are_compared(given: list[str], tiny: mlxbert.Model, tmp_path: Path) -> None:
    # Vectors of a random model all point one way: their mean is taken off.
    mean = mx.array(mlxbert.embed(tiny, TEXTS).mean(axis=0))
    folder = save_st(tmp_path / "model", pooling("mean"), dense(mx.eye(24), -mean))
    _, shown = terminal("embed", *TEXTS, *given, "--quiet", "--model", str(folder), "--dtype", "float32")
    options = {"dimensions": 5} if "5" in given else {"normalize": False}
    vectors = mlxbert.embed(mlxbert.load(folder, dtype="float32"), TEXTS, **options)
    vectors /= np.linalg.norm(vectors, axis=1, keepdims=True)
    expected = vectors @ vectors.T
    found = np.array(cosines(shown), dtype=float)
    assert found.shape == (3, 3) and (found.diagonal() == 1).all()
    assert np.abs(found - expected).max() < 0.00501
    assert np.ptp(expected) > 0.02  # numbers in another order would be noticed
    lines = plain(shown)
    for number, text in enumerate(TEXTS, 1):
        assert any(line.startswith(f"{text}  ") for line in lines)
        assert any(line.startswith(f"{number} {text}  ") for line in lines)


def test_one_text_and_many_texts_are_not_compared(embed: list[str]) -> None:
    assert "cosines" in terminal(*embed, *TEXTS[:2])[1]
    for texts in (TEXTS[:1], ["a dog"] * 21):
        assert "cosines" not in terminal(*embed, *texts)[1]


def test_a_file_is_shown_text_by_text_without_a_matrix(embed: list[str], tmp_path: Path) -> None:
    (tmp_path / "in.txt").write_text("".join(f"{text}\n" for text in TEXTS))
    outcome, shown = terminal(*embed, "--input", str(tmp_path / "in.txt"))
    assert [line.split("  ")[0] for line in plain(shown) if "norm" in line] == TEXTS
    assert "cosines" not in shown
    assert outcome.err.startswith("note: 3 texts, 18 tokens in ")


def test_lines_go_into_a_pipe_while_a_bar_is_shown(embed: list[str], tmp_path: Path) -> None:
    (tmp_path / "in.txt").write_text("the cat\n" * 40)
    arguments = [*embed, "--input", str(tmp_path / "in.txt")]
    outcome, shown = terminal(*arguments, on=["stderr"])
    assert outcome.out == call(*arguments).out and len(outcome.lines) == 40
    assert re.search(r"40 done, [\d,]+/s", shown) and "embedding" not in shown
