"""A connection of the server: answers a client's requests one after the other, within limits of size and time.

No ASGI server does all of this. Three were tried in its place, each with 75 lines that cancel the request of a client
that has left, limit the time for sending, and end the server:

                                               here   uvicorn 0.54  hypercorn 0.18  granian 2.8
    failures in 49 tests of the server            0             22              18           17
    reads the body if HTTP/2 is offered         yes             no             yes          yes
    limits the time for a head                  yes             no              no          yes
    limits the size of a head and of chunks     yes             no          a head          yes
    cuts a client that reads too slowly         yes             no             yes          yes
    says why it refuses a request               yes             no              no           no
    CPU per request, 1 client, in ms            3.0            3.5             4.5          4.1
    CPU per request, 8 clients                  1.9            1.9             2.7          2.4
    CPU per request, 64 clients                 1.0            1.2             1.5          1.1
    memory for 1,000 connections, in MB          15             17              11           20
"""

import asyncio
import functools
import logging
import re
import socket
import time
from collections import deque
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from email.utils import formatdate
from http import HTTPStatus
from typing import Any, NoReturn
from urllib.parse import unquote

import httptools
from starlette.exceptions import HTTPException
from starlette.responses import JSONResponse
from starlette.types import ASGIApp, Message, Scope

from mlxbert.serve.engine.serving_options import ServeOptions
from mlxbert.serve.protocol import RequestError

_MAX_HEADERS = 65_536  # bytes of a head; and of the framing of a chunked body, beyond the size of the chunks
_TOO_LARGE = f"the headers or the chunk sizes of the body take more than {_MAX_HEADERS:,} bytes"
_TARGET = re.compile(rb"(?:(?i:https?)://[^/?#]*)?(/[^?#\x80-\xff]*)(?:\?([^#]*))?(?:#.*)?")


@dataclass(eq=False, slots=True)
class HttpRequest:
    """A request whose head is parsed."""

    scope: Scope  # the head, as ASGI defines it
    persistent: bool  # whether another request may follow on the connection
    expects: bool  # whether the client waits for the status 100 before it sends the body
    # The parsed bytes of the body that the application has not read yet.
    body: bytearray = field(default_factory=bytearray)
    complete: bool = False  # whether the whole body is parsed
    taken: bool = False  # whether the application has read the whole body


