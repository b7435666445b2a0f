"""`--server`: what a running server computes is printed as if the model were here."""

import json
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from starlette.testclient import TestClient

from mlxbert.errors import MlxbertError
from mlxbert.labels.labels import Labels
from mlxbert.serve import server_models
from mlxbert.serve.access_log import Log
from mlxbert.serve.engine.serving_options import ServeOptions
from mlxbert.serve.http.app import make_app
from mlxbert.serve.http.request_guards import AccessPolicy
from mlxbert.serve.http.server import make_guarded
from mlxbert.serve.http_client import HttpClient
from mlxbert.tasks.catalogue import TaskEntry
from tests.helpers.cases import together
from tests.helpers.classifiers import save_classifier, save_saturated
from tests.helpers.program import Outcome, call, terminal
from tests.helpers.serving import serving
from tests.serve.test_own import assert_same

URL = "http://server"
TEXTS = ["the cat sat on the mat", "paris is a city", "a dog , he went to the store"]
LONG = "the cat sat on the mat " * 20
CONTEXT = "the cat sat on the mat in paris , a city . a dog went to the store ."


@pytest.fixture(scope="module")
def client(folders: dict[str, Path]) -> Iterator[TestClient]:
    with serving(folders) as service:
        yield TestClient(make_app(service))


def connect(
    monkeypatch: pytest.MonkeyPatch,
    client: TestClient,
    answer: Callable[[], Any] = lambda: None,
    headers: Callable[[dict[str, str]], Any] = lambda given: None,
) -> None:
    """Has requests go to an application without a socket, or be answered by a function."""

    def exchange(server: HttpClient, path: str, sent: bytes | None) -> tuple[int, str, bytes]:
        headers(server._headers)
        if (planted := answer()) is not None:
            return planted
        found = client.request("GET" if sent is None else "POST", path, content=sent, headers=server._headers)
        return found.status_code, found.headers.get("Retry-After", ""), found.content

    monkeypatch.setattr(HttpClient, "_exchange", exchange)


@pytest.fixture(autouse=True)
def _connected(client: TestClient, monkeypatch: pytest.MonkeyPatch) -> None:
    connect(monkeypatch, client)


def parsed(out: str) -> list[Any]:
    return [json.loads(line) for line in out.splitlines()]


@pytest.fixture
def same(folders: dict[str, Path]) -> Callable[..., Outcome]:
    def run(model: str, *arguments: str, stdin: bytes = b"") -> Outcome:
        here = call(*arguments, "--model", str(folders[model]), stdin=stdin)
        there = call(*arguments, "--model", model, "--server", URL, stdin=stdin)
        assert there.status == here.status, there
        assert_same(parsed(there.out), parsed(here.out))
        assert there.err == here.err.replace(str(folders[model]), model)
        return there

    return run


# What tasks give without options is in `test_catalogue.py`.
@together("model,arguments", [
    ("embed", ["embed", *TEXTS, LONG, "\u4e00", "--kind", "query", "--dimensions", "8"]),
    ("embed", ["embed", *TEXTS, "--output-dtype", "int8"]),
    ("embed", ["embed", "cat", "--pooling", "mean", "--dimensions", "0"]),
    ("fill-mask", ["fill-mask", "the [MASK]", "no mask", "--targets", "cat,dog", "--no-text"]),
    ("emotions", ["classify", *TEXTS, LONG, "--pair", "a city", "--top-k", "2"]),
    ("answer", ["answer", "the cat ?", "a dog ?", "--context", CONTEXT, "--top-k", "3"]),
    ("rerank", ["rerank", "a dog", *TEXTS, TEXTS[0], "--top-k", "2"]),
    ("embed", ["similarity", "a dog", *TEXTS, TEXTS[0], LONG, "--prompt", "the "]),
    ("nli", ["classify", *TEXTS, "--labels", "cat,city", "--multi", "--hypothesis", "a {} ."]),
    ("stars", ["classify", LONG, "--overflow", "window"]),
])  # fmt: skip
def test_the_output_is_the_same(same: Callable[..., Outcome], model: str, arguments: Sequence[str]) -> None:
    same(model, *arguments)


@together("model,arguments", [("sentiment", ["classify", *TEXTS]), ("embed", ["similarity", "a dog", *TEXTS])])
def test_a_terminal_shows_the_same(folders: dict[str, Path], model: str, arguments: Sequence[str]) -> None:
    here = terminal(*arguments, "--model", str(folders[model]))
    there = terminal(*arguments, "--model", model, "--server", URL)
    assert (there[0].status, there[1]) == (here[0].status, here[1])


