"""Cohere's rerank and embed, versions 1 and 2; and Jina's rerank, which has the same address as Cohere's version 1.

The answer also contains the fields that Jina's clients expect: `model` and `usage`.
"""

import uuid
from typing import Annotated, Any, ClassVar, Literal

from msgspec import UNSET, Meta, Struct, UnsetType

from mlxbert.serve.engine.next_batch import Answered
from mlxbert.serve.protocol import STATUS, Protocol, Reply, RequestError, Route
from mlxbert.serve.protocols.embedding_requests import (
    Form,
    Truncate,
    all_in_form,
    check_forms,
    overflow_of,
    prompt_of,
    texts_of,
)
from mlxbert.serve.service import EMBED, RERANK, Service
from mlxbert.tasks.options import EmbedOptions, RerankOptions

Document = str | dict[str, Any]


class CohereRerankBody(Struct):
    """Documents to rank.

    Attributes:
        query: The query.
        documents: Texts, or objects with fields.
        model: The name of a model; by default the first reranker.
        top_n: The maximum number of results.
        rank_fields: If documents are objects, the fields to rank them by; by default `text`.
        return_documents: Whether each result contains its document.
        max_tokens_per_doc: Ignored if it is at least the limit of the model; otherwise an error.
        truncation: If false, documents that are too long are an error (Jina); otherwise they are truncated.
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
    """Texts to embed.

    Attributes:
        texts: The texts.
        images: Not supported.
        inputs: Not supported.
        model: The name of a model; by default the first one with vectors.
        input_type: The kind of the texts, such as `search_query` or `search_document`.
        embedding_types: The formats of the vectors.
        truncate: What to do with texts that are too long: `NONE` refuses them, `END` truncates them.
        output_dimension: The number of leading values to keep; the shorter vectors are scaled to length 1.
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
    """The API version, the numbers of billed units, and warnings."""

    api_version: dict[str, str]
    billed_units: dict[str, int]
    warnings: list[str] = []


class RankedDocument(Struct):
    """A ranked document."""

    index: int
    relevance_score: float
    document: dict[str, Any] | UnsetType = UNSET


class JinaUsage(Struct):
    """The number of tokens, as Jina's clients expect it."""

    prompt_tokens: int
    total_tokens: int


class RankingReply(Struct):
    """The best documents, best first."""

    id: str
    model: str
    results: list[RankedDocument]
    meta: ResponseMeta
    usage: JinaUsage


class CohereEmbeddings(Struct):
    """Vectors: a list, or one list per format."""

    id: str
    embeddings: list[Any] | dict[str, list[Any]]
    texts: list[str]
    meta: ResponseMeta
    response_type: Literal["embeddings_floats", "embeddings_by_type"]


def _notes(version: int, answered: Answered[Any], units: dict[str, int]) -> ResponseMeta:
    texts = ", ".join(map(str, answered.truncated))
    warnings = [f"texts {texts} are truncated to the limit of the model"] if texts else []
    return ResponseMeta({"version": str(version)}, units, warnings)


async def rerank(service: Service, body: CohereRerankBody, version: int = 1) -> Reply:
    """Returns documents ranked by their relevance to a query, best first."""
    name = service.find(body.model, RERANK.name)
    limit = service.facts[name].max_length
    if body.max_tokens_per_doc is not None and body.max_tokens_per_doc < limit:
        raise RequestError(
            "invalid", f"max_tokens_per_doc is {body.max_tokens_per_doc}, expected at least {limit}, the limit of the "
            "model", hint="longer documents are truncated to this limit, unless truncation is false",
            param="max_tokens_per_doc",
        )  # fmt: skip
    texts = texts_of([_text(ranked, body.rank_fields or ["text"]) for ranked in body.documents], "documents")
    top_k = None if body.top_n is None else min(body.top_n, len(texts))  # Cohere accepts any number
    options = RerankOptions(top_k=top_k, overflow=overflow_of(service, body.truncation is not False))
    best, _, answered = await service.rerank(name, body.query, texts, options)

    def document_of(number: int) -> dict[str, Any] | UnsetType:
        document = body.documents[number]
        if not body.return_documents:
            return UNSET
        return {"text": document} if isinstance(document, str) else document

    results = [RankedDocument(ranked.number, ranked.score, document_of(ranked.number)) for ranked in best]
    tokens = answered.tokens
    notes = _notes(version, answered, {"search_units": 1})
    value = RankingReply(uuid.uuid4().hex, name, results, notes, JinaUsage(tokens, tokens))
    return Reply(value, tokens, len(answered.truncated))


async def rerank2(service: Service, body: CohereRerankBody) -> Reply:
    """Returns documents ranked by their relevance to a query, best first (API version 2)."""
    return await rerank(service, body, 2)


def _text(document: Document, fields: list[str]) -> str:
    """Returns the text of a document to rank: the document itself, or the values of some of its fields."""
    if isinstance(document, str):
        return document
    if missing := [field for field in fields if field not in document]:
        raise RequestError(
            "invalid",
            f"a document has no field {missing[0]!r:.60}, expected a text or an object with this field",
            param="documents",
        )
    return "\n".join(str(document[field]) for field in fields)


async def _embed(service: Service, body: CohereEmbedBody, version: int) -> Reply:
    """Returns the vectors of texts by format, or, in version 1 without `embedding_types`, as a list of vectors."""
    if body.images or body.inputs or body.input_type == "image":
        raise RequestError("invalid", "the request has images or mixed inputs, expected texts", param="texts")
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

    def value() -> CohereEmbeddings:
        lists: dict[str, Any] = {form: all_in_form(answered.results, form) for form in forms}
        kind: Any = "embeddings_floats" if plain else "embeddings_by_type"
        return CohereEmbeddings(uuid.uuid4().hex, lists["float"] if plain else lists, body.texts, notes, kind)

    return Reply(value, answered.tokens, len(answered.truncated))


async def embed1(service: Service, body: CohereEmbedBody) -> Reply:
    """Returns the vectors of texts as floats, or by format if `embedding_types` is given (API version 1)."""
    return await _embed(service, body, 1)


async def embed2(service: Service, body: CohereEmbedBody) -> Reply:
    """Returns the vectors of texts by format (API version 2)."""
    return await _embed(service, body, 2)


def shape(problem: RequestError) -> tuple[int, Any]:
    """Returns an error in the format of Cohere and Jina."""
    return STATUS[problem.kind], {"message": problem.text, "detail": problem.text}


PROTOCOL = Protocol(
    "cohere",
    (
        Route("POST", "/v1/rerank", rerank, "Documents ranked by relevance", CohereRerankBody, RankingReply),
        Route("POST", "/v2/rerank", rerank2, "Documents ranked by relevance", CohereRerankBody, RankingReply),
        Route("POST", "/v1/embed", embed1, "Vectors of texts", CohereEmbedBody, CohereEmbeddings),
        Route("POST", "/v2/embed", embed2, "Vectors of texts", CohereEmbedBody, CohereEmbeddings),
    ),
    shape,
    "/v2/",
)
