"""Our own routes: for every task the JSON of the command line, search, and what is known of models and the server."""

import asyncio
import base64
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Annotated, Any, ClassVar, Literal

import msgspec
from msgspec import Meta, Struct

from mlxbert.errors import InputError
from mlxbert.model import Model
from mlxbert.results.embed import Embedding
from mlxbert.results.json import without_nan
from mlxbert.results.related import Similarity
from mlxbert.results.result import Failure, PartedResult
from mlxbert.search.filters import make_filter
from mlxbert.serve.indexes import hits_bytes
from mlxbert.serve.pieces import each
from mlxbert.serve.protocol import Problem, Protocol, Reply, Route, plain_shape
from mlxbert.serve.protocols import ollama
from mlxbert.serve.protocols.vectors import compare
from mlxbert.serve.queue import Answered
from mlxbert.serve.service import ModelFacts, Service
from mlxbert.tasks.answer import MAX_WORDS
from mlxbert.tasks.options import RerankOptions
from mlxbert.tasks.ranking import rank, reranked
from mlxbert.tasks.rerank import RerankTask
from mlxbert.version import __version__

Pair = Annotated[list[str], Meta(min_length=2, max_length=2)]
Overflow = Literal["truncate", "window", "error"]
_FEW = 1000  # hits of which nobody asks how much memory they take
_HIT_BYTES = 5000  # of a hit, about
# What is not an option of a task.
_OF_OLLAMA = ("model", "input", "truncate", "options", "keep_alive", "dimensions")
_APART = ("model", "on_error", "texts", "pairs", "questions", "context", "query", "encoding_format")


class Body(Struct, kw_only=True, forbid_unknown_fields=True, omit_defaults=True):
    """What all requests have.

    Attributes:
        model: The name of the model; by default the first one that was made for the task.
        on_error: `raise` makes an unusable text an error, `return` puts `{"index", "error"}` in its place.
    """

    model: str | None = None
    on_error: Literal["raise", "return"] = "raise"


class Vectors(Body, kw_only=True):
    """How texts become vectors, see `mlxbert.embed`.

    Attributes:
        pooling: How the vectors of tokens become one, in place of the model's own way.
    """

    pooling: str | None = None
    normalize: bool | None = None
    dimensions: int | None = None
    prompt: str | None = None
    prompt_name: str | None = None
    overflow: Overflow = "truncate"


