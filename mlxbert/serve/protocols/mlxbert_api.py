"""Our own routes: each task with the JSON of the command line, search, and information about models and the server."""

import asyncio
import base64
import functools
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import fields, replace
from typing import Annotated, Any, ClassVar, Literal, cast

import msgspec
from msgspec import Meta, Struct

from mlxbert.errors import InputError
from mlxbert.option_declarations import Option
from mlxbert.results.embed import Embedding
from mlxbert.results.json import plain
from mlxbert.results.result import Failure
from mlxbert.results.text_relations import Similarity
from mlxbert.search.filters import make_filter
from mlxbert.search.hit import Hit
from mlxbert.search.store import storable
from mlxbert.serve.engine.next_batch import Answered
from mlxbert.serve.json_bodies import each
from mlxbert.serve.open_indexes import hits_bytes
from mlxbert.serve.protocol import Protocol, Reply, RequestError, Route, plain_shape
from mlxbert.serve.protocols import ollama
from mlxbert.serve.protocols.embedding_requests import compare
from mlxbert.serve.service import EMBED, ModelFacts, Service
from mlxbert.tasks import item_kinds
from mlxbert.tasks.catalogue import CATALOGUE, SIMILARITY, TaskEntry
from mlxbert.tasks.item_kinds import ItemKind
from mlxbert.tasks.options import EmbedOptions, RankingOptions, RerankOptions, TaskOptions, deciding_options
from mlxbert.tasks.query_ranking import check_query, rank, reranked
from mlxbert.version import __version__

Pair = Annotated[list[str], Meta(min_length=2, max_length=2)]
_FEW_HITS = 1000  # up to this number, the memory of hits is not checked
_HIT_BYTES = 5000  # the approximate size of a hit
_OLLAMA_FIELDS = ("model", "input", "truncate", "options", "keep_alive", "dimensions")  # allowed with `input`


class TaskBody(Struct, kw_only=True, forbid_unknown_fields=True, omit_defaults=True):
    """The fields of all tasks.

    Attributes:
        model: The name of the model; by default the first one for the task.
        on_error: `raise` makes an unusable text an error of the request; `return` puts `{"index", "error"}` in place of
            its result.
    """

    model: str | None = None
    on_error: Literal["raise", "return"] = "raise"


class TextsBody(TaskBody, kw_only=True):
    """The body of a task that takes texts.

    Attributes:
        texts: The texts.
    """

    texts: list[str]

    def items(self) -> Sequence[Any]:
        """Returns the texts."""
        return self.texts


class TextsOrPairsBody(TaskBody, kw_only=True):
    """The body of a task that takes texts and pairs of texts.

    Attributes:
        texts: Texts, or pairs of texts.
    """

    texts: list[str | Pair]

    def items(self) -> Sequence[Any]:
        """Returns the texts and pairs."""
        return self.texts


class PairsBody(TaskBody, kw_only=True):
    """The body of a task that takes pairs of texts.

    Attributes:
        pairs: The pairs.
    """

    pairs: list[Pair]

    def items(self) -> Sequence[Any]:
        """Returns the pairs."""
        return self.pairs


class QuestionsBody(TaskBody, kw_only=True):
    """Questions about one context, or questions with a context each.

    Attributes:
        questions: Questions about `context`.
        context: The text with the answers.
        pairs: Instead of `questions` and `context`: pairs of a question and its context.
    """

    questions: list[str] | None = None
    context: str | None = None
    pairs: list[Pair] | None = None

    def items(self) -> Sequence[Any]:
        """Returns the questions, each with its context."""
        if self.pairs is not None and self.questions is None and self.context is None:
            return self.pairs
        if self.pairs is not None or self.questions is None or self.context is None:
            raise RequestError("invalid", "the body needs either pairs, or questions with a context", param="pairs")
        return [(question, self.context) for question in self.questions]


class QueryBody(TaskBody, kw_only=True):
    """A query and texts to rank.

    Attributes:
        query: The query.
        texts: The texts.
    """

    query: str
    texts: list[str]


