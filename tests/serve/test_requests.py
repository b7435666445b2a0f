"""Requests as they come in packets, without a network: offers, trailers, and what ends before it is complete."""

import asyncio
import json
from collections.abc import Sequence
from typing import Any

import pytest

from mlxbert.serve.engine.serving_options import ServeOptions
from mlxbert.serve.http.connection import Connection
from mlxbert.serve.http.request_guards import Guard
from tests.helpers.cases import together

OFFER = b"Connection: Upgrade, HTTP2-Settings\r\nUpgrade: h2c\r\nHTTP2-Settings: AAMAAABkAAQBAAAAAAIAAAAA\r\n"
END = object()  # the client stops sending


class Transport(asyncio.Transport):
    """The side of the server, which keeps what is written."""

    def __init__(self, protocol: asyncio.Protocol) -> None:
        super().__init__()
        self.protocol = protocol
        self.written, self.closed, self.ended, self.paused = b"", False, False, False

    def write(self, data: Any) -> None:
        assert not self.ended, "bytes after the end"
        self.written += data

    def is_closing(self) -> bool:
        return self.closed

    def close(self) -> None:
        if not self.closed:
            self.closed = True
            asyncio.get_running_loop().call_soon(self.protocol.connection_lost, None)

    abort = close

    def can_write_eof(self) -> bool:
        return True

    def write_eof(self) -> None:
        self.ended = True

    def get_write_buffer_size(self) -> int:
        return 0

    def get_extra_info(self, name: str, default: Any = None) -> Any:
        return self if name == "socket" else default

    def setsockopt(self, *_: Any) -> None: ...

    def getsockname(self) -> tuple[str, int]:
        return "127.0.0.1", 1

    getpeername = getsockname

    def set_write_buffer_limits(self, high: int | None = None, low: int | None = None) -> None: ...

    def pause_reading(self) -> None:
        self.paused = True

    def resume_reading(self) -> None:
        self.paused = False


async def reply(send: Any, status: int, *headers: tuple[bytes, bytes]) -> None:
    await send({"type": "http.response.start", "status": status, "headers": [*headers]})


async def echo(scope: Any, receive: Any, send: Any) -> None:
    """Answers with the body, and says in headers how often the application ran and what came with the request."""
    body = b""
    while True:
        message = await receive()
        if message["type"] == "http.disconnect":
            return
        body += message["body"]
        if not message["more_body"]:
            break
    names = b",".join(name for name, _ in scope["headers"])
    await reply(
        send, 200, (b"content-length", b"%d" % len(body)), (b"x-path", scope["path"].encode()), (b"x-names", names)
    )
    await send({"type": "http.response.body", "body": body})


def exchange(packets: Sequence[Any], app: Any = echo, *, guarded: bool = False) -> Transport:
    """What the server makes of packets that come one after the other; functions among them are called in their turn."""

    class Policy:
        options = ServeOptions()

        def check_host(self, host: str) -> None: ...
        def check_key(self, headers: Any) -> None: ...
        def foreign(self, origin: Any, host: str) -> None: ...

    async def run() -> Transport:
        policy: Any = Policy()
        served = Connection(Guard(app, policy) if guarded else app, ServeOptions(), set())
        transport = Transport(served)
        served.connection_made(transport)
        for packet in packets:
            if callable(packet):
                packet()
            elif not transport.closed and packet is not END:
                served.data_received(packet)
            elif not transport.closed and not served.eof_received():
                transport.close()
            for _ in range(10):
                await asyncio.sleep(0)
        return transport

    return asyncio.run(run())


def answers(transport: Transport) -> list[tuple[int, dict[bytes, bytes], bytes]]:
    found, rest = [], transport.written
    while rest:
        head, _, rest = rest.partition(b"\r\n\r\n")
        status = int(head.split(b" ", 2)[1])
        headers = {
            name.lower(): value for name, _, value in (line.partition(b": ") for line in head.split(b"\r\n")[1:])
        }
        length = int(headers[b"content-length"]) if status >= 200 else 0
        found.append((status, headers, rest[:length]))
        rest = rest[length:]
    return found


