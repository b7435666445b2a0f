"""The engine: right results for many callers, in batches, in order, within bounds."""

import asyncio
import contextlib
import gc
import shutil
import sys
import threading
import time
import weakref
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import mlxbert
from mlxbert.errors import ArgumentError, MlxbertError, ModelChangedError, OverloadedError
from mlxbert.results.result import Failure
from mlxbert.serve.engine.engine import Engine
from mlxbert.serve.engine.engine_state import EngineState
from mlxbert.serve.engine.model_thread import ModelThread
from mlxbert.serve.engine.next_batch import Key, QueuedItem, Request, choose
from mlxbert.serve.engine.serving_options import EngineOptions
from mlxbert.serve.service import Service, read_facts
from mlxbert.tasks.answer import AnswerTask
from mlxbert.tasks.catalogue import find_task
from mlxbert.tasks.embed import EmbedTask
from mlxbert.tasks.task import PreparedItem
from tests.helpers.answering import save_answering
from tests.helpers.cases import together
from tests.helpers.tiny import CONFIG, random_network, save, tensors_of, tiny_config

TEXTS = ["the cat sat on the mat", "paris is a city", "a dog", "the largest city of tokyo is of milk and play", ""]


@pytest.fixture(scope="module")
def engine(tiny_folder: Path) -> Iterator[Engine]:
    with Engine({"one": str(tiny_folder), "two": str(tiny_folder)}) as engine:
        yield engine


Make = Callable[..., Engine]


@pytest.fixture
def make(tiny_folder: Path) -> Make:
    return lambda **options: Engine({"one": str(tiny_folder)}, EngineOptions(**options))


@contextmanager
def blocked(engine: Engine) -> Iterator[None]:
    """What is submitted in this context waits until its end."""
    go_on = threading.Event()
    waits = engine.call(None, go_on.wait)
    try:
        yield
    finally:
        go_on.set()
    assert waits.result()


@pytest.fixture(scope="module")
def model(tiny_folder: Path) -> mlxbert.Model:
    return mlxbert.load(tiny_folder)


def vectors(answered: Any) -> np.ndarray[Any, Any]:
    return np.stack([result.embedding for result in answered.results])


def test_many_threads_get_their_own_answers(engine: Engine, model: mlxbert.Model) -> None:
    texts = [f"{text} {number}" for number in range(4) for text in TEXTS]
    expected = mlxbert.embed(model, texts)
    found: dict[int, Any] = {}

    def ask(number: int) -> None:
        name = ("one", "two")[number % 2]
        found[number] = vectors(engine.submit(name, "embed", [texts[number]]).result())[0]

    threads = [threading.Thread(target=ask, args=(number,)) for number in range(len(texts))]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    np.testing.assert_allclose(np.stack([found[number] for number in range(len(texts))]), expected, atol=1e-6)


def test_coroutines_share_batches(engine: Engine, model: mlxbert.Model) -> None:
    texts = [f"the cat number {number}" for number in range(32)]

    async def all_of_them() -> list[Any]:
        with blocked(engine):
            asked = [asyncio.ensure_future(engine.ask("one", "embed", [text])) for text in texts]
            await asyncio.sleep(0)
        return await asyncio.gather(*asked)

    before = engine.counts.batches
    answers = asyncio.run(all_of_them())
    np.testing.assert_allclose(
        np.concatenate([vectors(one) for one in answers]), mlxbert.embed(model, texts), atol=1e-6
    )
    assert engine.counts.batches - before < 16


def test_all_windows_of_a_text_are_computed_and_a_bad_item_fails_alone(engine: Engine, model: mlxbert.Model) -> None:
    long = "word and " * 150
    expected = mlxbert.embed(model, long, overflow="window")
    found = vectors(engine.submit("one", "embed", [long], overflow="window").result())[0]
    np.testing.assert_allclose(found, expected, atol=1e-6)
    answered = engine.submit("one", "embed", ["fine", 3, "\ud800"]).result()
    assert not isinstance(answered.results[0], Failure)
    assert [one.index for one in answered.results if isinstance(one, Failure)] == [1, 2]


