"""`embed`: its lines, what it cannot use, what each option does to its vectors, and the vectors of words."""

import json
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import mlxbert
from mlxbert.results.embed import Words
from tests.helpers.cases import together
from tests.helpers.program import Outcome, call, terminal

pytestmark = pytest.mark.usefixtures("loaded_once")

TEXTS = ["the cat sat on the mat", "a dog", "", "paris , tokyo !", "cat " * 40]


@pytest.fixture
def embed(unit_folder: Path) -> Callable[..., Outcome]:
    """The command with a model of unit vectors, prompts, and room for 32 tokens."""
    return lambda *arguments, **named: call(
        "embed", "--model", str(unit_folder), "--dtype", "float32", *arguments, **named
    )


def vectors(outcome: Outcome) -> np.ndarray[Any, Any]:
    """The vectors of all lines."""
    assert outcome.status == 0, outcome
    return np.array([line["embedding"] for line in outcome.lines], dtype=np.float32)


def digits(number: str) -> int:
    """How many digits a number is written with that are not zeros around others."""
    return len(number.split("e")[0].lstrip("-0.").replace(".", "").rstrip("0"))


def test_a_line_is_a_text_its_vector_its_tokens_and_whether_it_was_cut(
    embed: Callable[..., Outcome], unit: mlxbert.Model
) -> None:
    outcome = embed(*TEXTS)
    assert [list(line) for line in outcome.lines] == [["text", "embedding", "tokens", "truncated"]] * len(TEXTS)
    assert [line["text"] for line in outcome.lines] == TEXTS
    assert [line["tokens"] for line in outcome.lines] == [8, 4, 2, 6, 32]
    assert [line["truncated"] for line in outcome.lines] == [False] * 4 + [True]
    assert np.array_equal(vectors(outcome), mlxbert.embed(unit, TEXTS))


def test_numbers_are_the_shortest_that_are_these_float32_values(
    embed: Callable[..., Outcome], unit: mlxbert.Model
) -> None:
    line = json.loads(embed("the cat", "--no-normalize").out, parse_float=str)
    expected = mlxbert.embed(unit, ["the cat"], normalize=False)[0]
    assert len(line["embedding"]) == len(expected) == 24
    for written, value in zip(line["embedding"], expected, strict=True):
        assert np.float32(written) == value
        shorter = digits(written) - 2  # digits behind the first one, one less than there are
        assert np.float32(f"{value:.{shorter}e}") != value


def test_a_dtype_is_computed_in(unit_folder: Path, unit: mlxbert.Model) -> None:
    found = vectors(call("embed", *TEXTS, "--model", str(unit_folder), "--dtype", "bfloat16"))
    assert np.array_equal(found, mlxbert.embed(mlxbert.load(unit_folder, dtype="bfloat16"), TEXTS))
    exact = mlxbert.embed(unit, TEXTS)
    assert not np.array_equal(found, exact) and np.allclose(found, exact, atol=0.05)


def notes(outcome: Outcome) -> list[str]:
    """What was said, which is nothing but notes."""
    assert outcome.status == 0, outcome
    said = outcome.err.splitlines()
    assert all(line.startswith("note: ") for line in said), outcome
    return [line.removeprefix("note: ") for line in said]


def test_a_pooling_that_nobody_named_is_said_to_be_assumed(tiny_folder: Path, embed: Callable[..., Outcome]) -> None:
    plain = ["embed", "the cat", "--model", str(tiny_folder)]
    assert notes(call(*plain)) == [f"{tiny_folder} has no modules.json, so mean pooling is assumed"]
    assert notes(call(*plain, "--pooling", "mean")) == []
    assert notes(embed("the cat")) == []


def test_cut_vectors_of_a_model_of_unit_vectors_are_noted(embed: Callable[..., Outcome], tiny_folder: Path) -> None:
    said = "shortened vectors no longer have length 1; --normalize scales them"
    assert notes(embed("the cat", "--dimensions", "5")) == [said]
    assert notes(embed("the cat", "--dimensions", "5", "--normalize")) == []
    assert notes(embed("the cat", "--dimensions", "5", "--no-normalize")) == []  # nobody expects it
    assert notes(call("embed", "the", "-m", str(tiny_folder), "--pooling", "cls", "--dimensions", "5")) == []


def test_a_file_ends_with_a_summary_and_arguments_do_not(embed: Callable[..., Outcome], tmp_path: Path) -> None:
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


