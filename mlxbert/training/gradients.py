"""Loss and gradients of the parts of a batch: one part per core of a CPU, or per process.

Sums over the parts are exact: a part's losses are summed, and the whole is divided by the weight of all parts. So
accumulation, cores and machines are the same thing.
"""

import functools
import hashlib
import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from mlxbert.cores import in_parallel, training_workers
from mlxbert.device import mx, nn
from mlxbert.nn import dropout
from mlxbert.nn.heads import Network
from mlxbert.training.objective import Objective, TrainBatch
from mlxbert.training.optimizer import Arrays

Part = Callable[[], tuple[TrainBatch, mx.array]]  # a batch, and the key of its dropout


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
        self._tracing = threading.Lock()  # the network holds the parameters of one part meanwhile

    def freeze(self, parameters: Arrays) -> None:
        """Sets the parameters that are not trained."""
        self._frozen = {name: array.astype(self._dtype) for name, array in parameters.items()}
        mx.eval(self._frozen)

    def _loss(
        self, parameters: Arrays, batch: TrainBatch, key: mx.array, scale: float
    ) -> tuple[mx.array, tuple[mx.array, mx.array]]:
        computing = {name: array.astype(self._dtype) for name, array in parameters.items()}
        self._network.load_weights([*computing.items(), *self._frozen.items()], strict=False)
        with dropout.seeded(key):
            loss, weight = self._objective.loss(self._network, batch)
        return loss * scale, (loss, mx.array(weight, dtype=mx.float32))

    def __call__(self, parameters: Arrays, parts: Sequence[Part], scale: float = 1.0) -> Gradients:
        """The sums over some parts, evaluated.

        Args:
            parameters: The trained parameters, float32, by name.
            parts: Make batches, and the keys of their dropout; may be empty.
            scale: Factor of the loss, which keeps small gradients in the range of float16.
        """
        mx.eval(parameters)
        loss, weight = mx.array(0.0), mx.array(0.0)
        sums: Arrays = {}
        at_once = max(len(training_workers()), 1)
        for start in range(0, len(parts), at_once):  # so that accumulation needs no more memory than one batch
            some = parts[start : start + at_once]
            for one in in_parallel([functools.partial(self._evaluated, parameters, part, scale) for part in some]):
                loss, weight = loss + one.loss, weight + one.weight
                sums = {name: sums[name] + array for name, array in one.arrays.items()} if sums else one.arrays
            mx.eval(loss, weight, sums)
        if not parts:
            sums = {name: mx.zeros_like(array) for name, array in parameters.items()}
            mx.eval(sums)
        return Gradients(loss, weight, sums)

    def _evaluated(self, parameters: Arrays, part: Part, scale: float) -> Gradients:
        """Those of one part."""
        with self._tracing:
            # A copy: MLX puts its tracers into the dictionary meanwhile, which an interrupted run may be saving.
            (_, (loss, weight)), gradients = self._function(dict(parameters), *part(), scale)
        mx.eval(loss, weight, gradients)
        return Gradients(loss, weight, gradients)


def install(network: nn.Module, parameters: Arrays) -> None:
    """Puts parameters into a network."""
    network.load_weights(list(parameters.items()), strict=False)