def write_texts(path: Path, count: int) -> Path:
    texts = [f"the cat {number} sat" * (1 + number % 5) for number in range(count)]
    lines = [json.dumps({"text": text, "id": number}) for number, text in enumerate(texts)]
    lines[3] = "no json"
    path.write_text("\n".join(lines) + "\n")
    return path


def test_bad_records(same: Callable[..., Outcome], folders: dict[str, Path], tmp_path: Path, monkeypatch: Any) -> None:
    monkeypatch.setattr(server_models, "_WINDOW", 16)
    file = write_texts(tmp_path / "texts.jsonl", 40)
    there = call("embed", "--input", str(file), "--server", URL)
    here = call("embed", "--input", str(file), "--model", str(folders["embed"]))
    assert there.status == here.status == 1
    assert_same(parsed(there.out), parsed(here.out))
    assert "40" in there.err and "failed" in there.err
    same("rerank", "rerank", "the cat", "--input", str(write_texts(tmp_path / "few.jsonl", 6)), "--top-k", "1")
    assert same("tag", "tag", "--input", str(file), "--strict").status == 1


def test_vectors_in_a_file(folders: dict[str, Path], tmp_path: Path) -> None:
    file = write_texts(tmp_path / "texts.jsonl", 10)
    for given in (["--dimensions", "8"], ["--output-dtype", "int8"]):
        for name, model in (("here", ["--model", str(folders["embed"])]), ("there", ["--server", URL])):
            out = str(tmp_path / f"{name}.npy")
            assert call("embed", "-i", str(file), "-o", out, "--overwrite", *given, *model).status == 1  # one failed
        here, there = (np.load(tmp_path / f"{name}.npy") for name in ("here", "there"))
        assert here.dtype == there.dtype and here.shape == there.shape
        np.testing.assert_allclose(there, here, atol=1 if here.dtype == np.int8 else 1e-6)


def test_a_run_resumes_with_the_same_model_only(folders: dict[str, Path], tmp_path: Path, monkeypatch: Any) -> None:
    monkeypatch.setattr(server_models, "_WINDOW", 20)
    file, out = write_texts(tmp_path / "texts.jsonl", 50), tmp_path / "out.jsonl"
    whole = server_models.ServerModel._results
    asked: list[int] = []

    def fails(self: Any, entry: TaskEntry, items: Sequence[Any], *rest: Any) -> list[Any]:
        asked.append(len(items))
        if len(asked) == 3:
            raise MlxbertError("planted")
        return whole(self, entry, items, *rest)

    monkeypatch.setattr(server_models.ServerModel, "_results", fails)
    command = ("tag", "-i", str(file), "-o", str(out), "--server", URL)
    assert call(*command).status == 1 and not out.exists()
    other = call("classify", "-i", str(file), "-o", str(out), "--server", URL)
    other.fails(2 if other.status == 2 else 1, "--overwrite")
    done = call(*command)
    assert "resumed" in done.err and len(out.read_text().splitlines()) == 50


def test_parts_of_a_ranking_are_joined_by_the_logits(tmp_path: Path, monkeypatch: Any) -> None:
    plain = call("rerank", "a dog", *TEXTS, "--model", str(save_classifier(tmp_path / "plain", Labels(("LABEL_0",)))))
    with serving({"one": save_saturated(tmp_path / "saturated")}) as service:
        service.options = ServeOptions(max_texts=2)
        connect(monkeypatch, TestClient(make_app(service)))
        found = call("rerank", "a dog", *TEXTS, "--server", URL)
    order = [line["index"] for line in parsed(plain.out)]
    assert [line["index"] for line in parsed(found.out)] == order != [0, 1, 2]
    assert {line["score"] for line in parsed(found.out)} == {1.0}


def test_more_than_a_server_takes_is_asked_for_in_parts(folders: dict[str, Path], monkeypatch: Any) -> None:
    with serving({"embed": folders["embed"]}) as service:
        service.options = ServeOptions(max_texts=2, max_body=0.001)
        guarded = make_guarded(service, AccessPolicy(service.options, 8484, "secret"), Log(None))
        connect(monkeypatch, TestClient(guarded, base_url="http://127.0.0.1:8484"))
        call("embed", "cat", "--server", URL).fails(1, "refuses the key", "hint: ", "MLXBERT_API_KEY")
        found = call("embed", *TEXTS, *TEXTS, "cat " * 1000, "--server", URL, MLXBERT_API_KEY="secret")
    lines = parsed(found.out)
    assert [line.get("text") for line in lines[:6]] == [*TEXTS, *TEXTS] and "bytes" in lines[6]["error"]


