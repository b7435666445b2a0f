"""Writes the hints of the source into docs/troubleshooting.md: `python scripts/hints_table.py`.

The page has a marked part for each theme (`<!-- hints: server -->` to `<!-- end of hints -->`), which lists messages
and their hints as the terminal shows them; `…` stands for what is filled in. They are found by reading the source. An
expression that passes on the hint of another error has no row of its own.
"""

import ast
import functools
import itertools
import re
import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1]))
from mlxbert.cli.views.console import to_options
from mlxbert.optional_packages import required_packages
from tests.helpers.commands import COMMANDS

ROOT = Path(__file__).parents[1]
PAGE = ROOT / "docs/troubleshooting.md"
PART = re.compile(r"(<!-- hints: (\w+) -->\n)(.*?)(<!-- end of hints -->)", re.DOTALL)
ELSE = "…"  # what is filled in
ARGUMENTS = ("hint", "smaller")  # names of arguments and attributes that hold hints
OF_PIP = {"--force-reinstall", "--only-binary"}
# Functions and constants that hold pairs of a reason and a hint, and functions that return advice.
PAIRS = {
    "mlxbert/readers/formats.py": ("_SENTENCES", "_QUESTIONS"),
    "weights/formats/file_names.py": ("NOT_READ",),
    "weights/formats/tensorflow/names.py": ("unsupported_reason",),
}
ADVICE = {"cli/commands/machine.py": ("_slow_blas", "_two_backends"), "mlxbert/machine/mac.py": ("problems",)}
_MEMORY = re.compile("(?:too little|out of|GB of) memory")
_ESCAPED = re.compile(r"[|*_<>\[\]\\{}]")
# The theme of a file is that of its longest prefix here.
THEMES = {
    "cli/": "options",
    "cli/commands/indexes": "search",
    "cli/commands/machine": "device",
    "cli/commands/mcp": "search",
    "cli/commands/models": "hub",
    "cli/commands/search": "search",
    "cli/commands/serve": "server",
    "cli/events/": "training",
    "cli/index_updates": "search",
    "cli/inputs": "files",
    "cli/interactive_search": "search",
    "cli/output/": "output",
    "cli/processes": "training",
    "cli/server_models": "server",
    "cli/training_options": "training",
    "cli/views/": "output",
    "mlxbert/against/": "files",
    "mlxbert/against/embedding_server": "server",
    "mlxbert/bench/": "device",
    "mlxbert/data/": "training",
    "mlxbert/durable_files": "output",
    "mlxbert/explore/": "options",
    "mlxbert/folders/": "output",
    "mlxbert/http_client": "server",
    "mlxbert/loading": "models",
    "mlxbert/machine/": "device",
    "mlxbert/machine/device_errors": "memory",
    "mlxbert/memory_estimate": "memory",
    "mlxbert/model": "options",
    "mlxbert/nn/": "options",
    "mlxbert/nn/cpu/": "device",
    "mlxbert/other_libraries": "options",
    "mlxbert/partial_folder": "output",
    "mlxbert/pretraining/": "training",
    "mlxbert/ray/": "options",
    "mlxbert/ray/storage": "files",
    "mlxbert/readers/": "files",
    "mlxbert/readers/documents/": "search",
    "mlxbert/search/": "search",
    "mlxbert/serve/": "server",
    "mlxbert/tasks/": "options",
    "mlxbert/text/": "options",
    "mlxbert/training/": "training",
    "weights/": "models",
    "weights/hub/": "hub",
    "weights/model_source": "hub",
}


@dataclass(frozen=True)
class Hint:
    """A hint of the source.

    Attributes:
        file: The file, relative to the repository.
        line: Its line there.
        message: What is printed before the hint; empty if the source says it elsewhere.
        text: The hint, as the command line prints it.
    """

    file: str
    line: int
    message: str
    text: str


@functools.cache
def _trees() -> dict[str, ast.Module]:
    files = (path for folder in ("cli", "mlxbert", "weights") for path in sorted((ROOT / folder).rglob("*.py")))
    own = (
        path for path in files if not path.relative_to(ROOT).as_posix().startswith(("mlxbert/cli/", "mlxbert/weights/"))
    )
    return {
        path.relative_to(ROOT).as_posix(): ast.parse(path.read_text(encoding="utf-8"))
        for path in own
        if path.name != "openapi.py"
    }


