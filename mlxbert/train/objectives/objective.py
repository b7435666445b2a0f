"""Training objectives: they turn records into examples, batches into a loss, and predictions into metrics.

The loop does not know any tasks. A custom task is a subclass of `Objective`: `mlxbert.finetune(MyObjective(), …)`.

Shapes: B examples in a batch, L length.
"""

import math
import random
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, Generic, TypeVar

import numpy as np
from numpy.typing import NDArray

from mlxbert.config import EncoderConfig
from mlxbert.labels.labels import Labels
from mlxbert.machine.device import mx
from mlxbert.model import Model
from mlxbert.nn.embedder import Embedder
from mlxbert.nn.encoder import Batch
from mlxbert.nn.heads import Network
from mlxbert.nn.sparse_embedder import SparseEmbedder
from mlxbert.nn.token_embedder import TokenEmbedder
from mlxbert.text.batch import make_batch
from mlxbert.text.encoding import Encoding
from mlxbert.text.tokenizer import Tokenizer
from mlxbert.train.data.labelled_rows import LabelledRows
from mlxbert.weights.model_folder import ModelFolder

_LOSSES = ("log_loss", "mse", "loss")  # names of the loss among the metrics
Predictions = NDArray[np.floating[Any]] | list[NDArray[np.floating[Any]]]
# Divides items among the processes of a run, see `ProcessGroup.shared`.
Share = Callable[[Sequence[Any], Callable[[Sequence[Any]], Sequence[Any]]], Sequence[Any]]


def alone(items: Sequence[Any], compute: Callable[[Sequence[Any]], Sequence[Any]]) -> Sequence[Any]:
    """Computes all items in this process."""
    return compute(items)


@dataclass(frozen=True)
class Example:
    """A training example, ready for batches.

    Attributes:
        encoding: The input of the model.
        target: The expected prediction, in the form that the objective's `collate` expects.
    """

    encoding: Encoding
    target: Any

    def __len__(self) -> int:
        return len(self.encoding)

    @property
    def encodings(self) -> Sequence[Encoding]:
        """The inputs of the model for this example."""
        return (self.encoding,)


@dataclass(frozen=True)
class TrainBatch:
    """A batch of examples.

    Attributes:
        inputs: The inputs of the network.
        targets: The expected predictions: an array (B, …), or anything else that the objective's `loss` takes.
        examples: The examples of the batch; only a `ContrastiveObjective` needs them.
        totals: The result of `Objective.totals` for all examples of the update. This batch may be only a part of them.
    """

    inputs: Batch
    targets: Any
    examples: Sequence[Any] = ()
    totals: Any = None


@dataclass(frozen=True)
class Split:
    """The training data or the validation data."""

    records: Sequence[Any]  # the N records
    examples: Sequence[Any]  # the M examples made from the records, in the same order
    owners: Sequence[int]  # for each example, the index of its record
    places: Sequence[str]  # for each example, the location of its record

    @property
    def truncated(self) -> int:
        """The number of records that are truncated."""
        last = dict(zip(self.owners, self.examples, strict=True))  # only a record's last window can be truncated
        return len(
            {
                owner
                for owner, example in zip(self.owners, self.examples, strict=True)
                if (example is last[owner] or len(example.encodings) > 1)
                and any(encoding.truncated for encoding in example.encodings)
            }
        )


AnyExample = TypeVar("AnyExample", bound=Example)


