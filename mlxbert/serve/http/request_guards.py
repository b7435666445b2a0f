"""Checks every request before it reaches a route: host, origin, API key, and the size and duration of its body.

Any web page can make a browser send requests to this machine. A request with a foreign `Host` or `Origin` is rejected
before its body is read. A page therefore gains nothing from a public name that points at this machine (DNS rebinding).

Starlette's middleware is not enough: that for hosts compares neither ports nor addresses, that for origins answers
requests of foreign pages, and that for bodies limits neither their time nor all of them together.
"""

import asyncio
import hmac
import ipaddress
import os
import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from http import HTTPStatus

from starlette.datastructures import Headers, MutableHeaders
from starlette.responses import Response
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from mlxbert.errors import ArgumentError
from mlxbert.serve.engine.serving_options import ServeOptions
from mlxbert.serve.http.app import respond
from mlxbert.serve.http.pages import FILES
from mlxbert.serve.protocol import RequestError

_DEFAULT_PORTS = {"http": "80", "https": "443"}
_ORIGIN = re.compile(
    r"([a-z][a-z0-9+.-]*)://([^/?#@:\s*\[\]]+|\[[0-9a-f:.]+\]|\*|\*\.[^/?#@:\s*\[\]]+)(?::([1-9]\d{0,4}|\*))?", re.A
)
_EXPECTED = (
    "an origin such as http://localhost:3000, http://localhost:*, https://*.example.org, vscode-webview://* or null"
)


def compile_origins(origins: Iterable[str]) -> re.Pattern[str]:
    """Compiles origins to a pattern that matches them as browsers send them.

    `*` stands for any port or all subdomains; in schemes other than http and https, it can also stand for any host.
    `null` is the origin of files, and of frames without an origin.
    """
    return re.compile("|".join(f"(?:{_pattern(origin)})" for origin in origins) or r"(?!)")


def _pattern(origin: str) -> str:
    if origin == "null":
        return origin
    match = _ORIGIN.fullmatch(origin)
    scheme, host, port = match.groups() if match else ("", "", None)
    invalid = port not in (None, "*") and int(port) > 65_535
    if scheme in _DEFAULT_PORTS:
        invalid |= host == "*" or host != _browser_form(host) or port == _DEFAULT_PORTS[scheme]
    if not match or invalid:
        raise ArgumentError(f"`allow_origin` is {origin!r:.100}, expected {_EXPECTED}", hint=_hint(origin))
    names = {"*": r"[^/:\s]+"}.get(host, re.escape(host).replace(r"\*", r"[^/:\s]+"))
    ports = {None: "", "*": r"(?::\d+)?"}.get(port, f":{port}")
    return f"{re.escape(scheme)}://{names}{ports}"


def _browser_form(host: str) -> str:
    try:
        return host.lower().encode("ascii" if host.isascii() else "idna").decode()
    except UnicodeError:
        return host


def _hint(origin: str) -> str | None:
    """Suggests a valid origin if it is clear which one was meant."""
    scheme, _, rest = origin.lower().partition("://")
    place = re.split(r"[/?#]", rest)[0].rpartition("@")[2]
    if origin == "*" or (scheme in _DEFAULT_PORTS and re.fullmatch(r"\*(:.*)?", place)):
        return "list the allowed origins instead of allowing every website"
    if scheme == "file":
        return "use null, which is the origin of pages in local files"
    host, colon, port = place.partition(":") if not place.startswith("[") else (place, "", "")
    port = "" if port == _DEFAULT_PORTS.get(scheme) else port
    better = f"{scheme}://{_browser_form(host)}{colon if port else ''}{port}"
    return f"use {better}, which is what browsers send" if better != origin and _ORIGIN.fullmatch(better) else None


VARIABLE = "MLXBERT_API_KEY"
PUBLIC = frozenset({*FILES, "/health"})  # paths without secrets, which need no key
_POLICY = "default-src 'none'; frame-ancestors 'none'"  # except for the page, which has its own policy
_MAX_BODIES = 16  # the memory for all bodies that are being received, as a multiple of the maximum size of one
_MIN_KEY = 8  # characters of a key
_HEADER_NAMES = re.compile(r"[\w, -]{0,2000}", re.ASCII)  # names of headers


