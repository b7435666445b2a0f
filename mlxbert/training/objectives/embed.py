"""Vectors of texts: what belongs together becomes similar, what does not becomes dissimilar.

Shapes: B examples of a batch, T texts of a batch, W size of a vector.
"""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any, Self

import numpy as np

from mlxbert.data.columns import ColumnNames
from mlxbert.data.related_texts import Related, find_related_columns, read_related
from mlxbert.errors import ArgumentError
from mlxbert.labels.labels import Labels
from mlxbert.machine.device import mx
from mlxbert.model import Model
from mlxbert.nn.dropout import KeyedDropout
from mlxbert.nn.embedder import Embedder
from mlxbert.nn.encoder import Batch
from mlxbert.nn.heads import Network
from mlxbert.readers.labelled_rows import LabelledRows
from mlxbert.tasks.prompt_kinds import KINDS, own_prompt
from mlxbert.text.encoding import Encoding
from mlxbert.training.objectives.distillation_losses import VectorDistillation
from mlxbert.training.objectives.objective import ContrastiveObjective, Predictions, Split
from mlxbert.training.objectives.predictions import predict
from mlxbert.training.objectives.task_objective import TaskObjective
from mlxbert.training.objectives.vector_loss import WHAT, TextGroup, VectorLoss
from mlxbert.training.options.loop_options import TeacherOptions
from mlxbert.training.options.training_tasks import VectorLearning
from mlxbert.training.scores import vector_scores as scoring
from mlxbert.training.scores.evaluation_summary import Evaluation


