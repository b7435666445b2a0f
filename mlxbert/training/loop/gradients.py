"""Loss and gradients of the parts of a batch: one part per core of a CPU, or per process.

Sums over the parts are exact: a part's losses are summed, and the whole is divided by the weight of all parts. So
accumulation, cores and machines are the same thing.

A loss that compares the examples of a batch is not such a sum. There, the outputs of all parts are computed first, then
the loss and its gradient with respect to the outputs, and then each part again, with its share of that gradient: the
result is that of the whole batch at once, in the memory of one part (GradCache, arXiv:2101.06983).
"""

import functools
import hashlib
import operator
import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from mlxbert.machine.cores import Stage, as_cores_get_free, stages
from mlxbert.machine.device import dispatch, mx, nn, on_gpu
from mlxbert.nn import dropout, fused_kernels
from mlxbert.nn.encoder import KnownIds
from mlxbert.nn.heads import Network
from mlxbert.training.loop import phase_times
from mlxbert.training.loop.compiled_functions import Compiled
from mlxbert.training.loop.optimizer import Arrays, Scalar
from mlxbert.training.objectives.objective import ContrastiveObjective, LoopObjective, TrainBatch

MicroBatch = Callable[[], tuple[TrainBatch, mx.array]]  # a batch, and the key of its dropout
Compare = Callable[[mx.array, Any], tuple[mx.array, float]]  # outputs and targets to the loss and its weight
_CHECKED = KnownIds(frozenset([0]))  # stands for ids that were checked: those of a trace are not known


@dataclass(frozen=True)
class Gradients:
    """Sums over the parts of a batch.

    Attributes:
        loss: The sum of losses, float32.
        weight: What it is divided by, float32.
        arrays: The sum of gradients of `loss * scale`, float32, by the names of the parameters.
        terms: The sums of the losses that `loss` consists of, float32, by name; empty where it is a single one.
    """

    loss: mx.array
    weight: mx.array
    arrays: Arrays
    terms: Arrays = field(default_factory=dict)


def added(one: Gradients, other: Gradients) -> Gradients:
    """The sum of both."""
    arrays, terms = _plus(one.arrays, other.arrays), _plus(one.terms, other.terms)
    dispatch(arrays, terms)
    return Gradients(one.loss + other.loss, one.weight + other.weight, arrays, terms)


def _plus(one: Arrays, other: Arrays) -> Arrays:
    return {name: array + other[name] for name, array in one.items()}


@dataclass(frozen=True)
class Whole:
    """A batch whose examples are compared with each other.

    Attributes:
        compare: The loss of all outputs, in the order of the parts, and of the targets; and its weight.
        targets: What it takes besides.
        total: The sum of an array over the processes; `None` for a process alone.
        width: The number of values of an output.
    """

    compare: Compare
    targets: Any
    total: Callable[[mx.array], mx.array] | None
    width: int


def dropout_key(*place: int) -> mx.array:
    """The key of the dropout masks of one part: a function of the seed, the update and the part."""
    digest = hashlib.sha256(repr(place).encode()).digest()
    return mx.random.key(int.from_bytes(digest[:8], "little"))


