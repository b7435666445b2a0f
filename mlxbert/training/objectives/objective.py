"""What is trained: an objective turns records into examples, batches into a loss, and predictions into metrics.

The loop knows no task. A task of one's own is a subclass of `Objective`: `mlxbert.finetune(MyObjective(), …)`.

Shapes: B examples of a batch, L length.
"""

import random
from abc import ABC, abstractmethod
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, Generic, TypeVar

import numpy as np
from numpy.typing import NDArray

from mlxbert.config import EncoderConfig
from mlxbert.labels.labels import Labels
from mlxbert.machine.device import mx
from mlxbert.machine.distributed import ProcessGroup
from mlxbert.model import Model
from mlxbert.nn.embedder import Embedder
from mlxbert.nn.encoder import Batch
from mlxbert.nn.heads import Network
from mlxbert.readers.labelled_rows import LabelledRows
from mlxbert.text.batch import make_batch
from mlxbert.text.encoding import Encoding
from mlxbert.text.tokenizer import Tokenizer

Predictions = NDArray[np.floating[Any]] | list[NDArray[np.floating[Any]]]


@dataclass(frozen=True)
class Example:
    """A training example, ready for batches.

    Attributes:
        encoding: The input of the model.
        target: What the model should predict, as the objective's `collate` takes it.
    """

    encoding: Encoding
    target: Any

    def __len__(self) -> int:
        return len(self.encoding)

    @property
    def encodings(self) -> Sequence[Encoding]:
        """All inputs of the model."""
        return (self.encoding,)


@dataclass(frozen=True)
class TrainBatch:
    """A batch of examples.

    Attributes:
        inputs: The inputs of the network.
        targets: What it should predict: an array (B, …), or what else the objective's `loss` takes.
        examples: The examples, for a `ContrastiveObjective`.
        totals: What `Objective.totals` gave for all examples of the update that this batch is a part of.
    """

    inputs: Batch
    targets: Any
    examples: Sequence[Any] = ()
    totals: Any = None


@dataclass(frozen=True)
class Split:
    """Training or validation data.

    Attributes:
        records: N records.
        examples: Their M examples, in the same order.
        owners: For each example the number of its record.
        places: For each example where its record stands.
    """

    records: Sequence[Any]
    examples: Sequence[Any]
    owners: Sequence[int]
    places: Sequence[str]

    @property
    def truncated(self) -> int:
        """How many records are truncated."""
        last = dict(zip(self.owners, self.examples, strict=True))  # of the windows of a record only the last one may be
        return len(
            {
                owner
                for owner, one in zip(self.owners, self.examples, strict=True)
                if (one is last[owner] or len(one.encodings) > 1) and any(each.truncated for each in one.encodings)
            }
        )


AnyExample = TypeVar("AnyExample", bound=Example)


class LoopObjective(ABC, Generic[AnyExample]):
    """What the loop needs to know of an objective: batches and their losses.

    Attributes:
        name: Its name in reports.
        metric: The metric that chooses the best checkpoint.
        minimize: Whether a smaller value of the metric is better.
        perfect: The value of the metric that no model exceeds; a run whose score stays there ends early. `None` if
            there is no such value.
        all_words: Whether training may use any row of the word embeddings; otherwise those of `tokens` alone.
        losses: The names of the losses that `terms` gives, where there are several.
        pure: Whether losses depend on nothing but the network and arrays of the batch, and evaluate nothing. Then a GPU
            may compile them, in which what they read elsewhere stays as it was, and a CPU may compute parts with numpy,
            which are not numbers until the loss is evaluated.
    """

    name: ClassVar[str]
    metric: str
    minimize: bool = False
    perfect: float | None = None
    all_words: ClassVar[bool] = False
    losses: tuple[str, ...] = ()
    pure: bool = False

    def tokens(self, example: AnyExample) -> Iterable[int]:
        """All token ids that `collate` can put into a batch because of an example."""
        return (token for encoding in example.encodings for token in encoding.ids)

    @abstractmethod
    def collate(self, examples: Sequence[AnyExample], rng: random.Random) -> TrainBatch:
        """Pads examples; `rng` is a function of seed, epoch and batch, for objectives that draw something."""

    @abstractmethod
    def loss(self, network: Network, batch: TrainBatch) -> tuple[mx.array, mx.array | float]:
        """The sum of the losses of a batch, and its weight, by which sums over several batches are divided.

        Both are float32 scalars; the weight is the number of examples, or of tokens, that the sum is over.
        """

    def totals(self, examples: Sequence[AnyExample]) -> Any:
        """What `terms` has to know of all examples of an update, of which it sees a part: `TrainBatch.totals`."""
        return None

    def terms(self, network: Network, batch: TrainBatch) -> tuple[Mapping[str, mx.array], mx.array | float]:
        """The losses whose sum is trained, by their names, and the weight, as in `loss`; by default that loss alone."""
        loss, weight = self.loss(network, batch)
        return {"": loss}, weight


