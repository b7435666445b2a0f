"""A connection of the server: it times out slow clients, and every request gets one answer, or none if its client left.

uvicorn has no limit for slow or endless headers, for the rest of a body that is refused, and for a reader that does not
read. It loses the body of a request that offers another protocol, takes trailers for headers, and does not answer a
request whose body is damaged.
"""

import asyncio
import json
import socket
from collections.abc import Callable
from contextlib import suppress
from typing import Any

import httptools
from uvicorn.protocols.http.flow_control import FlowControl
from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol

from mlxbert.serve.options import ServeOptions
from mlxbert.serve.protocol import Problem

HEADERS = 65_536  # bytes of headers; and of what is sent around the parts of a body, if these are not as large
_LINGER = 2.0  # seconds in which the rest of a request that is refused is read, so that its client sees the answer
_PIPELINED = 16  # requests that wait for those before them, until no more of what has come is looked at
_PIECE = 4096  # bytes that are looked at together
_LINES = {
    400: "Bad Request", 408: "Request Timeout", 431: "Request Header Fields Too Large", 503: "Service Unavailable",
}  # fmt: skip


class _Flow(FlowControl):
    """Reads nothing as long as there is something that is not looked at."""

    full = False

    def resume_reading(self) -> None:
        """Reads on, if that is of use."""
        if not self.full:
            super().resume_reading()


