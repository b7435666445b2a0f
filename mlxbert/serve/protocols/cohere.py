"""Cohere's rerank and embed, versions 1 and 2; and Jina's rerank, which has the address of Cohere's first.

What Jina's clients expect is part of the same answer: `model` and `usage`.
"""

import uuid
from functools import partial
from typing import Annotated, Any, ClassVar, Literal

from msgspec import UNSET, Meta, Struct, UnsetType

from mlxbert.serve.engine.request_queue import Answered
from mlxbert.serve.json_stream import each
from mlxbert.serve.protocol import STATUS, Protocol, Reply, RequestError, Route
from mlxbert.serve.protocols.embedding_requests import (
    Form,
    Truncate,
    check_forms,
    in_form,
    overflow_of,
    prompt_of,
    texts_of,
)
from mlxbert.serve.service import EMBED, RERANK, Service
from mlxbert.tasks.options import EmbedOptions, RerankOptions

Document = str | dict[str, Any]


class CohereRerankBody(Struct):
    """What is ranked.

    Attributes:
        query: What the documents are to answer.
        documents: Texts, or objects.
        model: The name of a model; by default the first that ranks.
        top_n: Keep only the best.
        rank_fields: Which fields of objects are ranked; by default `text`.
        return_documents: Whether each result has its document.
        max_tokens_per_doc: At least what the model takes.
        truncation: False refuses documents that are too long (Jina); they are truncated otherwise.
    """

    shorten: ClassVar[str] = '"truncation": true truncates it'
    query: str
    documents: list[Document]
    model: str | None = None
    top_n: Annotated[int, Meta(ge=1)] | None = None
    rank_fields: list[str] | None = None
    return_documents: bool | None = None
    max_tokens_per_doc: int | None = None
    truncation: bool | None = None


class CohereEmbedBody(Struct, kw_only=True):
    """Texts that get vectors.

    Attributes:
        texts: The texts.
        images: Not supported.
        inputs: Not supported.
        model: The name of a model; by default the first that makes vectors.
        input_type: What the texts are, such as `search_query` or `search_document`.
        embedding_types: The forms of the vectors.
        truncate: `NONE` refuses texts that are too long, `END` truncates them.
        output_dimension: Keep only the first values, scaled to length 1.
    """

    shorten: ClassVar[str] = '"truncate": "END" truncates it'
    texts: list[str] = []
    images: list[Any] | None = None
    inputs: list[Any] | None = None
    model: str | None = None
    input_type: str | None = None
    embedding_types: list[Form] | None = None
    truncate: Truncate | None = "END"
    output_dimension: int | None = None


class ResponseMeta(Struct, omit_defaults=True):
    """What was computed, and what is to be said about it."""

    api_version: dict[str, str]
    billed_units: dict[str, int]
    warnings: list[str] = []


class RankedDocument(Struct):
    """A document in its place."""

    index: int
    relevance_score: float
    document: dict[str, Any] | UnsetType = UNSET


class JinaUsage(Struct):
    """Tokens, for Jina's clients."""

    prompt_tokens: int
    total_tokens: int


class RankingReply(Struct):
    """The best documents."""

    id: str
    model: str
    results: list[RankedDocument]
    meta: ResponseMeta
    usage: JinaUsage


class CohereEmbeddings(Struct):
    """Vectors: a list, or lists by their types."""

    id: str
    embeddings: list[Any] | dict[str, list[Any]]
    texts: list[str]
    meta: ResponseMeta
    response_type: Literal["embeddings_floats", "embeddings_by_type"]


def _notes(version: int, answered: Answered, units: dict[str, int]) -> ResponseMeta:
    cut = ", ".join(map(str, answered.truncated))
    return ResponseMeta({"version": str(version)}, units, [f"truncated to fit the model: texts {cut}"] if cut else [])


