"""How much memory the results of a request may take: refused before they are computed, or waiting for room."""

import asyncio
import json
import random
import threading
import tracemalloc
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import pytest
from starlette.testclient import TestClient

import mlxbert
from mlxbert.errors import TooLargeError
from mlxbert.results.result import Failure
from mlxbert.serve.engine.result_memory import Budget, ResultMemory
from mlxbert.serve.engine.serving_options import ServeOptions
from mlxbert.serve.http.app import make_app
from mlxbert.serve.json_bodies import each, pieces
from mlxbert.serve.protocols.tei import EmbedTokensTask
from mlxbert.serve.service import Service
from mlxbert.tasks.answer import AnswerTask
from mlxbert.tasks.classify import ClassifyTask
from mlxbert.tasks.embed_words import EmbedWordsTask
from mlxbert.tasks.fill_mask import FillMaskTask
from mlxbert.tasks.options import (
    AnswerOptions,
    ClassifyOptions,
    EmbedOptions,
    EmbedWordsOptions,
    FillMaskOptions,
    TagOptions,
)
from mlxbert.tasks.tag import TagTask
from tests.helpers.asking import ask
from tests.helpers.cases import together
from tests.helpers.indexes import build, write_files
from tests.helpers.serving import serving

MOST = 20_000  # bytes
WORDS = "the cat sat on the mat in paris , a city . "


@pytest.fixture(scope="module")
def service(folders: dict[str, Path]) -> Iterator[Service]:
    with serving(folders, options=ServeOptions(max_answer=MOST / 1e6)) as service:
        yield service


@pytest.fixture(scope="module")
def client(service: Service) -> TestClient:
    return TestClient(make_app(service))


@together("path,body", [
    ("/api/fill-mask", {"texts": ["[MASK] " * 20], "top_k": 30}),
    ("/models/fill-mask", {"inputs": "[MASK] " * 20, "parameters": {"top_k": 30}}),
    ("/embed_all", {"inputs": [WORDS] * 40}), ("/api/embed-words", {"texts": [WORDS * 20]}),
    ("/api/embed", {"texts": ["cat"] * 45}), ("/api/embed", {"input": ["cat"] * 45}),
    ("/v1/embeddings", {"input": ["cat"] * 45, "encoding_format": "base64"}),
    ("/v2/embed", {"texts": ["cat"] * 45, "embedding_types": ["float", "binary"]}),
    ("/similarity", {"inputs": {"source_sentence": "cat", "sentences": ["dog"] * 45}}),
    ("/api/answer", {"pairs": [["cat ?", WORDS * 3]], "top_k": 10_000}),
    ("/models/answer", {"inputs": {"question": "cat ?", "context": WORDS * 3}, "parameters": {"top_k": 9999}}),
    ("/api/classify", {"texts": ["cat"], "labels": [str(number) for number in range(200)], "model": "nli"}),
    ("/api/tag", {"texts": [WORDS * 10]}), ("/tokenize", {"inputs": [WORDS] * 30}),
])  # fmt: skip
def test_what_multiplies_is_refused_before_it_is_computed(
    client: TestClient, service: Service, path: str, body: Any
) -> None:
    before = service.engine.counts.texts
    refused = client.post(path, json=body)
    assert refused.status_code == 413, refused.text
    assert "0.0 MB in an answer" in refused.text
    assert service.engine.counts.texts <= before + ("similarity" in path)  # the sentence that others are compared with
    assert service.engine.waiting == 0
    assert client.post("/api/embed", json={"texts": ["cat"]}).status_code == 200


def test_a_search_for_everything_is_refused(tmp_path: Path, folders: dict[str, Path]) -> None:
    build(tmp_path / "notes.db", write_files(tmp_path / "notes", 8), folders["embed"]).close()
    with serving(
        {"embed": folders["embed"]}, {"notes": tmp_path / "notes.db"}, ServeOptions(max_answer=MOST / 1e6)
    ) as service:
        client = TestClient(make_app(service))
        assert client.post("/api/search", json={"query": "cat", "top_k": 3}).status_code == 200
        assert client.post("/api/search", json={"query": "cat", "top_k": 10_000_000}).status_code == 413


