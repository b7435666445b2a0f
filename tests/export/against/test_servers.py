"""`verify_vectors` with a server: the planted faults, and servers that answer with something else."""

import base64
from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest

import mlxbert
from mlxbert.errors import ArgumentError, MlxbertError
from mlxbert.model import Model
from tests.helpers.embedding_server import Embedder, embedding_server
from tests.helpers.wrong_vectors import FAULTS, TEXTS, save_embedder, vectors

pytestmark = pytest.mark.slow  # a server


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Model:
    return mlxbert.load(save_embedder(tmp_path_factory.mktemp("against") / "model"))


def faulty(model: Model, fault: str = "same") -> Embedder:
    """A server with a planted fault, which knows only the texts of the tests."""
    rows = dict(zip(TEXTS, FAULTS[fault][1](model).tolist(), strict=True))
    return Embedder(lambda texts: [rows.get(text, [1] * 24) for text in texts])


def test_a_fault_of_a_server_is_named_and_the_usual_texts_show_all_causes(model: Model) -> None:
    with embedding_server(faulty(model, "limit and prompt")) as url:
        result = mlxbert.verify_vectors(model, url, TEXTS)
    assert [cause.kind for cause in result.causes] == ["limit", "prompt"] and not result.agrees
    with embedding_server(Embedder(lambda texts: vectors(model, texts).tolist())) as url:
        result = mlxbert.verify_vectors(model, url)
    assert result.agrees and result.texts > 50 and result.notes == ()


@pytest.mark.parametrize(("path", "route"), [
    ("", "/v1/embeddings"), ("/", "/embed"), ("/v1", "/v1/embeddings"), ("/embed", "/embed"),
    ("/v1/embeddings", "/v1/embeddings"), ("/base", "/base/v1/embeddings"),
])  # fmt: skip
def test_an_address_or_one_of_its_routes(path: str, route: str, model: Model) -> None:
    embedder = faulty(model)
    embedder.routes = (route,)
    with embedding_server(embedder) as url:
        result = mlxbert.verify_vectors(model, url + path, TEXTS)
    assert result.agrees and result.against == url + route


def test_a_text_that_a_server_refuses_is_counted(model: Model) -> None:
    embedder = faulty(model)
    embedder.longest = 80
    refused = sum(len(text) > 80 for text in TEXTS)
    with embedding_server(embedder) as url:
        result = mlxbert.verify_vectors(model, url, TEXTS)
    assert refused and result.agrees and result.texts == len(TEXTS) - refused
    assert f"{refused} texts" in result.notes[0] and "the text is too long" in result.notes[0]


@pytest.mark.parametrize("url", ["http://me:secret@host:99999/", "http://me:secret@a/?a=1", "http://host/?key=secret"])
def test_a_password_in_an_address_is_refused_and_not_shown(url: str, model: Model) -> None:
    with pytest.raises(ArgumentError) as caught:
        mlxbert.verify_vectors(model, url, TEXTS)
    assert "secret" not in caught.value.message + str(caught.value.hint)


def test_a_key_is_sent_and_never_shown(model: Model, monkeypatch: pytest.MonkeyPatch) -> None:
    embedder = faulty(model)
    embedder.key = "secret"
    with embedding_server(embedder) as url:
        with pytest.raises(MlxbertError, match="refuses the key") as caught:
            mlxbert.verify_vectors(model, url, TEXTS)
        assert "MLXBERT_API_KEY" in str(caught.value.hint)
        monkeypatch.setenv("MLXBERT_API_KEY", "wrong")
        with pytest.raises(MlxbertError) as caught:
            mlxbert.verify_vectors(model, url, TEXTS)
        assert "wrong" not in caught.value.message + str(caught.value.hint)
        monkeypatch.setenv("MLXBERT_API_KEY", "secret")
        assert mlxbert.verify_vectors(model, url, TEXTS)
    assert embedder.keys[-1] == "Bearer secret"


def fails(model: Model, embedder: Embedder, part: str) -> None:
    with embedding_server(embedder) as url, pytest.raises(MlxbertError) as caught:
        mlxbert.verify_vectors(model, url, TEXTS)
    assert part in caught.value.message and caught.value.hint


