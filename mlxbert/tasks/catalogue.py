"""The catalogue of tasks: one record each, which the library, the command line and the server read.

Importing it imports neither MLX nor the tasks: classes are named, and imported when they are used.
"""

import importlib
from collections.abc import Mapping
from dataclasses import dataclass, fields
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, Literal

from mlxbert.counterparts import no_argument, not_one_of
from mlxbert.tasks import options as task_options

if TYPE_CHECKING:
    from mlxbert.model import Model
    from mlxbert.tasks.task import Task
    from mlxbert.text.usage import Usage

Items = Literal["text", "text or pair", "pair", "question", "query"]


@dataclass(frozen=True, kw_only=True)
class TaskEntry:
    """A task.

    Attributes:
        name: What the command line and routes call it; its function has `_` in place of `-`.
        task: The module and the name of its subclass of `Task`, or of a function that chooses one by the options.
        options: Its options.
        items: What an item is: a text; a text or a pair of texts; a pair; a question with its context; or a query with
            a text.
        result: The module and the name of the class of its results.
        summary: What it gives, in a few words.
    """

    name: str
    task: str
    options: type[task_options.TaskOptions]
    items: Items
    result: str
    summary: str

    def read_options(self, given: Mapping[str, Any]) -> task_options.TaskOptions:
        """The options of a mapping, checked; `ArgumentError` names an unknown one, or a value that is not allowed."""
        known = [field.name for field in fields(self.options)]
        for name in given:
            if name not in known:
                raise no_argument(name, known, f"{self.name} has no option {name!r:.60}")
        return self.options(**given)

    def make(self, model: "Model", options: Any, usage: "Usage | None" = None) -> "Task[Any, Any, Any, Any]":
        """The task of a model, with the options that `read_options` gives."""
        task: Task[Any, Any, Any, Any] = imported(self.task)(model, options, usage=usage)
        return task


def imported(place: str) -> Any:
    """What stands at `module:name`."""
    module, _, name = place.partition(":")
    return getattr(importlib.import_module(module), name)


def find_task(name: str) -> TaskEntry:
    """The task of a name, or an `ArgumentError` with the names that there are."""
    if name not in [*CATALOGUE]:
        raise not_one_of("task", name, CATALOGUE)
    return CATALOGUE[name]


CATALOGUE: Mapping[str, TaskEntry] = MappingProxyType({
    entry.name: entry
    for entry in (
        TaskEntry(
            name="embed", task="mlxbert.tasks.embed:EmbedTask", options=task_options.EmbedOptions, items="text",
            result="mlxbert.results.embed:Embedding", summary="Vectors of texts",
        ),
        TaskEntry(
            name="embed-words", task="mlxbert.tasks.embed_words:EmbedWordsTask", options=task_options.EmbedWordsOptions,
            items="text", result="mlxbert.results.embed:Words", summary="Vectors of the words of texts",
        ),
        TaskEntry(
            name="fill-mask", task="mlxbert.tasks.fill_mask:FillMaskTask", options=task_options.FillMaskOptions,
            items="text", result="mlxbert.results.fill_mask:FillMask", summary="Words for masks",
        ),
        TaskEntry(
            name="classify", task="mlxbert.tasks.classify:make_task", options=task_options.ClassifyOptions,
            items="text or pair", result="mlxbert.results.classify:Classification",
            summary="Classes of texts or pairs of texts",
        ),
        TaskEntry(
            name="tag", task="mlxbert.tasks.tag:TagTask", options=task_options.TagOptions, items="text",
            result="mlxbert.results.tag:Tagged", summary="Entities of texts, or tags of words",
        ),
        TaskEntry(
            name="answer", task="mlxbert.tasks.answer:AnswerTask", options=task_options.AnswerOptions, items="question",
            result="mlxbert.results.answer:Answer", summary="Answers to questions",
        ),
        TaskEntry(
            name="rerank", task="mlxbert.tasks.rerank:RerankTask", options=task_options.RerankOptions, items="query",
            result="mlxbert.results.related:Reranked", summary="Texts in the order of a cross-encoder",
        ),
        TaskEntry(
            name="next-sentence", task="mlxbert.tasks.next_sentence:NextSentenceTask",
            options=task_options.NextSentenceOptions, items="pair", result="mlxbert.results.related:NextSentence",
            summary="Whether a text follows another",
        ),
        TaskEntry(
            name="replaced", task="mlxbert.tasks.replaced:ReplacedTask", options=task_options.ReplacedOptions,
            items="text", result="mlxbert.results.tokens:Replaced", summary="Which tokens look replaced",
        ),
    )
})  # fmt: skip
# Ranks texts by vectors that `embed` makes, so it has no task of its own: a command, a function and a route.
SIMILARITY = TaskEntry(
    name="similarity", task="mlxbert.tasks.embed:EmbedTask", options=task_options.RankingOptions, items="query",
    result="mlxbert.results.related:Similarity", summary="Texts in the order of similarity",
)  # fmt: skip
