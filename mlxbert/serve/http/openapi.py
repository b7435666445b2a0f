"""`/openapi.json`: describes the routes of all protocols and the types of their bodies in OpenAPI 3.1."""

import operator
import re
from collections.abc import Sequence
from inspect import cleandoc
from typing import Any

import msgspec

import mlxbert
from mlxbert.serve.protocol import Protocol, RequestError, Route
from mlxbert.version import __version__

_JSON = "application/json"
_PROBLEM = RequestError("invalid", "the actual and the expected value", hint="what to do")


def describe(protocols: Sequence[Protocol]) -> dict[str, Any]:
    """Returns the OpenAPI description of protocols."""
    types = [
        *dict.fromkeys(
            kind for protocol in protocols for route in protocol.routes for kind in (route.body, route.reply) if kind
        )
    ]
    schemas, components = msgspec.json.schema_components(types, ref_template="#/components/schemas/{name}")
    by_type = dict(zip(types, schemas, strict=True))
    parents = {schema["$ref"].rpartition("/")[2]: kind.__mro__ for kind, schema in by_type.items() if "$ref" in schema}
    for name, component in components.items():
        _explain(component, [parent.__doc__ or "" for parent in parents.get(name, ())])
    paths: dict[str, dict[str, Any]] = {}
    for protocol in protocols:
        for route in protocol.routes:
            path = re.sub(r"\{(\w+):\w+\}", r"{\1}", route.path)
            paths.setdefault(path, {})[route.method.lower()] = _operation(protocol, route, path, by_type)
    about = {"title": "mlxbert", "version": __version__, "summary": "BERT encoders: vectors, labels, words, answers"}
    return {"openapi": "3.1.0", "info": about, "paths": paths, "components": {"schemas": components}}


def _explain(component: dict[str, Any], parents: Sequence[str]) -> None:
    """Moves texts from the docstrings of a type and its base classes to the descriptions of the type and its fields."""
    about, fields = _split_docstring(component.get("description", ""))
    for doc in parents:
        fields = _split_docstring(doc)[1] | fields
    if function := re.match(r"See `mlxbert\.([\w.]+)`", about):
        summary, arguments = _split_docstring(operator.attrgetter(function[1])(mlxbert).__doc__)
        about, fields = f"{summary.splitlines()[0]} {about}", arguments | fields
    component["description"] = about
    for name, schema in component.get("properties", {}).items():
        if name in fields:
            schema["description"] = fields[name]


def _split_docstring(doc: str) -> tuple[str, dict[str, str]]:
    """Splits the docstring of a type or function into the text about it and the texts about its fields or arguments."""
    about, _, section = re.sub(r"\n(?:Args|Attributes):\n", "\0", cleandoc(doc)).partition("\0")
    entries = re.findall(r"^    (\w+): (.*(?:\n {8}.*)*)", re.split(r"\n\n?(?=\w)", section)[0], re.MULTILINE)
    return about.strip(), {name: " ".join(text.split()) for name, text in entries}


def _operation(protocol: Protocol, route: Route, path: str, by_type: dict[Any, Any]) -> dict[str, Any]:
    error = {
        "description": "An error",
        "content": {_JSON: {"example": msgspec.to_builtins(protocol.shape(_PROBLEM)[1])}},
    }
    success: dict[str, Any] = {"description": route.summary}
    if route.reply is not None:
        success["content"] = {_JSON: {"schema": by_type[route.reply]}}
    names = re.findall(r"\{(\w+)\}", path)
    operation: dict[str, Any] = {
        "summary": route.summary, "description": cleandoc(route.answer.__doc__ or route.summary),
        "tags": [protocol.name], "responses": {"200": success, "default": error},
        "operationId": re.sub(r"\W+", "_", f"{protocol.name} {route.method} {path}".lower()).strip("_"),
        "parameters": [
            {"name": name, "in": "path", "required": True, "schema": {"type": "string"}} for name in names
        ],
    }  # fmt: skip
    if route.body is not None:
        operation["requestBody"] = {"required": True, "content": {_JSON: {"schema": by_type[route.body]}}}
    return operation
