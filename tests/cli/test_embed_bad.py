"""`embed` and what it cannot use: bad records keep their place, bad options are refused with what is possible."""

from collections.abc import Callable
from pathlib import Path

import pytest

from tests.helpers.program import Outcome, call

NO_TEXT = "the record has no field 'text' (fields: n)"
TOO_LONG = "the text has 42 tokens, but the model takes at most 32"


@pytest.fixture
def embed(unit_folder: Path) -> Callable[..., Outcome]:
    return lambda *arguments: call("embed", "--model", str(unit_folder), "--dtype", "float32", *arguments)


@pytest.fixture
def mixed(tmp_path: Path) -> str:
    """Five records: the second has no text, the fourth is too long."""
    lines = ['{"text": "the cat"}', '{"n": 1}', '{"text": ""}', f'{{"text": "{"cat " * 40}"}}', '{"text": "a dog"}']
    path = tmp_path / "in.jsonl"
    path.write_text("\n".join(lines))
    return str(path)


def test_bad_records_keep_their_place(mixed: str, embed: Callable[..., Outcome]) -> None:
    outcome = embed("--input", mixed, "--overflow", "error")
    outcome.fails(1, "2 of 5", "failed")
    assert [line.get("text") for line in outcome.lines] == ["the cat", None, "", None, "a dog"]
    assert outcome.lines[1] == {"index": 1, "error": f"{mixed}, line 2: {NO_TEXT}"}
    assert outcome.lines[3] == {"index": 3, "error": f"{mixed}, line 4: {TOO_LONG}"}
    assert embed("--input", mixed).err.count("2 of 5") == 0  # a text that is cut is not a failure


def test_a_file_of_which_all_inputs_failed_is_not_written(embed: Callable[..., Outcome], tmp_path: Path) -> None:
    (tmp_path / "in.jsonl").write_text('{"body": "the cat"}\n' * 30)
    outcome = embed("--input", str(tmp_path / "in.jsonl"), "--output", str(tmp_path / "x.npy"))
    outcome.fails(1, "30", "failed", f"{tmp_path}/x.npy", "hint: ", "--field")
    assert outcome.err.count("error: input ") == 20 and "note: more inputs fail" in outcome.err
    assert [path.name for path in tmp_path.iterdir()] == ["in.jsonl"]


def test_a_single_bad_text_is_the_error(embed: Callable[..., Outcome]) -> None:
    outcome = embed("cat " * 40, "--overflow", "error")
    assert (outcome.status, outcome.out, outcome.err) == (1, "", f"error: {TOO_LONG}\n")
    two = embed("cat " * 40, "a dog", "--overflow", "error")
    two.fails(1, "1 of 2 inputs failed")
    assert two.lines[0] == {"index": 0, "error": TOO_LONG} and two.lines[1]["text"] == "a dog"


@pytest.mark.parametrize(
    ("given", "said"),
    [
        (
            ["--pooling", "first"],
            "--pooling is 'first', expected one of cls, mean, max, mean_sqrt_len, weighted_mean, last_token, "
            "attention, or several joined by '+'",
        ),
        (["--pooling", ""], "--pooling is '', expected one of cls, "),
        (["--pooling", "cls+"], "--pooling is 'cls+', expected one of cls, "),
        (["--dimensions", "0"], "--dimensions"),
        (["--dimensions", "-3"], "--dimensions"),
        (["--dimensions", "x"], "--dimensions"),
        (["--dimensions", "25"], "--dimensions is 25, but the model's vectors have 24"),
        (["--batch-tokens", "0"], "--batch-tokens"),
        (["--overflow", "cut"], "--overflow is 'cut', expected truncate, window or error"),
        (["--dtype", "int8"], "--dtype is 'int8', expected auto, float32, float16 or bfloat16"),
        (
            ["--prompt", "a", "--prompt-name", "query"],
            "the --prompt 'a' and the --prompt-name 'query' cannot be combined",
        ),
        (["--prompt-name", "title"], "--prompt-name is 'title', but the model has only the prompts 'query', 'passage'"),
        (["--prompt", "cat " * 40], "the prompt has 41 tokens, but the prompt and a text together can have at most 32"),
        (["--input", "in.txt"], "--input cannot be combined with"),
        (["--field", "body"], "--field works only with --input"),
    ],
    ids=lambda value: " ".join(value)[:40] if isinstance(value, list) else "",
)
def test_bad_options_are_refused_with_what_is_possible(
    given: list[str], said: str, embed: Callable[..., Outcome], tmp_path: Path
) -> None:
    target = tmp_path / "x.npy"
    outcome = embed("the cat", *given, "--output", str(target))
    outcome.fails(2, said)
    assert outcome.out == "" and list(tmp_path.iterdir()) == []


def test_the_endings_that_are_offered_are_those_that_can_be_written(
    embed: Callable[..., Outcome], tmp_path: Path
) -> None:
    unknown, sparse = (embed("the cat", "--output", str(tmp_path / name)) for name in ("a.xyz", "a.npz"))
    unknown.fails(2, "'.xyz'", ".npy")
    sparse.fails(2, "'.npz' is for sparse vectors", ".npy")
    assert ".npz" not in unknown.err and ", .npz" not in sparse.err
