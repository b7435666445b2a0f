"""The catalogue of tasks, with an entry for each task. The library, the command line and the server use it.

Importing this module imports neither MLX nor the tasks: classes are given by name, and imported when they are used.
"""

import importlib
from collections.abc import Iterable, Mapping
from contextlib import suppress
from dataclasses import dataclass, fields
from typing import TYPE_CHECKING, Any

from mlxbert.errors import MissingHeadError
from mlxbert.frozen_dict import FrozenDict
from mlxbert.other_libraries import no_argument, not_one_of
from mlxbert.tasks import item_kinds, options as task_options
from mlxbert.tasks.item_kinds import ItemKind

if TYPE_CHECKING:
    from mlxbert.model import Model
    from mlxbert.tasks.task import Task
    from mlxbert.text.usage import Usage
    from mlxbert.weights.model_source import ModelRef


@dataclass(frozen=True, kw_only=True)
class TaskEntry:
    """A task of the catalogue."""

    name: str  # the name of the command and the route; the function has `_` in place of `-`
    task: str  # the subclass of `Task`, or a function that chooses one depending on the options, as `module:name`
    options: type[task_options.TaskOptions]  # the class of the options
    items: ItemKind
    result: str  # the class of the results, as `module:name`
    summary: str  # a few words that describe the results
    # The help of the command: a sentence, paragraphs, and an example. `None` if an option of another command chooses
    # the task.
    about: str | None = None
    needs: str | None = None  # the name of the required head in `mlxbert.load`, if it differs from the name of the task
    # The other task that a model may be made for, if the options have `labels`; `None` if labels change nothing.
    needs_with_labels: str | None = None
    hint: str | None = None  # the hint in the error for a model without the required head
    hint_with_labels: str | None = None  # the same if the options have `labels`; `None` if labels change nothing
    pipeline: str | None = None  # the name of the task on the Hugging Face hub; `None` if the hub has no such task
    # The kind of vectors that the task makes, if a server offers it only for models that are made for them.
    vectors: str | None = None

    def capable(self, models: Iterable[Mapping[str, Any]], *, labels: bool) -> list[Mapping[str, Any]]:
        """Returns the models of a server that can do this task, the one made for it first (see `ModelFacts`).

        If no model can do it with labels, returns those that can do it without: their errors name what is missing.
        """
        models = sorted(models, key=lambda model: self._distance(model, labels=labels))
        able = [model for model in models if labels and self.name in model["any_labels"]]
        return able or [model for model in models if self.name in model["tasks"]]

    def _distance(self, model: Mapping[str, Any], *, labels: bool) -> tuple[bool, bool]:
        needs_labels = self.name in model["any_labels"] and not model["labels"]
        return model["main"] != self.name, model["main"] != self.needs_with_labels if labels else needs_labels

    def load(self, ref: "ModelRef", options: task_options.TaskOptions | None, **arguments: Any) -> "Model":
        """Loads a model for the task with these options; see `mlxbert.load` for the other arguments."""
        from mlxbert.loading import load

        labels, name = getattr(options, "labels", None) is not None, self.needs or self.name
        if labels and self.needs_with_labels is not None:
            with suppress(MissingHeadError):
                return load(ref, task=name, **arguments)
            name = self.needs_with_labels
        try:
            return load(ref, task=name, **arguments)
        except MissingHeadError as problem:
            problem.hint = (self.hint_with_labels if labels else None) or self.hint or problem.hint
            raise

    def read_options(self, values: Mapping[str, Any]) -> task_options.TaskOptions:
        """Makes checked options from a mapping; raises ArgumentError if a name is unknown or a value is invalid."""
        names = [field.name for field in fields(self.options)]
        for name in values:
            if name not in names:
                raise no_argument(name, names, f"{self.name} has no option {name!r:.60}")
        return self.options(**values)

    def make(self, model: "Model", options: Any, usage: "Usage | None" = None) -> "Task[Any, Any, Any, Any]":
        """Makes the task for a model, with options from `read_options`."""
        task: Task[Any, Any, Any, Any] = imported(self.task)(model, options, usage=usage)
        return task


