"""A loopback server with OpenAI's and TEI's routes that answers with any vectors."""

import json
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler
from typing import Any

from tests.helpers.fake_hub import QuietServer


@dataclass
class Embedder:
    """What the server answers with."""

    vectors: Callable[[Sequence[str]], Any]  # of texts; what it returns in place of a list is sent as it is
    routes: tuple[str, ...] = ("/v1/embeddings", "/v1/models")
    status: int = 200
    key: str | None = None  # that it asks for
    content: bytes | None = None  # what it sends instead of vectors
    longest: int = 10**9  # characters of a text; a request with a longer one is refused
    refused_model: str | None = None
    keys: list[str | None] = field(default_factory=list)  # that clients sent
    asked: list[tuple[str, Any]] = field(default_factory=list)

    def answer(self, path: str, sent: Any, key: str | None) -> tuple[int, bytes]:
        self.keys.append(key)
        self.asked.append((path, sent))
        if self.key is not None and key != f"Bearer {self.key}":
            return 401, b'{"error": {"message": "wrong key"}}'
        if path not in self.routes:
            return 404, b"not found"
        if self.content is not None or self.status != 200:
            return self.status, self.content or b""
        if path == "/v1/models":
            return 200, b'{"data": [{"id": "theirs"}]}'
        if self.refused_model is not None and sent.get("model") == self.refused_model:
            return 404, b'{"error": {"message": "there is no such model"}}'
        texts = sent["inputs"] if path == "/embed" else sent["input"]
        if max(map(len, texts)) > self.longest:
            return 413, b'{"error": "the text is too long"}'
        rows = self.vectors(texts)
        if path == "/v1/embeddings" and isinstance(rows, list):
            rows = {"data": [{"index": n, "embedding": row} for n, row in reversed([*enumerate(rows)])]}
        return 200, json.dumps(rows).encode()


@contextmanager
def embedding_server(embedder: Embedder) -> Iterator[str]:
    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def log_message(self, format: str, *arguments: Any) -> None:
            pass

        def do_POST(self) -> None:
            body = self.rfile.read(int(self.headers["Content-Length"] or 0))
            sent = json.loads(body) if body else None
            status, content = embedder.answer(self.path, sent, self.headers.get("Authorization"))
            self.send_response(status)
            self.send_header("Content-Length", str(len(content)))
            self.end_headers()
            self.wfile.write(content)

        do_GET = do_POST

    server = QuietServer(("127.0.0.1", 0), Handler)
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01}, daemon=True)
    thread.start()
    try:
        yield f"http://127.0.0.1:{server.server_port}"
    finally:
        server.shutdown()
        server.server_close()
        thread.join()
