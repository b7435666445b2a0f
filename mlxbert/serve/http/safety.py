"""Who may ask, and how much: what stands between the network and the routes.

A page from anywhere can make a browser send requests to this machine. One that names another host than ours, or comes
from another origin, is refused before it is read; so a name of the web that is made to lead here (DNS rebinding) does
not help.
"""

import asyncio
import hmac
import ipaddress
import os
import re
from collections.abc import Sequence
from dataclasses import dataclass, field
from http import HTTPStatus
from typing import TYPE_CHECKING

from starlette.datastructures import Headers, MutableHeaders
from starlette.requests import ClientDisconnect
from starlette.responses import Response

from mlxbert.errors import ArgumentError
from mlxbert.serve.http.app import respond
from mlxbert.serve.http.origins import compile_origins
from mlxbert.serve.http.pages import FILES
from mlxbert.serve.options import ServeOptions
from mlxbert.serve.protocol import Problem

if TYPE_CHECKING:
    from starlette.types import ASGIApp, Message, Receive, Scope, Send

VARIABLE = "MLXBERT_API_KEY"
PUBLIC = frozenset({*FILES, "/health"})  # may be seen without the key: they hold nothing
_POLICY = "default-src 'none'; frame-ancestors 'none'"  # the page has its own
_AT_ONCE = 16  # times the largest body: what all bodies that are being received take together
_SHORTEST = 8  # characters of a key
_HEADER_NAMES = re.compile(r"[\w, -]{0,2000}", re.ASCII)  # names of headers


@dataclass(frozen=True)
class AccessPolicy:
    """Whom requests may name and come from.

    Attributes:
        options: What the server allows.
        port: The port that it listens on.
        key: What clients need; never shown.
    """

    options: ServeOptions
    port: int
    key: str | None = field(default=None, repr=False)
    _origins: re.Pattern[str] = field(init=False, repr=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "_origins", compile_origins(self.options.allow_origin or ()))

    def check_host(self, host: str) -> None:
        """Refuses a request that is for another host."""
        name, _, port = host.rpartition(":") if re.search(r":\d*$", host) else (host, "", "")
        name = name.lower().removesuffix(".")
        others = [one.lower() for one in self.options.allow_host or ()]
        if name in others or host.lower() in others:
            return
        if port in ("", str(self.port)) and (_is_local(name) or self._is_ours(name)):
            return
        raise Problem(
            "misdirected",
            f"Host is {host!r:.100}, which is not this server",
            hint="--allow-host of the server adds names",
        )

    def _is_ours(self, name: str) -> bool:
        """Whether a name is the address that the server has; any address where it has several."""
        if is_loopback(self.options.host):
            return False
        return name.strip("[]") == self.options.host.lower() or _address(name) is not None

    def foreign(self, origin: str | None, host: str) -> str | None:
        """The origin of a page from elsewhere that may ask; `None` for a page of ours, and where there is none."""
        if origin is None or origin in (f"http://{host}", f"https://{host}"):
            return None
        if not self._origins.fullmatch(origin):
            raise Problem(
                "forbidden",
                f"Origin is {origin!r:.100}, which may not ask",
                hint="--allow-origin of the server adds origins",
            )
        return origin

    def check_key(self, headers: Headers) -> None:
        """Refuses a request without the key."""
        if self.key is None:
            return
        kind, _, token = headers.get("authorization", "").partition(" ")
        given = [headers.get("x-api-key"), headers.get("api-key"), token.strip() if kind.lower() == "bearer" else None]
        wanted = self.key.encode()
        if not any([hmac.compare_digest(one.encode(), wanted) for one in given if one]):  # all, in any case
            what = "the key is wrong" if any(given) else "a key is needed"
            raise Problem("unauthorized", what, hint="Authorization: Bearer KEY")


def is_loopback(host: str) -> bool:
    """Whether an address can be reached from this machine alone."""
    return _is_local(f"[{host}]" if ":" in host else host.lower())


def _is_local(name: str) -> bool:
    address = _address(name)
    return name == "localhost" or (address is not None and address.is_loopback)


def _address(name: str) -> ipaddress.IPv4Address | ipaddress.IPv6Address | None:
    """The address that a name of a `Host` is, if it is one."""
    try:
        return ipaddress.IPv6Address(name[1:-1]) if name[:1] + name[-1:] == "[]" else ipaddress.IPv4Address(name)
    except ValueError:
        return None