class Objective(LoopObjective[AnyExample]):
    """What a model is trained for.

    A subclass sets `name`, `metric` and implements `heads`, `prepare`, `loss`, `predict` and `metrics`. Before
    `prepare`, `bind` is called with the model.

    Attributes:
        lr_factor: The usual learning rate, relative to that of a new head on an encoder.
        embedder: How the trained model makes vectors, where it is trained for them, after `bind`; its folder says so.
        tokenizer: The model's tokenizer, after `bind`.
        config: The model's configuration, after `bind`.
    """

    lr_factor: ClassVar[float] = 1.0
    embedder: Embedder | None = None
    tokenizer: Tokenizer
    config: EncoderConfig

    @property
    def numeric(self) -> bool:
        """Whether numbers are predicted, so that the name of the output says nothing."""
        return False

    def read(self, rows: LabelledRows) -> Sequence[Any]:
        """Records of the rows of files; by default a record is the `values` of a row: `{"text": …, "label": …}`.

        Raises:
            InputError: A row cannot be used; it says where the row stands.
        """
        return [row.values for row in rows]

    def settings(self) -> dict[str, Any]:
        """The objective's own options by name: with others, a run cannot resume."""
        return {}

    def config_keys(self) -> dict[str, Any]:
        """Keys of `config.json` that say how the trained model is used, besides its labels; `None` removes one."""
        return {}

    @abstractmethod
    def heads(self, records: Sequence[Any]) -> Mapping[str, Labels | None]:
        """The heads that are trained, by their names in `mlxbert.nn.heads.HEADS`, and their labels.

        Args:
            records: The training records.
        """

    def bind(self, model: Model) -> None:
        """Takes what `prepare` and `collate` need of the model."""
        self.tokenizer, self.config = model.tokenizer, model.network.encoder.config

    @abstractmethod
    def prepare(self, record: Any) -> AnyExample:
        """Tokenizes a record.

        Raises:
            InputError: The record cannot be used.
        """

    def examples(self, record: Any) -> Sequence[AnyExample]:
        """The examples of a record: one, unless long records become several windows.

        Raises:
            InputError: The record cannot be used.
        """
        return [self.prepare(record)]

    def collate(self, examples: Sequence[AnyExample], rng: random.Random) -> TrainBatch:
        """Pads examples; `rng` is a function of seed, epoch and batch, for objectives that draw something."""
        inputs = make_batch([one for example in examples for one in example.encodings], self.config)
        return TrainBatch(inputs, mx.array([example.target for example in examples]))

    def inputs(self, examples: Sequence[AnyExample]) -> Sequence[Encoding]:
        """The inputs that predictions are made of: one per example, unless a subclass says otherwise."""
        return [example.encoding for example in examples]

    def fit(self, network: Network, group: ProcessGroup) -> None:
        """Computes the weights of a network that no gradient trains, if there are any, from the training data.

        It is called before every evaluation, and once more with the weights that are kept.

        Args:
            network: The network.
            group: The processes that share the work; each gets the same weights.
        """

    @abstractmethod
    def predict(self, network: Network, inputs: Batch) -> mx.array:
        """One prediction per input, lazy: (B, …). Where they are per token, (B, L, …), they include padding."""

    @abstractmethod
    def metrics(self, examples: Sequence[AnyExample], predictions: Predictions) -> dict[str, float]:
        """Metrics by name, `metric` among them.

        Args:
            examples: N examples.
            predictions: What `predict` gave for the N `inputs`, (N, …); a list of N arrays where their shapes differ.
        """


class ContrastiveObjective(Objective[AnyExample]):
    """An objective whose loss compares the examples of a batch with each other, so that it is no sum over them.

    Its `outputs` can be computed in parts nevertheless, by cores, processes, or one after the other in little memory;
    see `mlxbert.training.loop.gradients`.

    Attributes:
        chunk: The most examples that are computed at a time; `None` for as many as the batch has.
        width: The number of values of an output, after `bind`.
    """

    chunk: int | None = None
    width: int

    @abstractmethod
    def outputs(self, network: Network, inputs: Batch) -> mx.array:
        """What is compared: float32 (T, width) for the T inputs of some examples."""

    def targets(self, examples: Sequence[AnyExample]) -> Any:
        """What `compare` has to know of all examples of a batch: arrays, if it is `pure`; by default the examples."""
        return examples

    @abstractmethod
    def compare(self, outputs: mx.array, targets: Any) -> tuple[mx.array, float]:
        """The loss of a batch, and its weight, as `loss` gives them.

        Args:
            outputs: Those of all inputs of the examples, (T, width), in their order.
            targets: What `targets` gives for all examples of the batch.
        """

    def collate(self, examples: Sequence[AnyExample], rng: random.Random) -> TrainBatch:
        """All inputs of the examples, without targets: `compare` takes the examples."""
        inputs = make_batch([one for example in examples for one in example.encodings], self.config)
        return TrainBatch(inputs, mx.zeros(0), examples)

    def loss(self, network: Network, batch: TrainBatch) -> tuple[mx.array, float]:
        """That of a whole batch at once, as `collate` makes it; the loop computes it in parts."""
        return self.compare(self.outputs(network, batch.inputs), self.targets(batch.examples))
