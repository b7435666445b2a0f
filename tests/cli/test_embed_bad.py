"""`embed` and what it cannot use: bad records keep their place, bad options are refused with what is possible."""

from collections.abc import Callable
from pathlib import Path

import pytest

from tests.helpers.program import Outcome, call

pytestmark = pytest.mark.usefixtures("loaded_once")

TOO_LONG = "the text has 42 tokens, but the model takes at most 32"


@pytest.fixture
def embed(unit_folder: Path) -> Callable[..., Outcome]:
    return lambda *arguments: call("embed", "--model", str(unit_folder), "--dtype", "float32", *arguments)


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


def test_the_endings_that_are_offered_are_those_that_can_be_written(
    embed: Callable[..., Outcome], tmp_path: Path
) -> None:
    unknown, sparse = (embed("the cat", "--output", str(tmp_path / name)) for name in ("a.xyz", "a.npz"))
    unknown.fails(2, "'.xyz'", ".npy")
    sparse.fails(2, "'.npz' is for sparse vectors", ".npy")
    assert ".npz" not in unknown.err and ", .npz" not in sparse.err
