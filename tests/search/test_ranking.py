"""Several rankings become one, by how sure each of them is."""

import pytest

from mlxbert.search.rank_fusion import HybridScore, Unrelated, fuse, weigh
from mlxbert.search.word_search import WordMatch

UNRELATED = Unrelated(mean=0.1, deviation=0.1)


def test_a_single_list_keeps_its_scores() -> None:
    ranked = fuse({"vectors": [(1, 0.9), (2, 0.8), (3, -0.5)]}, {1: 1, 2: 2, 3: 3})
    assert [(fused.chunk, fused.score, fused.ranks) for fused in ranked] == [
        (1, 0.9, {"vectors": 1}), (2, 0.8, {"vectors": 2}), (3, -0.5, {"vectors": 3}),
    ]  # fmt: skip


NONE, ALL = WordMatch(0.0, 0.0, False), WordMatch(1.0, 1.0, False)
PHRASE = WordMatch(1.0, 1.0, True)


def hybrid_score(similarity: float, words: WordMatch = NONE) -> HybridScore:
    return weigh(similarity, UNRELATED, words)


def test_a_passage_that_one_side_is_sure_of_stays_first() -> None:
    unsure = {number: 0.3 - number / 1000 for number in range(2, 102)}
    groups = {number: number for number in range(1, 102)}
    lists = {"vectors": [*unsure.items()], "words": [(1, 6.0), (2, 1.0)], "phrase": []}
    known = {number: hybrid_score(score, WordMatch(0.3, 0.2, False)) for number, score in unsure.items()}
    assert fuse(lists, groups, known | {1: hybrid_score(0.1, ALL)})[0].chunk == 1  # among many with a few of the words
    lists = {"vectors": [(1, 0.8), *unsure.items()], "words": [(number, 2.0) for number in range(2, 102)], "phrase": []}
    assert fuse(lists, groups, known | {1: hybrid_score(0.8)})[0].chunk == 1


def test_the_score_grows_with_each_of_its_parts() -> None:
    lists = {"vectors": [(1, 0.6), (2, 0.3)], "words": [(1, 4.0), (2, 1.0)], "phrase": [(1, 1.0)]}
    best = fuse(lists, {1: 1, 2: 2}, {1: hybrid_score(0.6, PHRASE), 2: hybrid_score(0.3)})[0]
    assert best.chunk == 1 and best.ranks == {"vectors": 1, "words": 1, "phrase": 1}
    for less in (
        hybrid_score(0.3, PHRASE), hybrid_score(0.6, ALL), hybrid_score(0.6, WordMatch(0.5, 1.0, True)),
        hybrid_score(0.6, WordMatch(1.0, 0.5, True)),
    ):  # fmt: skip
        (one,) = fuse({"vectors": [(1, 0.6)]}, {1: 1}, {1: less})
        assert one.score < best.score


def test_similarities_are_compared_with_those_of_unrelated_texts() -> None:
    """A model whose vectors are all similar is not surer than another model."""
    narrow = weigh(0.84, Unrelated(0.8, 0.01), ALL)
    assert narrow.total == pytest.approx(hybrid_score(0.5, ALL).total)


def test_a_document_has_the_score_of_its_best_chunk() -> None:
    groups = {1: 10, 2: 10, 3: 11, 4: 11}
    lists = {"vectors": [(1, 0.9), (2, 0.8), (3, 0.7)], "words": [(4, 5.0), (2, 4.0)]}
    known = {1: hybrid_score(0.9), 2: hybrid_score(0.8, ALL), 3: hybrid_score(0.7), 4: hybrid_score(0.2, ALL)}
    first, second = fuse(lists, groups, known)
    assert (first.chunk, second.chunk) == (2, 4) and second.scores == {"vectors": 0.2, "words": 5.0}
    assert [fused.chunk for fused in fuse({"vectors": lists["vectors"]}, groups)] == [1, 3]
    assert [fused.chunk for fused in fuse({"vectors": [(3, -0.1), (1, -0.5), (2, -0.7)]}, groups)] == [3, 1]


def test_equal_scores_keep_an_order_and_nothing_is_nothing() -> None:
    equal = {5: hybrid_score(0.5), 3: hybrid_score(0.5)}
    for places in ({3: 3, 5: 5}, {5: 5, 3: 3}):
        assert [fused.chunk for fused in fuse({"vectors": [(5, 0.5), (3, 0.5)]}, places)] == [*places]
        assert [fused.chunk for fused in fuse({"vectors": [(5, 0.5), (3, 0.5)]}, places, equal)] == [*places]
    assert fuse({"vectors": [], "words": []}, {}, {}) == []
