"""Models on a server that `mlxbert serve` has started, which commands ask in place of loading a model."""

import base64
import http.client
import json
import os
import ssl
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit

from mlxbert.errors import ArgumentError, InputError, MissingHeadError, MlxbertError
from mlxbert.labels.labels import Labels
from mlxbert.readers.stream import windows
from mlxbert.results.result import Failure
from mlxbert.tasks.catalogue import CATALOGUE, SIMILARITY, TaskEntry, imported
from mlxbert.tasks.options import EmbedOptions
from mlxbert.tasks.query_ranking import Scored, with_query
from mlxbert.version import __version__
from mlxbert.weights.model_source import BUILTIN

if TYPE_CHECKING:
    from mlxbert.text.usage import Usage

KEY = "MLXBERT_API_KEY"
_WINDOW = 512  # items of a request, at most
_TRIES, _LONGEST = 5, 30.0  # requests to a server that is busy; seconds between two of them
_SECONDS = 600.0  # that a server may take to answer
_ADDRESS = "is it the address that `mlxbert serve` says?"
_UNKNOWN = (18, 19, 20, 21)  # X509_V_ERR_… of OpenSSL: signed by itself, or by nobody who is known
_CERTIFICATES: Mapping[int, str] = {  # hints
    **dict.fromkeys(_UNKNOWN, "SSL_CERT_FILE=FILE trusts the certificates in a file"),
    **dict.fromkeys((9, 10), "is the clock of this machine right? else the server needs a new certificate"),
    **dict.fromkeys((62, 64), "use an address for which the certificate is made"),  # another name, another IP address
}
_SURROGATE = "contains half of a surrogate pair, which is not a character"
_ENTRIES: Mapping[str, TaskEntry] = {**CATALOGUE, SIMILARITY.name: SIMILARITY}


class _ServerLimitError(InputError):
    """More than a server takes at once."""


class Server:
    """A server, over one connection.

    Args:
        url: Its address; there may be a path before those of its routes.
    """

    def __init__(self, url: str) -> None:
        try:
            parts = urlsplit(url)
            host, port = parts.hostname, parts.port
        except ValueError:
            parts, host, port = urlsplit(""), None, None
        if parts.scheme not in ("http", "https") or not host or parts.query or parts.fragment:
            raise ArgumentError(f"server is {url!r:.100}, expected an address", hint="such as http://127.0.0.1:8484")
        if parts.username is not None:
            raise ArgumentError(f"server holds a name or a password, expected none: the key is read from {KEY}")
        self.url, self._path = url.rstrip("/"), parts.path.rstrip("/")
        self._connection = (
            http.client.HTTPSConnection(host, port, timeout=_SECONDS, context=_trusted())
            if parts.scheme == "https"
            else http.client.HTTPConnection(host, port, timeout=_SECONDS)
        )
        self._headers = {"Content-Type": "application/json", "Accept": "application/json"}
        if key := os.environ.get(KEY, "").strip():
            if not key.isascii() or not key.isprintable():
                raise ArgumentError(f"{KEY} has characters that a key cannot have")
            self._headers["Authorization"] = f"Bearer {key}"

    def ask(self, path: str, body: Mapping[str, Any] | None = None) -> Any:
        """The answer to a request; a server that is busy is asked again.

        Args:
            path: That of the route.
            body: What is sent; `None` for what is only read.
        """
        try:
            sent = None if body is None else json.dumps(body, ensure_ascii=False).encode()
        except UnicodeEncodeError:
            raise ArgumentError(f"an option {_SURROGATE}") from None
        for tried in range(1, _TRIES + 1):
            status, wait, read = self._exchange(path, sent)
            if status not in (429, 503) or tried == _TRIES:
                break
            time.sleep(min(float(wait) if wait.isdecimal() else tried, _LONGEST))
        try:
            found = json.loads(read)
        except ValueError:
            found = None
        if status == 200 and isinstance(found, dict):
            return found
        raise self._error(status, found if isinstance(found, dict) else {})

    def _exchange(self, path: str, sent: bytes | None) -> tuple[int, str, bytes]:
        """The status, the time after which to ask again, and the body of an answer."""
        method = "GET" if sent is None else "POST"
        for kept in (self._connection.sock is not None, False):
            try:
                self._connection.request(method, self._path + path, sent, self._headers)
                answer = self._connection.getresponse()
                return answer.status, answer.headers.get("Retry-After", ""), answer.read()
            except (OSError, http.client.HTTPException) as problem:
                self._connection.close()
                if kept and isinstance(problem, ConnectionError):  # closed while it was idle
                    continue
                if isinstance(problem, ssl.SSLCertVerificationError):
                    raise self._distrust(problem) from None
                why = getattr(problem, "strerror", None) or str(problem) or type(problem).__name__
                raise MlxbertError(f"{self.url}: the server cannot be reached: {why}", hint=_ADDRESS) from None
        raise AssertionError

    def _distrust(self, problem: ssl.SSLCertVerificationError) -> MlxbertError:
        why, hint = problem.verify_message.rstrip("."), _CERTIFICATES.get(problem.verify_code)
        kind = "not trusted" if problem.verify_code in _UNKNOWN else "not valid"
        return MlxbertError(f"{self.url}: its certificate is {kind}: {why}", hint=hint)

    def _error(self, status: int, found: Mapping[str, Any]) -> MlxbertError:
        message, hint = found.get("error"), found.get("hint")
        if status in (401, 403):
            return MlxbertError(f"{self.url}: the server refuses the key", hint=f"put its key into {KEY}")
        if not isinstance(message, str) or "kind" not in found:
            return _foreign(self.url, f"status {status}")
        kinds = {
            "invalid": ArgumentError, "not_found": ArgumentError, "too_large": _ServerLimitError,
            "too_long": InputError,
        }  # fmt: skip
        return kinds.get(str(found["kind"]), MlxbertError)(message, hint=hint if isinstance(hint, str) else None)


