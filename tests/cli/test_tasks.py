"""A task is said once: its entry of the catalogue gives a command, the options are those of its class."""

import ast
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from mlxbert.cli.commands.tasks import HOOKS, ITEMS
from mlxbert.option_declarations import choices_of, declared_options
from mlxbert.tasks.catalogue import CATALOGUE, TaskEntry, imported
from tests.docs.pages import rows
from tests.helpers.commands import COMMANDS
from tests.helpers.program import call

pytestmark = pytest.mark.usefixtures("loaded_once")

CLI = Path(__file__).parents[2] / "cli"


@pytest.fixture(params=CATALOGUE.values(), ids=lambda entry: entry.name)
def entry(request: pytest.FixtureRequest) -> TaskEntry:
    """Each task."""
    found: TaskEntry = request.param
    return found


def test_a_task_has_a_command_with_the_options_of_its_class_and_a_view(entry: TaskEntry) -> None:
    declared: Any = entry.options
    command = COMMANDS["embed" if entry.about is None else entry.name]
    options = {one.name: one for one in command.params if one.param_type_name == "option"}
    assert declared_options(declared).keys() <= options.keys()
    assert entry.about is None or command.help.split() == entry.about.split()
    own = (CLI / f"commands/{entry.name.replace('-', '_')}.py").is_file()
    assert entry.about is None or own != (entry.name in HOOKS and entry.items in ITEMS)


def test_the_classes_that_an_entry_names_exist(entry: TaskEntry) -> None:
    assert imported(entry.task).__module__ == entry.task.partition(":")[0]
    assert imported(entry.result).__module__ == entry.result.partition(":")[0]


def test_the_table_of_texts_that_are_too_long_has_what_each_task_does(entry: TaskEntry) -> None:
    table = {name: cells for names, *cells in rows("docs/command-line.md", "command") for name in names.split(", ")}
    name = f"`{entry.name}`" if entry.about is not None else "`embed`"
    kind = f"`embed --vectors {entry.name.removeprefix('embed-')}`"  # if it differs from other vectors
    name = kind if kind in table else name
    declared: Any = entry.options
    choices = choices_of(declared_options(declared)["overflow"][0])
    assert {f"`{choice}`" for choice in choices} == {word[: word.rindex("`") + 1] for word in _words(table[name][-1])}


def _words(cell: str) -> Iterator[str]:
    return (part for part in cell.split(", ") if part.startswith("`"))


def _compared(path: Path) -> Iterator[str]:
    """The names of tasks that a file compares something with."""
    names = {*CATALOGUE, "similarity"}
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        values = [node.left, *node.comparators] if isinstance(node, ast.Compare) else []
        values += [node.value] if isinstance(node, ast.MatchValue) else []
        for value in values:
            parts = value.elts if isinstance(value, ast.Tuple | ast.List | ast.Set) else [value]
            yield from (part.value for part in parts if isinstance(part, ast.Constant) and part.value in names)


def test_no_file_of_the_command_line_compares_the_name_of_a_task() -> None:
    assert [path.relative_to(CLI) for path in CLI.rglob("*.py") if [*_compared(path)]] == []


def test_texts_with_commas_are_not_empty() -> None:
    for empty in ("", "a,,b", ","):
        call("fill-mask", "a [MASK].", "--targets", empty, "--model", "missing").fails(2, f"--targets is '{empty}'")
