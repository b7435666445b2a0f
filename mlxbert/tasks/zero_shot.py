"""Zero-shot classification: scores any labels by natural language inference, as in transformers, or by similarity.

With a model for inference, the text is the premise, and a sentence with the label, such as "This example is sports.",
is the hypothesis. The more the premise entails the hypothesis, the better the label fits.

With an embedding model, a label is scored by how similar the text is to it. Similarities differ between models, and
some labels are similar to every text. Therefore a similarity is counted in standard deviations above the mean
similarity of the label to short sentences on many subjects. A softmax of these numbers gives the scores; with `multi`,
a sigmoid. `benchmarks/zero_shot.py` measures the constants.

Shapes: B batch, C outputs of the model or labels, S sentences, W size of a vector.
"""

import math
import weakref
from collections.abc import Iterable, Sequence
from functools import cached_property
from typing import cast

from mlxbert.errors import ArgumentError, InputError, MissingHeadError
from mlxbert.labels.labels import Labels
from mlxbert.lazy_numpy import np
from mlxbert.machine.device import mx
from mlxbert.model import Model
from mlxbert.nn.encoder import Batch
from mlxbert.option_declarations import check_listed
from mlxbert.other_libraries import not_one_of
from mlxbert.results.text_results import Classification
from mlxbert.tasks.embed import EmbedTask, Vector
from mlxbert.tasks.label_scores import HEAD, THRESHOLD, Item, LabelsTask, ranked
from mlxbert.tasks.options import ClassifyOptions, EmbedOptions
from mlxbert.tasks.query_ranking import scores_of_all
from mlxbert.tasks.task import PreparedItem, check_finite, check_no_window
from mlxbert.text.sample_texts import english
from mlxbert.text.usage import Usage

HYPOTHESIS = "This example is {}."  # as in transformers
SLOT = "{}"  # stands for the label
ONE_TEXT = "give single texts, because `labels=` scores the labels of one text"

Logits = tuple[float, float]  # the logits of entailment and of contradiction


class ZeroShotTask(LabelsTask[PreparedItem[str], Logits]):
    """Computes how well each of the given labels fits a text."""

    name = "classify"
    options: ClassifyOptions

    def __init__(self, model: Model, options: ClassifyOptions, *, usage: Usage | None = None) -> None:
        super().__init__(model, options, usage=usage)
        check_no_window(options)
        assert options.labels is not None  # `make_task` chooses this task only with labels
        self.labels = check_labels(options.labels)  # the labels to choose from
        template = check_hypothesis(HYPOTHESIS if options.hypothesis is None else options.hypothesis)
        self.hypotheses = [template.replace(SLOT, label) for label in self.labels]  # the hypothesis of each label
        assert model.labels is not None  # a model with the head has labels
        self._binary = options.multi or len(self.labels) == 1  # if false, the scores of all labels add up to 1
        self.entailment = find_entailment(model.labels, model.source)  # the index of the model's output for entailment
        # The index of the output for contradiction; equals `entailment` if contradiction is not needed.
        self.contradiction = find_contradiction(model.labels, model.source) if self._binary else self.entailment
        self.inputs = len(self.labels)

    def prepare(self, item: Item) -> PreparedItem[str]:
        """Tokenizes a text with each hypothesis; only the text is truncated."""
        if not isinstance(item, str):
            raise InputError(f"expected a text, found {item!r:.60}", hint=ONE_TEXT)
        encodings = self.model.tokenizer.encode_each(item, self.hypotheses, overflow=self.options.overflow)
        return PreparedItem(item, encodings, any(encoding.truncated for encoding in encodings))

    def texts(self, item: Item) -> list[str]:
        return [item, *self.hypotheses] if isinstance(item, str) else []

    def forward(self, batch: Batch, parts: Sequence[tuple[PreparedItem[str], int]]) -> mx.array:
        """Returns the logits (B, C)."""
        return self.model.network.logits(HEAD, batch).astype(mx.float32)

    def read(self, arrays: mx.array, parts: Sequence[tuple[PreparedItem[str], int]]) -> list[Logits]:
        rows = cast(list[list[float]], arrays.tolist())
        return [(row[self.entailment], row[self.contradiction]) for row in rows]

    def result(self, job: PreparedItem[str], outputs: Sequence[Logits]) -> Classification:
        check_finite([logit for pair in outputs for logit in pair])
        scores = [_softmax(pair)[0] for pair in outputs] if self._binary else _softmax([pair[0] for pair in outputs])
        thresholds = [THRESHOLD] * len(scores) if self.options.multi else None
        labels = ranked(self.labels, scores, self.options.top_k, thresholds)
        return Classification(job.item, labels, None, job.truncated)


def find_entailment(labels: Labels, source: str) -> int:
    """Returns the index of the label that begins with "entail" (in any case), as in transformers.

    Args:
        source: The name of the model in error messages.
    """
    return _first(labels, "entail", source)


def find_contradiction(labels: Labels, source: str) -> int:
    """Returns the index of the label that begins with "contradict" (in any case).

    If there are two labels, returns the one that is not entailment. transformers does not look for this name: it takes
    the last label if the first one is entailment, and otherwise the first label.
    """
    if len(labels) == 2:
        return 1 - find_entailment(labels, source)
    return _first(labels, "contradict", source)