class Embed(TaskObjective[TextGroup], ContrastiveObjective[TextGroup]):
    """Contrastive and regression losses over vectors.

    Attributes:
        unjudged: Whether the validation data are texts alone, and no metric is asked for.
    """

    name, head = "embed", ""
    lr_factor = 0.4  # nothing is new
    learning: VectorLearning
    columns: ColumnNames | None = None
    embedder: Embedder
    unjudged = False

    def __init__(self, **options: Any) -> None:
        super().__init__(**options)
        how = self.learning
        self._loss = VectorLoss(
            how.loss, temperature=how.temperature, margin=how.margin, symmetric=how.symmetric,
            dimensions=None if how.dimensions is None else tuple(how.dimensions), max_score=how.max_score,
        )  # fmt: skip
        self.chunk = how.chunk

    def settings(self) -> dict[str, Any]:
        """See `Objective.settings`; the loss is the one that was chosen."""
        found = super().settings() | {"name": self._loss.name}
        del found["loss"]
        return found

    def read(self, rows: LabelledRows) -> list[Related]:
        """Related texts; validation data may have other columns than the training data, such as scores."""
        there = any(column in rows.columns for column in self._asked.values())
        columns = find_related_columns(rows, **(self._asked if self.columns is None or there else {}))
        self.columns = self.columns or columns
        return read_related(rows, columns)

    def check(self, records: Sequence[Related]) -> None:
        """See `TaskObjective.check`."""
        assert self.columns is not None
        self._loss = self._loss.chosen(self.columns.kind)
        self._loss.check(records)

    def check_valid(self, train: Sequence[Related], valid: Sequence[Related]) -> None:
        """Takes the metric that fits the validation data."""
        self._choose_metric(valid)

    def matched(self, records: Sequence[Related], model: Model) -> tuple[Sequence[Related], Mapping[str, int]]:
        """The records as they are; takes the metric that fits them."""
        self._choose_metric(records)
        return records, {}

    def _choose_metric(self, valid: Sequence[Related]) -> None:
        kinds = {"scored" if one.label is not None else "pairs" if one.positives else "texts" for one in valid}
        self._validated = " and ".join(WHAT[kind] for kind in sorted(kinds))
        self.unjudged = kinds == {"texts"} and self._metric is None
        known = scoring.metrics_of(valid)
        if self._metric is not None and self._metric not in known:
            raise ArgumentError(f"metric is {self._metric!r}, the validation data allow {', '.join(known)}")
        self.metric = self._metric or known[0]

    def facts(self) -> dict[str, str]:
        """The loss, which depends on the data."""
        return {"loss": str(self._loss.name), "validated by": self._validated}

    def notes(self) -> tuple[str, ...]:
        """That texts alone need dropout."""
        if self.columns is None or self.columns.kind != "texts" or not self._without_dropout:
            return ()
        return ("The model has no dropout: unless the option dropout is set, the two views of each text are the same.",)

    def heads(self, records: Sequence[Related]) -> Mapping[str, Labels | None]:
        """None: the encoder is trained."""
        return {}

    def bind(self, model: Model) -> None:
        """Takes the tokenizer and the pooling of a model."""
        super().bind(model)
        self.embedder = model.embedder.variant(pooling=self.learning.pooling, normalize=self.learning.normalize)
        self.width = self.embedder.size
        rates = {one.rate for one in model.network.modules() if isinstance(one, KeyedDropout)}
        self._without_dropout = not any(rates)
        if self.embedder.needs_attentions:
            raise ArgumentError("pooling is 'attention', which sentence-transformers cannot open")
        if (largest := max(self._loss.dimensions or (), default=0)) > self.width:
            raise ArgumentError(f"dimensions has {largest}, the model's vectors have {self.width} values")
        self.tokenizer = model.embed_tokenizer.adapted(max_length=self.max_length)
        longest = max(self.tokenizer.max_length, model.embed_tokenizer.max_length)  # what is trained is also used
        self.embedder.config = replace(self.embedder.config, max_length=longest)
        prompts = self.embedder.config.prompts
        usual = prompts.get(self.embedder.config.default_prompt_name or "", "")
        self._prompts = {kind: prompts.get(own_prompt(prompts, kind) or "", usual) for kind in KINDS} | {None: usual}
        if any(self._prompts.values()) and not self.embedder.config.include_prompt:
            raise ArgumentError(
                f"{model.source} excludes the prompt from pooling; training does not support this",
                hint="mlxbert.embed(model, texts) computes its vectors",
            )

    def prepare(self, record: Related) -> TextGroup:
        """The first example of a record."""
        return self.examples(record)[0]

    def examples(self, record: Related) -> Sequence[TextGroup]:
        """One example for each positive."""
        kind = "scored" if record.label is not None else "pairs" if record.positives else "texts"
        first, second = ("query", "document") if kind == "pairs" else (None, None)
        anchor = self._encode(record.text, first)
        if kind == "texts":
            halves = tuple(self._encode(half, None) for half in halved(record.text))
            return [TextGroup(anchor, None, (anchor,), (record.text, record.text), kind, halves)]
        apart = self._loss.name == "triplet" and record.negatives  # an example for each negative
        chosen = [(one,) for one in record.negatives] if apart else [record.negatives]
        return [
            TextGroup(
                anchor, record.label, tuple(self._encode(text, second) for text in (positive, *negatives)),
                (record.text, positive, *negatives), kind,
            )
            for positive in record.positives for negatives in chosen
        ]  # fmt: skip

    def _encode(self, text: str, kind: str | None) -> Encoding:
        return self.tokenizer.encode(self._prompts[kind] + text, overflow="truncate")

    def outputs(self, network: Network, inputs: Batch) -> mx.array:
        """Vectors, float32 (T, W)."""
        hidden = network.encoder(inputs.input_ids, inputs.attention_mask, inputs.token_type_ids)
        return self.embedder(hidden, inputs.attention_mask)

    def targets(self, examples: Sequence[TextGroup]) -> dict[str, mx.array]:
        """See `VectorLoss.targets`."""
        return self._loss.targets(examples)

    def compare(self, outputs: mx.array, targets: Mapping[str, mx.array]) -> tuple[mx.array, float]:
        """See `ContrastiveObjective.compare`."""
        return self._loss(outputs, targets)

    def inputs(self, examples: Sequence[TextGroup]) -> Sequence[Encoding]:
        """All texts; of a text alone its halves."""
        return [one for example in examples for one in example.evaluated]

    def check_teacher(self) -> None:
        """Refuses pairs of texts, which have a loss of their own."""
        if self.columns is None or self.columns.kind != "texts":
            raise ArgumentError(
                "teacher is given with pairs of texts, expected texts alone",
                hint="name the column of the text with text_column=, in a file without other texts",
            )

    def of_teacher(self, model: Model) -> Self:
        """See `TaskObjective.of_teacher`; options of pooling are the student's."""
        own = super().of_teacher(model)
        own.embedder = model.embedder
        return own

    def distilled(self, own: Self, name: str, options: TeacherOptions) -> VectorDistillation:
        """The distance of vectors alone."""
        ours, theirs, sizes = self.embedder.size, own.embedder.size, self._loss.dimensions
        least = min(ours, theirs)
        if max(sizes or (ours, theirs)) > least:
            raise ArgumentError(
                f"{name}: its vectors have {theirs} values, those of the student {ours}",
                hint=f"choose sizes up to {least} with dimensions=",
            )
        return VectorDistillation(self, sizes, chooses=self.unjudged)

    def taught(self, network: Network, inputs: Batch) -> mx.array:
        """The vectors of a teacher."""
        return self.outputs(network, inputs)

    def predict(self, network: Network, inputs: Batch) -> mx.array:
        """Vectors, float32 (T, W)."""
        return self.outputs(network, inputs)

    def metrics(self, examples: Sequence[TextGroup], predictions: Predictions) -> dict[str, float]:
        """See `mlxbert.training.scores.vector_scores`."""
        return scoring.vector_scores(examples, np.asarray(predictions), self.embedder.config.similarity).means()

    def evaluation(self, part: Split, predictions: Predictions, **facts: Any) -> Evaluation:
        """See `TaskObjective.evaluation`."""
        about = {"metric": self.metric, "similarity": self.embedder.config.similarity, **facts}
        return scoring.evaluation(part.records, part.examples, np.asarray(predictions), **about)

    def baselines(self, model: Model, train: Sequence[Related], valid: Sequence[Related]) -> dict[str, float]:
        """The score of the model before training."""
        examples = [example for record in valid for example in self.examples(record)]
        trained, self.embedder = self.embedder, model.embedder
        predictions = predict(model.network, self, examples)
        self.embedder = trained
        return {"before training": self.metrics(examples, predictions)[self.metric]}

    def tuned(self, part: Split, predictions: Predictions) -> Labels:
        """The labels of the configuration, which do not matter here."""
        return self.config.labels or Labels()


def halved(text: str) -> tuple[str, ...]:
    """The two halves of a text: of its words, or of its characters where no spaces separate words."""
    words = text.split()
    if len(words) > 1:
        return " ".join(words[: len(words) // 2]), " ".join(words[len(words) // 2 :])
    middle = len(text) // 2
    return (text[:middle], text[middle:]) if middle else ()
