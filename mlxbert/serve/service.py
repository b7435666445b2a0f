"""What the routes of the server work with: the engine, and what is known of its models."""

import asyncio
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

from mlxbert.errors import MlxbertError
from mlxbert.folders.fingerprint import hash_model
from mlxbert.machine.device import dtype_name, nn
from mlxbert.model import Model
from mlxbert.results.result import Failure
from mlxbert.serve.access import USAGE, Metrics, RequestUsage
from mlxbert.serve.engine import Engine
from mlxbert.serve.indexes import OpenIndexes
from mlxbert.serve.options import ServeOptions
from mlxbert.serve.protocol import Problem, as_problem
from mlxbert.serve.queue import Answered
from mlxbert.serve.room import BUDGET, Room, too_large
from mlxbert.serve.tasks import TASKS, make_task, measure
from mlxbert.tasks.ranking import Ranked, rank
from mlxbert.weights.cross_encoder import gives_probabilities


@dataclass(frozen=True)
class VectorFacts:
    """What the files of a model say of its vectors.

    Attributes:
        stated: Whether they say how tokens become one; what the family uses is assumed otherwise.
        poolings: How they become one.
        unit: Whether its length is 1.
        similarity: How vectors are compared.
    """

    stated: bool
    poolings: tuple[str, ...]
    unit: bool
    similarity: str


@dataclass(frozen=True)
class ModelFacts:
    """What is known of a model that is served.

    Attributes:
        name: What clients call it.
        main: The task that it was made for.
        tasks: What it can do, by the names of the command line.
        max_length: Most tokens of a text.
        size: Width of its vectors; 0 if it makes none.
        pooling: How they are made of those of tokens.
        hidden: Width of those of words.
        prompts: Its own prompts by their names.
        labels: Its classes.
        type: The family.
        dtype: What it computes in.
        parameters: How many numbers its weights have.
        fingerprint: See `mlxbert.folders.fingerprint.hash_model`.
        vectors: What its files say of its vectors.
        thresholds: Of its classes where several may be right, if it has its own.
        probabilities: Whether the scores of `rerank` are.
    """

    name: str
    main: str
    tasks: tuple[str, ...]
    max_length: int
    size: int
    pooling: str
    hidden: int
    prompts: Mapping[str, str]
    labels: tuple[str, ...]
    type: str
    dtype: str
    parameters: int
    fingerprint: str
    vectors: VectorFacts | None
    thresholds: tuple[float, ...]
    probabilities: bool


