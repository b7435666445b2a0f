"""The objective of vectors: texts that belong together get similar vectors, and other texts get dissimilar vectors.

Shapes: B examples in a batch, T texts in a batch, W size of a vector.
"""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any, ClassVar, Self

import numpy as np

from mlxbert.errors import ArgumentError
from mlxbert.labels.labels import Labels
from mlxbert.machine.device import mx
from mlxbert.model import Model
from mlxbert.nn.dropout import KeyedDropout
from mlxbert.nn.embedder import Embedder
from mlxbert.nn.encoder import Batch
from mlxbert.nn.heads import Network
from mlxbert.nn.vector_settings import VectorSettings
from mlxbert.tasks.prompt_kinds import KINDS, own_prompt
from mlxbert.text.encoding import Encoding
from mlxbert.train.data.columns import ColumnNames
from mlxbert.train.data.labelled_rows import LabelledRows
from mlxbert.train.data.related_texts import Related, find_related_columns, read_related
from mlxbert.train.objectives.distillation_losses import VectorDistillation
from mlxbert.train.objectives.objective import ContrastiveObjective, Predictions, Split
from mlxbert.train.objectives.predictions import predict
from mlxbert.train.objectives.task_objective import Origin, TaskObjective
from mlxbert.train.objectives.vector_objective import KIND_NAMES, TextGroup, VectorLoss
from mlxbert.train.options.loop_options import TeacherOptions
from mlxbert.train.options.training_tasks import SPARSE, TOKENS, VectorLearning
from mlxbert.train.scores import vector_scores as scoring
from mlxbert.train.scores.evaluation_summary import Evaluation