class Same:
    """Claims to be a value of JSON, which it cannot be."""

    def __repr__(self) -> str:
        return "Same()"


@together("model,task,items,options", [
    ("one", "no-such", ["a"], {}), ("one", "embed", ["a"], {"pooling": "sum"}), ("one", "embed", ["a"], {"colour": 3}),
    ("one", "embed", ["a"], {"dimensions": 9999}), ("one", "fill-mask", ["[MASK]"], {"targets": [["cat"]]}),
    ("one", "embed", "a text", {}), ("three", "embed", ["a"], {}),
    *(("one", "embed", ["a"], {"prompt": odd}) for odd in (Same(), {1, 2}, b"x", "x" * 300_000)),
])  # fmt: skip
def test_wrong_requests_are_refused_and_no_failures_of_the_engine(
    engine: Engine, model: str, task: str, items: Any, options: dict[str, Any]
) -> None:
    before = engine.counts.failed
    with pytest.raises(ArgumentError):
        engine.submit(model, task, items, **options).result()
    assert engine.counts.failed == before


def test_a_single_name_is_a_list_of_one() -> None:
    with Engine("builtin") as engine:
        assert [*engine.models] == ["builtin"]


def test_requests_with_equal_options_share_batches(engine: Engine) -> None:
    given: list[dict[str, Any]] = [{}, {"top_k": 5}, {"top_k": None, "targets": ["cat"]}, {"targets": ("cat",)}]
    with blocked(engine):
        asked = [engine.submit("one", "fill-mask", ["The [MASK] sat."], **one) for one in given]
        keys = {request.key for request in engine._state.requests}
    assert len(keys) == 3 and all(len(one.result().results) == 1 for one in asked)


def test_a_model_that_cannot_be_loaded_costs_its_own_requests(tmp_path: Path, tiny_folder: Path) -> None:
    with Engine({"gone": str(tmp_path / "gone"), "here": str(tiny_folder)}) as engine:
        gone, here = engine.submit("gone", "embed", ["a"]), engine.submit("here", "embed", ["a"])
        with pytest.raises(MlxbertError):
            gone.result()
        assert len(here.result().results) == 1


def test_what_comes_on_top_of_a_full_queue_is_refused(make: Make) -> None:
    with make(max_queue=8) as engine:
        with blocked(engine):
            first = engine.submit("one", "embed", ["a"] * 6)
            with pytest.raises(OverloadedError):
                engine.submit("one", "embed", ["b"] * 3)
            with pytest.raises(ArgumentError):
                engine.submit("one", "embed", ["b"] * 9)
        assert len(first.result().results) == 6
        assert (engine.waiting, engine.counts.refused) == (0, 1)


def test_a_caller_or_a_coroutine_that_leaves_frees_the_queue(make: Make) -> None:
    async def leave(engine: Engine) -> None:
        with pytest.raises(asyncio.TimeoutError):
            await asyncio.wait_for(engine.ask("one", "embed", ["a"]), 0.05)

    with make() as engine:
        engine.submit("one", "embed", ["a"]).result()
        with blocked(engine):
            left = engine.submit("one", "embed", ["a"] * 6)
            stays = engine.submit("one", "embed", ["b"])
            assert left.cancel()
            asyncio.run(leave(engine))
            assert engine.waiting == 1
        stays.result()
        assert engine.counts.texts == 2


def test_a_request_that_is_cancelled_just_now_has_not_failed() -> None:
    state, request = EngineState(), Request(_key("one", "embed"), ["a"], 0.0)
    state.requests.add(request)
    state.waiting = 1
    request.future.cancel()
    with state.locked():
        state.fail(request, asyncio.CancelledError())  # as the thread of the models does, before `forget` is called
    state.forget(weakref.ref(request), request.future)
    assert (state.counts.failed, state.counts.abandoned, state.waiting, state.requests) == (0, 1, 0, set())


