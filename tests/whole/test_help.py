"""The help: a line for each option and command, right defaults, completion, tables of options, wrong usage."""

import inspect
import os
import re
import runpy
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from typer._completion_classes import BashComplete

import mlxbert
from mlxbert.cli.views.help import draw
from mlxbert.doctor import device_speed
from mlxbert.doctor.commands import doctor as machine
from mlxbert.export.verify import TOLERANCES
from mlxbert.machine import device
from mlxbert.nn.pooling import POOLINGS
from mlxbert.option_declarations import POOLINGS as NAMED_POOLINGS, declared_options
from mlxbert.tasks import answer, fill_mask, open_tag
from mlxbert.tasks.options import TaskOptions
from mlxbert.text.batch import BATCH_TOKENS
from mlxbert.train import labelled_material
from mlxbert.train.command_options import SIZES
from mlxbert.train.loop import training_run
from mlxbert.train.options.loop_options import TrainingOptions
from mlxbert.train.options.training_tasks import TASKS
from mlxbert.train.pretraining.initial_model import SIZES as KNOWN_SIZES
from mlxbert.train.pretraining.pretraining_settings import Settings
from mlxbert.train.training_call import usual_rate
from mlxbert.train.training_plan import usual_share
from mlxbert.weights.formats.quantized import Quantization
from tests.cli.test_terminal import plain
from tests.helpers.cases import together
from tests.helpers.commands import COMMANDS, PROGRAM
from tests.helpers.program import call, change_weights, process, terminal, tiny_model

GROUPS = {name: one for name, one in PROGRAM.commands.items() if hasattr(one, "commands")}
ALL: dict[str, Any] = {"": PROGRAM, **GROUPS, **COMMANDS}
RATES = [f"{usual_rate(width, TrainingOptions(), 1):.0e}".replace("-0", "-") for width in (384, 1024)]
EPOCHS = f"{TrainingOptions.epochs} to {labelled_material._MAX_EPOCHS}"
DEFAULTS = {  # in words, because they are made later or depend on something; and where the code has them
    "finetune classify --epochs": f"{EPOCHS}, depending on their size",
    "finetune classify --lr": " to ".join(RATES),
    "finetune classify --save-every": str(training_run._SAVE_EVERY),
    "finetune classify --validation-fraction": str(usual_share(10_000)),
    "answer --stride": str(answer.STRIDE),
    "answer --max-length": f"{answer.MAX_LENGTH}, or the model's if lower",
    "tag --threshold": str(open_tag.THRESHOLD),
    "fill-mask --top-k": f"{fill_mask.DEFAULT_TOP_K}, or all targets",
    "convert --group-size": str(Quantization.group_size),
    "verify --tolerance": f"{TOLERANCES['F32']:.4f}",
    "pretrain --valid": f"{Settings.validation_fraction:.0%} of the corpus",
    "pretrain --generator": str(Settings.generator),
}
ROOT = Path(__file__).parents[2]
DOCS = {path.stem: path.read_text(encoding="utf-8") for path in sorted((ROOT / "docs").glob("*.md"))}
TABLES = runpy.run_path(str(ROOT / "scripts/options_tables.py"))


def lines_of(name: str, command: Any, *, whole: bool = False) -> list[str]:
    """The lines of a help."""
    return [line.plain for line in draw(f"mlxbert {name}".strip(), command, whole=whole)]


def completed(*words: str) -> list[str]:
    """What a shell offers for the last of some words."""
    found = BashComplete(PROGRAM, {}, "mlxbert", "_MLXBERT_COMPLETE").get_completions([*words[:-1]], words[-1])
    return [one.value for one in found]


@together("name", ALL)
def test_every_option_and_command_has_one_line_at_100_columns(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "100")
    lines = lines_of(name, ALL[name])
    rows = [line for line in lines if line.startswith("  ")]  # a second line of one begins with spaces, too
    listed = [one for one in getattr(ALL[name], "commands", {}).values() if not one.hidden]
    first_steps = getattr(ALL[name], "first_steps", ())
    assert len(rows) == len([one for one in ALL[name].params if not one.hidden]) + len(listed) + len(first_steps)
    assert max(map(len, lines)) <= 100
    assert all((one.help or "").strip() for one in (*ALL[name].params, *listed))


