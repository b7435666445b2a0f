"""`embed`: its lines, its notes, the vectors of words, and how it looks in a terminal."""

import json
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import mlxbert
from mlxbert.machine.device import mx
from tests.cli.test_terminal import plain
from tests.helpers.cases import together
from tests.helpers.program import TERMINALS, Outcome, Terminal, call, terminal
from tests.helpers.st_folder import dense, pooling, save_st

pytestmark = pytest.mark.usefixtures("loaded_once")

Run = Callable[..., Outcome]
TEXTS = ["the cat sat on the mat", "a dog", "", "paris , tokyo !", "cat " * 40]


@pytest.fixture
def given(unit_folder: Path) -> list[str]:
    """The command with a model of unit vectors, prompts, and room for 32 tokens."""
    return ["embed", "--model", str(unit_folder), "--dtype", "float32"]


@pytest.fixture
def embed(given: list[str]) -> Run:
    return lambda *arguments, **named: call(*given, *arguments, **named)


def digits(number: str) -> int:
    """How many digits a number is written with that are not zeros around others."""
    return len(number.split("e")[0].lstrip("-0.").replace(".", "").rstrip("0"))


def test_a_line_is_a_text_its_vector_its_tokens_and_whether_it_was_cut(
    embed: Run, unit: mlxbert.Model, unit_folder: Path
) -> None:
    outcome = embed(*TEXTS)
    assert [list(line) for line in outcome.lines] == [["text", "embedding", "tokens", "truncated"]] * len(TEXTS)
    assert [line["text"] for line in outcome.lines] == TEXTS
    assert [line["tokens"] for line in outcome.lines] == [8, 4, 2, 6, 32]
    assert [line["truncated"] for line in outcome.lines] == [False] * 4 + [True]
    assert np.array_equal(
        np.array([line["embedding"] for line in outcome.lines], np.float32), mlxbert.embed(unit, TEXTS)
    )
    found = call("embed", *TEXTS, "--model", str(unit_folder), "--dtype", "bfloat16").lines
    half = mlxbert.embed(mlxbert.load(unit_folder, dtype="bfloat16"), TEXTS)
    assert np.array_equal(np.array([line["embedding"] for line in found], np.float32), half)


def test_numbers_are_the_shortest_that_are_these_float32_values(embed: Run, unit: mlxbert.Model) -> None:
    line = json.loads(embed("the cat", "--no-normalize").out, parse_float=str)
    expected = mlxbert.embed(unit, ["the cat"], normalize=False)[0]
    assert len(line["embedding"]) == len(expected) == 24
    for written, value in zip(line["embedding"], expected, strict=True):
        assert np.float32(written) == value and digits(written) == digits(str(value))


def notes(outcome: Outcome) -> list[str]:
    """What was said, which is nothing but notes."""
    assert outcome.status == 0, outcome
    said = outcome.err.splitlines()
    assert all(line.startswith("note: ") for line in said), outcome
    return [line.removeprefix("note: ") for line in said]


def test_what_nobody_named_and_vectors_that_are_no_longer_unit_vectors_are_noted(tiny_folder: Path, embed: Run) -> None:
    plain = ["embed", "the cat", "--model", str(tiny_folder)]
    assert notes(call(*plain)) == [f"{tiny_folder} has no modules.json, so mean pooling is assumed"]
    said = "shortened vectors no longer have length 1; --normalize scales them"
    assert notes(embed("the cat", "--dimensions", "5")) == [said]
    for outcome in (
        call(*plain, "--pooling", "mean"),
        call(*plain, "--pooling", "cls", "--dimensions", "5"),
        embed("the cat"),
        embed("the cat", "--dimensions", "5", "--normalize"),
        embed("the cat", "--dimensions", "5", "--no-normalize"),  # nobody expects it
    ):
        assert notes(outcome) == []


