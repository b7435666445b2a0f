"""The objective of classification with few examples (SetFit, arXiv:2209.11055).

First, the encoder is trained so that texts with the same label get similar vectors, and other texts dissimilar ones: n
examples give n² / 2 pairs. Then a logistic regression on the vectors becomes the classifier.

Shapes: B examples in a batch, T texts, W size of a vector.
"""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from mlxbert.errors import ArgumentError, InputError
from mlxbert.labels.labels import Labels
from mlxbert.machine.device import mx
from mlxbert.model import Model
from mlxbert.nn.embedder import Embedder, EmbeddingConfig, parse_poolings
from mlxbert.nn.encoder import Batch
from mlxbert.nn.heads import Network
from mlxbert.train.data.labelled_texts import LabelledText
from mlxbert.train.nn.vector_losses import same_class
from mlxbert.train.objectives.classify import Classify
from mlxbert.train.objectives.objective import ContrastiveObjective, Example, Share
from mlxbert.train.objectives.predictions import compute
from mlxbert.train.objectives.task_objective import Origin
from mlxbert.train.objectives.text_objective import HEAD
from mlxbert.train.scores.linear_models import fit_linear
from mlxbert.weights.sentence_transformers import read_embedder


class FewShot(ContrastiveObjective[Example], Classify):
    """Classification with few examples: a contrastive loss over vectors, then a logistic regression on them."""

    embedder: Embedder  # computes the vectors of the trained model; set by `bind`
    _pooling = "mean"

    def __init__(self, **options: Any) -> None:
        super().__init__(**options)
        for name, default in (("label_smoothing", 0.0), ("class_weights", "none")):
            if getattr(self.learning, name) != default:
                raise ArgumentError(f"`{name}` cannot be combined with `few_shot`")

    def few_shot_hint(self, records: Sequence[LabelledText]) -> str | None:
        return None

    def facts(self) -> dict[str, str]:
        return {"method": "pairs of texts (few_shot)"}

    def settings(self) -> dict[str, Any]:
        return super().settings() | {"few_shot": True}

    def start(self, source: Origin) -> None:
        self._pooling = source.pooling()

    def check(self, records: Sequence[LabelledText]) -> None:
        super().check(records)
        if self.columns is not None and self.columns.pair is not None:
            raise InputError(
                f"column {self.columns.pair!r} holds second texts, but `few_shot` takes single texts",
                hint="omit `few_shot=True`, or choose only a text column with `text_column=`",
            )

    def heads(self, records: Sequence[LabelledText]) -> Mapping[str, Labels | None]:
        labels = self.labels_of(records)
        if len(labels) == len(records):
            raise InputError(
                f"{records[0].place} and below: every training example has a different label, expected at least two "
                "examples with the same label"
            )
        self._records = records
        return {HEAD: replace(labels, head_pooling=self._pooling)}

    def bind(self, model: Model) -> None:
        super().bind(model)
        poolings = parse_poolings(self.labels.head_pooling or "mean")
        longest = max(self.tokenizer.max_length, model.tokenizer.max_length)  # trained lengths stay usable
        lower_case = read_embedder(model.files, self.config.hidden_size, with_weights=False).config.lower_case
        config = EmbeddingConfig(poolings, normalize=True, max_length=longest, lower_case=lower_case)
        self.embedder = Embedder(config, self.config.hidden_size)
        self.width = self.embedder.size

    def outputs(self, network: Network, inputs: Batch) -> mx.array:
        """Computes vectors of length 1, float32 (T, W)."""
        return self.embedder(network.encoder(inputs.input_ids, inputs.attention_mask, inputs.token_type_ids))

    def targets(self, examples: Sequence[Example]) -> mx.array:
        return mx.array([example.target for example in examples])

    def compare(self, outputs: mx.array, targets: mx.array) -> tuple[mx.array, float]:
        return same_class(outputs, targets), 1.0

    def check_teacher(self) -> None:
        raise ArgumentError("`teacher` cannot be combined with `few_shot`, which trains vectors instead of scores")

    def fit(self, network: Network, share: Share) -> None:
        examples = [self.prepare(record) for record in self._records]
        vectors = np.asarray(compute(network, self.inputs(examples), self._vectors, share=share))
        targets = np.eye(len(self.labels))[[example.target for example in examples]]
        classifier = fit_linear(vectors, targets, self.link)
        head = {"weight": classifier.weights.T, "bias": classifier.bias}
        weights = [(f"heads.{HEAD}.linear.{name}", mx.array(array, mx.float32)) for name, array in head.items()]
        network.load_weights(weights, strict=False)

    def _vectors(self, network: Network, inputs: Batch) -> mx.array:
        """Computes the inputs of the classifier: pooled vectors that are not normalized, float32 (T, W)."""
        hidden = network.encoder(inputs.input_ids, inputs.attention_mask, inputs.token_type_ids)
        return self.embedder.variant(normalize=False)(hidden)