def read_key(options: ServeOptions) -> str | None:
    """The key that clients need, from a file or the environment."""
    file, key, where = options.api_key_file, os.environ.get(VARIABLE, "").strip() or None, VARIABLE
    if file is not None:
        try:
            key, where = file.read_text(encoding="utf-8").strip(), str(file)
        except (OSError, UnicodeDecodeError) as problem:
            why = problem.strerror if isinstance(problem, OSError) else "it is not UTF-8"
            raise ArgumentError(f"api_key_file is {file}, which cannot be read: {why}") from None
    if key is None and not is_loopback(options.host):
        raise ArgumentError(
            f"host is {options.host!r:.100}, which other machines can reach, and there is no key",
            hint=f"api_key_file= names a file with one; or set {VARIABLE}",
        )
    if key is not None and not re.fullmatch(rf"[!-~]{{{_SHORTEST},1000}}", key):
        raise ArgumentError(f"the key in {where} cannot be used, expected {_SHORTEST} or more ASCII characters")
    return key


class Guard:
    """Refuses what may not come in, and puts headers on what goes out.

    Args:
        app: The application.
        policy: Whom requests may name and come from.
    """

    def __init__(self, app: "ASGIApp", policy: AccessPolicy) -> None:
        self._app, self._policy, self._held = app, policy, 0

    async def __call__(self, scope: "Scope", receive: "Receive", send: "Send") -> None:
        """Answers a request."""
        origin: str | None = None
        started = False

        async def sending(message: "Message") -> None:
            nonlocal started
            if message["type"] == "http.response.start":
                started = True
                _secure(MutableHeaders(raw=message["headers"]), origin)
            await send(message)

        body = _Body(self, receive, self._policy.options)
        try:
            headers = Headers(scope=scope)
            host = _only(headers, "host") or ""
            self._policy.check_host(host)
            origin = self._policy.foreign(_only(headers, "origin"), host)
            if origin is not None and scope["method"] == "OPTIONS":
                await _preflight(headers)(scope, receive, sending)
                return
            if not (scope["method"] in ("GET", "HEAD") and scope["path"] in PUBLIC):
                self._policy.check_key(headers)
            body.check_length(headers)
            await self._app(scope, body.receive, sending)
        except ClientDisconnect:
            pass
        except Exception as problem:
            response = respond(scope["path"], problem)
            if not started:
                await response(scope, receive, sending)
        finally:
            self._held -= body.size

    def hold(self, size: int) -> None:
        """Makes room for a part of a body."""
        self._held += size
        if self._held > _AT_ONCE * self._policy.options.max_body * 1e6:
            raise Problem("overloaded", "too much is being received", hint="ask again in a moment")


class _Body:
    """What a request sends, within the limits of size and time."""

    def __init__(self, guard: Guard, receive: "Receive", options: ServeOptions) -> None:
        self._guard, self._receive, self.size = guard, receive, 0
        self._most, self._seconds = int(options.max_body * 1e6), options.read_seconds
        self._until = asyncio.get_running_loop().time() + options.read_seconds
        self._whole = False

    def check_length(self, headers: Headers) -> None:
        """Refuses a body by the size that it is said to have."""
        length = headers.get("content-length", "0")
        if length.isdecimal() and int(length[:20]) > self._most:
            raise self._too_large()

    async def receive(self) -> "Message":
        """The next part."""
        if self._whole:
            return await self._receive()
        try:
            async with asyncio.timeout_at(self._until):
                message = await self._receive()
        except TimeoutError:
            raise Problem("timeout", f"the body has not come within {self._seconds:g} seconds") from None
        size = len(message.get("body", b""))
        self.size += size
        self._guard.hold(size)
        if self.size > self._most:
            raise self._too_large()
        self._whole = not message.get("more_body", False)
        return message

    def _too_large(self) -> Problem:
        return Problem("too_large", f"the body has more than {self._most:,} bytes")


def _only(headers: Headers, name: str) -> str | None:
    """The value of a header that nobody sends twice."""
    values: Sequence[str] = headers.getlist(name)
    if len(values) > 1:
        raise Problem("invalid", f"there are {len(values)} headers {name}, expected one")
    return values[0] if values else None


def _preflight(headers: Headers) -> Response:
    """What a browser is told that asks on behalf of a page from elsewhere, which may ask."""
    asked = headers.get("access-control-request-headers", "")
    allowed = {
        "Access-Control-Allow-Methods": "GET, POST",
        "Access-Control-Allow-Headers": asked if _HEADER_NAMES.fullmatch(asked) else "authorization, content-type",
        "Access-Control-Max-Age": "600",
    }
    return Response(status_code=HTTPStatus.NO_CONTENT, headers=allowed)


def _secure(headers: MutableHeaders, origin: str | None) -> None:
    """Adds the headers that all answers have."""
    headers.setdefault("Content-Security-Policy", _POLICY)
    headers.setdefault("Cache-Control", "no-store")
    headers["X-Content-Type-Options"] = "nosniff"
    headers["Referrer-Policy"] = "no-referrer"
    headers["Cross-Origin-Resource-Policy"] = "same-origin"
    if origin is not None:
        headers["Access-Control-Allow-Origin"] = origin
        headers["Access-Control-Expose-Headers"] = "X-Truncated-Texts, X-Request-Id, Retry-After"
        headers["Vary"] = "Origin"
