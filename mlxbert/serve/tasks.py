"""What an engine can be asked for: the tasks, each made with the options of one request.

Requests with the same model, task and options share a task, and are computed together. What differs from text to text
is part of the item, as the query is of a pair that is scored.
"""

import hashlib
import json
from collections.abc import Mapping, Sequence
from dataclasses import replace
from types import MappingProxyType
from typing import Any

from mlxbert.counterparts import not_one_of
from mlxbert.errors import ArgumentError, CheckpointError
from mlxbert.model import Model
from mlxbert.tasks.answer import MAX_LENGTH, AnswerTask
from mlxbert.tasks.catalogue import find_task
from mlxbert.tasks.classify import ClassifyTask
from mlxbert.tasks.embed import EmbedTask
from mlxbert.tasks.embed_tokens import EmbedTokensTask
from mlxbert.tasks.embed_words import EmbedWordsTask
from mlxbert.tasks.fill_mask import FillMaskTask
from mlxbert.tasks.next_sentence import NextSentenceTask
from mlxbert.tasks.replaced import ReplacedTask
from mlxbert.tasks.rerank import RerankTask
from mlxbert.tasks.tag import TagTask
from mlxbert.tasks.task import Task

AnyTask = Task[Any, Any, Any, Any]
_SPECIAL = 4  # special tokens of a pair, at most
_LARGEST = 262_144  # bytes of options: an engine keeps those of its latest tasks


# By the names that the command line gives them. Items are texts; for `classify` texts or pairs; for others pairs: of a
# query and a text for `rerank`, of a question and its context for `answer`, of two sentences for `next-sentence`.
TASKS: Mapping[str, type[AnyTask]] = MappingProxyType({
    "embed": EmbedTask,
    "embed-words": EmbedWordsTask,
    "embed-tokens": EmbedTokensTask,
    "fill-mask": FillMaskTask,
    "classify": ClassifyTask,
    "tag": TagTask,
    "answer": AnswerTask,
    "rerank": RerankTask,
    "next-sentence": NextSentenceTask,
    "replaced": ReplacedTask,
})  # fmt: skip


def hash_options(options: Mapping[str, Any]) -> str:
    """The same text for the same options, and for no others."""
    try:
        shown = json.dumps(options, sort_keys=True).encode()
    except (TypeError, ValueError, RecursionError) as problem:
        raise ArgumentError(f"options are not all texts, numbers, or lists of these: {problem}") from None
    if len(shown) > _LARGEST:
        raise ArgumentError(f"options take {len(shown):,} bytes as JSON, expected at most {_LARGEST:,}")
    return hashlib.sha256(shown).hexdigest()


def measure(items: Sequence[Any], options: Mapping[str, Any], max_length: int) -> tuple[int, int]:
    """How many texts a model gets for a request, and their characters: with all labels, prompts, and all windows.

    Args:
        items: Those of the request.
        options: Its options.
        max_length: Most tokens of a text, for the model.
    """
    labels = options.get("labels") or ("",)
    added = len(options.get("prompt") or "") + len(options.get("hypothesis") or "")
    window, stride = min(options.get("max_length") or MAX_LENGTH, max_length), options.get("stride")

    def characters(item: Any) -> int:
        texts = (item,) if isinstance(item, str) else item
        total = sum(map(len, texts))
        if stride is None:
            return total
        step = window - _SPECIAL - min(len(texts[0]), window // 2) - stride  # from one window to the next, at least
        return total * window // max(step, 1)

    each = sum(map(characters, items)) + added * len(items)
    return len(items) * len(labels), each * len(labels) + len(items) * sum(map(len, labels))


def make_task(name: str, model: Model, options: Mapping[str, Any]) -> AnyTask:
    """The task of a request."""
    check_task(name)
    entry = (
        replace(find_task("embed"), task="mlxbert.tasks.embed_tokens:EmbedTokensTask")
        if name == "embed-tokens"
        else find_task(name)
    )
    given = {key: value for key, value in options.items() if key != "raw"}
    if name == "embed-words":
        given = {"overflow": "window", **given}
    internal = {"raw": options["raw"]} if "raw" in options else {}
    try:
        return entry.make(model, entry.read_options(given), **internal)
    except CheckpointError as problem:
        if options.get("labels") is None:
            raise
        # Nothing is wrong with its files: it is another model than labels need.
        message = problem.message.removeprefix(f"{model.source}: ")
        raise ArgumentError(f"labels are given to a model that is not for them: {message}", hint=problem.hint) from None


def check_task(name: str) -> None:
    """Refuses a task that an engine does not know."""
    if name not in list(TASKS):
        raise not_one_of("task", name, TASKS)
