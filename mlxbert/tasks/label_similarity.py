"""Zero-shot classification with an embedding model: scores any labels by how similar the text is to each of them.

Similarities differ between models, and some labels are similar to every text. Therefore a similarity is counted in
standard deviations above the mean similarity of the label to short sentences on many subjects. A softmax of these
numbers gives the scores; with `multi`, a sigmoid. `benchmarks/zero_shot.py` measures the constants.

Shapes: C labels, S sentences, W size of a vector.
"""

import math
import weakref
from collections.abc import Iterable, Sequence
from functools import cached_property
from typing import TYPE_CHECKING

from mlxbert.errors import InputError
from mlxbert.machine.device import mx
from mlxbert.model import Model
from mlxbert.nn.encoder import Batch
from mlxbert.other_libraries import not_one_of
from mlxbert.results.text_results import Classification
from mlxbert.tasks.embed import EmbedTask
from mlxbert.tasks.label_scores import THRESHOLD, Item, LabelsTask, ranked
from mlxbert.tasks.options import ClassifyOptions, EmbedOptions
from mlxbert.tasks.query_ranking import scores_of_all
from mlxbert.tasks.task import PreparedItem
from mlxbert.tasks.zero_shot import ONE_TEXT, SLOT, check_hypothesis, check_labels
from mlxbert.text.sample_texts import english
from mlxbert.text.usage import Usage

if TYPE_CHECKING:
    from mlxbert.tasks.embed import Vector

HYPOTHESIS = "This text is about {}."
_TEMPERATURE = 0.6  # of the softmax
_MIDDLE = 2.0  # the standard deviations above the mean at which a label is as likely as not, with `multi`
_SMALLEST_DEVIATION, _LARGEST = 1e-6, 100.0  # only a model whose vectors are all alike comes near these
_PROMPTS = ("classification", "Classification")  # in models of Jina and Google
# The vectors (S, W) of the sentences by model and prompt: they take a second, and a server makes a task per request.
_SENTENCES: "weakref.WeakKeyDictionary[Model, dict[str, Vector]]" = weakref.WeakKeyDictionary()


class LabelSimilarityTask(LabelsTask[PreparedItem[str], "Vector"]):
    """Computes how well each of the given labels fits a text, from the similarity of their vectors.

    Attributes:
        labels: The labels to choose from.
        output_bytes: The memory of a vector, in bytes.
    """

    name = "embed"
    options: ClassifyOptions

    def __init__(self, model: Model, options: ClassifyOptions, *, usage: Usage | None = None) -> None:
        super().__init__(model, options, usage=usage)
        if options.overflow == "head-tail" or options.overflow == "window-max":
            raise not_one_of("overflow", options.overflow, ("truncate", "window", "error"))
        assert options.labels is not None  # `make_task` chooses this task only with labels
        self.labels = check_labels(options.labels)
        template = check_hypothesis(HYPOTHESIS if options.hypothesis is None else options.hypothesis)
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
        import numpy as np

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
        """The memory of a vector, in bytes."""
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
        """Returns one vector (W,) per row."""
        return self._embed.read(arrays, parts)

    def result(self, job: PreparedItem[str], outputs: Sequence["Vector"]) -> Classification:
        """Makes the result: the labels, best first."""
        vector = self._embed.result(job, outputs).embedding
        similarities = scores_of_all(self._similarity, vector[None], self._labels)[0]
        mean, deviation = self._unrelated
        above = ((similarities - mean) / deviation).clip(-_LARGEST, _LARGEST).tolist()
        if self.options.multi or len(self.labels) == 1:
            scores = [1 / (1 + math.exp(_MIDDLE - value)) for value in above]
        else:
            best = max(above)
            powers = [math.exp((value - best) / _TEMPERATURE) for value in above]
            total = sum(powers)
            scores = [power / total for power in powers]
        thresholds = [THRESHOLD] * len(scores) if self.options.multi else None
        return Classification(
            job.item, ranked(self.labels, scores, self.options.top_k, thresholds), None, job.truncated
        )