@functools.cache
def _constants() -> dict[str, dict[str, ast.expr]]:
    """The values of the module-level names of each file."""
    return {
        file: {
            target.id: node.value
            for node in tree.body
            for target in (node.targets if isinstance(node, ast.Assign) else [getattr(node, "target", None)])
            if isinstance(node, ast.Assign | ast.AnnAssign) and isinstance(target, ast.Name) and node.value is not None
        }
        for file, tree in _trees().items()
    }


@functools.cache
def _functions() -> dict[str, list[tuple[str, ast.FunctionDef]]]:
    """The functions and methods of each name, with their files."""
    found: dict[str, list[tuple[str, ast.FunctionDef]]] = {}
    for file, tree in _trees().items():
        for node in ast.walk(tree):
            if isinstance(node, ast.FunctionDef):
                found.setdefault(node.name, []).append((file, node))
    return found


@dataclass(frozen=True)
class Place:
    """Where an expression stands: its file, and the function around it."""

    file: str
    function: ast.AST | None
    depth: int = 0

    def texts(self, node: ast.expr | None) -> list[str]:
        """The texts that an expression may have; none if they come from elsewhere."""
        if self.depth > _DEPTH:  # a name that stands for itself, with a suffix
            return []
        match node:
            case ast.Constant(value=str(text)):
                return [text]
            case ast.JoinedStr(values=parts):
                return _joined([self._part(part) for part in parts])
            case ast.BinOp(left=left, op=ast.Add(), right=right):
                return _joined([self.texts(left) or [ELSE], self.texts(right) or [ELSE]])
            case ast.IfExp(body=body, orelse=other):
                return [*self.texts(body), *self.texts(other)]
            case ast.BoolOp(values=values) | ast.Tuple(elts=values):
                return [text for value in values for text in self.texts(value)]
            case ast.Name(id=name):
                return self._named(name)
            case ast.Attribute(attr=name) if name.isupper():
                return self._constant(name)
            case ast.Call():
                return self._called(node)
        return []

    def _called(self, call: ast.Call) -> list[str]:
        """The texts that a call may return."""
        match call:
            case ast.Call(func=ast.Name(id="install_command"), args=[ast.Constant(value=str(extra))]):
                return [f"pip install {required_packages(extra)}"]
            case ast.Call(func=ast.Name(id="pip_install"), args=[arguments]):
                return [f"pip install {text}" for text in self.texts(arguments) or [ELSE]]
            case ast.Call(
                func=ast.Attribute(attr="join"), args=[ast.Call(func=ast.Name(id="filter"), args=[_, parts])]
            ):
                return self.texts(parts)
            case ast.Call(func=ast.Attribute(value=ast.Name(id=name), attr="format")):
                return [re.sub(r"{.*?}", ELSE, text) for text in self._constant(name)]
            case ast.Call(func=ast.Attribute(value=ast.Name(id=name), attr="get"), args=[_, *default]):
                values = _constants()[self.file].get(name)
                known = values.values if isinstance(values, ast.Dict) else []
                return [text for value in (*known, *default) for text in self.texts(value)]
            case ast.Call(func=ast.Attribute(attr=name) | ast.Name(id=name)):
                return self._returned(name)
        return []

    def _part(self, part: ast.expr) -> list[str]:
        if isinstance(part, ast.Constant):
            return [str(part.value)]
        value = part.value if isinstance(part, ast.FormattedValue) else part
        known = self.texts(value) if isinstance(value, ast.Name | ast.Attribute | ast.Call) else []
        if isinstance(value, ast.Call) and any(text.isidentifier() for text in known):
            known = []  # one word of the many that a function may return, such as the name of a type
        return known if len(known) in (1, 2) and ELSE not in known else [ELSE]

    def _named(self, name: str) -> list[str]:
        """The texts of a name: those assigned to it in this function, or its constant."""
        values = _assigned(self.function).get(name, []) if self.function else []
        found = [text for value in values for text in self._deeper().texts(value)]
        return found or (self._constant(name) if name.strip("_").isupper() else [])

    def _constant(self, name: str) -> list[str]:
        for file in (self.file, *_constants()):
            if name in _constants()[file]:
                return Place(file, None, self.depth + 1).texts(_constants()[file][name])
        return []

    def _returned(self, name: str) -> list[str]:
        """The texts that a function of the project returns, if there is one function of this name."""
        of_file = [(file, node) for file, node in _functions().get(name, []) if file == self.file]
        known = of_file or _functions().get(name, [])
        if len(known) != 1:
            return []
        ((file, function),) = known
        place = Place(file, function, self.depth + 1)
        returns = [node.value for node in ast.walk(function) if isinstance(node, ast.Return)]
        return [text for value in returns for text in place.texts(value)]

    def _deeper(self) -> "Place":
        return Place(self.file, self.function, self.depth + 1)