class LoopObjective(ABC, Generic[AnyExample]):
    """The part of an objective that the loop uses: batches and their losses."""

    name: ClassVar[str]  # the name of the objective in reports
    metric: str  # the name of the metric that selects the best checkpoint
    minimize: bool = False  # whether a smaller value of the metric is better
    perfect: float | None = None  # the best possible value of the metric; `None` if there is no such value
    # Whether training may use any row of the word embeddings, not just the rows of the ids from `tokens`.
    all_words: ClassVar[bool] = False
    losses: tuple[str, ...] = ()  # the names of the losses that `terms` returns, if there are several
    # Whether losses depend only on the network and the arrays of the batch, and are built without evaluating arrays.
    # Only such losses are compiled on a GPU, because compilation freezes all other values. On a CPU, intermediate
    # results of such losses may be computed with numpy, and are missing until the loss is evaluated.
    pure: bool = False

    def tokens(self, example: AnyExample) -> Iterable[int]:
        """Returns all token ids that `collate` may put into a batch for an example."""
        return (token for encoding in example.encodings for token in encoding.ids)

    @abstractmethod
    def collate(self, examples: Sequence[AnyExample], rng: random.Random) -> TrainBatch:
        """Pads examples. Objectives that need random numbers take them from `rng`.

        The state of `rng` depends only on the seed and on the position of the batch in the run.
        """

    @abstractmethod
    def loss(self, network: Network, batch: TrainBatch) -> tuple[mx.array, mx.array | float]:
        """Returns the sum of the losses of a batch, and the weight of the batch.

        Both are float32 scalars. The weight is the number of examples, or of tokens, in the sum. Sums over several
        batches are divided by the sum of their weights.
        """

    def quality(self, metrics: Mapping[str, float]) -> tuple[float, float]:
        """Returns how good metrics are: the score and the negative loss, both larger for a better model.

        The score is NaN if `metric` is missing, and the loss is 0 if there is none.
        """
        score = metrics.get(self.metric, math.nan)
        loss = next((metrics[name] for name in _LOSSES if name in metrics), 0.0)
        return -score if self.minimize else score, -loss

    def totals(self, examples: Sequence[AnyExample]) -> Any:
        """Returns facts about all examples of an update. `terms` reads these facts from `TrainBatch.totals`.

        They are needed because each call of `terms` sees only the examples of its batch.
        """
        return None

    def begin_update(self, step: int, steps: int) -> None:
        """Called before update number `step`, from 0, of `steps` updates, for losses that change during training."""

    def terms(self, network: Network, batch: TrainBatch) -> tuple[Mapping[str, mx.array], mx.array | float]:
        """Returns the losses of a batch, keyed by name, and their weight. Training minimizes the sum of these losses.

        By default, the result of `loss` is the only loss.
        """
        loss, weight = self.loss(network, batch)
        return {"": loss}, weight


