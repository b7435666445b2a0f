"""Writes the signatures of the functions with options, for type checkers and docs: `python scripts/signatures.py`.

The functions are those in `mlxbert.tasks` and in the rooms that are decorated with `takes_keywords`. Their
signatures and docstrings go into mlxbert/__init__.pyi, with an overload for each kind of result; their names go into
`Model`, which has them as methods; their options go into the table in docs/python.md. The results of the tasks go into
`Engine.submit`. A test checks that all four are up to date.
"""

import importlib
import inspect
import sys
import textwrap
from collections.abc import Callable, Iterable, Iterator, Mapping
from pathlib import Path
from types import NoneType, UnionType
from typing import Any, Literal, Union, get_args, get_origin

sys.path.insert(0, str(Path(__file__).parents[1]))
from mlxbert.errors import InputError
from mlxbert.results.result import Failure
from mlxbert.rooms import ROOMS
from mlxbert.tasks.catalogue import CATALOGUE
from mlxbert.tasks.keywords import describe, groups_of, keywords_of

ROOT = Path(__file__).parents[1]
# In each file, the lines between two markers are generated.
STUB = (
    "mlxbert/__init__.pyi",
    "# Functions with options, as scripts/signatures.py writes them.\n# fmt: off\n",
    "# fmt: on\n",
)
METHODS = "mlxbert/model.py", "    # Written by scripts/signatures.py.\n", "    # Written by hand.\n"
ENGINE = ("mlxbert/serve/engine/engine.py", *METHODS[1:])
TABLE = "docs/python.md", "<!-- options -->\n", "<!-- end of options -->\n"
_WIDTH, _SPACE = 120, "\0"  # characters of a line; stands for a space within a parameter


def functions() -> list[Callable[..., Any]]:
    """The functions with options, sorted by name."""
    files = [path for package in ("tasks", *ROOMS) for path in (ROOT / "mlxbert" / package).glob("*.py")]
    marked = [path for path in files if "\n@takes_keywords\n" in path.read_text(encoding="utf-8")]
    names = [f"mlxbert.{path.parent.name}.{path.stem}" for path in marked]
    values = {
        value for name in names for value in vars(importlib.import_module(name)).values() if inspect.isfunction(value)
    }
    return sorted(
        (value for value in values if hasattr(value, "__signature__")), key=lambda function: function.__name__
    )


def _kinds(kind: Any) -> tuple[Any, ...]:
    """The types of a union, in order; for any other type, the type itself."""
    return get_args(kind) if get_origin(kind) in (Union, UnionType) else (kind,)


def shown(*kinds: Any) -> str:
    """The union of some types, as written in a stub."""
    return " | ".join(dict.fromkeys(map(_shown, kinds)))


def _shown(kind: Any) -> str:
    if isinstance(kind, str) or kind is Ellipsis:
        return "..." if kind is Ellipsis else kind
    if kind in (None, NoneType):
        return "None"
    arguments = get_args(kind)
    match get_origin(kind):
        case None:
            return kind.__name__
        case origin if origin in (Union, UnionType):
            return shown(*arguments)
        case origin if origin is Literal:
            return f"Literal[{', '.join(map(_literal, arguments))}]"
        case origin if origin is Callable:
            return f"Callable[[{', '.join(map(_shown, arguments[0]))}], {_shown(arguments[1])}]"
        case origin:
            return f"{origin.__name__}[{', '.join(map(_shown, arguments))}]"


def _literal(value: object) -> str:
    return f'"{value}"' if isinstance(value, str) else repr(value)


def overloads(signature: inspect.Signature) -> Iterator[tuple[Mapping[str, str], str]]:
    """Yields, for each overload of a function, the source of the parameters that differ, and the type of its result."""
    results = _kinds(signature.return_annotation)
    several = results[-1]
    (kind,) = get_args(several) or (None,)
    if Failure not in _kinds(kind):
        yield {}, shown(*results)
        return
    container, successes = get_origin(several).__name__, [one for one in _kinds(kind) if one is not Failure]
    items = {}
    if len(results) > len([one for one in results if get_origin(one) is get_origin(several)]):  # or of one item
        name, one, many = _items(signature)
        yield {name: f"{name}: {shown(*one)}"}, shown(*results[:-1])
        items = {name: f"{name}: {shown(many)}"}
    on_error = shown(signature.parameters["on_error"].annotation)
    yield items | {"on_error": 'on_error: Literal["raise"] = "raise"'}, f"{container}[{shown(*successes)}]"
    yield items | {"on_error": f"on_error: {on_error}"}, f"{container}[{shown(kind)}]"


