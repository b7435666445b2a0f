"""Gets vectors of texts from a server with OpenAI's `/v1/embeddings` or TEI's `/embed`."""

import base64
import json
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any, TypeAlias
from urllib.parse import urlsplit

from mlxbert import rooms
from mlxbert.errors import ArgumentError, InputError, MlxbertError
from mlxbert.lazy_numpy import NDArray, np
from mlxbert.progress import OnProgress

Floats: TypeAlias = "NDArray[np.float32]"

_TOGETHER = 32  # texts of a request; TEI takes no more by default
_OPENAI, _TEI = "/v1/embeddings", "/embed"
_ADDRESS_HINT = (
    f"check that the server runs, and give its address, or that of its route that ends with {_OPENAI} or {_TEI}"
)
_REFUSED = (400, 413, 422)  # of a request with a text that is too long


def is_url(against: str) -> bool:
    """Whether a string is the address of a server, not the path of a file."""
    return against.lower().startswith(("http://", "https://"))


class EmbeddingServer:
    """A server that computes vectors.

    Args:
        url: The address of the server or of one of its routes.
        model: The name of the model on the server; by default the name of `source` if the server has it, or else the
            server's only model.
        source: The name or path of the model to compare with.
    """

    def __init__(self, url: str, model: str | None, source: str) -> None:
        path = urlsplit(url).path.rstrip("/")
        self._route = next((route for route in (_OPENAI, "/embeddings", _TEI) if path.endswith(route)), None)
        if self._route is None and path.endswith("/v1"):
            path, url = path.removesuffix("/v1"), url.rstrip("/").removesuffix("/v1")
        elif self._route is not None:
            url = url.rstrip("/").removesuffix(self._route)
        self._http = rooms.part("HTTP client")
        self._client = self._http.HttpClient(url, hint=_ADDRESS_HINT, name="against")
        self._model, self._source = model, source
        self.refused: dict[int, str] = {}  # what the server says about each text that it refuses, by index

    @property
    def url(self) -> str:
        """The address with the route."""
        return str(self._client.url) + (self._route or "")

    def vectors(self, texts: Sequence[str], on_progress: OnProgress) -> "list[Floats | None]":
        """Returns the vectors of texts, (W,); `None` for a text that the server refuses."""
        rows: list[Floats | None] = []
        try:
            self._find_route()
            for start in range(0, len(texts), _TOGETHER):
                rows += self._rows(texts[start : start + _TOGETHER], start)
                on_progress(len(rows), len(texts))
        finally:
            self._client.close()
        if len(self.refused) == len(texts):
            reason = next(iter(self.refused.values()))
            raise MlxbertError(f"{self.url}: the server refuses every text ({reason})", hint=_ADDRESS_HINT)
        return rows

    def _find_route(self) -> None:
        """Finds out which route the server has, and which model to ask for; fails if the server does not answer."""
        if self._model is not None and self._route == _TEI:
            raise ArgumentError(f"`server_model` cannot be combined with {_TEI}, which takes no model")
        named = (_OPENAI,) if self._model is not None else (_OPENAI, _TEI)
        routes = named if self._route is None else (self._route,)
        for route in routes:
            self._route = route
            status, content = self._ask(["a"])
            if status in (404, 405, 501) and self._model is None and route != _TEI:
                self._model = self._only_model()
                status, content = self._ask(["a"]) if self._model else (status, content)
            if status == 200:
                self._read(content, 1)
                return
            if status not in (404, 405, 501):
                raise self._error(status, content)
        self._route = routes[0]
        message = _message(content)
        if self._model is not None and message:
            raise self._error(status, content)
        raise MlxbertError(f"{self._client.url}: the server has no {' and no '.join(routes)}", hint=_ADDRESS_HINT)

    def _only_model(self) -> str | None:
        """Returns the server's model: the one with the name of ours, or its only one; `None` if it lists none."""
        status, content = self._client.send((self._route or "").replace("embeddings", "models"))
        with suppress(ValueError, KeyError, TypeError):
            names = [str(entry["id"]) for entry in json.loads(content)["data"]] if status == 200 else []
            alike = [name for name in names if name in (self._source, Path(self._source).name)]
            if len(alike or names) > 1:
                raise ArgumentError(
                    f"{self._client.url}: the server has the models {', '.join(names)}, expected the name of one",
                    hint=f"`server_model={names[0]!r}` names one",
                )
            return next(iter(alike or names), None)
        return None

    def _ask(self, texts: Sequence[str]) -> tuple[int, bytes]:
        if self._route == _TEI:
            return self._client.send(_TEI, {"inputs": [*texts]})
        name = self._model or Path(self._source).name
        return self._client.send(self._route or "", {"model": name, "input": [*texts], "encoding_format": "float"})

    def _rows(self, texts: Sequence[str], start: int) -> "list[Floats | None]":
        """Returns the vectors of a request. If the server refuses it, asks for its halves; `None` replaces a vector."""
        try:
            [text.encode() for text in texts]
        except UnicodeEncodeError:
            raise InputError(f"a text {self._http.SURROGATE}") from None
        status, content = self._ask(texts)
        if status in _REFUSED and len(texts) > 1:
            half = len(texts) // 2
            return [*self._rows(texts[:half], start), *self._rows(texts[half:], start + half)]
        if status in _REFUSED:
            self.refused[start] = _message(content) or f"status {status}"
            return [None]
        if status != 200:
            raise self._error(status, content)
        return [*self._read(content, len(texts))]

    def _read(self, content: bytes, count: int) -> "list[Floats]":
        """Returns the vectors of an answer in the order of the texts."""
        try:
            rows = _rows_of(json.loads(content))
        except (ValueError, TypeError, KeyError, RecursionError):
            raise self._foreign(content) from None
        if len(rows) != count:
            raise MlxbertError(
                f"{self.url}: the server answers with {len(rows):,} vectors for {count:,} texts",
                hint="a proxy or the server drops texts; send one request by hand and compare",
            )
        try:
            with np.errstate(over="ignore"):  # vectors that are not finite are refused later
                vectors = [np.asarray(row, np.float32) for row in rows]
        except (ValueError, TypeError, OverflowError):
            raise self._foreign(content) from None
        if any(vector.ndim != 1 or not vector.size for vector in vectors):
            raise self._foreign(content)
        return vectors

    def _foreign(self, content: bytes) -> MlxbertError:
        shown = " ".join(content[:200].decode("utf-8", "replace").split())
        is_page = shown.lower().startswith(("<!doctype", "<html"))
        return MlxbertError(
            f"{self.url}: the server answers with {'a web page' if is_page else repr(shown[:80])}, "
            "expected JSON with vectors",
            hint=_ADDRESS_HINT,
        )

    def _error(self, status: int, content: bytes) -> MlxbertError:
        if status in (401, 403):
            return MlxbertError(f"{self.url}: the server refuses the key (status {status})", hint=self._http.KEY_HINT)
        said = f": {message}" if (message := _message(content)) else ""
        hint = "`server_model=` names a model of the server" if status in (400, 404, 422) else _ADDRESS_HINT
        if 300 <= status < 400:
            hint = "give the address that the server redirects to"
        if status >= 500:
            hint = "read the log of the server"
        return MlxbertError(f"{self.url}: the server answers with status {status}{said}", hint=hint)


def _rows_of(reply: Any) -> list[Any]:
    """Returns the vectors of an answer of OpenAI's or TEI's route, in the order of the texts."""
    if isinstance(reply, list):
        return [row["embedding"] if isinstance(row, dict) else row for row in reply]
    if "embeddings" in reply:
        return [*reply["embeddings"]]
    entries = reply["data"]
    if all("index" in entry for entry in entries):
        entries = sorted(entries, key=lambda entry: entry["index"])
    return [_decoded(entry["embedding"]) for entry in entries]


def _decoded(row: Any) -> Any:
    return np.frombuffer(base64.b64decode(row), "<f4") if isinstance(row, str) else row


def _message(content: bytes) -> str:
    """Returns what an error of the server says; empty if it is not JSON."""
    with suppress(ValueError, RecursionError):
        reply = json.loads(content)
        error = reply.get("error", reply.get("message", reply.get("detail"))) if isinstance(reply, dict) else None
        said = error.get("message") if isinstance(error, dict) else error
        return f"{said:.200}" if isinstance(said, str) else ""
    return ""
