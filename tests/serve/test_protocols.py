"""The routes of TEI, Cohere, Jina and OpenAI: right numbers, and errors in the protocol's own shape."""

import asyncio
import base64
import json
import re
import threading
from collections.abc import Iterator
from dataclasses import replace
from itertools import product
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from starlette.testclient import TestClient

import mlxbert
from mlxbert.labels.labels import Labels
from mlxbert.serve.engine.serving_options import ServeOptions
from mlxbert.serve.http.app import PROTOCOLS, make_app
from mlxbert.serve.json_bodies import pieces
from mlxbert.serve.protocol import Kind, RequestError
from mlxbert.serve.protocols import tei
from mlxbert.serve.service import Service
from tests.helpers.cases import together
from tests.helpers.classifiers import EMOTIONS, save_classifier, save_saturated
from tests.helpers.serving import serving
from tests.helpers.sparse_folder import save_splade
from tests.helpers.tiny import save, with_nan

TEXTS = ["the cat sat on the mat", "paris is a city", "a dog"]
LONG = "the cat " * 40
QUERY = "a dog"
RERANKER = Labels(("score",), "regression")


@pytest.fixture(scope="module")
def folders(unit_folder: Path, tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    made = tmp_path_factory.mktemp("heads")
    return {
        "unit": unit_folder,
        "reranker": save_classifier(made / "reranker", RERANKER),
        "emotions": save_classifier(made / "emotions", EMOTIONS),
    }


@pytest.fixture(scope="module")
def models(folders: dict[str, Path]) -> dict[str, mlxbert.Model]:
    return {name: mlxbert.load(folder, dtype="float32") for name, folder in folders.items()}


@pytest.fixture(scope="module")
def service(folders: dict[str, Path]) -> Iterator[Service]:
    with serving(folders, options=ServeOptions(max_texts=50), max_queue=60) as service:
        yield service


@pytest.fixture(scope="module")
def client(service: Service) -> Iterator[TestClient]:
    with TestClient(make_app(service), raise_server_exceptions=False) as client:
        yield client


def post(client: TestClient, path: str, body: Any, status: int = 200) -> Any:
    response = client.post(path, json=body)
    assert response.status_code == status, response.text
    return response.json()


def same(found: Any, expected: Any) -> None:
    np.testing.assert_allclose(np.array(found), np.array(expected), atol=1e-6)


def embedded(models: dict[str, mlxbert.Model], texts: list[str], **options: Any) -> Any:
    return mlxbert.embed(models["unit"], texts, **options)


def ranked(models: dict[str, mlxbert.Model], texts: list[str]) -> list[Any]:
    found = mlxbert.rerank(models["reranker"], QUERY, texts)
    return [(one.index, pytest.approx(one.score, abs=1e-6)) for one in found]


@together("asked,options", [
    ({}, {}), ({"normalize": False}, {"normalize": False}), ({"dimensions": 8}, {"dimensions": 8, "normalize": True}),
    ({"prompt_name": "query"}, {"prompt_name": "query"}),
])  # fmt: skip
def test_tei_embeds(
    client: TestClient, models: dict[str, mlxbert.Model], asked: dict[str, Any], options: dict[str, Any]
) -> None:
    same(post(client, "/embed", {"inputs": TEXTS, **asked}), embedded(models, TEXTS, **options))
    same(post(client, "/embed", {"inputs": TEXTS[0], **asked}), embedded(models, TEXTS[:1], **options))


def test_a_request_of_tei_may_name_a_model(client: TestClient) -> None:
    texts = {"inputs": TEXTS[0]}
    found = {name: post(client, "/embed", {**texts, "model": name}) for name in ("unit", "emotions")}
    assert found["unit"] == post(client, "/embed", texts) != found["emotions"]
    for path, body in (
        ("/embed", texts), ("/embed_all", texts), ("/tokenize", texts), ("/decode", {"ids": [5]}),
        ("/predict", texts), ("/rerank", {"query": "a", "texts": ["b"]}),
        ("/similarity", {"inputs": {"source_sentence": "a", "sentences": ["b"]}}),
    ):  # fmt: skip
        assert "other" in post(client, path, {**body, "model": "other"}, 424)["error"]


def test_tei_embeds_tokens_and_compares(client: TestClient, models: dict[str, mlxbert.Model]) -> None:
    found = post(client, "/embed_all", {"inputs": TEXTS})
    for text, vectors in zip(TEXTS, found, strict=True):
        ids = models["unit"].embed_tokenizer.encode(text).ids
        hidden = models["unit"].network.encoder(mlxbert.machine.device.mx.array([ids])).last_hidden_state[0]
        same(vectors, hidden.tolist())
    inputs = {"source_sentence": QUERY, "sentences": TEXTS}
    expected = {one.index: one.score for one in mlxbert.similarity(models["unit"], QUERY, TEXTS)}
    same(post(client, "/similarity", {"inputs": inputs}), [expected[number] for number in range(len(TEXTS))])
    named = mlxbert.similarity(models["unit"], QUERY, TEXTS, prompt_name="passage")
    found = post(client, "/similarity", {"inputs": inputs, "parameters": {"prompt_name": "passage"}})
    same(found, [one.score for one in sorted(named, key=lambda one: one.index)])


def test_tei_reranks(client: TestClient, models: dict[str, mlxbert.Model]) -> None:
    found = post(client, "/rerank", {"query": QUERY, "texts": TEXTS})
    assert [(one["index"], one["score"]) for one in found] == ranked(models, TEXTS)
    assert "text" not in found[0]
    raw = post(client, "/rerank", {"query": QUERY, "texts": TEXTS, "raw_scores": True, "return_text": True})
    same([1 / (1 + np.exp(-one["score"])) for one in raw], [one["score"] for one in found])
    assert [one["text"] for one in raw] == [TEXTS[one["index"]] for one in raw]


def test_equal_probabilities_are_ranked_by_the_logits(tmp_path: Path, models: dict[str, mlxbert.Model]) -> None:
    order = [number for number, _ in ranked(models, TEXTS)]
    assert order != sorted(order)
    with serving({"one": save_saturated(tmp_path / "m")}) as service, TestClient(make_app(service)) as client:
        tei = post(client, "/rerank", {"query": QUERY, "texts": TEXTS})
        assert [(one["index"], one["score"]) for one in tei] == [(number, 1.0) for number in order]
        raw = post(client, "/rerank", {"query": QUERY, "texts": TEXTS, "raw_scores": True})
        own = post(client, "/api/rerank", {"query": QUERY, "texts": TEXTS, "top_k": 2})["results"]
        assert [(one["index"], one["score"], one["logit"]) for one in own] == [
            (number, 1.0, pytest.approx(one["score"])) for number, one in zip(order[:2], raw[:2], strict=True)
        ]
        for path in ("/v1/rerank", "/v2/rerank"):  # the first is Jina's, too
            found = post(client, path, {"model": "one", "query": QUERY, "documents": TEXTS, "top_n": 2})["results"]
            assert [(one["index"], one["relevance_score"]) for one in found] == [(number, 1.0) for number in order[:2]]


def test_tei_predicts(folders: dict[str, Path], models: dict[str, mlxbert.Model]) -> None:
    classify: Any = mlxbert.classify
    with serving({"emotions": folders["emotions"]}) as one, TestClient(make_app(one)) as client:
        expected = classify(models["emotions"], TEXTS[0])
        single = post(client, "/predict", {"inputs": TEXTS[0]})
        assert [one["label"] for one in single] == [one.label for one in expected.labels]
        same([one["score"] for one in single], [one.score for one in expected.labels])
        pair = classify(models["emotions"], (TEXTS[0], TEXTS[1]))
        assert post(client, "/predict", {"inputs": TEXTS[:2]})[0]["score"] == pytest.approx(pair.labels[0].score)
        batch = post(client, "/predict", {"inputs": [[TEXTS[0]], TEXTS[:2]], "raw_scores": True})
        for found, labels in zip(batch, (expected.labels, pair.labels), strict=True):
            same([1 / (1 + np.exp(-one["score"])) for one in found], [one.score for one in labels])
        assert post(client, "/predict", {"inputs": [["a", "b", "c"]]}, 422)["error_type"] == "Validation"
        assert post(client, "/predict", {"inputs": LONG}, 413)["error_type"] == "Validation"
        several = post(client, "/rerank", {"query": QUERY, "texts": TEXTS}, 424)
        assert several["error_type"] == "Backend"
        assert "4 labels" in several["error"]


def test_tei_splits_and_joins(client: TestClient, models: dict[str, mlxbert.Model]) -> None:
    text = "The cats, é!"
    (tokens,) = post(client, "/tokenize", {"inputs": text})
    encoding = models["unit"].tokenizer.encode(text)
    assert [one["id"] for one in tokens] == encoding.ids
    assert [one["special"] for one in tokens] == [True, *[False] * (len(tokens) - 2), True]
    assert tokens[0] == {"id": 2, "text": "[CLS]", "special": True, "start": None, "stop": None}
    assert all(one["text"] == text[one["start"] : one["stop"]] for one in tokens[1:-1])
    plain = post(client, "/tokenize", {"inputs": [text, LONG], "add_special_tokens": False})
    assert plain[0] == tokens[1:-1]
    assert len(plain[1]) == 80
    ids = [one["id"] for one in tokens]
    kept = models["unit"].tokenizer.decode(ids)
    assert post(client, "/decode", {"ids": ids, "skip_special_tokens": False}) == [kept]
    assert post(client, "/decode", {"ids": [ids, ids[1:-1]]}) == [models["unit"].tokenizer.decode(ids[1:-1])] * 2
    assert post(client, "/decode", {"ids": [10**6]}, 422)["error_type"] == "Validation"


def test_tei_gives_the_ids_and_weights_of_tokens(tmp_path: Path) -> None:
    expected = [*mlxbert.embed_sparse(mlxbert.load(folder := save_splade(tmp_path / "m")), TEXTS)]
    with serving({"sparse": folder}) as service, TestClient(make_app(service)) as client:
        assert "embed-sparse" in service.facts["sparse"].tasks and "embed" not in service.facts["sparse"].tasks
        found = post(client, "/embed_sparse", {"inputs": TEXTS})
        post(client, "/embed", {"inputs": TEXTS[0]}, 424)
    assert [[entry["index"] for entry in row] for row in found] == [result.ids.tolist() for result in expected]
    for row, result in zip(found, expected, strict=True):
        assert [entry["value"] for entry in row] == pytest.approx(result.values.tolist(), rel=1e-5)


def test_tei_says_what_is_served(client: TestClient) -> None:
    found = client.get("/info").json()
    assert (found["model_id"], found["model_type"]) == ("unit", {"embedding": {"pooling": "mean"}})
    assert (found["max_input_length"], found["max_client_batch_size"]) == (32, 50)


@together("path,body,status,kind", [
    ("/embed", {"inputs": []}, 400, "Empty"), ("/predict", {"inputs": []}, 400, "Empty"),
    ("/embed", {"inputs": [[101, 102]]}, 422, "Validation"), ("/embed", {}, 422, "Validation"),
    ("/embed", {"inputs": "a", "prompt_name": "no-such"}, 422, "Validation"),
    ("/embed", {"inputs": LONG, "truncate": True, "truncation_direction": "Left"}, 422, "Validation"),
    ("/embed", {"inputs": ["a"] * 51}, 413, "Validation"), ("/embed_sparse", {"inputs": "a"}, 424, "Backend"),
])  # fmt: skip
def test_tei_refuses(client: TestClient, path: str, body: Any, status: int, kind: str) -> None:
    refused = post(client, path, body, status)
    assert refused.keys() == {"error", "error_type"} and refused["error_type"] == kind


@together("kind,expected", [
    ("bad_text", (422, "Tokenizer")), ("internal", (424, "Backend")), ("unavailable", (503, "Unhealthy")),
    ("unauthorized", (401, "Validation")),
])  # fmt: skip
def test_tei_names_each_error(kind: Kind, expected: tuple[int, str]) -> None:
    status, error = tei.shape(RequestError(kind, "wrong", hint="do this"))
    assert (status, error["error_type"]) == expected
    assert error["error"] == "wrong (do this)"


def test_numbers_that_are_not_finite_are_faults_of_the_model(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    with serving({"unit": with_nan(save(tmp_path / "model"))}) as service, TestClient(make_app(service)) as client:
        assert post(client, "/embed", {"inputs": TEXTS}, 424)["error_type"] == "Backend"
        assert post(client, "/v1/embeddings", {"input": TEXTS}, 500)["error"]
        assert service.engine.counts.failed == 2
        assert [record.levelname for record in caplog.records if "not finite" in record.message] == ["ERROR"] * 2
        post(client, "/embed", {"inputs": TEXTS[:1]})
        assert service.engine.counts.failed == 2


def test_what_comes_on_top_of_a_full_queue_is_refused_in_each_shape(client: TestClient, service: Service) -> None:
    blocked = threading.Event()
    waits = service.engine.call(None, blocked.wait)
    waiting = service.engine.submit("unit", "embed", ["a"] * 40)
    try:
        many = ["a"] * 30
        assert post(client, "/embed", {"inputs": many}, 429)["error_type"] == "Overloaded"
        assert "message" in post(client, "/v2/embed", {"texts": many}, 429)
        assert post(client, "/v1/embeddings", {"input": many}, 429)["error"]["type"] == "rate_limit_error"
    finally:
        blocked.set()
    assert waits.result()
    waiting.result()


@pytest.mark.parametrize("path", ["/v1/rerank", "/v2/rerank"])
def test_cohere_and_jina_rerank(client: TestClient, models: dict[str, mlxbert.Model], path: str) -> None:
    found = post(client, path, {"query": QUERY, "documents": TEXTS, "top_n": 2, "model": "reranker"})
    assert [(one["index"], one["relevance_score"]) for one in found["results"]] == ranked(models, TEXTS)[:2]
    assert found["usage"]["total_tokens"] > 0
    assert found["meta"]["api_version"]["version"] == path[2]
    assert "document" not in found["results"][0]
    everything = {"query": QUERY, "documents": TEXTS, "top_n": 2**40, "model": "reranker"}
    assert len(post(client, path, everything)["results"]) == len(TEXTS)
    objects = [{"title": text, "text": "a"} for text in TEXTS]
    asked = {"query": QUERY, "documents": objects, "rank_fields": ["title"], "return_documents": True}
    again = post(client, path, asked)["results"]
    assert [(one["index"], one["relevance_score"]) for one in again] == ranked(models, TEXTS)
    assert again[0]["document"] == objects[again[0]["index"]]
    shown = post(client, path, {"query": QUERY, "documents": TEXTS, "return_documents": True})["results"]
    assert shown[0]["document"] == {"text": TEXTS[shown[0]["index"]]}


def test_cohere_embeds(client: TestClient, models: dict[str, mlxbert.Model]) -> None:
    queries, documents = (embedded(models, TEXTS, kind=kind) for kind in ("query", "document"))
    one = post(client, "/v1/embed", {"texts": TEXTS, "input_type": "search_query"})
    assert one["response_type"] == "embeddings_floats"
    same(one["embeddings"], queries)
    types = ["float", "int8", "binary", "base64"]
    two = post(client, "/v2/embed", {"texts": TEXTS, "input_type": "search_document", "embedding_types": types})
    same(two["embeddings"]["float"], documents)
    for form in ("int8", "binary"):
        same(two["embeddings"][form], embedded(models, TEXTS, kind="document", output_dtype=form))
    same([np.frombuffer(base64.b64decode(text), "<f4") for text in two["embeddings"]["base64"]], documents)
    by_type = post(client, "/v1/embed", {"texts": TEXTS, "embedding_types": ["float"]})
    assert by_type["response_type"] == "embeddings_by_type"
    same(by_type["embeddings"]["float"], embedded(models, TEXTS))
    small = post(client, "/v2/embed", {"texts": TEXTS, "output_dimension": 8})["embeddings"]["float"]
    same(small, embedded(models, TEXTS, dimensions=8, normalize=True))


def test_cohere_says_what_was_truncated(client: TestClient, models: dict[str, mlxbert.Model]) -> None:
    response = client.post("/v2/embed", json={"texts": [TEXTS[0], LONG]})
    assert response.headers["X-Truncated-Texts"] == "1"
    assert "texts 1" in response.json()["meta"]["warnings"][0]
    same(response.json()["embeddings"]["float"], embedded(models, [TEXTS[0], LONG]))
    ranking = client.post("/v1/rerank", json={"query": QUERY, "documents": [TEXTS[0], LONG]})
    assert ranking.headers["X-Truncated-Texts"] == "1"
    assert "warnings" in ranking.json()["meta"]
    assert "warnings" not in post(client, "/v1/rerank", {"query": QUERY, "documents": TEXTS})["meta"]


@together("path,body,status,word", [
    ("/v2/embed", {"texts": [LONG], "truncate": "NONE"}, 400, "tokens"),
    ("/v2/embed", {"texts": [LONG], "truncate": "START"}, 400, "truncate"),
    ("/v2/embed", {"texts": ["a"], "input_type": "poem"}, 400, "search_query"),
    ("/v2/embed", {"images": ["data:"]}, 400, "images"),
    ("/v2/embed", {"texts": ["a"], "embedding_types": ["binary"], "output_dimension": 9}, 400, "multiple of 8"),
    ("/v1/embed", {"texts": ["a"], "model": "embed-v4.0"}, 404, "unit"),
    ("/v1/rerank", {"query": "a", "documents": [{"title": "a"}]}, 400, "'text'"),
    ("/v1/rerank", {"query": "a", "documents": [LONG], "truncation": False}, 400, "tokens"),
    ("/v2/rerank", {"query": "a", "documents": ["a"], "max_tokens_per_doc": 8}, 400, "32"),
    ("/v2/rerank", {"query": "a", "documents": ["a"], "top_n": 0}, 400, "top_n"),
    ("/v2/rerank", {"query": "a", "documents": ["a"], "model": "emotions"}, 400, "4 labels"),
    ("/v2/rerank", {"query": "a", "documents": ["a"], "model": "unit"}, 400, "do rerank"),
])  # fmt: skip
def test_cohere_refuses(client: TestClient, path: str, body: Any, status: int, word: str) -> None:
    refused = post(client, path, body, status)
    assert word in refused["message"]
    assert refused["detail"] == refused["message"]  # as Jina's clients read it


@together("asked,options", [
    ({}, {}), ({"dimensions": 8}, {"dimensions": 8, "normalize": True}), ({"normalized": False}, {"normalize": False}),
    ({"input_type": "query"}, {"kind": "query"}), ({"input_type": "passage"}, {"kind": "document"}),
    ({"task": "retrieval.query"}, {"kind": "query"}), ({"task": "text-matching"}, {}),
    ({"prompt_name": "passage"}, {"prompt_name": "passage"}),
    ({"embedding_type": "binary"}, {"output_dtype": "binary"}),
])  # fmt: skip
def test_openai_embeds(
    client: TestClient, models: dict[str, mlxbert.Model], asked: dict[str, Any], options: dict[str, Any]
) -> None:
    found = post(client, "/v1/embeddings", {"input": TEXTS, "model": "unit", **asked})
    same([one["embedding"] for one in found["data"]], embedded(models, TEXTS, **options))
    assert [one["index"] for one in found["data"]] == [0, 1, 2]
    assert (found["object"], found["data"][0]["object"]) == ("list", "embedding")
    assert found["usage"]["total_tokens"] == found["usage"]["prompt_tokens"] > 0


@together("body,status,param,code", [
    ({"input": []}, 400, "input", "empty"), ({"input": [[104, 101]]}, 400, "input", "invalid"),
    ({"input": "a", "model": "text-embedding-3-small"}, 404, "model", "model_not_found"),
    ({"input": "a", "model": "emotions", "dimensions": 1000}, 400, None, "invalid"),
    ({"input": "a", "truncate_prompt_tokens": 5}, 400, "truncate_prompt_tokens", "invalid"),
    ({"input": "a", "late_chunking": True}, 400, "late_chunking", "invalid"),
    ({"input": "a", "input_type": "query", "task": "retrieval.query"}, 400, "task", "invalid"),
    ({"input": "a", "input_type": "poem"}, 400, "input_type", "invalid"),
    ({"input": "a", "embedding_type": "ubinary"}, 400, "embedding_type", "invalid"),
    ({"inptu": "a"}, 400, "inptu", "invalid"), ({"input": ["a"] * 51}, 413, None, "too_large"),
])  # fmt: skip
def test_openai_refuses(client: TestClient, body: Any, status: int, param: str | None, code: str) -> None:
    refused = post(client, "/v1/embeddings", body, status)["error"]
    assert (refused["param"], refused["code"]) == (param, code)


def test_large_replies_are_made_on_another_thread(client: TestClient, monkeypatch: pytest.MonkeyPatch) -> None:
    found = {}

    def noted(value: Any) -> Iterator[bytes]:
        found[len(value.data.parts)] = asyncio._get_running_loop() is not None
        return pieces(value)

    monkeypatch.setattr("mlxbert.serve.http.app.pieces", noted)
    for count in (1, 50):
        post(client, "/v1/embeddings", {"input": ["the cat sat on the mat"] * count})
    assert found == {1: True, 50: False}


def test_every_route_requires_its_texts_and_ignores_other_fields(client: TestClient, service: Service) -> None:
    more = {"user": "me", "priority": 1, "add_special_tokens": True, "prompt": "", "tags": [], "extra": {"input": "b"}}
    post(client, "/v1/embeddings", {"input": "a", **more})
    post(client, "/v2/rerank", {"query": "a", "documents": ["a"], "max_chunks_per_doc": 10, "api_version": 2, **more})
    post(client, "/embed", {"inputs": "a", **more})
    """No default stands for a text that a client has sent in a field of another route."""
    routes = [route for protocol in PROTOCOLS for route in protocol.routes if route.body is not None]
    paths = [route.path for route in routes if route.path != "/api/show"]  # which needs a model alone
    assert len(paths) > 20
    for name, path in product(service.facts, paths):
        place = re.sub(r"\{\w+(:path)?\}", name, path)
        reply = client.post(place, json={"model": name, "field_of_another_route": "a"})
        assert reply.status_code in (400, 422), place


@together("path,body,known", [
    ("/v1/embeddings", {"input": "a", "encoding_format": "x"}, "float base64"),
    ("/v1/embeddings", {"input": "a", "truncate": "x"}, "NONE END START"),
    ("/v2/embed", {"texts": ["a"], "embedding_types": ["x"]}, "float base64 int8 binary"),
    ("/similarity", {"inputs": {"source_sentence": "a", "sentences": ["a"]},
                     "parameters": {"truncation_direction": "x"}}, "right left"),
    ("/api/search", {"query": "a", "mode": "x"}, "hybrid vectors words"),
    ("/models/emotions", {"inputs": "a", "parameters": {"function_to_apply": "x"}}, "sigmoid softmax none"),
])  # fmt: skip
def test_a_value_that_a_field_does_not_take_is_refused(client: TestClient, path: str, body: Any, known: str) -> None:
    refused = client.post(path, json=body)
    assert refused.status_code in (400, 422) and all(one in refused.text for one in ("'x'", *known.split()))


@together("path,body,remedy", [
    ("/v1/embeddings", {"input": LONG}, {"truncate": True}), ("/v1/embeddings", {"input": LONG}, {"truncate": "END"}),
    ("/v1/embeddings", {"input": LONG}, {"truncate_prompt_tokens": -1}),
    ("/embed", {"inputs": LONG}, {"truncate": True}), ("/embed_all", {"inputs": LONG}, {"truncate": True}),
    ("/similarity", {"inputs": {"source_sentence": LONG, "sentences": ["a"]}}, {"parameters": {"truncate": True}}),
    ("/v2/embed", {"texts": [LONG], "truncate": "NONE"}, {"truncate": "END"}),
    ("/v1/rerank", {"query": "a", "documents": [LONG], "truncation": False}, {"truncation": True}),
    ("/models/unit", {"inputs": LONG}, {"truncate": True}),
])  # fmt: skip
def test_the_error_of_a_long_text_says_what_helps(
    client: TestClient, path: str, body: Any, remedy: dict[str, Any]
) -> None:
    refused = client.post(path, json=body)
    assert refused.status_code in (400, 413)
    said = {"truncate": True} if path == "/v1/embeddings" else remedy
    assert json.dumps(json.dumps(said)[1:-1])[1:-1] in refused.text
    found = client.post(path, json=body | remedy)
    assert found.status_code == 200 and found.headers["X-Truncated-Texts"] == "1"


def test_openai_knows_models_by_names_with_slashes(unit_folder: Path) -> None:
    with serving({"org/unit": unit_folder}) as service, TestClient(make_app(service)) as client:
        assert client.get("/v1/models/org%2Funit").json()["id"] == "org/unit"
        assert post(client, "/v1/embeddings", {"input": "a", "model": "org/unit"})["model"] == "org/unit"


@pytest.mark.parametrize(("path", "body"), [
    ("/v1/embeddings", {"input": [TEXTS[0], LONG]}), ("/embed", {"inputs": [TEXTS[0], LONG]}),
    ("/predict", {"inputs": LONG}), ("/rerank", {"query": QUERY, "texts": [TEXTS[0], LONG]}),
    ("/similarity", {"inputs": {"source_sentence": QUERY, "sentences": [TEXTS[0], LONG]}}),
    ("/models/unit", {"inputs": [TEXTS[0], LONG]}), ("/models/emotions", {"inputs": LONG}),
])  # fmt: skip
def test_a_server_truncates_for_clients_that_cannot_ask_for_it(
    client: TestClient, service: Service, monkeypatch: pytest.MonkeyPatch, path: str, body: dict[str, Any]
) -> None:
    refused = client.post(path, json=body)
    assert refused.status_code in (400, 413) and "serve --truncate" in refused.text
    before = service.engine.counts.truncated
    monkeypatch.setattr(service, "options", replace(service.options, truncate=True))
    found = client.post(path, json=body)
    assert found.status_code == 200 and found.headers["X-Truncated-Texts"] == "1"
    assert service.engine.counts.truncated == before + 1
    if "similarity" not in path and "models" not in path:
        assert client.post(path, json=body | {"truncate": False}).status_code in (400, 413)


def test_ollama_embeds(client: TestClient, models: dict[str, mlxbert.Model]) -> None:
    body = {"model": "unit", "input": [TEXTS[0], LONG], "options": {"num_ctx": 9}, "keep_alive": "5m"}
    response = client.post("/api/embed", json=body)
    found = response.json()
    same(found["embeddings"], embedded(models, [TEXTS[0], LONG], normalize=True))
    assert response.headers["X-Truncated-Texts"] == "1" and found["model"] == "unit"
    assert found["prompt_eval_count"] > 0 and found["total_duration"] > 0
    for name in ("unit:latest", "unit"):
        one = post(client, "/api/embed", {"model": name, "input": TEXTS[0], "dimensions": 8})
        same(one["embeddings"], embedded(models, TEXTS[:1], dimensions=8, normalize=True))
    assert post(client, "/api/embed", {"model": "unit", "input": []})["embeddings"] == []
    old = post(client, "/api/embeddings", {"model": "unit", "prompt": TEXTS[0]})
    same(old["embedding"], embedded(models, TEXTS[:1])[0])


@together("body,status", [
    ({"input": LONG, "truncate": False}, 400), ({"input": "a", "model": "other"}, 404),
    ({"input": "a", "texts": ["a"]}, 400), ({"input": "a", "normalize": False}, 400),
    ({"texts": ["a"], "truncate": True}, 400), ({"texts": ["a"], "keep_alive": 5}, 400), ({"input": [1, 2]}, 400),
])  # fmt: skip
def test_ollama_refuses(client: TestClient, body: dict[str, Any], status: int) -> None:
    assert isinstance(post(client, "/api/embed", body, status)["error"], str)


def test_ollama_lists_and_shows_models(client: TestClient, service: Service) -> None:
    known = client.get("/api/tags").json()["models"]
    assert [one["name"] for one in known] == [*service.facts] == [one["model"] for one in known]
    assert {one["name"] for one in client.get("/api/ps").json()["models"]} == {*service.engine.loaded}
    shown, facts = post(client, "/api/show", {"model": "unit:latest"}), service.facts["unit"]
    assert shown["capabilities"] == ["embedding"]
    assert shown["model_info"][f"{facts.type}.embedding_length"] == facts.size
    assert client.get("/api/version").json()["version"] == mlxbert.__version__
    post(client, "/api/show", {"model": "other"}, 404)
