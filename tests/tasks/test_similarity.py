"""How near texts are to a query: ranks, ties, prompts; pairs and matrices; vectors in fewer bits."""

from typing import Any

import numpy as np
import pytest

import mlxbert
from mlxbert.results.result import Failure
from mlxbert.results.text_relations import Similarity
from tests.helpers.cases import together

QUERY = "the cat sat on the mat"
TEXTS = ["a dog", "paris , tokyo !", QUERY, "", "he bought milk in the largest store", "the cat sat", "cat " * 40]


def _found(model: mlxbert.Model, texts: Any = TEXTS, **options: Any) -> list[Similarity]:
    results = mlxbert.similarity(model, QUERY, texts, **options)
    assert all(isinstance(result, Similarity) for result in results)
    return [result for result in results if isinstance(result, Similarity)]


@pytest.mark.parametrize(
    ("name", "options"),
    [
        ("tiny", {}),
        ("unit", {}),
        ("tiny", {"pooling": "cls"}),
        ("unit", {"dimensions": 5}),
        ("unit", {"normalize": False}),
    ],
)
def test_scores_are_the_cosines_of_the_vectors(
    name: str, options: dict[str, Any], request: pytest.FixtureRequest
) -> None:
    model = request.getfixturevalue(name)
    query, vectors = (
        mlxbert.embed(model, QUERY, prompt="", **options),
        mlxbert.embed(model, TEXTS, prompt="", **options),
    )
    cosines = vectors @ query / np.linalg.norm(vectors, axis=1) / np.linalg.norm(query)
    found = _found(model, prompt="", **options)
    for result in found:
        assert abs(result.score - cosines[result.index]) < 1e-5
        assert (result.query, result.text) == (QUERY, TEXTS[result.index])
        assert result.truncated is (result.index == len(TEXTS) - 1)
    assert [result.rank for result in found] == list(range(1, len(TEXTS) + 1))
    assert [result.index for result in found] == sorted(range(len(TEXTS)), key=lambda index: -cosines[index])
    assert found[0].index == 2 and abs(found[0].score - 1) < 1e-6 and found[0].score <= 1


def test_of_texts_equally_near_the_first_comes_first(tiny: mlxbert.Model) -> None:
    texts = ["a dog", QUERY, "a dog", QUERY, "a dog", QUERY]
    assert [result.index for result in _found(tiny, texts, batch_tokens=1)] == [1, 3, 5, 0, 2, 4]
    assert [result.index for result in _found(tiny, texts, batch_tokens=1, top_k=2)] == [1, 3]
    assert [result.index for result in _found(tiny, texts, batch_tokens=1, top_k=4)] == [1, 3, 5, 0]


@together("top_k", [1, 3, len(TEXTS), 100])
def test_top_k_keeps_the_nearest(tiny: mlxbert.Model, top_k: int) -> None:
    assert _found(tiny, top_k=top_k) == _found(tiny)[:top_k]
    assert _found(tiny, iter(TEXTS), top_k=top_k) == _found(tiny)[:top_k]
    assert _found(tiny, [], top_k=top_k) == []


def test_texts_that_cannot_be_used_come_last_or_raise(tiny: mlxbert.Model) -> None:
    texts: list[Any] = [None, "a dog", "half \ud800", QUERY, 5]
    found = mlxbert.similarity(tiny, QUERY, texts, on_error="return", top_k=1)
    assert isinstance(found[0], Similarity) and (found[0].rank, found[0].index) == (1, 3)
    assert [failure.index for failure in found[1:] if isinstance(failure, Failure)] == [0, 2, 4]
    with pytest.raises(mlxbert.InputError, match="expected a text, found NoneType"):
        mlxbert.similarity(tiny, QUERY, texts)
    with pytest.raises(mlxbert.ArgumentError, match="`on_error` is 'skip'"):
        mlxbert.similarity(tiny, QUERY, texts, on_error="skip")  # type: ignore[call-overload]


@together("query", [None, 3, ["a"], b"a", "\ud800"])
def test_a_query_that_is_no_text_is_refused(tiny: mlxbert.Model, query: Any) -> None:
    with pytest.raises(mlxbert.InputError, match="surrogate" if isinstance(query, str) else type(query).__name__):
        mlxbert.similarity(tiny, query, TEXTS, on_error="return")


def test_a_result_is_a_line_of_json(tiny: mlxbert.Model) -> None:
    (result,) = _found(tiny, [QUERY])
    assert result.to_dict() == {"query": QUERY, "rank": 1, "index": 0, "score": result.score, "text": QUERY}


SAT, OTHERS = "the cat sat", ["a dog", "he bought milk", "paris , tokyo !"]
OF_QUERIES, OF_TEXTS = "man is : ", "in "  # the prompts of the model `unit`


def near(a: object, b: object) -> bool:
    """Whether vectors or scores agree up to rounding."""
    return np.allclose(np.asarray(a, float), np.asarray(b, float), atol=1e-5)


def test_a_kind_is_the_prompt_that_the_model_has_for_it(
    unit: mlxbert.Model, tiny: mlxbert.Model, caplog: pytest.LogCaptureFixture
) -> None:
    assert near(mlxbert.embed(unit, OTHERS, kind="query"), mlxbert.embed(unit, OTHERS, prompt=OF_QUERIES))
    assert near(mlxbert.embed(unit, OTHERS, kind="document"), mlxbert.embed(unit, OTHERS, prompt=OF_TEXTS))
    assert not near(mlxbert.embed(unit, OTHERS, kind="query"), mlxbert.embed(unit, OTHERS))
    assert not caplog.text
    assert near(mlxbert.embed(tiny, OTHERS, kind="query"), mlxbert.embed(tiny, OTHERS))
    assert "`kind='query'` changes nothing" in caplog.text
    wrong: list[dict[str, Any]] = [
        {"kind": "passage"},
        {"kind": "query", "prompt": "a"},
        {"kind": "query", "prompt_name": "query"},
    ]
    for options in wrong:
        with pytest.raises(mlxbert.ArgumentError, match="kind"):
            mlxbert.embed(unit, OTHERS, **options)