class TextsToEmbedBody(TaskBody, kw_only=True):
    """Texts to embed, from our clients or ollama's.

    Attributes:
        texts: The texts.
        encoding_format: `base64` returns the little-endian bytes of the vectors in base64.
        input: Instead of `texts`, from ollama's clients: a text, or a list of texts. The answer has ollama's format.
        truncate: With `input`: if false, texts that are too long are an error.
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


_BODIES: Mapping[ItemKind, type[TaskBody]] = {
    item_kinds.TEXT: TextsBody,
    item_kinds.TEXT_OR_PAIR: TextsOrPairsBody,
    item_kinds.PAIR: PairsBody,
    item_kinds.QUESTION: QuestionsBody,
    item_kinds.QUERY: QueryBody,
}


def make_body(entry: TaskEntry, items: type[TaskBody]) -> type[TaskBody]:
    """Makes the type of a task's bodies: the items, and the options with their types, defaults and descriptions.

    Options for batch sizes are left out, since the engine decides on them. Bounds are only described: the options
    themselves check them, with better error messages.
    """
    defaults = {field.name: field.default for field in fields(entry.options)}
    options = [
        (name, Annotated[kind, _meta(option)], defaults[name])
        for name, (kind, option) in deciding_options(entry.options).items()
    ]
    about = {"__doc__": f"{entry.summary}: the options of `mlxbert.{entry.name.replace('-', '_')}`."}
    title = "".join(word.capitalize() for word in entry.name.split("-"))
    body_type: Any = msgspec.defstruct(
        title, options, bases=(items,), module=__name__, namespace=about, kw_only=True, forbid_unknown_fields=True,
        omit_defaults=True,
    )  # fmt: skip
    return cast(type[TaskBody], body_type)


def _meta(option: Option) -> Meta:
    """Returns the description of an option for `/openapi.json`."""
    default = f" By default: {option.usual.rstrip('.')}." if option.usual else ""
    schema: dict[str, Any] = {"examples": [*option.values]} if option.values else {}
    if option.bounds is not None:
        schema |= {"minimum": option.bounds.least, "maximum": option.bounds.most}
    return Meta(description=" ".join(f"{option.help}{default}".split()), extra_json_schema=schema)


def read_options(entry: TaskEntry, body: TaskBody) -> Any:
    """Makes the options of a task from the body of a request."""
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
    """The results in the order of the texts, or by rank.

    Attributes:
        model: The name of the model.
        results: The results as the command line prints them; `{"index", "error"}` in place of an unusable text.
        tokens: The number of computed tokens.
        truncated: The indices of the truncated texts.
        only_unknown: The indices of the texts with only unknown tokens, if the task counts them.
    """

    model: str
    results: list[dict[str, Any]]
    tokens: int
    truncated: Sequence[int]
    only_unknown: Sequence[int]


class SearchResults(Struct):
    """The passages that a search finds."""

    index: str
    results: list[dict[str, Any]]


class ServedModels(Struct):
    """The served models and indexes."""

    models: list[ModelFacts]
    indexes: list[str]


def _reply(
    model: str, answered: Answered[Any], results: Sequence[Any], truncated: int | None = None, *, coded: bool = False
) -> Reply:
    def value() -> Results:
        shown = each(results, lambda item: _encoded(item) if coded and isinstance(item, Embedding) else _to_dict(item))
        unknown = [number for number, item in enumerate(answered.results) if getattr(item, "only_unknown", False)]
        return Results(model, shown, answered.tokens, answered.truncated, unknown)

    return Reply(value, answered.tokens, len(answered.truncated) if truncated is None else truncated)


def _encoded(result: Embedding) -> dict[str, Any]:
    """Converts a result to JSON with its vector in base64, which is faster than formatting decimal numbers."""
    without = replace(result, embedding=result.embedding[:0]).to_dict()
    return without | {"embedding": base64.b64encode(result.embedding.tobytes()).decode()}


def _to_dict(result: Any) -> dict[str, Any]:
    values: dict[str, Any] = plain(result, each)
    if isinstance(result, Failure) and result.error.hint is not None:
        values["hint"] = result.error.hint
    return values


async def answer(entry: TaskEntry, service: Service, body: Any) -> Reply:
    """Returns the result of each item, in order."""
    options = read_options(entry, body)
    model = service.find(body.model, entry.name, labels=getattr(options, "labels", None) is not None)
    answered = await service.run(model, entry, body.items(), options, body.on_error)
    return _reply(model, answered, answered.results)


async def embed(entry: TaskEntry, service: Service, body: Any) -> Reply:
    """Returns the vectors of texts; in ollama's format if the body has `input`."""
    if (body.texts is None) == (body.input is None):
        raise RequestError("invalid", "the body needs either texts or input", param="texts")
    names = {*msgspec.to_builtins(body)}
    allowed = _OLLAMA_FIELDS if body.texts is None else names - {"truncate", "options", "keep_alive"}
    if refused := sorted(names - {*allowed}):
        other = "input" if body.texts is None else "texts"
        raise RequestError("invalid", f"{refused[0]} and {other} cannot be combined", param=refused[0])
    if body.input is not None:
        texts = [body.input] if isinstance(body.input, str) else body.input
        return await ollama.embed(service, body.model, texts, body.truncate, body.dimensions)
    model = service.find(body.model, entry.name)
    answered = await service.run(model, entry, body.texts, read_options(entry, body), body.on_error)
    return _reply(model, answered, answered.results, coded=body.encoding_format == "base64")


