"""The pages of the public Python API, made of `mlxbert/__init__.pyi` and of the modules that it names.

griffe reads the source without importing it. A function with options is declared in the stub, with an overload for
each kind of result; everything else is declared in its own module.
"""

import ast
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import griffe

from website.markup import heading, indented, to_rst

_STUB = "mlxbert/__init__.pyi"
_HOME = re.compile(r"^# from (\S+) import (\w+) as \2$", re.MULTILINE)
# The page of each package (or module) below `mlxbert`, in the order of the pages.
_PAGES = {
    "models": ("Load models", {"loading", "model", "labels", "text", "weights", "version"}),
    "tasks": ("Use models", {"tasks"}),
    "results": ("Results", {"results"}),
    "search": ("Search", {"search"}),
    "explore": ("Explore many texts", {"explore"}),
    "training": ("Train and evaluate", {"train"}),
    "engine": ("Engine", {"serve"}),
    "folders": ("Model folders", {"folders"}),
    "export": ("Convert and verify", {"export"}),
    "errors": ("Errors", {"errors"}),
}
_UNLISTED = "   :no-contents-entry:"  # of the page, which has the names of the package
_FIELDS = {"parameters": "param", "other parameters": "param", "raises": "raises", "warns": "raises"}


class Api:
    """The public names of the package.

    Attributes:
        declared: The declarations of each name: one, or the overloads of a function.
        homes: The module of each name.
    """

    def __init__(self, root: Path) -> None:
        modules = griffe.ModulesCollection()
        loader = griffe.GriffeLoader(search_paths=[root], docstring_parser="google", modules_collection=modules)
        loader.load("mlxbert", try_relative_path=False)
        loader.resolve_aliases()
        path = root / _STUB
        text = path.read_text(encoding="utf-8")
        stub = griffe.visit("mlxbert", filepath=path, code=text, docstring_parser="google")
        self.homes, self.declared = {}, {}
        for module, name in _HOME.findall(text):
            self.homes[name], self.declared[name] = module, stub.overloads.get(name) or [stub.members[name]]
        for module, name in _exported(text):
            self.homes[name], self.declared[name] = module, [_final(modules[f"{module}.{name}"])]

    def write(self, target: Path) -> None:
        """Writes `api.rst`, the list of the pages, and the pages into the folder `api`.

        Raises:
            ValueError: A public name belongs to no page, or has no docstring.
        """
        folder = target / "api"
        folder.mkdir()
        pages: dict[str, list[str]] = {page: [] for page in _PAGES}
        for name, module in sorted(self.homes.items(), key=lambda item: (item[0][0].isupper(), item[0])):
            room = module.split(".")[1]
            fitting = [page for page, (_, rooms) in _PAGES.items() if room in rooms]
            if not fitting:
                raise ValueError(f"{name}: no page of the API takes names of mlxbert.{room}; add it to _PAGES")
            pages[fitting[0]] += self._object(name)
        for page, lines in pages.items():
            start = [*heading(_PAGES[page][0], "="), ".. py:currentmodule:: mlxbert", ""]
            (folder / f"{page}.rst").write_text("\n".join([*start, *lines]), encoding="utf-8")
        (target / "api.rst").write_text("\n".join(self._index()), encoding="utf-8")

    def _index(self) -> Iterator[str]:
        yield from heading("Python API", "=")
        yield from [".. py:module:: mlxbert", ""]
        yield from ["Every public name of the package. :doc:`/python` explains how to use them.", ""]
        yield from [".. toctree::", "   :maxdepth: 2", "", *(f"   api/{page}" for page in _PAGES), ""]

    def _object(self, name: str) -> list[str]:
        """The directive of a public name."""
        first = self.declared[name][0]
        if first.is_attribute:
            return [f".. py:data:: {name}", "", indented(f"The version of the package, {first.value}."), ""]
        if not first.docstring:
            raise ValueError(f"{name} has no docstring")
        if first.is_function:
            return self._function("py:function", name, self.declared[name])
        return self._class(name, first)

    def _function(self, directive: str, name: str, overloads: Sequence[Any]) -> list[str]:
        types = {one.name: _united(overloads, one.name) for one in overloads[0].parameters}
        results = " | ".join(dict.fromkeys(str(one.returns) for one in overloads if one.returns is not None))
        arrow = f" -> {results}" if results else ""
        head = f".. {directive}:: {name}{_signature(overloads[0].parameters, types)}{arrow}"
        options = ["   :async:"] if "async" in overloads[0].labels else []
        return [head, *options, "", *self._docstring(overloads[0]), ""]

    def _class(self, name: str, declared: Any) -> list[str]:
        sections = declared.docstring.parsed if declared.docstring else []
        kinds = {section.kind.value for section in sections}
        called = "parameters" in kinds or ("attributes" not in kinds and "__init__" in declared.members)
        error = name.endswith("Error")
        signature = _signature(declared.parameters, {}) if called else ""
        lines = [f".. {'py:exception' if error else 'py:class'}:: {name}{signature}", ""]
        bases = [str(base).rpartition(".")[2] for base in declared.bases]
        public = [f"``{base}``" if base not in self.homes else to_rst(f"`{base}`", self.homes) for base in bases]
        if any(base in self.homes for base in bases):
            lines += [f"   Base class: {', '.join(public)}", ""]
        lines += [*self._docstring(declared), ""]
        described = {
            one.name: one.description for part in sections if part.kind.value == "attributes" for one in part.value
        }
        for member in declared.members.values():
            if not member.name.startswith("_") and not member.is_alias:
                lines += [indented("\n".join(self._member(member, described.pop(member.name, "")))), ""]
        for attribute, text in described.items():  # set by the constructor, or inherited
            lines += [indented("\n".join(_attribute(attribute, "", "", to_rst(text, self.homes)))), ""]
        return lines

    def _member(self, member: Any, text: str) -> list[str]:
        if member.is_function:
            decorator = "py:classmethod" if "classmethod" in member.labels else "py:staticmethod"
            special = {"classmethod", "staticmethod"} & set(member.labels)
            return self._function(decorator if special else "py:method", member.name, [member])
        if member.is_class:
            return []
        value = str(member.value) if member.value is not None else ""
        if value == f"functions.{member.name}":
            shortcut = f"The function :py:func:`mlxbert.{member.name}` with this model as its first argument."
            return [f".. py:method:: {member.name}(...)", _UNLISTED, "", indented(shortcut), ""]
        if "property" in member.labels:
            return [
                f".. py:property:: {member.name}",
                _UNLISTED,
                *_typed(str(member.annotation)),
                "",
                *self._docstring(member),
                "",
            ]
        annotation, default, help = _field(member)
        if not (annotation or text or help):
            return []  # set by the constructor, and described by its parameters
        return _attribute(member.name, annotation, default, to_rst(text or help, self.homes))

    def _docstring(self, declared: Any) -> list[str]:
        """A docstring as the content of a directive: texts and examples, then parameters, results and errors."""
        if not declared.docstring:
            return []
        texts, fields = [], []
        for section in declared.docstring.parsed:
            kind = section.kind.value
            if kind == "text":
                texts += [self._text(section.value), ""]
            elif kind == "admonition":
                texts += [f"**{section.title}**", "", self._text(section.value.contents), ""]
            elif kind == "examples":
                texts += ["**Example**", "", *(self._text(text) + "\n" for _, text in section.value)]
            elif kind in _FIELDS:
                fields += [self._described(_FIELDS[kind], one) for one in section.value]
            elif kind in ("returns", "yields"):
                told = " ".join(" ".join(filter(None, [_spoken(one), one.description])) for one in section.value)
                fields += [f":{kind}: {to_rst(' '.join(told.split()), self.homes)}"]
        return [indented("\n".join([*texts, *fields]))]

    def _described(self, field: str, one: Any) -> str:
        subject = one.name if field == "param" else str(one.annotation)
        subject = subject.replace("*", r"\*")
        return f":{field} {subject}: {to_rst(' '.join(one.description.split()), self.homes)}"

    def _text(self, text: str) -> str:
        """Paragraphs, and examples that begin with a prompt."""
        return "\n\n".join(
            ".. code-block:: pycon\n\n" + indented(part)
            if part.lstrip().startswith(">>>")
            else to_rst(" ".join(part.split()), self.homes)
            for part in re.split(r"\n\s*\n", text.strip("\n"))
        )


