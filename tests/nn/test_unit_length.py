"""Vectors in NumPy arrays are scaled to length 1."""

from typing import Any

import numpy as np

from mlxbert.nn.unit_length import spherical_kmeans, unit_length


def test_every_vector_but_zero_has_length_1() -> None:
    vectors = np.array([[3, 4], [0, 0], [-1e-5, 0]], np.float32)
    assert np.allclose(unit_length(vectors), np.array([[0.6, 0.8], [0, 0], [-1, 0]]))
    assert np.allclose(unit_length(vectors[0]), [0.6, 0.8]) and vectors[0, 0] == 3
    small: list[np.ndarray[Any, Any]] = [np.array([[100, 100]], np.int8), np.array([[300, 300]], np.float16)]
    assert all(np.allclose(unit_length(each), 0.5**0.5, atol=1e-3) for each in small)
    assert unit_length(vectors, out=vectors) is vectors and np.allclose(vectors[0], [0.6, 0.8])


def test_centers_move_to_the_mean_direction_of_their_group() -> None:
    angles = np.radians([0, 10, 20, 90, 100, 110])
    vectors = np.stack([np.cos(angles), np.sin(angles)], 1).astype(np.float32)
    far = np.array([[0, -1]], np.float32)
    centers = spherical_kmeans(vectors, np.concatenate([vectors[[0, 2]], far]), 10)
    assert np.allclose(centers[:2], vectors[[1, 4]], atol=1e-6)
    assert np.array_equal(centers[2:], far)  # no vector is near it