class RequestParser:
    """Parses the requests of one client."""

    def __init__(self, client: tuple[str, int]) -> None:
        # The requests whose heads are parsed, in the order of arrival; only the last request may be incomplete.
        self.requests: deque[HttpRequest] = deque()
        # The error in the bytes that follow these requests, or in the body of the last one.
        self.error: HTTPException | None = None
        self.begun = False  # whether a request is partly parsed
        self._client, self._parser, self._spare = client, httptools.HttpRequestParser(self), _MAX_HEADERS

    def feed(self, data: bytes) -> None:
        """Parses bytes. The caller passes a few thousand bytes at most, since the limits are checked once per call."""
        if self.error is not None:
            return
        self._spare -= len(data)
        try:
            while data:
                data = self._feed(data)
        except httptools.HttpParserError as error:
            self.error = self.error or HTTPException(400, f"this is not an HTTP/1.1 request ({error})")
        if self._spare < 0:
            self.error = HTTPException(431, _TOO_LARGE)

    def _feed(self, data: bytes) -> bytes:
        """Parses bytes; returns the bytes that are still to be parsed.

        If a head asks for an upgrade, llhttp leaves the bytes after it to the other protocol. Such a head is parsed
        again without the upgrade.
        """
        try:
            self._parser.feed_data(data)
            return b""
        except httptools.HttpParserUpgrade as upgrade:
            method, version = self._parser.get_method(), self._parser.get_http_version().encode()
            headers = [b"%b: %b" % header for header in self._headers if header[0] != b"upgrade"]
            head = b"\r\n".join((b"%b %b HTTP/%b" % (method, self._target, version), *headers, b"", b""))
            self._parser = httptools.HttpRequestParser(self)  # the old parser may consider the connection closed
            return head + data[upgrade.args[0] :]

    def on_message_begin(self) -> None:
        self.begun, self._spare = True, _MAX_HEADERS
        self._target, self._headers = b"", list[tuple[bytes, bytes]]()

    def on_url(self, part: bytes) -> None:
        self._target += part

    def on_header(self, name: bytes, value: bytes) -> None:
        self._headers.append((name.lower(), value))

    def on_headers_complete(self) -> None:
        """Checks the head and queues the request. A head that asks for an upgrade is parsed again instead."""
        parser, headers = self._parser, self._headers
        method, version, target = parser.get_method(), parser.get_http_version(), _TARGET.fullmatch(self._target)
        if method == b"CONNECT" or target is None or version not in ("1.0", "1.1"):
            self._refuse(400, "this is not an HTTP/1.1 request to a server")
        if [value.lower() for name, value in headers if name == b"transfer-encoding"] not in ([], [b"chunked"]):
            self._refuse(501, "Transfer-Encoding is not chunked")
        if self._spare < 0:
            self._refuse(431, _TOO_LARGE)
        if parser.should_upgrade():
            return
        path, query = target[1], target[2] or b""
        scope: Scope = {
            "type": "http", "asgi": {"version": "3.0", "spec_version": "2.4"}, "scheme": "http", "root_path": "",
            "http_version": version, "method": method.decode(), "path": unquote(path.decode()), "raw_path": path,
            "query_string": query, "headers": headers, "client": self._client,
        }  # fmt: skip
        expects = any(name == b"expect" and value.lower() == b"100-continue" for name, value in headers)
        self._request = HttpRequest(scope, version == "1.1" and parser.should_keep_alive(), expects)
        self.requests.append(self._request)
        self._headers = []  # for trailers, which are ignored

    def on_body(self, part: bytes) -> None:
        self._spare += 2 * len(part)
        self._request.body += part

    def on_message_complete(self) -> None:
        if not self._parser.should_upgrade():
            self.begun, self._request.complete = False, True

    def _refuse(self, status: int, why: str) -> NoReturn:
        self.error = HTTPException(status, why)
        raise self.error


_IDLE = 5.0  # seconds between requests, after which a connection is closed
_LINGER = 2.0  # seconds for reading the rest of a refused request, so that the client sees the answer
_MAX_UNPARSED = 65_536  # received bytes that wait to be parsed; above, reading pauses
_PIECE = 4096  # bytes that are parsed at a time, so that few requests are parsed before their turn
_LINES = {status.value: f"HTTP/1.1 {status.value} {status.phrase}".encode() for status in HTTPStatus}
_REFUSED = {"Cache-Control": "no-store", "X-Content-Type-Options": "nosniff"}
_LOG = logging.getLogger("mlxbert.serve")