class RemoteModel:
    """A model on a server.

    Args:
        url: The address of the server.
        name: What the server calls it. If it has no built-in one, that name stands for the first model that was made
            for the task.
        task: What it is asked for.

    Attributes:
        facts: What the server knows of it, see `mlxbert.serve.service.ModelFacts`.
        source: Its name.
        labels: Its classes.
        embedder: What its files say of its vectors, as of a model in this process.
    """

    def __init__(self, url: str, name: str, task: str) -> None:
        self._server = Server(url)
        try:
            self._choose(name, task)
        except (KeyError, TypeError, AttributeError):
            raise _foreign(url, "other facts") from None

    def _choose(self, name: str, task: str) -> None:
        try:
            known = self._server.ask("/api/models")
        except ArgumentError:  # there is something else in the path of the address
            raise _foreign(self._server.url, "no list of models") from None
        models = {one["name"]: one for one in known["models"]}
        if name not in models and name != BUILTIN:
            raise ArgumentError(f"--model is {name!r:.100}, the server has {', '.join(models)}")
        among = [models[name]] if name in models else sorted(models.values(), key=lambda one: one["main"] != task)
        able = [one for one in among if task in one["tasks"]]
        if not able:
            can = "; ".join(f"{one['name']}: {', '.join(one['tasks'])}" for one in models.values())
            raise MissingHeadError(f"{self._server.url}: no such model can do {task}", hint=f"there are {can}")
        self.facts: Mapping[str, Any] = able[0]
        self.source: str = self.facts["name"]
        names, thresholds = tuple(self.facts["labels"]), tuple(self.facts["thresholds"])
        self.labels = Labels(names, None, thresholds or None) if names else None
        vectors = self.facts["vectors"] or {}
        config = SimpleNamespace(**vectors, prompts=self.facts["prompts"])
        self.embedder: Any = SimpleNamespace(unit=vectors.get("unit"), config=config)

    def width(self, options: Mapping[str, Any]) -> int:
        """The size of the vectors that options give."""
        (found,) = self._results(CATALOGUE["embed"], ["a"], options, None)
        return len(found.embedding)

    def run(
        self, task: str, records: Iterable[Any], *, on_error: str, usage: "Usage | None" = None, **options: Any
    ) -> Iterator[Any]:
        """The results of records in their order, of a few hundred at a time.

        Args:
            task: The name of the task, as the command line has it.
            records: Items, or errors in their place.
            on_error: `raise`, or `return` a Failure in place of a record that cannot be used.
            usage: Counts texts and tokens.
            options: The options of the task.
        """
        entry, start = _ENTRIES[task], 0
        for window, _ in windows(records, _WINDOW):
            checked = [_checked(record) for record in window]
            good = [record for record in checked if not isinstance(record, InputError)]
            results = iter(self._results(entry, good, options, usage) if good else ())
            for number, record in enumerate(checked, start):
                found = record if isinstance(record, InputError) else next(results)
                if isinstance(found, InputError) and on_error == "raise":
                    alone = start == 0 and len(window) == 1
                    raise found if alone else InputError(f"input {number}: {found.message}", hint=found.hint)
                yield Failure(number, found) if isinstance(found, InputError) else found
            start += len(window)

    def scores(
        self, task: str, query: str, texts: Iterable[str | InputError], usage: "Usage", **options: Any
    ) -> Iterator[Any]:
        """How near texts are to a query, or how well they answer it; see `run`."""
        if isinstance(problem := _checked(query), InputError):
            raise problem
        usage.texts += _ENTRIES[task] is SIMILARITY  # the query has a vector of its own
        return map(_scored, self.run(task, with_query(query, texts), on_error="return", usage=usage, **options))

    def _results(
        self, entry: TaskEntry, items: Sequence[Any], options: Mapping[str, Any], usage: "Usage | None"
    ) -> list[Any]:
        """The results of items, which are counted; of fewer at a time, if they are too many for the server."""
        given = {name: value for name, value in options.items() if value is not None}
        body = {**_body(entry, items), **given, "model": self.source, "on_error": "return"}
        try:
            reply = self._server.ask(f"/api/{entry.name}", body)
        except _ServerLimitError as problem:
            if len(items) == 1:
                return [InputError(problem.message, hint=problem.hint)]
            half = len(items) // 2
            return [one for part in (items[:half], items[half:]) for one in self._results(entry, part, options, usage)]
        try:
            truncated, unknown, results = {*reply["truncated"]}, {*reply["only_unknown"]}, reply["results"]
            if entry.items == "query":
                results.sort(key=lambda values: values["index"])
            if usage is not None:
                usage.texts += sum("error" not in values for values in results)
                usage.tokens += reply["tokens"]
                usage.truncated += len(truncated)
                usage.only_unknown += len(unknown)
            for number, values in enumerate(results):
                values |= {"truncated": number in truncated, "only_unknown": number in unknown}
            return [_result(entry, item, values, options) for item, values in zip(items, results, strict=True)]
        except (KeyError, TypeError, AttributeError, ValueError):  # also where there are more results than items
            raise _foreign(self._server.url, "other results") from None


