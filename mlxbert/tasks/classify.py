"""Classification: labels with scores, or a number, for a text or a pair of texts.

The configuration of the model decides whether one label is right (softmax), several may be right (sigmoid), or the
outputs are numbers (regression). If it does not say, a single output is converted by a sigmoid and several outputs by a
softmax, as in transformers.

Shapes: B batch, C outputs.
"""

import logging
import math
from collections.abc import Iterable, Iterator, Sequence
from typing import Any, ClassVar, cast

from mlxbert.errors import ArgumentError, InputError
from mlxbert.labels.labels import MULTI_LABEL, REGRESSION, Labels
from mlxbert.machine.device import mx
from mlxbert.model import Model
from mlxbert.nn.encoder import Batch
from mlxbert.nn.heads import probabilities
from mlxbert.results.result import Failure
from mlxbert.results.text_results import Classification, Regression
from mlxbert.tasks.keywords import CallOptions, takes_keywords
from mlxbert.tasks.label_scores import HEAD, THRESHOLD, Item, LabelsTask, ranked
from mlxbert.tasks.options import ClassifyOptions
from mlxbert.tasks.task import PreparedItem, Task, check_finite, checked_pair, one_or_many
from mlxbert.tasks.training_record import missing_pair, trained_columns
from mlxbert.tasks.zero_shot import LabelSimilarityTask, ZeroShotTask
from mlxbert.text.usage import Usage

_LOG = logging.getLogger("mlxbert")

ClassifyJob = PreparedItem[tuple[str, str | None]]


def scores(logits: mx.array, labels: Labels) -> mx.array:
    """Converts the logits (B, C) of a classifier to float32 scores: to probabilities, except for a regression."""
    float_logits = logits.astype(mx.float32)
    if labels.problem_type == REGRESSION:
        return float_logits
    if labels.problem_type == MULTI_LABEL or len(labels) == 1:
        return mx.sigmoid(float_logits)
    return probabilities(float_logits)


class ClassifyTask(LabelsTask[ClassifyJob, list[float]]):
    """Computes the labels, or the values of a regression, for a text or a pair of texts."""

    logits: ClassVar[bool] = False  # whether the scores of labels are the logits of the model
    name = "classify"
    options: ClassifyOptions

    def __init__(self, model: Model, options: ClassifyOptions, *, usage: Usage | None = None) -> None:
        super().__init__(model, options, usage=usage)
        for name, value in (("hypothesis", options.hypothesis), ("multi", options.multi or None)):
            if value is not None:
                raise ArgumentError(f"`{name}` works only with `labels`")
        assert model.labels is not None  # a model with the head has labels
        self.labels = model.labels  # the classes of the model
        self._pairs = "pair" in trained_columns(model.folder)

    @property
    def windowed(self) -> bool:
        return self.options.overflow in ("window", "window-max")

    @property
    def output_bytes(self) -> int:
        """The memory of an output in bytes: a Python number for each label."""
        return 32 * len(self.labels)

    def prepare(self, item: Item) -> ClassifyJob:
        text, pair = _split(item)
        if pair is None and self.tokenizer.prompt is not None:
            raise InputError(
                "the input is a single text, but the model needs a query and a text", hint="use rerank, or give pairs"
            )
        if self._pairs and pair is None:
            self._pairs = False  # warns only once
            _LOG.warning("%s", missing_pair(self.model.source))
        if self.options.overflow == "head-tail":
            encoding = self.model.tokenizer.head_and_tail(text, pair)
            return PreparedItem((text, pair), [encoding], encoding.truncated)
        if self.windowed:
            return PreparedItem((text, pair), self.model.tokenizer.windows(text, pair, stride=0, longer=True), False)
        encoding = self.encode(text, pair)
        return PreparedItem((text, pair), [encoding], encoding.truncated)

    def forward(self, batch: Batch, parts: Sequence[tuple[ClassifyJob, int]]) -> tuple[mx.array, mx.array]:
        """Returns the scores and the logits, (B, C) each."""
        logits = self.model.network.logits(HEAD, batch)
        return logits.astype(mx.float32) if self.logits else scores(logits, self.labels), logits

    def read(self, arrays: tuple[mx.array, mx.array], parts: Sequence[tuple[ClassifyJob, int]]) -> list[list[float]]:
        rows, logits = (cast(list[list[float]], array.tolist()) for array in arrays)
        for row, row_logits in zip(rows, logits, strict=True):
            if not all(map(math.isfinite, row_logits)):
                row[0] = math.nan  # for `result`: the sigmoid of infinity is 1
        return rows

    def result(self, job: ClassifyJob, outputs: Sequence[list[float]]) -> Classification | Regression:
        """Makes the result: the labels, best first, or the values of a regression.

        The scores of windows are averaged, weighted by their tokens, or the largest of each label is taken.
        """
        text, pair = job.item
        for output in outputs:
            check_finite(output)
        if self.options.overflow == "window-max":
            numbers = [*map(max, zip(*outputs, strict=True))]
        else:
            numbers = outputs[0] if len(outputs) == 1 else _mean(outputs, list(map(len, job.encodings)))
        if self.labels.problem_type == REGRESSION:
            values = tuple(zip(self.labels.names, numbers, strict=True))
            return Regression(text, numbers[0], values if len(values) > 1 else (), pair, job.truncated)
        several = self.labels.problem_type == MULTI_LABEL
        thresholds = self.labels.thresholds or [THRESHOLD] * len(numbers) if several else None
        labels = ranked(self.labels.names, numbers, self.options.top_k, thresholds)
        return Classification(text, labels, pair, job.truncated)


