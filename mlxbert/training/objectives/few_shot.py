"""One class per text from few examples (SetFit, arXiv:2209.11055).

Instead of a classifier, the encoder is trained first: vectors of texts with the same label become similar, others
dissimilar, so that n examples give n² / 2 pairs. The classifier is a logistic regression on the vectors.

Shapes: B examples of a batch, T texts, W size of a vector.
"""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from mlxbert.data.labelled_texts import LabelledText
from mlxbert.errors import ArgumentError, InputError
from mlxbert.labels.labels import Labels
from mlxbert.machine.device import mx
from mlxbert.machine.distributed import ProcessGroup
from mlxbert.model import Model
from mlxbert.nn.embedder import Embedder, EmbeddingConfig, parse_poolings
from mlxbert.nn.encoder import Batch
from mlxbert.nn.heads import Network
from mlxbert.nn.vector_losses import same_class
from mlxbert.training.objectives.classify import Classify
from mlxbert.training.objectives.objective import ContrastiveObjective, Example
from mlxbert.training.objectives.predictions import compute
from mlxbert.training.objectives.task_objective import Origin
from mlxbert.training.objectives.text_objective import HEAD
from mlxbert.training.scores.linear_models import fit_linear


class FewShot(ContrastiveObjective[Example], Classify):
    """Similar vectors within classes, and a logistic regression on them.

    Args:
        **options: See `Classify`; without `label_smoothing` and `class_weights`.

    Attributes:
        embedder: How the trained model makes vectors, after `bind`.
    """

    embedder: Embedder
    _pooling = "mean"

    def __init__(self, **options: Any) -> None:
        super().__init__(**options)
        for name, usual in (("label_smoothing", 0.0), ("class_weights", "none")):
            if getattr(self.learning, name) != usual:
                raise ArgumentError(f"{name} is given, which does not work with few_shot")

    def few_shot_hint(self, records: Sequence[LabelledText]) -> str | None:
        """See `TaskObjective.few_shot_hint`."""
        return None

    def facts(self) -> dict[str, str]:
        """See `TaskObjective.facts`."""
        return {"method": "pairs of texts (few_shot)"}

    def settings(self) -> dict[str, Any]:
        """See `Objective.settings`."""
        return super().settings() | {"few_shot": True}

    def start(self, source: Origin) -> None:
        """Takes the pooling of the model that training starts from."""
        self._pooling = source.pooling()

    def check(self, records: Sequence[LabelledText]) -> None:
        """See `TaskObjective.check`."""
        super().check(records)
        if self.columns is not None and self.columns.pair is not None:
            raise InputError(
                f"column {self.columns.pair!r} holds second texts, few_shot takes texts alone",
                hint="leave out few_shot, or name the column of the text alone with text_column=",
            )

    def heads(self, records: Sequence[LabelledText]) -> Mapping[str, Labels | None]:
        """A classifier of vectors with the classes of the records, to which it is fitted."""
        labels = self.labels_of(records)
        if len(labels) == len(records):
            raise InputError(
                f"{records[0].place} and below: every training example has a different label, expected at least two "
                "with the same one"
            )
        self._records = records
        return {HEAD: replace(labels, head_pooling=self._pooling)}

    def bind(self, model: Model) -> None:
        """Takes tokenizer, labels and pooling of a model."""
        super().bind(model)
        how = EmbeddingConfig(parse_poolings(self.labels.head_pooling or "mean"), normalize=True)
        self.embedder = Embedder(how, self.config.hidden_size)
        self.width = self.embedder.size

    def outputs(self, network: Network, inputs: Batch) -> mx.array:
        """Vectors of length 1, float32 (T, W)."""
        return self.embedder(network.encoder(inputs.input_ids, inputs.attention_mask, inputs.token_type_ids))

    def targets(self, examples: Sequence[Example]) -> mx.array:
        """The classes of the examples."""
        return mx.array([example.target for example in examples])

    def compare(self, outputs: mx.array, targets: mx.array) -> tuple[mx.array, float]:
        """See `same_class`."""
        return same_class(outputs, targets), 1.0

    def check_teacher(self) -> None:
        """Refuses a teacher, whose scores no loss is made of."""
        raise ArgumentError("teacher is given with few_shot, which trains vectors and not scores")

    def fit(self, network: Network, group: ProcessGroup) -> None:
        """Fits the classifier to the vectors of the training texts."""
        examples = [self.prepare(record) for record in self._records]
        vectors = np.asarray(compute(network, self.inputs(examples), self._vectors, group=group))
        targets = np.eye(len(self.labels))[[example.target for example in examples]]
        found = fit_linear(vectors, targets, self.link)
        head = {"weight": found.weights.T, "bias": found.bias}
        weights = [(f"heads.{HEAD}.linear.{name}", mx.array(array, mx.float32)) for name, array in head.items()]
        network.load_weights(weights, strict=False)

    def _vectors(self, network: Network, inputs: Batch) -> mx.array:
        """What the classifier takes: vectors as they are pooled, float32 (T, W)."""
        hidden = network.encoder(inputs.input_ids, inputs.attention_mask, inputs.token_type_ids)
        return self.embedder.variant(normalize=False)(hidden)
