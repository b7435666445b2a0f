"""What public functions are given, checked; and options that several of them share, shown one by one in each."""

import inspect
import re
import textwrap
from collections.abc import Callable, Iterable, Mapping
from typing import Any, TypeVar, get_type_hints

from mlxbert.errors import ArgumentError
from mlxbert.model import Model

F = TypeVar("F", bound=Callable[..., Any])


def check_model(model: object, *others: object) -> None:
    """Refuses what is not a model; `others` are the arguments after it, in which one may be found.

    Raises:
        ArgumentError: It is something else.
    """
    if isinstance(model, Model):
        return
    hint = "model = mlxbert.load() loads the built-in one"
    if any(isinstance(other, Model) for other in others):
        hint = "the model is the first argument"
    elif isinstance(model, str):
        hint = f"model = mlxbert.load({model!r:.60}) loads one by its name"
    raise ArgumentError(f"model is {_shown(model)}, expected the result of mlxbert.load", hint=hint)


def check_inputs(given: object, name: str, expected: str) -> Iterable[Any]:
    """Returns inputs, or refuses what would give something else than them, or in no order.

    Args:
        given: The inputs; text itself is not one, as it would give its characters.
        name: What the argument is called.
        expected: What the argument has to be.

    Raises:
        ArgumentError: They are not iterable; a mapping or a table, which would give names; or a set.
    """
    hint = None
    if hasattr(given, "columns"):
        hint = f"give one of its columns: {name}={name}['…']"
    elif isinstance(given, Mapping):
        hint = f"give its values: {name}={name}.values()"
    elif isinstance(given, set | frozenset):
        hint = f"a set has no order: {name}=sorted({name})"
    elif isinstance(given, Iterable) and not isinstance(given, str | bytes):
        return given
    raise ArgumentError(f"{name} is {_shown(given)}, expected {expected}", hint=hint)


def _shown(value: object) -> str:
    """A value on one line: as Python writes it, or its type where that takes many lines."""
    if hasattr(value, "columns") or isinstance(value, Model):
        return f"a {type(value).__name__}"
    return f"{value!r:.60}"


def spelled_out(*options: type, defaults: Mapping[str, object]) -> Callable[[F], F]:
    """Puts the options of `**options: Unpack[Options]` one by one into the signature and docstring of a function.

    Type checkers know them by the annotation; this is for `help`, `inspect` and notebooks.

    Args:
        options: TypedDicts; the docstring of each describes its own keys under `Attributes:`.
        defaults: The defaults that are not `None`, by key.
    """
    told = "\n".join(inspect.cleandoc(one.__doc__ or "").partition("Attributes:\n")[2] for one in options)
    kinds = {key: kind for one in options for key, kind in get_type_hints(one).items()}

    def decorate(function: F) -> F:
        made = inspect.signature(function)
        own = [one for one in made.parameters.values() if one.kind is not inspect.Parameter.VAR_KEYWORD]
        keyword = inspect.Parameter.KEYWORD_ONLY
        more = [
            inspect.Parameter(key, keyword, default=defaults.get(key), annotation=kind)
            for key, kind in kinds.items()
            if key not in made.parameters
        ]
        function.__signature__ = made.replace(parameters=own + more)  # type: ignore[attr-defined]
        described = textwrap.indent(inspect.cleandoc("\n" + told), "        ")
        function.__doc__ = re.sub(r" +\*\*options: .*\n", lambda _: f"{described}\n", function.__doc__ or "")
        return function

    return decorate
