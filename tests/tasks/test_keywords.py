"""Options of public functions: one declaration; the same keywords for callers, `help`, type checkers and editors."""

import ast
import inspect
import re
import runpy
import subprocess
import sys
from collections import UserDict
from pathlib import Path
from typing import Any, cast

import numpy as np
import pytest

import mlxbert
from mlxbert.nn.pooling import POOLINGS
from mlxbert.option_declarations import declared_options
from mlxbert.tasks.catalogue import CATALOGUE
from mlxbert.tasks.keywords import CallOptions, takes_keywords
from mlxbert.tasks.options import FillMaskOptions
from tests.helpers.cases import together
from tests.helpers.rooms import needs, public_names

ROOT = Path(__file__).parents[2]
PUBLIC: dict[str, Any] = {name: getattr(mlxbert, name) for name in public_names()}
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
    wrong: list[tuple[Any, str]] = [(iter(()), "is empty"), ("ab", "is 'ab'"), (5, "is 5"), (["a", 5], "contains 5")]
    for value, problem in [*wrong, ([None], "contains None")]:
        with pytest.raises(mlxbert.ArgumentError, match=f"^`targets` {problem}, expected a list of at least one text"):
            filled("m", "a", targets=value)


def test_signatures_and_help_have_each_option_with_its_default() -> None:
    parameters = inspect.signature(filled).parameters
    names = ["top_k", "targets", "text", "overflow", "batch_tokens", "usage", "on_error"]
    assert [*parameters] == ["model", "texts", *names]
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


OF_TEXTS = ("embed", "embed_stream", "fill_mask", "next_sentence", "tokenize", "similarity_pairs", "similarity_matrix")


class DataFrame:
    """As much of a table of pandas as matters: it iterates over the names of its columns."""

    columns = ("text", "label")

    def __iter__(self) -> Any:
        return iter(self.columns)

    def __repr__(self) -> str:
        return "  text  label\n0    a  good\n1    b   bad"


@pytest.mark.parametrize("name", OF_TEXTS)
def test_what_would_give_no_texts_is_refused_in_a_line(name: str, tiny: mlxbert.Model) -> None:
    cases: list[tuple[Any, str]] = [(DataFrame(), "column"), ({"a": "b"}, "values()"), (UserDict(a="b"), "values()")]
    for given, hint in (*cases, ({"a", "b"}, "order"), (5, ""), (None, ""), (b"a text", "")):
        with pytest.raises(mlxbert.ArgumentError) as caught:
            PUBLIC[name](tiny, given)
        assert "\n" not in caught.value.message and hint in (caught.value.hint or "")


@needs("explore", "search")
def test_whole_numbers_of_numpy_are_whole_numbers(tiny: mlxbert.Model, tmp_path: Path) -> None:
    two, zero, whole = (cast(Any, number) for number in (np.int64(2), np.int32(0), np.int64))
    assert tiny.fill_mask("the [MASK]", top_k=two) == tiny.fill_mask("the [MASK]", top_k=2)
    assert (tiny.embed("the", dimensions=two) == tiny.embed("the", dimensions=2)).all()
    assert tiny.attention("the", layers=zero, heads=[zero]).layers == (0,)
    assert tiny.tokenizer.decode([*np.array([5, 6])]) == tiny.tokenizer.decode([5, 6])
    with mlxbert.open_index(path=tmp_path / "x.db", model=tiny, tokens=whole(20)) as index:
        index.add([{"id": 1, "text": "the cat"}, {"id": 2, "text": "a dog"}])
        (hit,) = index.search("the cat", top_k=whole(1))
        assert index.read(whole(hit.chunk), around=zero).text == index.read(hit.chunk).text


@pytest.mark.parametrize("name", [*OF_TEXTS, "similarity"])
def test_swapped_arguments_are_named(name: str, tiny: mlxbert.Model) -> None:
    with pytest.raises(mlxbert.ArgumentError) as caught:
        PUBLIC[name](["a text"], tiny, *([["b"]] if name == "similarity" else []))
    assert "`model` is ['a text']" in caught.value.message and "first argument" in (caught.value.hint or "")
    with pytest.raises(mlxbert.ArgumentError) as caught:
        PUBLIC[name]("some/name", ["a text"], *([["b"]] if name == "similarity" else []))
    assert "mlxbert.load('some/name')" in (caught.value.hint or "")
    with pytest.raises(mlxbert.InputError) as behind:
        PUBLIC["similarity"](tiny, ["a", "b"], "query")
    assert behind.value.hint and "before" in behind.value.hint