def test_a_long_text_lets_short_ones_through(make: Make) -> None:
    with make(max_batch_tokens=128) as engine:
        engine.submit("one", "embed", ["a"]).result()
        long = engine.submit("one", "embed", ["cat and " * 6000], overflow="window")
        order: list[str] = []
        is_noted = threading.Event()  # the result is there before the callback has run

        def note(_: object) -> None:
            order.append("long")
            is_noted.set()

        long.add_done_callback(note)
        for _ in range(2):
            time.sleep(0.01)
            engine.submit("one", "embed", ["a dog"]).result()
        order.append("short")
        assert len(long.result().results) == 1
        assert is_noted.wait(60)
        assert order == ["short", "long"]


@pytest.mark.parametrize("method", ["compute", "together"])  # in a batch; while texts are prepared
def test_an_error_costs_only_the_request_that_causes_it(engine: Engine, monkeypatch: Any, method: str) -> None:
    whole = getattr(EmbedTask, method)

    def planted(task: Any, items: Any, *pause: Any) -> Any:
        if any(getattr(item, "item", item) == "planted" for item in items):
            raise ZeroDivisionError("planted")
        return whole(task, items, *pause)

    monkeypatch.setattr(EmbedTask, method, planted)
    with blocked(engine):
        asked = [engine.submit("one", "embed", [text]) for text in ("a", "planted", "b")]
    assert len(asked[0].result().results) == len(asked[2].result().results) == 1
    with pytest.raises(ZeroDivisionError):
        asked[1].result()
    assert engine.waiting == 0


def test_models_make_room_for_each_other_and_never_take_more_memory_than_said(tiny_folder: Path) -> None:
    names = {str(number): str(tiny_folder) for number in range(3)}
    with Engine(names, EngineOptions(max_models=2)) as engine:
        asked = [engine.submit(str(number % 3), "embed", [f"text {number}"]) for number in range(6)]
        for one in asked:
            assert len(one.result().results) == 1
        assert len(engine.loaded) == 2
    size, folder = mlxbert.inspect(tiny_folder).memory["float32"], str(tiny_folder)
    with Engine({"a": folder, "b": folder}, EngineOptions(max_memory=1.5 * size / 1e9)) as engine:
        for name in ("a", "b", "a"):
            engine.submit(name, "embed", ["x"]).result()
            assert [*engine.loaded] == [name]
    with Engine({"a": folder}, EngineOptions(max_memory=0.5 * size / 1e9)) as engine, pytest.raises(MlxbertError):
        engine.submit("a", "embed", ["x"]).result()


@pytest.fixture
def changing(tmp_path: Path) -> Path:
    return save(tmp_path / "changing")


def other_files(folder: Path) -> None:
    sizes = {"hidden_size": 12, "num_attention_heads": 2}
    network = random_network(tiny_config(**sizes, embedding_size=12))
    shutil.rmtree(folder)
    save(folder, tensors_of(network), CONFIG | sizes)


def test_a_model_with_other_files_is_not_taken_for_the_one_that_was_loaded(changing: Path, tiny_folder: Path) -> None:
    with Engine({"one": str(changing), "two": str(tiny_folder)}, EngineOptions(max_models=1)) as engine:
        before = vectors(engine.submit("one", "embed", TEXTS).result())
        engine.submit("two", "embed", ["x"]).result()
        assert [*engine.loaded] == ["two"]
        np.testing.assert_array_equal(vectors(engine.submit("one", "embed", TEXTS).result()), before)
        engine.submit("two", "embed", ["x"]).result()
        other_files(changing)
        for _ in range(2):
            with pytest.raises(ModelChangedError, match="fingerprint"):
                engine.submit("one", "embed", TEXTS).result()
        assert [*engine.loaded] == ["two"]  # nothing was unloaded for it


