"""Computes the loss and the gradients of a batch in parts: one part per core of a CPU, or per process.

Dividing a batch is exact: the losses of all parts are summed, and the sum is divided by the total weight of the parts.
So gradient accumulation, several cores and several machines are treated alike.

A loss that compares the examples of a batch is not such a sum. For such a loss, the outputs of all parts are computed
first, then the loss and its gradient with respect to the outputs. Finally, each part is computed again, and gets its
share of that gradient. The result is the same as for the whole batch at once, but only one part must fit into memory
(GradCache, arXiv:2101.06983).
"""

import functools
import hashlib
import operator
import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from mlxbert.machine.device import dispatch, mx, nn, on_gpu
from mlxbert.nn import dropout, fused_kernels
from mlxbert.nn.backend import Stage
from mlxbert.nn.encoder import KnownIds
from mlxbert.nn.heads import Network
from mlxbert.nn.ops import backend
from mlxbert.train.loop import phase_times
from mlxbert.train.loop.adamw import Arrays, Scalar
from mlxbert.train.loop.compiled_functions import Compiled
from mlxbert.train.objectives.objective import ContrastiveObjective, LoopObjective, TrainBatch

MicroBatch = Callable[[], tuple[TrainBatch, mx.array]]  # returns a batch, and the random key for its dropout
Compare = Callable[[mx.array, Any], tuple[mx.array, float]]  # (outputs, targets) → (loss, weight)
_CHECKED = KnownIds(frozenset([0]))  # replaces the ids in a trace after they were checked


@dataclass(frozen=True)
class Gradients:
    """The loss and the gradients, summed over the parts of a batch."""

    loss: mx.array  # the sum of the losses, float32
    weight: mx.array  # the number by which the sums are divided to get means, float32
    arrays: Arrays  # the sums of the gradients of `loss * scale`, float32, keyed by the names of the parameters
    # The sums of the terms of `loss`, float32, keyed by name; empty if there is only one term.
    terms: Arrays = field(default_factory=dict)


def added(first: Gradients, second: Gradients) -> Gradients:
    """Adds two sets of gradients, with their losses, weights and terms."""
    arrays, terms = _plus(first.arrays, second.arrays), _plus(first.terms, second.terms)
    dispatch(arrays, terms)
    return Gradients(first.loss + second.loss, first.weight + second.weight, arrays, terms)


def _plus(first: Arrays, second: Arrays) -> Arrays:
    return {name: array + second[name] for name, array in first.items()}


class _Sums:
    """The sums of the gradients of parts that are computed at the same time, each part on a thread.

    A part hands over the gradients of a module as soon as they are computed, so that there is usually one set of them
    in memory, and not one for each part. They are added in the order of the parts, whatever part is first: the last
    digits of a sum depend on the order.
    """

    def __init__(self) -> None:
        self.arrays: Arrays = {}
        self._lock = threading.Lock()
        self._waiting: dict[str, dict[int, Arrays]] = {}  # by module and part
        self._parts_added: dict[str, int] = {}  # by module

    def add(self, part: int, module: str, gradients: Arrays) -> None:
        """Adds the evaluated gradients of a module; keeps them if an earlier part has not handed over its own."""
        with self._lock:
            waiting, number = self._waiting.setdefault(module, {}), self._parts_added.get(module, 0)
            waiting[part] = gradients
            while number in waiting:
                following = waiting.pop(number)
                if number:
                    following = _plus({name: self.arrays[name] for name in following}, following)
                    dispatch(following)
                self.arrays |= following
                number += 1
            self._parts_added[module] = number


@dataclass(frozen=True)
class ComparedBatch:
    """A batch whose examples are compared with each other."""

    compare: Compare  # takes the outputs of all parts, in order, and the targets; returns the loss and its weight
    targets: Any  # the second argument of `compare`
    total: Callable[[mx.array], mx.array] | None  # sums an array over the processes; `None` for a single process
    width: int  # the number of values in each output


def dropout_key(*place: int) -> mx.array:
    """Returns the random key for the dropout masks of a part. It depends only on the seed, the update and the part."""
    digest = hashlib.sha256(repr(place).encode()).digest()
    return mx.random.key(int.from_bytes(digest[:8], "little"))