def test_estimates_are_no_less_than_what_results_take(folders: dict[str, Path]) -> None:
    def measured(task: Any, item: Any) -> tuple[int, int]:
        job = task.job(item)
        task.compute([job])
        job = task.job(item)
        tracemalloc.start()
        found = task.compute([job])
        taken = tracemalloc.get_traced_memory()[0]
        tracemalloc.stop()
        assert found
        return task.size(item, task.units(job)), taken

    def loaded(name: str) -> mlxbert.Model:
        return mlxbert.load(folders[name], dtype="float32")

    mlm = loaded("fill-mask")
    each_of: list[tuple[Any, Any]] = [
        (FillMaskTask(mlm, FillMaskOptions(top_k=mlm.tokenizer.vocab_size)), "the [MASK] sat " * 30),
        (FillMaskTask(mlm, FillMaskOptions(top_k=mlm.tokenizer.vocab_size, text=False)), "the [MASK] " * 60),
        (EmbedTokensTask(loaded("embed"), EmbedOptions()), WORDS * 2),
        (EmbedWordsTask(loaded("embed"), EmbedWordsOptions(overflow="window")), WORDS * 20),
        (TagTask(loaded("tag"), TagOptions(aggregation="none")), WORDS * 20),
        (AnswerTask(loaded("answer"), AnswerOptions(top_k=5000)), ("the cat ?", WORDS * 30)),
        (ClassifyTask(loaded("emotions"), ClassifyOptions()), "the cat"),
    ]
    for task, item in each_of:
        estimate, taken = measured(task, item)
        assert taken < 1.1 * estimate + 20_000, type(task).__name__
        assert estimate <= task.most_bytes(item)