@pytest.mark.parametrize(
    ("options", "first", "others"),
    [
        ({}, OF_QUERIES, OF_TEXTS),
        ({"prompt": ""}, "", ""),
        ({"prompt_name": "passage"}, OF_TEXTS, OF_TEXTS),
        ({"query_prompt": "the "}, "the ", OF_TEXTS),
        ({"query_prompt_name": "query", "prompt": "a "}, OF_QUERIES, "a "),
    ],
)
def test_queries_and_texts_get_their_prompts(
    options: dict[str, Any], first: str, others: str, unit: mlxbert.Model
) -> None:
    query, texts = mlxbert.embed(unit, SAT, prompt=first), mlxbert.embed(unit, OTHERS, prompt=others)
    expected = texts @ query
    found = {result.index: result.score for result in mlxbert.similarity(unit, SAT, OTHERS, **options)}
    assert near([found[number] for number in range(len(OTHERS))], expected)
    pairs = [(SAT, text) for text in OTHERS]
    assert near([result.score for result in mlxbert.similarity_pairs(unit, pairs, **options)], expected)
    assert near(mlxbert.similarity_matrix(unit, [SAT], OTHERS, **options), expected[None])


def test_prompts_that_contradict_each_other_are_named(unit: mlxbert.Model) -> None:
    with pytest.raises(
        mlxbert.ArgumentError, match="the `query_prompt` 'a' and the `query_prompt_name` 'query' cannot be combined"
    ):
        mlxbert.similarity(unit, SAT, OTHERS, query_prompt="a", query_prompt_name="query")
    with pytest.raises(
        mlxbert.ArgumentError,
        match="`query_prompt_name` is 'doc', but the model has only the prompts 'query', 'passage'",
    ):
        mlxbert.similarity(unit, SAT, OTHERS, query_prompt_name="doc")
    with pytest.raises(mlxbert.ArgumentError, match="needs `texts`"):
        mlxbert.similarity_matrix(unit, OTHERS, query_prompt="a")


def test_a_matrix_of_texts_with_themselves_is_symmetric(unit: mlxbert.Model) -> None:
    vectors = mlxbert.embed(unit, OTHERS)
    found = mlxbert.similarity_matrix(unit, OTHERS)
    assert found.dtype == np.float32 and near(found, vectors @ vectors.T) and near(np.diag(found), 1)
    broken: list[Any] = ["a dog", None]
    assert np.isnan(mlxbert.similarity_matrix(unit, OTHERS, broken, on_error="return")).tolist() == [[False, True]] * 3


def test_one_pair_is_a_tuple_and_bad_ones_keep_their_places(tiny: mlxbert.Model) -> None:
    one = mlxbert.similarity_pairs(tiny, (SAT, "a dog"))
    pairs: list[Any] = [(SAT, "a dog"), "text", (SAT, None), [SAT, "cat " * 40]]
    found = list(mlxbert.similarity_pairs(tiny, pairs, on_error="return"))
    assert [type(result) for result in found] == [type(one), mlxbert.Failure, mlxbert.Failure, type(one)]
    assert one.to_dict().keys() == {"a", "b", "score"} and (one.truncated, found[3].truncated) == (False, True)  # type: ignore[union-attr]
    with pytest.raises(mlxbert.InputError, match="input 1"):
        list(mlxbert.similarity_pairs(tiny, pairs))


def test_vectors_in_fewer_bits_are_what_the_formulas_say(unit: mlxbert.Model) -> None:
    vectors = mlxbert.embed(unit, OTHERS)
    binary = mlxbert.embed(unit, OTHERS, output_dtype="binary")
    expected = (np.packbits(vectors > 0).reshape(len(vectors), -1) - 128).astype(np.int8)  # quantize_embeddings
    assert binary.dtype == np.int8 and (binary == expected).all() and binary.shape == (3, 3)
    whole: Any = mlxbert.embed(unit, OTHERS, output_dtype="int8")
    scaled = np.rint(127 * vectors / np.abs(vectors).max(axis=1, keepdims=True))
    assert whole.dtype == np.int8 and (whole == scaled).all() and (np.abs(whole.astype(int)).max(axis=1) == 127).all()
    (result,) = mlxbert.embed_stream(unit, OTHERS[:1], output_dtype="int8")
    assert result.to_dict()["embedding"] == whole[0].tolist()
    broken: list[Any] = [None, "a"]
    assert (mlxbert.embed(unit, broken, output_dtype="int8", on_error="return")[0] == 0).all()
    with pytest.raises(mlxbert.ArgumentError, match="20 values, expected a multiple of 8") as caught:
        mlxbert.embed(unit, OTHERS, output_dtype="binary", dimensions=20)
    assert caught.value.hint is not None and "dimensions=16" in caught.value.hint
    with pytest.raises(mlxbert.ArgumentError, match="`output_dtype` is 'uint4', expected one of float32, "):
        mlxbert.embed(unit, OTHERS, output_dtype="uint4")  # type: ignore[arg-type]
