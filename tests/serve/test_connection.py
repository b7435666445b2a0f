"""A connection of the server: requests in order, and clients that do not read."""

import errno
import functools
import logging
import socket
import threading
import time
from contextlib import suppress
from typing import Any

import pytest

from mlxbert.errors import ArgumentError, MlxbertError
from mlxbert.serve.engine.serving_options import ServeOptions
from mlxbert.serve.http.server import _for_others, address, listen
from tests.helpers.serving import answering

pytestmark = pytest.mark.slow


async def answer(send: Any, body: bytes) -> None:
    await send({"type": "http.response.start", "status": 200, "headers": [(b"content-length", b"%d" % len(body))]})
    await send({"type": "http.response.body", "body": body})


def test_pipelined_requests_are_answered_in_order_one_at_a_time() -> None:
    at_once = [0]

    async def app(scope: Any, receive: Any, send: Any) -> None:
        at_once.append(at_once[-1] + 1)
        await receive()
        await answer(send, scope["path"].encode())
        at_once.append(at_once[-1] - 1)

    count = 5000
    asked = [f"POST /{number} HTTP/1.1\r\nHost: localhost\r\nContent-Length: 1\r\n\r\nx" for number in range(count)]
    expected = b"/%d" % (count - 1)
    with answering(app) as (port, _), socket.create_connection(("127.0.0.1", port), timeout=60) as client:
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
    assert max(at_once) == 1


@pytest.mark.parametrize("size", [1, 262_144])
def test_a_client_that_reads_a_little_now_and_then_is_cut(size: int) -> None:
    piece = bytes(500_000)

    async def app(scope: Any, receive: Any, send: Any) -> None:
        head = [(b"content-length", b"%d" % (1000 * len(piece)))]
        await send({"type": "http.response.start", "status": 200, "headers": head})
        for number in range(1000):
            await send({"type": "http.response.body", "body": piece, "more_body": number < 999})

    with answering(app, read_seconds=0.5) as (port, server), socket.create_connection(("127.0.0.1", port)) as client:
        client.sendall(b"GET / HTTP/1.1\r\nHost: localhost\r\n\r\n")
        rest, begun = 1000 * len(piece), time.monotonic()
        while rest == 1000 * len(piece) or server.connections:
            rest -= len(client.recv(size))
            time.sleep(0.005)
            assert rest > 0 and time.monotonic() < begun + 20


def test_a_client_that_reads_in_time_is_not_cut() -> None:
    async def app(scope: Any, receive: Any, send: Any) -> None:
        await answer(send, bytes(10_000_000))

    with answering(app, read_seconds=0.5) as (port, _), socket.create_connection(("127.0.0.1", port)) as client:
        for _ in range(4):
            client.sendall(b"GET / HTTP/1.1\r\nHost: localhost\r\n\r\n")
            rest = 10_000_000
            while rest > 0:
                part = client.recv(1 << 20)
                assert part
                rest -= len(part.rpartition(b"\r\n\r\n")[2])
            time.sleep(0.2)


async def hello(scope: Any, receive: Any, send: Any) -> None:
    await answer(send, b"hello")


def get(place: str, port: int) -> bytes:
    """The answer to a request."""
    with socket.create_connection((place, port), timeout=60) as client:
        client.sendall(b"GET / HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n")
        return b"".join(iter(functools.partial(client.recv, 1 << 16), b""))


def test_empty_lines_after_an_answer_hold_no_connection() -> None:
    with answering(hello, read_seconds=0.5) as (port, server), socket.create_connection(("127.0.0.1", port)) as client:
        client.sendall(b"GET / HTTP/1.1\r\nHost: localhost\r\n\r\n")
        assert b" 200 " in client.recv(20)
        begun = time.monotonic()
        while server.connections:
            with suppress(OSError):
                client.sendall(b"\r\n")
            time.sleep(0.05)
            assert time.monotonic() < begun + 20