class BatchFunctions:
    """Computes the loss of a batch with its gradients, or the outputs of a batch, as functions of the parameters.

    Computes in `dtype`; parameters and gradients are float32.
    """

    def __init__(self, network: Network, objective: LoopObjective[Any], dtype: mx.Dtype) -> None:
        self.network, self.objective, self._dtype = network, objective, dtype
        self._frozen: Arrays = {}

    def freeze(self, parameters: Arrays) -> None:
        """Sets the values of the parameters that are not trained."""
        self._frozen = {  # the packed integers of quantized weights keep their dtype
            name: array.astype(self._dtype) if mx.issubdtype(array.dtype, mx.floating) else array
            for name, array in parameters.items()
        }
        mx.eval(self._frozen)

    def _install(self, parameters: Arrays) -> None:
        if on_gpu() and self._dtype != mx.float32:
            computing = {name: fused_kernels.cast(self._dtype)(array) for name, array in parameters.items()}
        else:
            computing = {name: array.astype(self._dtype) for name, array in parameters.items()}
        self.network.load_weights([*computing.items(), *self._frozen.items()], strict=False)

    def gradients(self, parameters: Arrays, *arguments: Any) -> Any:
        """Returns the loss, its weight, its terms and the gradients. `arguments` are passed on to `_loss`."""
        # A copy: MLX temporarily puts tracers into the dictionary, which an interrupted run may be saving.
        (_, losses), gradients = mx.value_and_grad(self._loss)(dict(parameters), *arguments)
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
                all_terms, weight = self.objective.terms(self.network, batch)
                loss = functools.reduce(operator.add, all_terms.values())
            else:
                assert isinstance(self.objective, ContrastiveObjective)
                (loss, weight), all_terms = compare(self.objective.outputs(self.network, batch.inputs), targets), {}
        terms = {name: all_terms[name] for name in self.objective.losses}
        divisor = weight if isinstance(weight, mx.array) else mx.array(weight)
        return loss * scale, (loss, divisor.astype(mx.float32), terms)

    def outputs(self, parameters: Arrays, batch: TrainBatch, key: mx.array) -> mx.array:
        """Computes the outputs that a `ContrastiveObjective` compares."""
        assert isinstance(self.objective, ContrastiveObjective)
        self._install(parameters)
        with dropout.seeded(key):
            return self.objective.outputs(self.network, batch.inputs)


