"""Each command of the command line does what its help says: what it prints, to the key, and how it ends."""

import os
import re
from pathlib import Path
from typing import Any

import pytest

import mlxbert
from mlxbert.cli import session
from mlxbert.cli.views import console
from tests.helpers.cases import together
from tests.helpers.commands import COMMANDS
from tests.helpers.program import call, change_weights, tiny_model

pytestmark = pytest.mark.usefixtures("loaded_once")

PARIS = "[MASK] is the capital of France."


def tokens(line: dict[str, Any], key: str) -> list[Any]:
    return [token[key] for token in line["tokens"]]


def test_the_builtin_model_is_named_in_a_note_with_its_quality(tmp_path: Path) -> None:
    outcome = call("fill-mask", PARIS, MLXBERT_DATA=str(tmp_path))
    assert outcome.err.startswith("note: the built-in model")
    assert "%" in outcome.err
    assert outcome.err.count("\n") == 1


def test_the_note_on_the_builtin_model_comes_once_a_day(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def noted(data: str = "data", *, quiet: bool = False) -> bool:
        monkeypatch.setenv("MLXBERT_DATA", str(tmp_path / data))
        console.set_quiet(quiet)
        session.note_builtin("fill-mask", "builtin")
        session.say_queued()
        return "note: the built-in model" in capsys.readouterr().err

    assert [noted(quiet=True), noted(), noted(), noted()] == [False, True, False, False]
    (mark,) = (tmp_path / "data").iterdir()
    for moved, expected in ((-25 * 60 * 60, True), (0, False), (+25 * 60 * 60, True)):  # the last is the clock's fault
        then = mark.stat().st_mtime + moved
        os.utime(mark, (then, then))
        assert noted() == expected
    (tmp_path / "file").touch()
    assert [noted("file"), noted("file")] == [True, True]


@together(
    "arguments",
    [("fill-mask", PARIS, "--targets", ","), ("embed", "a text", "--dimensions", "9999"), ("classify", "a text")],
)
def test_what_cannot_be_done_is_said_without_a_note_on_the_model(arguments: tuple[str, ...]) -> None:
    outcome = call(*arguments)
    assert outcome.status in (1, 2) and outcome.err.startswith("error: ") and "note:" not in outcome.err


def test_the_environment_names_a_model_and_the_option_wins(small: str) -> None:
    by_variable = call("fill-mask", "the [MASK]", MLXBERT_MODEL=small)
    assert by_variable.err == ""  # a model that was chosen is not explained
    assert by_variable.out == call("fill-mask", "the [MASK]", "--model", small).out
    by_option = call("fill-mask", PARIS, "--model", "builtin", MLXBERT_MODEL="/no/such")
    assert (by_option.status, len(by_option.lines)) == (0, 1)


def test_tokenize_shows_a_pair_with_segments_positions_and_offsets() -> None:
    text, pair = "Hello, playwrights!", "Goodbye."
    outcome = call("tokenize", text, "--pair", pair)
    (line,) = outcome.lines
    assert list(line) == ["text", "tokens"]
    assert all(list(token) == ["token", "id", "segment", "position", "start", "end"] for token in line["tokens"])
    spelled = ["[CLS]", "hello", ",", "playwright", "##s", "!", "[SEP]", "goodbye", ".", "[SEP]"]
    assert tokens(line, "token") == spelled
    assert tokens(line, "segment") == [0] * 7 + [1] * 3
    assert tokens(line, "position") == list(range(10))
    seen = [(text, pair)[token["segment"]][token["start"] : token["end"]] for token in line["tokens"]]
    assert seen == ["", "Hello", ",", "playwright", "s", "!", "", "Goodbye", ".", ""]
    assert (outcome.status, outcome.err) == (0, "")


def test_inspect_accounts_for_every_tensor_and_parameter(small: str) -> None:
    keys = ["folder", "family", "because", "architectures", "config", "max_length", "limited_by", "limits", "parts"]
    keys += ["unused", "skipped", "parameters", "memory", "fit", "weights", "tokenizer", "embedding", "token_vectors"]
    keys += ["adapter", "adapters", "labels", "tasks", "lacking", "tensors"]
    for model, shortest in (("builtin", 512), (small, 24)):
        outcome = call("inspect", model)
        (found,) = outcome.lines
        assert list(found) == keys
        assert (found["family"], found["max_length"]) == ("bert", shortest)
        parameters = dict(found["parameters"])
        assert parameters.pop("total") == sum(parameters.values())
        assert found["tensors"]
        assert all(row["name"] and row["dtype"] and row["shape"] and row["becomes"] for row in found["tensors"])
        assert (outcome.status, outcome.err) == (0, "")


def test_tensors_of_other_tasks_are_listed_as_not_used(tmp_path: Path) -> None:
    model = tiny_model(tmp_path / "model")
    change_weights(model, lambda arrays: arrays.update({"classifier.bias": arrays["bert.pooler.dense.bias"]}))
    rows = {row["name"]: row["becomes"] for row in call("inspect", str(model)).lines[0]["tensors"]}
    assert rows["classifier.bias"] == "not used"
    assert rows["bert.pooler.dense.bias"] == "encoder.pooler.dense.bias"
    assert "classifier.bias" in call("fill-mask", "[MASK]", "--model", str(model), "--verbose").err


def test_models_list_shows_the_builtin_model() -> None:
    (listed,) = call("models", "list").lines
    found = listed["models"][0]
    assert found["name"] == "builtin"
    assert found["tasks"] == ["fill-mask", "next-sentence", "embed"]
    assert found["bytes"] > found["parameters"] > 1_000_000


def test_version_is_that_of_the_package() -> None:
    outcome = call("--version")
    assert (outcome.status, outcome.out, outcome.err) == (0, f"mlxbert {mlxbert.__version__}\n", "")


def test_the_program_alone_shows_its_help() -> None:
    for outcome in (call(), call("models")):
        assert "Usage:" in outcome.out + outcome.err and "error: \n" not in outcome.err
    first = (call().out + call().err).split("Usage:")[0].strip().splitlines()
    assert [re.search(r"mlxbert (\w+)", line)[1] for line in first] == ["search", "classify", "serve"]  # type: ignore[index]
    assert {"notes", "tickets"} <= {*re.findall(r"\w+", " ".join(first))}


@together("command", COMMANDS)
def test_the_help_of_every_command_has_an_example(command: str) -> None:
    outcome = call(*command.split(), "-h")
    assert (outcome.status, outcome.err) == (0, "")
    assert f"Example: mlxbert {command}" in outcome.out