class Embed(Vectors, kw_only=True):
    """See `mlxbert.embed`.

    Attributes:
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
    kind: Literal["query", "document"] | None = None
    output_dtype: Literal["float32", "int8", "binary"] = "float32"
    encoding_format: Literal["float", "base64"] = "float"


class EmbedWords(Body, kw_only=True):
    """See `mlxbert.embed_words`."""

    texts: list[str]
    layer: int = -1
    overflow: Overflow = "window"


class FillMask(Body, kw_only=True):
    """See `mlxbert.fill_mask`."""

    texts: list[str]
    top_k: int | None = None
    targets: list[str] | None = None
    text: bool = True
    overflow: Overflow = "window"


class Classify(Body, kw_only=True):
    """See `mlxbert.classify`."""

    texts: list[str | Pair]
    labels: list[str] | None = None
    hypothesis: str | None = None
    multi: bool = False
    top_k: int | None = None
    overflow: Overflow = "truncate"


class Tag(Body, kw_only=True):
    """See `mlxbert.tag`."""

    texts: list[str]
    aggregation: Literal["none", "simple", "first", "average", "max"] | None = None
    overflow: Overflow = "window"


class Answer(Body, kw_only=True):
    """See `mlxbert.answer`: questions about one context, or each with its own.

    Attributes:
        questions: Questions about `context`.
        context: The text that has the answers.
        pairs: In place of both: questions, each with its own context.
    """

    questions: list[str] | None = None
    context: str | None = None
    pairs: list[Pair] | None = None
    top_k: int = 1
    max_words: int = MAX_WORDS
    max_length: int | None = None
    stride: int | None = None
    no_answer_threshold: float | None = None
    overflow: Overflow = "window"

    def items(self) -> Sequence[Sequence[str]]:
        """The questions, each with its context."""
        if self.pairs is not None and self.questions is None and self.context is None:
            return self.pairs
        if self.pairs is not None or self.questions is None or self.context is None:
            raise Problem("invalid", "expected either pairs, or questions and a context", param="pairs")
        return [(question, self.context) for question in self.questions]


class Rerank(Body, kw_only=True):
    """See `mlxbert.rerank`."""

    query: str
    texts: list[str]
    top_k: Annotated[int, Meta(ge=1)] | None = None
    prompt: str | None = None
    overflow: Overflow = "truncate"


class Compare(Vectors, kw_only=True):
    """See `mlxbert.similarity`."""

    query: str
    texts: list[str]
    top_k: Annotated[int, Meta(ge=1)] | None = None
    query_prompt: str | None = None
    query_prompt_name: str | None = None


class NextSentence(Body, kw_only=True):
    """See `mlxbert.next_sentence`."""

    pairs: list[Pair]
    overflow: Literal["truncate", "error"] = "truncate"


class Replaced(Body, kw_only=True):
    """See `mlxbert.replaced`."""

    texts: list[str]
    overflow: Overflow = "window"


class Search(Struct, kw_only=True, forbid_unknown_fields=True):
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


class Found(Struct):
    """What a search finds."""

    index: str
    results: list[dict[str, Any]]


class Known(Struct):
    """The models and indexes that are served."""

    models: list[ModelFacts]
    indexes: list[str]


def _options(body: Body, *apart: str) -> dict[str, Any]:
    """The options that are not defaults: requests that spell these out share batches with those that do not."""
    given: dict[str, Any] = msgspec.to_builtins(body)
    return {name: value for name, value in given.items() if name not in _APART and name not in apart}


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
    found = replace(result, embedding=result.embedding[:0]).to_dict()
    return found | {"embedding": base64.b64encode(result.embedding.tobytes()).decode()}


def _to_dict(result: Any) -> dict[str, Any]:
    found: dict[str, Any] = result.to_dict(each) if isinstance(result, PartedResult) else result.to_dict()
    if isinstance(result, Failure) and result.error.hint is not None:
        found["hint"] = result.error.hint
    return found


def _task(task: str, body: type[Body], summary: str, items: Callable[[Any], Sequence[Any]]) -> Route:
    """The route of a task that gives each item a result."""

    async def answer(service: Service, body: Body) -> Reply:
        model = service.find(body.model, task)
        answered = await service.run(model, task, items(body), on_error=body.on_error, **_options(body))
        return _reply(model, answered, answered.results)

    return Route("POST", f"/api/{task}", answer, summary, body, Results)


async def embed(service: Service, body: Embed) -> Reply:
    """The vectors of texts; or, of the input of ollama's clients, in the shape that they expect."""
    if (body.texts is None) == (body.input is None):
        raise Problem("invalid", "expected either texts, or an input", param="texts")
    given = {*msgspec.to_builtins(body)}
    known = _OF_OLLAMA if body.texts is None else given - {"truncate", "options", "keep_alive"}
    if odd := sorted(given - {*known}):
        other = "input" if body.texts is None else "texts"
        raise Problem("invalid", f"there are both {odd[0]} and {other}, expected one of them", param=odd[0])
    if body.input is not None:
        texts = [body.input] if isinstance(body.input, str) else body.input
        return await ollama.embed(service, body.model, texts, body.truncate, body.dimensions)
    assert body.texts is not None
    model = service.find(body.model, "embed")
    answered = await service.run(model, "embed", body.texts, on_error=body.on_error, **_options(body))
    return _reply(model, answered, answered.results, coded=body.encoding_format == "base64")


async def rerank(service: Service, body: Rerank) -> Reply:
    """Texts in the order of a cross-encoder."""
    model = service.find(body.model, "rerank")
    service.check_size(len(body.texts), len(body.query))
    if body.overflow != "truncate":
        await asyncio.wrap_future(service.engine.call(model, lambda one: _check_query(one, body)))
    best, failures, answered = await service.rerank(
        model, body.query, body.texts, body.top_k, on_error=body.on_error, **_options(body, "top_k")
    )
    return _reply(model, answered, [*(reranked(body.query, one) for one in best), *failures])


