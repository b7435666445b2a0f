"""Public functions take options as keywords: the fields of the dataclasses in `mlxbert.tasks.options`.

The function of a task is written with its options as one object. The decorator `takes_keywords` turns it into a
function that takes the fields as keywords, and shows them in its signature and in its `help`. Type checkers and
editors, which do not run code, read the same signatures in `mlxbert/__init__.pyi`; `scripts/signatures.py` writes it.

The alternative was `**options: Unpack[Keywords]` with a `TypedDict`. mypy finds the same mistakes with it, but jedi,
which completes code in notebooks, does not know the keywords; a script would still have to write the dictionaries, as
type checkers cannot derive them from dataclasses; and each function would repeat its overloads.
"""

import functools
import inspect
import re
import textwrap
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, is_dataclass
from typing import Annotated, Any, Literal, get_args, get_origin

from mlxbert.option_declarations import Option, check_fields, choices_of, declared_options, kinds_of
from mlxbert.text.usage import Usage

_WIDTH = 120  # characters of a line of a docstring

_Usage = Annotated[Usage | None, Option("Counts tokens, padding and truncated inputs.")]


@dataclass(frozen=True, kw_only=True)
class UsageOptions:
    """Options that every function of a task takes."""

    usage: _Usage = None


@dataclass(frozen=True, kw_only=True)
class CallOptions:
    """Options of a function that returns a result for each item."""

    usage: _Usage = None
    on_error: Annotated[
        Literal["raise", "return"], Option("`raise`, or `return` a Failure for each item that cannot be used.")
    ] = "raise"

    def __post_init__(self) -> None:
        check_fields(self)


def takes_keywords(function: Callable[..., Any]) -> Callable[..., Any]:
    """Replaces each keyword-only parameter that is a dataclass of options with one keyword for each option."""
    original = inspect.signature(function)
    groups = groups_of(function)
    owners = {keyword: name for name, group in groups.items() for keyword in declared_options(group)}
    parameters = [
        keyword
        for name, parameter in original.parameters.items()
        for keyword in (keywords_of(groups[name]) if name in groups else [parameter])
    ]
    signature = original.replace(parameters=parameters)

    @functools.wraps(function)
    def with_keywords(*arguments: Any, **keywords: Any) -> Any:
        try:
            signature.bind(*arguments, **keywords)  # a missing argument is reported before a wrong option
        except TypeError as problem:
            raise TypeError(f"{function.__name__}() {problem}") from None
        values: dict[str, dict[str, Any]] = {name: {} for name in groups}
        for keyword in keywords.keys() & owners.keys():
            values[owners[keyword]][keyword] = keywords.pop(keyword)
        options = {name: group(**values[name]) for name, group in groups.items()}
        return function(*arguments, **keywords, **options)

    with_keywords.__signature__ = signature  # type: ignore[attr-defined]
    with_keywords.__doc__ = _documented(function.__doc__ or "", groups)
    return with_keywords


def groups_of(function: Callable[..., Any]) -> dict[str, Any]:
    """Returns the dataclasses of options that a function takes, by the names of their parameters."""
    parameters = inspect.signature(function).parameters.values()
    keywords = [parameter for parameter in parameters if parameter.kind is parameter.KEYWORD_ONLY]
    return {keyword.name: keyword.annotation for keyword in keywords if is_dataclass(keyword.annotation)}


def keywords_of(group: Any) -> Iterator[inspect.Parameter]:
    """Yields the keywords of a dataclass of options: its own first, then the inherited ones."""
    declared = declared_options(group)
    names = (name for part in group.__mro__ for name in vars(part).get("__annotations__", ()) if name in declared)
    for name in dict.fromkeys(names):
        kind, default = _accepted(declared[name][0]), getattr(group, name)
        yield inspect.Parameter(name, inspect.Parameter.KEYWORD_ONLY, default=default, annotation=kind)


def _accepted(kind: Any) -> Any:
    """Returns the type of a keyword; any iterable is accepted where the field is a tuple."""
    kinds = [Iterable[get_args(each)[0]] if get_origin(each) is tuple else each for each in kinds_of(kind)]  # type: ignore[misc]
    return functools.reduce(lambda a, b: a | b, kinds)


def _documented(text: str, groups: Mapping[str, Any]) -> str:
    """Replaces the line about a group of options in a docstring with one line for each of its options."""

    def lines(line: re.Match[str]) -> str:
        indent, group = line[1], groups[line[2]]
        entries = [f"{keyword.name}: {describe(group, keyword.name)}" for keyword in keywords_of(group)]
        wrapper = textwrap.TextWrapper(_WIDTH, indent, indent + 4 * " ", break_on_hyphens=False)
        return "".join(f"{wrapper.fill(entry)}\n" for entry in entries)

    return re.sub(rf"^( +)({'|'.join(groups)}): .*\n", lines, text, flags=re.MULTILINE)


def describe(group: Any, name: str) -> str:
    """Describes an option for `help`: its meaning, values, default and bounds."""
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
