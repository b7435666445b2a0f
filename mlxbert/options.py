"""Options: each is declared once, next to the field of a dataclass, and the command line makes its options of them."""

import functools
import math
from collections.abc import Mapping
from dataclasses import dataclass
from types import NoneType
from typing import Annotated, Any, Literal, NamedTuple, cast, get_args, get_origin, get_type_hints

from mlxbert.bounds import BOUNDS, shown
from mlxbert.counterparts import not_one_of
from mlxbert.errors import ArgumentError
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


COUNT = Bounds(1, 10_000_000)  # of what memory or the data limit, too


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
    return declared_options(options)[name][1].bounds or Bounds(*BOUNDS[name])


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
