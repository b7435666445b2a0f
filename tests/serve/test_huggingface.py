"""Hugging Face's pipelines without its client: shapes of several inputs, what a request says itself, and errors."""

import base64
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from starlette.testclient import TestClient

import mlxbert
from mlxbert.serve.http.app import make_app
from tests.helpers.cases import together
from tests.helpers.serving import serving
from tests.serve.test_own import assert_same

TEXTS = ["the cat sat on the mat", "paris is a city"]
LABELS = {"candidate_labels": ["cat", "city"]}
QUESTION = {"question": "the cat ?", "context": "the cat sat on the mat in paris , a city ."}


@pytest.fixture(scope="module")
def client(folders: dict[str, Path]) -> Iterator[TestClient]:
    with serving(folders) as service:
        yield TestClient(make_app(service))


def post(client: TestClient, path: str | None, inputs: Any, status: int = 200, **body: Any) -> Any:
    reply = client.post("/" if path is None else f"/models/{path}", json={"inputs": inputs, **body})
    assert reply.status_code == status, reply.text
    return reply.json()


def test_an_embedding_model_gives_vectors_and_scores_labels(client: TestClient, folders: dict[str, Path]) -> None:
    expected = mlxbert.embed(mlxbert.load(folders["embed"]), TEXTS)
    np.testing.assert_allclose(post(client, None, TEXTS), expected, atol=1e-6)
    np.testing.assert_allclose(post(client, None, TEXTS[0]), expected[:1], atol=1e-6)
    coded = post(client, "embed", TEXTS, encoding_format="base64")
    found = np.stack([np.frombuffer(base64.b64decode(one), np.float32) for one in coded])
    np.testing.assert_allclose(found, expected, atol=1e-6)
    classes: Any = mlxbert.classify(mlxbert.load(folders["embed"]), TEXTS[0], labels=LABELS["candidate_labels"])
    wanted = [label.score for label in classes.labels]
    reply = post(client, "embed", TEXTS[0], parameters=LABELS)
    assert [one["score"] for one in reply] == pytest.approx(wanted, abs=1e-5)
    body = {"texts": TEXTS[:1], "labels": LABELS["candidate_labels"], "model": "embed"}
    (result,) = client.post("/api/classify", json=body).json()["results"]
    assert [label["score"] for label in result["labels"]] == pytest.approx(wanted, abs=1e-5)
    assert client.post("/api/classify", json=body | {"labels": None}).status_code == 400


@together("model,one,given", [
    ("tag", TEXTS[0], {}), ("fill-mask", "the [MASK] sat", {}), ("answer", QUESTION, {}),
    ("answer", QUESTION, {"top_k": 2}), ("nli", TEXTS[0], LABELS),
])  # fmt: skip
def test_several_inputs_have_a_list_of_what_each_has(client: TestClient, model: str, one: Any, given: Any) -> None:
    alone = post(client, model, one, parameters=given)
    both = post(client, model, [one, one], parameters=given)
    assert_same(both, [alone, alone])  # in a larger batch the last digits of scores may differ
    assert post(client, model, [], parameters=given) == []


def test_a_request_says_what_it_wants_and_classes_are_always_lists(
    client: TestClient, folders: dict[str, Path]
) -> None:
    (alone,) = post(client, "sentiment", TEXTS[0])
    pair = {"text": TEXTS[0], "text_pair": TEXTS[1]}
    assert len(post(client, "sentiment", [TEXTS[0], pair])) == 2
    assert post(client, "sentiment", pair) != [alone]
    assert post(client, "sentiment", TEXTS[0], parameters={"top_k": 1}) == [alone[:1]]
    assert post(client, None, QUESTION) == post(client, "answer", QUESTION)
    wanted = {"source_sentence": TEXTS[0], "sentences": TEXTS}
    vectors = mlxbert.embed(mlxbert.load(folders["embed"]), TEXTS, normalize=True)
    assert post(client, None, wanted) == pytest.approx((vectors @ vectors[0]).tolist(), abs=1e-6)
    assert post(client, None, wanted) == pytest.approx(post(client, "embed", wanted))
    assert post(client, None, "the [MASK] sat", model="fill-mask") == post(client, "fill-mask", "the [MASK] sat")


@together("model,inputs,given", [
    ("tag", 3, {}), ("tag", QUESTION, {}), ("tag", TEXTS, {"ignore_labels": []}), ("tag", TEXTS, {"colour": 1}),
    ("answer", QUESTION, {"align_to_words": True}), ("sentiment", TEXTS[0], {"function_to_apply": "none"}),
    ("sentiment", TEXTS[0], LABELS), ("sentiment", "cat " * 100, {}), ("fill-mask", "no mask", {}),
    ("embed", {"source_sentence": "cat", "sentences": ["dog"]}, {"colour": 1}),
    ("embed", {"source_sentence": "cat", "sentences": "dog"}, {}),
    ("nli", TEXTS[0], LABELS | {"hypothesis_template": "none"}),
])  # fmt: skip
def test_what_would_be_wrong_is_refused(client: TestClient, model: str, inputs: Any, given: dict[str, Any]) -> None:
    error = post(client, model, inputs, 400, parameters=given)
    assert [*error] == ["error"] and isinstance(error["error"], str)


def test_unknown_models_are_refused(client: TestClient) -> None:
    assert "none/such" in post(client, "none/such", TEXTS, 404)["error"]