@needs("train")
def test_a_model_before_the_task_is_told(tiny: mlxbert.Model) -> None:
    swapped: Any = mlxbert.evaluate
    for given, said in (((tiny, "classify"), "second argument"), (("classify", "a/b"), "mlxbert.load('a/b')")):
        with pytest.raises(mlxbert.ArgumentError) as caught:
            swapped(*given, data=[])
        assert said in str(caught.value.hint)


# Their options depend on the task, or are those of others.
OPEN_ENDED = ("finetune", "evaluate", "pretrain", "distill", "evaluate_words")


@together("name", [name for name, value in PUBLIC.items() if inspect.isfunction(value)])
def test_help_shows_parameters_with_their_meaning_and_an_example(name: str) -> None:
    parameters = inspect.signature(PUBLIC[name]).parameters
    told = PUBLIC[name].__doc__ or ""
    open_ended = any(one.kind is one.VAR_KEYWORD for one in parameters.values())
    assert open_ended == (name in OPEN_ENDED)
    shown = set(re.findall(r"^        (?:\*\*)?(\w+): ", told, re.MULTILINE))
    assert parameters.keys() <= shown, parameters.keys() - shown
    code = "\n".join(re.findall(r"^        (?:>>>|\.\.\.) (.*)$", told, re.MULTILINE))
    calls = [one for one in ast.walk(ast.parse(code)) if isinstance(one, ast.Call)]
    names = [call.func.attr for call in calls if isinstance(call.func, ast.Attribute)]
    assert name in names
    for call in calls:
        if (
            isinstance(call.func, ast.Attribute)
            and call.func.attr in PUBLIC
            and inspect.isfunction(PUBLIC[call.func.attr])
        ):
            keywords = {keyword.arg or "": None for keyword in call.keywords}
            inspect.signature(PUBLIC[call.func.attr]).bind(*call.args, **keywords)


def test_usage_and_failures_go_wherever_many_inputs_go(tiny: mlxbert.Model) -> None:
    calls: dict[str, list[Any]] = {
        "fill_mask": ["the [MASK]", 5], "next_sentence": [("the cat", "a dog"), 5], "embed": ["the cat", 5],
        "embed_stream": ["the cat", 5], "similarity_pairs": [("the cat", "a dog"), 5],
    }  # fmt: skip
    for name, items in calls.items():
        usage = mlxbert.Usage()
        found = list(PUBLIC[name](tiny, items, usage=usage, on_error="return"))
        assert len(found) == 2 and usage.texts == (2 if name == "similarity_pairs" else 1) and usage.tokens, name
    for name in ("classify", "tag", "answer", "replaced"):
        assert {"usage", "on_error"} <= inspect.signature(PUBLIC[name]).parameters.keys()


def test_a_text_that_cannot_be_embedded_is_a_row_of_nan_and_logged(
    tiny: mlxbert.Model, caplog: pytest.LogCaptureFixture
) -> None:
    texts: list[Any] = ["the cat", None, "a dog"]
    vectors = mlxbert.embed(tiny, texts, on_error="return")
    assert np.isnan(vectors).all(axis=1).tolist() == [False, True, False]
    assert "input 1: expected a text, found NoneType" in caplog.text
    bad: Any
    for bad, place in (([None, "a"], "input 0: "), (["a", None], "input 1: "), ([None], "")):
        with pytest.raises(mlxbert.InputError, match=f"^{place}expected a text"):
            PUBLIC["embed"](tiny, bad)
    for bad, hint in ((None, "dropna"), (float("nan"), "dropna"), (3, "None")):  # what a column of pandas has
        for name in ("embed", "fill_mask", "similarity_matrix"):
            with pytest.raises(mlxbert.InputError) as caught:
                list(PUBLIC[name](tiny, ["the [MASK]", bad]))
            assert hint in str(caught.value.hint)
