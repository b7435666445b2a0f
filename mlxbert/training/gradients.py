"""Loss and gradients of the parts of a batch: one part per core of a CPU, or per process.

Sums over the parts are exact: a part's losses are summed, and the whole is divided by the weight of all parts. So
accumulation, cores and machines are the same thing.
"""

import hashlib
from collections.abc import Callable, Sequence
from contextlib import nullcontext
from dataclasses import dataclass
from typing import Any

from mlxbert.device import mx, nn, training_streams
from mlxbert.nn import dropout
from mlxbert.nn.heads import Network
from mlxbert.training.objective import Objective, TrainBatch
from mlxbert.training.optimizer import Arrays

Part = Callable[[], TrainBatch | None]


@dataclass(frozen=True)
class Gradients:
    """Sums over the parts of a batch.

    Attributes:
        loss: The sum of losses, float32.
        weight: What it is divided by, float32.
        arrays: The sum of gradients of `loss * scale`, float32, by the names of the parameters.
    """

    loss: mx.array
    weight: mx.array
    arrays: Arrays


def dropout_key(*place: int) -> mx.array:
    """The key of the dropout masks of one part: a function of the seed, the update and the part."""
    digest = hashlib.sha256(repr(place).encode()).digest()
    return mx.random.key(int.from_bytes(digest[:8], "little"))


class Differentiator:
    """Computes gradients of an objective on a network.

    Args:
        network: The network, in training mode; its trained parameters are those that are given.
        objective: Computes the loss.
        dtype: The dtype to compute in; parameters and gradients are float32.
    """

    def __init__(self, network: Network, objective: Objective[Any], dtype: mx.Dtype) -> None:
        self._network, self._objective, self._dtype = network, objective, dtype
        self._frozen: Arrays = {}
        self._function = mx.value_and_grad(self._loss)

    def freeze(self, parameters: Arrays) -> None:
        """Sets the parameters that are not trained."""
        self._frozen = {name: array.astype(self._dtype) for name, array in parameters.items()}

    def _loss(
        self, parameters: Arrays, batch: TrainBatch, key: mx.array, scale: float
    ) -> tuple[mx.array, tuple[mx.array, mx.array]]:
        computing = {name: array.astype(self._dtype) for name, array in parameters.items()}
        self._network.load_weights([*computing.items(), *self._frozen.items()], strict=False)
        with dropout.seeded(key):
            loss, weight = self._objective.loss(self._network, batch)
        return loss * scale, (loss, mx.array(weight, dtype=mx.float32))

    def __call__(
        self, parameters: Arrays, parts: Sequence[tuple[TrainBatch, mx.array]], scale: float = 1.0
    ) -> Gradients:
        """The sums over some parts, evaluated.

        Args:
            parameters: The trained parameters, float32, by name.
            parts: Batches, and the keys of their dropout; may be empty.
            scale: Factor of the loss, which keeps small gradients in the range of float16.
        """
        loss, weight = mx.array(0.0), mx.array(0.0)
        sums: Arrays = {}
        streams = training_streams()
        for number, (batch, key) in enumerate(parts):
            # Handed over at once: MLX evaluates a whole graph depth first, and one stream would wait for the other.
            with mx.stream(streams[number % len(streams)]) if streams else nullcontext():
                (_, (part_loss, part_weight)), gradients = self._function(parameters, batch, key, scale)
                mx.async_eval(part_loss, gradients)
            loss, weight = loss + part_loss, weight + part_weight
            sums = {name: sums[name] + array for name, array in gradients.items()} if sums else gradients
        sums = sums or {name: mx.zeros_like(array) for name, array in parameters.items()}
        mx.eval(loss, weight, sums)
        return Gradients(loss, weight, sums)


def install(network: nn.Module, parameters: Arrays) -> None:
    """Puts parameters into a network."""
    network.load_weights(list(parameters.items()), strict=False)
