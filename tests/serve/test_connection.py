"""A connection of the server: requests in order, and clients that do not read."""

import functools
import socket
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest
import uvicorn

from mlxbert.serve.http.connection import Connection
from mlxbert.serve.http.server import listen
from mlxbert.serve.options import ServeOptions

pytestmark = pytest.mark.slow


@contextmanager
def listening(app: Any, **options: Any) -> Iterator[tuple[int, uvicorn.Server]]:
    """An application behind our connections; gives its port."""
    given = ServeOptions(port=0, **options)
    with listen(given) as listener:
        http: Any = functools.partial(Connection, given)
        server = uvicorn.Server(uvicorn.Config(app, http=http, lifespan="off", log_level="critical", loop="asyncio"))
        thread = threading.Thread(target=server.run, args=([listener],), daemon=True)
        thread.start()
        try:
            yield listener.getsockname()[1], server
        finally:
            server.should_exit = True
            thread.join()


async def answer(send: Any, body: bytes) -> None:
    await send({"type": "http.response.start", "status": 200, "headers": [(b"content-length", b"%d" % len(body))]})
    await send({"type": "http.response.body", "body": body})


def test_pipelined_requests_are_answered_in_order_and_few_of_them_wait() -> None:
    waiting: list[int] = []

    async def app(scope: Any, receive: Any, send: Any) -> None:
        await receive()
        waiting.append(max(len(one.pipeline) for one in server.server_state.connections))  # type: ignore[union-attr]
        await answer(send, scope["path"].encode())

    count = 5000
    asked = [f"POST /{number} HTTP/1.1\r\nHost: localhost\r\nContent-Length: 1\r\n\r\nx" for number in range(count)]
    expected = b"/%d" % (count - 1)
    with listening(app) as (port, server), socket.create_connection(("127.0.0.1", port), timeout=60) as client:
        sending = threading.Thread(target=client.sendall, args=("".join(asked).encode(),))
        sending.start()
        found = b""
        while not found.endswith(expected):
            part = client.recv(1 << 20)
            assert part
            found += part
        sending.join()
    assert [line.partition(b"HTTP")[0] for line in found.split(b"\r\n\r\n")[1:]] == [
        b"/%d" % number for number in range(count)
    ]
    assert 16 <= max(waiting) < 100


@pytest.mark.parametrize("size", [1, 262_144])
def test_a_client_that_reads_a_little_now_and_then_is_cut(size: int) -> None:
    piece = bytes(500_000)

    async def app(scope: Any, receive: Any, send: Any) -> None:
        head = [(b"content-length", b"%d" % (1000 * len(piece)))]
        await send({"type": "http.response.start", "status": 200, "headers": head})
        for number in range(1000):
            await send({"type": "http.response.body", "body": piece, "more_body": number < 999})

    with listening(app, read_seconds=0.5) as (port, server), socket.create_connection(("127.0.0.1", port)) as client:
        client.sendall(b"GET / HTTP/1.1\r\nHost: localhost\r\n\r\n")
        rest, begun = 1000 * len(piece), time.monotonic()
        while rest == 1000 * len(piece) or server.server_state.connections:
            rest -= len(client.recv(size))
            time.sleep(0.005)
            assert rest > 0 and time.monotonic() < begun + 20


def test_a_client_that_reads_in_time_is_not_cut() -> None:
    async def app(scope: Any, receive: Any, send: Any) -> None:
        await answer(send, bytes(10_000_000))

    with listening(app, read_seconds=0.5) as (port, _), socket.create_connection(("127.0.0.1", port)) as client:
        for _ in range(4):
            client.sendall(b"GET / HTTP/1.1\r\nHost: localhost\r\n\r\n")
            rest = 10_000_000
            while rest > 0:
                part = client.recv(1 << 20)
                assert part
                rest -= len(part.rpartition(b"\r\n\r\n")[2])
            time.sleep(0.2)
