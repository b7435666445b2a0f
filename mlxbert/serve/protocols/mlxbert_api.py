"""Our own routes: for every task the JSON of the command line, search, and what is known of models and the server."""

import asyncio
import base64
import functools
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import fields, replace
from typing import Annotated, Any, ClassVar, Literal, cast

import msgspec
from msgspec import Meta, Struct

from mlxbert.errors import InputError
from mlxbert.options import Option
from mlxbert.results.embed import Embedding
from mlxbert.results.json import plain
from mlxbert.results.related import Similarity
from mlxbert.results.result import Failure
from mlxbert.search.filters import make_filter
from mlxbert.serve.engine.request_queue import Answered
from mlxbert.serve.json_stream import each
from mlxbert.serve.open_indexes import hits_bytes
from mlxbert.serve.protocol import Protocol, Reply, RequestError, Route, plain_shape
from mlxbert.serve.protocols import ollama
from mlxbert.serve.protocols.embedding_requests import compare
from mlxbert.serve.service import EMBED, ModelFacts, Service
from mlxbert.tasks.catalogue import CATALOGUE, SIMILARITY, TaskEntry
from mlxbert.tasks.options import EmbedOptions, RankingOptions, RerankOptions, TaskOptions, deciding_options
from mlxbert.tasks.query_ranking import rank, reranked
from mlxbert.version import __version__

Pair = Annotated[list[str], Meta(min_length=2, max_length=2)]
_FEW = 1000  # hits of which nobody asks how much memory they take
_HIT_BYTES = 5000  # of a hit, about
_OF_OLLAMA = ("model", "input", "truncate", "options", "keep_alive", "dimensions")  # of a body with `input`


class TaskBody(Struct, kw_only=True, forbid_unknown_fields=True, omit_defaults=True):
    """The fields of all tasks.

    Attributes:
        model: The name of the model; by default the first one that was made for the task.
        on_error: `raise` makes an unusable text an error, `return` puts `{"index", "error"}` in its place.
    """

    model: str | None = None
    on_error: Literal["raise", "return"] = "raise"


class TextsBody(TaskBody, kw_only=True):
    """The items of a task of texts.

    Attributes:
        texts: The texts.
    """

    texts: list[str]

    def items(self) -> Sequence[Any]:
        """The texts."""
        return self.texts


class TextsOrPairsBody(TaskBody, kw_only=True):
    """The items of a task of texts and of pairs of texts.

    Attributes:
        texts: Texts, or pairs of texts.
    """

    texts: list[str | Pair]

    def items(self) -> Sequence[Any]:
        """The texts and the pairs."""
        return self.texts


class PairsBody(TaskBody, kw_only=True):
    """The items of a task of pairs of texts.

    Attributes:
        pairs: The pairs.
    """

    pairs: list[Pair]

    def items(self) -> Sequence[Any]:
        """The pairs."""
        return self.pairs


class QuestionsBody(TaskBody, kw_only=True):
    """Questions about one context, or each with its own.

    Attributes:
        questions: Questions about `context`.
        context: The text that has the answers.
        pairs: In place of both: questions, each with its own context.
    """

    questions: list[str] | None = None
    context: str | None = None
    pairs: list[Pair] | None = None

    def items(self) -> Sequence[Any]:
        """The questions, each with its context."""
        if self.pairs is not None and self.questions is None and self.context is None:
            return self.pairs
        if self.pairs is not None or self.questions is None or self.context is None:
            raise RequestError("invalid", "expected either pairs, or questions and a context", param="pairs")
        return [(question, self.context) for question in self.questions]


class QueryBody(TaskBody, kw_only=True):
    """A query, and the texts that are ranked for it.

    Attributes:
        query: The query.
        texts: The texts.
    """

    query: str
    texts: list[str]


class TextsToEmbedBody(TaskBody, kw_only=True):
    """Texts that get vectors, as our clients send them or as those of ollama do.

    Attributes:
        texts: The texts.
        encoding_format: `base64` for the bytes of the vectors in base64, little-endian.
        input: In place of `texts`, as ollama's clients send it: a text, or a list of texts. The answer has ollama's
            shape.
        truncate: With `input`: false refuses texts that are too long.
        options: With `input`: ignored.
        keep_alive: With `input`: ignored.
    """

    shorten: ClassVar[str] = '"truncate": true truncates it'
    texts: list[str] | None = None
    input: str | list[str] | None = None
    truncate: bool | None = None
    options: dict[str, Any] | None = None
    keep_alive: str | int | float | None = None
    encoding_format: Literal["float", "base64"] = "float"


_BODIES: Mapping[str, type[TaskBody]] = {
    "text": TextsBody, "text or pair": TextsOrPairsBody, "pair": PairsBody, "question": QuestionsBody,
    "query": QueryBody,
}  # fmt: skip