def test_a_file_of_which_all_inputs_failed_is_not_written(embed: Callable[..., Outcome], tmp_path: Path) -> None:
    (tmp_path / "in.jsonl").write_text('{"body": "the cat"}\n' * 30)
    outcome = embed("--input", str(tmp_path / "in.jsonl"), "--output", str(tmp_path / "x.npy"))
    outcome.fails(1, "30", "failed", f"{tmp_path}/x.npy", "hint: ", "--field")
    assert outcome.err.count("error: input ") == 20 and "note: more inputs fail" in outcome.err
    assert [path.name for path in tmp_path.iterdir()] == ["in.jsonl"]


def test_a_single_bad_text_is_the_error(embed: Callable[..., Outcome]) -> None:
    said = "the text has 42 tokens, but the model takes at most 32"
    outcome = embed("cat " * 40, "--overflow", "error")
    assert (outcome.status, outcome.out, outcome.err) == (1, "", f"error: {said}\n")
    two = embed("cat " * 40, "a dog", "--overflow", "error")
    two.fails(1, "1 of 2 inputs failed")
    assert two.lines[0] == {"index": 0, "error": said} and two.lines[1]["text"] == "a dog"


def test_the_endings_that_are_offered_are_those_that_can_be_written(
    embed: Callable[..., Outcome], tmp_path: Path
) -> None:
    unknown, sparse = (embed("the cat", "--output", str(tmp_path / name)) for name in ("a.xyz", "a.npz"))
    unknown.fails(2, "'.xyz'", ".npy")
    sparse.fails(2, "'.npz' is for sparse vectors", ".npy")
    assert ".npz" not in unknown.err and ", .npz" not in sparse.err


SENTENCES = ["the cat sat on the mat .", "paris ! the dog", ""]  # whose words have vectors


@pytest.fixture
def wanted(tiny_folder: Path) -> list[Words]:
    model = mlxbert.load(tiny_folder, dtype="float32")
    return [mlxbert.embed_words(model, text, layer=1) for text in SENTENCES]


def words(folder: Path) -> list[str]:
    return ["embed", "--words", "--layer", "1", "--model", str(folder), "--dtype", "float32"]


def test_a_parquet_has_a_row_per_word(tiny_folder: Path, tmp_path: Path, wanted: list[Words]) -> None:
    records = [*({"text": text, "id": f"n{number}"} for number, text in enumerate(SENTENCES)), {"id": "bad"}]
    source, path = tmp_path / "in.jsonl", tmp_path / "out.parquet"
    source.write_text("".join(json.dumps(record) + "\n" for record in records))
    given = ["--input", str(source), "--keep", "id", "--output", str(path)]
    parquet = pytest.importorskip("pyarrow.parquet")
    call(*words(tiny_folder), *given).fails(1, "1 of 4")
    rows = parquet.read_table(path).to_pylist()
    spelled = [(f"n{number}", word) for number, result in enumerate(wanted) for word in result.words]
    assert [row["id"] for row in rows] == [*(name for name, _ in spelled), "bad"] and rows[-1]["error"]
    assert parquet.ParquetFile(path).schema_arrow.metadata[b"model"] == str(tiny_folder).encode()
    for row, (_, word) in zip(rows, spelled, strict=False):
        assert (row["word"], row["start"], row["end"], row["tokens"]) == (word.word, word.start, word.end, word.tokens)
        assert row["error"] is None and np.abs(np.float32(row["embedding"]) - word.embedding).max() <= 1e-5


def test_a_file_without_words(tiny_folder: Path, tmp_path: Path) -> None:
    parquet = pytest.importorskip("pyarrow.parquet")
    path = tmp_path / "out.parquet"
    assert call(*words(tiny_folder), "", "  ", "--output", str(path)).status == 0
    assert parquet.read_table(path).num_rows == 0


@together("width", ["20", "80", "120"])
def test_a_terminal_shows_words_and_compares_those_that_occur_again(tiny_folder: Path, width: str) -> None:
    outcome, shown = terminal(*words(tiny_folder), "the cat sat on mat", "a Cat !", COLUMNS=width)
    lines = re.sub(r"\x1b\[[0-9;]*m", "", shown).splitlines()
    assert outcome.status == 0 and max(map(len, lines)) <= int(width)
    if width != "20":
        assert sum("cat (1)" in line for line in lines) == sum("Cat (2)" in line for line in lines) == 1
        assert "1.00" in shown and "mat (1)" not in shown
