"""Public functions take options as keywords: the fields of the dataclasses in `mlxbert.tasks.options`.

A function of a task is written with its options as one object. `takes_keywords` makes a function of it that takes the
fields as keywords, and shows them in its signature and in its `help`. What runs no code, type checkers and editors,
reads the same signatures in `mlxbert/__init__.pyi`, where `scripts/signatures.py` writes them.

With `**options: Unpack[Keywords]`, where `Keywords` is a `TypedDict`, mypy finds the same mistakes. But jedi, which
completes in notebooks, then neither completes nor shows a keyword; a script would have to write the dictionaries, since
type checkers cannot derive them from dataclasses; and each function would repeat its overloads.
"""

import functools
import inspect
import re
import textwrap
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, is_dataclass
from typing import Annotated, Any, Literal, get_args, get_origin

from mlxbert.options import Option, check_fields, choices_of, declared_options, kinds_of
from mlxbert.text.usage import Usage

_WIDTH = 120  # of a line of a docstring


_Usage = Annotated[Usage | None, Option("Counts tokens, padding and truncated inputs.")]


@dataclass(frozen=True, kw_only=True)
class UsageOptions:
    """What every function of a task can be asked for besides its results."""

    usage: _Usage = None


@dataclass(frozen=True, kw_only=True)
class CallOptions:
    """What a function with a result for each item can be asked for."""

    usage: _Usage = None
    on_error: Annotated[
        Literal["raise", "return"], Option("`raise`, or `return` a Failure for each item that cannot be used.")
    ] = "raise"

    def __post_init__(self) -> None:
        check_fields(self)


def takes_keywords(function: Callable[..., Any]) -> Callable[..., Any]:
    """The function with keywords in place of each keyword-only parameter that is a dataclass of options."""
    written = inspect.signature(function)
    groups = groups_of(function)
    owners = {keyword: name for name, group in groups.items() for keyword in declared_options(group)}
    parameters = [
        each
        for name, one in written.parameters.items()
        for each in (keywords_of(groups[name]) if name in groups else [one])
    ]
    signature = written.replace(parameters=parameters)

    @functools.wraps(function)
    def with_keywords(*arguments: Any, **keywords: Any) -> Any:
        signature.bind(*arguments, **keywords)  # what is missing is an error before the value of an option is
        values: dict[str, dict[str, Any]] = {name: {} for name in groups}
        for keyword in keywords.keys() & owners.keys():
            values[owners[keyword]][keyword] = keywords.pop(keyword)
        made = {name: group(**values[name]) for name, group in groups.items()}
        return function(*arguments, **keywords, **made)

    with_keywords.__signature__ = signature  # type: ignore[attr-defined]
    with_keywords.__doc__ = _documented(function.__doc__ or "", groups)
    return with_keywords


def groups_of(function: Callable[..., Any]) -> dict[str, Any]:
    """The dataclasses of options that a function takes, by the names of their parameters."""
    parameters = inspect.signature(function).parameters.values()
    return {
        one.name: one.annotation for one in parameters if one.kind is one.KEYWORD_ONLY and is_dataclass(one.annotation)
    }


def keywords_of(group: Any) -> Iterator[inspect.Parameter]:
    """The keywords of a dataclass of options: first those of its own, then the inherited ones."""
    declared = declared_options(group)
    names = (name for part in group.__mro__ for name in vars(part).get("__annotations__", ()) if name in declared)
    for name in dict.fromkeys(names):
        kind, default = _accepted(declared[name][0]), getattr(group, name)
        yield inspect.Parameter(name, inspect.Parameter.KEYWORD_ONLY, default=default, annotation=kind)


def _accepted(kind: Any) -> Any:
    """The type of a keyword: a tuple can be given as any iterable."""
    kinds = [Iterable[get_args(one)[0]] if get_origin(one) is tuple else one for one in kinds_of(kind)]  # type: ignore[misc]
    return functools.reduce(lambda a, b: a | b, kinds)


def _documented(text: str, groups: Mapping[str, Any]) -> str:
    """A docstring with lines for the options in place of the line of each group."""

    def lines(found: re.Match[str]) -> str:
        indent = found[1]
        entries = [f"{one.name}: {describe(groups[found[2]], one.name)}" for one in keywords_of(groups[found[2]])]
        wrapper = textwrap.TextWrapper(_WIDTH, indent, indent + 4 * " ", break_on_hyphens=False)
        return "".join(f"{wrapper.fill(entry)}\n" for entry in entries)

    return re.sub(rf"^( +)({'|'.join(groups)}): .*\n", lines, text, flags=re.MULTILINE)


def describe(group: Any, name: str) -> str:
    """What `help` shows of an option: its meaning, its values, its default and its bounds."""
    kind, option = declared_options(group)[name]
    default = getattr(group, name)
    sentences = [" ".join(option.help.split())]
    values = choices_of(kind) or option.values
    if not all(value in option.help for value in values):
        listed = ", ".join(f"`{value}`" for value in values)
        sentences.append(f"One of {listed}." if choices_of(kind) else f"Values: {listed}.")
    if (option.usual or default is not None) and "by default" not in option.help.lower():
        shown = f"`{default}`" if isinstance(default, str) else default
        sentences.append(f"Default: {option.usual or shown}.".replace("..", "."))
    if option.bounds is not None:
        sentences.append(f"From {option.bounds.least:,} to {option.bounds.most:,}.")
    return " ".join(sentences)