def post(body: bytes, extra: bytes = b"", path: bytes = b"/x", *, chunked: bool = False) -> bytes:
    length = b"Transfer-Encoding: chunked" if chunked else b"Content-Length: %d" % len(body)
    return b"POST %s HTTP/1.1\r\nHost: localhost\r\n%s%s\r\n\r\n%s" % (path, extra, length, body)


CHUNKS = b"5\r\nhello\r\n6;a=b\r\n world\r\n0\r\n\r\n"


@pytest.mark.parametrize("size", [1, 7, 150, 10_000])
@pytest.mark.parametrize("chunked", [False, True])
def test_an_offer_of_another_protocol_changes_nothing(size: int, chunked: bool) -> None:
    """RFC 9110, 7.8: a server that does not want to switch reads the request as if nothing were offered."""
    body = CHUNKS if chunked else b"hello world"
    sent = post(body, OFFER, b"/1", chunked=chunked) * 2 + post(b"more", path=b"/2") + post(b"", OFFER, b"/3?a=b")
    found = answers(exchange([sent[start : start + size] for start in range(0, len(sent), size)]))
    assert [(status, headers[b"x-path"], answer) for status, headers, answer in found] == [
        (200, b"/1", b"hello world"), (200, b"/1", b"hello world"), (200, b"/2", b"more"), (200, b"/3", b""),
    ]  # fmt: skip


def test_an_offer_in_an_expectation_and_of_websockets() -> None:
    sent = post(b"hello", OFFER + b"Expect: 100-continue\r\n")
    head, body = sent[:-5], sent[-5:]
    assert [status for status, *_ in answers(exchange([head, body]))] == [100, 200]
    websocket = b"Connection: Upgrade\r\nUpgrade: websocket\r\nSec-WebSocket-Version: 13\r\nSec-WebSocket-Key: eA==\r\n"
    found = answers(exchange([b"GET /y HTTP/1.1\r\nHost: localhost\r\n%s\r\n" % websocket, post(b"a")]))
    assert [(status, answer) for status, _, answer in found] == [(200, b""), (200, b"a")]


@pytest.mark.parametrize("size", [1, 10_000])
@pytest.mark.parametrize("chunked", [False, True])
def test_an_offer_on_a_connection_that_ends(size: int, chunked: bool) -> None:
    offer = b"Connection: close, Upgrade\r\nUpgrade: h2c\r\n"
    sent = post(CHUNKS if chunked else b"hello world", offer, chunked=chunked) + post(b"never read")
    found = exchange([sent[start : start + size] for start in range(0, len(sent), size)])
    ((status, headers, answer),) = answers(found)
    assert (status, headers[b"connection"], answer) == (200, b"close", b"hello world") and found.closed


@together("lengths", [
    b"Content-Length: 5\r\nTransfer-Encoding: chunked\r\n", b"Transfer-Encoding: chunked\r\nContent-Length: 5\r\n",
    b"Content-Length: 5\r\nContent-Length: 6\r\n", b"Transfer-Encoding: chunked\r\nTransfer-Encoding: gzip\r\n",
    b"Content-Length: +5\r\n", b"Content-Length: 5, 6\r\n", b"Transfer-Encoding: gzip, chunked\r\n",
])  # fmt: skip
def test_a_request_of_which_others_may_read_another_length_is_refused(lengths: bytes) -> None:
    found = exchange([b"POST /x HTTP/1.1\r\nHost: localhost\r\n%s\r\n0\r\n\r\n" % lengths, post(b"a")])
    assert [status for status, *_ in answers(found)] in ([400], [501]) and found.ended


