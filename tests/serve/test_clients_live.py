"""The clients that people use, against a server: the numbers of mlxbert, and errors that they understand."""

import asyncio
import base64
import json
import os
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from unittest import mock

import numpy as np
import pytest

import mlxbert
from mlxbert.serve.service import Service
from tests.helpers.serving import listening, serving
from tests.helpers.task_models import save_models

pytestmark = pytest.mark.slow

TEXTS = ["the cat sat on the mat", "paris is a city", "a dog"]
LONG = "the cat " * 40
QUERY = "a dog"
KEY = "a key of the tests"


@pytest.fixture(scope="module", autouse=True)
def quiet() -> Iterator[None]:
    """No client asks anything but our server."""
    own = {"HAYSTACK_TELEMETRY_ENABLED": "False", "LITELLM_LOCAL_MODEL_COST_MAP": "True", "NO_PROXY": "*"}
    with mock.patch.dict(os.environ, own):
        yield


@pytest.fixture(scope="module")
def folders(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    made = save_models(tmp_path_factory.mktemp("served"))
    return {name: made[name] for name in ("embed", "rerank", "emotions")}


@pytest.fixture(scope="module")
def service(folders: dict[str, Path]) -> Iterator[Service]:
    with serving(folders, max_queue=200) as service:
        yield service


@pytest.fixture(scope="module")
def url(service: Service) -> Iterator[str]:
    with listening(service, KEY) as address:
        yield address


@pytest.fixture(scope="module")
def expected(folders: dict[str, Path]) -> dict[str, Any]:
    """What mlxbert gives: vectors by the kind of texts, and the ranking."""
    model, reranker = mlxbert.load(folders["embed"]), mlxbert.load(folders["rerank"])
    found: dict[str, Any] = {kind: mlxbert.embed(model, TEXTS, kind=kind) for kind in ("query", "document")}
    found["plain"], found["long"] = mlxbert.embed(model, TEXTS), mlxbert.embed(model, [LONG])
    found["short"] = mlxbert.embed(model, TEXTS, dimensions=8, normalize=True)
    found["int8"] = mlxbert.embed(model, TEXTS, output_dtype="int8")
    found["binary"] = mlxbert.embed(model, TEXTS, output_dtype="binary")
    ranked = mlxbert.rerank(reranker, QUERY, TEXTS)
    found["ranked"] = [(one.index, pytest.approx(one.score, abs=1e-6)) for one in ranked]
    return found


def same(found: Any, expected: Any) -> None:
    np.testing.assert_allclose(np.array(found), expected, atol=1e-6)


def openai(url: str, key: str = KEY) -> Any:
    return pytest.importorskip("openai").OpenAI(base_url=f"{url}/v1", api_key=key, max_retries=0)


@pytest.mark.parametrize("form", [{}, {"encoding_format": "float"}, {"encoding_format": "base64"}])
def test_openai_embeds(url: str, expected: dict[str, Any], form: dict[str, Any]) -> None:
    client = openai(url)
    found = client.embeddings.create(model="embed", input=TEXTS, **form)
    vectors = [one.embedding for one in found.data]
    if form.get("encoding_format") == "base64":  # who asks for text gets it
        vectors = [np.frombuffer(base64.b64decode(one), "<f4") for one in vectors]
    same(vectors, expected["plain"])
    assert found.usage.total_tokens > 0
    one = client.embeddings.create(model="embed", input=TEXTS[0], dimensions=8)
    same(one.data[0].embedding, expected["short"][0])


def test_openai_with_many_requests_at_once(url: str, expected: dict[str, Any]) -> None:
    async def ask() -> Any:
        async with pytest.importorskip("openai").AsyncOpenAI(base_url=f"{url}/v1", api_key=KEY) as client:
            asked = (client.embeddings.create(model="embed", input=[text]) for text in TEXTS * 5)
            return await asyncio.gather(*asked)

    same([one.data[0].embedding for one in asyncio.run(ask())], np.concatenate([expected["plain"]] * 5))


def test_openai_knows_the_errors(url: str) -> None:
    library, client = pytest.importorskip("openai"), openai(url)
    with pytest.raises(library.NotFoundError) as unknown:
        client.embeddings.create(model="text-embedding-3-small", input="a")
    assert (unknown.value.code, unknown.value.param) == ("model_not_found", "model")
    assert [one.id for one in client.models.list()] == ["embed", "rerank", "emotions"]
    with pytest.raises(library.NotFoundError):
        client.models.retrieve("BAAI/bge-small")
    with pytest.raises(library.BadRequestError) as long:
        client.embeddings.create(model="embed", input=[TEXTS[0], LONG])
    assert long.value.code == "too_long"
    with pytest.raises(library.AuthenticationError):
        openai(url, "another key").models.list()


def test_langchain_embeds_and_is_told_how_if_it_sends_ids(
    url: str, expected: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    """`langchain-openai`; `langchain-huggingface` takes no address."""
    library, tiktoken = pytest.importorskip("langchain_openai"), pytest.importorskip("tiktoken")
    settings = {"model": "embed", "base_url": f"{url}/v1", "api_key": KEY, "max_retries": 0}
    embeddings = library.OpenAIEmbeddings(**settings, check_embedding_ctx_length=False)
    same(embeddings.embed_documents(TEXTS), expected["plain"])
    same(embeddings.embed_query(TEXTS[0]), expected["plain"][0])
    ranks = {bytes([number]): number for number in range(256)}
    letters = tiktoken.Encoding("letters", pat_str=".", mergeable_ranks=ranks, special_tokens={})
    monkeypatch.setattr(tiktoken, "get_encoding", lambda name: letters)  # its own would be downloaded
    with pytest.raises(pytest.importorskip("openai").BadRequestError, match="check_embedding_ctx_length=False"):
        library.OpenAIEmbeddings(**settings).embed_documents(TEXTS)


@pytest.mark.parametrize(("package", "name", "given", "query"), [
    ("openai_like", "OpenAILikeEmbedding", {"api_base": "{}/v1", "api_key": KEY}, "plain"),
    ("text_embeddings_inference", "TextEmbeddingsInference", {"base_url": "{}", "auth_token": KEY}, "long"),
])  # fmt: skip
def test_llama_index_embeds(
    url: str, expected: dict[str, Any], package: str, name: str, given: dict[str, str], query: str
) -> None:
    library = pytest.importorskip(f"llama_index.embeddings.{package}")
    model = getattr(library, name)(model_name="embed", **{key: value.format(url) for key, value in given.items()})
    same(model.get_text_embedding_batch(TEXTS), expected["plain"])
    same(model.get_query_embedding(TEXTS[0] if query == "plain" else LONG), expected[query][0])


@pytest.mark.parametrize(("package", "name", "given"), [
    ("tei_rerank", "TextEmbeddingInference", {"base_url": "{}", "auth_token": f"Bearer {KEY}"}),
    ("jinaai_rerank", "JinaRerank", {"base_url": "{}/v1", "api_key": KEY, "model": "rerank"}),
    ("cohere_rerank", "CohereRerank", {"base_url": "{}", "api_key": KEY, "model": "rerank"}),
])  # fmt: skip
def test_llama_index_reranks(
    url: str, expected: dict[str, Any], package: str, name: str, given: dict[str, str]
) -> None:
    schema = pytest.importorskip("llama_index.core.schema")
    make = getattr(pytest.importorskip(f"llama_index.postprocessor.{package}"), name)
    settings: Any = {key: value.format(url) for key, value in given.items()} | {"top_n": 2}
    nodes = [schema.NodeWithScore(node=schema.TextNode(text=text, id_=text)) for text in TEXTS]
    found = make(**settings).postprocess_nodes(nodes, query_str=QUERY)
    assert [(TEXTS.index(one.node.text), one.score) for one in found] == expected["ranked"][:2]
    if name == "JinaRerank":
        with pytest.raises(RuntimeError, match="4 labels"):
            make(**settings | {"model": "emotions"}).postprocess_nodes(nodes, query_str=QUERY)


@pytest.mark.parametrize("version", ["Client", "ClientV2"])
def test_cohere(version: str, url: str, expected: dict[str, Any]) -> None:
    library = pytest.importorskip("cohere")
    make = getattr(library, version)
    client, asked = make(api_key=KEY, base_url=url), {"texts": TEXTS, "model": "embed"}
    ranked = client.rerank(model="rerank", query=QUERY, documents=TEXTS)
    assert [(one.index, one.relevance_score) for one in ranked.results] == expected["ranked"]
    types = client.embed(**asked, input_type="classification", embedding_types=["float", "int8", "binary"])
    same(types.embeddings.float_ or types.embeddings.float, expected["plain"])
    same(types.embeddings.int8, expected["int8"])
    same(types.embeddings.binary, expected["binary"])
    if version == "ClientV2":
        found = client.embed(**asked, input_type="search_document", embedding_types=["float"])
        same(found.embeddings.float_, expected["document"])
    else:
        same(client.embed(**asked, input_type="search_query").embeddings, expected["query"])
        many = client.embed(texts=TEXTS * 40, model="embed", input_type="search_document")
        same(many.embeddings, np.concatenate([expected["document"]] * 40))
    with pytest.raises(library.NotFoundError):
        client.rerank(model="rerank-v3.5", query=QUERY, documents=TEXTS)
    with pytest.raises(library.BadRequestError, match="4 labels"):
        client.rerank(model="emotions", query=QUERY, documents=TEXTS)
    with pytest.raises(library.UnauthorizedError):
        make(api_key="another key", base_url=url).rerank(model="rerank", query=QUERY, documents=TEXTS)


def test_haystack(url: str, expected: dict[str, Any]) -> None:
    library, embedders = pytest.importorskip("haystack"), pytest.importorskip("haystack.components.embedders")
    key, settings = library.utils.Secret.from_token(KEY), {"api_base_url": f"{url}/v1", "model": "embed"}
    documents = [library.Document(content=text) for text in TEXTS]
    same(embedders.OpenAITextEmbedder(api_key=key, **settings).run(TEXTS[0])["embedding"], expected["plain"][0])
    found = embedders.OpenAIDocumentEmbedder(api_key=key, **settings).run(documents)["documents"]
    same([one.embedding for one in found], expected["plain"])


def test_haystack_with_tei(url: str, expected: dict[str, Any]) -> None:
    library = pytest.importorskip("haystack")
    embedders = pytest.importorskip("haystack_integrations.components.embedders.huggingface_api")
    rankers = pytest.importorskip("haystack_integrations.components.rankers.huggingface_api")
    key = library.utils.Secret.from_token(KEY)
    settings = {"api_type": "text_embeddings_inference", "api_params": {"url": url}, "token": key, "normalize": True}
    same(embedders.HuggingFaceAPITextEmbedder(**settings).run(TEXTS[0])["embedding"], expected["plain"][0])
    documents = [library.Document(content=text) for text in TEXTS]
    found = rankers.HuggingFaceTEIRanker(url=url, token=key).run(query=QUERY, documents=documents)["documents"]
    assert [(TEXTS.index(one.content), one.score) for one in found] == expected["ranked"]


def test_litellm(url: str, expected: dict[str, Any]) -> None:
    library = pytest.importorskip("litellm")
    for model in ("openai/embed", "hosted_vllm/embed"):
        found = library.embedding(model=model, input=TEXTS, api_base=f"{url}/v1", api_key=KEY)
        same([one["embedding"] for one in found.data], expected["plain"])
    for model in ("cohere/rerank", "jina_ai/rerank"):
        found = library.rerank(model=model, query=QUERY, documents=TEXTS, top_n=2, api_base=url, api_key=KEY)
        assert [(one["index"], one["relevance_score"]) for one in found.results] == expected["ranked"][:2]


def test_ollama(url: str, expected: dict[str, Any], service: Service) -> None:
    client = pytest.importorskip("ollama").Client(host=url, headers={"Authorization": f"Bearer {KEY}"})
    same(client.embed(model="embed", input=TEXTS).embeddings, expected["plain"])
    same(client.embed(model="embed:latest", input=TEXTS[0]).embeddings[0], expected["plain"][0])
    given = {"options": {"num_ctx": 512}, "keep_alive": "5m"}
    same(client.embed(model="embed", input=[LONG], truncate=True, **given).embeddings, expected["long"])
    same(client.embeddings(model="embed", prompt=TEXTS[0]).embedding, expected["plain"][0])
    assert [one.model for one in client.list().models] == [*service.facts]
    assert {one.model for one in client.ps().models} == {*service.engine.loaded}
    found = client.show("embed")
    assert "embedding" in found.capabilities and found.details.family == "bert"
    assert found.modelinfo["bert.embedding_length"] == service.facts["embed"].size


def served(answer: str, vector: Any) -> None:
    np.testing.assert_allclose(json.loads(answer)["results"][0]["embedding"], vector, atol=1e-6)


@pytest.mark.skipif(shutil.which("javac") is None, reason="needs a JDK")
def test_java_which_offers_http_2(url: str, folders: dict[str, Path]) -> None:
    command = ["java", "-Xmx256m", str(Path(__file__).with_name("Client.java")), url, KEY]
    found = subprocess.run(command, capture_output=True, text=True, timeout=240)
    lines = [line.split(" ", 2) for line in found.stdout.splitlines()]
    assert found.returncode == 0 and len(lines) == 57, found
    assert {(status, version) for status, version, _ in lines} == {("200", "HTTP_1_1")}
    vector = mlxbert.embed(mlxbert.load(folders["embed"]), "the cat")
    for number, (*_, answer) in enumerate(lines):
        if number != 6:  # /health
            served(answer, vector)


@pytest.mark.skipif(shutil.which("curl") is None, reason="needs curl")
@pytest.mark.parametrize("more", [[], ["-H", "Transfer-Encoding: chunked"], ["-H", "Expect: 100-continue"]])
def test_curl_which_offers_http_2(url: str, folders: dict[str, Path], more: list[str], tmp_path: Path) -> None:
    vector = mlxbert.embed(mlxbert.load(folders["embed"]), "the cat")
    for padding in (0, 1_000_000):
        body = tmp_path / "body"
        body.write_text(json.dumps({"texts": ["the cat"]}) + " " * padding)
        headers = ["-H", f"Authorization: Bearer {KEY}", "-H", "Content-Type: application/json", *more]
        sent = ["--data-binary", f"@{body}", "-w", "\n%{http_code} %{http_version}\n"]
        twice = [f"{url}/api/embed"] * 2  # over one connection
        command = ["curl", "-s", "--http2", "--noproxy", "*", *headers, *sent, *twice]
        found = subprocess.run(command, capture_output=True, text=True, timeout=60, check=True).stdout.splitlines()
        assert found[1::2] == ["200 1.1"] * 2, found
        for answer in found[::2]:
            served(answer, vector)
