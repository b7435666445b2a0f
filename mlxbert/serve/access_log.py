"""Metrics of requests, and the access log: one line per request, without API keys and, by default, without texts."""

import asyncio
import logging
import secrets
import sys
import time
import traceback
from bisect import bisect_left
from collections import Counter
from collections.abc import Mapping, Sequence
from contextlib import suppress
from contextvars import ContextVar
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import IO, TYPE_CHECKING, Any

from mlxbert.paths import open_regular
from mlxbert.results.json import escape_invisible, plain, to_json

if TYPE_CHECKING:
    from starlette.types import ASGIApp, Message, Receive, Scope, Send

SECONDS = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0)
CLIENT_CLOSED = 499  # the status in the log if the client left before the answer


@dataclass(eq=False)
class RequestUsage:
    """The items computed for a request so far, with counts; `USAGE` holds those of the current request."""

    texts: int = 0
    tokens: int = 0
    truncated: int = 0
    items: list[Any] = field(default_factory=list)
    logged: bool = True

    def add(self, items: Sequence[Any], tokens: int, truncated: int) -> None:
        self.texts, self.tokens, self.truncated = (
            self.texts + len(items), self.tokens + tokens, self.truncated + truncated
        )  # fmt: skip
        self.items.append(items)


USAGE: ContextVar[RequestUsage] = ContextVar("USAGE")  # the usage of the request that is being answered


@dataclass(eq=False)
class Metrics:
    """Counts of requests."""

    # The number of requests by method, route and status.
    requests: Counter[tuple[str, str, int]] = field(default_factory=Counter)
    # For each route, the number of requests per interval of durations. Each value of `SECONDS` ends an interval; the
    # last interval has no end.
    latencies: dict[str, list[int]] = field(default_factory=dict)
    seconds: dict[str, float] = field(default_factory=dict)  # the total duration of the requests by route

    def add(self, method: str, route: str, status: int, seconds: float) -> None:
        self.requests[method, route, status] += 1
        self.latencies.setdefault(route, [0] * (len(SECONDS) + 1))[bisect_left(SECONDS, seconds)] += 1
        self.seconds[route] = self.seconds.get(route, 0.0) + seconds


class Log:
    """A log: lines of JSON, or readable lines if the stream is a terminal; none without a stream (stderr is closed)."""

    def __init__(self, stream: IO[str] | None, *, texts: bool = False, requests: bool = True) -> None:
        self._stream, self.texts, self.requests = stream, texts, requests

    def write(self, **values: Any) -> None:
        """Writes a line. The server continues if the disk is full or the pipe is closed."""
        if self._stream is None:
            return
        now = datetime.now(UTC)
        with suppress(OSError, ValueError):
            if self._stream.isatty():
                line = f"{now.astimezone():%H:%M:%S} {_readable(values)}"
            else:
                moment = now.isoformat(timespec="milliseconds").replace("+00:00", "Z")
                line = to_json({"time": moment, **plain(values)})
            self._stream.write(f"{line}\n")
            self._stream.flush()


def _readable(values: Mapping[str, Any]) -> str:
    """Formats a line of the log for a terminal."""
    if "message" in values:
        trace = [escape_invisible(line) for line in values.get("trace", "").splitlines()]
        return "\n".join([f"{values['level']}: {escape_invisible(values['message'])}", *trace])
    counts = {name: values[name] for name in ("texts", "tokens", "truncated") if values[name]}
    parts = [f"{count:,} {name.removesuffix('s') if count == 1 else name}" for name, count in counts.items()]
    parts += [values["client"], values["id"], *([to_json(plain(values["items"]))] if "items" in values else [])]
    took = f"{values['status']} in {1000 * values['seconds']:,.1f} ms"
    return f"{values['method']} {values['route']} {took}: {', '.join(parts)}"


class LogHandler(logging.Handler):
    """Writes the records of Python's loggers to a log."""

    def __init__(self, log: Log) -> None:
        super().__init__()
        self._log = log

    def emit(self, record: logging.LogRecord) -> None:
        values: dict[str, Any] = {"level": record.levelname.lower(), "message": record.getMessage().strip()}
        if record.exc_info:
            values["trace"] = "".join(traceback.format_exception(*record.exc_info))
        self._log.write(**values)


class Access:
    """Counts, times and logs the requests of an application."""

    def __init__(self, app: "ASGIApp", metrics: Metrics, log: Log) -> None:
        self._app, self._metrics, self._log = app, metrics, log

    async def __call__(self, scope: "Scope", receive: "Receive", send: "Send") -> None:
        begun, status, seen, name = time.perf_counter(), CLIENT_CLOSED, RequestUsage(), secrets.token_hex(8)
        USAGE.set(seen)

        async def sending(message: "Message") -> None:
            nonlocal status
            if message["type"] == "http.response.start":
                status = message["status"]
                message["headers"] = [*message.get("headers", ()), (b"x-request-id", name.encode())]
            await send(message)

        try:
            await self._app(scope, receive, sending)
        except asyncio.CancelledError:  # the client has left
            status = CLIENT_CLOSED
        finally:
            seconds = time.perf_counter() - begun
            route = getattr(scope.get("route"), "path", "-")
            self._metrics.add(scope["method"], route, status, seconds)
            if self._log.requests and seen.logged:
                texts = {"items": seen.items} if self._log.texts else {}
                self._log.write(
                    id=name, method=scope["method"], route=route, status=status, seconds=round(seconds, 6),
                    tokens=seen.tokens, texts=seen.texts, truncated=seen.truncated,
                    client=(scope.get("client") or ("-",))[0], **texts,
                )  # fmt: skip


def open_log(path: Any, *, quiet: bool, texts: bool) -> Log:
    """Opens the log in a file, to which lines are appended, or on stderr, where `quiet` leaves out requests."""
    if path is None:
        return Log(sys.stderr, texts=texts, requests=not quiet)
    return Log(open(path, "a", encoding="utf-8", opener=open_regular), texts=texts)