class BatchFunctions:
    """What is computed of a batch, as functions of the parameters: the loss with its gradients, and the outputs.

    Args:
        network: The network, in training mode.
        objective: Computes the loss.
        dtype: The dtype to compute in; parameters and gradients are float32.
    """

    def __init__(self, network: Network, objective: LoopObjective[Any], dtype: mx.Dtype) -> None:
        self.network, self.objective, self._dtype = network, objective, dtype
        self._frozen: Arrays = {}

    def freeze(self, parameters: Arrays) -> None:
        """Sets the parameters that are not trained."""
        self._frozen = {
            name: array.astype(self._dtype) if mx.issubdtype(array.dtype, mx.floating) else array  # quantized ones
            for name, array in parameters.items()
        }
        mx.eval(self._frozen)

    def _install(self, parameters: Arrays) -> None:
        if on_gpu() and self._dtype != mx.float32:
            computing = {name: fused_kernels.cast(self._dtype)(array) for name, array in parameters.items()}
        else:
            computing = {name: array.astype(self._dtype) for name, array in parameters.items()}
        self.network.load_weights([*computing.items(), *self._frozen.items()], strict=False)

    def gradients(self, parameters: Arrays, *given: Any) -> Any:
        """The loss, its weight, its terms and the gradients; arguments are those of `_loss`."""
        # A copy: MLX puts its tracers into the dictionary meanwhile, which an interrupted run may be saving.
        (_, losses), gradients = mx.value_and_grad(self._loss)(dict(parameters), *given)
        return *losses, gradients

    def _loss(
        self,
        parameters: Arrays,
        batch: TrainBatch,
        key: mx.array,
        scale: Scalar,
        compare: Compare | None,
        targets: Any,
    ) -> tuple[mx.array, tuple[mx.array, mx.array, Arrays]]:
        self._install(parameters)
        with dropout.seeded(key):
            if compare is None:
                found, weight = self.objective.terms(self.network, batch)
                loss = functools.reduce(operator.add, found.values())
            else:
                assert isinstance(self.objective, ContrastiveObjective)
                (loss, weight), found = compare(self.objective.outputs(self.network, batch.inputs), targets), {}
        terms = {name: found[name] for name in self.objective.losses}
        given = weight if isinstance(weight, mx.array) else mx.array(weight)
        return loss * scale, (loss, given.astype(mx.float32), terms)

    def outputs(self, parameters: Arrays, batch: TrainBatch, key: mx.array) -> mx.array:
        """What a `ContrastiveObjective` compares."""
        assert isinstance(self.objective, ContrastiveObjective)
        self._install(parameters)
        with dropout.seeded(key):
            return self.objective.outputs(self.network, batch.inputs)