def _items(signature: inspect.Signature) -> tuple[str, list[Any], Any]:
    """The parameter that takes one item or several: its name, the types of an item, and the type of several items."""
    for name, parameter in signature.parameters.items():
        for kind in _kinds(parameter.annotation):
            if get_origin(kind) is get_origin(Iterable[Any]) and InputError in _kinds(get_args(kind)[0]):
                return name, [one for one in _kinds(parameter.annotation) if one is not kind], kind
    raise TypeError(f"{signature} has no parameter for one item or several")


def declaration(function: Callable[..., Any]) -> str:
    """The overloads of a function; the first has its docstring."""
    signature, name, lines = inspect.signature(function), function.__name__, list[str]()
    variants = [*overloads(signature)]
    if "labels" in signature.parameters and "Regression" in variants[0][1]:  # labels are chosen, so nothing is a number
        variants = [
            ({**different, "labels": f"labels: {kind}"}, result.replace(" | Regression", "") if chosen else result)
            for different, result in variants
            for kind, chosen in (("Iterable[str]", True), ("None = None", False))
        ]
    for number, (different, result) in enumerate(variants):
        parameters = [
            different.get(parameter.name) or _parameter(parameter) for parameter in signature.parameters.values()
        ]
        keywords = [parameter.kind is parameter.KEYWORD_ONLY for parameter in signature.parameters.values()]
        parameters.insert(keywords.index(True), "*")
        # A text is also an iterable of texts.
        overlaps = number < len(variants) // 3 and "str" in next(iter(different.values())).split(" ")
        lines += ["@overload"] * (len(variants) > 1)
        lines += [f"def {name}(" + "  # type: ignore[overload-overlap]" * overlaps]
        joined = ", ".join(parameter.replace(" ", _SPACE) for parameter in parameters)
        wrapped = textwrap.wrap(
            joined, _WIDTH, initial_indent=4 * " ", subsequent_indent=4 * " ", break_on_hyphens=False
        )
        lines += [line.replace(_SPACE, " ") for line in wrapped]
        lines += [f") -> {result}:" + " ..." * (number > 0)]
        if number == 0:
            lines += [textwrap.indent(f'"""{inspect.cleandoc(function.__doc__ or "")}\n"""', 4 * " ")]
    return "\n".join([f"# from {function.__module__} import {name} as {name}", *lines, ""])


def _parameter(parameter: inspect.Parameter) -> str:
    default = "" if parameter.default is parameter.empty else f" = {_literal(parameter.default)}"
    return f"{parameter.name}: {shown(parameter.annotation)}{default}"


def methods() -> str:
    """The functions as attributes of `Model`."""
    return "".join(f"    {function.__name__} = functions.{function.__name__}\n" for function in functions())


def engine() -> str:
    """The overloads of `Engine.submit`: the result of each task, by the names of its command and of its function."""
    text = ""
    for name, entry in CATALOGUE.items():
        names = shown(Literal[name, name.replace("-", "_")])
        result = "Scored" if entry.items.ranked else entry.result.partition(":")[2]
        result += " | Regression" * (result == "Classification")
        line = f"    def submit(self, model: str, task: {names}, items: Sequence[Any], **options: Any)"
        line += f' -> "_Future[{result}]": ...'
        text += f"    @overload\n{line}{'  # noqa: E501' * (len(line) > _WIDTH)}\n"
    return f"    # fmt: off\n{text}    # fmt: on\n"


def table() -> str:
    """The table of the options, each with its functions."""
    rows: dict[tuple[str, str], list[str]] = {}
    for function in functions():
        for group in groups_of(inspect.unwrap(function)).values():
            for keyword in keywords_of(group):
                rows.setdefault((keyword.name, describe(group, keyword.name)), []).append(f"`{function.__name__}`")
    lines = [f"| `{name}` | {', '.join(named)} | {text} |\n" for (name, text), named in sorted(rows.items())]
    return "".join(["| keyword | of | what it does |\n|---|---|---|\n", *lines])


def written() -> dict[str, str]:
    """The updated files, keyed by path."""
    parts = {STUB: "\n".join(map(declaration, functions())), METHODS: methods(), ENGINE: engine(), TABLE: table()}
    files = {}
    for (path, start, end), part in parts.items():
        before, _, rest = (ROOT / path).read_text(encoding="utf-8").partition(start)
        files[path] = before + start + part + end + rest.partition(end)[2]
    return files


if __name__ == "__main__":
    for path, text in written().items():
        (ROOT / path).write_text(text, encoding="utf-8")