class Differentiator:
    """Computes the gradients of an objective on a network."""

    computed = 0.0  # the time, by `phase_times.clock`, at which the last part was computed, or submitted to a GPU

    def __init__(self, network: Network, objective: LoopObjective[Any], dtype: mx.Dtype) -> None:
        self._network, self._objective = network, objective
        # Not bound methods of `self`: a reference cycle would keep the arrays alive until the next garbage collection.
        functions = BatchFunctions(network, objective, dtype)
        self.freeze = functions.freeze
        self._gradients: Callable[..., Any] = functions.gradients
        self._outputs: Callable[..., mx.array] = functions.outputs
        if on_gpu() and objective.pure:
            self._gradients, self._outputs = Compiled(self._gradients, "gradients"), Compiled(self._outputs, "outputs")
        self._tracing = threading.Lock()  # during a trace, the network holds the tracers of one part

    def let_go(self, parameters: Arrays) -> None:
        """Replaces parameters in the network with zeros, so that an update can free the memory of these parameters."""
        install(self._network, {name: mx.zeros(array.shape) for name, array in parameters.items()})

    def __call__(self, parameters: Arrays, parts: Sequence[MicroBatch], scale: Scalar = 1.0) -> Gradients:
        """Computes the gradients, summed over the parts. A CPU evaluates them; a GPU computes them in the background.

        The loss is multiplied by `scale`, which keeps small gradients in the range of float16.
        """
        dispatch(parameters)
        jobs = [functools.partial(self._evaluated, parameters, part, scale, None, None) for part in parts]
        return self._summed(parameters, jobs)

    def _summed(self, parameters: Arrays, parts: Sequence[Callable[[_Sums, int], Gradients]]) -> Gradients:
        if not parts:
            zeros = {name: mx.zeros_like(array) for name, array in parameters.items()}
            dispatch(zeros)
            terms = {name: mx.array(0.0) for name in self._objective.losses}
            return Gradients(mx.array(0.0), mx.array(0.0), zeros, terms)
        sums = _Sums()
        jobs = [functools.partial(part, sums, number) for number, part in enumerate(parts)]
        losses = functools.reduce(added, backend().as_cores_get_free(jobs))
        return replace(losses, arrays={name: sums.arrays[name] for name in parameters})

    def _evaluated(
        self,
        parameters: Arrays,
        part: MicroBatch,
        scale: Scalar,
        compare: Compare | None,
        targets: Any,
        sums: _Sums,
        number: int,
    ) -> Gradients:
        """Computes the gradients of the part with this number, and adds them to `sums`; returns the losses alone.

        If `compare` is given, it replaces the loss of the objective.
        """
        with self._tracing:
            batch, key = part()
            with backend().stages(filled=self._objective.pure) as passed:  # others may read unfilled arrays
                results = self._run(self._gradients, parameters, batch, key, scale, compare, targets)
        loss, weight, terms, gradients = results
        modules = {"": gradients} if on_gpu() else _by_module(gradients)
        del results, gradients  # the loop below frees the gradients of each module after adding them
        _evaluate(passed, [loss, weight, terms], *(modules.values() if on_gpu() else ()))
        for module in reversed([*modules]):
            computed = modules.pop(module)
            dispatch(computed)
            sums.add(number, module, computed)
        self.computed = phase_times.clock()
        return Gradients(loss, weight, {}, terms)

    def _run(self, function: Callable[..., Any], parameters: Arrays, batch: TrainBatch, *arguments: Any) -> Any:
        """Calls a function with a batch.

        A compiled function cannot check token ids, so they are checked before the call. If only the device has the
        token ids, the function is called without being compiled.
        """
        if isinstance(function, Compiled):
            if batch.inputs.ids is None:
                function = function.function
            else:
                batch.inputs.ids.check(self._network.encoder.config)
                batch = replace(batch, inputs=replace(batch.inputs, ids=_CHECKED))
        return function(parameters, batch, *arguments)

    def compared(
        self,
        parameters: Arrays,
        parts: Sequence[MicroBatch | None],
        rows: Sequence[int],
        batch: ComparedBatch,
        scale: Scalar = 1.0,
    ) -> Gradients:
        """Computes the gradients of a loss that compares the examples of all parts (see also `__call__`).

        A part is `None` if another process computes it, and has as many inputs as `rows` says. Returns the gradients of
        the parts of this process, with the loss and the weight of the whole batch.
        """
        dispatch(parameters)
        local = {number: part for number, part in enumerate(parts) if part is not None}
        if len(parts) == 1 and batch.total is None:
            sums = _Sums()
            losses = self._evaluated(parameters, local[0], scale, batch.compare, batch.targets, sums, 0)
            return replace(losses, arrays={name: sums.arrays[name] for name in parameters})
        forward = [functools.partial(self._forward, parameters, part) for part in local.values()]
        computed = dict(zip(local, backend().as_cores_get_free(forward), strict=True))
        blank = (mx.zeros((count, batch.width)) for count in rows)
        outputs = mx.concatenate([computed.get(number, zeros) for number, zeros in enumerate(blank)])
        outputs = outputs if batch.total is None else batch.total(outputs)
        (loss, weight), shares = mx.value_and_grad(batch.compare)(outputs, batch.targets)
        starts = [sum(rows[:number]) for number in local]
        local_shares = [shares[start : start + rows[number]] for number, start in zip(local, starts, strict=True)]
        dispatch(loss, local_shares)
        backward = [
            functools.partial(self._evaluated, parameters, part, scale, _weighted, share)
            for part, share in zip(local.values(), local_shares, strict=True)
        ]
        return Gradients(loss, mx.array(weight, dtype=mx.float32), self._summed(parameters, backward).arrays)

    def _forward(self, parameters: Arrays, part: MicroBatch) -> mx.array:
        with self._tracing:
            batch, key = part()
            with backend().stages() as passed:
                outputs = self._run(self._outputs, parameters, batch, key)
        _evaluate(passed, outputs)
        return outputs


def _evaluate(collected: list[Stage], *arrays: Any) -> None:
    """Evaluates arrays: on a GPU, all at once; on a CPU, one by one, after the `collected` intermediate results."""
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


def _by_module(gradients: Arrays) -> dict[str, Arrays]:
    """Groups the gradients by module, from the embeddings to the heads."""
    modules: dict[str, Arrays] = {}
    for name, gradient in gradients.items():
        modules.setdefault(name.rpartition(".")[0], {})[name] = gradient
    return modules


def _weighted(outputs: mx.array, shares: mx.array) -> tuple[mx.array, float]:
    """Returns a loss whose gradient with respect to `outputs` is `shares`, and 0 as the weight of this loss."""
    return (outputs * shares).sum(), 0.0


def install(network: nn.Module, parameters: Arrays) -> None:
    """Replaces the values of some parameters of a network."""
    network.load_weights(list(parameters.items()), strict=False)
