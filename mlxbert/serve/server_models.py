"""Lets commands use a model on a server that `mlxbert serve` started, instead of loading a model."""

import base64
import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

from mlxbert.errors import ArgumentError, InputError, MissingHeadError, MlxbertError
from mlxbert.labels.labels import Labels
from mlxbert.lazy_numpy import np
from mlxbert.readers.stream import windows
from mlxbert.results.result import Failure
from mlxbert.serve.http_client import KEY_HINT, SURROGATE, HttpClient
from mlxbert.tasks.catalogue import CATALOGUE, SIMILARITY, TaskEntry, imported
from mlxbert.tasks.options import EmbedOptions
from mlxbert.tasks.query_ranking import Scored, with_query
from mlxbert.version import __version__
from mlxbert.weights.model_source import BUILTIN

if TYPE_CHECKING:
    from mlxbert.text.usage import Usage

_WINDOW = 512  # the maximum number of items in a request
_ADDRESS_HINT = "use the address that `mlxbert serve` prints"
_ENTRIES: Mapping[str, TaskEntry] = {**CATALOGUE, SIMILARITY.name: SIMILARITY}


class _ServerLimitError(InputError):
    """The request exceeds a limit of the server."""


class Server:
    """A client of a server that `mlxbert serve` started."""

    def __init__(self, url: str) -> None:
        self._client = HttpClient(url, hint=_ADDRESS_HINT)
        self.url = self._client.url

    def ask(self, path: str, body: Mapping[str, Any] | None = None) -> Any:
        """Sends a POST, or a GET if there is no body, and returns the answer; retries while the server is busy."""
        status, content = self._client.send(path, body)
        try:
            reply = json.loads(content)
        except ValueError:
            reply = None
        if status == 200 and isinstance(reply, dict):
            return reply
        raise self._error(status, reply if isinstance(reply, dict) else {})

    def _error(self, status: int, reply: Mapping[str, Any]) -> MlxbertError:
        message, hint = reply.get("error"), reply.get("hint")
        if status in (401, 403):
            return MlxbertError(f"{self.url}: the server refuses the key", hint=KEY_HINT)
        if not isinstance(message, str) or "kind" not in reply:
            return _foreign(self.url, f"status {status}")
        kinds = {
            "invalid": ArgumentError, "not_found": ArgumentError, "too_large": _ServerLimitError,
            "too_long": InputError,
        }  # fmt: skip
        return kinds.get(str(reply["kind"]), MlxbertError)(message, hint=hint if isinstance(hint, str) else None)


