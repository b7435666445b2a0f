"""Splits validation data off training data."""

import random
from collections import Counter
from collections.abc import Callable, Hashable, Mapping, Sequence
from operator import attrgetter
from typing import TypeVar

from mlxbert.errors import ArgumentError, InputError
from mlxbert.option_declarations import SHARE

# Maximum number of validation records: with 5000, the 95 % interval of an accuracy of 0.9 is ± 0.8 points. More records
# make evaluations longer, hardly improve the choice of the best checkpoint, and are missing in training.
MOST = 5000

T = TypeVar("T")
_KEY, _NAMES = attrgetter("key"), attrgetter("names")  # the defaults, for `LabelledText`


def check_fraction(valid: object, fraction: float | None) -> None:
    """Raises ArgumentError if the share of validation data is invalid, or if `valid` is given as well."""
    if fraction is None:
        return
    SHARE.check_number("validation_fraction", fraction)
    if valid is not None:
        raise ArgumentError(
            "`valid` and `validation_fraction` cannot be combined", hint="with `valid=`, no training data is held out"
        )


def split(
    records: Sequence[T],
    share: float,
    seed: int,
    key: Callable[[T], Hashable] = _KEY,
    names: Callable[[T], Sequence[str]] = _NAMES,
) -> tuple[list[T], list[T]]:
    """Splits records into training and validation data, both in the order of the records.

    Each label has about the same share of both, and keeps at least one example to train on: a label that occurs only
    once is not in the validation data. Records with the same key stay together. The result depends only on the
    arguments.

    At least one record and at most `MOST` records are chosen. `key` returns what identifies a record's input.
    """
    check_fraction(None, share)
    size = min(max(round(share * len(records)), 1), MOST)
    remaining = Counter(name for record in records for name in (None, *names(record)))  # None counts all records
    groups = _shuffled(records, remaining, seed, key, names)
    held_out: list[int] = []

    def take(group: list[int]) -> bool:
        """Takes a group for validation, unless one of its labels would have no example left for training."""
        count = Counter(name for index in group for name in (None, *names(records[index])))
        free = all(remaining[name] > number for name, number in count.items())
        if free:
            remaining.subtract(count)
            held_out.extend(group)
        return free

    due = 0  # records due for validation, times len(records): integers avoid rounding
    for group in groups:
        due += size * len(group)
        if 2 * due >= len(records) * len(group) and take(group):
            due -= len(records) * len(group)
    if not held_out and not any(take(group) for group in sorted(groups, key=len)):
        count = "1 example" if len(records) == 1 else f"{len(records)} examples"
        raise InputError(
            f"no validation data can be split off from {count}, because each label needs two different "
            "texts, and questions need two different contexts",
            hint="give validation data with `valid=`",
        )
    validation = {*held_out}
    valid = [records[index] for index in sorted(validation)]
    return [record for index, record in enumerate(records) if index not in validation], valid


def _shuffled(
    records: Sequence[T],
    counts: Mapping[str | None, int],
    seed: int,
    key: Callable[[T], Hashable],
    names: Callable[[T], Sequence[str]],
) -> list[list[int]]:
    """Groups the indices of records by key.

    Groups with the same rarest label follow one another, in random order.
    """
    groups: dict[Hashable, list[int]] = {}
    for index, record in enumerate(records):
        groups.setdefault(key(record), []).append(index)
    strata: dict[str | None, list[list[int]]] = {}
    for group in groups.values():
        labels = (name for index in group for name in names(records[index]))
        rarest = min(labels, key=lambda name: (counts[name], name), default=None)
        strata.setdefault(rarest, []).append(group)
    draw = random.Random(seed).random  # the only method guaranteed to stay the same in later versions of Python
    return [group for stratum in strata.values() for group in sorted(stratum, key=lambda _: draw())]