@pytest.mark.parametrize("columns", [50, 120])
def test_help_is_not_wider_than_the_terminal_and_has_no_types_of_python(
    columns: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", str(columns))
    for name, command in ALL.items():
        for line in (*lines_of(name, command, whole=True), *lines_of(name, command)):
            assert len(line) <= columns or " " not in line.strip(), name  # names of models stay whole
            assert not re.search("<[a-z]", line), name


@together("name", COMMANDS)
def test_the_long_help_has_the_same_options_and_both_have_the_example_apart(name: str) -> None:
    short, whole = lines_of(name, COMMANDS[name]), lines_of(name, COMMANDS[name], whole=True)
    first, second = (re.findall(r"^  (\S+)", "\n".join(lines), re.MULTILINE) for lines in (short, whole))
    assert first == second
    for lines in (short, whole):
        (place,) = [place for place, line in enumerate(lines) if line.startswith("Example: ")]
        assert lines[place - 1] == "" and lines[place].startswith(f"Example: mlxbert {name}")
    for model in re.findall(r"--(?:model|teacher) (\S+)", lines[place]):
        assert model.startswith("my-") or "/" in model or model in ("builtin", "DIR")  # a name on the hub, or ours


def test_the_help_of_the_program_has_the_most_used_first_and_says_how_to_get_more() -> None:
    lines = call("--help", COLUMNS="80").out.splitlines()
    headings = [line for line in lines if re.fullmatch("[A-Z][a-z ]+", line)]
    assert (headings[0], headings[-1], len(headings)) == ("Use a model", "Options", 8)
    first = [re.split(" {2,}", line.strip())[0] for line in lines if line.startswith("  ")]
    assert first.index("embed") < first.index("replaced") < first.index("finetune") < first.index("bench")
    assert {*PROGRAM.commands} <= {*first}
    assert "mlxbert COMMAND --help" in " ".join(lines) and "mlxbert help COMMAND" in " ".join(lines)
    for outcome in (call(), call("models")):
        assert "Usage:" in outcome.out + outcome.err and "error: \n" not in outcome.err
    steps = (call().out + call().err).split("Usage:")[0].strip().splitlines()
    assert [re.findall(r"mlxbert (\w+)", line)[0] for line in steps] == ["search", "classify", "serve"]


@together("columns,words", [("50", ("--help",)), ("80", ("embed", "--help")), ("120", ("help", "embed"))])
def test_help_has_no_colours_in_a_pipe_or_with_no_color(columns: str, words: tuple[str, ...]) -> None:
    piped = call(*words, COLUMNS=columns).out
    assert "\x1b" not in piped
    shown = terminal(*words, COLUMNS=columns)[1]
    assert "\x1b[" in shown and plain(shown) == piped.split("\n")
    assert not re.search(r"\x1b\[[\d;]*3\d", terminal(*words, COLUMNS=columns, NO_COLOR="1")[1])


@together("where", DEFAULTS)
def test_a_default_in_words_is_that_of_the_code(where: str) -> None:
    name, option = where.rsplit(" ", 1)
    (found,) = [one for one in COMMANDS[name].params if option in one.opts]
    said = found.show_default if isinstance(found.show_default, str) else str(found.default)
    assert said == DEFAULTS[where]


@together("name", [one for one in PROGRAM.commands if one.replace("-", "_") in dir(mlxbert)])
def test_a_default_of_a_command_is_that_of_its_function(name: str) -> None:
    function = inspect.signature(getattr(mlxbert, name.replace("-", "_"))).parameters
    for command in (COMMANDS[one] for one in COMMANDS if one.split()[0] == name):
        for option in command.params:
            known = function.get(option.name)
            if known is not None and option.default is not None and known.default not in (known.empty, None, ()):
                assert option.default == known.default, option.name


@together("task", TASKS)
def test_the_help_of_a_task_has_its_own_metrics_and_formats(task: str) -> None:
    every = {name for spec in TASKS.values() for name in spec.metrics}
    for name in (f"finetune {task}", f"evaluate {task}"):
        text = " ".join(lines_of(name, COMMANDS[name], whole=True))
        metric, formats = (re.search(rf"--{option} NAME (.*?)  +--", text) for option in ("metric", "format"))
        assert metric and formats and all(one in metric[1] for one in TASKS[task].metrics)
        assert {*re.findall("conllu?|squad", formats[1])} == {*TASKS[task].formats}
        [option] = [one for one in COMMANDS[name].params if one.name == "metric"]
        named = {*re.findall(r"[\w@]+", TABLES["default"](option))} & every
        assert named and named <= {*TASKS[task].metrics}
    call("finetune", task, "--train", "x", "--output", "y", "--format", "xml").fails(2, "--format is 'xml'")


def test_values_are_completed() -> None:
    assert completed("help", "fi") == ["fill-mask", "finetune"]
    assert completed("help", "finetune", "t") == ["tag"]
    assert completed("embed", "--pooling", "mean") == ["mean", "mean_sqrt_len"]
    assert completed("finetune", "tag", "--metric", "") == [*TASKS["tag"].metrics]
    assert completed("evaluate", "answer", "--metric", "ex") == ["exact_match"]
    assert completed("embed", "--device", "g") == ["gpu"]
    assert ((*POOLINGS,), (*KNOWN_SIZES,)) == (NAMED_POOLINGS, SIZES)


@pytest.mark.slow
def test_the_script_of_completion_is_that_of_the_named_shell(tmp_path: Path) -> None:
    assert process("--install-completion", "bash", HOME=str(tmp_path)).out.startswith("bash completion installed")
    scripts = {shell: process("--show-completion", shell, SHELL="/bin/bash").out for shell in ("bash", "zsh", "fish")}
    assert "#compdef mlxbert" in scripts["zsh"]
    assert "COMPREPLY" in scripts["bash"] and "complete --command mlxbert" in scripts["fish"]
    assert process("--show-completion=zsh").out == scripts["zsh"]
    process("--show-completion", "csh").fails(2, "'csh'", "zsh")


# Each prints what a shell offers after `mlxbert WORDS`, with the script of --show-completion in $SCRIPT. bash and zsh
# have variables for the words of the line; in zsh, the function that shows the offers prints them.
OFFERED = {
    "bash": 'source "$SCRIPT"; COMP_WORDS=($LINE); COMP_CWORD=$((${#COMP_WORDS[@]} - 1)); _mlxbert_completion mlxbert; '
    'printf "%s\\n" "${COMPREPLY[@]}"',
    "zsh": 'compdef() { :; }; _arguments() { print -r -- "$@"; }; source "$SCRIPT"; words=($=LINE); CURRENT=$#words; '
    "_mlxbert_completion",
    "fish": 'source $SCRIPT; complete --do-complete "$LINE"',
}
LINES = {  # what is typed: what must be offered, and what must not
    "fi": ("fill-mask finetune", "embed"),
    "embed --pool": ("--pooling", "--input"),
}


@pytest.mark.slow
@pytest.mark.parametrize("shell", OFFERED)
def test_shells_complete_commands_options_and_values(shell: str, tmp_path: Path) -> None:
    if shutil.which(shell) is None:
        pytest.skip(f"there is no {shell}")
    program, script = tmp_path / "bin" / "mlxbert", tmp_path / "completion"
    program.parent.mkdir()
    program.write_text(f'#!/bin/sh\nexec "{sys.executable}" -m mlxbert "$@"\n', encoding="utf-8")
    program.chmod(0o755)
    script.write_text(process("--show-completion", shell).out, encoding="utf-8")
    variables = {
        "PATH": f"{program.parent}{os.pathsep}{os.environ['PATH']}",
        "SCRIPT": str(script),
        "HOME": str(tmp_path),
    }
    for typed, (offers, others) in LINES.items():
        environment = {**os.environ, **variables, "LINE": f"mlxbert {typed}"}
        done = subprocess.run(
            [shell, "-c", OFFERED[shell]], env=environment, capture_output=True, text=True, check=True
        )
        offered = set(re.split(r"[\s\"():']+", done.stdout))
        assert set(offers.split()) <= offered and not set(others.split()) & offered, (typed, done.stdout, done.stderr)


def test_help_of_a_command_is_asked_for_in_two_ways_and_commands_have_other_names() -> None:
    assert call("help").out.split() == call("--help").out.split()
    for words in (("help", "finetune", "tag"), ("finetune", "tag", "-h")):
        assert call(*words).out.startswith("Usage: mlxbert finetune tag ")
    assert call("-V").out == call("--version").out == f"mlxbert {mlxbert.__version__}\n"
    assert call("models", "rm", "builtin").err == call("models", "remove", "builtin").err
    assert call("models", "ls").out == call("models", "list").out


@together("arguments,pieces", [
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
    (["predict"], ["'predict'", "classify?"]),
    (["ask", "when?"], ["'ask'", "mlxbert answer?"]),
    (["duplicates"], ["'duplicates'", "mlxbert dedupe?"]),
    (["--json"], ["--json", "COMMAND --json"]),
    (["--versoin"], ["--versoin", "--version?"]),
    (["rm"], ["'rm'", "models remove?"]),
    (["models", "remov"], ["'remov'", "models remove?"]),
    (["help", "embd"], ["'embd'", "embed?"]),
    (["help", "embed", "x"], ["'x'"]),
    (["inspect", "a", "b c"], ["[MODEL]", "'b c'", "quote"]),
    (["finetune", "classify"], ["--train FILE is missing", "mlxbert finetune classify --train"]),
    (["convert", "builtin"], ["DIR is missing", "for example: mlxbert convert"]),
])  # fmt: skip
def test_wrong_usage_is_told_with_value_expectation_and_the_nearest_word(
    arguments: list[str], pieces: list[str]
) -> None:
    outcome = call(*arguments)
    outcome.fails(2, *pieces)
    for foreign in ("Value error", "Input should be", "Invalid value", "No such", "Got unexpected", "one of '"):
        assert foreign not in outcome.err


def test_inspect_has_a_short_form_of_ten_lines(tmp_path: Path) -> None:
    outcome, shown = terminal("inspect", "builtin", COLUMNS="80")
    lines = plain(shown)[:-1]
    assert outcome.status == 0 and len(lines) <= 10 and max(map(len, lines)) <= 80
    names = ["is", "size", "can", "cannot", "input", "vectors", "memory", "problems"]
    assert [line.split()[0] for line in lines[1:-1]] == names
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


@together("page", DOCS)
def test_the_tables_of_options_are_current(page: str) -> None:
    """`python scripts/options_tables.py` writes them; the table of environment variables is written by hand."""
    text = DOCS[page]
    assert TABLES["written"](text) == text
    assert text.count("\n| option |") == len(TABLES["TABLE"].findall(text)) + text.count("| option | variable |")


def test_a_table_gets_names_defaults_and_missing_rows_from_the_options() -> None:
    head = "<!-- options: rerank; Model -->\n| option | default | |\n|---|---|---|\n"
    rows = TABLES["written"](head + "| `--device` | cpu | stays |\n").removeprefix(head).splitlines()
    assert rows[0] == "| `--device NAME` | auto | stays |"
    assert [row.split("`")[1] for row in rows[1:3]] == ["--model NAME", "--revision NAME"]


def test_every_option_of_training_is_in_the_docs() -> None:
    named = {*re.findall(r"--[\w-]+", "\n".join(DOCS.values()))}
    for name, command in COMMANDS.items():
        if name.split()[0] in ("finetune", "evaluate", "pretrain", "distill"):
            assert {one.opts[0] for one in command.params if one.param_type_name == "option"} <= named, name


def test_the_default_of_batch_tokens_is_said_for_each_device() -> None:
    sizes = [BATCH_TOKENS[size] for size in (None, "small", "medium", "large", "large")]
    help = declared_options(TaskOptions)["batch_tokens"][1].help
    assert [int(number) for number in re.findall(r"\d+", help)] == sizes
