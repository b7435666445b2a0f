"""Orders made one."""

import pytest

from mlxbert.search.rank_fusion import WEIGHTS, K, fuse


def test_one_list_keeps_its_scores() -> None:
    ranked = fuse({"vectors": [(1, 0.9), (2, 0.8), (3, -0.5)]}, {1: 1, 2: 2, 3: 3})
    assert [(one.chunk, one.score, one.ranks) for one in ranked] == [
        (1, 0.9, {"vectors": 1}), (2, 0.8, {"vectors": 2}), (3, -0.5, {"vectors": 3}),
    ]  # fmt: skip


def test_ranks_are_fused() -> None:
    lists = {"vectors": [(1, 0.9), (2, 0.8)], "words": [(2, 7.0), (3, 6.0)], "phrase": [(3, 1.0)]}
    found = {one.chunk: one for one in fuse(lists, {1: 1, 2: 2, 3: 3})}
    assert found[1].score == pytest.approx(1 / (K + 1))
    assert found[2].score == pytest.approx(1 / (K + 2) + 1 / (K + 1))
    assert found[3].score == pytest.approx(1 / (K + 2) + WEIGHTS["phrase"] / (K + 1))
    assert found[2].scores == {"vectors": 0.8, "words": 7.0} and found[2].ranks == {"vectors": 2, "words": 1}
    assert [*found] == [3, 2, 1]


def test_a_document_has_the_rank_of_its_best_chunk() -> None:
    groups = {1: 10, 2: 10, 3: 11, 4: 11}
    lists = {"vectors": [(1, 0.9), (2, 0.8), (3, 0.7)], "words": [(4, 5.0), (2, 4.0)]}
    first, second = fuse(lists, groups)
    assert {first.chunk, second.chunk} <= {1, 2, 3, 4} and groups[first.chunk] == 10 and groups[second.chunk] == 11
    assert first.score == pytest.approx(1 / (K + 1) + 1 / (K + 2)) == second.score
    assert [one.chunk for one in fuse({"vectors": lists["vectors"]}, groups)] == [1, 3]
    assert [one.score for one in fuse({"vectors": lists["vectors"]}, groups)] == [0.9, 0.7]
    assert [one.chunk for one in fuse({"vectors": [(3, -0.1), (1, -0.5), (2, -0.7)]}, groups)] == [3, 1]


def test_equal_scores_keep_an_order_and_nothing_is_nothing() -> None:
    assert [one.chunk for one in fuse({"vectors": [(5, 1.0)], "words": [(3, 1.0)]}, {3: 3, 5: 5})] == [3, 5]
    assert [one.chunk for one in fuse({"vectors": [(5, 1.0)], "words": [(3, 1.0)]}, {5: 5, 3: 3})] == [5, 3]
    assert fuse({"vectors": [], "words": []}, {}) == []


def test_words_count_as_much_as_of_the_query_is_there() -> None:
    lists = {"vectors": [(1, 0.9), (2, 0.8)], "words": [(2, 3.0), (3, 0.001)]}
    found = {one.chunk: one.score for one in fuse(lists, {1: 1, 2: 2, 3: 3}, reachable=6.0)}
    assert found[2] == pytest.approx(1 / (K + 2) + 0.5 / (K + 1))
    assert found[1] == pytest.approx(1 / (K + 1))
    assert found[3] < found[1] / 1000