def test_lines_and_addresses_that_old_clients_and_proxies_send() -> None:
    """RFC 9112, 2.2 and 3.2.2: empty lines before a request, and an address with a host."""
    proxied = b"POST http://localhost/y?a=b HTTP/1.1\r\nHost: localhost\r\nContent-Length: 1\r\n\r\nb"
    for sent in ([b"\r\n" + post(b"a") + b"\r\n\r\n" + proxied], [b"\r", b"\n", post(b"a") + b"\r", b"\n" + proxied]):
        found = answers(exchange(sent))
        assert [(status, headers[b"x-path"], answer) for status, headers, answer in found] == [
            (200, b"/x", b"a"), (200, b"/y", b"b"),
        ]  # fmt: skip
    places = (
        b"GET *",
        b"GET x",
        b"GET http://localhost",
        b"GET ftp://localhost/x",
        b"CONNECT example.org:443",
        b"CONNECT /",
    )
    for place in places:
        refused = exchange([b"%s HTTP/1.1\r\nHost: localhost\r\n\r\n" % place, post(b"a")])
        assert [status for status, *_ in answers(refused)] == [400] and refused.ended


@together("sent", [post(b"hello"), b"GET / HTTP/1.1\r\nHost: localhost\r\n\r\n", post(b"a" * 100_000)])
def test_a_client_that_leaves_ends_its_request(sent: bytes) -> None:
    ends: list[str] = []

    async def never(scope: Any, receive: Any, send: Any) -> None:
        try:
            while (await receive())["more_body"]:
                pass
            await receive()
        except asyncio.CancelledError:
            ends.append("cancelled")

    before_the_loop_ends: list[str] = []
    exchange([sent, END, lambda: before_the_loop_ends.extend(ends)], never)
    assert before_the_loop_ends == ["cancelled"]


def test_few_bytes_of_later_requests_wait() -> None:
    async def never(scope: Any, receive: Any, send: Any) -> None:
        await asyncio.Event().wait()

    assert not exchange([post(b"hello")], never).paused
    assert exchange([post(b"hello") * 1000, post(b"hello") * 1000], never).paused


def test_a_body_that_nobody_asks_for_ends_the_connection_only_where_it_has_not_come() -> None:
    async def refuse(scope: Any, receive: Any, send: Any) -> None:
        await reply(send, 403, (b"content-length", b"0"))
        await send({"type": "http.response.body", "body": b""})

    assert [status for status, *_ in answers(exchange([post(b"a"), post(b"b")], refuse))] == [403, 403]
    part = exchange([post(b"hello")[:-1], post(b"b")], refuse)
    ((_, headers, _),) = answers(part)
    assert headers[b"connection"] == b"close" and part.ended


@pytest.mark.parametrize("value", [b"a\r\nSet-Cookie: b", b"a\nb", b"a\rb"])
def test_a_header_with_a_line_break_is_not_sent(value: bytes, caplog: pytest.LogCaptureFixture) -> None:
    async def split(scope: Any, receive: Any, send: Any) -> None:
        await reply(send, 200, (b"x", value))

    ((status, headers, _),) = answers(exchange([post(b"a"), post(b"b")], split))
    assert status == 500 and {b"set-cookie", b"x"}.isdisjoint(headers)


def test_an_answer_that_breaks_off_and_a_client_that_ends_close_the_connection() -> None:
    async def fail(scope: Any, receive: Any, send: Any) -> None:
        await reply(send, 200)
        await send({"type": "http.response.body", "body": b"hello", "more_body": True})
        raise OSError

    found = exchange([post(b"a"), post(b"b")], fail)
    assert found.written.count(b"HTTP/1.1") == 1
    assert found.written.endswith(b"transfer-encoding: chunked\r\n\r\n5\r\nhello\r\n")
    found = exchange([post(b"a"), END])
    assert [status for status, *_ in answers(found)] == [200] and found.closed


def test_an_answer_without_a_length_comes_in_chunks_and_one_to_head_has_no_body() -> None:
    async def stream(scope: Any, receive: Any, send: Any) -> None:
        await reply(send, 200)
        for body in (b"hello", b"", b"0123456789abcdef"):
            await send({"type": "http.response.body", "body": body, "more_body": True})
        await send({"type": "http.response.body"})

    found = exchange([post(b"a"), b"HEAD / HTTP/1.1\r\nHost: localhost\r\n\r\n"], stream)
    _, whole, head = found.written.split(b"HTTP/1.1 200 OK\r\n")
    assert whole.endswith(b"\r\n\r\n5\r\nhello\r\n10\r\n0123456789abcdef\r\n0\r\n\r\n")
    assert head.endswith(b"\r\n\r\n") and head.count(b"\r\n\r\n") == 1
    old = exchange([b"GET / HTTP/1.0\r\nConnection: keep-alive\r\n\r\n"], stream)  # HTTP/1.0 has no chunks
    assert old.closed and old.written.endswith(b"\r\nconnection: close\r\n\r\nhello0123456789abcdef")
    assert b"transfer-encoding" not in old.written


