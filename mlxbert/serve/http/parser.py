"""Parses the bytes of a connection into requests of ASGI.

httptools (llhttp, the parser of Node.js) holds the grammar of HTTP/1.1. The rules that llhttp leaves to a server are
here: offers of other protocols are ignored (RFC 9110, 7.8), a request has one length, trailers are not headers, and the
bytes of a head, and around the parts of a body, have a limit.
"""

import re
from collections import deque
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, NoReturn
from urllib.parse import unquote

import httptools

if TYPE_CHECKING:
    from starlette.types import Scope

_HEADERS = 65_536  # bytes of a head; and of what surrounds the parts of a body, beyond the size of the parts
_TOO_LARGE = f"the headers, or the sizes of chunks, have more than {_HEADERS:,} bytes"
_TARGET = re.compile(rb"(?:(?i:https?)://[^/?#]*)?(/[^?#\x80-\xff]*)(?:\?([^#]*))?(?:#.*)?")


class Refusal(Exception):
    """Why a connection ends with an error of HTTP.

    Args:
        why: The message for the client.
        status: The status of the answer.
    """

    def __init__(self, why: str, status: int = 400) -> None:
        super().__init__(why)
        self.status = status


@dataclass(eq=False, slots=True)
class HttpRequest:
    """A request whose head is parsed.

    Attributes:
        scope: The head, as ASGI defines it.
        persistent: Whether another request may follow on the connection.
        expects: Whether the client waits for the status 100 before it sends the body.
        body: The bytes of the body that are parsed, and that the application has not asked for.
        complete: Whether all of the body is parsed.
        taken: Whether the application has all of the body.
    """

    scope: "Scope"
    persistent: bool
    expects: bool
    body: bytearray = field(default_factory=bytearray)
    complete: bool = False
    taken: bool = False


class RequestParser:
    """Parses what one client sends.

    Args:
        client: The address of the client.

    Attributes:
        requests: The requests whose heads are parsed, in the order of their arrival; only the last may be incomplete.
        error: Why the bytes after these requests, or the body of the last request, cannot be parsed.
        begun: Whether a request is parsed in part.
    """

    def __init__(self, client: tuple[str, int]) -> None:
        self.requests: deque[HttpRequest] = deque()
        self.error: Refusal | None = None
        self.begun = False
        self._client, self._parser, self._spare = client, httptools.HttpRequestParser(self), _HEADERS

    def feed(self, data: bytes) -> None:
        """Parses bytes; at most a few thousand, since the limits count them as one."""
        if self.error is not None:
            return
        self._spare -= len(data)
        try:
            while data:
                data = self._feed(data)
        except httptools.HttpParserError as error:
            self.error = self.error or Refusal(f"this is not a request of HTTP/1.1: {error}")
        if self._spare < 0:
            self.error = Refusal(_TOO_LARGE, 431)

    def _feed(self, data: bytes) -> bytes:
        """Parses bytes; returns the bytes to parse next.

        llhttp takes the bytes after the head of a request with an offer of another protocol for that protocol. So the
        head is parsed again without the offer.
        """
        try:
            self._parser.feed_data(data)
            return b""
        except httptools.HttpParserUpgrade as offer:
            method, version = self._parser.get_method(), self._parser.get_http_version().encode()
            headers = [b"%b: %b" % header for header in self._headers if header[0] != b"upgrade"]
            head = b"\r\n".join((b"%b %b HTTP/%b" % (method, self._target, version), *headers, b"", b""))
            self._parser = httptools.HttpRequestParser(self)  # the other parser may take the connection for closed
            return head + data[offer.args[0] :]

    def on_message_begin(self) -> None:
        """A request begins."""
        self.begun, self._spare = True, _HEADERS
        self._target, self._headers = b"", list[tuple[bytes, bytes]]()

    def on_url(self, part: bytes) -> None:
        """A part of the target has come."""
        self._target += part

    def on_header(self, name: bytes, value: bytes) -> None:
        """A header has come."""
        self._headers.append((name.lower(), value))

    def on_headers_complete(self) -> None:
        """The head has come; it will be parsed again if it offers another protocol."""
        parser, headers = self._parser, self._headers
        method, version, target = parser.get_method(), parser.get_http_version(), _TARGET.fullmatch(self._target)
        if method == b"CONNECT" or target is None or version not in ("1.0", "1.1"):
            self._refuse("this is not a request of HTTP/1.1 to a server")
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
        self._headers = []  # of trailers, which nobody reads

    def on_body(self, part: bytes) -> None:
        """A part of the body has come."""
        self._spare += 2 * len(part)
        self._request.body += part

    def on_message_complete(self) -> None:
        """All of the request has come."""
        if not self._parser.should_upgrade():
            self.begun, self._request.complete = False, True

    def _refuse(self, why: str, status: int = 400) -> NoReturn:
        self.error = Refusal(why, status)
        raise self.error