class Objective(LoopObjective[AnyExample]):
    """A training objective: a task, its loss and its metrics.

    A subclass sets `name` and `metric`, and implements `heads`, `prepare`, `loss`, `predict` and `metrics`. `bind` is
    called with the model before `prepare`.

    Attributes:
        lr_factor: The default learning rate, relative to the default for a new head on an encoder.
        embedder: Computes vectors, if the model is trained for vectors; set by `bind`, and saved with the model.
        needs: The task with which `mlxbert.load` loads the model, if no heads are trained.
        tokenizer: The model's tokenizer; set by `bind`.
        config: The model's configuration; set by `bind`.
    """

    lr_factor: ClassVar[float] = 1.0
    embedder: Embedder | TokenEmbedder | None = None
    needs: ClassVar[str] = "embed"
    tokenizer: Tokenizer
    config: EncoderConfig

    @property
    def numeric(self) -> bool:
        """Whether numbers are predicted. The name of the output is then meaningless."""
        return False

    def read(self, rows: LabelledRows) -> Sequence[Any]:
        """Converts rows of files to records. By default, a record is the `values` of a row: `{"text": …, "label": …}`.

        Raises:
            InputError: A row cannot be used; the message names its location.
        """
        return [row.values for row in rows]

    def described(self, files: ModelFolder, name: str) -> ModelFolder:
        """Returns the folder of the model that training starts from, with another description if the head needs one.

        Args:
            files: The folder.
            name: The name of the model.
        """
        return files

    def settings(self) -> dict[str, Any]:
        """Returns the objective's own options, keyed by name. A run resumes only with the same options."""
        return {}

    def embedder_to_save(self) -> Embedder | SparseEmbedder | TokenEmbedder | None:
        """Returns what computes vectors with the trained model; `None` if it was not trained for vectors."""
        return self.embedder

    def config_keys(self) -> dict[str, Any]:
        """Returns the keys of `config.json`, besides the labels, that the trained model needs.

        The value `None` removes a key.
        """
        return {}

    @abstractmethod
    def heads(self, records: Sequence[Any]) -> Mapping[str, Labels | None]:
        """Returns the labels of each head to train, keyed by the head's name in `mlxbert.nn.heads.HEADS`.

        Args:
            records: The training records.
        """

    def bind(self, model: Model) -> None:
        """Stores the tokenizer and the configuration of the model, which `prepare` and `collate` need."""
        self.tokenizer, self.config = model.tokenizer, model.network.encoder.config

    @abstractmethod
    def prepare(self, record: Any) -> AnyExample:
        """Tokenizes a record.

        Raises:
            InputError: The record cannot be used.
        """

    def examples(self, record: Any) -> Sequence[AnyExample]:
        """Returns the examples of a record: one, unless long records are split into windows.

        Raises:
            InputError: The record cannot be used.
        """
        return [self.prepare(record)]

    def collate(self, examples: Sequence[AnyExample], rng: random.Random) -> TrainBatch:
        """Pads examples. Objectives that need random numbers take them from `rng`.

        The state of `rng` depends only on the seed and on the position of the batch in the run.
        """
        inputs = make_batch([encoding for example in examples for encoding in example.encodings], self.config)
        return TrainBatch(inputs, mx.array([example.target for example in examples]))

    def inputs(self, examples: Sequence[AnyExample]) -> Sequence[Encoding]:
        """Returns the inputs to predict for: one per example, unless a subclass overrides this method."""
        return [example.encoding for example in examples]

    def fit(self, network: Network, share: Share) -> None:
        """Computes the weights that gradients do not train, if there are any, from the training data.

        This method is called before every evaluation, and again with the weights that are kept in the end.

        Args:
            network: The network, in which the weights are set.
            share: Divides the work among the processes of the run. Each process gets the same weights.
        """

    @abstractmethod
    def predict(self, network: Network, inputs: Batch) -> mx.array:
        """Returns one lazy prediction per input, (B, …). Predictions for tokens, (B, L, …), include padding."""

    @abstractmethod
    def metrics(self, examples: Sequence[AnyExample], predictions: Predictions) -> dict[str, float]:
        """Returns all metrics, keyed by name. One of the names must be `metric`.

        Args:
            examples: N examples.
            predictions: The results of `predict` for the N `inputs` of the examples, (N, …); a list of N arrays if
                their shapes differ.
        """


class ContrastiveObjective(Objective[AnyExample]):
    """An objective whose loss compares the examples of a batch with each other, so that it is not a sum over examples.

    Its `outputs` can still be computed in parts: on several cores, in several processes, or one by one to save memory
    (see `mlxbert.train.loop.gradients`).
    """

    chunk: int | None = None  # the maximum number of examples to compute at a time; `None` for the whole batch
    width: int  # the size of an output vector; set by `bind`

    @abstractmethod
    def outputs(self, network: Network, inputs: Batch) -> mx.array:
        """Computes the vectors to compare: float32 (T, width) for T inputs."""

    def targets(self, examples: Sequence[AnyExample]) -> Any:
        """Returns the targets of a batch for `compare`: by default the examples; for a `pure` objective, arrays."""
        return examples

    @abstractmethod
    def compare(self, outputs: mx.array, targets: Any) -> tuple[mx.array, float]:
        """Returns the loss of a batch and the weight of the batch (see `loss`).

        Args:
            outputs: The outputs for all inputs of the examples, (T, width), in the order of the inputs.
            targets: The result of `targets` for all examples of the batch.
        """

    def collate(self, examples: Sequence[AnyExample], rng: random.Random) -> TrainBatch:
        """Pads all inputs of the examples. There are no targets, because `compare` takes the examples."""
        inputs = make_batch([encoding for example in examples for encoding in example.encodings], self.config)
        return TrainBatch(inputs, mx.zeros(0), examples)

    def loss(self, network: Network, batch: TrainBatch) -> tuple[mx.array, float]:
        """Returns the loss and the weight of a whole batch. The loop computes parts with `outputs` instead."""
        return self.compare(self.outputs(network, batch.inputs), self.targets(batch.examples))
