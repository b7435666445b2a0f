"""CONTRIBUTING.md says what a new head, task, command, … costs: the names of one that exists stand in these files."""

import ast
import functools
import re
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import pytest

from mlxbert.rooms import ROOMS
from tests.helpers.cases import together
from tests.helpers.rooms import needs
from tests.test_structure import ARROWS

ROOT = Path(__file__).parents[1]
PAGE = (ROOT / "CONTRIBUTING.md").read_text(encoding="utf-8")
SOURCES = ("mlxbert", "cli", "weights")


@dataclass(frozen=True)
class Example:
    """The smallest of its kind."""

    recipe: str  # the heading in CONTRIBUTING.md
    name: str  # stands for NAME there
    names: tuple[str, ...]  # the words by which code refers to it
    also: tuple[str, ...] = ()  # files of code that the text below the table names
    spared: tuple[str, ...] = ()  # files in the table that this example does not need
    users: tuple[str, ...] = ()  # files and folders that use it


EXAMPLES = [
    Example(
        "Add a head", "sentence_order", ("sentence_order",),
        also=("weights/families/albert.py",), spared=("weights/families/tensor_names.py",),
        users=("mlxbert/train/pretraining",),
    ),
    Example(
        "Add a task", "next_sentence", ("NextSentenceTask", "NextSentenceOptions", "NextSentence", "next-sentence"),
        also=("mlxbert/results/text_relations.py", "cli/views/classify.py"), spared=("cli/views/next_sentence.py",),
        users=("mlxbert/nn/heads", "weights/model_source.py", "mlxbert/serve/engine/engine.py"),  # the last: a script
    ),
    Example("Add a command", "mcp", ("mcp",), users=("mlxbert/search/mcp.py", "mlxbert/search/index.py")),
    Example("Add a route", "ollama", ("ollama",), users=("mlxbert/serve/protocols/mlxbert_api.py",)),
    Example(
        "Add a record format", "conll", ("conllu", "read_conllu"), spared=("cli/shared_options.py",),
        users=("mlxbert/train",),
    ),
    Example("Add a document format", "mail", ("mail", "read_mail", ".eml", ".mbox")),
    Example("Add a training task", "regress", ("regress", "Regress")),
    Example("Add a family", "mpnet", ("mpnet", "MPNET"), users=("weights/model_source.py",)),
    Example("Add a room", "doctor", ("doctor",)),
]  # fmt: skip


@functools.cache
def _words(path: Path) -> list[str]:
    """The names and the short texts of a file's code, without its docstrings."""
    nodes = [*ast.walk(ast.parse(path.read_text(encoding="utf-8")))]
    docstrings = {id(node.value) for node in nodes if isinstance(node, ast.Expr)}
    values = (value for node in nodes if id(node) not in docstrings for _, value in ast.iter_fields(node))
    return [value for value in values if isinstance(value, str) and len(value) < 60]


def _places(names: Sequence[str]) -> set[str]:
    """The source files that have one of the names."""
    pattern = re.compile("|".join(rf"(?<![\w.-]){re.escape(name)}(?![\w-])" for name in names))
    paths = (path for folder in SOURCES for path in (ROOT / folder).rglob("*.py"))
    own = (path.relative_to(ROOT) for path in paths if not any(parent.is_symlink() for parent in path.parents))
    return {str(path) for path in own if any(pattern.search(word) for word in _words(ROOT / path))}


def _recipe(heading: str, name: str) -> set[str]:
    """The source files in the table of a recipe, or in its text if it has no table."""
    section = PAGE.split(f"## {heading}\n")[1].split("\n## ")[0]
    rows = re.findall(r"^\| (.*?) \|", section, re.MULTILINE) or [section.split("Different mathematics")[0]]
    written = (path for row in rows for path in re.findall(r"`([\w/]+\.py)`", row))
    paths = (path.replace("ROOM", "search").replace("NAME", name) for path in written)
    return {path for path in paths if path.startswith(SOURCES)}


@pytest.mark.slow
@together("example", EXAMPLES)
def test_a_new_one_stands_in_the_files_of_its_recipe_and_in_no_others(example: Example) -> None:
    recipe = _recipe(example.recipe, example.name) - {*example.spared}
    own = {path for path in recipe if Path(path).stem == example.name}
    assert recipe and all((ROOT / path).is_file() for path in recipe)
    places = {path for path in _places(example.names) if not path.startswith(example.users or ("/",))}
    assert places | own == recipe | {*example.also}


@together("example", EXAMPLES)
def test_the_table_says_how_many_files_a_new_one_costs(example: Example) -> None:
    rows = dict(re.findall(r"^\| \[.*?\]\(#(.*?)\) \| (\d+)", PAGE, re.MULTILINE))
    assert len(rows) == len(EXAMPLES)
    assert len(_recipe(example.recipe, example.name)) == int(rows[example.recipe.lower().replace(" ", "-")])


@needs()
def test_the_table_of_rooms_has_each_with_the_rooms_that_it_imports() -> None:
    section = PAGE.split("## The core and the rooms\n")[1].split("\n## ")[0]
    rows = {
        name: re.findall(r"`(\w+)`", others) for name, others in re.findall(r"^\| `(\w+)` \|(.*?)\|", section, re.M)
    }
    assert [*rows] == [*ROOMS]
    assert {(name, other) for name, others in rows.items() for other in others} == {*ARROWS}
