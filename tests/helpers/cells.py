"""Which of many combinations a test runs: a part that meets everything once, or all with `MLXBERT_TEST_ALL=1`."""

import itertools
import os
from collections.abc import Iterable

from hypothesis import settings

ALL = bool(os.environ.get("MLXBERT_TEST_ALL"))


def cells(rows: Iterable[str], columns: Iterable[str]) -> list[tuple[str, str]]:
    """Pairs of a row and a column: all of the first row, and of every other one a column in turn."""
    rows, columns = list(rows), list(columns)
    if ALL:
        return list(itertools.product(rows, columns))
    turns = zip(rows[1:], itertools.cycle(columns), strict=False)
    return [*((rows[0], column) for column in columns), *turns]


def some(rows: Iterable[str]) -> list[str]:
    """Every fourth row, the first and the last among them."""
    rows = list(rows)
    return rows if ALL else [*rows[:-1:4], rows[-1]]


def quick(examples: int) -> settings:
    """How hypothesis searches: as many examples with `MLXBERT_TEST_ALL=1`, a quarter of them otherwise."""
    return settings(deadline=None, max_examples=examples if ALL else examples // 4)
