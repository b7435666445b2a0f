"""Options: each is declared once, next to the field of a dataclass, and the command line makes its options of them."""

from dataclasses import dataclass
from types import NoneType
from typing import Any, Literal, get_args, get_origin, get_type_hints

from mlxbert.bounds import check_number, check_whole
from mlxbert.counterparts import not_one_of

DType = Literal["auto", "float32", "float16", "bfloat16"]  # of computation
Device = Literal["auto", "gpu", "cpu"]
# What makes one vector of those of the tokens.
POOLINGS = ("cls", "mean", "max", "mean_sqrt_len", "weighted_mean", "last_token", "attention")


@dataclass(frozen=True)
class Option:
    """What a user needs to know of a field besides its type, its default, and the bounds of its name.

    Attributes:
        help: What it does: a sentence for `--help`, which fits on its line, and details for `mlxbert help`.
        unit: What stands for its value; by default `N` for whole numbers, `X` for others, and `NAME`.
        usual: In words, what is used where the option is left out, if that is not always the field's default.
        panel: The heading that it is under; by default that of its dataclass, its attribute `panel`.
        short: A second, short name.
        variable: The environment variable that it can be given in.
        values: Values to list and to complete, if others are possible.
    """

    help: str
    unit: str | None = None
    usual: str | None = None
    panel: str | None = None
    short: str | None = None
    variable: str | None = None
    values: tuple[str, ...] = ()


@dataclass(frozen=True)
class Written:
    """Marks an option or an argument as the path of what a command writes; it stands next to its declaration.

    The command line refuses everything but a regular file, or a folder, at such a path before it does anything else.

    Attributes:
        kind: What is written.
    """

    kind: Literal["file", "folder"]


def check_fields(options: Any) -> None:
    """Refuses numbers and choices of a dataclass that their types or their bounds do not allow."""
    for name, hint in get_type_hints(type(options)).items():
        value, kinds = getattr(options, name), kinds_of(hint)
        if value is None and NoneType in kinds:
            continue
        if float in kinds:
            check_number(name, value)
        elif int in kinds:
            check_whole(name, value)
        else:
            check_choice(name, value, hint)


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
