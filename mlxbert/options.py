"""Options: each is declared once, next to the field of a dataclass, and the command line makes its options of them."""

import functools
import math
from collections.abc import Mapping, Sized
from dataclasses import dataclass
from types import NoneType
from typing import Annotated, Any, Literal, NamedTuple, cast, get_args, get_origin, get_type_hints

from mlxbert.counterparts import not_one_of
from mlxbert.errors import ArgumentError, shown
from mlxbert.frozen import FrozenDict

DType = Literal["auto", "float32", "float16", "bfloat16"]  # of computation
Device = Literal["auto", "gpu", "cpu"]
# What makes one vector of those of the tokens.
POOLINGS = ("cls", "mean", "max", "mean_sqrt_len", "weighted_mean", "last_token", "attention")


class Bounds(NamedTuple):
    """The smallest and the largest value of a number.

    No sane use comes near the largest; without one, a slip of the finger takes all memory, or days. What a model allows
    is often narrower, and checked where the model is known.
    """

    least: float
    most: float

    def check_whole(self, name: str, value: object) -> None:
        """Refuses a value of an argument that is not a whole number within the bounds."""
        least = math.ceil(self.least)
        if type(value) is not int or not least <= value <= self.most:
            raise ArgumentError(f"{name} is {shown(value)}, expected a whole number from {least:,} to {self.most:,}")

    def check_number(self, name: str, value: object) -> None:
        """Refuses a value of an argument that is not a finite number within the bounds."""
        number = isinstance(value, int | float) and not isinstance(value, bool)
        if not number or not self.least <= value <= self.most:  # type: ignore[operator]
            raise ArgumentError(f"{name} is {shown(value)}, expected a number from {self.least:,} to {self.most:,}")


SMALLEST = 1e-6  # of what has to be above 0
COUNT = Bounds(1, 10_000_000)  # of what memory or the data limit, too
STEPS = Bounds(1, 1_000_000_000)
LENGTH = Bounds(8, 1_000_000)  # of an input or a window, in tokens
OVERLAP = Bounds(0, 1_000_000)  # of windows, in tokens
RATE = Bounds(0, 0.99)  # of dropout and the like
SEED = Bounds(0, 2**32 - 1)
SHARE = Bounds(SMALLEST, 0.99)  # of the data
TOLERANCE = Bounds(0, 1_000_000)
CANDIDATES = Bounds(1, 100_000)  # of a search, which are ranked anew
ROUNDS = Bounds(1, 1000)  # of measuring
MOST_LISTED = 1000  # numbers or names in one option


@dataclass(frozen=True)
class Option:
    """What a user needs to know of a field besides its type and its default.

    Attributes:
        help: What it does: a sentence for `--help`, which fits on its line, and details for `mlxbert help` and for the
            documentation of Python's functions.
        unit: What stands for its value; by default `N` for whole numbers, `X` for others, and `NAME`.
        usual: In words, what is used where the option is left out, if that is not always the field's default.
        panel: The heading that it is under; by default that of its dataclass, its attribute `panel`.
        short: A second, short name.
        variable: The environment variable that it can be given in.
        values: Values to list and to complete, if others are possible.
        bounds: The smallest and the largest value of a number.
    """

    help: str
    unit: str | None = None
    usual: str | None = None
    panel: str | None = None
    short: str | None = None
    variable: str | None = None
    values: tuple[str, ...] = ()
    bounds: Bounds | None = None


@dataclass(frozen=True)
class Written:
    """Marks an option or an argument as the path of what a command writes; it stands next to its declaration.

    The command line refuses everything but a regular file, or a folder, at such a path before it does anything else.

    Attributes:
        kind: What is written.
    """

    kind: Literal["file", "folder"]


@functools.cache
def declared_options(options: Any) -> Mapping[str, tuple[Any, Option]]:
    """The fields of a dataclass that are options, in their order: the type and the declaration of each."""
    hints = get_type_hints(options, include_extras=True)
    annotated = {name: get_args(hint) for name, hint in hints.items() if get_origin(hint) is Annotated}
    return FrozenDict({
        name: (kind, mark) for name, (kind, *marks) in annotated.items() for mark in marks if isinstance(mark, Option)
    })  # fmt: skip


def bounds_of(options: Any, name: str) -> Bounds:
    """The bounds of an option of a dataclass."""
    bounds = declared_options(options)[name][1].bounds
    assert bounds is not None, name
    return bounds


def check_fields(options: Any) -> None:
    """Refuses values of a dataclass that the types or the bounds of its options do not allow."""
    for name, (hint, _) in declared_options(cast(Any, type(options))).items():
        value, kinds = getattr(options, name), kinds_of(hint)
        if value is None and NoneType in kinds:
            continue
        if float in kinds:
            bounds_of(type(options), name).check_number(name, value)
        elif int in kinds:
            bounds_of(type(options), name).check_whole(name, value)
        elif bool in kinds:
            _check_flag(name, value, optional=NoneType in kinds)
        else:
            check_choice(name, value, hint)


def check_listed(name: str, values: Sized) -> None:
    """Refuses more numbers or names than anybody lists in one argument."""
    if len(values) > MOST_LISTED:
        raise ArgumentError(f"{name} has {len(values):,} values, expected at most {MOST_LISTED:,}")


def _check_flag(name: str, value: object, *, optional: bool) -> None:
    if not isinstance(value, bool):
        raise ArgumentError(f"{name} is {shown(value)}, expected True{', False or None' if optional else ' or False'}")


def check_choice(name: str, value: object, hint: Any) -> None:
    """Refuses a value that a type with a `Literal` does not allow."""
    if (choices := choices_of(hint)) and value not in choices:
        raise not_one_of(name, value, choices)


def kinds_of(hint: Any) -> tuple[Any, ...]:
    """The types that a type allows: those of a union, or the type itself."""
    union = get_origin(hint) not in (None, Literal, list, tuple)
    return get_args(hint) if union else (hint,)


def choices_of(hint: Any) -> tuple[Any, ...]:
    """The values that a type with a `Literal` allows; none of other types."""
    return next((get_args(kind) for kind in kinds_of(hint) if get_origin(kind) is Literal), ())
