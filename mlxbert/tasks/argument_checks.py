"""Checks of the arguments of public functions."""

from collections.abc import Iterable, Mapping
from typing import Any

from mlxbert.errors import ArgumentError, shown
from mlxbert.model import Model

OF_VECTORS = "texts are compared, not vectors: for vectors of length 1, a @ b.T has the cosines"


def check_model(model: object, *others: object, place: str = "first") -> None:
    """Refuses a value that is not a model; if one of the `others` is the model, the hint names the right `place`."""
    if isinstance(model, Model):
        return
    hint = "model = mlxbert.load() loads the built-in one"
    if any(isinstance(other, Model) for other in others):
        hint = f"the model is the {place} argument"
    elif isinstance(model, str):
        hint = f"model = mlxbert.load({model!r:.60}) loads one by its name"
    raise ArgumentError(f"model is {_shown(model)}, expected the result of mlxbert.load", hint=hint)


def check_inputs(given: object, name: str, expected: str) -> Iterable[Any]:
    """Returns inputs; refuses a value that would not yield inputs when iterated, or not in a fixed order.

    Args:
        given: The inputs; a string is refused, since it would yield its characters.
        name: The name of the argument.
        expected: The expectation in the error.
    """
    hint = None
    if holds_numbers(given):
        hint = OF_VECTORS
    elif hasattr(given, "columns"):
        hint = f"give one of its columns: {name}={name}['…']"
    elif isinstance(given, Mapping):
        hint = f"give its values: {name}={name}.values()"
    elif isinstance(given, set | frozenset):
        hint = f"a set has no order: {name}=sorted({name})"
    elif isinstance(given, Iterable) and not isinstance(given, str | bytes):
        return given
    raise ArgumentError(f"{name} is {_shown(given)}, expected {expected}", hint=hint)


def holds_numbers(value: object) -> bool:
    """Whether a value is an array of numbers, of numpy, MLX or torch."""
    if not hasattr(value, "dtype") or not hasattr(value, "shape"):
        return False
    return getattr(value.dtype, "kind", "f") in "biuf"


def _shown(value: object) -> str:
    """A value on one line: its `repr`, or its type if the `repr` would take many lines."""
    if hasattr(value, "columns") or isinstance(value, Model) or holds_numbers(value):
        return f"a {type(value).__name__}"
    return shown(value)