def make_task(
    model: Model, options: ClassifyOptions, *, usage: Usage | None = None
) -> Task[Item, Any, Any, Classification | Regression]:
    """Makes the task that the options select: zero-shot classification if they have labels.

    With labels, a model without a sequence classifier is used as an embedding model.
    """
    if options.labels is None:
        return ClassifyTask(model, options, usage=usage)
    zero_shot = ZeroShotTask if HEAD in model.network.heads else LabelSimilarityTask
    return zero_shot(model, options, usage=usage)


@takes_keywords
def classify(
    model: Model, texts: Item | Iterable[Item | InputError], *, options: ClassifyOptions, call: CallOptions
) -> Classification | Regression | Iterator[Classification | Regression | Failure]:
    """Classifies texts or pairs of texts with a fine-tuned model, or texts with any labels without training.

    Example:
        >>> model = mlxbert.load("distilbert/distilbert-base-uncased-finetuned-sst-2-english", task="classify")
        >>> mlxbert.classify(model, "What a lovely day!").labels[0].label

    The scores of a text in windows are the mean of the windows' scores, weighted by their tokens, or with `window-max`
    the largest score of each label, which then need not add up to 1. Windows of a pair cover the longer text, and each
    has the other text in full. With `labels`, an NLI model judges whether the text
    implies the hypothesis; there are no windows then, and the hypothesis is never truncated. An embedding model (the
    built-in one is one) compares the vector of the text with those of the hypotheses.

    Args:
        model: A model with a sequence classifier; with `labels`, a model trained on natural language inference, or an
            embedding model.
        texts: One text, one pair (a tuple of two texts), or any number of texts and pairs; with `labels` no pairs.
        options: See `ClassifyOptions`.
        call: See `CallOptions`.

    Returns:
        For one text or pair its `Classification`, or its `Regression` if the model computes numbers; for several an
        iterator in their order, in constant memory.

    Raises:
        InputError: The input is not a text or a pair of texts, or is too long with `overflow="error"`.
        ArgumentError: An argument has an invalid value.
        CheckpointError: The model has no label for entailment or contradiction, which `labels` need.
    """
    return one_or_many(make_task, model, texts, options, call)


def _split(item: Item) -> tuple[str, str | None]:
    return (item, None) if isinstance(item, str) else checked_pair(item, "a text or a pair of texts")


def _mean(rows: Sequence[list[float]], weights: Sequence[int]) -> list[float]:
    weights = weights if any(weights) else [1] * len(weights)
    total = sum(weights)
    return [
        sum(weight * score for weight, score in zip(weights, column, strict=True)) / total
        for column in zip(*rows, strict=True)
    ]