def _trusted() -> ssl.SSLContext:
    """The certificates that are trusted; those of certifi, where Python has none, as python.org's on a Mac."""
    context = ssl.create_default_context()
    context.set_alpn_protocols(["http/1.1"])  # this and the next, as http.client's own contexts have them
    if context.post_handshake_auth is not None:
        context.post_handshake_auth = True
    if not _has_certificates(ssl.get_default_verify_paths()):
        with suppress(ImportError):
            import certifi

            context.load_verify_locations(certifi.where())
    return context


def _has_certificates(paths: ssl.DefaultVerifyPaths) -> bool:
    if paths.cafile is not None:
        return True
    with suppress(OSError):
        return bool(paths.capath and os.listdir(paths.capath))
    return True  # OpenSSL opens files by their names also in a folder that cannot be listed


def _foreign(url: str, what: str) -> MlxbertError:
    return MlxbertError(f"{url}: answers with {what}, not as a server of mlxbert {__version__} does", hint=_ADDRESS)


def _checked(record: Any) -> Any:
    """A record, or why it cannot be sent."""
    try:
        for text in record if isinstance(record, tuple) else (record,):
            if not isinstance(text, InputError):
                text.encode()
    except UnicodeEncodeError:
        return InputError(f"the text {_SURROGATE}")
    return record


def _body(entry: TaskEntry, items: Sequence[Any]) -> dict[str, Any]:
    """Items as the route of a task takes them."""
    if entry.options is EmbedOptions:
        return {"texts": items, "encoding_format": "base64"}  # the shortest decimal numbers take long to find
    match entry.items:
        case "query":
            return {"query": items[0][0], "texts": [text for _, text in items]}
        case "question" if len({context for _, context in items}) == 1:
            return {"questions": [question for question, _ in items], "context": items[0][1]}
        case "question" | "pair":
            return {"pairs": items}
    return {"texts": items}


def _result(entry: TaskEntry, item: Any, values: dict[str, Any], options: Mapping[str, Any]) -> Any:
    """The result of an item, or the error.

    Args:
        entry: The task.
        item: The item.
        values: The JSON object.
        options: The options of the task.
    """
    if "error" in values:
        return InputError(values["error"], hint=values.get("hint"))
    if isinstance(values.get("embedding"), str):
        import numpy as np

        whole = options.get("output_dtype", "float32") != "float32"
        values["embedding"] = np.frombuffer(base64.b64decode(values["embedding"]), "i1" if whole else "<f4")
    if entry.items == "question":
        values["context"] = item[1]
    return imported(entry.result).from_dict(values)


def _scored(result: Any) -> Any:
    """The text of a result with its score; its place is among the texts of one request, and so of no use."""
    if isinstance(result, Failure):
        return result
    unknown, logit = getattr(result, "unknown_tokens", 0), getattr(result, "logit", None)
    return Scored(result.score, result.text, result.truncated, unknown, logit)