async def rerank(entry: TaskEntry, service: Service, body: Any) -> Reply:
    """Returns texts ranked by a cross-encoder."""
    model, options = service.find(body.model, entry.name), read_options(entry, body)
    check_query(body.query, body.texts)
    service.check_size(len(body.texts), len(body.query))
    if options.overflow != "truncate":
        await asyncio.wrap_future(
            service.engine.call(model, lambda loaded: _check_query(entry.make(loaded, options), body))
        )
    best, failures, answered = await service.rerank(model, body.query, body.texts, options, body.on_error)
    return _reply(model, answered, [*(reranked(body.query, text) for text in best), *failures])


def _check_query(task: Any, body: Any) -> None:
    try:
        task.check_query(body.query)
    except InputError as problem:  # names the query as the cause, instead of each text
        raise RequestError("too_long", problem.message, hint=problem.hint, param="query") from None


async def similarity(entry: TaskEntry, service: Service, body: Any) -> Reply:
    """Returns texts ranked by their similarity to a query."""
    model, options = service.find(body.model, EMBED.name), read_options(entry, body)
    check_query(body.query, body.texts)
    query_answer, answered, scores = await compare(service, model, body.query, body.texts, options, body.on_error)
    best, failures = rank(scores, options.top_k)
    results = [*(Similarity(body.query, *ranked[:6]) for ranked in best), *failures]
    return _reply(model, answered, results, len(answered.truncated) + len(query_answer.truncated))


async def search(service: Service, body: SearchBody) -> Reply:
    """Returns the passages that a search finds. The index's model is in memory in addition to the served models."""
    name = next(iter(service.indexes), None) if body.index is None else body.index
    if name is None or name not in service.indexes:
        names = ", ".join(service.indexes)
        expected = f"expected one of {names}" if names else "but the server was started without indexes"
        raise RequestError("not_found", f"index is {body.index!r:.100}, {expected}", param="index")
    file = service.indexes[name]
    service.check_size(1, len(body.query))
    await service.claim(min(body.top_k * _HIT_BYTES, service.room.max_bytes))

    def find() -> list[Any]:
        index = service.opened.get(name, file)
        if body.top_k > _FEW_HITS:
            service.check_answer(hits_bytes(body.top_k, index), "the hits", "use a smaller top_k")
        hits = index.search(body.query, top_k=body.top_k, mode=body.mode, where=body.where)
        if not hits and (message := index.unknown_field(make_filter(body.where))):
            raise RequestError("invalid", message, param="where")
        return hits

    hits = await asyncio.wrap_future(service.engine.call(None, find))
    return Reply(lambda: SearchResults(name, each(hits, _shown_hit)), tokens=len(hits))


def _shown_hit(hit: Hit) -> dict[str, Any]:
    """Returns a hit as it stands in the answer. The name of its file may have bytes that are not UTF-8."""
    shown: dict[str, Any] = plain(hit)
    for place in (shown, *shown["duplicates"]):
        place["path"] = place["path"] and storable(place["path"])
    return shown


async def models(service: Service, path: Mapping[str, str]) -> Reply:
    """Lists the served models and indexes."""
    return Reply(ServedModels([*service.facts.values()], [*service.indexes]))


async def status(service: Service, path: Mapping[str, str]) -> Reply:
    """Returns the state of the server and its counts."""
    engine = service.engine
    facts = {"version": __version__, "ready": service.ready, "waiting": engine.waiting, "loaded": [*engine.loaded]}
    return Reply(facts | vars(engine.counts))


# The functions that compute the answer, by the type of the options; by default `answer`.
_ANSWERS: Mapping[type[TaskOptions], Callable[[TaskEntry, Service, Any], Awaitable[Reply]]] = {
    EmbedOptions: embed, RerankOptions: rerank, RankingOptions: similarity,
}  # fmt: skip


def _route(entry: TaskEntry) -> Route:
    compute = _ANSWERS.get(entry.options, answer)
    items, reply = (TextsToEmbedBody, dict[str, Any]) if compute is embed else (_BODIES[entry.items], Results)
    bound = functools.update_wrapper(functools.partial(compute, entry), compute)
    return Route("POST", f"/api/{entry.name}", bound, entry.summary, make_body(entry, items), reply)


PROTOCOL = Protocol(
    "own",
    (
        *map(_route, (*CATALOGUE.values(), SIMILARITY)),
        Route("POST", "/api/search", search, "Passages of files", SearchBody, SearchResults),
        Route("GET", "/api/models", models, "The served models and indexes", reply=ServedModels),
        Route("GET", "/api/status", status, "The state of the server", reply=dict[str, Any]),
    ),
    plain_shape,
)
