"""The tables of the pages on training are those of the source: defaults, metrics, fields of events."""

import dataclasses
import re

import pytest

import mlxbert
from mlxbert.train.options.loop_options import TrainingOptions
from mlxbert.train.options.training_tasks import TASKS
from tests.docs.pages import DOCS, rows

PAGES = ("docs/training.md", "docs/training-options.md", "docs/training-adapters.md")  # with tables of options
LINES = {  # of all tables, by their first cells
    line.split(" | ")[0].strip("| "): line.split(" | ")[1:]
    for page in PAGES
    for line in DOCS[page].splitlines()
    if line.startswith("| `") and " | " in line
}
EVENTS = {
    kind.event: kind for kind in (mlxbert.Started, mlxbert.Step, mlxbert.Evaluated, mlxbert.Saved, mlxbert.Finished)
}
WORDS = {"off": False, "never": None, "the model's": None, "2R": None, "those of 5 epochs": None}
BY_DATA = {"epochs", "lr", "eval_every", "save_every", "patience"}  # their defaults are made later


def test_defaults_of_the_table_are_those_of_the_loop() -> None:
    defaults = {field.name: field.default for field in dataclasses.fields(TrainingOptions)}
    shown = {first.strip("`-").split(" ")[0].replace("-", "_"): rest[0] for first, rest in LINES.items()}
    assert defaults.keys() <= shown.keys()
    for name in defaults.keys() - BY_DATA:
        value = WORDS.get(shown[name], shown[name])
        number = re.fullmatch(r"[\d.]+", str(value))
        if name in ("lora", "minutes"):
            value = None  # a number that is off, not a flag
        assert (float(number[0]) if number else value) == defaults[name], name


@pytest.mark.parametrize("task", TASKS)
def test_metrics_of_the_table_are_those_of_the_task(task: str) -> None:
    found = re.search(rf"^\| `{task}`(?:, entities)? \| (`.*`) \|$", DOCS["docs/evaluation.md"], re.MULTILINE)
    assert found and re.findall(r"`([\w@]+)`", found[1]) == [*TASKS[task].metrics]


@pytest.mark.parametrize("name", EVENTS)
def test_fields_of_events_are_in_the_table(name: str) -> None:
    listed = {cells[0].strip("`"): re.findall(r"`(\w+)`", cells[2]) for cells in rows("docs/training-runs.md", "event")}
    own = {field.name for field in dataclasses.fields(EVENTS[name])} - {"run"}
    assert set(listed[name]) == own
