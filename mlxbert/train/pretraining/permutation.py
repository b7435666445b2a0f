"""A random permutation of a range of numbers, in constant memory."""

import random
from collections.abc import Iterator

_ROUNDS = 6
_ODD, _WORD = 0x9E3779B97F4A7C15, 2**64 - 1  # the golden ratio, whose multiples spread over 64 bits


class FeistelPermutation:
    """The numbers from 0 to `count` - 1 in a random order that depends only on the seed.

    A Feistel network permutes the numbers below a power of four. It is applied to a number repeatedly, until the result
    is below `count` (https://en.wikipedia.org/wiki/Format-preserving_encryption).
    """

    def __init__(self, count: int, seed: str) -> None:
        rng = random.Random(seed)
        self._count, self._half = count, (max(count - 1, 1).bit_length() + 1) // 2
        self._keys = [rng.getrandbits(64) for _ in range(_ROUNDS)]

    def __iter__(self) -> Iterator[int]:
        return map(self.__getitem__, range(self._count))

    def __getitem__(self, place: int) -> int:
        """Returns the number at this position of the random order; positions start at 0."""
        while (place := self._encrypted(place)) >= self._count:
            pass
        return place

    def _encrypted(self, number: int) -> int:
        left, right = number >> self._half, number & ((1 << self._half) - 1)
        for key in self._keys:
            mixed = ((right + 1) * _ODD ^ key) & _WORD
            mixed = (mixed ^ mixed >> 29) * _ODD & _WORD
            left, right = right, left ^ mixed >> (64 - self._half)
        return left << self._half | right
