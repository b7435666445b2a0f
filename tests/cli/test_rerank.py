"""`rerank`: lines as the library computes them, texts from files and pipes, and how it looks in a terminal."""

import json
from pathlib import Path

import pytest

import mlxbert
from tests.cli.test_terminal import plain
from tests.helpers.classifiers import EMOTIONS, save_classifier
from tests.helpers.program import call, terminal
from tests.tasks.test_rerank import QUERY, SCORE, TEXTS
from tests.tasks.test_reranker import language_model

pytestmark = pytest.mark.usefixtures("loaded_once")


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> str:
    return str(save_classifier(tmp_path_factory.mktemp("models") / "m", SCORE))


def test_lines_are_those_of_the_library(model: str, tmp_path: Path) -> None:
    loaded = mlxbert.load(model, task="classify", dtype="float32")
    expected = [one.to_dict() for one in mlxbert.rerank(loaded, QUERY, TEXTS)]
    outcome = call("rerank", QUERY, *TEXTS, "--model", model, "--dtype", "float32")
    assert (outcome.status, outcome.err, outcome.lines) == (0, "", expected)
    (tmp_path / "in.csv").write_text("id,body\n" + "".join(f'{number},"{text}"\n' for number, text in enumerate(TEXTS)))
    given = [
        "--model",
        model,
        "--dtype",
        "float32",
        "--input",
        str(tmp_path / "in.csv"),
        "--text-column",
        "body",
        "--quiet",
    ]
    without_query = [{name: value for name, value in line.items() if name != "query"} for line in expected]
    path = str(tmp_path / "in.csv")
    placed = [{"id": str(one["index"]), "path": path, "line": one["index"] + 2, **one} for one in without_query]
    assert call("rerank", QUERY, *given).lines == placed
    assert call("rerank", QUERY, *given, "--top-k", "2").lines == placed[:2]
    assert call("rerank", QUERY, *given, "--output", str(tmp_path / "x.jsonl")).status == 0
    written = [json.loads(line) for line in (tmp_path / "x.jsonl").read_text().splitlines()]
    assert written == [one | {"query": QUERY} for one in placed]
    piped = call("rerank", "--model", model, "--dtype", "float32", stdin="\n".join([QUERY, *TEXTS]).encode())
    assert piped.lines == [{"path": "stdin", "line": one["index"] + 2, **one} for one in without_query]


def test_a_bad_text_comes_behind_the_others_unless_the_run_is_strict(model: str, tmp_path: Path) -> None:
    (tmp_path / "in.jsonl").write_text('{"n": 1}\n{"text": "a dog"}\n')
    given = ["rerank", QUERY, "--input", str(tmp_path / "in.jsonl"), "--model", model]
    outcome = call(*given)
    outcome.fails(1, "1 of 2 inputs failed")
    assert [line["index"] for line in outcome.lines] == [1, 0] and "error" in outcome.lines[1]
    call(*given, "--strict").fails(1, "input 0: ", "in.jsonl, line 1: ")


def test_a_model_that_does_not_rank_and_missing_texts_are_refused(model: str, tmp_path: Path) -> None:
    several = str(save_classifier(tmp_path / "several", EMOTIONS))
    call("rerank", QUERY, *TEXTS, "--model", several).fails(1, "4 scores", "classify")
    call("rerank", QUERY, *TEXTS).fails(1, "no classification head", "hint: rerank needs a cross-encoder")
    call("rerank", QUERY, "--model", model).fails(1, "no text to rank")
    call("rerank", QUERY, "--model", model, "--input", str(tmp_path / "none.txt")).fails(1, "none.txt")


def test_a_long_text_is_truncated_with_a_note_or_read_in_windows(model: str) -> None:
    long = "a dog sat on the mat . " * 20
    assert "--overflow" in call("rerank", QUERY, long, "a dog", "--model", model).err
    assert call("rerank", QUERY, long, "a dog", "--model", model, "--overflow", "window").err == ""


@pytest.mark.slow
def test_a_terminal_shows_ranks_scores_and_texts(model: str) -> None:
    shown = plain(terminal("rerank", QUERY, *TEXTS, "--model", model)[1])
    assert [line.split()[0] for line in shown if line.strip()] == ["1", "2", "3", "4"]


def test_a_query_is_to_blame_once(model: str) -> None:
    outcome = call("rerank", "the cat " * 40, *TEXTS, "--overflow", "window", "--model", model)
    outcome.fails(1, "the query has 80 tokens", "hint: ")
    assert outcome.out == "" and outcome.err.count("error: ") == 1


def test_an_instruction_is_for_models_that_take_one(model: str, tmp_path: Path) -> None:
    judge = str(language_model(tmp_path / "m"))
    lines = [call("rerank", QUERY, *TEXTS, "--model", judge, *more).lines for more in ((), ("--prompt", "Find pets"))]
    assert lines[0] != lines[1]
    call("rerank", QUERY, *TEXTS, "--model", model, "--prompt", "Find pets").fails(2, "--prompt is 'Find pets'")
