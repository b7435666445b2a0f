"""Options of public functions: one declaration; the same keywords for callers, `help`, type checkers and editors."""

import inspect
import re
import runpy
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

import mlxbert
from mlxbert.nn.pooling import POOLINGS
from mlxbert.option_declarations import declared_options
from mlxbert.tasks.catalogue import CATALOGUE
from mlxbert.tasks.keywords import CallOptions, takes_keywords
from mlxbert.tasks.options import FillMaskOptions
from tests.helpers.rooms import needs, public_names

ROOT = Path(__file__).parents[2]
PUBLIC = {name: getattr(mlxbert, name) for name in public_names()}
WITH_OPTIONS = {name: value for name, value in PUBLIC.items() if hasattr(value, "__signature__")}


@takes_keywords
def filled(model: str, texts: str, *, options: FillMaskOptions, call: CallOptions) -> Any:
    """Gives back its arguments.

    Args:
        model: A model.
        texts: Texts.
        options: See `FillMaskOptions`.
        call: See `CallOptions`.

    Returns:
        The arguments.
    """
    return model, texts, options, call


def test_keywords_become_options_and_errors_name_them() -> None:
    assert filled("m", "a") == ("m", "a", FillMaskOptions(), CallOptions())
    usage = mlxbert.Usage()
    made = filled("m", texts="a", top_k=3, overflow="error", usage=usage, on_error="return")
    assert made == ("m", "a", FillMaskOptions(top_k=3, overflow="error"), CallOptions(usage=usage, on_error="return"))
    wrong: dict[str, Any] = {"top_k": 0, "overflow": "cut", "on_error": "skip"}
    for name, value in wrong.items():
        with pytest.raises(mlxbert.ArgumentError, match=f"^`{name}` is"):
            filled("m", "a", **{name: value})
    for name in ("options", "call", "top_kk"):
        with pytest.raises(TypeError):
            filled("m", "a", **{name: 3})
    with pytest.raises(TypeError, match=r"^filled\(\) missing .*'texts'"):
        filled("m", overflow="cut")


def test_several_texts_may_be_any_iterable_of_texts() -> None:
    for texts in (["a", "b"], ("a", "b"), iter("ab")):
        assert filled("m", "a", targets=texts)[2] == FillMaskOptions(targets=("a", "b"))
    wrong: dict[str, Any] = {
        "is empty": iter(()),
        "is 'ab'": "ab",
        "is 5": 5,
        "contains 5": ["a", 5],
        "contains None": [None],
    }
    for problem, value in wrong.items():
        with pytest.raises(mlxbert.ArgumentError, match=f"^`targets` {problem}, expected a list of at least one text"):
            filled("m", "a", targets=value)


def test_signatures_and_help_have_each_option_with_its_default() -> None:
    parameters = inspect.signature(filled).parameters
    assert [*parameters] == [
        "model",
        "texts",
        "top_k",
        "targets",
        "text",
        "overflow",
        "batch_tokens",
        "usage",
        "on_error",
    ]
    assert parameters["overflow"].default == "window" and parameters["text"].annotation is bool
    told = " ".join((filled.__doc__ or "").split())
    assert "top_k: Number of words per mask. Default: 5, or all targets. From 1 to 10,000,000. targets: " in told
    assert "Returns: The arguments." in told and "options:" not in told


def test_functions_take_the_options_of_the_catalogue() -> None:
    for name, entry in CATALOGUE.items():
        function = PUBLIC[name.replace("-", "_")]
        options: Any = entry.options
        assert declared_options(options).keys() <= inspect.signature(function).parameters.keys(), name
    assert all(f"`{pooling}`" in (mlxbert.embed.__doc__ or "") for pooling in POOLINGS)


@needs()
def test_what_type_checkers_editors_and_readers_see_is_written_anew() -> None:
    """After a change of options or of a docstring: `python scripts/signatures.py`."""
    script = runpy.run_path(
        str(ROOT / "scripts/signatures.py")
    )  # in a copy with planted mistakes, ROOT stays the original
    assert {function.__name__ for function in script["functions"]()} == WITH_OPTIONS.keys()
    for path, text in script["written"]().items():
        assert (ROOT / path).read_text(encoding="utf-8") == text, path


USER = """
import mlxbert
model = mlxbert.load()
reveal_type(mlxbert.fill_mask(model, "a [MASK]"))
reveal_type(mlxbert.fill_mask(model, ["a [MASK]"], top_k=3))
reveal_type(model.fill_mask(["a [MASK]"], on_error="return"))
reveal_type(mlxbert.similarity(model, "a", ["b"]))
mlxbert.fill_mask(model, "a [MASK]", top_kk=3)
model.embed("a", overflow="cut")
reveal_type(mlxbert.classify(model, "a", labels=["b"]))
reveal_type(model.classify(["a"], labels=["b"]))
reveal_type(mlxbert.classify(model, "a"))
engine = mlxbert.Engine()
reveal_type(engine.submit("builtin", "fill_mask", ["a [MASK]"], top_k=3).result().results[0])
async def asked() -> None:
    reveal_type((await engine.ask("builtin", "embed", ["a"])).results[0])
"""


@pytest.mark.slow
def test_type_checkers_know_the_results_and_the_keywords(tmp_path: Path) -> None:
    pytest.importorskip("mypy")
    path = tmp_path / "user.py"
    path.write_text(USER)
    command = [sys.executable, "-m", "mypy", str(path)]  # with the cache of the last run, which saves most of the time
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    said = re.findall(r"^.*\buser\.py:(.*)$", done.stdout, re.MULTILINE)  # a path of the cache may be an earlier one
    assert said, done.stderr
    results = [line.partition('type is "')[2].rstrip('"') for line in said if "Revealed" in line]
    assert [one.replace("mlxbert.results.", "") for one in results] == [
        "text_results.FillMask",
        "typing.Iterator[text_results.FillMask]",
        "typing.Iterator[text_results.FillMask | result.Failure]",
        "list[text_relations.Similarity]",
        "text_results.Classification",
        "typing.Iterator[text_results.Classification]",
        "text_results.Classification | text_results.Regression",
        "text_results.FillMask | result.Failure",
        "embed.Embedding | result.Failure",
    ]
    errors = [line for line in said if " error: " in line]
    assert any(line.startswith("8:") and "top_kk" in line for line in errors)
    assert any(line.startswith("9:") and "overflow" in line for line in errors)
    assert {line.split(":")[0] for line in errors} == {"8", "9"}
