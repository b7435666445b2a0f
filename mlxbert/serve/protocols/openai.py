"""OpenAI's embeddings and list of models."""

import base64
from typing import Any, Literal

from msgspec import Struct

from mlxbert.serve.protocol import STATUS, Problem, Protocol, Reply, Route
from mlxbert.serve.service import Service

_KINDS = {
    "not_found": "invalid_request_error",
    "unauthorized": "authentication_error",
    "overloaded": "rate_limit_error",
}


class EmbeddingsBody(Struct):
    """What is asked for; other fields are ignored, as clients send many."""

    input: str | list[str | int | list[int]]
    model: str | None = None
    encoding_format: Literal["float", "base64"] = "float"
    dimensions: int | None = None


class Embedding(Struct):
    """One vector."""

    embedding: list[float] | str
    index: int
    object: str = "embedding"


class Usage(Struct):
    """Tokens of all texts."""

    prompt_tokens: int
    total_tokens: int


class Embeddings(Struct):
    """The vectors of all texts."""

    data: list[Embedding]
    model: str
    usage: Usage
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
    """The vectors of texts."""
    texts = [body.input] if isinstance(body.input, str) else body.input
    if not texts:
        raise Problem("invalid", "input is empty, expected at least one text", param="input")
    if not all(isinstance(text, str) for text in texts):
        raise Problem(
            "invalid", "input has token ids, expected texts: the ids of another tokenizer would give wrong vectors",
            hint="LangChain's OpenAIEmbeddings takes check_embedding_ctx_length=False", param="input",
        )  # fmt: skip
    name = service.find(body.model, "embed")
    answered = await service.run(name, "embed", texts, dimensions=body.dimensions, overflow="error")
    as_text = body.encoding_format == "base64"
    data = [
        Embedding(base64.b64encode(one.embedding.tobytes()).decode() if as_text else one.embedding.tolist(), number)
        for number, one in enumerate(answered.results)
    ]
    return Reply(Embeddings(data, name, Usage(answered.tokens, answered.tokens)), tokens=answered.tokens)


async def models(service: Service, path: dict[str, str]) -> Reply:
    """The models that are served."""
    return Reply(Models([ModelCard(name) for name in service.facts]))


async def model(service: Service, path: dict[str, str]) -> Reply:
    """One of them."""
    return Reply(ModelCard(service.find(path["name"])))


def shape(problem: Problem) -> tuple[int, Any]:
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
        Route("POST", "/v1/embeddings", embeddings, "Vectors of texts", EmbeddingsBody, Embeddings),
        Route("GET", "/v1/models", models, "The models that are served", reply=Models),
        Route("GET", "/v1/models/{name:path}", model, "One of these models", reply=ModelCard),
    ),
    shape,
)