def test_each_packet_boundary_gives_the_same_answers() -> None:
    trailed = post(b"5\r\nhello\r\n0\r\nHost: evil\r\nA: b\r\n\r\n", chunked=True)
    sent = post(CHUNKS, OFFER, chunked=True) + post(b"x") + trailed
    whole = [(status, headers[b"x-names"], body) for status, headers, body in answers(exchange([sent]))]
    assert [status for status, *_ in whole] == [200] * 3
    for place in range(1, len(sent), 7):
        found = answers(exchange([sent[:place], sent[place:]]))
        assert [(status, headers[b"x-names"], body) for status, headers, body in found] == whole, place


def test_trailers_are_not_headers() -> None:
    trailed = b"5\r\nhello\r\n0\r\nHost: evil\r\nAuthorization: Bearer x\r\nX-Sum: 1\r\n\r\n"
    pieces = [post(trailed[:5], chunked=True), trailed[5:], post(b"a", path=b"/2")]
    first, second = answers(exchange(pieces))
    assert first[2] == b"hello" and first[1][b"x-names"] == b"host,transfer-encoding"
    assert second[1][b"x-names"] == b"host,content-length"


BROKEN = [
    [post(b"5\r\nhel", chunked=True), b"lo\r\nzz\r\n"], [post(b"5\r\nhelloo\r\n", chunked=True)],
    [post(b"", chunked=True), b"-1\r\n"], [post(b"5\r\nhello\r\n", chunked=True), b"f" * 21 + b"\r\n"],
    [post(b"5\r\nhello\r\n", OFFER, chunked=True), b"zz\r\n"], [post(b"5\r\nhello\r\n", chunked=True), END],
    [post(b"hello")[:-2], END], [b"POST / HTTP/1.1\r\nHost: loc", END], [post(b"1;" + b"a" * 70_000, chunked=True)],
]  # fmt: skip


@pytest.mark.parametrize("packets", BROKEN)
def test_a_request_that_breaks_off_or_is_damaged_gets_one_answer(packets: Sequence[Any]) -> None:
    found = exchange([*packets, post(b"never read")] if packets[-1] is not END else packets, guarded=True)
    assert [status // 100 for status, *_ in answers(found)] == [4]
    assert found.ended or found.closed
    assert len(json.loads(answers(found)[0][2])["error"]) > 10
    before = exchange([post(b"a"), *packets], guarded=True)  # what came before it is answered
    assert [status // 100 for status, *_ in answers(before)] == [2, 4]


def test_requests_before_a_damaged_one_are_answered_first() -> None:
    async def slow(scope: Any, receive: Any, send: Any) -> None:
        for _ in range(5):
            await asyncio.sleep(0)
        await echo(scope, receive, send)

    sent = post(b"a", path=b"/1") + post(b"b", path=b"/2") + b"nonsense\r\n\r\n" + post(b"c")
    found = exchange([sent, b"", b"", b""], slow)
    assert [(status, answer[:1]) for status, _, answer in answers(found)] == [(200, b"a"), (200, b"b"), (400, b"{")]
    assert found.ended


@pytest.mark.parametrize("length", [60_000, *range(65_000, 78_000, 500), 100_000])
def test_a_request_with_headers_of_any_length_gets_one_answer(length: int) -> None:
    request = post(b"x", b"X: %s\r\n" % (b"a" * length))
    found = answers(exchange([request]))
    assert [status for status, _, _ in found] in ([200], [431])
    assert (found[0][0] == 200) == (length < 65_000) or 65_000 <= length < 70_000
