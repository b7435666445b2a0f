"""Sends requests to an ASGI application without a network; tests control each header, like a hostile client."""

import asyncio
import json
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True)
class Answer:
    """The response to a request."""

    status: int
    headers: dict[str, str]
    body: bytes

    @property
    def json(self) -> Any:
        return json.loads(self.body)


def ask(
    app: Any,
    method: str,
    path: str,
    body: Any = None,
    *,
    headers: Sequence[tuple[str, str]] = (("host", "localhost"), ("content-type", "application/json")),
    parts: Sequence[bytes] | None = None,
    forever: bool = False,  # after the last part of the body, the client keeps the application waiting
) -> Answer:
    """Sends a request to an application; returns the response."""
    whole = body if isinstance(body, bytes) else b"" if body is None else json.dumps(body).encode()
    pieces = [whole] if parts is None else list(parts)
    messages: list[dict[str, Any]] = [
        {"type": "http.request", "body": piece, "more_body": forever or number < len(pieces)}
        for number, piece in enumerate(pieces, 1)
    ]
    scope = {
        "type": "http", "http_version": "1.1", "method": method, "path": path, "raw_path": path.encode(),
        "query_string": b"", "root_path": "", "scheme": "http", "client": ("127.0.0.1", 1), "server": ("127.0.0.1", 80),
        "headers": [(name.lower().encode(), value.encode("latin-1")) for name, value in headers],
    }  # fmt: skip
    sent: list[dict[str, Any]] = []

    async def receive() -> dict[str, Any]:
        if not messages:
            await asyncio.Event().wait()
        return messages.pop(0)

    async def send(message: dict[str, Any]) -> None:
        sent.append(message)

    asyncio.run(app(scope, receive, send))
    response_headers = {name.decode(): value.decode() for name, value in sent[0]["headers"]}
    return Answer(sent[0]["status"], response_headers, b"".join(message.get("body", b"") for message in sent[1:]))