class Embed(TaskObjective[TextGroup], ContrastiveObjective[TextGroup]):
    """Embedding, trained with contrastive and regression losses over vectors."""

    name, head = "embed", ""
    lr_factor = 0.4  # there is no new head
    learning: VectorLearning
    columns: ColumnNames | None = None
    embedder: Embedder
    # Whether the validation data are single texts without related texts, and the caller chose no metric.
    unjudged = False
    usual_temperature: ClassVar[float] = 0.05
    compares_cosines = True
    _pools_prompts = True
    vector_settings: VectorSettings

    def __init__(self, **options: Any) -> None:
        super().__init__(**options)
        learning = self.learning
        if not isinstance(learning.dimensions, list | tuple | None):
            raise ArgumentError(f"`dimensions` is {learning.dimensions!r:.60}, expected a list of sizes")
        self._loss = VectorLoss(
            learning.loss, temperature=self.temperature, dots=not self.compares_cosines,
            margin=learning.margin, symmetric=learning.symmetric,
            dimensions=None if learning.dimensions is None else tuple(learning.dimensions),
            max_score=learning.max_score,
        )  # fmt: skip
        self.chunk = learning.chunk

    @property
    def temperature(self) -> float:
        return self.usual_temperature if self.learning.temperature is None else self.learning.temperature

    def settings(self) -> dict[str, Any]:
        """See `Objective.settings`. The setting `name` is the loss in use."""
        settings = super().settings() | {"name": self._loss.name, "temperature": self.temperature}
        del settings["loss"]
        return settings

    def read(self, rows: LabelledRows) -> list[Related]:
        """Reads related texts. Validation data may have different columns than the training data, such as scores."""
        present = any(column in rows.columns for column in self._columns.values())
        columns = find_related_columns(rows, **(self._columns if self.columns is None or present else {}))
        self.columns = self.columns or columns
        return read_related(rows, columns)

    def check(self, records: Sequence[Related]) -> None:
        assert self.columns is not None
        self._loss = self._loss.chosen(self.columns.kind)
        self._loss.check(records)

    def check_valid(self, train: Sequence[Related], valid: Sequence[Related]) -> None:
        self._choose_metric(valid)

    def matched(self, records: Sequence[Related], model: Model) -> tuple[Sequence[Related], Mapping[str, int]]:
        self._choose_metric(records)
        return records, {}

    def _choose_metric(self, valid: Sequence[Related]) -> None:
        kinds = {"scored" if record.label is not None else "pairs" if record.positives else "texts" for record in valid}
        self._validated = " and ".join(KIND_NAMES[kind] for kind in sorted(kinds))
        self.unjudged = kinds == {"texts"} and self._metric is None
        metrics = scoring.metrics_of(valid)
        if self._metric is not None and self._metric not in metrics:
            raise ArgumentError(f"`metric` is {self._metric!r}, but the validation data allows {', '.join(metrics)}")
        self.metric = self._metric or metrics[0]

    def facts(self) -> dict[str, str]:
        return {"loss": str(self._loss.name), "validated by": self._validated}

    def notes(self) -> tuple[str, ...]:
        """Returns a warning if the model learns from single texts without dropout; otherwise nothing."""
        if self.columns is None or self.columns.kind != "texts" or not self._without_dropout:
            return ()
        return (
            "The model has no dropout, so the two views of each text are the same unless the option dropout is set.",
        )

    def usual_variant(self, records: Sequence[Related], source: Origin) -> str | None:
        return self._variant_for(source.vectors())

    def variant_of(self, model: Model) -> str | None:
        return self._variant_for(model.vectors)

    def _variant_for(self, vectors: Sequence[str]) -> str | None:
        variant = {"sparse": SPARSE, "tokens": TOKENS}.get(vectors[0])
        return variant if self.learning.vectors == "auto" else None

    def heads(self, records: Sequence[Related]) -> Mapping[str, Labels | None]:
        return {}

    def bind(self, model: Model) -> None:
        super().bind(model)
        rates = {module.rate for module in model.network.modules() if isinstance(module, KeyedDropout)}
        self._without_dropout = not any(rates)
        self.take_embedder(model)
        prompts = self.vector_settings.prompts
        default = prompts.get(self.vector_settings.default_prompt_name or "", "")
        by_kind = {kind: prompts.get(own_prompt(prompts, kind) or "", default) for kind in KINDS}
        self._prompts = by_kind | {None: default}
        if any(self._prompts.values()) and not self._pools_prompts:
            raise ArgumentError(
                f"{model.source} excludes the prompt from pooling, which training does not support",
                hint="`mlxbert.embed(model, texts)` computes the model's vectors",
            )

    def take_embedder(self, model: Model) -> None:
        self.embedder = model.embedder.variant(pooling=self.learning.pooling, normalize=self.learning.normalize)
        self.width = self.embedder.size
        if self.embedder.needs_attentions:
            raise ArgumentError("`pooling` is 'attention', which sentence-transformers does not support")
        if (largest := max(self._loss.dimensions or (), default=0)) > self.width:
            raise ArgumentError(
                f"`dimensions` includes {largest}, expected at most {self.width}, the size of the vectors"
            )
        self.tokenizer = model.embed_tokenizer.adapted(max_length=self.max_length)
        longest = max(self.tokenizer.max_length, model.embed_tokenizer.max_length)  # trained lengths stay usable
        self.embedder.config = config = replace(self.embedder.config, max_length=longest)
        self.vector_settings, self._pools_prompts = config, config.include_prompt

    def examples(self, record: Related) -> Sequence[TextGroup]:
        """Returns an example for each positive or, with a triplet loss, for each pair of a positive and a negative."""
        kind = "scored" if record.label is not None else "pairs" if record.positives else "texts"
        first, second = ("query", "document") if kind == "pairs" else (None, None)
        anchor = self._encode(record.text, first)
        if kind == "texts":
            halves = tuple(self._encode(half, None) for half in halved(record.text))
            return [TextGroup(anchor, None, (anchor,), (record.text, record.text), kind, halves)]
        triplets = self._loss.name == "triplet" and record.negatives
        groups = [(negative,) for negative in record.negatives] if triplets else [record.negatives]
        return [
            TextGroup(
                anchor, record.label, tuple(self._encode(text, second) for text in (positive, *negatives)),
                (record.text, positive, *negatives), kind,
            )
            for positive in record.positives for negatives in groups
        ]  # fmt: skip

    def _encode(self, text: str, kind: str | None) -> Encoding:
        return self.tokenizer.encode(self._prompts[kind] + text, overflow="truncate")

    def outputs(self, network: Network, inputs: Batch) -> mx.array:
        hidden = network.encoder(inputs.input_ids, inputs.attention_mask, inputs.token_type_ids)
        return self.embedder(hidden, inputs.attention_mask)

    def targets(self, examples: Sequence[TextGroup]) -> dict[str, mx.array]:
        return self._loss.targets(examples)

    def compare(self, outputs: mx.array, targets: Mapping[str, mx.array]) -> tuple[mx.array, float]:
        return self._loss(outputs, targets)

    def inputs(self, examples: Sequence[TextGroup]) -> Sequence[Encoding]:
        """Returns all texts of each example. A single text is replaced by its two halves."""
        return [encoding for example in examples for encoding in example.evaluated]

    def check_teacher(self) -> None:
        """Raises `ArgumentError` if the data are pairs of texts: with a teacher, the model learns from single texts."""
        if self.columns is None or self.columns.kind != "texts":
            raise ArgumentError(
                "`teacher` needs single texts, but the data has pairs of texts",
                hint="use a file with one column of texts, and name it with `text_column=`",
            )

    def of_teacher(self, model: Model) -> Self:
        """See `TaskObjective.of_teacher`. The pooling options apply to the student only."""
        task = super().of_teacher(model)
        task.embedder = model.embedder
        return task

    def distilled(self, teacher_task: Self, name: str, options: TeacherOptions) -> VectorDistillation:
        """Returns the objective of training with a teacher. Its only loss is the distance between the vectors."""
        ours, theirs, sizes = self.embedder.size, teacher_task.embedder.size, self._loss.dimensions
        smaller = min(ours, theirs)
        if max(sizes or (ours, theirs)) > smaller:
            raise ArgumentError(
                f"{name}: the teacher's vectors have {theirs} values, but the student's vectors have {ours}",
                hint=f"choose sizes up to {smaller} with `dimensions=`",
            )
        return VectorDistillation(self, sizes, chooses=self.unjudged)

    def teacher_outputs(self, network: Network, inputs: Batch) -> mx.array:
        return self.outputs(network, inputs)

    def predict(self, network: Network, inputs: Batch) -> mx.array:
        return self.outputs(network, inputs)

    def metrics(self, examples: Sequence[TextGroup], predictions: Predictions) -> dict[str, float]:
        return scoring.vector_scores(examples, np.asarray(predictions), self.vector_settings.similarity).means()

    def evaluation(self, part: Split, predictions: Predictions, **facts: Any) -> Evaluation:
        about = {"metric": self.metric, "similarity": self.vector_settings.similarity, **facts}
        return scoring.evaluation(part.records, part.examples, np.asarray(predictions), **about)

    def baselines(self, model: Model, train: Sequence[Related], valid: Sequence[Related]) -> dict[str, float]:
        examples = [example for record in valid for example in self.examples(record)]
        trained, self.embedder = self.embedder, model.embedder
        predictions = predict(model.network, self, examples)
        self.embedder = trained
        return {"before training": self.metrics(examples, predictions)[self.metric]}

    def tuned(self, part: Split, predictions: Predictions) -> Labels:
        """Returns the labels in the model's configuration. They are not tuned, because vectors have no thresholds."""
        return self.config.labels or Labels()


def halved(text: str) -> tuple[str, ...]:
    """Splits a text into two halves: by words, or by characters if it has no spaces."""
    words = text.split()
    if len(words) > 1:
        return " ".join(words[: len(words) // 2]), " ".join(words[len(words) // 2 :])
    middle = len(text) // 2
    return (text[:middle], text[middle:]) if middle else ()
