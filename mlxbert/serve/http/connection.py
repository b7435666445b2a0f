"""A connection of the server: answers the requests of a client one after the other, within limits of size and time.

h11 holds the rules of HTTP/1.1: heads, lengths, chunks, keep-alive, `Expect`, and offers of other protocols, which are
ignored (RFC 9110, 7.8). The limits are here, since no server for ASGI (uvicorn, hypercorn, granian) has options for all
of them: the time in which a head is sent and an answer is read, the bytes around the parts of a body, an error that
reaches a client which is still sending, and the end of a request whose client has left. h11 takes some 70 microseconds
longer for a request than httptools, which is written in C but reads no body after an offer of another protocol.
"""

import asyncio
import functools
import json
import logging
import re
import socket
import time
from contextlib import suppress
from email.utils import formatdate
from http import HTTPStatus
from typing import TYPE_CHECKING, Any
from urllib.parse import unquote

import h11

from mlxbert.serve.options import ServeOptions
from mlxbert.serve.protocol import Problem

if TYPE_CHECKING:
    from starlette.types import ASGIApp, Message, Scope

HEADERS = 65_536  # bytes of a head; and of what surrounds the parts of a body, beyond the size of the parts
_IDLE = 5.0  # seconds between requests, after which a connection is closed
_LINGER = 2.0  # seconds in which the rest of a refused request is read, so that the client sees the answer
_AHEAD = 65_536  # received bytes that wait to be parsed, until no more are read
_PIECE = 4096  # bytes of a head that are parsed together: h11 checks the size of a head only while it is incomplete
_PHRASES = {status.value: status.phrase.encode() for status in HTTPStatus}
_TARGET = re.compile(rb"(?:(?i:https?)://[^/?#]*)?(/[^?#]*)(?:\?([^#]*))?(?:#.*)?")
_LENGTHS = frozenset({b"content-length", b"transfer-encoding"})
_LOG = logging.getLogger("mlxbert.serve")