@dataclass(frozen=True)
class AccessPolicy:
    """The rules for the host, origin and key of a request."""

    options: ServeOptions  # the options of the server
    port: int  # the port that the server listens on
    key: str | None = field(default=None, repr=False)  # the API key; left out of the `repr`
    _origins: re.Pattern[str] = field(init=False, repr=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "_origins", compile_origins(self.options.allow_origin or ()))

    def check_host(self, host: str) -> None:
        """Raises RequestError if the `Host` of a request is not this server."""
        name, _, port = host.rpartition(":") if re.search(r":\d*$", host) else (host, "", "")
        name = name.lower().removesuffix(".")
        allowed = [other.lower() for other in self.options.allow_host or ()]
        if name in allowed or host.lower() in allowed:
            return
        if port in ("", str(self.port)) and (_is_local(name) or self._is_ours(name)):
            return
        raise RequestError(
            "misdirected",
            f"Host is {host!r:.100}, which is not a name of this server",
            hint="start the server with --allow-host to accept more names",
        )

    def _is_ours(self, name: str) -> bool:
        """Whether a name is an address of this server. A server that listens on all addresses accepts any address."""
        if is_loopback(self.options.host):
            return False
        return name.strip("[]") == self.options.host.lower() or _address(name) is not None

    def foreign(self, origin: str | None, host: str) -> str | None:
        """Returns the origin of a request if it is an allowed origin other than this server.

        Returns `None` for a request from this server's page or without an origin; raises RequestError for any other
        origin.
        """
        if origin is None or origin in (f"http://{host}", f"https://{host}"):
            return None
        if not self._origins.fullmatch(origin):
            raise RequestError(
                "forbidden",
                f"Origin is {origin!r:.100}, which is not allowed",
                hint="start the server with --allow-origin to allow more origins",
            )
        return origin

    def check_key(self, headers: Headers) -> None:
        """Raises RequestError if a request does not have the key."""
        if self.key is None:
            return
        kind, _, token = headers.get("authorization", "").partition(" ")
        keys = [headers.get("x-api-key"), headers.get("api-key"), token.strip() if kind.lower() == "bearer" else None]
        expected = self.key.encode()
        if not any([hmac.compare_digest(key.encode(), expected) for key in keys if key]):  # a list: compares every key
            what = "the API key is wrong" if any(keys) else "an API key is needed"
            raise RequestError("unauthorized", what, hint="send the header Authorization: Bearer KEY")


def is_loopback(host: str) -> bool:
    """Whether only this machine can reach an address."""
    return _is_local(f"[{host}]" if ":" in host else host.lower())


def _is_local(name: str) -> bool:
    address = _address(name)
    return name == "localhost" or (address is not None and address.is_loopback)


def _address(name: str) -> ipaddress.IPv4Address | ipaddress.IPv6Address | None:
    """Parses the name in a `Host` header as an IP address; `None` if it is not one."""
    try:
        return ipaddress.IPv6Address(name[1:-1]) if name[:1] + name[-1:] == "[]" else ipaddress.IPv4Address(name)
    except ValueError:
        return None


def read_key(options: ServeOptions) -> str | None:
    """Reads the API key from a file or the environment."""
    file, key, where = options.api_key_file, os.environ.get(VARIABLE, "").strip() or None, VARIABLE
    if file is not None:
        try:
            key, where = file.read_text(encoding="utf-8").strip(), str(file)
        except (OSError, UnicodeDecodeError) as problem:
            why = problem.strerror if isinstance(problem, OSError) else "the file is not UTF-8"
            raise ArgumentError(f"`api_key_file` is {file}, which cannot be read ({why})") from None
    if key is None and not is_loopback(options.host):
        raise ArgumentError(
            f"`host` is {options.host!r:.100}, which other machines can reach, so an API key is needed",
            hint=f"give a file with the key as `api_key_file=`, or set {VARIABLE} to the key",
        )
    if key is not None and not re.fullmatch(rf"[!-~]{{{_MIN_KEY},1000}}", key):
        raise ArgumentError(f"the key in {where} is invalid, expected {_MIN_KEY} or more visible ASCII characters")
    return key


