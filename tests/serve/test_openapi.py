"""The description of the routes: valid, complete, and with types that are there."""

import json
import re
from typing import Any

import pytest

from mlxbert.serve.http.app import PROTOCOLS, _description
from mlxbert.tasks.catalogue import CATALOGUE


@pytest.fixture(scope="module")
def document() -> Any:
    return json.loads(_description())


def test_every_route_is_described(document: Any) -> None:
    described = {(method, path) for path, methods in document["paths"].items() for method in methods}
    routes = [route for protocol in PROTOCOLS for route in protocol.routes]
    assert {(route.method.lower(), re.sub(r":\w+\}", "}", route.path)) for route in routes} == described
    assert len(described) == len(routes)
    for route in routes:
        operation = document["paths"][re.sub(r":\w+\}", "}", route.path)][route.method.lower()]
        assert ("requestBody" in operation) == (route.body is not None)


def test_references_have_an_end_and_names_are_unique(document: Any) -> None:
    found = set(re.findall(r'"#/components/schemas/([^"]+)"', json.dumps(document)))
    assert found <= {*document["components"]["schemas"]}
    names = [operation["operationId"] for methods in document["paths"].values() for operation in methods.values()]
    assert len({*names}) == len(names)


def test_types_fields_and_routes_have_descriptions(document: Any) -> None:
    for schema in document["components"]["schemas"].values():
        assert schema["description"] and "Attributes:" not in schema["description"]
    operations = [one for methods in document["paths"].values() for one in methods.values()]
    assert all(one["description"] for one in operations)
    bodies = [one["requestBody"]["content"]["application/json"]["schema"] for one in operations if "requestBody" in one]
    names = {one["$ref"].rpartition("/")[2] for one in bodies if "$ref" in one}
    own = [name for name in names if "`mlxbert." in document["components"]["schemas"][name]["description"]]
    assert len(own) == len(CATALOGUE) + 2  # and similarity and search
    for name in [*own, "EmbeddingsBody"]:
        fields = document["components"]["schemas"][name]["properties"]
        assert [field for field, schema in fields.items() if not schema.get("description")] == []
    embed = document["components"]["schemas"]["Embed"]["properties"]
    assert embed["kind"]["description"].startswith("Use the model's own prompt.") and "on_error" in embed
    assert (embed["dimensions"]["minimum"], embed["dimensions"]["maximum"]) == (1, 1_000_000)


def test_it_is_valid(document: Any) -> None:
    validator = pytest.importorskip("openapi_spec_validator")
    validator.validate(document)