def _check_query(model: Model, body: Rerank) -> None:
    try:
        RerankTask(model, RerankOptions(overflow=body.overflow)).check_query(body.query)
    except InputError as problem:  # not each text, but the query is to blame
        raise Problem("too_long", problem.message, hint=problem.hint, param="query") from None


async def similarity(service: Service, body: Compare) -> Reply:
    """Texts in the order of their similarity to a query."""
    model, given = service.find(body.model, "embed"), _options(body, "top_k")
    asked, answered, scores = await compare(service, model, body.query, body.texts, given, body.on_error)
    best, failures = rank(scores, body.top_k)
    results = [*(Similarity(body.query, *one[:6]) for one in best), *failures]
    return _reply(model, answered, results, len(answered.truncated) + len(asked.truncated))


async def search(service: Service, body: Search) -> Reply:
    """Passages of files. An index belongs to the thread that opens it, and has a model of its own in memory."""
    name = next(iter(service.indexes), None) if body.index is None else body.index
    if name is None or name not in service.indexes:
        known = ", ".join(service.indexes) or "none: the server was started without indexes"
        raise Problem("not_found", f"index is {body.index!r:.100}, expected one of {known}", param="index")
    file = service.indexes[name]
    service.check_size(1, len(body.query))
    await service.claim(min(body.top_k * _HIT_BYTES, service.room.most))

    def find() -> list[Any]:
        opened = service.opened.get(name, file)
        if body.top_k > _FEW:
            service.check_answer(hits_bytes(body.top_k, opened), "the hits", "a smaller top_k gives fewer")
        found = opened.search(body.query, top_k=body.top_k, mode=body.mode, where=body.where)
        if not found and (said := opened.unknown_field(make_filter(body.where))):
            raise Problem("invalid", said, param="where")
        return found

    hits = await asyncio.wrap_future(service.engine.call(None, find))
    return Reply(lambda: Found(name, each(hits, lambda hit: without_nan(hit.to_dict()))), tokens=len(hits))


async def models(service: Service, path: Mapping[str, str]) -> Reply:
    """The models and the indexes."""
    return Reply(Known([*service.facts.values()], [*service.indexes]))


async def status(service: Service, path: Mapping[str, str]) -> Reply:
    """What the server is doing."""
    engine = service.engine
    facts = {"version": __version__, "ready": service.ready, "waiting": engine.waiting, "loaded": [*engine.loaded]}
    return Reply(facts | vars(engine.counts))


def _texts(body: Any) -> Sequence[Any]:
    texts: Sequence[Any] = body.texts
    return texts


PROTOCOL = Protocol(
    "own",
    (
        Route("POST", "/api/embed", embed, "Vectors of texts", Embed, dict[str, Any]),
        _task("embed-words", EmbedWords, "Vectors of the words of texts", _texts),
        _task("fill-mask", FillMask, "Words for masks", _texts),
        _task("classify", Classify, "Classes of texts or pairs of texts", _texts),
        _task("tag", Tag, "Entities of texts, or tags of words", _texts),
        _task("answer", Answer, "Answers to questions", Answer.items),
        _task("next-sentence", NextSentence, "Whether a text follows another", lambda body: body.pairs),
        _task("replaced", Replaced, "Which tokens look replaced", _texts),
        Route("POST", "/api/rerank", rerank, "Texts in the order of a cross-encoder", Rerank, Results),
        Route("POST", "/api/similarity", similarity, "Texts in the order of similarity", Compare, Results),
        Route("POST", "/api/search", search, "Passages of files", Search, Found),
        Route("GET", "/api/models", models, "The models and indexes that are served", reply=Known),
        Route("GET", "/api/status", status, "What the server is doing", reply=dict[str, Any]),
    ),
    plain_shape,
)
