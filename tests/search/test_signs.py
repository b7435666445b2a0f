"""The nearest by signs are those of a plain computation."""

import numpy as np

from mlxbert.search.nearest_vectors import _WIDER, Signs, row_bytes, signs_of
from tests.helpers.cases import together


@together("width", [1, 8, 63, 64, 65, 384, 1000])
@together("count", [1, 10, 90, 10_000])
def test_hamming(width: int, count: int) -> None:
    rng = np.random.default_rng(width)
    vectors = rng.standard_normal((100, width)).astype(np.float32)
    query = rng.standard_normal(width).astype(np.float32)
    alive, only = rng.random(100) < 0.8, rng.random(100) < 0.5
    assert signs_of(vectors).shape == (100, row_bytes(width))
    signs = Signs(signs_of(vectors), alive)
    distances, products = ((vectors > 0) != (query > 0)).sum(1), (vectors > 0) @ query
    for mask in (None, only):
        places = np.flatnonzero(alive if mask is None else alive & mask)
        furthest = np.sort(distances[places])[: min(_WIDER * count, len(places))][-1]
        wide = [place for place in places if distances[place] <= furthest]
        expected = sorted(wide, key=lambda place: -products[place])[:count]
        found = signs.nearest(query, count, mask)
        assert len({*found}) == len(expected)
        assert np.allclose(sorted(products[found]), sorted(products[expected]), atol=1e-4)


def test_more_than_a_block_of_vectors() -> None:
    rng = np.random.default_rng(0)
    rows = rng.integers(0, 256, (70_000, 8), np.uint8)
    query = np.where(np.unpackbits(rows[-1]), 1.0, -1.0).astype(np.float32)
    signs = Signs(rows, np.ones(70_000, bool))
    distances = np.bitwise_count(rows ^ rows[-1]).sum(1)  # the product with signs is as good as these
    found = signs.nearest(query, 50)
    assert sorted(distances[found]) == sorted(distances)[:50] and 69_999 in found
    assert (signs.rows(np.array([5, 69_999])) == rows[[5, 69_999]]).all()


def test_none_alive() -> None:
    query = np.ones(24, np.float32)
    assert not len(Signs(np.zeros((5, 8), np.uint8), np.zeros(5, bool)).nearest(query, 3))
    assert not len(Signs(np.zeros((0, 8), np.uint8), np.zeros(0, bool)).nearest(query, 3))
