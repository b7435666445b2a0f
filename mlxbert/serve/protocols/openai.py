"""OpenAI's embeddings and list of models."""

from collections.abc import Sequence
from typing import Any, ClassVar, Literal

from msgspec import UNSET, Struct, UnsetType

from mlxbert.serve.json_stream import each
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
    """What is asked for, with what vLLM, Jina and TEI have added; other fields are ignored, as clients send many.

    Attributes:
        input: A text, or a list of texts; no token ids.
        model: The name of a model; by default the first that makes vectors.
        encoding_format: `base64` for little-endian float32 in base64.
        dimensions: Keep only the first values, scaled to length 1.
        input_type: What the texts are, such as `query` or `document`: the model's own prompt for it is used.
        task: The same in the words of Jina, such as `retrieval.query`.
        prompt_name: The name of one of the model's own prompts.
        truncate: True, or `END`, truncates texts that are too long; false or `NONE` refuses them; by default it is as
            the server was started.
        truncate_prompt_tokens: -1, or at least what the model takes: the same.
        normalized: Whether vectors are scaled to length 1; by default as the model's files say.
        embedding_type: `binary` for eight dimensions in each value.
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
    """One vector."""

    embedding: list[float] | str
    index: int
    object: str = "embedding"


class OpenAIUsage(Struct):
    """Tokens of all texts."""

    prompt_tokens: int
    total_tokens: int


class OpenAIEmbeddings(Struct):
    """The vectors of all texts, and the numbers of those that were truncated."""

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
    """The vectors of texts; of length 1 where they are shortened, as OpenAI's are."""
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
            [*enumerate(answered.results)], lambda one: OpenAIEmbedding(in_form(one[1].embedding, form), one[0])
        )
        return OpenAIEmbeddings(data, name, OpenAIUsage(answered.tokens, answered.tokens), answered.truncated or UNSET)

    return Reply(value, answered.tokens, len(answered.truncated))


def _overflow(service: Service, name: str, body: EmbeddingsBody) -> Literal["truncate", "error"]:
    """What is done with a text that is too long."""
    cut, most = body.truncate_prompt_tokens, service.facts[name].max_length
    if cut is not None and cut != -1 and cut < most:
        raise RequestError(
            "invalid", f"truncate_prompt_tokens is {cut}, expected -1, or at least the {most} tokens that the model "
            "takes", param="truncate_prompt_tokens",
        )  # fmt: skip
    return overflow_of(service, body.truncate if cut is None else True)


def _prompt(service: Service, name: str, body: EmbeddingsBody) -> str | None:
    """The name of the prompt."""
    given = {"input_type": body.input_type, "task": body.task, "prompt_name": body.prompt_name}
    named = [(param, value) for param, value in given.items() if value is not None]
    if len(named) > 1:
        raise RequestError(
            "invalid", f"there are both {named[0][0]} and {named[1][0]}, expected one", param=named[1][0]
        )
    if not named or body.prompt_name is not None:
        return body.prompt_name
    return prompt_of(service, name, named[0][1], named[0][0])


async def models(service: Service, path: dict[str, str]) -> Reply:
    """The models that are served."""
    return Reply(Models([ModelCard(name) for name in service.facts]))


async def model(service: Service, path: dict[str, str]) -> Reply:
    """One of them."""
    return Reply(ModelCard(service.find(path["name"])))


def shape(problem: RequestError) -> tuple[int, Any]:
    """An error, as OpenAI's clients read it."""
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
        Route("GET", "/v1/models", models, "The models that are served", reply=Models),
        Route("GET", "/v1/models/{name:path}", model, "One of these models", reply=ModelCard),
    ),
    shape,
    "/v1/",
)
