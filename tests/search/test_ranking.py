"""Several rankings become one, by how sure each of them is."""

import pytest

from mlxbert.search.rank_fusion import Scale, fuse
from mlxbert.search.similar_passages import DistinctTexts

SCALE = Scale(mean=0.1, deviation=0.1, complete=4.0)


def test_a_single_list_keeps_its_scores() -> None:
    ranked = fuse({"vectors": [(1, 0.9), (2, 0.8), (3, -0.5)]}, {1: 1, 2: 2, 3: 3})
    assert [(fused.chunk, fused.score, fused.ranks) for fused in ranked] == [
        (1, 0.9, {"vectors": 1}), (2, 0.8, {"vectors": 2}), (3, -0.5, {"vectors": 3}),
    ]  # fmt: skip


def test_a_passage_that_one_ranking_is_sure_of_stays_first() -> None:
    unsure = [(number, 0.3 - number / 1000) for number in range(2, 102)]
    lists = {"vectors": unsure, "words": [(1, 6.0), (2, 1.0)], "phrase": []}
    groups = {number: number for number in range(1, 102)}
    assert fuse(lists, groups, SCALE)[0].chunk == 1  # among many passages with a few of the words
    lists = {"vectors": [(1, 0.8), *unsure], "words": [(number, 2.0) for number in range(2, 102)], "phrase": []}
    assert fuse(lists, groups, SCALE)[0].chunk == 1


def test_relevance_grows_with_each_kind_of_evidence() -> None:
    everything = {"vectors": [(1, 0.6), (2, 0.3)], "words": [(1, 4.0), (2, 1.0)], "phrase": [(1, 1.0)]}
    groups = {1: 1, 2: 2}
    best = fuse(everything, groups, SCALE)[0]
    assert best.chunk == 1 and best.ranks == {"vectors": 1, "words": 1, "phrase": 1}
    for name in everything:
        fewer = fuse(everything | {name: [pair for pair in everything[name] if pair[0] != 1]}, groups, SCALE)
        score = next(fused.score for fused in fewer if fused.chunk == 1)
        assert 0 < score < best.score < 1


def test_scores_are_compared_with_those_of_unrelated_texts() -> None:
    """A model whose vectors are all similar is not surer than another model."""
    lists = {"vectors": [(1, 0.5)], "words": [(1, 2.0)]}
    narrow = {"vectors": [(1, 0.84)], "words": [(1, 2.0)]}
    (first,), (second,) = fuse(lists, {1: 1}, SCALE), fuse(narrow, {1: 1}, Scale(0.8, 0.01, 4.0))
    assert first.score == pytest.approx(second.score)


def test_a_document_has_the_relevance_of_its_best_chunk() -> None:
    groups = {1: 10, 2: 10, 3: 11, 4: 11}
    lists = {"vectors": [(1, 0.9), (2, 0.8), (3, 0.7)], "words": [(4, 5.0), (2, 4.0)]}
    first, second = fuse(lists, groups, SCALE)
    assert (first.chunk, second.chunk) == (2, 4)
    assert [fused.chunk for fused in fuse({"vectors": lists["vectors"]}, groups)] == [1, 3]
    assert [fused.chunk for fused in fuse({"vectors": [(3, -0.1), (1, -0.5), (2, -0.7)]}, groups)] == [3, 1]


def test_equal_scores_keep_an_order_and_nothing_is_nothing() -> None:
    for places in ({3: 3, 5: 5}, {5: 5, 3: 3}):
        assert [fused.chunk for fused in fuse({"vectors": [(5, 0.5), (3, 0.5)]}, places)] == [*places]
        assert [fused.chunk for fused in fuse({"vectors": [(5, 0.5), (3, 0.5)]}, places, SCALE)] == [*places]
    assert fuse({"vectors": [], "words": []}, {}, SCALE) == []
    (one,) = fuse({"vectors": [], "words": [(1, 0.0)]}, {1: 1}, Scale(0.1, 0.1, 0.0))
    assert 0 < one.score < 0.01


def test_texts_that_differ_by_little_are_alike() -> None:
    texts = DistinctTexts()
    assert texts.add("I want to cancel my subscription.") is None
    assert texts.add("i want to CANCEL\u00adl my subscription!") is None
    assert texts.add("i want to CANCEL my subscription") == 0
    assert texts.add("") is None and texts.add("...") is None and texts.add("...") == 3
    long = " ".join("abcdefghijklmnopqrstuvwxyz")
    assert texts.add(long) is None and texts.add(f"{long} please") == 4 and texts.add(f"{long} 12") is None


@pytest.mark.parametrize(
    ("one", "other"),
    [
        ("The server is reachable from the office.", "The server is not reachable from the office."),
        ("broken shade", "broken bulb"),
        ("Order 17 was paid on time by card and sent", "Order 18 was paid on time by card and sent"),
        ("\u7533\u8bf7\u9000\u6b3e", "\u7533\u8bf7\u9000\u8d27"),
    ],
)
def test_short_texts_with_another_word_or_number_are_different(one: str, other: str) -> None:
    texts = DistinctTexts()
    assert texts.add(one) is None and texts.add(other) is None