class Differentiator:
    """Computes gradients of an objective on a network.

    Args:
        network: The network, in training mode; its trained parameters are those that are given.
        objective: Computes the loss.
        dtype: The dtype to compute in; parameters and gradients are float32.

    Attributes:
        computed: When the last part was computed, by `phase_times.clock`; when a GPU had been given it.
    """

    computed = 0.0

    def __init__(self, network: Network, objective: LoopObjective[Any], dtype: mx.Dtype) -> None:
        self._network, self._objective = network, objective
        # Not methods of its own: it would refer to itself, and its arrays would outlive it until the next collection.
        self._functions = BatchFunctions(network, objective, dtype)
        self._gradients: Callable[..., Any] = self._functions.gradients
        self._outputs: Callable[..., mx.array] = self._functions.outputs
        if on_gpu() and objective.pure:
            self._gradients, self._outputs = Compiled(self._gradients, "gradients"), Compiled(self._outputs, "outputs")
        self._tracing = threading.Lock()  # the network holds the parameters of one part meanwhile

    def freeze(self, parameters: Arrays) -> None:
        """Sets the parameters that are not trained."""
        self._functions.freeze(parameters)

    def let_go(self, parameters: Arrays) -> None:
        """Takes parameters out of the network, so that an update can free them."""
        install(self._network, {name: mx.zeros(array.shape) for name, array in parameters.items()})

    def __call__(self, parameters: Arrays, parts: Sequence[MicroBatch], scale: Scalar = 1.0) -> Gradients:
        """The sums over some parts; on a CPU they are evaluated, a GPU computes them meanwhile.

        Args:
            parameters: The trained parameters, float32, by name.
            parts: Make batches, and the keys of their dropout; may be empty.
            scale: Factor of the loss, which keeps small gradients in the range of float16.
        """
        dispatch(parameters)
        return self._summed(parameters, [functools.partial(self._evaluated, parameters, part, scale) for part in parts])

    def _summed(self, parameters: Arrays, parts: Sequence[Callable[[], Gradients]]) -> Gradients:
        total: Gradients | None = None
        for one in as_cores_get_free(parts):
            total = one if total is None else added(total, one)
        if total is not None:
            return total
        sums = {name: mx.zeros_like(array) for name, array in parameters.items()}
        dispatch(sums)
        return Gradients(mx.array(0.0), mx.array(0.0), sums, {name: mx.array(0.0) for name in self._objective.losses})

    def _evaluated(
        self,
        parameters: Arrays,
        part: MicroBatch,
        scale: Scalar,
        compare: Compare | None = None,
        targets: Any = None,
    ) -> Gradients:
        """Those of one part; `compare` is the loss of its outputs, where it is not that of the objective."""
        with self._tracing:
            batch, key = part()
            with stages(filled=self._objective.pure) as passed:  # others may evaluate what is not filled yet
                found = self._run(self._gradients, parameters, batch, key, scale, compare, targets)
        loss, weight, terms, gradients = found
        _evaluate(passed, [loss, weight, terms], *reversed(_by_module(gradients)))
        self.computed = phase_times.clock()
        return Gradients(loss, weight, gradients, terms)

    def _run(self, function: Callable[..., Any], parameters: Arrays, batch: TrainBatch, *more: Any) -> Any:
        """Calls a function of a batch; not compiled if the ids are not known, which a trace cannot check."""
        ids = batch.inputs.ids
        if not isinstance(function, Compiled):
            return function(parameters, batch, *more)
        if ids is None:
            return function.function(parameters, batch, *more)
        ids.check(self._network.encoder.config)
        return function(parameters, replace(batch, inputs=replace(batch.inputs, ids=_CHECKED)), *more)

    def compared(
        self,
        parameters: Arrays,
        parts: Sequence[MicroBatch | None],
        rows: Sequence[int],
        batch: Whole,
        scale: Scalar = 1.0,
    ) -> Gradients:
        """The gradients of a loss that compares the examples of all parts; see `__call__`.

        Args:
            parameters: The trained parameters, float32, by name.
            parts: Make batches, and the keys of their dropout; `None` for those of other processes.
            rows: How many outputs each part has.
            batch: What is done with the outputs of all parts.
            scale: See `__call__`.

        Returns:
            The gradients of this process's parts, with the loss and the weight of the whole.
        """
        dispatch(parameters)
        own = {number: part for number, part in enumerate(parts) if part is not None}
        if len(parts) == 1 and batch.total is None:
            return self._evaluated(parameters, own[0], scale, batch.compare, batch.targets)
        forward = [functools.partial(self._forward, parameters, part) for part in own.values()]
        found = dict(zip(own, as_cores_get_free(forward), strict=True))
        blank = (mx.zeros((count, batch.width)) for count in rows)
        whole = mx.concatenate([found.get(number, zeros) for number, zeros in enumerate(blank)])
        whole = whole if batch.total is None else batch.total(whole)
        (loss, weight), shares = mx.value_and_grad(batch.compare)(whole, batch.targets)
        starts = [sum(rows[:number]) for number in own]
        mine = [shares[start : start + rows[number]] for number, start in zip(own, starts, strict=True)]
        dispatch(loss, mine)
        backward = [
            functools.partial(self._evaluated, parameters, part, scale, _weighted, share)
            for part, share in zip(own.values(), mine, strict=True)
        ]
        return Gradients(loss, mx.array(weight, dtype=mx.float32), self._summed(parameters, backward).arrays)

    def _forward(self, parameters: Arrays, part: MicroBatch) -> mx.array:
        """The outputs of one part."""
        with self._tracing:
            batch, key = part()
            with stages() as passed:
                outputs = self._run(self._outputs, parameters, batch, key)
        _evaluate(passed, outputs)
        return outputs


def _evaluate(collected: list[Stage], *arrays: Any) -> None:
    """Computes arrays: a GPU all at once, a CPU in their order after what was collected, which is not kept."""
    if on_gpu():
        dispatch(arrays)
        return
    collected.reverse()
    while collected:
        stage = collected.pop()
        if isinstance(stage, mx.array):
            dispatch(stage)
        else:
            stage()
        del stage
    for array in arrays:
        dispatch(array)


def _by_module(gradients: Arrays) -> list[list[mx.array]]:
    """From the embeddings to the heads."""
    found: dict[str, list[mx.array]] = {}
    for name, gradient in gradients.items():
        found.setdefault(name.rpartition(".")[0], []).append(gradient)
    return [*found.values()]


def _weighted(outputs: mx.array, shares: mx.array) -> tuple[mx.array, float]:
    """What has the gradient `shares` with respect to the outputs."""
    return (outputs * shares).sum(), 0.0


def install(network: nn.Module, parameters: Arrays) -> None:
    """Puts parameters into a network."""
    network.load_weights(list(parameters.items()), strict=False)