def make_body(entry: TaskEntry, items: type[TaskBody]) -> type[TaskBody]:
    """The type of the bodies of a task: its items, and its options with their types, defaults and descriptions.

    How large batches are is up to the engine. Bounds are in the description of the type alone: the options check them,
    and name the value in the error.
    """
    defaults = {field.name: field.default for field in fields(entry.options)}
    options = [
        (name, Annotated[kind, _meta(option)], defaults[name])
        for name, (kind, option) in deciding_options(entry.options).items()
    ]
    about = {"__doc__": f"{entry.summary}: the options of `mlxbert.{entry.name.replace('-', '_')}`."}
    title = "".join(word.capitalize() for word in entry.name.split("-"))
    made: Any = msgspec.defstruct(
        title, options, bases=(items,), module=__name__, namespace=about, kw_only=True, forbid_unknown_fields=True,
        omit_defaults=True,
    )  # fmt: skip
    return cast(type[TaskBody], made)


def _meta(option: Option) -> Meta:
    """What `/openapi.json` says of an option."""
    usual = f" By default: {option.usual.rstrip('.')}." if option.usual else ""
    more: dict[str, Any] = {"examples": [*option.values]} if option.values else {}
    if option.bounds is not None:
        more |= {"minimum": option.bounds.least, "maximum": option.bounds.most}
    return Meta(description=" ".join(f"{option.help}{usual}".split()), extra_json_schema=more)


def read_options(entry: TaskEntry, body: TaskBody) -> Any:
    """The options of a request."""
    return entry.options(**{name: getattr(body, name) for name in deciding_options(entry.options)})


class SearchBody(Struct, kw_only=True, forbid_unknown_fields=True):
    """See `mlxbert.Index.search`.

    Attributes:
        index: The name of the index; by default the first one.
    """

    query: str
    index: str | None = None
    top_k: int = 10
    mode: Literal["hybrid", "vectors", "words"] = "hybrid"
    where: list[str] = []


class Results(Struct):
    """The results in the order of the texts, or of their ranks.

    Attributes:
        model: The name of the model.
        results: What the command line prints; `{"index", "error"}` in the place of a text that cannot be used.
        tokens: How many were computed.
        truncated: The numbers of the texts that were truncated.
        only_unknown: The numbers of those in which the vocabulary knows nothing, where the task counts them.
    """

    model: str
    results: list[dict[str, Any]]
    tokens: int
    truncated: Sequence[int]
    only_unknown: Sequence[int]


class SearchResults(Struct):
    """What a search finds."""

    index: str
    results: list[dict[str, Any]]


class ServedModels(Struct):
    """The models and indexes that are served."""

    models: list[ModelFacts]
    indexes: list[str]


def _reply(
    model: str, answered: Answered, results: Sequence[Any], truncated: int | None = None, *, coded: bool = False
) -> Reply:
    def value() -> Results:
        shown = each(results, lambda one: _coded(one) if coded and isinstance(one, Embedding) else _to_dict(one))
        unknown = [number for number, one in enumerate(answered.results) if getattr(one, "only_unknown", False)]
        return Results(model, shown, answered.tokens, answered.truncated, unknown)

    return Reply(value, answered.tokens, len(answered.truncated) if truncated is None else truncated)


def _coded(result: Embedding) -> dict[str, Any]:
    """A result whose vector is the base64 of its bytes: the shortest decimal numbers take long to find."""
    without = replace(result, embedding=result.embedding[:0]).to_dict()
    return without | {"embedding": base64.b64encode(result.embedding.tobytes()).decode()}


def _to_dict(result: Any) -> dict[str, Any]:
    values: dict[str, Any] = plain(result, each)
    if isinstance(result, Failure) and result.error.hint is not None:
        values["hint"] = result.error.hint
    return values


async def answer(entry: TaskEntry, service: Service, body: Any) -> Reply:
    """The result of each item, in the order of the items."""
    model = service.find(body.model, entry.name)
    answered = await service.run(model, entry, body.items(), read_options(entry, body), body.on_error)
    return _reply(model, answered, answered.results)