COUNT = f"{len(TEXTS) - 1} vectors for {len(TEXTS)} texts"


@pytest.mark.parametrize(("value", "part"), [
    (lambda texts: [[1.0] * 24] * (len(texts) - (len(texts) > 1)), COUNT),
    (lambda texts: [[float("nan")] * 24 for _ in texts], "not finite"),
    (lambda texts: [[None] * 24 for _ in texts], "not finite"),
    (lambda texts: [[0.0] * 24 for _ in texts], "all zeros"),
    (lambda texts: [[1.0] * (24 - (len(text) > 20)) for text in texts], "23 to 24 values"),
    (lambda texts: [[1.0] * 1536 for _ in texts], "1,536 values"),
    (lambda texts: [["a"] * 24 for _ in texts], "expected JSON with vectors"),
    (lambda texts: [[[1.0] * 24] * 3 for _ in texts], "expected JSON with vectors"),
    (lambda texts: {"object": "list"}, "expected JSON with vectors"),
    (lambda texts: "hello", "expected JSON with vectors"),
])  # fmt: skip
def test_hostile_vectors(value: Any, part: str, model: Model) -> None:
    fails(model, Embedder(value), part)


@pytest.mark.parametrize(("change", "part"), [
    ({"content": b"<!DOCTYPE html><html><body>hi</body></html>"}, "a web page"),
    ({"content": b""}, "expected JSON with vectors"), ({"content": b"[" * 100_000}, "expected JSON with vectors"),
    ({"routes": ()}, "has no /v1/embeddings and no /embed"), ({"status": 301, "content": b""}, "status 301"),
    ({"status": 500, "content": b'{"error": "out of memory"}'}, "status 500: out of memory"),
    ({"status": 400, "content": b'{"error": {"message": "no such model"}}'}, "status 400: no such model"),
])  # fmt: skip
def test_hostile_servers(change: dict[str, Any], part: str, model: Model) -> None:
    fails(model, Embedder(lambda texts: [], **change), part)


@pytest.mark.parametrize(("url", "part"), [
    ("http://127.0.0.1:9", "cannot be reached"), ("http://127.0.0.1:9/\u00fc", "cannot be reached"),
    ("http://a..b/", "cannot be reached"), ("http://", "expected an address"),
])  # fmt: skip
def test_an_address_where_nothing_listens_and_impossible_ones(url: str, part: str, model: Model) -> None:
    with pytest.raises(MlxbertError, match=part) as caught:
        mlxbert.verify_vectors(model, url, TEXTS)
    assert caught.value.hint


def test_a_server_with_several_models_needs_a_name_that_it_has(model: Model) -> None:
    class Several(Embedder):
        def answer(self, path: str, sent: Any, key: str | None) -> tuple[int, bytes]:
            if path == "/v1/models":
                return 200, b'{"data": [{"id": "a"}, {"id": "b"}]}'
            if sent["model"] != "b":
                return 404, b'{"error": {"message": "no such model"}}'
            return super().answer(path, sent, key)

    embedder = Several(faulty(model).vectors)
    with embedding_server(embedder) as url:
        with pytest.raises(MlxbertError, match="a, b") as caught:
            mlxbert.verify_vectors(model, url, TEXTS)
        assert "server_model='a'" in str(caught.value.hint)
        assert mlxbert.verify_vectors(model, url, TEXTS, server_model="b")
    other = faulty(model)
    other.routes, other.refused_model = ("/v1/embeddings", "/v1/models", "/embed"), "nope"
    with embedding_server(other) as url:
        with pytest.raises(MlxbertError, match="no such model"):
            mlxbert.verify_vectors(model, url, TEXTS, server_model="nope")
        with pytest.raises(ArgumentError, match="server_model"):
            mlxbert.verify_vectors(model, f"{url}/embed", TEXTS, server_model="nope")


def test_base64_and_vectors_without_an_index(model: Model) -> None:
    def encoded(texts: Sequence[str]) -> Any:
        rows = [np.array(row, "<f4").tobytes() for row in faulty(model).vectors(texts)]
        return {"data": [{"embedding": base64.b64encode(row).decode()} for row in rows]}

    with embedding_server(Embedder(encoded)) as url:
        assert mlxbert.verify_vectors(model, url, TEXTS)
