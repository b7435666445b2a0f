"""The server as an ASGI application: every route of every protocol, with one way to read bodies and answer errors."""

import logging

import msgspec
from starlette.applications import Starlette
from starlette.requests import ClientDisconnect, Request
from starlette.responses import Response
from starlette.routing import Route as Address

from mlxbert.serve.pages import page_routes
from mlxbert.serve.protocol import Problem, Protocol, Reply, Route, as_problem
from mlxbert.serve.protocols import openai, own
from mlxbert.serve.service import Service

_LOG = logging.getLogger("mlxbert.serve")
PROTOCOLS: tuple[Protocol, ...] = (own.PROTOCOL, openai.PROTOCOL)
_encode = msgspec.json.Encoder().encode


def make_app(service: Service) -> Starlette:
    """The application of a service."""
    routes = [_address(service, protocol, route) for protocol in PROTOCOLS for route in protocol.routes]
    return Starlette(routes=[*page_routes(), *routes])


def _address(service: Service, protocol: Protocol, route: Route) -> Address:
    """A route as Starlette takes it."""
    decode = None if route.body is None else msgspec.json.Decoder(route.body).decode

    async def endpoint(request: Request) -> Response:
        try:
            if not service.ready:
                raise Problem("unavailable", "the server is not ready")
            given = request.path_params if decode is None else decode(await _body(service, request))
            reply = await route.answer(service, given)
        except ClientDisconnect:
            return Response(status_code=499)
        except msgspec.ValidationError as problem:
            return _error(protocol, Problem("invalid", f"the body is not what is expected: {problem}"))
        except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as problem:
            return _error(protocol, Problem("invalid", f"the body is not JSON: {problem}"))
        except Exception as problem:
            return _error(protocol, problem)
        return _response(reply)

    return Address(route.path, endpoint, methods=[route.method], name=f"{protocol.name} {route.method} {route.path}")


async def _body(service: Service, request: Request) -> bytes:
    """The body of a request, within the limits.

    Raises:
        Problem: It is larger than allowed, or not said to be JSON.
    """
    if request.headers.get("content-type", "").partition(";")[0].strip().lower() != "application/json":
        raise Problem("media_type", "Content-Type is not application/json")
    most, body = int(service.options.max_body * 1e6), bytearray()
    async for part in request.stream():
        body += part
        if len(body) > most:
            raise Problem("too_large", f"the body has more than {most:,} bytes")
    return bytes(body)


def _response(reply: Reply) -> Response:
    body = reply.value if isinstance(reply.value, bytes) else _encode(reply.value)
    headers = {**reply.headers, **({"X-Truncated-Texts": str(reply.truncated)} if reply.truncated else {})}
    return Response(body, headers=headers, media_type=reply.media_type)


def _error(protocol: Protocol, error: Exception) -> Response:
    """An error in the protocol's shape."""
    problem = as_problem(error)
    if problem.kind in ("internal", "unavailable") and not isinstance(error, Problem):
        _LOG.error("%s: %s", protocol.name, error, exc_info=problem.kind == "internal")
    status, value = protocol.shape(problem)
    headers = {"Retry-After": "1"} if problem.kind in ("overloaded", "unavailable") else {}
    return Response(_encode(value), status, headers, "application/json")