def _final(declared: Any) -> Any:
    return declared.final_target if declared.is_alias else declared


def _exported(stub: str) -> Iterator[tuple[str, str]]:
    """The module and the name of each `from MODULE import NAME as NAME`."""
    for node in ast.parse(stub).body:
        if isinstance(node, ast.ImportFrom):
            yield from ((str(node.module), alias.name) for alias in node.names if alias.asname == alias.name)


def _united(overloads: Sequence[Any], name: str) -> str:
    """The types of a parameter in all overloads; of choices, those of the overload that has most."""
    types = [*dict.fromkeys(_type(one.parameters[name].annotation)[0] for one in overloads)]
    return max(types, key=len) if types[0].startswith("Literal[") else " | ".join(types)


def _signature(parameters: Iterable[Any], types: Mapping[str, str]) -> str:
    """The parameters in parentheses, without `self` and private ones."""
    written, keywords = [], False
    for one in parameters:
        if one.name in ("self", "cls") or one.name.startswith("_"):
            continue
        stars = {"variadic positional": "*", "variadic keyword": "**"}.get(one.kind.value, "")
        if one.kind.value == "keyword-only" and not keywords:
            written.append("*")
        keywords = keywords or one.kind.value in ("keyword-only", "variadic positional")
        kind = types.get(one.name, _type(one.annotation)[0])
        text = stars + one.name + (f": {kind}" if kind else "")
        written.append(text + (f" = {one.default}" if one.default is not None and not stars else ""))
    return f"({', '.join(written)})".replace("\\", "\\\\")


