"""Names of Python in errors and hints of the library, as options and commands."""

import ast
import re
import shlex
from collections.abc import Iterable
from contextlib import suppress

# Code in backticks, as words of a sentence. Within a path or a quoted value of the user, backticks mark nothing.
_STRING = r"""'(?:[^'\\]|\\.)*'|"(?:[^"\\]|\\.)*\""""
_CODE = re.compile(rf"(?<!\w)(?:{_STRING})|(?<![^\s(])`((?:{_STRING}|[^`'\"])+)`(?=[,;:)]|\.?(?:\s|$))", re.DOTALL)
_COMMANDS = {  # functions whose commands have other names
    "load": "models download", "open_index": "index", "embed_sparse": "embed --vectors sparse",
    "embed_tokens": "embed --vectors tokens",
}  # fmt: skip
_OPTIONS = {"path": "--index", "paths": "", "tokens": "--chunk-tokens"}  # arguments whose options have other names
_known: frozenset[str] = frozenset()  # the options of the command that runs


def set_options(options: Iterable[str]) -> None:
    """Says which options the command that runs has."""
    global _known
    _known = frozenset(options)


def to_options(text: str) -> str:
    """Says the code in an error or a hint of the library, which is in backticks, in the words of the command line.

    `dtype='float32'` becomes `--dtype float32`, `overwrite=True` becomes `--overwrite`, `top_k=` becomes `--top-k`, and
    so does `top_k` if the command that runs has this option. A call becomes a command:
    `mlxbert.finetune('tag', train=FILE)` becomes `mlxbert finetune tag --train FILE`, in backticks. Other code remains.
    """
    return _CODE.sub(_typed, text)


def _typed(match: re.Match[str]) -> str:
    """Returns what a user of the command line types instead of code; omits arguments that are lowercase variables."""
    code = match[1]
    if code is None or not code[0].islower():  # a value, or an environment variable
        return match[0]
    if code.isidentifier():
        return option if (option := _option(code)) in _known else match[0]
    call = code if code.startswith("mlxbert.") else f"_({code}{'...' * code.endswith('=')})"
    with suppress(SyntaxError, ValueError, RecursionError, MemoryError):
        match ast.parse(call, mode="eval").body:
            case ast.Call(ast.Name("_"), [], keywords):
                return _options(keywords)
            case ast.Call(ast.Attribute(ast.Name("mlxbert"), name), arguments, keywords):
                words = ["mlxbert", _COMMANDS.get(name, name.replace("_", "-")), *map(_word, arguments)]
                return f"`{' '.join(filter(None, [*words, _options(keywords)]))}`"
    return match[0]  # other code than names and literals


def _option(name: str) -> str:
    return _OPTIONS.get(name, f"--{name.replace('_', '-')}")


def _options(keywords: Iterable[ast.keyword]) -> str:
    words = [word for keyword in keywords for word in _flag_or_option(keyword.arg or "", keyword.value)]
    return " ".join(filter(None, words))


def _flag_or_option(name: str, value: ast.expr) -> list[str]:
    """Returns the option for an argument with its value; a flag, and an argument whose value is left out, have none."""
    match value:
        case ast.Constant(value=given) if given is True or given is ...:
            return [_option(name)]
        case ast.Constant(value=False):
            return [_option(f"no_{name}")]
    return [_option(name), _word(value)]


def _word(value: ast.expr) -> str:
    match value:
        case ast.Name(id=name):
            return name if name.isupper() else ""
        case ast.List(elts=entries) if all(isinstance(entry, ast.Constant) for entry in entries):
            return shlex.quote(_list(ast.literal_eval(value)))
        case ast.List(elts=entries):
            return ",".join(map(_word, entries))
    return shlex.quote(str(ast.literal_eval(value)))


def _list(entries: Iterable[object]) -> str:
    """Formats a list as the command line takes it: with commas, and quotes around an entry that has a comma."""
    return ",".join(f'"{entry}"' if "," in str(entry) else str(entry) for entry in entries)