def test_a_model_with_other_files_is_taken_with_its_facts_if_wanted(changing: Path, tiny_folder: Path) -> None:
    options = EngineOptions(max_models=1, reload_changed=True)
    with Engine({"one": str(changing), "two": str(tiny_folder)}, options) as engine:
        service = Service(engine)
        service.facts["one"] = engine.call("one", lambda model: read_facts("one", model)).result()
        before = service.facts["one"]
        engine.submit("two", "embed", ["x"]).result()
        other_files(changing)
        found = vectors(engine.submit("one", "embed", TEXTS).result())
        after = service.facts["one"]
        assert found.shape[1] == after.size == 12 != before.size
        assert after.fingerprint != before.fingerprint and after.parameters != before.parameters


def test_closing_computes_what_was_taken_and_leaves_no_threads_and_no_models(make: Make) -> None:
    engine = make()
    model = weakref.ref(engine.call("one", lambda model: model.network).result())
    engine.submit("one", "embed", ["a"]).result()
    threads = [thread for thread in threading.enumerate() if thread.name.startswith("mlxbert-engine")]
    engine.close()
    assert len(threads) >= 2 and sum(not thread.is_alive() for thread in threads) >= 2
    gc.collect()
    assert not engine.loaded and model() is None
    engine = make()
    asked = [engine.submit("one", "embed", [f"text {number}"]) for number in range(40)]
    engine.close()
    assert all(len(one.result().results) == 1 for one in asked)
    with pytest.raises(MlxbertError):
        engine.submit("one", "embed", ["x"])
    engine = make()
    engine.call(None, engine.close).result(timeout=20)
    assert engine.closed


@together("pause", [0.0, 0.005, 0.05])
def test_closing_without_draining_leaves_nobody_waiting(pause: float, tiny_folder: Path) -> None:
    engine = Engine({"one": str(tiny_folder), "two": str(tiny_folder)})
    asked: list[Any] = [
        engine.submit(name, "embed", ["the cat"] * 500, overflow=overflow)
        for name in ("one", "two", "one")
        for overflow in ("truncate", "window")
    ]
    asked += [engine.call("one", lambda model: model.source) for _ in range(3)]
    time.sleep(pause)
    engine.close(drain=False)
    assert all(one.done() for one in asked) and engine.waiting == 0
    assert {type(one.exception()) for one in asked} <= {MlxbertError, type(None)}
    with pytest.raises(MlxbertError):
        engine.submit("one", "embed", ["x"])


@pytest.mark.filterwarnings("ignore::pytest.PytestUnhandledThreadExceptionWarning")
@pytest.mark.parametrize("fails", [False, True])
def test_what_waits_ends_with_an_error_when_the_engine_is_closed_or_its_thread_fails(
    fails: bool, make: Make, monkeypatch: pytest.MonkeyPatch
) -> None:
    go_on = threading.Event()

    def fail(self: Any) -> None:
        go_on.wait()
        raise SystemExit

    if fails:
        monkeypatch.setattr(ModelThread, "_step", fail)
    engine = make()
    engine.call(None, go_on.wait)
    asked: list[Any] = [engine.submit("one", "embed", ["x"]), engine.call(None, lambda: None)]
    threading.Timer(0.1, go_on.set).start()
    if not fails:
        engine.close(drain=False)
    for one in asked:
        with pytest.raises(MlxbertError):
            one.result(timeout=20 * fails)
    engine.close()


def test_callbacks_may_wait_for_another_thread_that_asks(engine: Engine) -> None:
    for task, items in (("embed", ["a"]), ("embed", [3]), ("tag", ["a"])):  # a result, a failure, an error
        asked: list[Any] = []
        called = threading.Event()

        def ask_elsewhere(_: Any, asked: list[Any] = asked, called: threading.Event = called) -> None:
            thread = threading.Thread(target=lambda: asked.append(engine.submit("one", "embed", ["b"])))
            thread.start()
            thread.join(5)
            called.set()

        with blocked(engine):
            engine.submit("one", task, items).add_done_callback(ask_elsewhere)
        assert called.wait(20) and len(asked) == 1
        assert len(asked[0].result().results) == 1


