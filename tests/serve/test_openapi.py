"""The description of the routes: valid, complete, and with types that are there."""

import json
import re
from typing import Any

import pytest

from mlxbert.serve.http.app import PROTOCOLS, _description


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


def test_it_is_valid(document: Any) -> None:
    validator = pytest.importorskip("openapi_spec_validator")
    validator.validate(document)
