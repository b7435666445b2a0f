"""Leaders, pairs, neighbours and centers among many vectors, compared with loops over all pairs."""

from typing import Any

import numpy as np
import pytest
from hypothesis import given, strategies as st

from mlxbert.explore import near_vectors
from mlxbert.explore.near_vectors import find_leaders, nearest_of_each, similar_pairs, spherical_kmeans


def vectors(count: int, width: int, seed: int = 0) -> Any:
    """Random vectors of length 1."""
    drawn = np.random.default_rng(seed).normal(size=(count, width)).astype(np.float32)
    return drawn / np.linalg.norm(drawn, axis=1, keepdims=True)


def slow_leaders(units: Any, threshold: float) -> list[int]:
    """The leader of each vector, by a loop."""
    leaders, found = list[int](), list[int]()
    for number, vector in enumerate(units):
        products = units[leaders] @ vector
        if leaders and products.max() >= threshold:
            found.append(leaders[int(products.argmax())])
        else:
            leaders.append(number)
            found.append(number)
    return found


@pytest.mark.parametrize("block", [7, 1024])
@pytest.mark.parametrize(("width", "threshold"), [(3, 0.9), (8, 0.8), (16, 0.3)])
def test_leaders_are_those_of_a_loop(width: int, threshold: float, block: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(near_vectors, "_BLOCK", block)
    units = vectors(300, width)
    leaders, scores = find_leaders(units, threshold)
    expected = slow_leaders(units, threshold)
    assert leaders.tolist() == expected and len({*expected}) < 300
    followers = leaders != np.arange(300)
    assert np.allclose(scores[followers], (units * units[leaders]).sum(1)[followers], atol=1e-6)
    assert (scores[~followers] == 1).all()


def around(centres: Any, copies: int, noise: float) -> Any:
    """Vectors of length 1 near other ones."""
    many = np.repeat(centres, copies, 0) + noise * vectors(len(centres) * copies, centres.shape[1], 1)
    return (many / np.linalg.norm(many, axis=1, keepdims=True)).astype(np.float32)


def test_cells_find_what_all_pairs_find(monkeypatch: pytest.MonkeyPatch) -> None:
    """With small blocks, most comparisons go through the cells."""
    for name, value in {"_FEW": 10, "_BLOCK": 32, "_WIDE": 64}.items():
        monkeypatch.setattr(near_vectors, name, value)
    units = around(vectors(700, 24), 3, 0.15)[np.random.default_rng(2).permutation(2100)]
    all_leaders, _ = find_leaders(units, 0.9, all_pairs=True)
    leaders, scores = find_leaders(units, 0.9)
    assert len({*all_leaders}) == 700
    assert (leaders == all_leaders).mean() > 0.97
    followers = leaders != np.arange(2100)
    assert scores[followers].min() >= 0.9 - 1e-5 and (leaders[leaders] == leaders).all()


def test_equal_vectors_have_one_leader() -> None:
    units = np.repeat(vectors(1, 5), 3000, 0)
    assert not find_leaders(units, 1.0)[0].any()


@given(st.integers(1, 60), st.integers(0, 2000), st.floats(-1, 1), st.integers(0, 10**6))
def test_pairs_are_the_most_similar_ones(count: int, most: int, least: float, seed: int) -> None:
    units = vectors(count, 4, seed)
    first, second, scores = similar_pairs(units, least, most + 1)
    rows, columns = np.triu_indices(count, 1)
    every = np.sort((units @ units.T)[rows, columns])[::-1]
    expected = every[every >= least - 1e-6][: most + 1]
    assert np.allclose(scores, expected, atol=1e-6) and (first < second).all()
    assert len({*zip(first.tolist(), second.tolist(), strict=True)}) == len(first)
    assert np.allclose(scores, (units[first] * units[second]).sum(1), atol=1e-6)


def test_pairs_of_many_blocks_keep_the_best(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(near_vectors, "_PAIRS", 9)
    monkeypatch.setattr(near_vectors, "_TOGETHER", 26)
    units = vectors(200, 6)
    rows, columns = np.triu_indices(200, 1)
    scores = similar_pairs(units, 0.0, 50)[2]
    assert np.allclose(scores, np.sort((units @ units.T)[rows, columns])[::-1][:50], atol=1e-6)


@pytest.mark.parametrize("count", [0, 1, 2, 9, 600])
def test_the_nearest_of_each(count: int) -> None:
    units = vectors(count, 6) if count else np.zeros((0, 6), np.float32)
    near, scores = nearest_of_each(units, 3)
    assert near.shape == scores.shape == (count, max(min(3, count - 1), 0))
    products = units @ units.T
    np.fill_diagonal(products, -np.inf)
    assert np.array_equal(near, np.argsort(-products, axis=1, kind="stable")[:, : near.shape[1]])
    assert np.allclose(scores, np.take_along_axis(products, near, 1), atol=1e-6)


def test_centers_move_to_the_mean_direction_of_their_group() -> None:
    angles = np.radians([0, 10, 20, 90, 100, 110])
    vectors = np.stack([np.cos(angles), np.sin(angles)], 1).astype(np.float32)
    far = np.array([[0, -1]], np.float32)
    centers = spherical_kmeans(vectors, np.concatenate([vectors[[0, 2]], far]), 10)
    assert np.allclose(centers[:2], vectors[[1, 4]], atol=1e-6)
    assert np.array_equal(centers[2:], far)  # no vector is near it
