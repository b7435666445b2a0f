"""Parses the bytes of a connection into ASGI requests.

httptools (llhttp, the parser of Node.js) implements the grammar of HTTP/1.1. This module adds the rules that llhttp
leaves to a server: upgrades to other protocols are ignored (RFC 9110, 7.8), `chunked` is the only transfer coding,
trailers do not become headers, and the bytes of a head and the bytes around the chunks of a body are limited.
"""

import re
from collections import deque
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, NoReturn
from urllib.parse import unquote

import httptools

if TYPE_CHECKING:
    from starlette.types import Scope

_MAX_HEADERS = 65_536  # bytes of a head; and of the framing of a chunked body, beyond the size of the chunks
_TOO_LARGE = f"the headers or the chunk sizes of the body take more than {_MAX_HEADERS:,} bytes"
_TARGET = re.compile(rb"(?:(?i:https?)://[^/?#]*)?(/[^?#\x80-\xff]*)(?:\?([^#]*))?(?:#.*)?")


class Refusal(Exception):
    """An HTTP error that ends a connection.

    Args:
        why: The message for the client.
        status: The HTTP status of the answer.
    """

    def __init__(self, why: str, status: int = 400) -> None:
        super().__init__(why)
        self.status = status


@dataclass(eq=False, slots=True)
class HttpRequest:
    """A request whose head is parsed."""

    scope: "Scope"  # the head, as ASGI defines it
    persistent: bool  # whether another request may follow on the connection
    expects: bool  # whether the client waits for the status 100 before it sends the body
    # The parsed bytes of the body that the application has not read yet.
    body: bytearray = field(default_factory=bytearray)
    complete: bool = False  # whether the whole body is parsed
    taken: bool = False  # whether the application has read the whole body


class RequestParser:
    """Parses the requests of one client.

    Args:
        client: The address of the client.

    Attributes:
        requests: The requests whose heads are parsed, in the order of arrival; only the last request may be incomplete.
        error: The error in the bytes that follow these requests, or in the body of the last one.
        begun: Whether a request is partly parsed.
    """

    def __init__(self, client: tuple[str, int]) -> None:
        self.requests: deque[HttpRequest] = deque()
        self.error: Refusal | None = None
        self.begun = False
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
            self.error = self.error or Refusal(f"this is not an HTTP/1.1 request ({error})")
        if self._spare < 0:
            self.error = Refusal(_TOO_LARGE, 431)

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
        """Starts a request."""
        self.begun, self._spare = True, _MAX_HEADERS
        self._target, self._headers = b"", list[tuple[bytes, bytes]]()

    def on_url(self, part: bytes) -> None:
        """Adds a part of the target."""
        self._target += part

    def on_header(self, name: bytes, value: bytes) -> None:
        """Adds a header."""
        self._headers.append((name.lower(), value))

    def on_headers_complete(self) -> None:
        """Checks the head and queues the request. A head that asks for an upgrade is parsed again instead."""
        parser, headers = self._parser, self._headers
        method, version, target = parser.get_method(), parser.get_http_version(), _TARGET.fullmatch(self._target)
        if method == b"CONNECT" or target is None or version not in ("1.0", "1.1"):
            self._refuse("this is not an HTTP/1.1 request to a server")
        if [value.lower() for name, value in headers if name == b"transfer-encoding"] not in ([], [b"chunked"]):
            self._refuse("Transfer-Encoding is not chunked", 501)
        if self._spare < 0:
            self._refuse(_TOO_LARGE, 431)
        if parser.should_upgrade():
            return
        path, query = target[1], target[2] or b""
        scope: Scope = {
            "type": "http", "asgi": {"version": "3.0", "spec_version": "2.3"}, "scheme": "http", "root_path": "",
            "http_version": version, "method": method.decode(), "path": unquote(path.decode()), "raw_path": path,
            "query_string": query, "headers": headers, "client": self._client,
        }  # fmt: skip
        expects = any(name == b"expect" and value.lower() == b"100-continue" for name, value in headers)
        self._request = HttpRequest(scope, version == "1.1" and parser.should_keep_alive(), expects)
        self.requests.append(self._request)
        self._headers = []  # for trailers, which are ignored

    def on_body(self, part: bytes) -> None:
        """Adds a part of the body."""
        self._spare += 2 * len(part)
        self._request.body += part

    def on_message_complete(self) -> None:
        """Marks the request as complete."""
        if not self._parser.should_upgrade():
            self.begun, self._request.complete = False, True

    def _refuse(self, why: str, status: int = 400) -> NoReturn:
        self.error = Refusal(why, status)
        raise self.error
