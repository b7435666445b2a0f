"""Options: each is declared once, next to a field of a dataclass; the command line derives its options from them."""

import functools
import math
from collections.abc import Iterable, Mapping, Sized
from dataclasses import dataclass
from types import NoneType
from typing import Annotated, Any, Literal, NamedTuple, cast, get_args, get_origin, get_type_hints

from mlxbert.errors import ArgumentError, shown
from mlxbert.frozen_dict import FrozenDict
from mlxbert.other_libraries import not_one_of

DType = Literal["auto", "float32", "float16", "bfloat16"]  # of computation
Device = Literal["auto", "gpu", "cpu"]
# How the vectors of a text's tokens become one vector.
POOLINGS = ("cls", "mean", "max", "mean_sqrt_len", "weighted_mean", "last_token", "attention")


class Bounds(NamedTuple):
    """The smallest and the largest value of a number.

    No sane use comes near the largest; without it, a typo would take all memory, or days. The limits of a model are
    often narrower, and are checked where the model is known.
    """

    least: float
    most: float

    def check_whole(self, name: str, value: object) -> None:
        """Refuses an argument that is not a whole number within the bounds."""
        least = math.ceil(self.least)
        if type(value) is not int or not least <= value <= self.most:
            raise ArgumentError(f"{name} is {shown(value)}, expected a whole number from {least:,} to {self.most:,}")

    def check_number(self, name: str, value: object) -> None:
        """Refuses an argument that is not a finite number within the bounds."""
        number = isinstance(value, int | float) and not isinstance(value, bool)
        if not number or not self.least <= value <= self.most:  # type: ignore[operator]
            raise ArgumentError(f"{name} is {shown(value)}, expected a number from {self.least:,} to {self.most:,}")


SMALLEST = 1e-6  # the lower bound of numbers that must be above 0
COUNT = Bounds(1, 10_000_000)  # of things that memory or the data limit, too
STEPS = Bounds(1, 1_000_000_000)
LENGTH = Bounds(8, 1_000_000)  # of an input or a window, in tokens
OVERLAP = Bounds(0, 1_000_000)  # of windows, in tokens
RATE = Bounds(0, 0.99)  # of dropout and the like
SEED = Bounds(0, 2**32 - 1)
SHARE = Bounds(SMALLEST, 0.99)  # of the data
TOLERANCE = Bounds(0, 1_000_000)
CANDIDATES = Bounds(1, 100_000)  # of a search, which are reranked
ROUNDS = Bounds(1, 1000)  # of a measurement
MAX_LISTED = 1000  # numbers or names in one option
TEXTS = tuple[str, ...]  # the type of an option that takes several texts


@dataclass(frozen=True)
class Option:
    """What a user needs to know about a field besides its type and its default.

    Attributes:
        help: What it does: one sentence for `--help`, which fits on its line, then details for `mlxbert help` and for
            the documentation of the Python functions.
        unit: The placeholder of its value; by default `N` for whole numbers, `X` for other numbers, otherwise `NAME`.
        usual: In words, the default of an option whose default is not always the field's.
        panel: The heading that lists it in `--help`; by default the attribute `panel` of the dataclass.
        short: A second, short name.
        variable: The environment variable that sets it.
        values: Values to list and to complete, if other values are possible.
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
    """Marks an option or an argument as a path that a command writes; stands next to the declaration.

    Before it does anything else, the command line refuses a path where something other than a regular file, or a
    folder, already exists.

    Attributes:
        kind: Whether a file or a folder is written.
    """

    kind: Literal["file", "folder"]


@functools.cache
def declared_options(options: Any) -> Mapping[str, tuple[Any, Option]]:
    """The type and the declaration of each field of a dataclass that is an option, in the order of the fields."""
    hints = get_type_hints(options, include_extras=True)
    annotated = {name: get_args(hint) for name, hint in hints.items() if get_origin(hint) is Annotated}
    return FrozenDict({
        name: (kind, mark) for name, (kind, *marks) in annotated.items() for mark in marks if isinstance(mark, Option)
    })  # fmt: skip


def bounds_of(options: Any, name: str) -> Bounds:
    """The bounds of a dataclass's option."""
    bounds = declared_options(options)[name][1].bounds
    assert bounds is not None, name
    return bounds


def check_fields(options: Any) -> None:
    """Refuses values of a dataclass outside the types or the bounds of its options; several texts become a tuple."""
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
        elif TEXTS in kinds:
            object.__setattr__(options, name, _texts(name, value))
        else:
            check_choice(name, value, hint)


def check_listed(name: str, values: Sized) -> None:
    """Refuses a list argument with more than `MAX_LISTED` numbers or names."""
    if len(values) > MAX_LISTED:
        raise ArgumentError(f"{name} has {len(values):,} values, expected at most {MAX_LISTED:,}")


def _check_flag(name: str, value: object, *, optional: bool) -> None:
    if not isinstance(value, bool):
        raise ArgumentError(f"{name} is {shown(value)}, expected True{', False or None' if optional else ' or False'}")


def _texts(name: str, value: object) -> tuple[str, ...]:
    """The texts of an iterable, which is read once."""
    expected = "expected a list of at least one text"
    if isinstance(value, str) or not isinstance(value, Iterable):
        raise ArgumentError(f"{name} is {shown(value)}, {expected}")
    texts = tuple(value)
    if not texts:
        raise ArgumentError(f"{name} is empty, {expected}")
    if wrong := [text for text in texts if not isinstance(text, str)]:
        raise ArgumentError(f"{name} has {shown(wrong[0])}, {expected}")
    return texts


def check_choice(name: str, value: object, hint: Any) -> None:
    """Refuses a value that is not among the choices of a type with a `Literal`."""
    if (choices := choices_of(hint)) and value not in choices:
        raise not_one_of(name, value, choices)


def kinds_of(hint: Any) -> tuple[Any, ...]:
    """The members of a union, or the type itself."""
    union = get_origin(hint) not in (None, Literal, list, tuple)
    return get_args(hint) if union else (hint,)


def choices_of(hint: Any) -> tuple[Any, ...]:
    """The choices of a type with a `Literal`; empty for other types."""
    return next((get_args(kind) for kind in kinds_of(hint) if get_origin(kind) is Literal), ())
