"""What a protocol of the server consists of: its routes, the types of their bodies, and the shape of its errors."""

from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

from mlxbert.errors import (
    ArgumentError,
    BusyError,
    InputError,
    MissingHeadError,
    MlxbertError,
    ModelChangedError,
    OutOfMemoryError,
    OverloadedError,
    TooLargeError,
    TooLongError,
)

# What can be wrong, and its status where the protocol has none of its own.
Kind = Literal[
    "invalid", "empty", "bad_text", "too_long", "unauthorized", "forbidden", "not_found", "method", "timeout",
    "changed", "too_large", "media_type", "misdirected", "overloaded", "internal", "unavailable",
]  # fmt: skip
STATUS: Mapping[Kind, int] = {
    "invalid": 400,  # a body, a value
    "empty": 400,  # nothing is asked for
    "bad_text": 400,  # no text, or not valid Unicode
    "too_long": 400,  # a text, for the model
    "unauthorized": 401,
    "forbidden": 403,  # an origin that is not allowed
    "not_found": 404,  # a route or a model
    "method": 405,
    "timeout": 408,  # of reading the body
    "changed": 409,  # the files of a model, since it was loaded
    "too_large": 413,
    "media_type": 415,
    "misdirected": 421,  # a host that is not ours
    "overloaded": 429,
    "internal": 500,
    "unavailable": 503,  # for a while: not ready yet, or too little memory, or an index that is busy
}


class RequestError(Exception):
    """Why a request gets no result.

    Args:
        kind: What is wrong.
        message: The value that was met, and what was expected; without paths.
        hint: What to do.
        param: The name of the field of the body, if it is one.
    """

    def __init__(self, kind: Kind, message: str, *, hint: str | None = None, param: str | None = None) -> None:
        super().__init__(message)
        self.kind, self.message, self.hint, self.param = kind, message, hint, param

    @property
    def text(self) -> str:
        """The message and the hint in one line."""
        return self.message if self.hint is None else f"{self.message} ({self.hint})"


def as_problem(error: BaseException) -> RequestError:
    """What a client is told of an error; of one that is not ours, nothing but that there was one."""
    if isinstance(error, RequestError):
        return error
    if isinstance(error, OverloadedError):
        return RequestError("overloaded", error.message, hint=error.hint)
    if isinstance(error, TooLongError):
        return RequestError("too_long", error.message, hint=error.hint)
    if isinstance(error, TooLargeError):
        return RequestError("too_large", error.message, hint=error.hint)
    if isinstance(error, InputError):
        return RequestError("bad_text", error.message, hint=error.hint)
    if isinstance(error, ArgumentError | MissingHeadError):
        return RequestError("invalid", error.message, hint=error.hint)
    if isinstance(error, ModelChangedError):
        return RequestError("changed", error.message, hint=error.hint)
    if isinstance(error, OutOfMemoryError | BusyError):  # all else lasts
        what = "the index is being updated" if isinstance(error, BusyError) else "there is too little memory"
        return RequestError("unavailable", what, hint="ask again in a moment")
    if isinstance(error, MlxbertError):
        return RequestError("internal", "the model or the index cannot be used; the server's log says why")
    return RequestError("internal", "the request failed; the server's log says why")


@dataclass(frozen=True)
class Reply:
    """What a request gets.

    Attributes:
        value: The body: a value that `mlxbert.serve.json_stream` turns into JSON, bytes that are sent as they are, or a
            function that makes either, which takes long where there were many tokens.
        tokens: How many tokens were computed, for the log.
        truncated: How many texts were truncated; a header says so, too.
        headers: More headers.
        media_type: Of bytes.
    """

    value: Any
    tokens: int = 0
    truncated: int = 0
    headers: Mapping[str, str] = field(default_factory=dict)
    media_type: str = "application/json"


@dataclass(frozen=True)
class Route:
    """One address of a protocol.

    Attributes:
        method: `GET` or `POST`.
        path: As Starlette writes it: `/v1/models/{name:path}`.
        answer: Computes the reply from the service and, of a POST, the body; of a GET, the parameters of the path.
        summary: A sentence for `/openapi.json`.
        body: The type of the body of a POST, a `msgspec.Struct` (or a union of them); its `shorten` says what to do
            about a text that is too long.
        reply: The type of the reply, for `/openapi.json`.
    """

    method: Literal["GET", "POST"]
    path: str
    answer: Callable[[Any, Any], Awaitable[Reply]]
    summary: str
    body: Any = None
    reply: Any = None


@dataclass(frozen=True)
class Protocol:
    """Routes that share the shape of their errors.

    Attributes:
        name: What it is called in `/openapi.json` and in the log.
        routes: Its routes.
        shape: The status and the body of an error.
        prefix: What paths begin with that are its own, even where there is no route.
    """

    name: str
    routes: Sequence[Route]
    shape: Callable[[RequestError], tuple[int, Any]]
    prefix: str | None = None


def plain_shape(problem: RequestError) -> tuple[int, Any]:
    """An error of our own routes, and where the path belongs to no protocol."""
    return STATUS[problem.kind], {"error": problem.message, "hint": problem.hint, "kind": problem.kind}
