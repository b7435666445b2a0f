"""Options are said once: the docs, the help and the library have the same names, units and defaults."""

import inspect
import itertools
import re
from pathlib import Path
from typing import Any

import pytest

import mlxbert
from mlxbert.cli.views import help as view
from mlxbert.text.batch import BATCH_TOKENS
from mlxbert.training.options.tasks import TASKS
from tests.helpers.cases import together
from tests.helpers.commands import COMMANDS, PROGRAM

DOCS = sorted((Path(__file__).parents[2] / "docs").glob("*.md"))
ROW = re.compile(r"\| ((?:`--[^|]+`,? ?(?:\([^|]*\) )?)+)\|([^|]*)\|(.*)")
OPTIONS = {
    command: [one for one in found.params if one.param_type_name == "option"]
    for command, found in {"": PROGRAM, **COMMANDS}.items()
}
KNOWN: dict[str, list[Any]] = {}
for one in itertools.chain(*OPTIONS.values()):
    for name in (*one.opts, *one.secondary_opts):
        KNOWN.setdefault(name, []).append(one)
METRICS = {name for spec in TASKS.values() for name in spec.metrics}
ROWS = [(path.name, *row.groups()) for path in DOCS for row in map(ROW.match, path.read_text().splitlines()) if row]


def default(option: Any) -> str:
    """The default of an option as the help has it."""
    usual = option.show_default
    return usual if isinstance(usual, str) else str(getattr(option.default, "value", option.default))


@together(("file", "names", "usual", "text"), ROWS)
def test_tables_of_options_say_what_the_help_says(file: str, names: str, usual: str, text: str) -> None:
    for name, unit in re.findall(r"`(--[\w-]+)(?: ([A-Z][A-Z,=…]*))?`", names):
        assert name in KNOWN, f"{file}: {name}"
        if unit:
            assert unit in {view.metavar_of(one) for one in KNOWN[name]}, f"{file}: {name} {unit}"
    if re.fullmatch(r"[\d.]+", usual.strip()):
        found = [default(one) for one in KNOWN[re.findall(r"--[\w-]+", names)[0]]]
        numbers = {float(one) for one in found if re.fullmatch(r"[\d.]+", one)}
        assert float(usual) in numbers, f"{file}: {names} {found}"


def test_every_option_of_training_is_in_the_docs() -> None:
    text = "\n".join(path.read_text() for path in DOCS)
    for command, options in OPTIONS.items():
        for option in options if command.split(" ")[0] in ("finetune", "evaluate", "pretrain", "distill") else ():
            assert re.search(rf"{option.opts[0]}\b", text), f"{command} {option.opts[0]}"


def test_the_default_of_batch_tokens_is_said_for_each_device() -> None:
    (said,) = {one.help for one in KNOWN["--batch-tokens"]}
    sizes = [BATCH_TOKENS[size] for size in (None, "small", "medium", "large", "large")]
    assert [int(number) for number in re.findall(r"\d+", said)] == sizes


def test_the_help_of_distill_has_its_own_default_of_objective() -> None:
    library = inspect.signature(mlxbert.distill).parameters["objective"].default
    for command, usual in (("distill", library), ("pretrain", "mlm")):
        assert {default(one) for one in OPTIONS[command] if one.name == "objective"} == {usual}


@pytest.mark.parametrize("task", TASKS)
def test_the_help_of_a_task_names_its_own_metric_alone(task: str) -> None:
    for command in ("finetune", "evaluate"):
        [metric] = [one for one in OPTIONS[f"{command} {task}"] if one.name == "metric"]
        assert {*re.findall(r"[\w@]+", default(metric))} & METRICS <= {*TASKS[task].metrics}
        assert {*re.findall(r"[\w@]+", default(metric))} & METRICS
