"""Options are said once: the docs, the help and the library have the same names, units and defaults."""

import inspect
import re
import runpy
from pathlib import Path

import pytest

import mlxbert
from mlxbert.option_declarations import declared_options
from mlxbert.tasks.options import TaskOptions
from mlxbert.text.batch import BATCH_TOKENS
from mlxbert.train.options.training_tasks import TASKS
from tests.helpers.commands import COMMANDS

ROOT = Path(__file__).parents[2]
DOCS = sorted((ROOT / "docs").glob("*.md"))
TABLES = runpy.run_path(str(ROOT / "scripts/options_tables.py"))
OPTIONS = {
    command: [one for one in found.params if one.param_type_name == "option"] for command, found in COMMANDS.items()
}
METRICS = {name for spec in TASKS.values() for name in spec.metrics}


@pytest.mark.parametrize("page", DOCS, ids=lambda page: page.stem)
def test_the_tables_of_options_are_current(page: Path) -> None:
    """`python scripts/options_tables.py` writes them; the table of environment variables is written by hand."""
    text = page.read_text(encoding="utf-8")
    assert TABLES["written"](text) == text
    tables = [*re.finditer(r"^\| option \|", text, re.MULTILINE)]
    assert len(tables) == len(TABLES["TABLE"].findall(text)) + text.count("| option | variable |")


def test_a_table_gets_names_defaults_and_missing_rows_from_the_options() -> None:
    head = "<!-- options: rerank; Model -->\n| option | default | |\n|---|---|---|\n"
    rows = TABLES["written"](head + "| `--device` | cpu | stays |\n").removeprefix(head).splitlines()
    assert rows[0] == "| `--device NAME` | auto | stays |"
    assert [row.split("`")[1] for row in rows[1:3]] == ["--model NAME", "--revision NAME"]


def test_every_option_of_training_is_in_the_docs() -> None:
    text = "\n".join(path.read_text() for path in DOCS)
    for command, options in OPTIONS.items():
        for option in options if command.split(" ")[0] in ("finetune", "evaluate", "pretrain", "distill") else ():
            assert re.search(rf"{option.opts[0]}\b", text), f"{command} {option.opts[0]}"


def test_the_default_of_batch_tokens_is_said_for_each_device() -> None:
    sizes = [BATCH_TOKENS[size] for size in (None, "small", "medium", "large", "large")]
    help = declared_options(TaskOptions)["batch_tokens"][1].help
    assert [int(number) for number in re.findall(r"\d+", help)] == sizes


def test_the_help_of_distill_has_its_own_default_of_objective() -> None:
    library = inspect.signature(mlxbert.distill).parameters["objective"].default
    for command, usual in (("distill", library), ("pretrain", "mlm")):
        assert {TABLES["default"](one) for one in OPTIONS[command] if one.name == "objective"} == {usual}


@pytest.mark.parametrize("task", TASKS)
def test_the_help_of_a_task_names_its_own_metric_alone(task: str) -> None:
    for command in ("finetune", "evaluate"):
        [metric] = [one for one in OPTIONS[f"{command} {task}"] if one.name == "metric"]
        named = {*re.findall(r"[\w@]+", TABLES["default"](metric))} & METRICS
        assert named and named <= {*TASKS[task].metrics}