_DEPTH = 4


@functools.cache
def _assigned(function: ast.AST) -> dict[str, list[ast.expr]]:
    """The values that are assigned to each name in a function."""
    found: dict[str, list[ast.expr]] = {}
    for node in ast.walk(function):
        if isinstance(node, ast.Assign):
            for target in node.targets:
                if isinstance(target, ast.Name):
                    found.setdefault(target.id, []).append(node.value)
    return found


def _joined(parts: Sequence[Sequence[str]]) -> list[str]:
    texts = ["".join(chosen) for chosen in itertools.islice(itertools.product(*parts), 4)]
    return [re.sub(rf"{ELSE}(?:[ ,]*{ELSE})+", ELSE, text) for text in texts]


def _calls(tree: ast.AST, function: ast.AST | None = None) -> Iterator[tuple[ast.AST | None, ast.AST]]:
    """Calls and assignments of a file, each with the function around it."""
    for node in ast.iter_child_nodes(tree):
        if isinstance(node, ast.Call | ast.Assign | ast.AnnAssign):
            yield function, node
        yield from _calls(node, node if isinstance(node, ast.FunctionDef) else function)


def _hint_of(node: ast.AST) -> ast.expr | None:
    """The expression of a hint: an argument of a call, a note that is logged, or what is assigned to a name."""
    match node:
        case ast.Call(func=ast.Attribute(attr=name) | ast.Name(id=name), args=args, keywords=keywords):
            keyword = next((one.value for one in keywords if one.arg in ARGUMENTS), None)
            return _note(name, args) or keyword or _positional(name, args)
        case ast.Assign(targets=[ast.Attribute(attr=name) | ast.Name(id=name)], value=value) if name in ARGUMENTS:
            return value
        case ast.AnnAssign(target=ast.Name(id="smaller"), value=value):
            return value
    return None


def _note(name: str, args: list[ast.expr]) -> ast.expr | None:
    """The text of a note that the command line prints as a hint."""
    match name, args:
        case "hint_once", [text]:
            return text
        case "say", [ast.Constant(value="hint"), text]:
            return text
        case "say", [ast.Constant(value="hint"), text, _]:  # followed by a command
            return ast.BinOp(text, ast.Add(), ast.Constant(f" {ELSE}"), lineno=text.lineno)
        case "warning", [ast.Constant(value="%s"), text]:
            return text
        case "warning", [text, *_]:
            return text
    return None


def _positional(name: str, args: list[ast.expr]) -> ast.expr | None:
    """The argument of a call that the function takes as `hint`."""
    for _, function in _functions().get(name, []):
        parameters = [one for one in function.args.args if one.arg != "self"]
        for parameter, argument in zip(parameters, args, strict=False):
            if parameter.arg == "hint" and "str" in ast.unparse(parameter.annotation or ast.Constant("")):
                return argument
    return None


def _message(place: Place, node: ast.AST) -> str:
    """What a call that makes an error says before the hint; empty if the call makes none, or says it elsewhere."""
    if not isinstance(node, ast.Call) or not any(one.arg == "hint" for one in node.keywords):
        return ""
    name = getattr(node.func, "id", getattr(node.func, "attr", ""))
    args = node.args[1:] if name == "RequestError" else node.args  # whose first argument is the kind of problem
    message = next(iter(place.texts(args[0])), "") if args and name.endswith("Error") else ""
    return _named_options(message) if name in ("ArgumentError", "DeviceError") else message


def _named_options(message: str) -> str:
    """A message about arguments, with the names of their options, as the command line prints it."""
    names = re.match(r"\w+(?: and \w+)+(?= cannot be combined)|\S*", message)
    assert names is not None
    options = [f"--{name.replace('_', '-')}" for name in names[0].split(" and ")]
    named = " and ".join(
        option if option in _options() else name for option, name in zip(options, names[0].split(" and "), strict=True)
    )
    return named + message[names.end() :]


def _shown(text: str) -> str:
    """A hint as the command line prints it; in Python if it is about what only Python has."""
    text = re.sub(r"%(?:\.\d+)?[sdgr]", ELSE, text)
    filled = text.replace(f"{ELSE}_column=", f"{_FILLED}_column=").replace(f"={ELSE}", f"={_NUMBER}")
    filled = re.sub(rf"(mlxbert\.\w+\(){ELSE}(?=[,)])", rf"\g<1>{_NUMBER}", filled)
    converted = to_options(filled)
    options = set(re.findall(r"(?<![\w-])--[a-z][a-z0-9-]*", converted)) - {f"--{_FILLED}-column"}
    if options <= _options() | OF_PIP and "= mlxbert " not in converted:
        return converted.replace(_NUMBER, ELSE).replace(_FILLED, ELSE)
    return text


