"""The help: a line for each option and command, right defaults, and completion in a shell."""

import inspect
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from typer._completion_classes import BashComplete

import mlxbert
from mlxbert.cli.views.help import draw
from mlxbert.export.verify import TOLERANCES
from mlxbert.nn.pooling import POOLINGS
from mlxbert.option_declarations import POOLINGS as NAMED_POOLINGS
from mlxbert.tasks import answer, fill_mask, open_tag
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
from tests.helpers.program import call, process, terminal

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


def test_the_help_of_embed_fits_on_a_screen_of_80_columns(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "80")
    assert len(lines_of("embed", COMMANDS["embed"])) <= 55


@together("name", COMMANDS)
def test_the_long_help_has_the_same_options_and_both_have_the_example_apart(name: str) -> None:
    short, whole = lines_of(name, COMMANDS[name]), lines_of(name, COMMANDS[name], whole=True)
    first, second = (re.findall(r"^  (\S+)", "\n".join(lines), re.MULTILINE) for lines in (short, whole))
    assert first == second
    for lines in (short, whole):
        (place,) = [place for place, line in enumerate(lines) if line.startswith("Example: ")]
        assert lines[place - 1] == ""
    for model in re.findall(r"--(?:model|teacher) (\S+)", lines[place]):
        assert model.startswith("my-") or "/" in model or model in ("builtin", "DIR"), (
            "not the name of a model on the hub"
        )


def test_the_help_of_the_program_has_groups_the_most_used_first_and_says_how_to_get_more() -> None:
    lines = call("--help", COLUMNS="80").out.splitlines()
    assert [line for line in lines if re.fullmatch("[A-Z][a-z ]+", line)] == [
        "Use a model",
        "Explore many texts",
        "Serve other programs",
        "Search your files",
        "Train a model",
        "Look inside",
        "Models and machine",
        "Options",
    ]
    first = [re.split(" {2,}", line.strip())[0] for line in lines if line.startswith("  ")]
    assert first.index("embed") < first.index("replaced") < first.index("finetune") < first.index("bench")
    assert {*PROGRAM.commands} <= {*first}
    assert "mlxbert COMMAND --help" in " ".join(lines) and "mlxbert help COMMAND" in " ".join(lines)


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


@pytest.mark.parametrize("name", [one for one in PROGRAM.commands if one.replace("-", "_") in dir(mlxbert)])
def test_a_default_of_a_command_is_that_of_its_function(name: str) -> None:
    function = inspect.signature(getattr(mlxbert, name.replace("-", "_"))).parameters
    for command in (COMMANDS[one] for one in COMMANDS if one.split()[0] == name):
        for option in command.params:
            known = function.get(option.name)
            if known is not None and option.default is not None and known.default not in (known.empty, None, ()):
                assert option.default == known.default, option.name


@pytest.mark.parametrize("task", TASKS)
def test_the_help_of_a_task_has_its_own_metrics_and_formats(task: str) -> None:
    for name in (f"finetune {task}", f"evaluate {task}"):
        text = " ".join(lines_of(name, COMMANDS[name], whole=True))
        metric, formats = (re.search(rf"--{option} NAME (.*?)  +--", text) for option in ("metric", "format"))
        assert metric and formats
        assert all(one in metric[1] for one in TASKS[task].metrics)
        assert {*re.findall("conllu?|squad", formats[1])} == {*TASKS[task].formats}
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
    "embed --pooling mean": ("mean mean_sqrt_len", "max"),
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
