"""Ollama's routes for vectors and models.

`/api/embed` is also one of our own routes: a body with `input` instead of `texts` comes from ollama's clients.
"""

import time
from collections.abc import Mapping
from datetime import UTC, datetime
from typing import Any, ClassVar

from msgspec import Struct

from mlxbert.serve.json_bodies import each
from mlxbert.serve.protocol import Protocol, Reply, Route, plain_shape
from mlxbert.serve.protocols.embedding_requests import overflow_of
from mlxbert.serve.service import EMBED, ModelFacts, Service
from mlxbert.tasks.options import EmbedOptions
from mlxbert.version import __version__

_TAG = ":latest"  # clients add it to model names without a version
_STARTED = datetime.now(UTC).isoformat()


class PromptBody(Struct):
    """A text to embed, as old clients send it.

    Attributes:
        model: The name of a model; by default the first one with vectors.
        prompt: The text.
        options: Ignored, since these options are for text generation.
        keep_alive: Ignored, since the server decides how long models stay in memory.
    """

    shorten: ClassVar[str] = "/api/embed truncates it"
    prompt: str
    model: str | None = None
    options: dict[str, Any] | None = None
    keep_alive: Any = None


class ShowBody(Struct):
    """A model to describe.

    Attributes:
        model: The name of the model.
        name: The name of the model, as old clients send it.
        verbose: Ignored.
    """

    model: str | None = None
    name: str | None = None
    verbose: bool | None = None


class ModelDetails(Struct):
    """The properties of a model."""

    family: str
    families: list[str]
    parameter_size: str
    quantization_level: str
    format: str = "safetensors"
    parent_model: str = ""


class OllamaModel(Struct):
    """A model in a list."""

    name: str
    model: str
    size: int
    digest: str
    details: ModelDetails
    modified_at: str


class OllamaModels(Struct):
    """A list of models."""

    models: list[OllamaModel]


class ShownModel(Struct):
    """The description of a model."""

    details: ModelDetails
    model_info: dict[str, Any]
    capabilities: list[str]
    modified_at: str
    modelfile: str = ""
    parameters: str = ""
    template: str = ""


async def embed(
    service: Service, model: str | None, texts: list[str], truncate: bool | None, dimensions: int | None
) -> Reply:
    """Returns vectors of length 1, as ollama does. Texts that are too long are truncated unless `truncate` is false."""
    name, begun = service.find(_without_tag(service, model), EMBED.name), time.perf_counter_ns()
    overflow = overflow_of(service, truncate is not False)
    options = EmbedOptions(overflow=overflow, dimensions=dimensions, normalize=True)
    answered = await service.run(name, EMBED, texts, options)

    def value() -> dict[str, Any]:
        return {
            "model": model or name, "embeddings": each(answered.results, lambda result: result.embedding),
            "total_duration": time.perf_counter_ns() - begun, "load_duration": 0, "prompt_eval_count": answered.tokens,
        }  # fmt: skip

    return Reply(value, answered.tokens, len(answered.truncated))


async def embeddings(service: Service, body: PromptBody) -> Reply:
    """Returns the vector of a text without scaling, as ollama does."""
    name = service.find(_without_tag(service, body.model), EMBED.name)
    answered = await service.run(name, EMBED, [body.prompt], EmbedOptions(overflow=overflow_of(service, None)))
    return Reply({"embedding": answered.results[0].embedding}, answered.tokens, len(answered.truncated))


async def tags(service: Service, path: Mapping[str, str]) -> Reply:
    """Lists the served models."""
    return Reply(OllamaModels([_card(facts) for facts in service.facts.values()]))


async def running(service: Service, path: Mapping[str, str]) -> Reply:
    """Lists the models in memory."""
    return Reply(OllamaModels([_card(service.facts[name]) for name in service.engine.loaded]))


async def show(service: Service, body: ShowBody) -> Reply:
    """Returns the description of a model."""
    facts = service.facts[service.find(_without_tag(service, body.model or body.name))]
    info = {
        "general.architecture": facts.type, "general.basename": facts.name,
        "general.parameter_count": facts.parameters, f"{facts.type}.context_length": facts.max_length,
        f"{facts.type}.embedding_length": facts.size or facts.hidden,
    }  # fmt: skip
    capabilities = ["embedding"] if EMBED.name in facts.tasks else []
    return Reply(ShownModel(_details(facts), info, capabilities, _STARTED))


async def version(service: Service, path: Mapping[str, str]) -> Reply:
    """Returns the version of mlxbert."""
    return Reply({"version": __version__})


def _without_tag(service: Service, model: str | None) -> str | None:
    """Removes the tag `:latest`, which clients add to the name of a model."""
    return model.removesuffix(_TAG) if model is not None and model not in service.facts else model


def _details(facts: ModelFacts) -> ModelDetails:
    millions = facts.parameters / 1e6
    size = f"{millions:.2f}M" if millions < 1000 else f"{millions / 1000:.1f}B"
    return ModelDetails(facts.type, [facts.type], size, facts.dtype)


def _card(facts: ModelFacts) -> OllamaModel:
    size = facts.parameters * (4 if facts.dtype == "float32" else 2)
    return OllamaModel(facts.name, facts.name, size, facts.fingerprint, _details(facts), _STARTED)


PROTOCOL = Protocol(
    "ollama",
    (
        Route("GET", "/api/tags", tags, "The served models", reply=OllamaModels),
        Route("GET", "/api/ps", running, "The models in memory", reply=OllamaModels),
        Route("POST", "/api/show", show, "The description of a model", ShowBody, ShownModel),
        Route("GET", "/api/version", version, "The version of the server", reply=dict[str, str]),
        Route("POST", "/api/embeddings", embeddings, "The vector of a text", PromptBody, dict[str, list[float]]),
    ),
    plain_shape,
)
