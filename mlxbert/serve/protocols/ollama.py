"""What ollama's clients ask for: vectors, and what is known of the models.

`/api/embed` is a route of our own, too: a body with `input` in the place of `texts` is one of ollama's.
"""

import time
from collections.abc import Mapping
from datetime import UTC, datetime
from typing import Any, ClassVar

from msgspec import Struct

from mlxbert.serve.json_stream import each
from mlxbert.serve.protocol import Protocol, Reply, Route, plain_shape
from mlxbert.serve.protocols.embedding_requests import overflow_of
from mlxbert.serve.service import EMBED, ModelFacts, Service
from mlxbert.tasks.options import EmbedOptions
from mlxbert.version import __version__

_TAG = ":latest"  # follows the name of a model where a client names no version
_STARTED = datetime.now(UTC).isoformat()


class PromptBody(Struct):
    """One text, as old clients send it.

    Attributes:
        model: The name of a model; by default the first that makes vectors.
        prompt: The text.
        options: Ignored: they are those of generation.
        keep_alive: Ignored: the server decides how long models stay in memory.
    """

    shorten: ClassVar[str] = "/api/embed truncates it"
    prompt: str = ""
    model: str | None = None
    options: dict[str, Any] | None = None
    keep_alive: Any = None


class ShowBody(Struct):
    """Which model is described.

    Attributes:
        model: Its name.
        name: Its name, as old clients say it.
        verbose: Ignored.
    """

    model: str | None = None
    name: str | None = None
    verbose: bool | None = None


class ModelDetails(Struct):
    """What a model is."""

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
    """The models."""

    models: list[OllamaModel]


class ShownModel(Struct):
    """A model."""

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
    """The vectors of texts, of length 1 as ollama's are; texts that are too long are truncated unless that is false."""
    name, begun = service.find(_named(service, model), EMBED.name), time.perf_counter_ns()
    overflow = overflow_of(service, truncate is not False)
    options = EmbedOptions(overflow=overflow, dimensions=dimensions, normalize=True)
    answered = await service.run(name, EMBED, texts, options)

    def value() -> dict[str, Any]:
        return {
            "model": model or name, "embeddings": each(answered.results, lambda one: one.embedding),
            "total_duration": time.perf_counter_ns() - begun, "load_duration": 0, "prompt_eval_count": answered.tokens,
        }  # fmt: skip

    return Reply(value, answered.tokens, len(answered.truncated))


async def embeddings(service: Service, body: PromptBody) -> Reply:
    """The vector of one text as the model makes it: ollama does not scale it either."""
    name = service.find(_named(service, body.model), EMBED.name)
    answered = await service.run(name, EMBED, [body.prompt], EmbedOptions(overflow=overflow_of(service, None)))
    return Reply({"embedding": answered.results[0].embedding}, answered.tokens, len(answered.truncated))


async def tags(service: Service, path: Mapping[str, str]) -> Reply:
    """The models that are served."""
    return Reply(OllamaModels([_card(facts) for facts in service.facts.values()]))


async def running(service: Service, path: Mapping[str, str]) -> Reply:
    """The models in memory."""
    return Reply(OllamaModels([_card(service.facts[name]) for name in service.engine.loaded]))


async def show(service: Service, body: ShowBody) -> Reply:
    """What is known of a model."""
    facts = service.facts[service.find(_named(service, body.model or body.name))]
    info = {
        "general.architecture": facts.type, "general.basename": facts.name,
        "general.parameter_count": facts.parameters, f"{facts.type}.context_length": facts.max_length,
        f"{facts.type}.embedding_length": facts.size or facts.hidden,
    }  # fmt: skip
    able = ["embedding"] if EMBED.name in facts.tasks else []
    return Reply(ShownModel(_details(facts), info, able, _STARTED))


async def version(service: Service, path: Mapping[str, str]) -> Reply:
    """The version of mlxbert."""
    return Reply({"version": __version__})


def _named(service: Service, model: str | None) -> str | None:
    """The name of a model without the version that clients add to it."""
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
        Route("GET", "/api/tags", tags, "The models that are served", reply=OllamaModels),
        Route("GET", "/api/ps", running, "The models in memory", reply=OllamaModels),
        Route("POST", "/api/show", show, "What is known of a model", ShowBody, ShownModel),
        Route("GET", "/api/version", version, "The version of the server", reply=dict[str, str]),
        Route("POST", "/api/embeddings", embeddings, "The vector of a text", PromptBody, dict[str, list[float]]),
    ),
    plain_shape,
)
