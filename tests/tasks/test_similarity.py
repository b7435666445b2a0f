"""How near texts are to a query: ranks, ties, the nearest few, bad inputs, and the cosine itself."""

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


@pytest.mark.parametrize("options", [{}, {"pooling": "cls"}, {"dimensions": 5}, {"normalize": False}], ids=repr)
@pytest.mark.parametrize("name", ["tiny", "unit"])
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


@together("top_k", [0, -1, "3", 2.5, True])
def test_top_k_that_is_no_number_of_texts_is_refused(tiny: mlxbert.Model, top_k: Any) -> None:
    with pytest.raises(mlxbert.ArgumentError, match=f"top_k.*{top_k!r}.*1"):
        mlxbert.similarity(tiny, QUERY, TEXTS, top_k=top_k)


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