def _key(model: str, task: str) -> Key:
    entry = find_task(task)
    return Key(model, entry, entry.options())


def test_what_is_answered_is_freed(make: Make) -> None:
    with make() as engine:
        engine.submit("one", "embed", ["a"]).result()
        gc.disable()
        try:
            future = engine.submit("one", "embed", ["b"])
            future.result()
            engine.call(None, lambda: None).result()
            gone = weakref.ref(future)
            del future
            assert gone() is None
        finally:
            gc.enable()


def test_a_long_answer_is_whole_although_its_batch_failed(tmp_path: Path, monkeypatch: Any) -> None:
    folder = save_answering(tmp_path / "answer")
    long = ("the cat ?", "the dog sat on a mat in paris . " * 400)
    whole, failed = AnswerTask.compute, []

    def planted(task: Any, jobs: Any, pause: Any) -> Any:
        if any(job.item[1] == "planted" for job in jobs):
            failed.append(whole(task, [job for job in jobs if job.item[1] != "planted"], pause))
            raise ZeroDivisionError("planted")
        return whole(task, jobs, pause)

    monkeypatch.setattr(AnswerTask, "compute", planted)
    with Engine({"qa": str(folder)}, EngineOptions(max_batch_tokens=1_000_000)) as engine:
        expected = engine.submit("qa", "answer", [long]).result().results[0]
        with blocked(engine):
            asked = [engine.submit("qa", "answer", [one]) for one in (long, ("the cat ?", "planted"))]
        found = asked[0].result().results[0]
        with pytest.raises(ZeroDivisionError):
            asked[1].result()
    assert isinstance(found, mlxbert.Answer) and isinstance(expected, mlxbert.Answer)
    assert [(one.start, one.end) for one in found.spans] == [(one.start, one.end) for one in expected.spans]


def _entry(tokens: int, arrived: float, model: str = "m") -> QueuedItem:
    request = Request(_key(model, "embed"), ["x"], arrived)
    return QueuedItem(request, 0, None, PreparedItem("x", [], False), tokens)  # type: ignore[arg-type]


def test_short_ones_come_first_unless_others_have_waited_too_long() -> None:
    long, short, other = _entry(300, 1.0), _entry(10, 2.0), _entry(5, 3.0, "other")
    assert choose([long, short, other], lambda _: 305, overdue=0.0) == [short]
    assert choose([long, short, other], lambda _: 310, overdue=0.0) == [short, long]
    assert choose([long, short, other], lambda _: 305, overdue=1.5) == [long]
    assert choose([other, long], lambda _: 305, overdue=0.0) == [long]
    long.request.served = 4.0  # other items of the bulk request wait for those of other requests
    assert choose([other, long], lambda _: 305, overdue=0.0) == [other]


@pytest.mark.parametrize("started", [0, 1, 2])
def test_a_signal_while_an_engine_starts_leaves_no_thread(started: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """A signal raises `KeyboardInterrupt` at any place, also between the starts of two threads."""
    begin, begun, failed = threading.Thread.start, list[threading.Thread](), list[Any]()

    def start(thread: threading.Thread) -> None:
        if len(begun) == started:
            raise KeyboardInterrupt
        begun.append(thread)
        begin(thread)
        if len(begun) == started == 2:
            raise KeyboardInterrupt

    monkeypatch.setattr(sys, "unraisablehook", failed.append)
    monkeypatch.setattr(threading.Thread, "start", start)
    with contextlib.suppress(KeyboardInterrupt):
        Engine()
    gc.collect()
    for thread in begun:
        thread.join(10)
    assert len(begun) == started and not any(thread.is_alive() for thread in begun) and not failed
