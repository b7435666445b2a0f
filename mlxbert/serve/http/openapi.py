"""`/openapi.json`: the routes of all protocols with the types of their bodies, as OpenAPI 3.1 writes them."""

import operator
import re
from collections.abc import Iterator, Sequence
from inspect import cleandoc
from typing import Any

import msgspec

import mlxbert
from mlxbert.serve.protocol import Protocol, RequestError, Route
from mlxbert.version import __version__

_JSON = "application/json"
_PROBLEM = RequestError("invalid", "what was met, and what was expected", hint="what to do")


def describe(protocols: Sequence[Protocol]) -> dict[str, Any]:
    """The description of some protocols."""
    types = [*dict.fromkeys(one for protocol in protocols for route in protocol.routes for one in _types(route))]
    schemas, components = msgspec.json.schema_components(types, ref_template="#/components/schemas/{name}")
    known = dict(zip(types, schemas, strict=True))
    parents = {schema["$ref"].rpartition("/")[2]: one.__mro__ for one, schema in known.items() if "$ref" in schema}
    for name, component in components.items():
        _explain(component, [parent.__doc__ or "" for parent in parents.get(name, ())])
    paths: dict[str, dict[str, Any]] = {}
    for protocol in protocols:
        for route in protocol.routes:
            path = re.sub(r"\{(\w+):\w+\}", r"{\1}", route.path)
            paths.setdefault(path, {})[route.method.lower()] = _operation(protocol, route, path, known)
    about = {"title": "mlxbert", "version": __version__, "summary": "BERT encoders: vectors, labels, words, answers"}
    return {"openapi": "3.1.0", "info": about, "paths": paths, "components": {"schemas": components}}


def _explain(component: dict[str, Any], parents: Sequence[str]) -> None:
    """Puts what docstrings say of a type and of its fields to where OpenAPI has it.

    Args:
        component: The description of the type, with its docstring.
        parents: The docstrings of the types that it inherits from, itself the first.
    """
    about, fields = _parted(component.get("description", ""))
    for doc in parents:
        fields = _parted(doc)[1] | fields
    if function := re.match(r"See `mlxbert\.([\w.]+)`", about):
        said, arguments = _parted(operator.attrgetter(function[1])(mlxbert).__doc__)
        about, fields = f"{said.splitlines()[0]} {about}", arguments | fields
    component["description"] = about
    for name, schema in component.get("properties", {}).items():
        if name in fields:
            schema["description"] = fields[name]


def _parted(doc: str) -> tuple[str, dict[str, str]]:
    """What a docstring says of a type or a function, and of its fields or arguments."""
    about, _, listed = re.sub(r"\n(?:Args|Attributes):\n", "\0", cleandoc(doc)).partition("\0")
    found = re.findall(r"^    (\w+): (.*(?:\n {8}.*)*)", re.split(r"\n\n?(?=\w)", listed)[0], re.MULTILINE)
    return about.strip(), {name: " ".join(text.split()) for name, text in found}


def _types(route: Route) -> Iterator[Any]:
    return (one for one in (route.body, route.reply) if one is not None)


def _operation(protocol: Protocol, route: Route, path: str, known: dict[Any, Any]) -> dict[str, Any]:
    error = {
        "description": "An error",
        "content": {_JSON: {"example": msgspec.to_builtins(protocol.shape(_PROBLEM)[1])}},
    }
    good: dict[str, Any] = {"description": route.summary}
    if route.reply is not None:
        good["content"] = {_JSON: {"schema": known[route.reply]}}
    names = re.findall(r"\{(\w+)\}", path)
    operation: dict[str, Any] = {
        "summary": route.summary, "description": cleandoc(route.answer.__doc__ or route.summary),
        "tags": [protocol.name], "responses": {"200": good, "default": error},
        "operationId": re.sub(r"\W+", "_", f"{protocol.name} {route.method} {path}".lower()).strip("_"),
        "parameters": [
            {"name": name, "in": "path", "required": True, "schema": {"type": "string"}} for name in names
        ],
    }  # fmt: skip
    if route.body is not None:
        operation["requestBody"] = {"required": True, "content": {_JSON: {"schema": known[route.body]}}}
    return operation