def test_a_file_ends_with_a_summary_and_arguments_do_not(embed: Run, tmp_path: Path) -> None:
    (tmp_path / "in.txt").write_text("the cat\n" + "the cat sat on\n" * 3)
    given = ["--input", str(tmp_path / "in.txt")]
    for target in ([], ["--output", str(tmp_path / "x.npy")]):
        (said,) = notes(embed(*given, *target))
        head, rates = said.split(" s: ")
        assert head.startswith("4 texts, 22 tokens in ")
        texts, tokens, padding = rates.split(", ")
        assert texts.endswith(" texts/s") and tokens.endswith(" tokens/s")
        assert padding == f"{2 / 24:.1%} padding"
    assert notes(embed("the cat")) == []
    (tmp_path / "bad.jsonl").write_text('{"text": "the cat"}\n[]\n{"text": "the dog"}\n')
    said = embed("--input", str(tmp_path / "bad.jsonl")).err
    assert "note: 2 texts, " in said and "1 of 3 inputs failed" in said


def test_a_file_of_which_all_inputs_failed_is_not_written(embed: Run, tmp_path: Path) -> None:
    (tmp_path / "in.jsonl").write_text('{"body": "the cat"}\n' * 30)
    outcome = embed("--input", str(tmp_path / "in.jsonl"), "--output", str(tmp_path / "x.npy"))
    outcome.fails(1, "30", "failed", f"{tmp_path}/x.npy", "hint: ", "--field")
    assert outcome.err.count("error: input ") == 20 and "note: more inputs fail" in outcome.err
    assert [path.name for path in tmp_path.iterdir()] == ["in.jsonl"]


def test_a_single_bad_text_is_the_error(embed: Run) -> None:
    said = "the text has 42 tokens, but the model takes at most 32"
    outcome = embed("cat " * 40, "--overflow", "error")
    assert (outcome.status, outcome.out, outcome.err) == (1, "", f"error: {said}\n")
    two = embed("cat " * 40, "a dog", "--overflow", "error")
    two.fails(1, "1 of 2 inputs failed")
    assert two.lines[0] == {"index": 0, "error": said} and two.lines[1]["text"] == "a dog"


SENTENCES = ["the cat sat on the mat .", "paris ! the dog", ""]  # whose words have vectors


def words(folder: Path) -> list[str]:
    return ["embed", "--words", "--layer", "1", "--model", str(folder), "--dtype", "float32"]


def test_a_parquet_has_a_row_per_word(tiny_folder: Path, tmp_path: Path) -> None:
    parquet = pytest.importorskip("pyarrow.parquet")
    model = mlxbert.load(tiny_folder, dtype="float32")
    records = [*({"text": text, "id": f"n{number}"} for number, text in enumerate(SENTENCES)), {"id": "bad"}]
    source, path = tmp_path / "in.jsonl", tmp_path / "out.parquet"
    source.write_text("".join(json.dumps(record) + "\n" for record in records))
    call(*words(tiny_folder), "--input", str(source), "--keep", "id", "--output", str(path)).fails(1, "1 of 4")
    rows = parquet.read_table(path).to_pylist()
    found = [mlxbert.embed_words(model, text, layer=1).words for text in SENTENCES]
    spelled = [(f"n{number}", word) for number, some in enumerate(found) for word in some]
    assert [row["id"] for row in rows] == [*(name for name, _ in spelled), "bad"] and rows[-1]["error"]
    assert parquet.ParquetFile(path).schema_arrow.metadata[b"model"] == str(tiny_folder).encode()
    for row, (_, word) in zip(rows, spelled, strict=False):
        assert (row["word"], row["start"], row["end"], row["tokens"]) == (word.word, word.start, word.end, word.tokens)
        assert row["error"] is None and np.abs(np.float32(row["embedding"]) - word.embedding).max() <= 1e-5
    assert call(*words(tiny_folder), "", "  ", "--overwrite", "--output", str(path)).status == 0
    assert parquet.read_table(path).num_rows == 0


@together("width", ["20", "80", "120"])
def test_a_terminal_shows_words_and_compares_those_that_occur_again(tiny_folder: Path, width: str) -> None:
    outcome, shown = terminal(*words(tiny_folder), "the cat sat on mat", "a Cat !", COLUMNS=width)
    lines = plain(shown)
    assert outcome.status == 0 and max(map(len, lines)) <= int(width)
    if width != "20":
        assert sum("cat (1)" in line for line in lines) == sum("Cat (2)" in line for line in lines) == 1
        assert "1.00" in shown and "mat (1)" not in shown