class Connection(asyncio.Protocol):
    """A connection.

    Args:
        app: The application that answers the requests. It is cancelled when the client leaves.
        options: The limits.
        connections: All connections of the server; this one is among them until it is closed.
    """

    def __init__(self, app: "ASGIApp", options: ServeOptions, connections: "set[Connection]") -> None:
        self._app, self._options, self._connections = app, options, connections
        self.busy = False  # whether a request is being answered
        self._loop, self._http = asyncio.get_running_loop(), _parser()
        self._received = bytearray()  # not parsed yet
        self._arrived = asyncio.Event()  # something was received, or the client sends no more
        self._written = asyncio.Event()  # the client has read everything that was written
        self._timer: asyncio.TimerHandle | None = None
        self._sends_no_more = self._late = self._finishing = self._used = False
        self._whole = self._without_body = False  # whether all of the request is read; whether the answer has no body
        self._head: h11.Response | None = None  # of the answer, until its body begins
        self._patience = options.read_seconds  # that is left for reading the answer
        self._spare = HEADERS  # bytes that may still surround the parts of the body

    def connection_made(self, transport: Any) -> None:
        """Begins to answer requests."""
        self._transport = transport
        transport.set_write_buffer_limits(0)  # what is written counts as read when the system has taken all of it
        self._written.set()
        # asyncio does this for its own sockets only; without it an answer waits 40 ms for an acknowledgement.
        with suppress(OSError):  # EINVAL on macOS, if the client has left already
            transport.get_extra_info("socket").setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self._connections.add(self)
        self._task = self._loop.create_task(self._serve())
        self._task.add_done_callback(self._end)

    def connection_lost(self, exc: Exception | None) -> None:
        """Cancels the request that nobody waits for any more."""
        self._written.set()
        self._wait_at_most(None)
        self._task.cancel()

    def data_received(self, data: bytes) -> None:
        """Keeps what was received until it is parsed."""
        self._received += data
        self._arrived.set()
        if len(self._received) > _AHEAD:
            self._transport.pause_reading()

    def eof_received(self) -> bool:
        """Closes the connection of a client that has left; one that stops in the middle of a request gets an error."""
        self._sends_no_more = True
        begun = self._http.their_state is h11.IDLE and bool(self._received or self._http.trailing_data[0])
        if stays := begun or self._http.their_state in (h11.SEND_BODY, h11.ERROR):
            self._arrived.set()
        return stays

    def pause_writing(self) -> None:
        """Holds the next part of the answer back."""
        self._written.clear()

    def resume_writing(self) -> None:
        """Lets the answer go on."""
        self._written.set()

    def finish(self) -> None:
        """Closes the connection, once the request that is being answered, or has just come, has its answer."""
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
                raise _refusal("there are too many connections", 503)
            while (scope := await self._next_request()) is not None and await self._answer(scope):
                self._received[:0] = self._http.trailing_data[0]
                self._http = _parser()
        except h11.RemoteProtocolError as error:
            await self._refuse(error)

    async def _next_request(self) -> "Scope | None":
        """Reads the head of the next request; `None` if none comes."""
        seconds, self._without_body = self._options.read_seconds, False
        try:
            self._wait_at_most(_IDLE if self._used else seconds)
            await self._receive_some()
            if self._used:
                self._wait_at_most(seconds)
            request = await self._event()
        except TimeoutError:
            if self._finishing or (self._used and not self._http.trailing_data[0]):
                return None
            raise _refusal(f"the headers have not come within {seconds:g} seconds", 408) from None
        finally:
            self._wait_at_most(None)
        assert isinstance(request, h11.Request)
        self._used, self._without_body = True, request.method == b"HEAD"
        target, lengths = _TARGET.fullmatch(request.target), [name for name, _ in request.headers if name in _LENGTHS]
        if request.method == b"CONNECT" or target is None or request.http_version not in (b"1.0", b"1.1"):
            raise _refusal("this is not a request of HTTP/1.1 to a server")
        if len(lengths) > 1:
            raise _refusal("the request has two lengths")
        if not lengths:
            self._http.next_event()  # its end
        path, query = target[1], target[2] or b""
        return {
            "type": "http", "asgi": {"version": "3.0", "spec_version": "2.3"}, "scheme": "http", "root_path": "",
            "http_version": request.http_version.decode(), "method": request.method.decode(),
            "path": unquote(path.decode()), "raw_path": path, "query_string": query, "headers": list(request.headers),
            "client": (self._transport.get_extra_info("peername") or ("-", 0))[:2],
        }  # fmt: skip

    async def _answer(self, scope: "Scope") -> bool:
        """Runs the application for a request; returns whether another request may follow."""
        self.busy, self._whole = True, False
        self._patience, self._spare = self._options.read_seconds, HEADERS
        try:
            await self._app(scope, self._receive, self._send)
        except Exception:
            _LOG.exception("the application failed")
        if self._transport.is_closing():
            return False
        if self._http.our_state is h11.SEND_RESPONSE:
            raise _refusal("the request failed; the server's log says why", 500)
        await self._drain()
        if self._http.their_state in (h11.SEND_BODY, h11.ERROR):
            await self._linger()
        self.busy = False
        return not self._finishing and self._http.our_state is self._http.their_state is h11.DONE

    async def _receive(self) -> "Message":
        """The next part of the body, as ASGI defines it; a `Problem` if the body is damaged or ends early."""
        if self._whole:
            await asyncio.Event().wait()  # until the client leaves, which cancels the request
        parts: list[bytes] = []
        if self._http.they_are_waiting_for_100_continue:
            self._write(h11.InformationalResponse(status_code=100, headers=[], reason=b"Continue"))
        try:
            while self._http.their_state is h11.SEND_BODY:
                event = await self._event() if not parts else self._http.next_event()
                if not isinstance(event, h11.Data):
                    break
                parts.append(event.data)
        except h11.RemoteProtocolError as error:
            raise Problem("invalid", _reason(error)) from None
        body = b"".join(parts)
        self._spare += 2 * len(body)
        self._whole = self._http.their_state is not h11.SEND_BODY
        if self._whole and self._sends_no_more:
            self._transport.close()
        return {"type": "http.request", "body": body, "more_body": not self._whole}

    async def _send(self, message: "Message") -> None:
        """Writes a part of the answer, when the client has read the part before."""
        await self._drain()
        if message["type"] == "http.response.start":
            self._skip_body()
            headers = [(b"date", _date(int(time.time()))), *message["headers"]]
            if self._finishing or self._http.their_state in (h11.SEND_BODY, h11.ERROR):
                headers.append((b"connection", b"close"))
            status = message["status"]
            self._head = h11.Response(status_code=status, headers=headers, reason=_PHRASES.get(status, b""))
            return
        events: list[h11.Event] = [] if self._head is None else [self._head]
        self._head = None
        if not self._without_body:
            events.append(h11.Data(data=message.get("body", b"")))
        if not message.get("more_body", False):
            events.append(h11.EndOfMessage())
        self._write(*events)

    def _write(self, *events: h11.Event) -> None:
        self._transport.write(b"".join([self._http.send(event) or b"" for event in events]))

    def _skip_body(self) -> None:
        """Reads past a body that has come, but was not asked for."""
        with suppress(h11.RemoteProtocolError):
            while self._http.their_state is h11.SEND_BODY and self._http.next_event() is not h11.NEED_DATA:
                pass

    async def _event(self) -> h11.Event | type[h11.NEED_DATA] | type[h11.PAUSED]:
        """The next part of a request; a `RemoteProtocolError` if it is damaged, ends early or is too large."""
        while (event := self._http.next_event()) is h11.NEED_DATA:
            await self._receive_some()
            if not self._received:
                raise _refusal("the request ends before it is complete")
            in_head = self._http.their_state is h11.IDLE
            size = _PIECE if in_head else _AHEAD
            piece = bytes(self._received[:size])
            del self._received[:size]
            if len(self._received) <= _AHEAD:
                self._transport.resume_reading()
            if in_head and not self._http.trailing_data[0]:
                piece = piece.lstrip(b"\r\n")  # empty lines before a request (RFC 9112, 2.2)
            if not in_head:
                self._spare -= len(piece)
            if self._spare < 0:
                raise _refusal("", 431)
            if piece:  # nothing would be the end
                self._http.receive_data(piece)
        return event

    async def _receive_some(self) -> None:
        """Waits until there are bytes to parse, or the client sends no more."""
        while not self._received and not self._sends_no_more:
            if self._late or (self._finishing and not self.busy):
                raise TimeoutError
            self._arrived.clear()
            await self._arrived.wait()

    def _wait_at_most(self, seconds: float | None) -> None:
        """Gives the client some seconds, after which `_receive_some` raises a TimeoutError; `None` for any time."""
        self._late = False
        if self._timer is not None:
            self._timer.cancel()
        self._timer = None if seconds is None else self._loop.call_later(seconds, self._expire)

    def _expire(self) -> None:
        self._late = True
        self._arrived.set()

    async def _drain(self) -> None:
        """Waits until the client has read what was written; the timeout covers the whole answer."""
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

    async def _refuse(self, error: h11.RemoteProtocolError) -> None:
        """Sends an error for a request that cannot be parsed, then closes the connection."""
        body = json.dumps({"error": _reason(error)}).encode()
        headers = [
            (b"content-type", b"application/json"), (b"content-length", b"%d" % len(body)),
            (b"cache-control", b"no-store"), (b"x-content-type-options", b"nosniff"),
        ]  # fmt: skip
        self.busy = self._finishing = True
        await self._send({"type": "http.response.start", "status": error.error_status_hint, "headers": headers})
        await self._send({"type": "http.response.body", "body": body})
        await self._linger()

    async def _linger(self) -> None:
        """Reads on for a moment: closing a connection with unread bytes would take the answer with it."""
        if self._transport.can_write_eof():
            with suppress(OSError):  # ENOTCONN, if the client has left already
                self._transport.write_eof()
        self._wait_at_most(_LINGER)
        with suppress(TimeoutError):
            while not self._sends_no_more:
                self._received.clear()
                self._transport.resume_reading()
                await self._receive_some()


def _parser() -> h11.Connection:
    """A parser of one request; what follows the request is for the next parser."""
    return h11.Connection(h11.SERVER, max_incomplete_event_size=HEADERS)


def _refusal(why: str, status: int = 400) -> h11.RemoteProtocolError:
    return h11.RemoteProtocolError(why, error_status_hint=status)


def _reason(error: h11.RemoteProtocolError) -> str:
    if error.error_status_hint == 431:
        return f"the headers, or the sizes of chunks, have more than {HEADERS:,} bytes"
    return str(error)


@functools.lru_cache(1)
def _date(seconds: int) -> bytes:
    return formatdate(seconds, usegmt=True).encode()
