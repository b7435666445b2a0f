"""Tagging: finds entities, or tags every word, in texts of any length.

Shapes: B batch, L length, T tokens of a text, C tags.
"""

from collections.abc import Iterable, Iterator, Sequence
from typing import Any, cast

from mlxbert.errors import ArgumentError, InputError
from mlxbert.machine.device import mx
from mlxbert.model import Model
from mlxbert.nn.encoder import Batch
from mlxbert.nn.heads import probabilities
from mlxbert.nn.heads.token_classifier import TokenClassifier
from mlxbert.results.result import Failure
from mlxbert.results.text_results import Entity, Tagged
from mlxbert.tasks import entities, open_tag
from mlxbert.tasks.argument_checks import check_model
from mlxbert.tasks.entities import TaggedToken
from mlxbert.tasks.keywords import CallOptions, takes_keywords
from mlxbert.tasks.options import TagOptions
from mlxbert.tasks.task import Task, one_or_many
from mlxbert.tasks.token_task import Item, Scores, TokenJob, TokenTask
from mlxbert.text.usage import Usage

HEAD = "token_classifier"


class TagTask(TokenTask[Tagged]):
    """Finds the entities of a text, or tags its words."""

    name = "tag"
    part_bytes = open_tag.ENTITY_BYTES
    options: TagOptions

    def __init__(self, model: Model, options: TagOptions, *, usage: Usage | None = None) -> None:
        super().__init__(model, options, usage=usage)
        assert model.labels is not None  # a model with the head has labels
        self.names = model.labels.names  # the tags of the model
        head = cast(TokenClassifier, model.network.heads[HEAD])
        # The CRF that decides the tags of words; `None` if the model has none, or if an aggregation is given.
        self.crf = head.crf if options.aggregation is None and "crf" in head else None

    @property
    def output_bytes(self) -> int:
        return 4 * len(self.names) * self.tokenizer.max_length

    def units(self, job: TokenJob) -> int:
        """Returns the number of words, or an estimate of the number of tokens if tokens are tagged."""
        words = self.count_words(job)
        return max(words, job.tokens) if self.options.aggregation in ("none", "simple") else words

    def forward(self, batch: Batch, parts: Sequence[tuple[TokenJob, int]]) -> mx.array:
        """Returns the probabilities, or the logits for a CRF, (B, L, C)."""
        logits = self.model.network.logits(HEAD, batch)
        return logits.astype(mx.float32) if self.crf is not None else probabilities(logits)

    def result(self, job: TokenJob, outputs: Sequence["Scores"]) -> Tagged:
        """Makes the result: the entities of the text. Also computes the remaining windows of the text."""
        return Tagged(job.text, tuple(self._entities(job, self.tokens(job, outputs))), job.truncated)

    def _entities(self, job: TokenJob, tokens: Iterator[TaggedToken]) -> list[Entity]:
        aggregation, text, names = self.options.aggregation, job.text, self.names
        if aggregation in ("none", "simple"):
            pieces = entities.tag_tokens(tokens, names)
            return entities.each(text, pieces) if aggregation == "none" else entities.group(text, pieces)
        if isinstance(job.item, str) and aggregation is not None:
            words = entities.pipeline_words(text, tokens, self.model.tokenizer)
        else:
            words = self.words(job, tokens)
        if aggregation is not None:
            return entities.group(text, entities.tag_words(words, names, aggregation))
        if self.crf is not None:
            return entities.of_words(text, entities.decode_words(words, names, self.crf), names)
        return entities.of_words(text, entities.tag_words(words, names, "first"), names)


def make_task(model: Model, options: TagOptions, *, usage: Usage | None = None) -> Task[Item, Any, Any, Tagged]:
    """Makes the task for the model: `OpenTagTask` for a GLiNER model."""
    check_model(model)
    if open_tag.HEAD in model.network.heads:
        return open_tag.OpenTagTask(model, options, usage=usage)
    if options.labels is not None or options.threshold is not None or options.nested:
        name = "labels" if options.labels is not None else "threshold" if options.threshold is not None else "nested"
        raise ArgumentError(
            f"`{name}` is given, but {model.source} is not a GLiNER model",
            hint=f"use a GLiNER model such as urchade/gliner_medium-v2.1, or omit `{name}` for the model's own labels",
        )
    return TagTask(model, options, usage=usage)


@takes_keywords
def tag(
    model: Model, texts: Item | Iterable[Item | InputError], *, options: TagOptions, call: CallOptions
) -> Tagged | Iterator[Tagged | Failure]:
    """Finds entities in texts, or tags their words, with a token classifier, or entities of any types with GLiNER.

    Example:
        >>> model = mlxbert.load("dslim/bert-base-NER", task="tag")
        >>> result = mlxbert.tag(model, "Angela Merkel was born in Hamburg.")
        >>> [(entity.label, entity.text) for entity in result.entities]

    Without `aggregation`, the CRF decides the tag of a word if the model has one; otherwise the word gets the tag of
    its first token, as in training. Results are entities, or all words if the tags mark no entities (parts of speech).
    The values of `aggregation` are as in transformers: they leave out the tag `O` and do not use the CRF. `none`
    returns every token with its tag; `simple` joins neighbouring tokens of the same type; `first`, `average` and `max`
    join neighbouring words of the same type, and the tag of a word comes from its first token, the mean of its tokens,
    or its most certain token. Windows overlap, and the scores of a token come from the window where it is furthest from
    the edge.

    With `labels`, the model says for each span of words how well each label fits it. The best spans above `threshold`
    are the entities; they do not overlap, except with `nested`, where one may lie inside another. The score of a span
    can depend on all labels. Labels that would take more than half of an input are split into groups, each of which is
    computed with the whole text.

    Args:
        model: A model with a token classifier; with `labels`, a GLiNER model.
        texts: One text, or any number of texts. A text can also be a tuple of its words, or, among several texts, a
            list. The words are joined by spaces, and offsets count in the joined text.
        options: See `TagOptions`.
        call: See `CallOptions`.

    Returns:
        One result for one text; for several an iterator in their order, in constant memory. A longer text takes more
        memory only for its result and for a CRF, which needs a float per word and tag.

    Raises:
        InputError: The input is neither a text nor words, or is too long with `overflow="error"`.
        ArgumentError: An argument has an invalid value.
    """
    return one_or_many(make_task, model, texts, options, call)
