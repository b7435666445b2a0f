"""Options, each declared once, next to a field of a dataclass; the command line is built from the declarations."""

import functools
import math
from collections.abc import Iterable, Mapping, Sized
from dataclasses import dataclass
from numbers import Integral, Real
from pathlib import Path
from types import NoneType
from typing import Annotated, Any, Literal, NamedTuple, TypeGuard, cast, get_args, get_origin, get_type_hints

from mlxbert.errors import ArgumentError, shown
from mlxbert.frozen_dict import FrozenDict
from mlxbert.other_libraries import not_one_of

DType = Literal["auto", "float32", "float16", "bfloat16"]  # of computation
Device = Literal["auto", "gpu", "cpu"]
# How a text's token vectors become one vector.
POOLINGS = ("cls", "mean", "max", "mean_sqrt_len", "weighted_mean", "last_token", "attention")


class Bounds(NamedTuple):
    """The smallest and the largest permitted value of a number.

    No sane use comes near the largest value. It exists because a typo could otherwise take all memory, or run for days.
    The limits of a model are often narrower, and are checked where the model is known.
    """

    least: float
    most: float

    def check_whole(self, name: str, value: object) -> int:
        """Returns an argument as an int; raises an ArgumentError unless it is a whole number within the bounds."""
        least = math.ceil(self.least)
        if not is_whole(value) or not least <= value <= self.most:
            raise ArgumentError(f"`{name}` is {shown(value)}, expected a whole number from {least:,} to {self.most:,}")
        return int(value)

    def check_number(self, name: str, value: object) -> float:
        """Returns an argument as a number of Python; raises an ArgumentError unless it is finite and in the bounds."""
        number = isinstance(value, Real) and not isinstance(value, bool)
        if not number or not self.least <= value <= self.most:  # type: ignore[operator]
            raise ArgumentError(f"`{name}` is {shown(value)}, expected a number from {self.least:,} to {self.most:,}")
        return value if type(value) in (int, float) else float(value)  # type: ignore[arg-type, return-value]


def is_whole(value: object) -> TypeGuard[int]:
    """Whether a value is a whole number, of Python or of NumPy."""
    return isinstance(value, Integral) and not isinstance(value, bool)


SMALLEST = 1e-6  # the lower bound of numbers that must be above 0
COUNT = Bounds(1, 10_000_000)  # of things that memory or the data also limit
STEPS = Bounds(1, 1_000_000_000)
LENGTH = Bounds(8, 1_000_000)  # of an input or a window, in tokens
OVERLAP = Bounds(0, 1_000_000)  # of windows, in tokens
RATE = Bounds(0, 0.99)  # of dropout and the like
SEED = Bounds(0, 2**32 - 1)
SHARE = Bounds(SMALLEST, 0.99)  # of the data
TOLERANCE = Bounds(0, 1_000_000)
CANDIDATES = Bounds(1, 100_000)  # of a search, which are reranked
ROUNDS = Bounds(1, 1000)  # of a measurement
POINTS = Bounds(2, 1000)  # at which an integral is sampled
MAX_LISTED = 1000  # numbers or names in one option
TEXTS = tuple[str, ...]  # the type of an option that takes several texts


@dataclass(frozen=True)
class Option:
    """The declaration of an option: what a user needs to know about a field besides its type and its default."""

    # What the option does. The first sentence fits on one line of `--help`; details follow for `mlxbert help` and for
    # the documentation of the Python functions.
    help: str
    # The placeholder of the value; by default `N` for whole numbers, `X` for other numbers, otherwise `NAME`.
    unit: str | None = None
    usual: str | None = None  # the default in words, if the field's own default does not describe it
    # The heading under which `--help` lists the option; by default the attribute `panel` of the dataclass.
    panel: str | None = None
    short: str | None = None  # a second name; the help shows it if it is short
    variable: str | None = None  # the environment variable that sets the option
    # Values that the help lists and the shell completes, for an option that also accepts others.
    values: tuple[str, ...] = ()
    bounds: Bounds | None = None  # the smallest and the largest permitted value of a number


