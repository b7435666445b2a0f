"""Requests to an ASGI application without a network, header by header as a hostile client would send them."""

import asyncio
import json
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True)
class Answer:
    """What comes back."""

    status: int
    headers: dict[str, str]
    body: bytes

    @property
    def json(self) -> Any:
        """The body."""
        return json.loads(self.body)


def ask(
    app: Any,
    method: str,
    path: str,
    body: Any = None,
    *,
    headers: Sequence[tuple[str, str]] = (("host", "localhost"), ("content-type", "application/json")),
    parts: Sequence[bytes] | None = None,
    forever: bool = False,
) -> Answer:
    """Asks an application.

    Args:
        app: The application.
        method: The method.
        path: The path.
        body: A body; other than bytes it becomes JSON.
        headers: The headers.
        parts: The body in parts.
        forever: Whether nothing follows the parts, and they have no end.
    """
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
    found = {name.decode(): value.decode() for name, value in sent[0]["headers"]}
    return Answer(sent[0]["status"], found, b"".join(one.get("body", b"") for one in sent[1:]))
