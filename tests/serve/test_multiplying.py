"""Requests whose results are many times as large as they are, against a server in a process of its own."""

import json
import os
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest

from tests.helpers.server_process import Running, serving
from tests.serve.test_server import EMBED, head

pytestmark = pytest.mark.slow

MASKS, CHARACTERS, WORDS = "[MASK] " * 280, "a b c d e f " * 60, "the cat sat on the mat in paris , a city . " * 80
REQUESTS: list[tuple[str, dict[str, Any]]] = [
    ("/api/fill-mask", {"texts": [MASKS], "top_k": 30_000}),
    ("/api/fill-mask", {"texts": ["the [MASK] [MASK] [MASK] sat"], "top_k": 30_000}),
    ("/api/fill-mask", {"texts": ["[MASK] " * 100]}),
    ("/api/fill-mask", {"texts": ["[MASK] " * 40] * 9, "top_k": 30_000, "text": False}),
    ("/embed_all", {"inputs": [CHARACTERS] * 900, "truncate": True}),
    ("/embed_all", {"inputs": [CHARACTERS] * 4, "truncate": True}),
    ("/api/embed-words", {"texts": [WORDS]}),
    ("/api/embed", {"texts": ["the cat"] * 300}),
    (EMBED, {"input": ["the cat"] * 300}),
    ("/api/embed", {"texts": [WORDS], "overflow": "window"}),
    ("/similarity", {"inputs": {"source_sentence": "the cat", "sentences": ["a dog"] * 200}}),
    ("/tokenize", {"inputs": [WORDS] * 200}),
]
MOST, SLOW = 1e9, 0.5  # bytes; seconds
LOAD = max(os.getloadavg()[0] / (os.cpu_count() or 1), 1.0)  # of a machine that does other work, too


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Running]:
    log = tmp_path_factory.mktemp("server") / "requests.log"
    with serving("builtin", "--read-seconds", "600", "--log-file", str(log)) as server:
        yield server


def test_memory_is_bounded_and_others_are_answered_meanwhile(server: Running) -> None:
    asked, ended, memory, waits = (REQUESTS * 4)[:40], threading.Event(), list[float](), list[float]()

    def watch() -> None:
        while not ended.wait(0.05):
            begun = time.monotonic()
            assert server.ask("GET", "/health")[0] == 200
            waits.append(time.monotonic() - begun)
            memory.append(server.metric("process_resident_bytes"))

    watching = threading.Thread(target=watch)
    watching.start()
    with ThreadPoolExecutor(40) as pool:
        statuses = [*pool.map(lambda one: server.ask("POST", *one)[0], asked)]
    ended.set()
    watching.join()
    assert {*statuses} == {200, 413} and statuses.count(413) >= 6
    print(f"{max(memory) / 1e6:.0f} MB, /health within {max(waits):.3f} s, load {LOAD:.1f}")  # noqa: T201
    assert max(memory) < MOST
    assert sorted(waits)[int(0.99 * len(waits))] < SLOW * LOAD


def test_the_next_small_request_is_answered_soon_after_a_client_has_left(server: Running) -> None:
    waits = []
    for path, body in REQUESTS:
        sent = json.dumps(body).encode()
        with server.connect() as connection:
            connection.sendall(head(f"Content-Length: {len(sent)}", path) + sent)
            time.sleep(0.3)
        begun = time.monotonic()
        assert server.ask("POST", EMBED, {"input": "the cat"})[0] == 200
        waits.append(time.monotonic() - begun)
    print(f"within {max(waits):.3f} s, half of them within {sorted(waits)[6]:.3f} s, load {LOAD:.1f}")  # noqa: T201
    assert max(waits) < LOAD