class Connection(HttpToolsProtocol):
    """A connection.

    Args:
        options: What the server allows.
        given: What uvicorn gives.
    """

    def __init__(self, options: ServeOptions, **given: Any) -> None:
        super().__init__(**given)
        self._options, self._spare, self._refused = options, HEADERS, False
        self._held = b""  # has come, and is looked at when fewer requests wait
        self._owed: tuple[int, str] | None = None  # an error to send when the requests before it are answered
        self._begun = False  # whether a request has come in part
        self._left = False  # whether the client sends no more
        self._reading: asyncio.TimerHandle | None = None  # until the headers of a request have come
        self._writing: asyncio.TimerHandle | None = None  # until the client has read what was written
        self._waited, self._since = 0.0, 0.0  # seconds in which it has not read this answer, and when the last began
        self._written = True  # whether all of it is in the buffer
        self._gone: list[Callable[[], object]] = []  # what ends the requests that are answered

    def connection_made(self, transport: Any) -> None:
        """Begins; or refuses one connection too many."""
        super().connection_made(transport)
        self.flow: _Flow = _Flow(transport)
        transport.set_write_buffer_limits(0)  # so that writing is paused until everything is read
        # asyncio does this for sockets of its own only; without it an answer waits 40 ms for an acknowledgement.
        with suppress(OSError):  # EINVAL on macOS, if the client is gone already
            transport.get_extra_info("socket").setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        if len(self.connections) > self._options.max_connections:
            self._refuse(503, "there are too many connections")
        else:
            self._await_headers()

    def connection_lost(self, exc: Exception | None) -> None:
        """Ends, with the requests that nobody waits for any more."""
        super().connection_lost(exc)
        for timer in (self._reading, self._writing):
            if timer is not None:
                timer.cancel()
        for leave in [*self._gone]:
            leave()

    def data_received(self, data: bytes) -> None:
        """Looks at what has come, as long as few requests wait."""
        data, self._held, self.flow.full = self._held + data, b"", False
        for start in range(0, len(data), _PIECE):
            if len(self.pipeline) >= _PIPELINED:
                self._held, self.flow.full = data[start:], True
                self.flow.pause_reading()
                return
            self._parse(data[start : start + _PIECE])

    def _parse(self, data: bytes) -> None:
        if self._refused or self.transport.is_closing():
            return
        if self._reading is None and (self.cycle is None or self.cycle.response_complete):
            self._await_headers()
        self._spare -= len(data)
        self._unset_keepalive_if_required()
        try:
            while data:
                data = self._feed(data)
        except httptools.HttpParserError:
            if self._spare >= 0:
                self._refuse(400, "this is not a request of HTTP")
        if self._spare < 0:
            self._refuse(431, f"the headers, or the sizes of chunks, have more than {HEADERS:,} bytes")

    def _feed(self, data: bytes) -> bytes:
        """Parses data; returns what is to be parsed next.

        An offer to switch to another protocol (HTTP/2, as Java's client and curl make it) is ignored: the head of the
        request is parsed again without it, as the parser skips the body of a request with an offer (RFC 9110, 7.8).
        """
        try:
            self.parser.feed_data(data)
            return b""
        except httptools.HttpParserUpgrade as offer:
            method, version = self.parser.get_method(), self.parser.get_http_version().encode()
            if method == b"CONNECT":
                raise httptools.HttpParserError("a proxy is asked for") from None
            self.parser = httptools.HttpRequestParser(self)  # the other one may take the connection for closed
            kept = [b"%s: %s" % header for header in self.headers if header[0] != b"upgrade"]
            head = b"\r\n".join((b"%s %s HTTP/%s" % (method, self.url, version), *kept, b"", b""))
            return head + data[offer.args[0] :]

    def on_message_begin(self) -> None:
        """A request begins."""
        super().on_message_begin()
        self._spare, self._begun = HEADERS, True
        self.scope["gone"] = self._gone  # type: ignore[typeddict-unknown-key]

    def on_headers_complete(self) -> None:
        """Its headers have come; they are parsed again if there is an offer among them."""
        if self._spare < 0:
            raise httptools.HttpParserError
        if self.parser.should_upgrade():
            return
        if self._reading is not None:
            self._reading.cancel()
            self._reading = None
        super().on_headers_complete()
        self.headers = []  # of trailers, which nobody reads

    def on_body(self, body: bytes) -> None:
        """A part of its body has come."""
        self._spare += 2 * len(body)
        super().on_body(body)

    def on_message_complete(self) -> None:
        """All of it has come; reading on shows when the client leaves."""
        if self.parser.should_upgrade():
            return
        self._begun = False
        super().on_message_complete()
        if not self.pipeline:
            self.flow.resume_reading()

    def on_response_complete(self) -> None:
        """It is answered; what is left of its body is of no use."""
        self._written = True
        self._end_writing()
        if self.transport.is_closing():
            self._flush()
        elif self.cycle.response_complete and self._owed:
            self._send(*self._owed)
        elif self.cycle.response_complete and self.cycle.more_body:
            self._linger()
        else:
            super().on_response_complete()
            if self._held:
                self.data_received(b"")

    def timeout_keep_alive_handler(self) -> None:
        """Nothing more has come for a while."""
        super().timeout_keep_alive_handler()
        self._flush()

    def pause_writing(self) -> None:
        """The client does not read as fast as we write; it has so long for the whole answer, however often it reads."""
        super().pause_writing()
        self._written = False  # perhaps; `on_response_complete` follows if it is
        if self._writing is None:
            self._since = self.loop.time()
            self._writing = self.loop.call_later(self._options.read_seconds - self._waited, self.transport.abort)

    def resume_writing(self) -> None:
        """The client has read everything that was written; an answer in pieces may have more, which takes its time."""
        super().resume_writing()
        if self._writing is not None:
            self._writing.cancel()
            self._writing, self._waited = None, self._waited + self.loop.time() - self._since
        self._end_writing()

    def _end_writing(self) -> None:
        """Forgets how long the client took for an answer that is whole and read."""
        if self._written and not self.flow.write_paused:
            self._waited = 0.0

    def eof_received(self) -> bool:  # type: ignore[override]
        """The client sends no more: it has left, or stops in the middle of a request, which is then answered.

        Returns whether the connection stays open for that.
        """
        self._left = True
        if self._begun:
            self._refuse(400, "the request ends before it is complete")
        return self._begun and self.cycle is not None and not self.cycle.response_complete

    def _await_headers(self) -> None:
        seconds = self._options.read_seconds
        why = f"the headers have not come within {seconds:g} seconds"
        self._reading = self.loop.call_later(seconds, self._refuse, 408, why)

    def _refuse(self, status: int, why: str) -> None:
        """Stops reading, and answers a damaged or incomplete request with an error, after the requests before it."""
        if self._refused or self.transport.is_closing():
            return
        self._refused, self._held = True, b""
        if self.cycle is None or self.cycle.response_complete:
            self._send(status, why)
        elif self.cycle.more_body:  # the application waits for the rest of the body, and answers
            self.cycle.scope["broken"] = Problem("invalid", why)  # type: ignore[typeddict-unknown-key]
            self.cycle.message_event.set()
        else:
            self._owed = status, why

    def _send(self, status: int, why: str) -> None:
        """Sends an error, then closes the connection."""
        body = json.dumps({"error": why}).encode()
        head = (
            f"HTTP/1.1 {status} {_LINES[status]}\r\ncontent-type: application/json\r\ncontent-length: {len(body)}\r\n"
            "connection: close\r\ncache-control: no-store\r\nx-content-type-options: nosniff\r\n\r\n"
        )
        self.transport.write(head.encode() + body)
        self._linger()

    def _linger(self) -> None:
        """Drops what else comes: a connection that is closed before all is read would take the answer with it."""
        self._refused, self._held, self.flow.full = True, b"", False
        if self._left:
            self.transport.close()
            self._flush()
            return
        self.flow.resume_reading()
        if self.transport.can_write_eof():
            with suppress(OSError):  # ENOTCONN, if the client is gone already
                self.transport.write_eof()
        self.loop.call_later(_LINGER, self.transport.abort)

    def _flush(self) -> None:
        """Gives the client time to read the rest of an answer, after which the connection is closed."""
        if self.transport.get_write_buffer_size():
            self.loop.call_later(self._options.read_seconds, self.transport.abort)
