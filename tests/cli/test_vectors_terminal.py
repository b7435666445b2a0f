"""`embed` at a terminal: strips and the cosines of a few texts, a bar for a file, and no text steers it."""

import json
import re
from pathlib import Path

import numpy as np
import pytest

import mlxbert
from mlxbert.machine.device import mx
from tests.cli.test_terminal import STEERING, colours, plain, raw_controls
from tests.helpers.program import TERMINALS, Terminal, call, terminal
from tests.helpers.st_folder import dense, pooling, save_st

TEXTS = ["the cat sat on the mat", "a dog", "paris , tokyo !"]
STRIP = set("▁▂▃▄▅▆▇█")


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
    assert len(strip) == 24 and set(strip) <= STRIP and end == ""
    heights = ["▁▂▃▄▅▆▇█".index(mark) for mark in strip]
    order = np.argsort(vector)
    assert sorted(heights) == [heights[place] for place in order]
    assert np.abs(vector).argmax() in (np.argmax(heights), np.argmin(heights))


def test_a_text_that_was_cut_says_so(embed: list[str]) -> None:
    outcome, shown = terminal(*embed, "cat " * 40)
    assert plain(shown)[0].endswith("…  24 values, norm 1.000, 32 tokens, truncated")
    assert outcome.err.count("\n") == 1 and "1 of 1" in outcome.err and "--overflow" in outcome.err


@pytest.mark.parametrize("given", [[], ["--no-normalize"], ["--dimensions", "5"]], ids=" ".join)
def test_several_texts_are_compared(given: list[str], tiny: mlxbert.Model, tmp_path: Path) -> None:
    # Vectors of a random model all point one way: their mean is taken off.
    mean = mx.array(mlxbert.embed(tiny, TEXTS).mean(axis=0))
    folder = save_st(tmp_path / "model", pooling("mean"), dense(mx.eye(24), -mean))
    _, shown = terminal("embed", *TEXTS, *given, "--quiet", "--model", str(folder), "--dtype", "float32")
    options = {"dimensions": 5} if "5" in given else {"normalize": False} if given else {}
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


@pytest.mark.parametrize("width", ["100", "60"])
def test_cosines_for_which_there_is_no_room_stand_below(width: str, embed: list[str]) -> None:
    texts = [*TEXTS * 6, "東京 " * 30, "the cat " * 9]
    _, shown = terminal(*embed, *texts, COLUMNS=width)
    blocks = plain(shown.split("cosines")[1])
    headers = [line.split() for line in blocks if re.fullmatch(r"[\d ]+", line)]
    numbers = [number for header in headers for number in header]
    assert len(headers) > 1 and numbers == [str(number) for number in range(1, 21)]
    rows = [found for line in blocks if (found := re.findall(r"-?\d\.\d\d", line))]
    assert [len(row) for row in rows] == [len(header) for header in headers for _ in texts]
    assert max(map(len, blocks)) <= int(width)


def test_no_color_removes_the_colours_and_nothing_else(embed: list[str]) -> None:
    for arguments in ([*embed, *TEXTS], ["similarity", *embed[1:], *TEXTS]):
        _, coloured = terminal(*arguments)
        _, uncoloured = terminal(*arguments, NO_COLOR="1")
        assert colours(coloured) and not colours(uncoloured)
        assert plain(uncoloured) == plain(coloured)


def test_json_is_printed_at_a_terminal_when_asked_for(embed: list[str]) -> None:
    for arguments in ([*embed, *TEXTS], ["similarity", *embed[1:], *TEXTS]):
        _, shown = terminal(*arguments, "--json")
        assert [json.loads(line) for line in shown.split("\n")[:-1]] == call(*arguments).lines
        assert "\x1b" not in shown


def test_a_file_is_shown_text_by_text_without_a_matrix(embed: list[str], tmp_path: Path) -> None:
    (tmp_path / "in.txt").write_text("".join(f"{text}\n" for text in TEXTS))
    outcome, shown = terminal(*embed, "--input", str(tmp_path / "in.txt"))
    assert [line.split("  ")[0] for line in plain(shown) if "norm" in line] == TEXTS
    assert "cosines" not in shown
    assert outcome.err.startswith("note: 3 texts, 18 tokens in ")


@TERMINALS
@pytest.mark.parametrize("ending", [".npy", ".jsonl"])
def test_a_file_shows_a_bar_on_stderr_when_that_is_a_terminal(
    show: Terminal, ending: str, embed: list[str], tmp_path: Path
) -> None:
    (tmp_path / "in.txt").write_text("the cat\n" * 600)
    arguments = [*embed, "--input", str(tmp_path / "in.txt"), "--output", str(tmp_path / f"x{ending}")]
    outcome, shown = show(*arguments, on=["stderr"])
    assert (outcome.status, outcome.out) == (0, "")
    assert re.search(r"600 done, [\d,]+/s", shown) and "━" in shown
    assert "600 texts, 2,400 tokens in " in shown
    piped, quiet = show(*arguments, "--overwrite", "--quiet", on=["stderr"])
    assert (piped.status, quiet) == (0, "")
    plainly = call(*arguments, "--overwrite")
    assert "done" not in plainly.err and "\x1b" not in plainly.err


def test_lines_go_into_a_pipe_while_a_bar_is_shown(embed: list[str], tmp_path: Path) -> None:
    (tmp_path / "in.txt").write_text("the cat\n" * 40)
    arguments = [*embed, "--input", str(tmp_path / "in.txt")]
    outcome, shown = terminal(*arguments, on=["stderr"])
    assert outcome.out == call(*arguments).out and len(outcome.lines) == 40
    assert re.search(r"40 done, [\d,]+/s", shown) and "embedding" not in shown


@pytest.mark.parametrize(
    "given",
    [
        [STEERING],
        [STEERING, f"a\nb\r{STEERING}"],
        [STEERING, "--json"],
        ["the", "--prompt", STEERING],
        ["the", "--prompt-name", STEERING],
        ["the", "--pooling", STEERING],
        ["the", "--output", f"{STEERING}.csv"],
        ["--input", STEERING],
        ["cat " * 40, STEERING, "--overflow", "error"],
    ],
    ids=range(9),
)
def test_control_characters_never_reach_the_terminal(given: list[str], embed: list[str]) -> None:
    _, shown = terminal(*embed, *given, on=["stdout", "stderr"])
    assert shown
    assert raw_controls(shown) == set()


def test_brackets_and_lines_of_a_text_are_shown_as_they_are(embed: list[str]) -> None:
    _, shown = terminal(*embed, "[bold]the[/bold]\n[/x] cat", "[link=x]a")
    lines = plain(shown)
    assert lines[0].startswith("[bold]the[/bold] [/x] cat  24 values")
    assert any(line.startswith("1 [bold]the[/bold] [/x] cat  ") for line in lines)
    assert any(line.startswith("2 [link=x]a  ") for line in lines)


@pytest.mark.parametrize("width", ["40", "10", "1"])
def test_a_narrow_terminal_is_no_error(width: str, embed: list[str]) -> None:
    for arguments in ([*embed, *TEXTS], ["similarity", *embed[1:], "--prompt", "", *TEXTS]):
        outcome, shown = terminal(*arguments, COLUMNS=width)
        assert (outcome.status, outcome.err) == (0, "")
        assert max(map(len, plain(shown))) <= int(width)
