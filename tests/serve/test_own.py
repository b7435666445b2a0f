"""Our own routes; what tasks give is in `test_catalogue.py`, and with options in `commands/test_server.py`."""

import os
import shutil
from collections.abc import Iterator
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from starlette.testclient import TestClient

import mlxbert
from mlxbert.serve.engine.serving_options import ServeOptions
from mlxbert.serve.http.app import make_app
from mlxbert.serve.service import Service
from tests.helpers.cases import together
from tests.helpers.indexes import build, write_files
from tests.helpers.serving import serving

TEXTS = ["the cat sat on the mat", "paris is a city", "a dog , he went to the store"]
LONG = "the cat sat on the mat " * 20


@pytest.fixture(scope="module")
def index(folders: dict[str, Path], tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("indexed")
    build(folder / "notes.db", write_files(folder / "notes", 8), folders["embed"]).close()
    return folder / "notes.db"


@pytest.fixture(scope="module")
def service(folders: dict[str, Path], index: Path) -> Iterator[Service]:
    with serving(folders, {"notes": index}) as service:
        yield service


@pytest.fixture(scope="module")
def client(service: Service) -> TestClient:
    return TestClient(make_app(service))


def post(client: TestClient, task: str, status: int = 200, **body: Any) -> Any:
    reply = client.post(f"/api/{task}", json=body)
    assert reply.status_code == status, reply.text
    return reply.json()


def assert_same(found: Any, expected: Any) -> None:
    """Equal but for rounding."""
    if isinstance(expected, dict):
        assert found.keys() == expected.keys()
        for name in expected:
            assert_same(found[name], expected[name])
    elif isinstance(expected, list | tuple):
        assert len(found) == len(expected)
        for one, other in zip(found, expected, strict=True):
            assert_same(one, other)
    else:
        assert found == (pytest.approx(expected, abs=1e-6) if isinstance(expected, float) else expected)


MASKED = ["the cat sat on the [MASK] in [MASK] .", "[MASK] is a city"]
PAIRS = [["the cat", "sat on the mat"], ["paris", "is a city"]]
QUESTIONS = ["the cat ?", "a city ?"]
CONTEXT = "the cat sat on the mat in paris , a city . a dog went to the store ."


def test_questions_share_a_context(client: TestClient) -> None:
    pairs = post(client, "answer", pairs=[[one, CONTEXT] for one in QUESTIONS])
    assert post(client, "answer", questions=QUESTIONS, context=CONTEXT) == pairs
    assert pairs["model"] == "answer"
    for wrong in ({}, {"questions": QUESTIONS}, {"pairs": [QUESTIONS], "context": CONTEXT}):
        assert post(client, "answer", 400, **wrong)["kind"] == "invalid"


def test_a_file_name_that_is_not_text_is_shown(folders: dict[str, Path], tmp_path: Path) -> None:
    (tmp_path / "files").mkdir()
    for name in "xy":
        (tmp_path / "files" / f"{name}\udcff.txt").write_text("the cat sat")
    build(tmp_path / "x.db", tmp_path / "files", folders["embed"]).close()
    with serving({"embed": folders["embed"]}, {"x": tmp_path / "x.db"}) as service:
        (found,) = post(TestClient(make_app(service)), "search", query="the cat sat")["results"]
    assert found["text"] == "the cat sat" and len(found["duplicates"]) == 1
    paths = sorted(place["path"] for place in (found, *found["duplicates"]))
    assert paths == [str(tmp_path / "files" / f"{name}\ufffd.txt") for name in "xy"]


def test_search(client: TestClient, index: Path) -> None:
    with mlxbert.open_index(index) as opened:
        for given in ({}, {"mode": "words", "top_k": 3}, {"where": ["path=*.md"]}):
            expected = [hit.to_dict() for hit in opened.search("the cat sat", **given)]
            assert_same(post(client, "search", query="the cat sat", **given)["results"], expected)
            assert expected
    assert post(client, "search", 404, query="cat", index="other")["kind"] == "not_found"
    assert post(client, "search", 400, query=" ")["kind"] == "bad_text"
    unknown = post(client, "search", 400, query="cat", where=["yaer>1990"])["error"]
    assert "'yaer'" in unknown and "year" in unknown and "title" in unknown
    assert post(client, "search", query="cat", where=["year>9999"])["results"] == []


def test_a_bad_text_is_an_error_or_stands_in_its_place(client: TestClient) -> None:
    texts = ["no mask", MASKED[1], "none here"]
    error = post(client, "fill-mask", 400, texts=texts)
    assert "text 0" in error["error"] and error["hint"]
    found = post(client, "fill-mask", texts=texts, on_error="return")["results"]
    assert [one.get("index") for one in found] == [0, None, 2]
    assert "masks" in found[1] and "error" in found[0] and found[0]["hint"]
    found = post(client, "rerank", query="cat", texts=["a dog", LONG], overflow="error", on_error="return")["results"]
    assert [one["index"] for one in found] == [0, 1] and "error" in found[1]


def test_truncated_texts_are_named(client: TestClient) -> None:
    reply = client.post("/api/embed", json={"texts": ["cat", LONG, "\u4e00\u4e01"]})
    assert reply.headers["X-Truncated-Texts"] == "1"
    found = reply.json()
    assert (found["model"], found["truncated"], found["only_unknown"]) == ("embed", [1], [2])
    assert found["tokens"] == sum(one["tokens"] for one in found["results"])
    error = post(client, "embed", 400, texts=["cat", LONG], overflow="error")
    assert error["kind"] == "too_long" and "text 1" in error["error"]
    reply = client.post("/api/similarity", json={"query": LONG, "texts": ["cat", LONG]})
    assert reply.headers["X-Truncated-Texts"] == "2"


@together("task,body,status", [
    ("embed", {}, 400), ("embed", {"texts": "cat"}, 400), ("embed", {"texts": ["cat"], "colour": 1}, 400),
    ("embed", {"texts": ["cat"], "model": "none"}, 404), ("tag", {"texts": ["cat"], "model": "embed"}, 400),
    ("classify", {"texts": [["a", "b", "c"]]}, 400), ("fill-mask", {"texts": ["[MASK]"], "top_k": 0}, 400),
])  # fmt: skip
def test_wrong_bodies_are_refused(client: TestClient, task: str, body: dict[str, Any], status: int) -> None:
    error = post(client, task, status, **body)
    assert set(error) == {"error", "hint", "kind"}
    assert "top_k" not in body or error["error"].startswith("`top_k` is 0, expected ")


@together("task,body,limit", [
    ("embed", {"texts": ["cat"] * 51}, "50"),
    ("classify", {"texts": ["cat"] * 6, "labels": [*"abcdefghij"], "model": "nli"}, "50"),
    ("embed", {"texts": ["x" * 2001]}, "2,000"), ("embed", {"texts": ["cat"] * 3, "prompt": "x" * 700}, "2,000"),
    ("classify", {"texts": ["x" * 300], "labels": [*"abcdefg"], "model": "nli"}, "2,000"),
    ("classify", {"texts": ["x"], "labels": ["a", "b"], "hypothesis": "{}" + "x" * 999, "model": "nli"}, "2,000"),
    ("rerank", {"query": "x" * 700, "texts": ["cat"] * 3}, "2,000"),
    ("rerank", {"query": "x" * 2001, "texts": ["cat"], "overflow": "error"}, "2,000"),
    ("similarity", {"query": "x" * 2001, "texts": ["cat"]}, "2,000"),
    ("answer", {"pairs": [["a ?", "x " * 100]], "stride": 24}, "2,000"),  # of windows of 32 tokens
    ("search", {"query": "x" * 2001}, "2,000"),
])  # fmt: skip
def test_the_work_of_a_request_is_limited_and_the_limit_is_told(
    client: TestClient, service: Service, monkeypatch: pytest.MonkeyPatch, task: str, body: dict[str, Any], limit: str
) -> None:
    monkeypatch.setattr(service, "options", ServeOptions(max_texts=50, max_characters=2000))
    error = post(client, task, 413, **body)
    assert error["kind"] == "too_large" and f"expected at most {limit}" in error["error"]


def test_what_is_served_is_told_and_no_texts_give_no_results(client: TestClient, folders: dict[str, Path]) -> None:
    assert post(client, "embed", texts=[])["results"] == []
    for task in ("similarity", "rerank"):
        assert post(client, task, query="cat", texts=[])["results"] == []
        assert "query" in post(client, task, 400, query=" ", texts=TEXTS)["error"]
    known = client.get("/api/models").json()
    assert [one["name"] for one in known["models"]] == [*folders] and known["indexes"] == ["notes"]
    assert next(one for one in known["models"] if one["name"] == "sentiment")["labels"]
    status = client.get("/api/status").json()
    assert status["ready"] and status["waiting"] == 0 and status["texts"] > 0 and set(status["loaded"]) == {*folders}


def test_an_index_that_was_replaced_is_opened_again_unless_it_is_gone(folders: dict[str, Path], tmp_path: Path) -> None:
    made = {}
    for name, text in (("old", "the cat sat on the mat"), ("new", "paris is a city"), ("copied", "a dog went home")):
        (tmp_path / name).mkdir()
        (tmp_path / name / "one.txt").write_text(text)
        made[name] = tmp_path / f"{name}.db"
        with build(made[name], tmp_path / name, folders["embed"]) as index, index.store.writing():
            index.store.set_about(replace(index.about, created=name))  # in seconds: these are made within one
    with serving({"embed": folders["embed"]}, {"notes": made["old"]}) as service:
        client = TestClient(make_app(service))

        def texts() -> list[str]:
            return [one["text"] for one in post(client, "search", query="cat city dog")["results"]]

        assert texts() == texts() == ["the cat sat on the mat"]
        os.replace(made["new"], made["old"])
        assert texts() == ["paris is a city"]
        made["old"].write_bytes(made["copied"].read_bytes())  # into the same file
        assert texts() == ["a dog went home"]
        made["old"].unlink()
        for _ in range(2):
            assert "no longer exists" in post(client, "search", 404, query="cat")["error"]
        assert not made["old"].exists()


def test_a_model_whose_files_have_changed_is_a_conflict(folders: dict[str, Path], tmp_path: Path) -> None:
    shutil.copytree(folders["embed"], tmp_path / "embed")
    with serving({"embed": tmp_path / "embed"}) as service:
        client = TestClient(make_app(service))
        post(client, "embed", texts=TEXTS)
        service.engine.call(None, partial(service.engine._owner._unload, "embed")).result()
        config = tmp_path / "embed" / "1_Pooling" / "config.json"
        config.write_text(config.read_text().replace("true", "false").replace('"mean"', '"cls"') + " ")
        answer = post(client, "embed", 409, texts=TEXTS)
        assert answer["kind"] == "changed" and "--reload-changed" in answer["hint"]
        refused = client.post("/v1/embeddings", json={"input": TEXTS})
        assert (refused.status_code, refused.json()["error"]["code"]) == (409, "changed")