async def rerank(service: Service, body: CohereRerankBody, version: int = 1) -> Reply:
    """Documents by how well they answer a query, the best first."""
    name = service.find(body.model, RERANK.name)
    most = service.facts[name].max_length
    if body.max_tokens_per_doc is not None and body.max_tokens_per_doc < most:
        raise RequestError(
            "invalid", f"max_tokens_per_doc is {body.max_tokens_per_doc}, expected at least the {most} tokens that the "
            "model takes: documents are truncated to fit it", param="max_tokens_per_doc",
        )  # fmt: skip
    texts = texts_of([_text(one, body.rank_fields or ["text"]) for one in body.documents], "documents")
    top_k = None if body.top_n is None else min(body.top_n, len(texts))  # any number, as Cohere takes it
    options = RerankOptions(top_k=top_k, overflow=overflow_of(service, body.truncation is not False))
    best, _, answered = await service.rerank(name, body.query, texts, options)

    def shown(number: int) -> dict[str, Any] | UnsetType:
        document = body.documents[number]
        if not body.return_documents:
            return UNSET
        return {"text": document} if isinstance(document, str) else document

    results = [RankedDocument(one.number, one.score, shown(one.number)) for one in best]
    tokens = answered.tokens
    notes = _notes(version, answered, {"search_units": 1})
    value = RankingReply(uuid.uuid4().hex, name, results, notes, JinaUsage(tokens, tokens))
    return Reply(value, tokens, len(answered.truncated))


async def rerank2(service: Service, body: CohereRerankBody) -> Reply:
    """The same in version 2."""
    return await rerank(service, body, 2)


def _text(document: Document, fields: list[str]) -> str:
    """What of a document is ranked: the text, or the values of some of its fields."""
    if isinstance(document, str):
        return document
    if missing := [field for field in fields if field not in document]:
        raise RequestError("invalid", f"a document has no {missing[0]!r:.60}, which is to be ranked", param="documents")
    return "\n".join(str(document[field]) for field in fields)


async def _embed(service: Service, body: CohereEmbedBody, version: int) -> Reply:
    """The vectors of texts: by types; in version 1 floats alone where no types are named."""
    if body.images or body.inputs or body.input_type == "image":
        raise RequestError("invalid", "there are images or mixed inputs, expected texts", param="texts")
    name, texts = service.find(body.model, EMBED.name), texts_of(body.texts, "texts")
    prompt = prompt_of(service, name, body.input_type, "input_type")
    size = body.output_dimension
    options = EmbedOptions(
        overflow=overflow_of(service, body.truncate or "END"), prompt_name=prompt, dimensions=size,
        normalize=None if size is None else True,
    )  # fmt: skip
    answered = await service.run(name, EMBED, texts, options)
    forms: list[Form] = body.embedding_types or ["float"]
    plain = version == 1 and body.embedding_types is None
    notes = _notes(version, answered, {"input_tokens": answered.tokens})

    check_forms(forms, answered)

    def shown(form: Form, one: Any) -> Any:
        return in_form(one.embedding, form)

    def value() -> CohereEmbeddings:
        found: dict[str, Any] = {form: each(answered.results, partial(shown, form)) for form in forms}
        kind: Any = "embeddings_floats" if plain else "embeddings_by_type"
        return CohereEmbeddings(uuid.uuid4().hex, found["float"] if plain else found, body.texts, notes, kind)

    return Reply(value, answered.tokens, len(answered.truncated))


async def embed1(service: Service, body: CohereEmbedBody) -> Reply:
    """The vectors of texts: floats, or by types where these are named."""
    return await _embed(service, body, 1)


async def embed2(service: Service, body: CohereEmbedBody) -> Reply:
    """The vectors of texts by types."""
    return await _embed(service, body, 2)


def shape(problem: RequestError) -> tuple[int, Any]:
    """An error, as Cohere answers it, and as Jina does."""
    return STATUS[problem.kind], {"message": problem.text, "detail": problem.text}


PROTOCOL = Protocol(
    "cohere",
    (
        Route("POST", "/v1/rerank", rerank, "Documents ranked for a query", CohereRerankBody, RankingReply),
        Route("POST", "/v2/rerank", rerank2, "Documents ranked for a query", CohereRerankBody, RankingReply),
        Route("POST", "/v1/embed", embed1, "Vectors of texts", CohereEmbedBody, CohereEmbeddings),
        Route("POST", "/v2/embed", embed2, "Vectors of texts", CohereEmbedBody, CohereEmbeddings),
    ),
    shape,
    "/v2/",
)
