"""Hints of the library are for those who write Python; the command line makes its own words of them."""

import ast
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from mlxbert.cli.views.option_spelling import to_options
from mlxbert.rooms import ROOMS
from tests.helpers.cases import together
from tests.helpers.commands import COMMANDS as COMMAND_NAMES
from tests.test_structure import MODULES

# What only the command line shows: helps of options, commands to copy, what `serve` and `bench` say.
COMMANDS = (
    *("mlxbert.cli", "mlxbert.doctor", "mlxbert.serve.http", "mlxbert.tasks.catalogue", "mlxbert.rooms"),
    *(f"mlxbert.{room}.{part}" for room in ROOMS for part in ("commands", "views")),
    *("mlxbert.train.command_options", "mlxbert.train.options", "mlxbert.train.command_line"),
    *("mlxbert.train.event_outputs", "mlxbert.train.final_evaluation"),
)
# Options of pip, objcopy and mlx.launch, and commands to copy for the index of a command.
OTHERS = (
    *("mlxbert.cpu.blas", "mlxbert.machine.mac", "mlxbert.other_libraries", "mlxbert.search.database"),
    *("mlxbert.search.index", "mlxbert.search.schema", "mlxbert.train.loop.distributed", "mlxbert.serve.server_models"),
)
NO_FUNCTION = re.compile(r"`mlxbert doctor --check`")  # there is only the command, as there is for models and indexes


def _texts(path: Path) -> Iterator[tuple[int, str]]:
    """The texts of a module that are not docstrings, with their lines."""
    nodes = [*ast.walk(ast.parse(path.read_text(encoding="utf-8")))]
    statements = {node.value for node in nodes if isinstance(node, ast.Expr)}
    for node in nodes:
        if isinstance(node, ast.Constant) and isinstance(node.value, str) and node not in statements:
            yield node.lineno, node.value


def _options(command: Any) -> Iterator[str]:
    return (option for parameter in command.params for option in parameter.opts if option.startswith("--"))


def _messages(path: Path) -> Iterator[tuple[int, str]]:
    """The beginnings of the messages of errors in a module, with their lines."""
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Call) and node.args and ast.unparse(node.func).endswith("Error"):
            text = node.args[0]
            first = text.values[0] if isinstance(text, ast.JoinedStr) else text
            if isinstance(first, ast.Constant) and ast.unparse(node.func) != "RequestError":  # names fields of JSON
                yield node.lineno, str(first.value)


@pytest.mark.slow
@pytest.mark.parametrize("of", ["options", "commands", "arguments"])
def test_the_library_names_neither_options_nor_commands_and_marks_arguments(of: str) -> None:
    names = {option[2:].replace("-", "_") for command in COMMAND_NAMES.values() for option in _options(command)}
    commands = {name.split()[0] for name in COMMAND_NAMES} - {"ray", "machine", "indexes", "models"}
    assert {"top_k", "group_size"} <= names and {"convert", "finetune"} <= commands
    patterns = {
        "options": r"(?<![\w-])--[a-z]",
        "commands": rf"\bmlxbert ({'|'.join(sorted(commands))})\b(?! is)",  # each is a function, too
        "arguments": rf"^({'|'.join(sorted(names))})( and \w+)? (is|are|has|cannot be|works only|needs)\b",
    }
    texts, left_out = (_messages, COMMANDS) if of == "arguments" else (_texts, COMMANDS + OTHERS)
    found = [
        f"{module}:{line}: {text}"
        for module, path in MODULES.items()
        if not module.startswith(left_out)
        for line, text in texts(path)
        if re.search(patterns[of], NO_FUNCTION.sub("", text))
    ]
    assert not found, "\n".join(found)


@together(("hint", "shown"), [
    ("`mlxbert.finetune('tag', train=FILE, output=FOLDER)`", "`mlxbert finetune tag --train FILE --output FOLDER`"),
    ("`mlxbert.load('a/b', revision='v 1')` online", "`mlxbert models download a/b --revision 'v 1'` online"),
    ("`mlxbert.classify(model, texts, labels=['A', 'B'])` does", "`mlxbert classify --labels A,B` does"),
    ("`mlxbert.embed_tokens(model, texts)` makes them", "`mlxbert embed --vectors tokens` makes them"),
    ("`mlxbert.open_index(path=FILE)`", "`mlxbert index --index FILE`"),
    ("`mlxbert.open_index(paths=PATH)` makes an index", "`mlxbert index PATH` makes an index"),
    ("`mlxbert.convert(BASE, FOLDER, adapter='x/y')`", "`mlxbert convert BASE FOLDER --adapter x/y`"),
    ("`mlxbert.convert(BASE, FOLDER, adapter='x (1)')`", "`mlxbert convert BASE FOLDER --adapter 'x (1)'`"),
    ("`mlxbert.convert(BASE, FOLDER, adapter='x`y')`.", "`mlxbert convert BASE FOLDER --adapter 'x`y'`."),
    ("`mlxbert.finetune('tag', crf=True, merge=False)`", "`mlxbert finetune tag --crf --no-merge`"),
    ("`mlxbert.embed(model, data.texts)` does", "`mlxbert.embed(model, data.texts)` does"),
    ("`mlxbert.load(…)` loads it", "`mlxbert.load(…)` loads it"),
    ("`mlxbert.convert(BASE, DIR, adapter='x (1)/y)')` is", "`mlxbert convert BASE DIR --adapter 'x (1)/y)'` is"),
    ("`mlxbert.save(mlxbert.load(NAME, task='tag'), DIR)`", "`mlxbert.save(mlxbert.load(NAME, task='tag'), DIR)`"),
    ("`mlxbert.load(a.b)` or `mlxbert.load(MODEL)`", "`mlxbert.load(a.b)` or `mlxbert models download MODEL`"),
    ("an option: `dtype='float32'`", "an option: --dtype float32"),
])  # fmt: skip
def test_calls_become_commands(hint: str, shown: str) -> None:
    assert to_options(hint) == shown