class Guard:
    """Rejects requests that break the policy, and adds security headers to all answers."""

    def __init__(self, app: ASGIApp, policy: AccessPolicy) -> None:
        self._app, self._policy, self._held = app, policy, 0

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        origin: str | None = None
        started = False

        async def sending(message: Message) -> None:
            nonlocal started
            if message["type"] == "http.response.start":
                started = True
                _secure(MutableHeaders(raw=message["headers"]), origin)
            await send(message)

        body = _Body(self, receive, self._policy.options)
        try:
            headers = Headers(scope=scope)
            host = _single(headers, "host") or ""
            self._policy.check_host(host)
            origin = self._policy.foreign(_single(headers, "origin"), host)
            if origin is not None and scope["method"] == "OPTIONS":
                await _preflight(headers)(scope, receive, sending)
                return
            if not (scope["method"] in ("GET", "HEAD") and scope["path"] in PUBLIC):
                self._policy.check_key(headers)
            body.check_length(headers)
            await self._app(scope, body.receive, sending)
        except Exception as problem:
            response = respond(scope["path"], problem)
            if not started:
                await response(scope, receive, sending)
        finally:
            self._held -= body.size

    def hold(self, size: int) -> None:
        """Counts a part of a body; raises RequestError if the bodies of all current requests are too large in total."""
        self._held += size
        if self._held > _MAX_BODIES * self._policy.options.max_body * 1e6:
            raise RequestError("overloaded", "the server is receiving too much data", hint="try again in a moment")


class _Body:
    """The body of a request, with limits of size and time."""

    def __init__(self, guard: Guard, receive: Receive, options: ServeOptions) -> None:
        self._guard, self._receive, self.size = guard, receive, 0
        self._max_size, self._seconds = int(options.max_body * 1e6), options.read_seconds
        self._deadline = asyncio.get_running_loop().time() + options.read_seconds
        self._complete = False

    def check_length(self, headers: Headers) -> None:
        """Raises RequestError if the announced size of the body is too large."""
        length = headers.get("content-length", "0")
        if length.isdecimal() and int(length[:20]) > self._max_size:
            raise self._too_large()

    async def receive(self) -> Message:
        if self._complete:
            return await self._receive()
        try:
            async with asyncio.timeout_at(self._deadline):
                message = await self._receive()
        except TimeoutError:
            raise RequestError("timeout", f"the body did not arrive within {self._seconds:g} seconds") from None
        size = len(message.get("body", b""))
        self.size += size
        self._guard.hold(size)
        if self.size > self._max_size:
            raise self._too_large()
        self._complete = not message.get("more_body", False)
        return message

    def _too_large(self) -> RequestError:
        return RequestError("too_large", f"the body has more than {self._max_size:,} bytes")


def _single(headers: Headers, name: str) -> str | None:
    """Returns the value of a header; raises RequestError if the request repeats it."""
    values: Sequence[str] = headers.getlist(name)
    if len(values) > 1:
        raise RequestError("invalid", f"the request has {len(values)} {name} headers, expected one")
    return values[0] if values else None


def _preflight(headers: Headers) -> Response:
    """Answers the preflight request that a browser sends for an allowed page of another server."""
    names = headers.get("access-control-request-headers", "")
    allowed = {
        "Access-Control-Allow-Methods": "GET, POST",
        "Access-Control-Allow-Headers": names if _HEADER_NAMES.fullmatch(names) else "authorization, content-type",
        "Access-Control-Max-Age": "600",
    }
    return Response(status_code=HTTPStatus.NO_CONTENT, headers=allowed)


def _secure(headers: MutableHeaders, origin: str | None) -> None:
    headers.setdefault("Content-Security-Policy", _POLICY)
    headers.setdefault("Cache-Control", "no-store")
    headers["X-Content-Type-Options"] = "nosniff"
    headers["Referrer-Policy"] = "no-referrer"
    headers["Cross-Origin-Resource-Policy"] = "same-origin"
    if origin is not None:
        headers["Access-Control-Allow-Origin"] = origin
        headers["Access-Control-Expose-Headers"] = "X-Truncated-Texts, X-Request-Id, Retry-After"
        headers["Vary"] = "Origin"
