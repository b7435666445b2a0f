"""Checks of the arguments of public functions."""

from collections.abc import Iterable, Mapping
from typing import Any

from mlxbert.errors import ArgumentError, shown
from mlxbert.model import Model

OF_VECTORS = "give texts, or compute the cosines of vectors of length 1 with a @ b.T"


def check_model(model: object, *others: object, place: str = "first") -> None:
    """Raises ArgumentError if `model` is not a model.

    If one of the `others` is a model, the hint says where the model belongs: as the first argument, or as the argument
    that `place` names.
    """
    if isinstance(model, Model):
        return
    hint = "`model = mlxbert.load()` loads the built-in model"
    if any(isinstance(other, Model) for other in others):
        hint = f"the model is the {place} argument"
    elif isinstance(model, str):
        hint = f"`model = mlxbert.load({model!r:.60})` loads a model by name"
    raise ArgumentError(f"`model` is {_shown(model)}, expected the result of mlxbert.load", hint=hint)


def check_inputs(given: object, name: str, expected: str) -> Iterable[Any]:
    """Returns the inputs; raises ArgumentError if iterating over them would not yield inputs in a fixed order.

    Args:
        given: The inputs. A string is rejected, since iterating over it yields characters.
        expected: The expected value, for the error message.
    """
    hint = None
    if holds_numbers(given):
        hint = OF_VECTORS
    elif hasattr(given, "columns"):
        hint = f"give a column of the table: `{name}={name}['…']`"
    elif isinstance(given, Mapping):
        hint = f"give the values of the mapping: `{name}={name}.values()`"
    elif isinstance(given, set | frozenset):
        hint = f"sort the set, which has no order: `{name}=sorted({name})`"
    elif isinstance(given, Iterable) and not isinstance(given, str | bytes):
        return given
    raise ArgumentError(f"`{name}` is {_shown(given)}, expected {expected}", hint=hint)


def holds_numbers(value: object) -> bool:
    """Whether a value is a NumPy, MLX or torch array of numbers."""
    if not hasattr(value, "dtype") or not hasattr(value, "shape"):
        return False
    return getattr(value.dtype, "kind", "f") in "biuf"


def _shown(value: object) -> str:
    """Returns a value on one line: its `repr`, or its type if the `repr` would take many lines."""
    if hasattr(value, "columns") or isinstance(value, Model) or holds_numbers(value):
        return f"a {type(value).__name__}"
    return shown(value)