async def embed(entry: TaskEntry, service: Service, body: Any) -> Reply:
    """The vectors of texts; or, of the input of ollama's clients, in the shape that they expect."""
    if (body.texts is None) == (body.input is None):
        raise RequestError("invalid", "expected either texts, or an input", param="texts")
    names = {*msgspec.to_builtins(body)}
    allowed = _OF_OLLAMA if body.texts is None else names - {"truncate", "options", "keep_alive"}
    if refused := sorted(names - {*allowed}):
        other = "input" if body.texts is None else "texts"
        raise RequestError(
            "invalid", f"there are both {refused[0]} and {other}, expected one of them", param=refused[0]
        )
    if body.input is not None:
        texts = [body.input] if isinstance(body.input, str) else body.input
        return await ollama.embed(service, body.model, texts, body.truncate, body.dimensions)
    model = service.find(body.model, entry.name)
    answered = await service.run(model, entry, body.texts, read_options(entry, body), body.on_error)
    return _reply(model, answered, answered.results, coded=body.encoding_format == "base64")


async def rerank(entry: TaskEntry, service: Service, body: Any) -> Reply:
    """Texts in the order of a cross-encoder."""
    model, options = service.find(body.model, entry.name), read_options(entry, body)
    service.check_size(len(body.texts), len(body.query))
    if options.overflow != "truncate":
        await asyncio.wrap_future(service.engine.call(model, lambda one: _check_query(entry.make(one, options), body)))
    best, failures, answered = await service.rerank(model, body.query, body.texts, options, body.on_error)
    return _reply(model, answered, [*(reranked(body.query, one) for one in best), *failures])


def _check_query(task: Any, body: Any) -> None:
    try:
        task.check_query(body.query)
    except InputError as problem:  # not each text, but the query is to blame
        raise RequestError("too_long", problem.message, hint=problem.hint, param="query") from None


async def similarity(entry: TaskEntry, service: Service, body: Any) -> Reply:
    """Texts in the order of their similarity to a query."""
    model, options = service.find(body.model, EMBED.name), read_options(entry, body)
    asked, answered, scores = await compare(service, model, body.query, body.texts, options, body.on_error)
    best, failures = rank(scores, options.top_k)
    results = [*(Similarity(body.query, *one[:6]) for one in best), *failures]
    return _reply(model, answered, results, len(answered.truncated) + len(asked.truncated))


async def search(service: Service, body: SearchBody) -> Reply:
    """Passages of files. An index belongs to the thread that opens it, and has a model of its own in memory."""
    name = next(iter(service.indexes), None) if body.index is None else body.index
    if name is None or name not in service.indexes:
        known = ", ".join(service.indexes) or "none: the server was started without indexes"
        raise RequestError("not_found", f"index is {body.index!r:.100}, expected one of {known}", param="index")
    file = service.indexes[name]
    service.check_size(1, len(body.query))
    await service.claim(min(body.top_k * _HIT_BYTES, service.room.max_bytes))

    def find() -> list[Any]:
        opened = service.opened.get(name, file)
        if body.top_k > _FEW:
            service.check_answer(hits_bytes(body.top_k, opened), "the hits", "a smaller top_k gives fewer")
        found = opened.search(body.query, top_k=body.top_k, mode=body.mode, where=body.where)
        if not found and (said := opened.unknown_field(make_filter(body.where))):
            raise RequestError("invalid", said, param="where")
        return found

    hits = await asyncio.wrap_future(service.engine.call(None, find))
    return Reply(lambda: SearchResults(name, each(hits, plain)), tokens=len(hits))


async def models(service: Service, path: Mapping[str, str]) -> Reply:
    """The models and the indexes."""
    return Reply(ServedModels([*service.facts.values()], [*service.indexes]))


async def status(service: Service, path: Mapping[str, str]) -> Reply:
    """What the server is doing."""
    engine = service.engine
    facts = {"version": __version__, "ready": service.ready, "waiting": engine.waiting, "loaded": [*engine.loaded]}
    return Reply(facts | vars(engine.counts))


# What computes the answer, by the options, where that is not `answer`.
_ANSWERS: Mapping[type[TaskOptions], Callable[[TaskEntry, Service, Any], Awaitable[Reply]]] = {
    EmbedOptions: embed, RerankOptions: rerank, RankingOptions: similarity,
}  # fmt: skip


def _route(entry: TaskEntry) -> Route:
    """The route of a task."""
    compute = _ANSWERS.get(entry.options, answer)
    items, reply = (TextsToEmbedBody, dict[str, Any]) if compute is embed else (_BODIES[entry.items], Results)
    bound = functools.update_wrapper(functools.partial(compute, entry), compute)
    return Route("POST", f"/api/{entry.name}", bound, entry.summary, make_body(entry, items), reply)


PROTOCOL = Protocol(
    "own",
    (
        *map(_route, (*CATALOGUE.values(), SIMILARITY)),
        Route("POST", "/api/search", search, "Passages of files", SearchBody, SearchResults),
        Route("GET", "/api/models", models, "The models and indexes that are served", reply=ServedModels),
        Route("GET", "/api/status", status, "What the server is doing", reply=dict[str, Any]),
    ),
    plain_shape,
)