@dataclass(frozen=True)
class OutputPath:
    """Marks an option or an argument as a path that a command writes; stands in `Annotated`, next to the declaration.

    Before a command runs, the command line checks that its path does not exist yet, or is a regular file (a folder if
    `kind` is `folder`).
    """

    kind: Literal["file", "folder"]  # whether the path is a file or a folder
    file_endings: tuple[str, ...] = ()  # for a folder: the endings of paths that are files nevertheless
    # For a folder: the name and the value of another option with which the path is a file.
    file_if: tuple[str, str] | None = None

    def kind_of(self, path: str | Path, options: Mapping[str, Any]) -> Literal["file", "folder"]:
        """Returns whether this path is a file or a folder, in a call with these options."""
        if self.file_if is not None and options[self.file_if[0]] == self.file_if[1]:
            return "file"
        return "file" if str(path).lower().endswith(self.file_endings) else self.kind


@functools.cache
def declared_options(options: Any) -> Mapping[str, tuple[Any, Option]]:
    """Returns the type and the declaration of each field that is an option, in the order of the dataclass's fields."""
    hints = get_type_hints(options, include_extras=True)
    annotated = {name: get_args(hint) for name, hint in hints.items() if get_origin(hint) is Annotated}
    return FrozenDict({
        name: (kind, mark) for name, (kind, *marks) in annotated.items() for mark in marks if isinstance(mark, Option)
    })  # fmt: skip


def bounds_of(options: Any, name: str) -> Bounds:
    """Returns the bounds of an option of a dataclass."""
    bounds = declared_options(options)[name][1].bounds
    assert bounds is not None, name
    return bounds


def check_fields(options: Any) -> None:
    """Checks the values of a dataclass against its options' types and bounds.

    Numbers of NumPy become numbers of Python, and lists of texts become tuples.
    """
    for name, (hint, _) in declared_options(cast(Any, type(options))).items():
        value, kinds = getattr(options, name), kinds_of(hint)
        if value is None and NoneType in kinds:
            continue
        if float in kinds:
            object.__setattr__(options, name, bounds_of(type(options), name).check_number(name, value))
        elif int in kinds:
            object.__setattr__(options, name, bounds_of(type(options), name).check_whole(name, value))
        elif bool in kinds:
            _check_flag(name, value, optional=NoneType in kinds)
        elif TEXTS in kinds:
            object.__setattr__(options, name, _texts(name, value))
        else:
            check_choice(name, value, hint)


def check_listed(name: str, values: Sized) -> None:
    """Raises an ArgumentError if a list argument has more than `MAX_LISTED` numbers or names."""
    if len(values) > MAX_LISTED:
        raise ArgumentError(f"`{name}` has {len(values):,} values, expected at most {MAX_LISTED:,}")


def _check_flag(name: str, value: object, *, optional: bool) -> None:
    if not isinstance(value, bool):
        expected = "True, False or None" if optional else "True or False"
        raise ArgumentError(f"`{name}` is {shown(value)}, expected {expected}")


def _texts(name: str, value: object) -> tuple[str, ...]:
    expected = "expected a list of at least one text"
    if isinstance(value, str) or not isinstance(value, Iterable):
        raise ArgumentError(f"`{name}` is {shown(value)}, {expected}")
    texts = tuple(value)
    if not texts:
        raise ArgumentError(f"`{name}` is empty, {expected}")
    if wrong := [text for text in texts if not isinstance(text, str)]:
        raise ArgumentError(f"`{name}` contains {shown(wrong[0])}, {expected}")
    return texts


def check_choice(name: str, value: object, hint: Any) -> None:
    """Raises an ArgumentError if a value is not among the choices of a type with a `Literal`."""
    if (choices := choices_of(hint)) and value not in choices:
        raise not_one_of(name, value, choices)


def kinds_of(hint: Any) -> tuple[Any, ...]:
    """Returns the members of a union type; for any other type, only the type itself."""
    union = get_origin(hint) not in (None, Literal, list, tuple)
    return get_args(hint) if union else (hint,)


def choices_of(hint: Any) -> tuple[Any, ...]:
    """The choices of a type with a `Literal`; empty for other types."""
    return next((get_args(kind) for kind in kinds_of(hint) if get_origin(kind) is Literal), ())
