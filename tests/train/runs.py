"""Runs of a tiny network on made-up examples."""

import functools
import random
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from mlxbert.labels.labels import Labels
from mlxbert.machine.device import mx
from mlxbert.nn.encoder import Batch
from mlxbert.nn.heads import Network
from mlxbert.text.encoding import Encoding
from mlxbert.train.loop.data_order import Epochs, Training
from mlxbert.train.loop.events import Event, Step
from mlxbert.train.loop.saved_run import RunStore
from mlxbert.train.loop.training_run import Run
from mlxbert.train.objectives.objective import Example, Objective, Predictions, TrainBatch
from mlxbert.train.objectives.predictions import predict
from mlxbert.train.options.loop_options import TrainingOptions
from tests.helpers.tiny import random_network, tiny_config

HEAD = "sequence_classifier"


class Parity(Objective[Example]):
    """Whether the first token of a text is even, learned with the squared error of two outputs."""

    name, metric = "parity", "accuracy"

    def __init__(self, network: Network) -> None:
        self.config = network.encoder.config

    def heads(self, records: Sequence[Any]) -> Mapping[str, Labels | None]:
        return {HEAD: Labels(("odd", "even"))}

    def prepare(self, record: Any) -> Example:
        return example(record)

    def loss(self, network: Network, batch: TrainBatch) -> tuple[mx.array, float]:
        logits = network.logits(HEAD, batch.inputs).astype(mx.float32)
        chosen = mx.take_along_axis(logits, batch.targets[:, None], axis=-1)[:, 0]
        return (mx.logsumexp(logits, axis=-1) - chosen).sum(), float(len(batch.targets))

    def predict(self, network: Network, inputs: Batch) -> mx.array:
        return network.logits(HEAD, inputs).astype(mx.float32)

    def metrics(self, examples: Sequence[Example], predictions: Predictions) -> dict[str, float]:
        right = [example.target == row.argmax() for example, row in zip(examples, predictions, strict=True)]
        return {"accuracy": float(np.mean(right))}


def example(ids: list[int]) -> Example:
    count = len(ids)
    none: list[int | None] = [None] * count
    encoding = Encoding(ids, [0] * count, [(0, 0)] * count, none, none, list(range(count)), False)
    return Example(encoding, ids[1] % 2)


def examples(count: int, seed: int = 0) -> list[Example]:
    rng = random.Random(seed)
    return [example([2, *rng.choices(range(5, 40), k=rng.randint(1, 9)), 3]) for _ in range(count)]


def network(rate: float = 0.1, layers: int = 1) -> Network:
    config = tiny_config(pooler=True, layer_schedule=tuple(range(layers)))
    dropout = replace(config.dropout, embeddings=rate, attention=rate, attention_output=rate, feed_forward=rate)
    heads = {HEAD: replace(config.heads[HEAD], dropout=rate)}
    found = Network(replace(config, dropout=dropout, heads=heads), (HEAD,))
    found.update(_weights(layers))
    found.eval()
    return found


@functools.cache
def _weights(layers: int) -> Any:
    return random_network(tiny_config(pooler=True, layer_schedule=tuple(range(layers))), (HEAD,)).parameters()


def make_run(folder: Path | None = None, *, rate: float = 0.1, data: int = 26, layers: int = 1, **changes: Any) -> Run:
    """A run of two epochs of 4 updates; options of `Training` and of `TrainingOptions` by name."""
    of_training = {name: changes.pop(name) for name in ("dtype", "streams", "evaluate", "group") if name in changes}
    options = TrainingOptions(**{"epochs": 2, "lr": 1e-3, "batch_size": 8} | changes)
    net = network(rate, layers)
    objective, found, valid = Parity(net), examples(data), examples(20, seed=1)

    def evaluate() -> Mapping[str, float]:
        return objective.metrics(valid, predict(net, objective, valid))

    given: dict[str, Any] = {"dtype": mx.float32, "evaluate": evaluate} | of_training
    places = [f"line {number}" for number in range(data)]
    order = Epochs(found, options)
    training = Training(
        network=net, objective=objective, examples=found, place=places.__getitem__, order=order, options=options,
        **given,
    )  # fmt: skip
    return Run(training, None if folder is None else RunStore(folder))


def steps(events: Iterator[Event]) -> list[Step]:
    return [event for event in events if isinstance(event, Step)]


def digest(run: Any) -> dict[str, Any]:
    """The bits of all trained parameters and of the optimizer."""
    parts = run.state.parameters, run.state.optimizer.means, run.state.optimizer.squares
    return {
        f"{part} {name}": np.array(array).tobytes()
        for part, arrays in enumerate(parts)
        for name, array in arrays.items()
    }