def _first(labels: Labels, start: str, source: str) -> int:
    for number, name in enumerate(labels.names):
        if name.casefold().startswith(start):
            return number
    names = ", ".join(labels.names[:5]) + (", …" if len(labels) > 5 else "")
    raise MissingHeadError(
        f"{source}: the model was trained for the labels {names} and can choose only from them; to choose from others, "
        f"a model needs labels that begin with 'entail' and 'contradict', as NLI models have",
        hint="omit `labels=` to get the model's own labels, or use the model builtin or an NLI model such as "
        "FacebookAI/roberta-large-mnli",
    )


def _softmax(logits: Sequence[float], temperature: float = 1) -> list[float]:
    largest = max(logits)
    powers = [math.exp((logit - largest) / temperature) for logit in logits]
    total = sum(powers)
    return [power / total for power in powers]


def check_labels(labels: tuple[str, ...]) -> tuple[str, ...]:
    """Returns the labels; raises ArgumentError if a label is empty or repeated."""
    check_listed("labels", labels)
    for label in labels:
        if not label.strip() or labels.count(label) > 1:
            raise ArgumentError(f"label {label!r:.60} is {'given twice' if label.strip() else 'empty'}")
    return labels


def check_hypothesis(given: str) -> str:
    """Returns the hypothesis; raises ArgumentError if it has no place for the label."""
    if not isinstance(given, str) or SLOT not in given:
        raise ArgumentError(f"`hypothesis` is {given!r:.60}, expected a text with {SLOT} in the place of the label")
    return given


TOPIC_HYPOTHESIS = "This text is about {}."
_TEMPERATURE = 0.6  # of the softmax
_MIDDLE = 2.0  # the standard deviations above the mean at which a label is as likely as not, with `multi`
_SMALLEST_DEVIATION, _LARGEST = 1e-6, 100.0  # only a model whose vectors are all alike comes near these
_PROMPTS = ("classification", "Classification")  # in models of Jina and Google
# The vectors (S, W) of the sentences by model and prompt: they take a second, and a server makes a task per request.
_SENTENCES: "weakref.WeakKeyDictionary[Model, dict[str, Vector]]" = weakref.WeakKeyDictionary()


class LabelSimilarityTask(LabelsTask[PreparedItem[str], "Vector"]):
    """Computes how well each of the given labels fits a text, from the similarity of their vectors."""

    name = "embed"
    options: ClassifyOptions

    def __init__(self, model: Model, options: ClassifyOptions, *, usage: Usage | None = None) -> None:
        super().__init__(model, options, usage=usage)
        if options.overflow == "head-tail" or options.overflow == "window-max":
            raise not_one_of("overflow", options.overflow, ("truncate", "window", "error"))
        assert options.labels is not None  # `make_task` chooses this task only with labels
        self.labels = check_labels(options.labels)  # the labels to choose from
        template = check_hypothesis(TOPIC_HYPOTHESIS if options.hypothesis is None else options.hypothesis)
        prompts = model.embedder.config.prompts
        self._embed = EmbedTask(
            model,
            EmbedOptions(
                overflow=options.overflow,
                normalize=True if model.embedder.config.similarity == "cosine" else None,
                prompt_name=next((name for name in _PROMPTS if name in prompts), None),
            ),
        )
        self.tokenizer = self._embed.tokenizer
        self._similarity = self._embed.similarity
        self._labels = self._vectors(template.replace(SLOT, label) for label in self.labels)

    def _vectors(self, texts: Iterable[str]) -> "Vector":
        jobs = [self._embed.prepare(text) for text in texts]
        return np.stack([result.embedding for result in self._embed.compute(jobs, self.pause)])

    @cached_property
    def _unrelated(self) -> tuple["Vector", "Vector"]:
        """Returns the mean and the standard deviation (C,) of the similarity of each label to sentences."""
        kept, prompt = _SENTENCES.setdefault(self.model, {}), self._embed.prompt
        if prompt not in kept:
            kept[prompt] = self._vectors(english())
        scores = scores_of_all(self._similarity, kept[prompt], self._labels)
        return scores.mean(0), scores.std(0).clip(_SMALLEST_DEVIATION)

    @property
    def output_bytes(self) -> int:
        return self._embed.output_bytes

    def prepare(self, item: Item) -> PreparedItem[str]:
        if not isinstance(item, str):
            raise InputError(f"expected a text, found {item!r:.60}", hint=ONE_TEXT)
        return self._embed.prepare(item)

    def texts(self, item: Item) -> list[str]:
        return self._embed.texts(item) if isinstance(item, str) else []

    def forward(self, batch: Batch, parts: Sequence[tuple[PreparedItem[str], int]]) -> mx.array:
        """Returns the vectors (B, W)."""
        return self._embed.forward(batch, parts)

    def read(self, arrays: mx.array, parts: Sequence[tuple[PreparedItem[str], int]]) -> Sequence["Vector"]:
        return self._embed.read(arrays, parts)

    def result(self, job: PreparedItem[str], outputs: Sequence["Vector"]) -> Classification:
        vector = self._embed.result(job, outputs).embedding
        similarities = scores_of_all(self._similarity, vector[None], self._labels)[0]
        mean, deviation = self._unrelated
        above = ((similarities - mean) / deviation).clip(-_LARGEST, _LARGEST).tolist()
        if self.options.multi or len(self.labels) == 1:
            scores = [1 / (1 + math.exp(_MIDDLE - value)) for value in above]
        else:
            scores = _softmax(above, _TEMPERATURE)
        thresholds = [THRESHOLD] * len(scores) if self.options.multi else None
        return Classification(
            job.item, ranked(self.labels, scores, self.options.top_k, thresholds), None, job.truncated
        )
