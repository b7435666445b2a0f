"""The objective of sparse vectors (SPLADE): the losses of dense vectors, and a penalty for many weights.

Shapes: T texts in a batch, V vocabulary.
"""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from mlxbert.errors import ArgumentError
from mlxbert.machine.device import mx
from mlxbert.model import Model
from mlxbert.nn.encoder import Batch
from mlxbert.nn.heads import Network
from mlxbert.nn.sparse_embedder import HEAD, SparseEmbedder, SpladePooling
from mlxbert.train.data.related_texts import Related
from mlxbert.train.nn import vector_losses
from mlxbert.train.objectives.embed import Embed
from mlxbert.train.objectives.objective import Predictions, Split
from mlxbert.train.objectives.predictions import predict
from mlxbert.train.objectives.vector_objective import TextGroup
from mlxbert.train.options.loop_options import TeacherOptions
from mlxbert.train.scores.evaluation_summary import Evaluation

ACTIVE = "active_tokens"  # the metric that says how sparse vectors are


class EmbedSparse(Embed):
    """Sparse vectors. The in-batch loss compares them by dot product; FLOPS regularizers keep most weights at 0."""

    needs = "embed-sparse"
    baseline_heads = (HEAD,)
    usual_temperature = 1.0
    compares_cosines = False
    sparse: SparseEmbedder
    progress = 1.0  # how far the training is, from 0 to 1, which decides the weight of the regularizers

    def __init__(self, **options: Any) -> None:
        super().__init__(**options)
        for name in ("pooling", "normalize", "dimensions"):
            if getattr(self.learning, name) is not None:
                raise ArgumentError(f"`{name}` works only for dense vectors, but these vectors are sparse")

    def bind(self, model: Model) -> None:
        self.sparse = model.sparse_embedder
        if not isinstance(self.sparse.documents, SpladePooling) or self.sparse.queries is not None:
            raise ArgumentError(
                f"{model.source} computes sparse vectors without a masked-LM head for all texts, which training needs",
                hint="train a model with a masked-LM head",
            )
        super().bind(model)
        self.width = model.config.vocab_size

    def take_embedder(self, model: Model) -> None:
        self.tokenizer = model.sparse_tokenizer.adapted(max_length=self.max_length)
        longest = max(self.tokenizer.max_length, model.sparse_tokenizer.max_length)
        config = replace(self.sparse.config, max_length=longest, stated=True)
        self.sparse = replace(self.sparse, config=config, documents=SpladePooling(config))
        self.vector_settings = config

    def embedder_to_save(self) -> SparseEmbedder:
        return self.sparse

    def begin_update(self, step: int, steps: int) -> None:
        self.progress = step / max(steps, 1)

    def outputs(self, network: Network, inputs: Batch) -> mx.array:
        return self.sparse.documents(network, inputs)

    def targets(self, examples: Sequence[TextGroup]) -> dict[str, mx.array]:
        """Returns the arrays of the loss, which documents there are, and the share of the regularizers' weight."""
        sizes = [len(example.encodings) for example in examples]
        first = np.cumsum([0, *sizes[:-1]])
        documents = np.setdiff1d(np.arange(sum(sizes)), first)
        warmup = max(self.learning.flops_warmup, 1e-9)
        ramp = min(self.progress / warmup, 1.0) ** 2  # quadratic, as in the SPLADE paper and in sentence-transformers
        return super().targets(examples) | {"documents": mx.array(documents), "ramp": mx.array(ramp)}

    def compare(self, outputs: mx.array, targets: Mapping[str, mx.array]) -> tuple[mx.array, float]:
        loss, weight = super().compare(outputs, targets)
        queries = self.learning.query_flops * vector_losses.flops(outputs[targets["anchors"]])
        documents = self.learning.document_flops * vector_losses.flops(outputs[targets["documents"]])
        return loss + weight * targets["ramp"] * (queries + documents), weight

    def distilled(self, teacher_task: Any, name: str, options: TeacherOptions) -> Any:
        """Raises `ArgumentError`: a teacher's vectors are imitated by dense vectors only."""
        raise ArgumentError("`teacher` works only for dense vectors, but these vectors are sparse")

    def metrics(self, examples: Sequence[TextGroup], predictions: Predictions) -> dict[str, float]:
        return {**super().metrics(examples, predictions), ACTIVE: _active(predictions)}

    def evaluation(self, part: Split, predictions: Predictions, **facts: Any) -> Evaluation:
        result = super().evaluation(part, predictions, **facts)
        return replace(result, metrics={**result.metrics, ACTIVE: _active(predictions)})

    def baselines(self, model: Model, train: Sequence[Related], valid: Sequence[Related]) -> dict[str, float]:
        examples = [example for record in valid for example in self.examples(record)]
        return {"before training": self.metrics(examples, predict(model.network, self, examples))[self.metric]}


def _active(predictions: Predictions) -> float:
    """Returns the mean number of weights that are not 0."""
    return float(np.mean([np.count_nonzero(row) for row in predictions]))