def test_a_busy_server_is_asked_again(client: TestClient, monkeypatch: Any) -> None:
    waited: list[float] = []
    monkeypatch.setattr("mlxbert.serve.http_client.time.sleep", waited.append)
    answers = iter([(429, "3", b"{}"), (503, "", b"no JSON")])
    connect(monkeypatch, client, lambda: next(answers, None))
    assert call("embed", "cat", "--server", URL).status == 0
    assert waited == [3, 2]
    busy = (429, "1", b'{"error": "7 texts wait", "hint": "ask later", "kind": "overloaded"}')
    connect(monkeypatch, client, lambda: busy)
    call("embed", "cat", "--server", URL).fails(1, "7 texts wait", "hint: ask later")
    assert len(waited) == 6


@pytest.mark.parametrize(("status", "body", "told"), [
    (200, b"<html>", "status 200"), (200, b"[]", "status 200"), (200, b'{"models": [{"name": 3}]}', "unexpected facts"),
    (200, b'{"models": 3}', "unexpected facts"), (404, b'{"detail": "Not Found"}', "status 404"),
    (401, b'{"error": "no key", "hint": null, "kind": "unauthorized"}', "MLXBERT_API_KEY"),
    (404, b'{"error": "no such route", "hint": null, "kind": "not_found"}', "no list of models"),
    (500, b"", "status 500"),
])  # fmt: skip
def test_other_servers_are_told_apart(
    monkeypatch: Any, client: TestClient, status: int, body: bytes, told: str
) -> None:
    connect(monkeypatch, client, lambda: (status, "", body))
    call("embed", "cat", "--server", URL).fails(1, told, "hint: ")


def test_the_key_is_sent_and_never_shown(client: TestClient, monkeypatch: Any) -> None:
    seen: list[str] = []
    connect(monkeypatch, client, headers=lambda given: seen.append(given.get("Authorization", "")))
    assert call("embed", "cat", "--server", URL, MLXBERT_API_KEY="secret").status == 0
    assert {*seen} == {"Bearer secret"}
    found = call("embed", "cat", "--server", URL, MLXBERT_API_KEY="sec\nret")
    found.fails(2, "MLXBERT_API_KEY")
    assert "sec" not in found.err.replace("seconds", "")


def test_the_model_is_a_name_of_the_server(client: TestClient) -> None:
    found = call("classify", TEXTS[0], "--server", URL)
    assert found.status == 0 and "label" in found.out  # the first model that was made for it
    call("tag", "cat", "--model", "none", "--server", URL).fails(2, "--model", "fill-mask")
    call("tag", "cat", "--model", "embed", "--server", URL).fails(1, "tag", "hint: ")
    refused = call("classify", "cat", "--model", "embed", "--server", URL)
    refused.fails(1, "classify", "hint: ", "sentiment")
    assert "fill-mask" not in refused.err  # only those that can


@together("command,query", [(command, query) for command in ("rerank", "similarity") for query in ("\udc80", LONG)])
def test_a_query_is_to_blame_once(same: Callable[..., Outcome], command: str, query: str) -> None:
    model = "embed" if command == "similarity" else command
    found = same(model, command, query, *TEXTS, "--overflow", "error")
    assert found.status == 1 and not found.out


def test_texts_that_cannot_be_sent_fail_alone(same: Callable[..., Outcome]) -> None:
    found = same("embed", "embed", TEXTS[0], "\udc80", TEXTS[1])
    assert found.status == 1 and len(parsed(found.out)) == 3
    same("embed", "embed", "\udc80")
    call("embed", "cat", "--prompt", "\udc80", "--server", URL).fails(2, "surrogate")


@together("words", [
    "cat --dtype float16", "cat --batch-tokens 64", "cat --offline", "cat --revision main", "cat --adapter a",
    "--pairs a b", "a --vectors v.npy",
])  # fmt: skip
def test_options_of_a_model_here_are_refused(words: str) -> None:
    call("similarity", *words.split(), "--server", URL).fails(2, words[words.index("--") :].split()[0], "--server")


@together("url", ["server", "ftp://server", "file:///etc", "http://", "http://a:b", "http://u:p@s", "http://s/?q=1"])
def test_only_addresses_of_servers_are_taken(url: str) -> None:
    call("embed", "cat", "--server", url).fails(2, "--server")
