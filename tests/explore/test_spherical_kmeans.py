"""Centers move to the vectors of their groups."""

import numpy as np

from mlxbert.explore.near_vectors import spherical_kmeans


def test_centers_move_to_the_mean_direction_of_their_group() -> None:
    angles = np.radians([0, 10, 20, 90, 100, 110])
    vectors = np.stack([np.cos(angles), np.sin(angles)], 1).astype(np.float32)
    far = np.array([[0, -1]], np.float32)
    centers = spherical_kmeans(vectors, np.concatenate([vectors[[0, 2]], far]), 10)
    assert np.allclose(centers[:2], vectors[[1, 4]], atol=1e-6)
    assert np.array_equal(centers[2:], far)  # no vector is near it