def imported(place: str) -> Any:
    """Imports and returns the object at `module:name`."""
    module, _, name = place.partition(":")
    return getattr(importlib.import_module(module), name)


def find_task(name: str) -> TaskEntry:
    """Returns the task with this name, or its function's; raises ArgumentError with all names if there is none."""
    task = name.replace("_", "-") if isinstance(name, str) else name
    if task not in [*CATALOGUE]:
        raise not_one_of("task", name, CATALOGUE)
    return CATALOGUE[task]


# The most used tasks come first: this is the order in the help of the command line.
CATALOGUE: Mapping[str, TaskEntry] = FrozenDict({
    entry.name: entry
    for entry in (
        TaskEntry(
            name="embed", task="mlxbert.tasks.embed:EmbedTask", options=task_options.EmbedOptions,
            items=item_kinds.TEXT, pipeline="sentence-similarity",
            result="mlxbert.results.embed:Embedding", summary="Vectors of texts",
            about="""Turn texts into vectors: texts of similar meaning have similar vectors.

            Options you leave out keep the model's own settings. --output takes .npy, .jsonl, .csv, .sqlite and
            .parquet, with --words .jsonl and .parquet; after an interruption the same command resumes.

            Example: mlxbert embed --input reviews.csv --text-column text --output reviews.npy
            """,
        ),
        TaskEntry(
            name="embed-words", task="mlxbert.tasks.embed_words:EmbedWordsTask", options=task_options.EmbedWordsOptions,
            items=item_kinds.TEXT, result="mlxbert.results.embed:Words", summary="Vectors of the words of texts",
            needs="embed",
        ),
        TaskEntry(
            name="embed-sparse", task="mlxbert.tasks.embed_sparse:EmbedSparseTask", options=task_options.SparseOptions,
            items=item_kinds.TEXT, result="mlxbert.results.embed:SparseEmbedding", summary="Sparse vectors of texts",
            vectors="sparse",
        ),
        TaskEntry(
            name="embed-tokens", task="mlxbert.tasks.token_vectors:TokenVectorsTask",
            options=task_options.TokenVectorOptions, items=item_kinds.TEXT,
            result="mlxbert.results.embed:TokenVectors", summary="Token vectors of texts", vectors="tokens",
        ),
        TaskEntry(
            name="classify", task="mlxbert.tasks.classify:make_task", options=task_options.ClassifyOptions,
            items=item_kinds.TEXT_OR_PAIR, result="mlxbert.results.text_results:Classification",
            summary="Classes of texts or pairs of texts", pipeline="text-classification", needs_with_labels="embed",
            about="""Classify texts or pairs of texts: with a fine-tuned model, or texts by any --labels.

            The model decides what is printed: labels with their probabilities, or a number. --labels needs no training:
            a model trained on natural language inference (NLI) judges whether the text implies the hypothesis made from
            a label, and an embedding model, such as the built-in one, compares the text with the hypothesis.

            Example: mlxbert classify "I loved it." --model distilbert/distilbert-base-uncased-finetuned-sst-2-english
            """,
        ),
        TaskEntry(
            name="tag", task="mlxbert.tasks.tag:make_task", options=task_options.TagOptions, items=item_kinds.TEXT,
            result="mlxbert.results.text_results:Tagged", summary="Entities of texts, or tags of words",
            pipeline="token-classification",
            hint_with_labels="`labels=` needs a GLiNER model, for example urchade/gliner_medium-v2.1",
            about="""Find entities in texts, or tag words: with a fine-tuned model, or entities of any --labels.

            The model decides what is found: names of persons and places, or the part of speech of every word. --labels
            needs no training, but a GLiNER model. Long texts are processed in overlapping windows.

            Example: mlxbert tag "Angela Merkel visited Paris." --model dslim/bert-base-NER
            """,
        ),
        TaskEntry(
            name="answer", task="mlxbert.tasks.answer:AnswerTask", options=task_options.AnswerOptions,
            items=item_kinds.QUESTION,
            result="mlxbert.results.text_results:Answer", summary="Answers to questions", pipeline="question-answering",
            hint="answer needs a question-answering model, for example deepset/roberta-base-squad2",
            about="""Answer questions from a text, if it contains the answers.

            In a file, they are the columns question and context, or others that you name.

            Example: mlxbert answer "When was it built?" --context-file a.txt -m DIR
            """,
        ),
        TaskEntry(
            name="rerank", task="mlxbert.tasks.rerank:RerankTask", options=task_options.RerankOptions,
            items=item_kinds.QUERY,
            result="mlxbert.results.text_relations:Reranked", summary="Texts in the order of a cross-encoder",
            pipeline="text-ranking",
            hint="rerank needs a cross-encoder, for example cross-encoder/ms-marco-MiniLM-L6-v2, or a model for late "
            "interaction, for example lightonai/GTE-ModernColBERT-v1",
            about="""Rank texts by how well they answer a query.

            Needs a cross-encoder, which reads the query and a text together, or a model for late interaction (ColBERT),
            which compares all their tokens; this is slower than similarity but more accurate. The texts may come from a
            file or a pipe. If no query is given, the first text of the file is the query. The index in the output
            counts the texts, from 0. In a terminal, the 20 best texts of a file are shown.

            Example: mlxbert rerank "who wrote emma" --input answers.txt --model cross-encoder/ms-marco-MiniLM-L6-v2
            """,
        ),
        TaskEntry(
            name="fill-mask", task="mlxbert.tasks.fill_mask:FillMaskTask", options=task_options.FillMaskOptions,
            items=item_kinds.TEXT, result="mlxbert.results.text_results:FillMask", summary="Words for masks",
            pipeline="fill-mask",
            about="""Find words that fit in place of [MASK].

            Several masks are filled independently: the others stay masked. In a text too long for the model, each mask
            is processed in a window around it. Scores are probabilities over the whole vocabulary. Only the first 49
            masks come with the filled text.

            Example: mlxbert fill-mask "Tokyo is the largest city in [MASK]." --top-k 3
            """,
        ),
        TaskEntry(
            name="next-sentence", task="mlxbert.tasks.next_sentence:NextSentenceTask",
            options=task_options.NextSentenceOptions, items=item_kinds.PAIR,
            result="mlxbert.results.text_relations:NextSentence", summary="Whether a text follows another",
            about="""Predict whether text B follows text A.

            In a file, the pairs are the fields or columns a and b, or those that --text-column and --pair-column name.
            The score is the probability that B is the next sentence.

            Example: mlxbert next-sentence "The man went to the store." "He bought a gallon of milk."
            """,
        ),
        TaskEntry(
            name="replaced", task="mlxbert.tasks.replaced:ReplacedTask", options=task_options.ReplacedOptions,
            items=item_kinds.TEXT, result="mlxbert.results.text_results:Replaced", summary="Which tokens look replaced",
            about="""Show which tokens of a text look replaced.

            Needs an ELECTRA discriminator. The score is the probability that a token is a replacement.

            Example: mlxbert replaced "The chef ate the meal." --model google/electra-small-discriminator
            """,
        ),
    )
})  # fmt: skip
# Ranks texts by the vectors of `embed`, so it has a command, a function and a route, but no `Task`.
SIMILARITY = TaskEntry(
    name="similarity", task="mlxbert.tasks.embed:EmbedTask", options=task_options.RankingOptions,
    items=item_kinds.QUERY,
    result="mlxbert.results.text_relations:Similarity", summary="Texts in the order of similarity",
)  # fmt: skip