def test_a_client_that_is_gone_before_its_connection_begins_is_no_error(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """Options of a connection that has been reset cannot be set on macOS."""
    real, refused = socket.socket.setsockopt, []

    def setsockopt(self: socket.socket, level: int, option: int, *value: Any) -> None:
        if (level, option) == (socket.IPPROTO_TCP, socket.TCP_NODELAY):
            refused.append(option)
            raise OSError(errno.EINVAL, "Invalid argument")
        real(self, level, option, *value)

    monkeypatch.setattr(socket.socket, "setsockopt", setsockopt)
    with caplog.at_level(logging.ERROR), answering(hello, read_seconds=2.0) as (port, _):
        with socket.create_connection(("127.0.0.1", port), timeout=60) as client:
            assert b" 408 " in client.recv(100)  # its time has begun to run
        assert b"hello" in get("127.0.0.1", port)
    assert len(refused) >= 2 and not caplog.records


def test_a_client_that_is_gone_when_it_has_been_refused_is_no_error(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def shutdown(self: socket.socket, how: int) -> None:
        tried.append(how)
        raise OSError(errno.ENOTCONN, "Socket is not connected")

    tried: list[int] = []
    monkeypatch.setattr(socket.socket, "shutdown", shutdown)
    with caplog.at_level(logging.ERROR), answering(hello, read_seconds=0.3) as (port, server):
        with socket.create_connection(("127.0.0.1", port), timeout=60) as client:
            assert b"408 Request Timeout" in client.recv(1000)
        until = time.monotonic() + 20
        while server.connections:
            assert time.monotonic() < until
            time.sleep(0.01)
    assert tried == [socket.SHUT_WR] and not caplog.records


@pytest.mark.skipif(not socket.has_dualstack_ipv6(), reason="needs IPv6")
def test_all_addresses_are_those_of_both_families() -> None:
    with answering(hello, "::") as (port, _):
        assert all(b"hello" in get(place, port) for place in ("127.0.0.1", "::1"))
        options = ServeOptions(host="::")
        assert address(options, port) == f"http://[::1]:{port}"
        for others in filter(None, [_for_others(options, port)]):  # there is none without a network
            assert b"hello" in get(others.rpartition("//")[2].partition(":")[0], port)


def test_an_address_of_ipv4_is_not_promised_where_it_would_not_answer(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(socket, "has_dualstack_ipv6", lambda: False)
    assert _for_others(ServeOptions(host="::"), 8484) == ""


def names(monkeypatch: pytest.MonkeyPatch, *places: str) -> None:
    """Gives a name several addresses."""
    families = [socket.AF_INET6 if ":" in place else socket.AF_INET for place in places]
    found = [(family, socket.SOCK_STREAM, 6, "", (place, 0)) for family, place in zip(families, places, strict=True)]
    real = socket.getaddrinfo
    monkeypatch.setattr(
        socket,
        "getaddrinfo",
        lambda host, *given, **more: found if host in ("both", "localhost") else real(host, *given, **more),
    )


@pytest.mark.skipif(not socket.has_dualstack_ipv6(), reason="needs IPv6")
def test_a_name_is_listened_to_at_all_its_addresses(monkeypatch: pytest.MonkeyPatch) -> None:
    names(monkeypatch, "::1", "127.0.0.1")  # in this order on a Mac
    with answering(hello, "both") as (port, _):
        assert all(b"hello" in get(place, port) for place in ("127.0.0.1", "::1"))


def test_addresses_that_this_machine_does_not_have_are_left_out_unless_there_is_no_other(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    names(monkeypatch, "2001:db8::1", "127.0.0.1")
    with answering(hello, "both") as (port, _):
        assert b"hello" in get("127.0.0.1", port)
    names(monkeypatch, "2001:db8::1")
    with pytest.raises(MlxbertError, match="cannot be opened"), listen(ServeOptions(host="both", port=0)):
        pass
    with pytest.raises(ArgumentError, match="expected a name or an address"), listen(ServeOptions(host="a..b", port=0)):
        pass


@pytest.mark.skipif(not socket.has_dualstack_ipv6(), reason="needs IPv6")
def test_a_port_that_one_address_of_several_has_not_is_in_use(monkeypatch: pytest.MonkeyPatch) -> None:
    with socket.create_server(("::1", 0), family=socket.AF_INET6) as taken:
        port = taken.getsockname()[1]
        names(monkeypatch, "127.0.0.1", "::1")
        with pytest.raises(MlxbertError, match="in use"), listen(ServeOptions(host="both", port=port)):
            pass
        socket.create_server(("127.0.0.1", port)).close()  # what was opened is closed


@pytest.mark.skipif(not socket.has_dualstack_ipv6(), reason="needs IPv6")
def test_a_free_port_is_free_at_all_addresses(monkeypatch: pytest.MonkeyPatch) -> None:
    """The port that the system gives the first address is taken at the second, twice."""
    names(monkeypatch, "127.0.0.1", "::1")
    real, ports = socket.create_server, []
    taken: list[socket.socket] = []

    def create(place: Any, **named: Any) -> socket.socket:
        opened = real(place, **named)
        if place == ("127.0.0.1", 0):
            ports.append(opened.getsockname()[1])
            if len(taken) < 2 and ports[-1] not in ports[:-1]:  # the system may give a port again
                taken.append(real(("::1", ports[-1]), family=socket.AF_INET6))
        return opened

    monkeypatch.setattr(socket, "create_server", create)
    with listen(ServeOptions(host="both", port=0)) as listeners:
        assert {one.getsockname()[1] for one in listeners} == {ports[-1]} and len(listeners) == 2
    assert len({*ports}) == 3
    for one in taken:
        real(("127.0.0.1", one.getsockname()[1])).close()  # what was opened is closed
        one.close()


def test_a_port_that_is_never_free_is_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    def create(place: Any, **named: Any) -> socket.socket:
        tried.append(place)
        raise OSError(errno.EADDRINUSE, "Address already in use")

    tried: list[Any] = []
    monkeypatch.setattr(socket, "create_server", create)
    with pytest.raises(MlxbertError, match="in use"), listen(ServeOptions(port=0)):
        pass
    assert 1 < len(tried) < 10


def test_localhost_is_reached_from_this_machine_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    names(monkeypatch, "0.0.0.0", "127.0.0.1")
    with listen(ServeOptions(host="localhost", port=0)) as listeners:
        assert [one.getsockname()[0] for one in listeners] == ["127.0.0.1"]
    names(monkeypatch, "0.0.0.0")
    with pytest.raises(MlxbertError, match="cannot be opened"), listen(ServeOptions(host="localhost", port=0)):
        pass