@functools.cache
def _options() -> set[str]:
    return {
        option
        for command in COMMANDS.values()
        for parameter in command.params
        for option in (*parameter.opts, *parameter.secondary_opts)
    } | {"--help", "--verbose"}


_NUMBER, _FILLED = "90210", "filled"  # stand for what is filled in while a hint is converted


@functools.cache
def hints() -> tuple[list[Hint], list[ast.expr]]:
    """The hints of the source, and the expressions that pass on hints that are made elsewhere."""
    found: list[Hint] = []
    passed_on: list[ast.expr] = []
    for file, tree in _trees().items():
        for function, node in _calls(tree):
            expression = _hint_of(node)
            if expression is None or (isinstance(expression, ast.Constant) and expression.value is None):
                continue
            place = Place(file, function)
            texts = list(dict.fromkeys(place.texts(expression)))
            message = _message(place, node)
            found += [Hint(file, expression.lineno, message, _shown(text)) for text in texts]
            if not texts:
                passed_on.append(expression)
        found += _defaults(file, tree)
    return [hint for hint in (*found, *_pairs()) if re.search("[A-Za-z]{2}", hint.text)], passed_on


def _defaults(file: str, tree: ast.Module) -> Iterator[Hint]:
    """The defaults of parameters called `hint`."""
    for node in ast.walk(tree):
        if isinstance(node, ast.FunctionDef) and node.args.defaults:
            parameters = [*node.args.posonlyargs, *node.args.args][-len(node.args.defaults) :]
            for parameter, value in zip(parameters, node.args.defaults, strict=True):
                if parameter.arg in ARGUMENTS:
                    yield from (Hint(file, value.lineno, "", _shown(text)) for text in Place(file, None).texts(value))


def _pairs() -> Iterator[Hint]:
    """The hints in `PAIRS`, and the advice of `ADVICE`."""
    for file, names in PAIRS.items():
        for name in names:
            holder = _constants()[file].get(name) or _functions()[name][0][1]
            for pair in ast.walk(holder):
                if isinstance(pair, ast.Tuple) and len(pair.elts) == 2:
                    message, hint = (Place(file, None).texts(part) for part in pair.elts)
                    yield from (Hint(file, pair.lineno, "".join(message[:1]), _shown(text)) for text in hint)
    for file, names in ADVICE.items():
        for name in names:
            (function,) = (node for where, node in _functions()[name] if where == file)
            yield from (Hint(file, function.lineno, "", text) for text in _advice(file, function))


def _advice(file: str, function: ast.FunctionDef) -> Iterator[str]:
    """The texts that a function returns, yields or puts into a list."""
    for node in ast.walk(function):
        if isinstance(node, ast.List | ast.Return | ast.Yield | ast.Call):
            values = [*getattr(node, "elts", []), *getattr(node, "args", []), getattr(node, "value", None)]
            yield from (text for value in values for text in Place(file, None).texts(value) if " " in text)


def theme(hint: Hint) -> str:
    """The theme of a hint: by its file, unless it is about memory."""
    if _MEMORY.search(f"{hint.message} {hint.text}"):
        return "memory"
    return THEMES[max((prefix for prefix in THEMES if hint.file.startswith(prefix)), key=len)]


def table(name: str) -> str:
    """The part of the page about a theme: a row for each hint, with its messages."""
    messages: dict[str, dict[str, None]] = {}
    for hint in hints()[0]:
        if theme(hint) == name:
            messages.setdefault(hint.text, {}).setdefault(hint.message)
    rows = (f"| {'<br>'.join(map(_cell, filter(None, of)))} | {_cell(text)} |\n" for text, of in messages.items())
    return f"| message | hint |\n|---|---|\n{''.join(rows)}"


def _cell(text: str) -> str:
    """A text as it is shown in a cell of a table."""
    parts = re.split("(`[^`]+`)", " ".join(text.split()))
    return "".join(
        part.replace("|", "\\|") if part.startswith("`") else _ESCAPED.sub(r"\\\g<0>", part) for part in parts
    )


def written(page: str) -> str:
    """The text of the page with its tables updated."""
    return PART.sub(lambda match: match[1] + table(match[2]) + match[4], page)


if __name__ == "__main__":
    PAGE.write_text(written(PAGE.read_text(encoding="utf-8")), encoding="utf-8")
