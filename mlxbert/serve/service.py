"""What the routes of the server work with: the engine, and what is known of its models."""

import asyncio
from collections.abc import Container, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import Any

from mlxbert.errors import MlxbertError
from mlxbert.folders.fingerprint import hash_model
from mlxbert.machine.device import dtype_name, nn
from mlxbert.model import Model
from mlxbert.results.result import Failure
from mlxbert.serve.access_log import USAGE, Metrics, RequestUsage
from mlxbert.serve.engine.answer_memory import BUDGET, Room, too_large
from mlxbert.serve.engine.engine import Engine
from mlxbert.serve.engine.request_queue import Answered, Key
from mlxbert.serve.engine.serving_options import ServeOptions
from mlxbert.serve.open_indexes import OpenIndexes
from mlxbert.serve.protocol import RequestError, as_problem
from mlxbert.tasks.answer import MAX_LENGTH
from mlxbert.tasks.catalogue import CATALOGUE, TaskEntry
from mlxbert.tasks.options import RerankOptions, TaskOptions, VectorOptions
from mlxbert.tasks.query_ranking import RankedText, rank
from mlxbert.text.tokenizer import Tokenizer

EMBED, RERANK = CATALOGUE["embed"], CATALOGUE["rerank"]
_SPECIAL = 4  # special tokens of a pair, at most
# What a model was made for is the first of these that it can do: heads are trained for one task.
_TRAINED = ("rerank", "classify", "tag", "answer")
_PRETRAINED = ("fill-mask", "embed")  # the other way round, if the files say how texts become vectors


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

    def tokenizer(self, model: Model) -> Tokenizer:
        """The tokenizer of what the model was made for."""
        return _tokenizer(self.main, model)


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
            raise RequestError(
                "not_found", f"model is {name!r:.100}, expected one of {', '.join(self.facts)}", param="model"
            )
        among = [self.facts[name]] if name is not None else [*self.facts.values()]
        for facts in sorted(among, key=lambda facts: facts.main not in tasks):
            if not tasks or set(tasks) & set(facts.tasks):
                return facts.name
        for facts in among:
            if len(facts.labels) > 1 and any(CATALOGUE[task].items == "query" for task in tasks):
                raise RequestError(
                    "invalid",
                    f"{facts.name} gives a pair of texts {len(facts.labels)} labels, expected a reranker: one score",
                    param="model",
                )
        can = "; ".join(f"{one.name}: {', '.join(one.tasks)}" for one in self.facts.values())
        who = "no model" if name is None else f"{name} is not a model that"
        raise RequestError("invalid", f"{who} can do {' or '.join(tasks)}", hint=f"there are {can}", param="model")

    def check_size(self, texts: int, characters: int) -> None:
        """Refuses too much work, see `measure`."""
        limits = ((texts, "texts", self.options.max_texts), (characters, "characters", self.options.max_characters))
        for found, what, most in limits:
            if found > most:
                raise RequestError(
                    "too_large", f"{found:,} {what}, expected at most {most:,} in a request",
                    hint="with labels, each text counts once for each" if what == "texts" else None,
                )  # fmt: skip

    async def run(
        self, model: str, entry: TaskEntry, items: Sequence[Any], options: TaskOptions, on_error: str = "raise"
    ) -> Answered:
        """The results of items.

        Args:
            model: The name of a model that `find` has found for the task.
            entry: The task.
            items: See `Engine.submit`.
            options: The options of the task.
            on_error: `raise`, or `return` a Failure in place of an item that cannot be used.
        """
        self.check_size(*measure(items, options, self.facts[model].max_length))
        answered = await asyncio.wrap_future(self.engine.enqueue(Key(model, entry, options), items, BUDGET.get(None)))
        USAGE.get(RequestUsage()).add(items, answered.tokens, len(answered.truncated))
        for failure in (one for one in answered.results if isinstance(one, Failure) and on_error == "raise"):
            place = f"text {failure.index}: " if len(items) > 1 else ""
            problem = as_problem(failure.error)
            raise RequestError(problem.kind, place + problem.message, hint=problem.hint)
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
        self, model: str, query: str, texts: Sequence[str], options: RerankOptions, on_error: str = "raise"
    ) -> tuple[Sequence[RankedText], Sequence[Failure], Answered]:
        """The best texts for a query, as `mlxbert.rerank` ranks them; those that failed; and what `run` gives."""
        shared = replace(options, top_k=None)  # batches do not depend on it
        answered = await self.run(model, RERANK, [(query, text) for text in texts], shared, on_error)
        return *rank(answered.results, options.top_k), answered


def measure(items: Sequence[Any], options: TaskOptions, max_length: int) -> tuple[int, int]:
    """How many texts a model gets for a request, and their characters: with all labels, prompts, and all windows.

    Args:
        items: The items of the request.
        options: The options of the request.
        max_length: Most tokens of a text, for the model.
    """
    given = vars(options)
    labels = given.get("labels") or ("",)
    added = len(given.get("prompt") or "") + len(given.get("hypothesis") or "")
    window, stride = min(given.get("max_length") or MAX_LENGTH, max_length), given.get("stride")

    def characters(item: Any) -> int:
        texts = (item,) if isinstance(item, str) else item
        total = sum(map(len, texts))
        if stride is None:
            return total
        step = window - _SPECIAL - min(len(texts[0]), window // 2) - stride  # from one window to the next, at least
        return total * window // max(step, 1)

    each = sum(map(characters, items)) + added * len(items)
    return len(items) * len(labels), each * len(labels) + len(items) * sum(map(len, labels))


def read_facts(name: str, model: Model) -> ModelFacts:
    """What is known of a model; on the thread that it belongs to."""
    tasks = {name: task for name, entry in CATALOGUE.items() if (task := _made(entry, model)) is not None}
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
        max_length=_tokenizer(main, model).max_length,
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
        probabilities=RERANK.name in tasks and tasks[RERANK.name].probabilities,
    )


def _made(entry: TaskEntry, model: Model) -> Any:
    """A task with its defaults, or `None` if the model cannot do it."""
    try:
        return entry.make(model, entry.options())
    except MlxbertError:
        return None


def _main(tasks: Container[str], model: Model) -> str:
    """The task that a model was made for."""
    has_modules = (model.folder / "modules.json").is_file()
    names = (*_TRAINED, *(reversed(_PRETRAINED) if has_modules else _PRETRAINED))
    return next((name for name in names if name in tasks), EMBED.name)


def _tokenizer(main: str, model: Model) -> Tokenizer:
    return model.embed_tokenizer if issubclass(CATALOGUE[main].options, VectorOptions) else model.tokenizer
