"""The parts of a protocol of the server: routes, types of bodies, and the format of errors."""

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
from mlxbert.tasks.task import NotFiniteError

# The kinds of errors, and their status unless the protocol has its own.
Kind = Literal[
    "invalid", "empty", "bad_text", "too_long", "unauthorized", "forbidden", "not_found", "method", "timeout",
    "changed", "too_large", "media_type", "misdirected", "overloaded", "internal", "unavailable",
]  # fmt: skip
STATUS: Mapping[Kind, int] = {
    "invalid": 400,  # a body, a value
    "empty": 400,  # no texts
    "bad_text": 400,  # not a text, or not valid Unicode
    "too_long": 400,  # a text that is too long for the model
    "unauthorized": 401,
    "forbidden": 403,  # an origin that is not allowed
    "not_found": 404,  # a route, a model or an index
    "method": 405,
    "timeout": 408,  # while reading the body
    "changed": 409,  # the files of a model have changed since it was loaded
    "too_large": 413,
    "media_type": 415,
    "misdirected": 421,  # a host that is not this server
    "overloaded": 429,
    "internal": 500,
    "unavailable": 503,  # temporarily: not ready yet, too little memory, or a busy index
}


class RequestError(Exception):
    """The error of a request. Its message has no paths; `param` is the field of the body that caused it, if any."""

    def __init__(self, kind: Kind, message: str, *, hint: str | None = None, param: str | None = None) -> None:
        super().__init__(message)
        self.kind, self.message, self.hint, self.param = kind, message, hint, param

    @property
    def text(self) -> str:
        """The message and the hint on one line."""
        return self.message if self.hint is None else f"{self.message} ({self.hint})"


# The kinds of errors that clients cause; of several types of an error, the first counts.
_KINDS: Sequence[tuple[Any, Kind | None]] = (
    (OverloadedError, "overloaded"),
    (TooLongError, "too_long"),
    (TooLargeError, "too_large"),
    (NotFiniteError, None),  # an InputError, but the model's fault
    (InputError, "bad_text"),
    (ArgumentError | MissingHeadError, "invalid"),
    (ModelChangedError, "changed"),
)


def as_problem(error: BaseException) -> RequestError:
    """Converts an exception to a `RequestError`; unexpected exceptions are reported without details."""
    if isinstance(error, RequestError):
        return error
    kind = next((kind for types, kind in _KINDS if isinstance(error, types)), None)
    if isinstance(error, MlxbertError) and kind is not None:
        return RequestError(kind, error.message, hint=error.hint)
    if isinstance(error, OutOfMemoryError | BusyError):  # the temporary errors
        what = "the index is being updated" if isinstance(error, BusyError) else "the server has too little memory"
        return RequestError("unavailable", what, hint="try again in a moment")
    if isinstance(error, MlxbertError):
        return RequestError("internal", "the model or the index cannot be used; the server's log says why")
    return RequestError("internal", "the request failed; the server's log says why")


@dataclass(frozen=True)
class Reply:
    """The reply to a request."""

    # The body: a value that `mlxbert.serve.json_bodies` encodes, bytes that are sent unchanged, or a function that
    # returns either; the function may be slow if there are many tokens.
    value: Any
    tokens: int = 0  # the number of computed tokens, which decides whether the body is encoded on another thread
    truncated: int = 0  # the number of truncated texts, for a header
    headers: Mapping[str, str] = field(default_factory=dict)  # additional headers
    media_type: str = "application/json"  # the media type of the body


@dataclass(frozen=True)
class Route:
    """A route: an address of a protocol."""

    method: Literal["GET", "POST"]
    path: str  # the path in Starlette's syntax: `/v1/models/{name:path}`
    # Computes the reply from the service and the body of a POST, or the path parameters of a GET.
    answer: Callable[[Any, Any], Awaitable[Reply]]
    summary: str  # a sentence for `/openapi.json`
    # The type of the body of a POST, a `msgspec.Struct` (or a union of them); its attribute `shorten` is the hint for
    # texts that are too long.
    body: Any = None
    reply: Any = None  # the type of the reply, for `/openapi.json`


@dataclass(frozen=True)
class Protocol:
    """A protocol: routes that share the format of their errors."""

    name: str  # the name in `/openapi.json` and in the log
    routes: Sequence[Route]
    shape: Callable[[RequestError], tuple[int, Any]]  # returns the status and the body of an error
    prefix: str | None = None  # the prefix of paths that belong to the protocol even if no route matches


def plain_shape(problem: RequestError) -> tuple[int, Any]:
    """Returns an error in the format of our own routes, which is also used for paths that belong to no protocol."""
    return STATUS[problem.kind], {"error": problem.message, "hint": problem.hint, "kind": problem.kind}