THREE = ["the cat sat on the mat", "a dog", "paris , tokyo !"]


@TERMINALS
def test_a_text_is_shown_with_its_size_its_norm_and_a_strip(
    show: Terminal, given: list[str], unit: mlxbert.Model
) -> None:
    outcome, shown = show(*given, "the cat", "--no-normalize")
    assert (outcome.status, outcome.out, outcome.err) == (0, "", "")
    first, strip, end = plain(shown)
    vector = mlxbert.embed(unit, ["the cat"], normalize=False)[0]
    assert first == f"the cat  24 values, norm {np.linalg.norm(vector):.3f}, 4 tokens"
    assert len(strip) == 24 and end == ""
    heights = ["▁▂▃▄▅▆▇█".index(mark) for mark in strip]
    assert sorted(heights) == [heights[place] for place in np.argsort(vector)]


def test_a_text_that_was_cut_says_so(given: list[str]) -> None:
    outcome, shown = terminal(*given, "cat " * 40)
    text, facts, *_ = plain(shown)
    assert len(text) == 100 and text.endswith("…") and facts == "24 values, norm 1.000, 32 tokens, truncated"
    assert outcome.err.count("\n") == 1 and "1 of 1" in outcome.err and "--overflow" in outcome.err


@pytest.mark.parametrize("options", [{"normalize": False}, {"dimensions": 5}], ids=str)
def test_several_texts_are_compared(options: dict[str, Any], tiny: mlxbert.Model, tmp_path: Path) -> None:
    # Vectors of a random model all point one way: their mean is taken off.
    mean = mx.array(mlxbert.embed(tiny, THREE).mean(axis=0))
    folder = save_st(tmp_path / "model", pooling("mean"), dense(mx.eye(24), -mean))
    typed = ["--dimensions", "5"] if "dimensions" in options else ["--no-normalize"]
    _, shown = terminal("embed", *THREE, *typed, "--quiet", "--model", str(folder), "--dtype", "float32")
    vectors = mlxbert.embed(mlxbert.load(folder, dtype="float32"), THREE, **options)
    vectors /= np.linalg.norm(vectors, axis=1, keepdims=True)
    expected = vectors @ vectors.T
    lines = plain(shown)
    cosines = [re.findall(r"-?\d\.\d\d", row) for row in lines[lines.index("cosines") + 2 :] if row]
    found = np.array(cosines, dtype=float)
    assert found.shape == (3, 3) and (found.diagonal() == 1).all()
    assert np.abs(found - expected).max() < 0.00501
    assert np.ptp(expected) > 0.02  # numbers in another order would be noticed
    for number, text in enumerate(THREE, 1):
        assert any(line.startswith(f"{text}  ") for line in lines)
        assert any(line.startswith(f"{number} {text}  ") for line in lines)


def test_one_text_many_texts_and_a_file_are_not_compared(given: list[str], tmp_path: Path) -> None:
    assert "cosines" in terminal(*given, *THREE[:2])[1]
    for texts in (THREE[:1], ["a dog"] * 21):
        assert "cosines" not in terminal(*given, *texts)[1]
    (tmp_path / "in.txt").write_text("".join(f"{text}\n" for text in THREE))
    outcome, shown = terminal(*given, "--input", str(tmp_path / "in.txt"))
    assert [line.split("  ")[0] for line in plain(shown) if "norm" in line] == THREE
    assert "cosines" not in shown and outcome.err.startswith("note: 3 texts, 18 tokens in ")


def test_lines_go_into_a_pipe_while_a_bar_is_shown(given: list[str], tmp_path: Path) -> None:
    (tmp_path / "in.txt").write_text("the cat\n" * 40)
    arguments = [*given, "--input", str(tmp_path / "in.txt")]
    outcome, shown = terminal(*arguments, on=["stderr"])
    assert outcome.out == call(*arguments).out and len(outcome.lines) == 40
    assert re.search(r"40 done, [\d,]+/s", shown) and "embedding" not in shown
