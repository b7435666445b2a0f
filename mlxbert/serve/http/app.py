"""The server as an ASGI application: the routes of all protocols, and how bodies are read and errors handled."""

import asyncio
import functools
import itertools
import logging
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import msgspec
from starlette.applications import Starlette
from starlette.middleware import Middleware
from starlette.requests import Request
from starlette.responses import Response, StreamingResponse
from starlette.routing import Route as Address, compile_path
from starlette.types import ASGIApp, Receive, Scope, Send

from mlxbert.errors import MlxbertError
from mlxbert.serve.access_log import USAGE, RequestUsage
from mlxbert.serve.engine.result_memory import BUDGET, Budget, ResultMemory
from mlxbert.serve.http import metrics
from mlxbert.serve.http.openapi import describe
from mlxbert.serve.http.pages import page_routes
from mlxbert.serve.json_bodies import BodyReader, pieces
from mlxbert.serve.protocol import Protocol, Reply, RequestError, Route, as_problem, plain_shape
from mlxbert.serve.protocols import cohere_and_jina, huggingface, mlxbert_api, ollama, openai, tei
from mlxbert.serve.service import Service

_LOG = logging.getLogger("mlxbert.serve")
_DEFAULT = Protocol("server", (), plain_shape)
_HEADERS: Mapping[str, Mapping[str, str]] = {
    "overloaded": {"Retry-After": "1"},
    "unavailable": {"Retry-After": "1"},
    "unauthorized": {"WWW-Authenticate": "Bearer"},
}
_FIRST_PIECES = 16  # pieces of JSON that are sent together; a complete body gets a Content-Length
_FEW_TOKENS = 128  # tokens whose results are encoded in no time
_TRUNCATE = "for clients that cannot send this, use `mlxbert serve --truncate`"
_RELOAD = "restart the server, or start it with --reload-changed"
_HOW = "send JSON with the header Content-Type: application/json"
_encode = msgspec.json.Encoder().encode


class _Budgets:
    """Gives each request a memory budget until its answer is sent."""

    def __init__(self, app: ASGIApp, room: ResultMemory) -> None:
        self._app, self._room = app, room

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        budget = Budget(self._room)
        token = BUDGET.set(budget)
        try:
            await self._app(scope, receive, send)
        finally:
            BUDGET.reset(token)
            budget.leave()


@functools.cache
def _description() -> bytes:
    return _encode(describe(PROTOCOLS))


async def _describe(service: Service, path: Mapping[str, str]) -> Reply:
    return Reply(_description())


_ABOUT = Protocol("about", (Route("GET", "/openapi.json", _describe, "This description", reply=dict),), plain_shape)
PROTOCOLS: tuple[Protocol, ...] = (
    mlxbert_api.PROTOCOL, ollama.PROTOCOL, huggingface.PROTOCOL, openai.PROTOCOL, tei.PROTOCOL,
    cohere_and_jina.PROTOCOL, metrics.PROTOCOL, _ABOUT,
)  # fmt: skip
_PATTERNS = [(compile_path(route.path)[0], protocol) for protocol in PROTOCOLS for route in protocol.routes]


def make_app(service: Service) -> Starlette:
    """Makes the application of a service."""
    routes = [_address(service, protocol, route) for protocol in PROTOCOLS for route in protocol.routes]
    routes = [*page_routes(), *routes]
    no_method = functools.partial(_no_method, routes)
    app = Starlette(
        routes=routes,
        middleware=[Middleware(_Budgets, service.room)],
        exception_handlers={404: _no_route, 405: no_method},
    )
    app.router.redirect_slashes = False
    return app


def respond(path: str, error: Exception) -> Response:
    """Makes the response for an error, in the format of the protocol that a path belongs to."""
    by_route = (protocol for pattern, protocol in _PATTERNS if pattern.fullmatch(path))
    by_prefix = (protocol for protocol in PROTOCOLS if protocol.prefix is not None and path.startswith(protocol.prefix))
    return _error(next(by_route, None) or next(by_prefix, _DEFAULT), error)


