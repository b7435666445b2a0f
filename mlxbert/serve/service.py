"""The service behind the routes: the engine, and the facts about its models."""

import asyncio
from collections.abc import Container, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import Any

from mlxbert.errors import MlxbertError
from mlxbert.folders.fingerprint import hash_model
from mlxbert.machine.device import nn
from mlxbert.model import Model
from mlxbert.results.result import Failure
from mlxbert.serve.access_log import USAGE, Metrics, RequestUsage
from mlxbert.serve.engine.engine import Engine
from mlxbert.serve.engine.next_batch import Answered, Key
from mlxbert.serve.engine.result_memory import BUDGET, ResultMemory, too_large
from mlxbert.serve.engine.serving_options import ServeOptions
from mlxbert.serve.open_indexes import OpenIndexes
from mlxbert.serve.protocol import RequestError, as_problem
from mlxbert.tasks.answer import MAX_LENGTH
from mlxbert.tasks.catalogue import CATALOGUE, TaskEntry
from mlxbert.tasks.options import RerankOptions, TaskOptions, VectorOptions
from mlxbert.tasks.query_ranking import RankedText, rank
from mlxbert.text.tokenizer import Tokenizer

EMBED, RERANK = CATALOGUE["embed"], CATALOGUE["rerank"]
_MAX_SPECIAL = 4  # special tokens of a pair
# The main task of a model is the first of these that it can do: heads are trained for one task.
_TRAINED = ("rerank", "classify", "tag", "answer")
_PRETRAINED = ("fill-mask", "embed-sparse", "embed")  # in reverse order if the model has sentence-transformers modules


@dataclass(frozen=True)
class VectorFacts:
    """The facts about a model's vectors, from its files.

    Attributes:
        stated: Whether the files define the pooling; if not, the pooling of the model's family is assumed.
        poolings: The poolings of token vectors.
        unit: Whether vectors have length 1.
        similarity: How vectors are compared.
    """

    stated: bool
    poolings: tuple[str, ...]
    unit: bool
    similarity: str


@dataclass(frozen=True)
class ModelFacts:
    """The facts about a served model.

    Attributes:
        name: The name that clients use.
        main: The task that the model was trained for.
        tasks: All tasks that the model can do, by their names on the command line.
        any_labels: The tasks that it can do with labels of the request.
        max_length: The maximum number of tokens of a text.
        size: The size of the vectors; 0 for a model without vectors.
        pooling: How token vectors are combined into one vector.
        hidden: The size of the hidden states.
        vocabulary: The number of word embeddings.
        prompts: The model's own prompts by their names.
        labels: The names of the classes.
        type: The name of the model's family.
        dtype: The data type of the weights.
        parameters: The number of parameters.
        fingerprint: See `mlxbert.folders.fingerprint.hash_model`.
        vectors: The facts about the vectors; `None` for a model without vectors.
        thresholds: The thresholds of the classes in multi-label classification, if the model has them.
        probabilities: Whether the scores of `rerank` are probabilities.
    """

    name: str
    main: str
    tasks: tuple[str, ...]
    any_labels: tuple[str, ...]
    max_length: int
    size: int
    pooling: str
    hidden: int
    vocabulary: int
    prompts: Mapping[str, str]
    labels: tuple[str, ...]
    type: str
    dtype: str
    parameters: int
    fingerprint: str
    vectors: VectorFacts | None
    thresholds: tuple[float, ...]
    probabilities: bool

    def tokenizer(self, model: Model) -> Tokenizer:
        return _tokenizer(self.main, model)


