"""`/openapi.json`: the routes of all protocols with the types of their bodies, as OpenAPI 3.1 writes them."""

import re
from collections.abc import Iterator, Sequence
from typing import Any

import msgspec

from mlxbert.serve.protocol import Problem, Protocol, Route
from mlxbert.version import __version__

_JSON = "application/json"
_PROBLEM = Problem("invalid", "what was met, and what was expected", hint="what to do")


def describe(protocols: Sequence[Protocol]) -> dict[str, Any]:
    """The description of some protocols."""
    types = [*dict.fromkeys(one for protocol in protocols for route in protocol.routes for one in _types(route))]
    schemas, components = msgspec.json.schema_components(types, ref_template="#/components/schemas/{name}")
    known = dict(zip(types, schemas, strict=True))
    paths: dict[str, dict[str, Any]] = {}
    for protocol in protocols:
        for route in protocol.routes:
            path = re.sub(r"\{(\w+):\w+\}", r"{\1}", route.path)
            paths.setdefault(path, {})[route.method.lower()] = _operation(protocol, route, path, known)
    about = {"title": "mlxbert", "version": __version__, "summary": "BERT encoders: vectors, labels, words, answers"}
    return {"openapi": "3.1.0", "info": about, "paths": paths, "components": {"schemas": components}}


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
        "summary": route.summary, "tags": [protocol.name], "responses": {"200": good, "default": error},
        "operationId": re.sub(r"\W+", "_", f"{protocol.name} {route.method} {path}".lower()).strip("_"),
        "parameters": [
            {"name": name, "in": "path", "required": True, "schema": {"type": "string"}} for name in names
        ],
    }  # fmt: skip
    if route.body is not None:
        operation["requestBody"] = {"required": True, "content": {_JSON: {"schema": known[route.body]}}}
    return operation