class ServerModel:
    """A model on a server, with the attributes of a local model that commands use.

    If the server has no built-in model, the name `builtin` stands for its first model that was made for the task.
    `facts` are those of `mlxbert.serve.service.ModelFacts`.
    """

    def __init__(self, url: str, name: str, task: str, *, labels: bool = False) -> None:
        self._server = Server(url)
        try:
            self._choose(name, task, labels)
        except (KeyError, TypeError, AttributeError):
            raise _foreign(url, "unexpected facts about a model") from None

    def _choose(self, name: str, task: str, labels: bool) -> None:
        try:
            reply = self._server.ask("/api/models")
        except ArgumentError:  # the address has another path
            raise _foreign(self._server.url, "no list of models") from None
        models = {model["name"]: model for model in reply["models"]}
        if name not in models and name != BUILTIN:
            raise ArgumentError(f"--model is {name!r:.100}, but the server has only the models {', '.join(models)}")
        named = [models[name]] if name in models else models.values()
        capable = _ENTRIES[task].capable(named, labels=labels)
        if not capable:
            tasks = "; ".join(f"{model['name']} ({', '.join(model['tasks'])})" for model in models.values())
            subject = f"the model {name} cannot" if name in models else "no model of the server can"
            able = ", ".join(model["name"] for model in _ENTRIES[task].capable(models.values(), labels=labels))
            hint = f"of the models of the server, {able} can" if able else f"the server has {tasks}"
            raise MissingHeadError(f"{self._server.url}: {subject} do the task {task}", hint=hint)
        self.facts: Mapping[str, Any] = capable[0]
        self.source: str = self.facts["name"]
        names, thresholds = tuple(self.facts["labels"]), tuple(self.facts["thresholds"])
        self.labels = Labels(names, None, thresholds or None) if names else None
        vectors = self.facts["vectors"] or {}
        config = SimpleNamespace(**vectors, prompts=self.facts["prompts"])
        # As of a `Model`, but of the tasks that the server offers.
        offered = (CATALOGUE[task].vectors for task in self.facts["tasks"])
        self.vectors = (*(["dense"] if self.facts["size"] else []), *(kind for kind in offered if kind is not None))
        self.embedder: Any = SimpleNamespace(unit=vectors.get("unit"), config=config)

    def width(self, options: Mapping[str, Any]) -> int:
        """Returns the size of the vectors that the model makes with these options."""
        (embedding,) = self._results(CATALOGUE["embed"], ["a"], options, None)
        return len(embedding.embedding)

    def run(
        self, task: str, records: Iterable[Any], *, on_error: str, usage: "Usage | None" = None, **options: Any
    ) -> Iterator[Any]:
        """Yields the results of records, which may be errors, in their order; sends a few hundred per request."""
        entry, start = _ENTRIES[task], 0
        for window, _ in windows(records, _WINDOW):
            checked = [_checked(record) for record in window]
            good = [record for record in checked if not isinstance(record, InputError)]
            results = iter(self._results(entry, good, options, usage) if good else ())
            for number, record in enumerate(checked, start):
                result = record if isinstance(record, InputError) else next(results)
                if isinstance(result, InputError) and on_error == "raise":
                    alone = start == 0 and len(window) == 1
                    raise result if alone else InputError(f"input {number}: {result.message}", hint=result.hint)
                yield Failure(number, result) if isinstance(result, InputError) else result
            start += len(window)

    def scores(
        self, task: str, query: str, texts: Iterable[str | InputError], usage: "Usage", **options: Any
    ) -> Iterator[Any]:
        """Yields a score for each text: its similarity to a query, or how well it answers the query (see `run`)."""
        if isinstance(problem := _checked(query), InputError):
            raise problem
        usage.texts += _ENTRIES[task] is SIMILARITY  # the query is embedded, too
        return map(_scored, self.run(task, with_query(query, texts), on_error="return", usage=usage, **options))

    def _results(
        self, entry: TaskEntry, items: Sequence[Any], options: Mapping[str, Any], usage: "Usage | None"
    ) -> list[Any]:
        """Returns the results of items and counts them; splits a request in two if it exceeds a limit of the server."""
        chosen = {name: value for name, value in options.items() if value is not None}
        body = {**_body(entry, items), **chosen, "model": self.source, "on_error": "return"}
        try:
            reply = self._server.ask(f"/api/{entry.name}", body)
        except _ServerLimitError as problem:
            if len(items) == 1:
                return [InputError(problem.message, hint=problem.hint)]
            half = len(items) // 2
            halves = (items[:half], items[half:])
            return [result for part in halves for result in self._results(entry, part, options, usage)]
        try:
            truncated, unknown, results = {*reply["truncated"]}, {*reply["only_unknown"]}, reply["results"]
            if entry.items.ranked:
                results.sort(key=lambda values: values["index"])
            if usage is not None:
                usage.texts += sum("error" not in values for values in results)
                usage.tokens += reply["tokens"]
                usage.truncated += len(truncated)
                usage.only_unknown += len(unknown)
            for number, values in enumerate(results):
                values |= {"truncated": number in truncated, "only_unknown": number in unknown}
            return [_result(entry, item, values, options) for item, values in zip(items, results, strict=True)]
        except (KeyError, TypeError, AttributeError, ValueError):  # `zip` raises ValueError if counts differ
            raise _foreign(self._server.url, "unexpected results") from None


def _foreign(url: str, what: str) -> MlxbertError:
    return MlxbertError(
        f"{url}: the server answers with {what}, unlike a server of mlxbert {__version__}", hint=_ADDRESS_HINT
    )


def _checked(record: Any) -> Any:
    """Returns the record unchanged, or an error if it cannot be sent."""
    try:
        for text in record if isinstance(record, tuple) else (record,):
            if not isinstance(text, InputError):
                text.encode()
    except UnicodeEncodeError:
        return InputError(f"the text {SURROGATE}")
    return record


def _body(entry: TaskEntry, items: Sequence[Any]) -> dict[str, Any]:
    """Returns the items in the form in which the route of the task accepts them."""
    if entry.options is EmbedOptions:
        return {"texts": items, "encoding_format": "base64"}  # faster than writing floats in decimal
    return entry.items.to_body(items)


def _result(entry: TaskEntry, item: Any, values: dict[str, Any], options: Mapping[str, Any]) -> Any:
    """Converts a JSON object of the server's answer to the result of an item, or to its error."""
    if "error" in values:
        return InputError(values["error"], hint=values.get("hint"))
    if isinstance(values.get("embedding"), str):
        integers = options.get("output_dtype", "float32") != "float32"
        values["embedding"] = np.frombuffer(base64.b64decode(values["embedding"]), "i1" if integers else "<f4")
    return imported(entry.result).from_dict(values | entry.items.not_in_json(item))


def _scored(result: Any) -> Any:
    """Converts a result to a scored text without its index, which counts only the texts of one request."""
    if isinstance(result, Failure):
        return result
    unknown, logit = getattr(result, "unknown_tokens", 0), getattr(result, "logit", None)
    return Scored(result.score, result.text, result.truncated, unknown, logit)