@dataclass(eq=False)
class Service:
    """The engine and its models, for the routes."""

    engine: Engine
    options: ServeOptions = field(default_factory=ServeOptions)
    facts: dict[str, ModelFacts] = field(default_factory=dict)  # complete before the server is ready
    indexes: Mapping[str, str | Path] = field(default_factory=dict)  # files, or locations of Lance tables
    opened: OpenIndexes = field(default_factory=OpenIndexes)
    ready: bool = False
    metrics: Metrics = field(default_factory=Metrics)
    room: ResultMemory = field(init=False)

    def __post_init__(self) -> None:
        self.room, facts = ResultMemory(int(self.options.max_answer * 1e6)), self.facts

        def on_change(name: str, model: Model) -> None:
            facts[name] = read_facts(name, model)

        self.engine.watch(on_change)

    def find(self, name: str | None, task: str | None = None, *, labels: bool = False) -> str:
        """Finds the model of a request: the named one, or the first that can do the task, with labels if it has some.

        A model whose main task is that task is preferred.
        """
        if name is not None and name not in self.facts:
            raise RequestError(
                "not_found", f"model is {name!r:.100}, expected one of {', '.join(self.facts)}", param="model"
            )
        candidates = [self.facts[name]] if name is not None else [*self.facts.values()]
        if task is None:
            return candidates[0].name
        if capable := CATALOGUE[task].capable([*map(vars, candidates)], labels=labels):
            return str(capable[0]["name"])
        for facts in candidates:
            if len(facts.labels) > 1 and CATALOGUE[task].items.ranked:
                raise RequestError(
                    "invalid",
                    f"the model {facts.name} has {len(facts.labels)} labels, expected a reranker with a single score",
                    param="model",
                )
        names = "; ".join(f"{facts.name} ({', '.join(facts.tasks)})" for facts in self.facts.values())
        subject = "no model can" if name is None else f"the model {name} cannot"
        message, hint = f"{subject} do {task}", f"the served models are {names}"
        raise RequestError("invalid", message, hint=hint, param="model")

    def check_size(self, texts: int, characters: int) -> None:
        """Raises RequestError for a request that is too large (see `measure`)."""
        limits = ((texts, "texts", self.options.max_texts), (characters, "characters", self.options.max_characters))
        for amount, unit, limit in limits:
            if amount > limit:
                raise RequestError(
                    "too_large", f"the request has {amount:,} {unit}, expected at most {limit:,}",
                    hint="with labels, each text counts once per label" if unit == "texts" else None,
                )  # fmt: skip

    async def run(
        self, model: str, entry: TaskEntry, items: Sequence[Any], options: TaskOptions, on_error: str = "raise"
    ) -> Answered[Any]:
        """Computes items with a model that `find` returned for the task (see `Engine.submit`).

        `on_error` is `raise`, or `return` for a Failure in place of an unusable item.
        """
        self.check_size(*measure(items, options, self.facts[model].max_length))
        answered = await asyncio.wrap_future(self.engine.enqueue(Key(model, entry, options), items, BUDGET.get(None)))
        USAGE.get(RequestUsage()).add(items, answered.tokens, len(answered.truncated))
        for failure in (result for result in answered.results if isinstance(result, Failure) and on_error == "raise"):
            place = f"text {failure.index}: " if len(items) > 1 else ""
            problem = as_problem(failure.error)
            if problem.kind == "internal":
                raise failure.error  # itself, so that it is logged
            raise RequestError(problem.kind, place + problem.message, hint=problem.hint)
        return answered

    def check_answer(self, size: int, what: str, hint: str) -> None:
        """Raises an error if results that are not computed by `run` would take too much memory."""
        if size > self.room.max_bytes:
            raise too_large(what, size, self.room.max_bytes, hint)

    async def claim(self, size: int) -> None:
        """Waits until `size` bytes of memory are free for results that are not computed by `run`."""
        if (budget := BUDGET.get(None)) is not None:
            free, loop = asyncio.Event(), asyncio.get_running_loop()
            if not budget.claim(size, partial(loop.call_soon_threadsafe, free.set)).granted:
                await free.wait()

    async def rerank(
        self, model: str, query: str, texts: Sequence[str], options: RerankOptions, on_error: str = "raise"
    ) -> tuple[Sequence[RankedText], Sequence[Failure], Answered[Any]]:
        """Ranks texts like `mlxbert.rerank`; returns the best texts, the failures, and the answer of `run`."""
        shared = replace(options, top_k=None)  # requests with different `top_k` share batches
        answered = await self.run(model, RERANK, [(query, text) for text in texts], shared, on_error)
        return *rank(answered.results, options.top_k), answered


