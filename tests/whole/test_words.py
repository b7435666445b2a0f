"""What the program says: its help on a terminal, and wrong usage with value, expectation and the nearest right word."""

import re
import sys
from pathlib import Path
from typing import Any

import pytest

from mlxbert.cli.views.help import draw
from mlxbert.doctor import device_speed
from mlxbert.doctor.commands import doctor as machine
from mlxbert.machine import device
from tests.cli.test_terminal import plain
from tests.helpers.commands import COMMANDS, PROGRAM
from tests.helpers.program import call, change_weights, terminal, tiny_model

HELPS = [*(name.split() for name in COMMANDS), [], ["models"], ["finetune"], ["evaluate"]]


def help_of(words: list[str], *, whole: bool) -> list[str]:
    """The lines of a help, on a terminal of 80 columns."""
    command: Any = PROGRAM
    for word in words:
        command = command.commands[word]
    return [line.plain for line in draw(" ".join(["mlxbert", *words]), command, whole=whole)]


@pytest.mark.parametrize("columns", [50, 80, 120])
def test_help_is_not_wider_than_the_terminal_and_has_no_types_of_python(
    columns: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", str(columns))
    for words in HELPS:
        for line in (*help_of(words, whole=True), *help_of(words, whole=False)):
            assert len(line) <= columns or " " not in line.strip(), words  # names of models stay whole
            assert not re.search("<[a-z]", line), words


def test_help_of_a_command_is_asked_for_in_two_ways() -> None:
    assert call("help").out.split() == call("--help").out.split()
    assert call("help", "finetune", "tag").out.startswith("Usage: mlxbert finetune tag ")


@pytest.mark.parametrize(("arguments", "pieces"), [
    (["fill-mask", "x", "--device", "cuda"], ["--device is 'cuda', expected auto, gpu or cpu"]),
    (["fill-mask", "x", "--top-k", "x"], ["--top-k is 'x'", "whole number from 1 to "]),
    (["fill-mask", "x", "--top-k", "0"], ["--top-k is 0", "whole number from 1 to "]),
    (["verify", "a", "b", "--tolerance", "x"], ["--tolerance is 'x'", "a number from 0 to "]),
    (["tag", "x", "--aggregation", "avrage"], ["'avrage'", "average?"]),
    (["fill-mask", "x", "--model"], ["--model has no value", "NAME"]),
    (["fill-mask", "x", "--json=1"], ["--json"]),
    (["fill-mask", "x", "--devce", "cpu"], ["--devce", "--device?"]),
    (["embed", "x", "--no-normalise"], ["--no-normalise", "did you mean --no-normalize"]),
    (["finetune", "classify", "--test", "x.csv"], ["--test", "did you mean the command mlxbert evaluate?"]),
    (
        ["finetune", "classify", "--train", "x.csv", "--output", "o", "--epochs", "1", "--minutes", "1"],
        ["--minutes and --epochs cannot be combined"],
    ),
    (["finetune", "classify", "--label", "x"], ["--label", "did you mean --label-"]),
    (["fill-mask", "-5 degrees [MASK]"], ["'-5 degrees [MASK]'", "fill-mask -- '-5 degrees [MASK]'"]),
    (["fil-mask"], ["'fil-mask'", "fill-mask?"]),
    (["it's"], ["it's", "--help"]),
    (["train"], ["'train'", "finetune?"]),
    (["find", "x"], ["'find'", "search?"]),
    (["predict"], ["'predict'", "classify?"]),
    (["ask", "when?"], ["'ask'", "mlxbert answer?"]),
    (["duplicates"], ["'duplicates'", "mlxbert dedupe?"]),
    (["topics"], ["'topics'", "mlxbert cluster?"]),
    (["--json"], ["--json", "COMMAND --json"]),
    (["--versoin"], ["--versoin", "--version?"]),
    (["rm"], ["'rm'", "models remove?"]),
    (["models", "remov"], ["'remov'", "models remove?"]),
    (["help", "embd"], ["'embd'", "embed?"]),
    (["help", "embed", "x"], ["'x'"]),
    (["inspect", "a", "b c"], ["[MODEL]", "'b c'", "quote"]),
    (["finetune", "classify"], ["--train FILE is missing", "mlxbert finetune classify --train"]),
    (["convert", "builtin"], ["DIR is missing", "for example: mlxbert convert"]),
], ids=lambda value: " ".join(value))  # fmt: skip
def test_wrong_usage_is_told_with_value_expectation_and_the_nearest_word(
    arguments: list[str], pieces: list[str]
) -> None:
    outcome = call(*arguments)
    outcome.fails(2, *pieces)
    for foreign in ("Value error", "Input should be", "Invalid value", "No such", "Got unexpected", "one of '"):
        assert foreign not in outcome.err


def test_other_names_of_commands_work() -> None:
    assert call("-V").out == call("--version").out
    assert call("models", "rm", "builtin").err == call("models", "remove", "builtin").err
    assert call("models", "ls").out == call("models", "list").out


def test_inspect_has_a_short_form_of_ten_lines(tmp_path: Path) -> None:
    outcome, shown = terminal("inspect", "builtin", COLUMNS="80")
    lines = plain(shown)[:-1]
    assert outcome.status == 0 and len(lines) <= 10 and max(map(len, lines)) <= 80
    assert [line.split()[0] for line in lines[1:-1]] == [
        "is",
        "size",
        "can",
        "cannot",
        "input",
        "vectors",
        "memory",
        "problems",
    ]
    assert lines[-2].split() == ["problems", "none"]
    assert len(plain(terminal("inspect", "builtin", "--all", COLUMNS="80")[1])) > 60
    model = tiny_model(tmp_path / "model")
    change_weights(model, lambda arrays: arrays.pop("cls.predictions.transform.dense.bias"))
    problems = " ".join(plain(terminal("inspect", str(model))[1])).partition("problems")[2]
    assert "masked-LM head cannot be loaded" in problems and "dense.bias" in problems


def test_doctor_gives_advice_where_the_blas_is_slow_and_says_when_there_is_nothing_to_fix(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(device_speed, "measure_gflops", lambda: 200.0)
    monkeypatch.setattr(sys, "platform", "linux")
    versions = {"mlx": "1", "mlx-cpu": "2", "mlx-cuda-13": "3"}
    monkeypatch.setattr(machine, "_version", lambda name: {"mlx-cpu": "2"}.get(name))
    fast = {"device": "cpu", "blas": "openblas", "blas_path": "x.so", "blas_hint": None, "gpu_found": False}
    for changes, advice in (
        ({}, ""),
        ({"blas": "reference", "blas_hint": "pip install it"}, "pip install it"),
        ({"blas": "reference"}, "MLXBERT_BLAS=off"),
        ({"blas": "reference", "blas_hint": "pip install it", "device": "gpu"}, ""),
    ):
        monkeypatch.setattr(device, "describe", lambda changes=changes: fast | changes)
        outcome = call("doctor", "--device", "cpu")
        assert outcome.lines[0]["problems"] == ([outcome.err.removeprefix("hint: ").strip()] if advice else [])
        assert (advice or "nothing to fix: 200.0 GFLOP/s") in outcome.err
        assert outcome.lines[0]["wheel"] == "mlx-cpu 2"
    assert "5.0 GFLOP/s" in str(machine._slow_blas(fast, 5.0))
    assert machine._wheel(versions, gpu=True) == "mlx-cuda-13 3"
    assert machine._wheel(versions, gpu=False) == "mlx-cpu 2"
    call("doctor", "--device", "tpu").fails(2, "--device is 'tpu', expected auto, gpu or cpu")


def test_words_of_a_text_without_quotes_are_noticed(tiny_folder: Path) -> None:
    outcome = call("fill-mask", "Paris", "is", "the", "[MASK]", ".")
    outcome.fails(2, "4 of 5 texts", "quotes", "mlxbert fill-mask 'Paris is the [MASK] .'")
    assert "quote" in call("tokenize", *["he", "has", "lunch", "today"], "-m", str(tiny_folder)).err
    for texts in (["cat", "dog"], ["the cat", "dog", "paris", "tokyo"]):
        assert "quotes" not in call("tokenize", *texts, "-m", str(tiny_folder)).err
