"""The page for users of other libraries: lines of ours are calls that exist, those of theirs name what they have."""

import ast
import dataclasses
import inspect
import re

import pytest

import mlxbert
from tests.docs.pages import DOCS, rows
from tests.helpers.commands import COMMANDS

PAGE = "docs/coming-from.md"


def _calls() -> list[ast.Call]:
    """The calls of `mlxbert` in the code of the page."""
    codes = re.findall(r"`([^`\n]+)`", re.sub(r"^```.*?^```$", "", DOCS[PAGE], flags=re.DOTALL | re.MULTILINE))
    trees = [ast.parse(code) for code in codes if "mlxbert." in code and "…" not in code and "(" in code]
    nodes = [node for tree in trees for node in ast.walk(tree) if isinstance(node, ast.Call)]
    return [node for node in nodes if ast.unparse(node.func).startswith("mlxbert.")]


def test_lines_of_ours_are_calls_that_the_functions_accept() -> None:
    calls = _calls()
    assert len(calls) > 25
    for call in calls:
        function = getattr(mlxbert, ast.unparse(call.func).removeprefix("mlxbert."))
        keywords = {keyword.arg: None for keyword in call.keywords if keyword.arg}
        inspect.signature(function).bind(*call.args, **keywords)


def test_attributes_of_the_page_are_those_of_a_model() -> None:
    model = mlxbert.load("builtin")
    assert model.embed_tokenizer.max_length == 256 and model.embedder.size == 384 and model.network is not None


def test_options_of_training_and_their_defaults_are_ours() -> None:
    options = {name: one for one in COMMANDS["finetune classify"].params for name in one.opts}
    listed = [
        (re.findall(r"`(--[\w-]+)", ours), default) for *_, ours, default in rows(PAGE, "theirs (`TrainingArguments`)")
    ]
    assert len(listed) > 15
    for names, default in listed:
        assert set(names) <= options.keys()
        if re.fullmatch(r"[\d.]+", default):
            assert float(options[names[0]].default) == float(default), names


@pytest.mark.slow
def test_arguments_of_the_trainer_have_the_defaults_that_the_page_shows() -> None:
    transformers = pytest.importorskip("transformers")
    theirs = {field.name: field.default for field in dataclasses.fields(transformers.TrainingArguments)}
    for named, default, *_ in rows(PAGE, "theirs (`TrainingArguments`)"):
        names = [name for name in re.findall(r"`(\w+)`", named) if name[0].islower()]
        assert set(names) <= theirs.keys(), names
        if re.fullmatch(r"[\d.e-]+", default):
            assert float(str(theirs[names[0]])) == float(default), names
