"""Selects which of many combinations a test runs: a part that covers every value, or all with `MLXBERT_TEST_ALL=1`."""

import itertools
from collections.abc import Iterable

from hypothesis import settings

from tests.helpers.cases import ALL as ALL


def cells(rows: Iterable[str], columns: Iterable[str]) -> list[tuple[str, str]]:
    """Returns pairs of a row and a column: the first row with all columns, every other row with one column in turn."""
    rows, columns = list(rows), list(columns)
    if ALL:
        return list(itertools.product(rows, columns))
    turns = zip(rows[1:], itertools.cycle(columns), strict=False)
    return [*((rows[0], column) for column in columns), *turns]


def some(rows: Iterable[str]) -> list[str]:
    """Returns every fourth row, including the first and the last."""
    rows = list(rows)
    return rows if ALL else [*rows[:-1:4], rows[-1]]


def quick(examples: int) -> settings:
    """Returns settings for hypothesis: `examples` examples with `MLXBERT_TEST_ALL=1`, otherwise a quarter of them."""
    return settings(deadline=None, max_examples=examples if ALL else examples // 4)