def _type(annotation: Any) -> tuple[str, str]:
    """A type, and the help of an option that is declared as `Annotated[TYPE, Option(HELP)]`."""
    text = str(annotation) if annotation is not None else ""
    node = ast.parse(text, mode="eval").body if text.startswith("Annotated[") else None
    if not (isinstance(node, ast.Subscript) and isinstance(node.slice, ast.Tuple)):
        return text, ""
    kind, option = node.slice.elts[:2]
    help = option.args[0].value if isinstance(option, ast.Call) and isinstance(option.args[0], ast.Constant) else ""
    return ast.unparse(kind), str(help)


def _field(member: Any) -> tuple[str, str, str]:
    """Type, default and help of a field of a class."""
    annotation, help = _type(member.annotation)
    default = str(member.value) if member.value is not None else ""
    if default.startswith("field("):
        node = ast.parse(default, mode="eval").body
        keywords = {one.arg: ast.unparse(one.value) for one in node.keywords} if isinstance(node, ast.Call) else {}
        default = keywords.get("default", "")
    return annotation, default, help


def _typed(annotation: str) -> list[str]:
    return [f"   :type: {annotation}"] if annotation and annotation != "None" else []


def _attribute(name: str, annotation: str, default: str, text: str) -> list[str]:
    value = [f"   :value: {' '.join(default.split())}"] if default and len(default) <= 60 else []
    return [f".. py:attribute:: {name}", _UNLISTED, *_typed(annotation), *value, "", indented(text), ""]


def _spoken(one: Any) -> str:
    """What the parser took for the name or type of a result, because a colon follows it."""
    taken = one.name or (str(one.annotation) if one.annotation is not None else "")
    return f"{taken}:" if taken else ""