def _no_route(request: Request, _: Exception) -> Response:
    return respond(request.url.path, RequestError("not_found", "no route has this path"))


def _no_method(routes: Sequence[Address], request: Request, _: Exception) -> Response:
    path = request.url.path
    response = respond(path, RequestError("method", f"this route does not accept {request.method}"))
    allowed = {method for route in routes if route.path_regex.fullmatch(path) for method in route.methods or ()}
    response.headers["Allow"] = ", ".join(sorted(allowed))  # Starlette names only the methods of the first route
    return response


def _address(service: Service, protocol: Protocol, route: Route) -> Address:
    reader = None if route.body is None else BodyReader(route.body, service.options.max_texts)

    async def endpoint(request: Request) -> Response:
        try:
            if not service.ready:
                USAGE.get(RequestUsage()).logged = route.method != "GET"  # scripts ask until it is ready
                raise RequestError("unavailable", "the server is not ready")
            body: Any = request.path_params
            if reader is not None:
                body = await reader.read(await _body(request))
                for name, value in request.path_params.items():  # path parameters are fields of the body
                    setattr(body, name, value)
            return await _response(await route.answer(service, body))
        except Exception as problem:
            return _error(protocol, problem, getattr(route.body, "shorten", None))

    return Address(route.path, endpoint, methods=[route.method], name=f"{protocol.name} {route.method} {route.path}")


async def _body(request: Request) -> bytes:
    """Reads the body of a request; raises RequestError if its type is not JSON."""
    kind = request.headers.get("content-type", "")
    if kind.partition(";")[0].strip().lower() != "application/json":
        raise RequestError("media_type", f"Content-Type is {kind!r:.60}, expected application/json", hint=_HOW)
    return await request.body()


async def _response(reply: Reply) -> Response:
    """Makes the response for a reply. A large reply is encoded on other threads, so that no other request waits."""
    headers = {**reply.headers, **({"X-Truncated-Texts": str(reply.truncated)} if reply.truncated else {})}
    first, rest = await asyncio.to_thread(_encoded, reply) if reply.tokens > _FEW_TOKENS else _encoded(reply)
    if rest is None:
        return Response(first, headers=headers, media_type=reply.media_type)
    return StreamingResponse(itertools.chain([first], rest), headers=headers, media_type=reply.media_type)


def _encoded(reply: Reply) -> tuple[bytes, Iterator[bytes] | None]:
    """Returns the body, or its first pieces and an iterator over the others.

    The first pieces are encoded here, so that errors in them occur before the status is sent.
    """
    value = reply.value() if callable(reply.value) else reply.value
    if isinstance(value, bytes):
        return value, None
    encoded = pieces(value)
    first = b"".join(itertools.islice(encoded, _FIRST_PIECES))
    following = next(encoded, None)
    return (first, None) if following is None else (first, itertools.chain([following], encoded))


def _error(protocol: Protocol, error: Exception, shorten: str | None = None) -> Response:
    """Makes the response for an error in the protocol's format; `shorten` is the hint for texts that are too long."""
    problem = as_problem(error)
    if problem.kind == "too_long" and problem.hint is None:
        hint = f"{shorten}; {_TRUNCATE}" if shorten else None
        problem = RequestError(problem.kind, problem.message, hint=hint, param=problem.param)
    if problem.kind == "changed":  # the hint is for those who write Python
        problem = RequestError(problem.kind, problem.message, hint=_RELOAD)
    if problem.kind in ("internal", "unavailable") and not isinstance(error, RequestError):
        _LOG.error("%s: %s", protocol.name, error, exc_info=not isinstance(error, MlxbertError))
    status, value = protocol.shape(problem)
    headers = _HEADERS.get(problem.kind, {})
    return Response(_encode(value), status, headers, "application/json")