@dataclass(eq=False)
class Service:
    """The engine and its models, for the routes.

    Attributes:
        engine: The engine.
        options: What the server allows.
        facts: What is known of each model, by its name; complete before the server is ready.
        indexes: Files of indexes that can be searched, by their names.
        opened: Those that are open.
        ready: Whether requests are taken.
        metrics: What is counted of requests.
        room: Memory for answers.
    """

    engine: Engine
    options: ServeOptions = field(default_factory=ServeOptions)
    facts: dict[str, ModelFacts] = field(default_factory=dict)
    indexes: Mapping[str, Path] = field(default_factory=dict)
    opened: OpenIndexes = field(default_factory=OpenIndexes)
    ready: bool = False
    metrics: Metrics = field(default_factory=Metrics)
    room: Room = field(init=False)

    def __post_init__(self) -> None:
        self.room, facts = Room(int(self.options.max_answer * 1e6)), self.facts

        def on_change(name: str, model: Model) -> None:
            facts[name] = read_facts(name, model)

        self.engine.watch(on_change)

    def find(self, name: str | None, *tasks: str) -> str:
        """The model of a request: the one that it names, or the first that was made for a task, or can do it."""
        if name is not None and name not in self.facts:
            raise Problem(
                "not_found", f"model is {name!r:.100}, expected one of {', '.join(self.facts)}", param="model"
            )
        among = [self.facts[name]] if name is not None else [*self.facts.values()]
        for facts in sorted(among, key=lambda facts: facts.main not in tasks):
            if not tasks or set(tasks) & set(facts.tasks):
                return facts.name
        for facts in among:
            if tasks == ("rerank",) and len(facts.labels) > 1:
                raise Problem(
                    "invalid",
                    f"{facts.name} gives a pair of texts {len(facts.labels)} labels, expected a reranker: one score",
                    param="model",
                )
        can = "; ".join(f"{one.name}: {', '.join(one.tasks)}" for one in self.facts.values())
        who = "no model" if name is None else f"{name} is not a model that"
        raise Problem("invalid", f"{who} can do {' or '.join(tasks)}", hint=f"there are {can}", param="model")

    def check_size(self, texts: int, characters: int) -> None:
        """Refuses too much work, see `mlxbert.serve.tasks.measure`."""
        limits = ((texts, "texts", self.options.max_texts), (characters, "characters", self.options.max_characters))
        for found, what, most in limits:
            if found > most:
                raise Problem(
                    "too_large", f"{found:,} {what}, expected at most {most:,} in a request",
                    hint="with labels, each text counts once for each" if what == "texts" else None,
                )  # fmt: skip

    async def run(
        self, model: str | None, task: str, items: Sequence[Any], *, on_error: str = "raise", **options: Any
    ) -> Answered:
        """The results of items.

        Args:
            model: The name of the model; `None` for the first that can do it.
            task: See `Engine.submit`.
            items: The items.
            on_error: `raise`, or `return` a Failure in place of an item that cannot be used.
            options: Those of the task; `None` is the default of each.
        """
        given = {name: value for name, value in options.items() if value is not None}  # so that batches are shared
        name = self.find(model, task)
        self.check_size(*measure(items, given, self.facts[name].max_length))
        answered = await self.engine.ask(name, task, items, budget=BUDGET.get(None), **given)
        USAGE.get(RequestUsage()).add(items, answered.tokens, len(answered.truncated))
        for failure in (one for one in answered.results if isinstance(one, Failure) and on_error == "raise"):
            place = f"text {failure.index}: " if len(items) > 1 else ""
            problem = as_problem(failure.error)
            raise Problem(problem.kind, place + problem.message, hint=problem.hint)
        return answered

    def check_answer(self, size: int, what: str, hint: str) -> None:
        """Refuses results, computed by other means than `run`, that would take too much memory.

        Args:
            size: Bytes.
            what: What takes them.
            hint: How they would take less.
        """
        if size > self.room.most:
            raise too_large(what, size, self.room.most, hint)

    async def claim(self, size: int) -> None:
        """Waits for memory, in bytes, for what is computed by other means than `run`."""
        if (budget := BUDGET.get(None)) is not None:
            free, loop = asyncio.Event(), asyncio.get_running_loop()
            if not budget.claim(size, partial(loop.call_soon_threadsafe, free.set)).granted:
                await free.wait()

    async def rerank(
        self, model: str | None, query: str, texts: Sequence[str], top_k: int | None = None, **options: Any
    ) -> tuple[Sequence[Ranked], Sequence[Failure], Answered]:
        """The best texts for a query, as `mlxbert.rerank` ranks them; those that failed; and what `run` gives."""
        answered = await self.run(model, "rerank", [(query, text) for text in texts], **options)
        return *rank(answered.results, top_k), answered


def read_facts(name: str, model: Model) -> ModelFacts:
    """What is known of a model; on the thread that it belongs to."""
    tasks = [task for task in TASKS if _can(task, model)]
    size = model.embedder.size if "embed" in tasks else 0
    own = [task for task in ("rerank", "classify", "tag", "answer") if task in tasks]
    embeds = "embed" in tasks and (model.folder / "modules.json").is_file()
    main = own[0] if own else "embed" if embeds or "fill-mask" not in tasks else "fill-mask"
    vectors = None
    if size:
        config = model.embedder.config
        vectors = VectorFacts(config.stated, tuple(config.poolings), model.embedder.unit, config.similarity)
    weights = [*dict(nn.utils.tree_flatten(model.network.parameters())).values()]
    return ModelFacts(
        name=name,
        main=main,
        tasks=tuple(tasks),
        max_length=(model.embed_tokenizer if main == "embed" else model.tokenizer).max_length,
        size=size,
        pooling="+".join(model.embedder.config.poolings) if size else "",
        hidden=model.config.hidden_size,
        prompts=dict(model.embedder.config.prompts) if size else {},
        labels=tuple(model.labels.names) if model.labels is not None else (),
        type=model.architecture.family_name,
        dtype=dtype_name(weights[0].dtype),
        parameters=sum(one.size for one in weights),
        fingerprint=hash_model(model.files),
        vectors=vectors,
        thresholds=(model.labels.thresholds or ()) if model.labels is not None else (),
        probabilities="rerank" in tasks and gives_probabilities(model.files),
    )


def _can(task: str, model: Model) -> bool:
    try:
        make_task(task, model, {})
    except MlxbertError:
        return False
    return True