def measure(items: Sequence[Any], options: TaskOptions, max_length: int) -> tuple[int, int]:
    """Returns how many texts and characters a model computes for a request, including labels, prompts, and overlaps."""
    values = vars(options)
    labels = values.get("labels") or ("",)
    added = len(values.get("prompt") or "") + len(values.get("hypothesis") or "")
    window, stride = min(values.get("max_length") or MAX_LENGTH, max_length), values.get("stride")

    def characters(item: Any) -> int:
        texts = (item,) if isinstance(item, str) else item
        total = sum(map(len, texts))
        if stride is None:
            return total
        step = window - _MAX_SPECIAL - min(len(texts[0]), window // 2) - stride  # minimum distance between windows
        return total * window // max(step, 1)

    each = sum(map(characters, items)) + added * len(items)
    return len(items) * len(labels), each * len(labels) + len(items) * sum(map(len, labels))


def read_facts(name: str, model: Model) -> ModelFacts:
    """Collects the facts about a model; runs on the thread that the model belongs to."""
    tasks = {name: task for name, entry in CATALOGUE.items() if (task := _make(entry, model)) is not None}
    labelled = [entry for entry in CATALOGUE.values() if hasattr(entry.options, "labels")]
    main = _main(tasks, model)
    size = model.embedder.size if EMBED.name in tasks else 0
    vectors = None
    if size:
        config = model.embedder.config
        vectors = VectorFacts(config.stated, tuple(config.poolings), model.embedder.unit, config.similarity)
    weights = [*dict(nn.utils.tree_flatten(model.network.parameters())).values()]
    return ModelFacts(
        name=name,
        main=main,
        tasks=tuple(tasks),
        any_labels=tuple(entry.name for entry in labelled if _make(entry, model, labels=("label",)) is not None),
        max_length=_tokenizer(main, model).max_length,
        size=size,
        pooling="+".join(model.embedder.config.poolings) if size else "",
        hidden=model.config.hidden_size,
        vocabulary=model.config.vocab_size,
        prompts=dict(model.embedder.config.prompts) if size else {},
        labels=tuple(model.labels.names) if model.labels is not None else (),
        type=model.architecture.family_name,
        dtype=model.dtype,
        parameters=sum(weight.size for weight in weights),
        fingerprint=hash_model(model.files),
        vectors=vectors,
        thresholds=(model.labels.thresholds or ()) if model.labels is not None else (),
        probabilities=RERANK.name in tasks and tasks[RERANK.name].probabilities,
    )


def _make(entry: TaskEntry, model: Model, **options: Any) -> Any:
    """Makes a task; `None` if the model cannot do it with these options, or is not made for it."""
    if entry.vectors is not None and entry.vectors not in model.vectors:
        return None
    try:
        return entry.make(model, entry.options(**options))
    except MlxbertError:
        return None


def _main(tasks: Container[str], model: Model) -> str:
    has_modules = (model.folder / "modules.json").is_file()
    names = (*_TRAINED, *(reversed(_PRETRAINED) if has_modules else _PRETRAINED))
    of_vectors = [entry.name for entry in CATALOGUE.values() if entry.vectors is not None]
    return next((name for name in (*names, EMBED.name, *of_vectors) if name in tasks), EMBED.name)


def _tokenizer(main: str, model: Model) -> Tokenizer:
    if CATALOGUE[main].vectors == "sparse":
        return model.sparse_tokenizer
    return model.embed_tokenizer if issubclass(CATALOGUE[main].options, VectorOptions) else model.tokenizer