def test_a_result_too_large_for_memory_is_an_error_of_its_text(
    folders: dict[str, Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("mlxbert.tasks.task.MOST_BYTES", 50_000)
    model = mlxbert.load(folders["fill-mask"])
    many = "[MASK] " * 20
    with pytest.raises(TooLargeError, match="MB") as refused:
        mlxbert.fill_mask(model, many, top_k=30)
    assert refused.value.hint is not None and "top_k" in refused.value.hint
    found = [*mlxbert.fill_mask(model, ["a [MASK]", many], top_k=30, on_error="return")]
    assert isinstance(found[1], Failure) and not isinstance(found[0], Failure) and len(found[0].masks[0].fills) == 30


def test_masks_of_a_batch_are_computed_in_parts(folders: dict[str, Path], monkeypatch: pytest.MonkeyPatch) -> None:
    model = mlxbert.load(folders["fill-mask"], dtype="float32")
    texts = ["the [MASK] sat [MASK] the [MASK] .", "a [MASK]", "[MASK] " * 9]
    whole = [*mlxbert.fill_mask(model, texts)]
    seen = []
    head = model.network.logits

    def noted(name: str, given: Any) -> Any:
        found = head(name, given)
        seen.append(found.shape[0])
        return found

    monkeypatch.setattr(type(model.network), "logits", lambda network, name, given: noted(name, given))
    monkeypatch.setattr("mlxbert.tasks.fill_mask._MAX_SCORES", 4 * model.tokenizer.vocab_size)
    for one, other in zip(mlxbert.fill_mask(model, texts), whole, strict=True):
        for mask, same in zip(one.masks, other.masks, strict=True):
            assert [fill.token for fill in mask.fills] == [fill.token for fill in same.fills]
            assert [fill.score for fill in mask.fills] == pytest.approx([fill.score for fill in same.fills], abs=1e-6)
    assert sum(seen) == 13 and max(seen) <= 4


class Numbers(msgspec.Struct):
    """Something with a list in the middle."""

    before: str
    numbers: Any
    after: list[int]


def test_json_in_pieces_is_that_of_the_whole() -> None:
    rng = random.Random(3)
    for count in (0, 1, 31, 32, 33, 64, 100):
        rows = np.random.default_rng(count).random((count, 3)).astype(np.float32)
        plain = [{"row": row.tolist(), "text": rng.choice(["", "\0", "[]", '"']) * 3} for row in rows]
        shown = each([*zip(plain, rows, strict=True)], lambda one: {**one[0], "row": one[1]})
        nested = each([[1, 2], [], [3]], lambda one: each(one, str))
        found = b"".join(pieces(Numbers("\0", {"a": shown, "b": [nested, rows]}, [1])))
        assert json.loads(found) == {
            "before": "\0", "numbers": {"a": plain, "b": [[["1", "2"], [], ["3"]], rows.tolist()]}, "after": [1],
        }  # fmt: skip
    assert [*pieces(each([], str))] == [b"[]"] and json.loads(b"".join(pieces(each([1, 2], str)))) == ["1", "2"]
    assert len([*pieces(each(range(50_000), lambda one: "text"))]) > 3  # of 64 kB


def test_large_answers_are_sent_in_pieces_small_at_once(
    folders: dict[str, Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("mlxbert.serve.json_bodies._MIN_SIZE", 1024)
    monkeypatch.setattr("mlxbert.serve.http.app._FIRST_PIECES", 4)
    with serving({"embed": folders["embed"]}) as service:
        app = make_app(service)
        whole = ask(app, "POST", "/api/embed", {"texts": [WORDS] * 200})
        assert "content-length" not in whole.headers and len(whole.json["results"]) == 200
        assert "content-length" in ask(app, "POST", "/api/embed", {"texts": [WORDS] * 9}).headers
        assert service.room.claim(10 * service.room.max_bytes, print).granted  # all of it is free again


def test_requests_wait_in_line_and_small_ones_do_not_wait_for_large_ones() -> None:
    room, order = ResultMemory(1600), list[str]()
    first = room.claim(2400, lambda: order.append("never"))
    second = room.claim(1500, lambda: order.append("second"))
    third = room.claim(150, lambda: order.append("third"))
    small = room.claim(100, lambda: order.append("never"))
    assert [one.granted for one in (first, second, third, small)] == [True, False, False, True]
    room.shrink(first, 1800)
    assert order == []
    room.shrink(first, 1700)
    assert order == ["second"] and second.granted and not third.granted
    room.leave(first)
    assert order == ["second", "third"]
    for claim in (first, second, third, small, first):
        room.leave(claim)
    held = room.claim(10**9, print)
    assert held.size == 2400
    waiting = [room.claim(2400, partial(order.append, name)) for name in ("left", "next", "last")]
    room.leave(waiting[0])  # the next one passes
    room.leave(held)
    assert order[2:] == ["next"]
    room.leave(waiting[1])
    assert order[2:] == ["next", "last"]


def test_requests_wait_for_room_until_given_up_or_the_engine_closes(folders: dict[str, Path]) -> None:
    with serving({"embed": folders["embed"]}, options=ServeOptions(max_answer=1.0)) as service:
        engine, room = service.engine, service.room
        budgets = [Budget(room) for _ in range(4)]
        held = budgets[0].claim(10 * room.max_bytes, print)
        large = ["the cat " * 10] * 200
        asked = [engine.submit("embed", "embed", large, budget=budget) for budget in budgets[1:]]
        small = engine.submit("embed", "embed", ["cat"], budget=Budget(room))
        assert small.result(60).results and not any(one.done() for one in asked)
        assert engine.waiting == 600
        assert asked[0].cancel()
        budgets[1].leave()
        room.leave(held)
        assert [len(one.result(60).results) for one in asked[1:]] == [200, 200]
        assert engine.waiting == 0
        for budget in budgets:
            budget.leave()
        held = room.claim(10 * room.max_bytes, print)
        assert held.granted
        last = engine.submit("embed", "embed", large, budget=Budget(room))
        closing = threading.Thread(target=engine.close)
        closing.start()
        closing.join(0.2)
        assert closing.is_alive()
        room.leave(held)
        closing.join(60)
        assert len(last.result(0).results) == 200


def test_a_client_that_leaves_while_its_request_waits_gives_up_its_place(folders: dict[str, Path]) -> None:
    with serving({"embed": folders["embed"]}, options=ServeOptions(max_answer=1.0)) as service:
        held = service.room.claim(10 * service.room.max_bytes, print)
        app = make_app(service)
        body = json.dumps({"texts": ["the cat " * 10] * 200}).encode()

        async def receive() -> dict[str, Any]:
            return {"type": "http.request", "body": body, "more_body": False}

        async def send(message: Any) -> None:
            raise AssertionError(message)

        async def leave() -> None:
            asking = asyncio.create_task(asyncio.to_thread(ask, app, "POST", "/api/embed", body))
            scope = {
                "type": "http",
                "method": "POST",
                "path": "/api/embed",
                "headers": [(b"content-type", b"application/json")],
            }
            leaving = asyncio.create_task(app(scope, receive, send))
            await asyncio.sleep(0.3)
            leaving.cancel()
            await asyncio.sleep(0.1)
            service.room.leave(held)
            assert (await asking).status == 200

        asyncio.run(leave())
        assert service.engine.waiting == 0
        assert service.room.claim(10 * service.room.max_bytes, print).granted


def test_a_large_result_lets_small_ones_pass_and_can_be_given_up(
    folders: dict[str, Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("mlxbert.serve.engine.model_thread._LARGE", 10_000)
    reached, go_on, masks = threading.Event(), threading.Event(), list[int]()
    whole = FillMaskTask._mask

    def slow(task: Any, text: str, *rest: Any, **more: Any) -> Any:
        found = whole(task, text, *rest, **more)
        masks.append(len(text))
        if len(masks) == 2:
            reached.set()
            go_on.wait(60)
        return found

    monkeypatch.setattr(FillMaskTask, "_mask", slow)
    with serving({"fill-mask": folders["fill-mask"], "embed": folders["embed"]}) as service:
        engine = service.engine
        engine.submit("embed", "embed", ["cat"]).result(60)
        large = engine.submit("fill-mask", "fill-mask", ["[MASK] " * 20], top_k=30)
        assert reached.wait(60)
        small, seen = engine.submit("embed", "embed", ["cat"]), list[int]()
        small.add_done_callback(lambda done: seen.append(len(masks)))
        threading.Timer(0.2, go_on.set).start()
        assert small.result(60).results and seen[0] < 20
        filled = large.result(60).results[0]
        assert isinstance(filled, mlxbert.FillMask) and len(filled.masks) == 20
        masks.clear()
        reached.clear()
        go_on.clear()
        given_up = engine.submit("fill-mask", "fill-mask", ["[MASK] " * 20], top_k=30)
        assert reached.wait(60) and given_up.cancel()
        go_on.set()
        assert engine.submit("embed", "embed", ["cat"]).result(60).results
        assert len(masks) <= 3
