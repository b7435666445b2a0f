"""OpenAI's routes for embeddings and models."""

from collections.abc import Sequence
from typing import Any, ClassVar, Literal

from msgspec import UNSET, Struct, UnsetType

from mlxbert.serve.json_bodies import each
from mlxbert.serve.protocol import STATUS, Protocol, Reply, RequestError, Route
from mlxbert.serve.protocols.embedding_requests import (
    Form,
    Texts,
    Truncate,
    check_forms,
    in_form,
    overflow_of,
    prompt_of,
    texts_of,
)
from mlxbert.serve.service import EMBED, Service
from mlxbert.tasks.options import EmbedOptions

_KINDS = {
    "not_found": "invalid_request_error",
    "unauthorized": "authentication_error",
    "overloaded": "rate_limit_error",
}


class EmbeddingsBody(Struct):
    """Texts to embed, with the extensions of vLLM, Jina and TEI; other fields are ignored, since clients send many.

    Attributes:
        input: A text, or a list of texts; token ids are an error.
        model: The name of a model; by default the first one with vectors.
        encoding_format: `base64` returns little-endian float32 in base64.
        dimensions: The number of leading values to keep; the shorter vectors are scaled to length 1.
        input_type: The kind of the texts, such as `query` or `document`, which selects the model's own prompt.
        task: The kind of the texts in Jina's terms, such as `retrieval.query`.
        prompt_name: The name of one of the model's own prompts.
        truncate: What to do with texts that are too long: true or `END` truncates them, false or `NONE` refuses them.
            By default, the server's option decides.
        truncate_prompt_tokens: If it is -1, or at least the limit of the model, texts that are too long are truncated.
        normalized: Whether vectors are scaled to length 1; by default as in the model's files.
        embedding_type: `binary` returns eight dimensions per value.
        late_chunking: Not supported.
    """

    shorten: ClassVar[str] = '"truncate": true truncates it'
    input: Texts
    model: str | None = None
    encoding_format: Literal["float", "base64"] | None = "float"
    dimensions: int | None = None
    input_type: str | None = None
    task: str | None = None
    prompt_name: str | None = None
    truncate: bool | Truncate | None = None
    truncate_prompt_tokens: int | None = None
    normalized: bool | None = None
    embedding_type: Literal["float", "base64", "binary"] | None = None
    late_chunking: bool | None = None


class OpenAIEmbedding(Struct):
    """The vector of a text."""

    embedding: list[float] | str
    index: int
    object: str = "embedding"


class OpenAIUsage(Struct):
    """The number of tokens of all texts."""

    prompt_tokens: int
    total_tokens: int


class OpenAIEmbeddings(Struct):
    """The vectors of all texts, and the indices of the truncated texts."""

    data: list[OpenAIEmbedding]
    model: str
    usage: OpenAIUsage
    truncated: Sequence[int] | UnsetType = UNSET
    object: str = "list"


class ModelCard(Struct):
    """A model."""

    id: str
    created: int = 0
    owned_by: str = "mlxbert"
    object: str = "model"


class Models(Struct):
    """All models."""

    data: list[ModelCard]
    object: str = "list"


async def embeddings(service: Service, body: EmbeddingsBody) -> Reply:
    """Returns the vectors of texts. Vectors that `dimensions` shortens have length 1, like OpenAI's."""
    if body.late_chunking:
        raise RequestError("invalid", "late_chunking is true, expected false", param="late_chunking")
    texts, name = texts_of(body.input, "input"), service.find(body.model, EMBED.name)
    options = EmbedOptions(
        dimensions=body.dimensions, overflow=_overflow(service, name, body), prompt_name=_prompt(service, name, body),
        normalize=True if body.normalized is None and body.dimensions is not None else body.normalized,
    )  # fmt: skip
    answered = await service.run(name, EMBED, texts, options)
    form: Form = body.embedding_type or body.encoding_format or "float"
    check_forms([form], answered)

    def value() -> OpenAIEmbeddings:
        data = each(
            [*enumerate(answered.results)], lambda item: OpenAIEmbedding(in_form(item[1].embedding, form), item[0])
        )
        return OpenAIEmbeddings(data, name, OpenAIUsage(answered.tokens, answered.tokens), answered.truncated or UNSET)

    return Reply(value, answered.tokens, len(answered.truncated))


def _overflow(service: Service, name: str, body: EmbeddingsBody) -> Literal["truncate", "error"]:
    limit, model_limit = body.truncate_prompt_tokens, service.facts[name].max_length
    if limit is not None and limit != -1 and limit < model_limit:
        raise RequestError(
            "invalid", f"truncate_prompt_tokens is {limit}, expected -1 or at least {model_limit}, the limit of the "
            "model", param="truncate_prompt_tokens",
        )  # fmt: skip
    return overflow_of(service, body.truncate if limit is None else True)


def _prompt(service: Service, name: str, body: EmbeddingsBody) -> str | None:
    fields = {"input_type": body.input_type, "task": body.task, "prompt_name": body.prompt_name}
    selected = [(param, value) for param, value in fields.items() if value is not None]
    if len(selected) > 1:
        raise RequestError("invalid", f"{selected[0][0]} and {selected[1][0]} cannot be combined", param=selected[1][0])
    if not selected or body.prompt_name is not None:
        return body.prompt_name
    return prompt_of(service, name, selected[0][1], selected[0][0])


async def models(service: Service, path: dict[str, str]) -> Reply:
    """Lists the served models."""
    return Reply(Models([ModelCard(name) for name in service.facts]))


async def model(service: Service, path: dict[str, str]) -> Reply:
    """Returns a served model."""
    return Reply(ModelCard(service.find(path["name"])))


def shape(problem: RequestError) -> tuple[int, Any]:
    """Returns an error in OpenAI's format."""
    error = {
        "message": problem.text,
        "type": _KINDS.get(problem.kind, "invalid_request_error" if STATUS[problem.kind] < 500 else "server_error"),
        "param": problem.param,
        "code": "model_not_found" if problem.kind == "not_found" and problem.param == "model" else problem.kind,
    }
    return STATUS[problem.kind], {"error": error}


PROTOCOL = Protocol(
    "openai",
    (
        Route("POST", "/v1/embeddings", embeddings, "Vectors of texts", EmbeddingsBody, OpenAIEmbeddings),
        Route("GET", "/v1/models", models, "The served models", reply=Models),
        Route("GET", "/v1/models/{name:path}", model, "A served model", reply=ModelCard),
    ),
    shape,
    "/v1/",
)