class Connection(asyncio.Protocol):
    """The connection of a client; one of the open `connections` of the server until it is closed."""

    def __init__(self, app: ASGIApp, options: ServeOptions, connections: "set[Connection]") -> None:
        self._app, self._options, self._connections = app, options, connections
        self.busy = False  # whether a request is being answered
        self._loop = asyncio.get_running_loop()
        self._received = bytearray()  # not parsed yet
        self._arrived = asyncio.Event()  # bytes were received, or the client has stopped sending
        self._written = asyncio.Event()  # everything written was passed to the system
        self._sending_ended = self._finishing = self._used = False
        self._request: HttpRequest | None = None  # the request that is being answered
        self._head: bytes | None = None  # the head of the answer; empty after it is written
        self._without_body = self._chunked = self._answered = False  # `_answered`: the answer is written completely
        self._patience = options.read_seconds  # remaining seconds for the client to read the answer

    def connection_made(self, transport: Any) -> None:
        self._transport = transport
        transport.set_write_buffer_limits(0)  # written bytes count as read as soon as the system has taken them
        self._written.set()
        # asyncio sets this only for its own sockets; without it an answer waits 40 ms for an acknowledgement.
        with suppress(OSError):  # EINVAL on macOS, if the client has left already
            transport.get_extra_info("socket").setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        client = transport.get_extra_info("peername") or ("-", 0)  # None for a client that has left
        self._parser = RequestParser(client[:2])
        self._connections.add(self)
        self._task = self._loop.create_task(self._serve())
        self._task.add_done_callback(self._end)

    def connection_lost(self, exc: Exception | None) -> None:
        self._written.set()
        self._task.cancel()

    def data_received(self, data: bytes) -> None:
        self._received += data
        self._arrived.set()
        if len(self._received) > _MAX_UNPARSED:
            self._transport.pause_reading()

    def eof_received(self) -> bool:
        """Closes the connection if the client has left. A client that stops within a request gets an error."""
        self._sending_ended = True
        parser, request = self._parser, self._request
        begun = self._received or parser.begun or parser.requests
        if stays := bool(begun) if request is None else not request.complete:
            self._arrived.set()
        return stays

    def pause_writing(self) -> None:
        self._written.clear()

    def resume_writing(self) -> None:
        self._written.set()

    def finish(self) -> None:
        """Closes the connection after answering the current request, or a request that has just arrived."""
        self._finishing = True
        self._arrived.set()

    def _end(self, task: "asyncio.Task[None]") -> None:
        self._connections.discard(self)
        self._transport.abort()
        if not task.cancelled() and (error := task.exception()) is not None:
            _LOG.error("a connection broke: %s", error, exc_info=error)

    async def _serve(self) -> None:
        """Answers requests until the client, a limit or an error ends the connection."""
        try:
            if len(self._connections) > self._options.max_connections:
                raise HTTPException(503, "the server has too many open connections")
            while (request := await self._next_request()) is not None and await self._answer(request):
                pass
        except HTTPException as refusal:
            await self._refuse(refusal)

    async def _next_request(self) -> HttpRequest | None:
        """Reads the head of the next request; `None` if there is no further request."""
        parser, seconds = self._parser, self._options.read_seconds
        self._request = None
        try:
            if not parser.requests:
                async with asyncio.timeout(_IDLE if self._used and not parser.begun else seconds) as limit:
                    await self._parse_some()
                    if self._used and not parser.requests:
                        limit.reschedule(self._loop.time() + seconds)
                    while not parser.requests:
                        await self._parse_some()
        except TimeoutError:
            if self._finishing or (self._used and not parser.begun):
                return None
            raise HTTPException(408, f"the headers did not arrive within {seconds:g} seconds") from None
        self._used = True
        return parser.requests.popleft()

    async def _answer(self, request: HttpRequest) -> bool:
        """Runs the application for a request; returns whether another request may follow."""
        self._request, self.busy, self._head, self._answered = request, True, None, False
        self._patience = self._options.read_seconds
        try:
            await self._app(request.scope, self._receive, self._send)
        except Exception:
            _LOG.exception("the application failed")
        if self._transport.is_closing():
            return False
        if self._head != b"":
            raise HTTPException(500, "the request failed; the server's log says why")
        await self._drain()
        if not request.complete:
            await self._linger()
        self.busy = False
        return self._answered and request.persistent and request.complete and not self._finishing

    async def _receive(self) -> Message:
        """Returns the next part of the body as an ASGI message; raises a `RequestError` if the body is invalid."""
        request = self._request
        assert request is not None
        if request.taken:
            await asyncio.Event().wait()  # until the client leaves, which cancels the request
        if request.expects and not (request.body or request.complete or self._received):
            self._transport.write(b"HTTP/1.1 100 Continue\r\n\r\n")
        request.expects = False
        try:
            while not request.complete and (self._received or not request.body):
                await self._parse_some()
        except HTTPException as refusal:
            raise RequestError("invalid", refusal.detail) from None
        if request.complete and self._sending_ended:
            self._transport.close()
        body, request.body, request.taken = bytes(request.body), bytearray(), request.complete
        return {"type": "http.request", "body": body, "more_body": not request.complete}

    async def _send(self, message: Message) -> None:
        """Writes a part of the answer after the client has read the previous part."""
        if not self._written.is_set():
            await self._drain()
        if message["type"] == "http.response.start":
            self._begin(message["status"], message["headers"])
            return
        body, self._answered = message.get("body", b""), not message.get("more_body", False)
        if self._without_body:
            body = b""
        elif self._chunked:
            body = (b"%x\r\n%b\r\n" % (len(body), body) if body else b"") + (b"0\r\n\r\n" if self._answered else b"")
        self._transport.write((self._head or b"") + body)
        self._head = b""

    def _begin(self, status: int, headers: Sequence[tuple[bytes, bytes]]) -> None:
        """Makes the head of the answer, which is written with the first part of the body."""
        request, parser = self._request, self._parser
        while request is not None and not request.complete and self._received and parser.error is None:
            self._parse_piece()  # a received body that the application has not read
        lines = [_LINES[status], b"date: %b" % _date(int(time.time())), *(b"%b: %b" % header for header in headers)]
        scope: Scope = {} if request is None else request.scope
        self._without_body = status in (204, 304) or scope.get("method") == "HEAD"
        # HTTP/1.0 has no chunks: there, the end of the connection is the end of the body.
        self._chunked = (
            not self._without_body and scope.get("http_version") != "1.0" and b"content-length" not in dict(headers)
        )
        if self._chunked:
            lines.append(b"transfer-encoding: chunked")
        if self._finishing or request is None or not (request.persistent and request.complete):
            lines.append(b"connection: close")
        self._head = b"\r\n".join((*lines, b"", b""))
        if self._head.count(b"\n") + self._head.count(b"\r") != 2 * len(lines) + 2:
            raise ValueError("a header of the answer contains a line break")

    async def _parse_some(self) -> None:
        """Waits for bytes and parses some; raises HTTPException if a request is invalid, too large, or ends early."""
        if self._parser.error is not None:
            raise self._parser.error
        await self._receive_some()
        if not self._received:
            raise HTTPException(400, "the request ends before it is complete")
        self._parse_piece()

    def _parse_piece(self) -> None:
        piece = bytes(self._received[:_PIECE])
        del self._received[:_PIECE]
        if len(self._received) <= _MAX_UNPARSED:
            self._transport.resume_reading()
        self._parser.feed(piece)

    async def _receive_some(self) -> None:
        """Waits until there are bytes to parse, or the client has stopped sending."""
        while not self._received and not self._sending_ended:
            if self._finishing and not self.busy:
                raise TimeoutError
            self._arrived.clear()
            await self._arrived.wait()

    async def _drain(self) -> None:
        """Waits until the client has read the written bytes; the timeout covers the whole answer."""
        if self._written.is_set():
            return
        begun = time.monotonic()
        try:
            async with asyncio.timeout(self._patience):
                await self._written.wait()
        except TimeoutError:
            self._transport.abort()
            await asyncio.Event().wait()  # until this task is cancelled
        self._patience -= time.monotonic() - begun

    async def _refuse(self, refusal: HTTPException) -> None:
        """Sends an error for a request that cannot be parsed, then closes the connection."""
        self.busy = self._finishing = True
        answer = JSONResponse({"error": refusal.detail}, refusal.status_code, _REFUSED)
        await answer({"type": "http"}, self._receive, self._send)
        await self._linger()

    async def _linger(self) -> None:
        """Keeps reading for a moment: closing a connection with unread bytes would discard the answer."""
        if self._transport.can_write_eof():
            with suppress(OSError):  # ENOTCONN, if the client has left already
                self._transport.write_eof()
        with suppress(TimeoutError):
            async with asyncio.timeout(_LINGER):
                while not self._sending_ended:
                    self._received.clear()
                    self._transport.resume_reading()
                    await self._receive_some()


@functools.lru_cache(1)
def _date(seconds: int) -> bytes:
    return formatdate(seconds, usegmt=True).encode()
