"""Queries and documents: prompts of their own; cosines of pairs and as a matrix; vectors in fewer bits."""

from typing import Any

import numpy as np
import pytest

import mlxbert

QUERY, TEXTS = "the cat sat", ["a dog", "he bought milk", "paris , tokyo !"]
OF_QUERIES, OF_TEXTS = "man is : ", "in "  # the prompts of the model `unit`


def near(a: object, b: object) -> bool:
    """Whether vectors or scores agree up to rounding."""
    return np.allclose(np.asarray(a, float), np.asarray(b, float), atol=1e-5)


def test_a_kind_is_the_prompt_that_the_model_has_for_it(
    unit: mlxbert.Model, tiny: mlxbert.Model, caplog: pytest.LogCaptureFixture
) -> None:
    assert near(mlxbert.embed(unit, TEXTS, kind="query"), mlxbert.embed(unit, TEXTS, prompt=OF_QUERIES))
    assert near(mlxbert.embed(unit, TEXTS, kind="document"), mlxbert.embed(unit, TEXTS, prompt=OF_TEXTS))
    assert not near(mlxbert.embed(unit, TEXTS, kind="query"), mlxbert.embed(unit, TEXTS))
    assert not caplog.text
    assert near(mlxbert.embed(tiny, TEXTS, kind="query"), mlxbert.embed(tiny, TEXTS))
    assert "`kind='query'` changes nothing" in caplog.text
    wrong: list[dict[str, Any]] = [
        {"kind": "passage"},
        {"kind": "query", "prompt": "a"},
        {"kind": "query", "prompt_name": "query"},
    ]
    for options in wrong:
        with pytest.raises(mlxbert.ArgumentError, match="kind"):
            mlxbert.embed(unit, TEXTS, **options)


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
    query, texts = mlxbert.embed(unit, QUERY, prompt=first), mlxbert.embed(unit, TEXTS, prompt=others)
    expected = texts @ query
    found = {result.index: result.score for result in mlxbert.similarity(unit, QUERY, TEXTS, **options)}
    assert near([found[number] for number in range(len(TEXTS))], expected)
    pairs = [(QUERY, text) for text in TEXTS]
    assert near([result.score for result in mlxbert.similarity_pairs(unit, pairs, **options)], expected)
    assert near(mlxbert.similarity_matrix(unit, [QUERY], TEXTS, **options), expected[None])


def test_prompts_that_contradict_each_other_are_named(unit: mlxbert.Model) -> None:
    with pytest.raises(
        mlxbert.ArgumentError, match="the `query_prompt` 'a' and the `query_prompt_name` 'query' cannot be combined"
    ):
        mlxbert.similarity(unit, QUERY, TEXTS, query_prompt="a", query_prompt_name="query")
    with pytest.raises(
        mlxbert.ArgumentError,
        match="`query_prompt_name` is 'doc', but the model has only the prompts 'query', 'passage'",
    ):
        mlxbert.similarity(unit, QUERY, TEXTS, query_prompt_name="doc")
    with pytest.raises(mlxbert.ArgumentError, match="needs `texts`"):
        mlxbert.similarity_matrix(unit, TEXTS, query_prompt="a")


def test_a_matrix_of_texts_with_themselves_is_symmetric(unit: mlxbert.Model) -> None:
    vectors = mlxbert.embed(unit, TEXTS)
    found = mlxbert.similarity_matrix(unit, TEXTS)
    assert found.dtype == np.float32 and near(found, vectors @ vectors.T) and near(np.diag(found), 1)
    broken: list[Any] = ["a dog", None]
    assert np.isnan(mlxbert.similarity_matrix(unit, TEXTS, broken, on_error="return")).tolist() == [[False, True]] * 3


def test_one_pair_is_a_tuple_and_bad_ones_keep_their_places(tiny: mlxbert.Model) -> None:
    one = mlxbert.similarity_pairs(tiny, (QUERY, "a dog"))
    pairs: list[Any] = [(QUERY, "a dog"), "text", (QUERY, None), [QUERY, "cat " * 40]]
    found = list(mlxbert.similarity_pairs(tiny, pairs, on_error="return"))
    assert [type(result) for result in found] == [type(one), mlxbert.Failure, mlxbert.Failure, type(one)]
    assert one.to_dict().keys() == {"a", "b", "score"} and (one.truncated, found[3].truncated) == (False, True)  # type: ignore[union-attr]
    with pytest.raises(mlxbert.InputError, match="input 1"):
        list(mlxbert.similarity_pairs(tiny, pairs))


def test_vectors_in_fewer_bits_are_what_the_formulas_say(unit: mlxbert.Model) -> None:
    vectors = mlxbert.embed(unit, TEXTS)
    binary = mlxbert.embed(unit, TEXTS, output_dtype="binary")
    expected = (np.packbits(vectors > 0).reshape(len(vectors), -1) - 128).astype(np.int8)  # quantize_embeddings
    assert binary.dtype == np.int8 and (binary == expected).all() and binary.shape == (3, 3)
    whole: Any = mlxbert.embed(unit, TEXTS, output_dtype="int8")
    scaled = np.rint(127 * vectors / np.abs(vectors).max(axis=1, keepdims=True))
    assert whole.dtype == np.int8 and (whole == scaled).all() and (np.abs(whole.astype(int)).max(axis=1) == 127).all()
    (result,) = mlxbert.embed_stream(unit, TEXTS[:1], output_dtype="int8")
    assert result.to_dict()["embedding"] == whole[0].tolist()
    broken: list[Any] = [None, "a"]
    assert (mlxbert.embed(unit, broken, output_dtype="int8", on_error="return")[0] == 0).all()
    with pytest.raises(mlxbert.ArgumentError, match="20 values, expected a multiple of 8") as caught:
        mlxbert.embed(unit, TEXTS, output_dtype="binary", dimensions=20)
    assert caught.value.hint is not None and "dimensions=16" in caught.value.hint
    with pytest.raises(mlxbert.ArgumentError, match="`output_dtype` is 'uint4', expected one of float32, "):
        mlxbert.embed(unit, TEXTS, output_dtype="uint4")  # type: ignore[arg-type]
