"""The documentation names what there is: commands, options, functions, families, links."""

import inspect
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import typer.main

import mlxbert
from mlxbert.cli.app import app
from mlxbert.nn.heads import HEADS
from mlxbert.weights.families.registry import FAMILIES
from tests.docs.pages import DOCS, README, ROOT, blocks, installs, rows

MAIN = (
    "python3 -m venv .venv && . .venv/bin/activate && pip install . && "
    'mlxbert fill-mask "Tokyo is the largest city in [MASK]."'
)
TESTS = 'python3 -m venv .venv && . .venv/bin/activate && pip install -e ".[test]" && pytest -n auto --dist loadfile'
LINKING = [*DOCS, "CHANGELOG.md", "CONTRIBUTING.md", "benchmarks/README.md", "weights/builtin/README.md"]


def test_the_readme_has_the_two_commands_verbatim() -> None:
    lines = [line for language, text in blocks("README.md") if language == "sh" for line in text.split("\n")]
    assert MAIN in lines and TESTS in lines


def _commands(command: Any, name: str = "") -> Iterator[tuple[str, Any]]:
    """The commands of the program, those of groups too: name and click's command."""
    if not hasattr(command, "commands"):
        yield name, command
    for part, child in getattr(command, "commands", {}).items():
        yield from _commands(child, f"{name} {part}".strip())


OF_MLX_LAUNCH = {"--backend", "--hostfile"}
PROGRAM = typer.main.get_command(app)
COMMANDS = dict(_commands(PROGRAM))


def test_every_command_is_in_the_table_of_the_readme() -> None:
    assert {"fill-mask", "models list"} <= COMMANDS.keys()
    listed = {cells[0].strip("`").removeprefix("mlxbert ") for cells in rows("README.md", "command")}
    assert {re.split(r" [A-Z]", name)[0] for name in listed} == COMMANDS.keys()


@pytest.mark.parametrize("page", DOCS)
def test_every_option_that_is_named_exists(page: str) -> None:
    known = {
        option
        for command in (PROGRAM, *COMMANDS.values())
        for parameter in command.params
        for option in (*parameter.opts, *parameter.secondary_opts)
    }
    text = DOCS[page]
    for _, block in blocks(page):
        text = text.replace(block, "") if installs(block) else text
    assert set(re.findall(r"(?<![\w-])--[a-z][a-z-]*", text)) <= known | {"--help"} | OF_MLX_LAUNCH


def test_every_public_function_is_in_the_table_of_functions() -> None:
    public = {name for name in mlxbert.__all__ if inspect.isfunction(getattr(mlxbert, name))}
    signatures = [cells[0].strip("`") for cells in rows("docs/python.md", "function")]
    assert {signature.split("(")[0] for signature in signatures} == public
    for signature in signatures:
        name, _, arguments = signature.rstrip(")").partition("(")
        named = {argument.split("=")[0] for argument in arguments.split(", ")} - {"…"}
        assert named <= inspect.signature(getattr(mlxbert, name)).parameters.keys(), signature


def test_every_family_is_in_the_table_of_families() -> None:
    named = [
        name for cells in rows("docs/models.md", "family (`model_type`)") for name in re.findall("`(.*?)`", cells[0])
    ]
    assert set(named) >= FAMILIES.keys()


def test_every_head_is_in_the_table_of_heads() -> None:
    named = {name.strip("`"): task.strip("`") for _, name, task in rows("docs/models.md", "head")}
    assert named == {name: head.task or "" for name, head in HEADS.items()}


def test_every_page_is_linked_from_the_readme() -> None:
    for page in DOCS:
        assert page == "README.md" or f"]({page})" in README


def _anchors(path: Path) -> set[str]:
    """The anchors of a page's headings, as GitHub makes them."""
    text = re.sub(r"^```.*?^```$", "", path.read_text(encoding="utf-8"), flags=re.DOTALL | re.MULTILINE)
    headings = re.findall(r"^#+ (.+)$", text, flags=re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-") for heading in headings}


@pytest.mark.parametrize("page", LINKING)
def test_links_lead_somewhere(page: str) -> None:
    text = (ROOT / page).read_text(encoding="utf-8")
    for link in re.findall(r"\]\(([^):]+)\)", text):  # those with a colon leave the repository
        name, _, anchor = link.partition("#")
        target = (ROOT / page).parent / name if name else ROOT / page
        assert target.exists(), f"{page}: {link}"
        assert not anchor or anchor in _anchors(target), f"{page}: {link}"
