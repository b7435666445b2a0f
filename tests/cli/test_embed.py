"""`embed`: its lines, where its texts come from, and what each option does to its vectors."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import mlxbert
from tests.helpers.cases import together
from tests.helpers.program import Outcome, call

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


def test_windows_cover_a_text_that_is_too_long(embed: Callable[..., Outcome]) -> None:
    cut, whole = embed(TEXTS[-1]).lines[0], embed(TEXTS[-1], "--overflow", "window").lines[0]
    assert (cut["tokens"], cut["truncated"]) == (32, True)
    assert (whole["tokens"], whole["truncated"]) == (44, False)  # 40 and twice [CLS] and [SEP]


@together("dtype", ["float32", "float16", "bfloat16"])
def test_a_dtype_is_computed_in(dtype: str, unit_folder: Path) -> None:
    found = vectors(call("embed", *TEXTS, "--model", str(unit_folder), "--dtype", dtype))
    exact = vectors(call("embed", *TEXTS, "--model", str(unit_folder), "--dtype", "float32"))
    assert np.array_equal(found, mlxbert.embed(mlxbert.load(unit_folder, dtype=dtype), TEXTS))
    assert np.array_equal(found, exact) is (dtype == "float32")
    assert np.allclose(found, exact, atol=0.05)


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
