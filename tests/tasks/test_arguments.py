"""What functions are given by mistake, what `help` shows of them, and what is counted of many inputs."""

import ast
import inspect
import re
from collections import UserDict
from pathlib import Path
from typing import Any, cast

import numpy as np
import pytest

import mlxbert
from tests.helpers.cases import together
from tests.helpers.rooms import needs, public_names

OF_TEXTS = ("embed", "embed_stream", "fill_mask", "next_sentence", "tokenize", "similarity_pairs", "similarity_matrix")
PUBLIC: dict[str, Any] = {name: value for name in public_names() if inspect.isfunction(value := getattr(mlxbert, name))}


class DataFrame:
    """As much of a table of pandas as matters: it iterates over the names of its columns."""

    columns = ("text", "label")

    def __iter__(self) -> Any:
        return iter(self.columns)

    def __repr__(self) -> str:
        return "  text  label\n0    a  good\n1    b   bad"


@pytest.mark.parametrize("name", OF_TEXTS)
def test_what_would_give_no_texts_is_refused_in_a_line(name: str, tiny: mlxbert.Model) -> None:
    function = PUBLIC[name]
    for given, hint in ((DataFrame(), "column"), ({"a": "b"}, "values()"), (UserDict(a="b"), "values()")):
        with pytest.raises(mlxbert.ArgumentError) as caught:
            function(tiny, given)
        assert "\n" not in caught.value.message and hint in (caught.value.hint or "")
    with pytest.raises(mlxbert.ArgumentError) as caught:
        function(tiny, {"a", "b"})
    assert "order" in (caught.value.hint or "")


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


@needs("train")
def test_a_model_before_the_task_is_told(tiny: mlxbert.Model) -> None:
    swapped: Any = mlxbert.evaluate
    for given, said in (((tiny, "classify"), "second argument"), (("classify", "a/b"), "mlxbert.load('a/b')")):
        with pytest.raises(mlxbert.ArgumentError) as caught:
            swapped(*given, data=[])
        assert said in str(caught.value.hint)


def test_a_query_behind_its_texts_is_told(tiny: mlxbert.Model) -> None:
    swapped: Any = mlxbert.similarity
    with pytest.raises(mlxbert.InputError) as caught:
        swapped(tiny, ["a", "b"], "query")
    assert caught.value.hint and "before" in caught.value.hint


# Their options depend on the task, or are those of others.
OPEN_ENDED = ("finetune", "evaluate", "pretrain", "distill", "evaluate_words")


@together("name", PUBLIC)
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
        if isinstance(call.func, ast.Attribute) and call.func.attr in PUBLIC:
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
            mlxbert.embed(tiny, bad)
    fill_mask: Any = mlxbert.fill_mask
    missing: Any
    for missing in (None, float("nan")):  # what a column of pandas has
        for use in (mlxbert.embed, lambda *given: list(fill_mask(*given)), mlxbert.similarity_matrix):
            with pytest.raises(mlxbert.InputError) as caught:
                use(tiny, ["the [MASK]", missing])
            assert "dropna" in str(caught.value.hint)
    number: Any = 3
    with pytest.raises(mlxbert.InputError) as caught:
        mlxbert.embed(tiny, ["the cat", number])
    assert caught.value.hint is None
