"""Vectors in NumPy arrays are scaled to length 1."""

from typing import Any

import numpy as np

from mlxbert.nn.unit_vectors import unit_length


def test_every_vector_but_zero_has_length_1() -> None:
    vectors = np.array([[3, 4], [0, 0], [-1e-5, 0]], np.float32)
    assert np.allclose(unit_length(vectors), np.array([[0.6, 0.8], [0, 0], [-1, 0]]))
    assert np.allclose(unit_length(vectors[0]), [0.6, 0.8]) and vectors[0, 0] == 3
    small: list[np.ndarray[Any, Any]] = [np.array([[100, 100]], np.int8), np.array([[300, 300]], np.float16)]
    assert all(np.allclose(unit_length(each), 0.5**0.5, atol=1e-3) for each in small)
    assert unit_length(vectors, out=vectors) is vectors and np.allclose(vectors[0], [0.6, 0.8])
