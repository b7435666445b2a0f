"""The updates of a run. Their batches are divided into parts for cores and processes.

While a GPU computes an update, Python reads the numbers of the previous update.
"""

import functools
import math
import random
from collections import deque
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any, cast

from mlxbert import memory_estimate
from mlxbert.config import EncoderConfig
from mlxbert.machine import device as devices, interrupts
from mlxbert.machine.device import dispatch, mx
from mlxbert.machine.device_errors import device_errors
from mlxbert.memory_estimate import KEPT_ON_CPU, of_activations
from mlxbert.text.batch import make_batch, padded_length
from mlxbert.text.encoding import Encoding
from mlxbert.train.loop import data_order
from mlxbert.train.loop.adamw import AdamW, Arrays, Scalar
from mlxbert.train.loop.data_order import Training
from mlxbert.train.loop.gradients import ComparedBatch, Differentiator, Gradients, MicroBatch, added, dropout_key
from mlxbert.train.loop.optimizer_steps import optimizer_step
from mlxbert.train.loop.saved_run import RunState
from mlxbert.train.loop.trained_parameters import TrainedParameters
from mlxbert.train.objectives.objective import ContrastiveObjective, LoopObjective, TrainBatch


class BatchGradients:
    """Computes the gradients of updates, summed over all parts of all batches, in all processes."""

    def __init__(self, training: Training, trained: TrainedParameters) -> None:
        self._training, self._rows, self._count = training, trained.rows, trained.count
        self._memory: int | None = training.group.broadcast(devices.available_memory())  # for equal parts everywhere
        self.differentiate = Differentiator(training.network, training.objective, training.dtype)
        self.differentiate.freeze(trained.frozen)
        self._compare = functools.partial(_compare, training.objective)  # a single object: a GPU compiles it once

    def __call__(self, parameters: Arrays, batches: Sequence[Sequence[int]], step: int, scale: Scalar) -> Gradients:
        """Computes the gradients of one update."""
        training, group = self._training, self._training.group
        training.network.train()
        if isinstance(training.objective, ContrastiveObjective):
            each = (self._compared(parameters, number, batch, step, scale) for number, batch in enumerate(batches))
            gradients = functools.reduce(added, each)
            # Every process already has the loss of the whole batch.
            return gradients if group.size == 1 else replace(gradients, arrays=group.sum(gradients.arrays))
        examples = [[training.examples[number] for number in batch] for batch in batches]
        totals = training.objective.totals([example for batch in examples for example in batch])
        fits = functools.partial(self._fits, sum(array.size for array in parameters.values()))
        parts = [
            part for number, batch in enumerate(examples) for part in self._parts(number, batch, step, totals, fits)
        ]
        gradients = self.differentiate(parameters, parts, scale)
        return gradients if group.size == 1 else self._summed(gradients)

    def _summed(self, gradients: Gradients) -> Gradients:
        terms = {f"term {name}": term for name, term in gradients.terms.items()}
        sums = self._training.group.sum(
            {"loss": gradients.loss, "weight": gradients.weight, **terms, **gradients.arrays}
        )
        loss, weight = sums.pop("loss"), sums.pop("weight")
        return Gradients(loss, weight, sums, {name: sums.pop(f"term {name}") for name in gradients.terms})

    def _fits(self, trained: int, texts: int, length: int) -> bool:
        """Whether the device has the memory for parts of this size: as many as are computed at the same time.

        What other programs leave of the memory does not count, because it differs from run to run, and the last digits
        of the gradients depend on the parts.
        """
        training, options = self._training, self._training.options
        config = training.network.encoder.config
        layers = sum(layer >= options.freeze for layer in config.layer_schedule)
        kept = min(layers, 1) if options.checkpointing else layers
        length = padded_length(length, config.max_length)
        part = of_part(config, texts, length, kept, training.dtype)
        needed = memory_estimate.of_trained(trained, self._count - trained) + training.streams * part
        if self._memory is None or needed <= self._memory:
            return True
        devices.hint_once("the device has too little memory for a batch, so training computes it in smaller parts")
        return False

    def _parts(
        self, number: int, batch: Sequence[Any], step: int, totals: Any, fits: data_order.Fits
    ) -> Iterator[MicroBatch]:
        """Yields the parts of a batch that this process computes."""
        training, group = self._training, self._training.group
        parts = data_order.parts([len(example) for example in batch], training.streams * group.size, fits)
        for part, members in enumerate(parts):
            if part % group.size == group.rank:
                place = (training.options.seed, step, number, part)
                yield functools.partial(self._part, [batch[member] for member in members], place, totals)

    def _part(self, examples: Sequence[Any], place: tuple[int, ...], totals: Any) -> tuple[TrainBatch, mx.array]:
        """Returns the examples of a part as a batch, and the random key for the part's dropout."""
        batch = self._training.objective.collate(examples, random.Random(f"collate {place}"))
        return self._renumbered(replace(batch, totals=totals)), dropout_key(*place)

    def _compared(self, parameters: Arrays, number: int, batch: Sequence[int], step: int, scale: Scalar) -> Gradients:
        """Computes the gradients of a batch whose examples are compared. Each part holds inputs of similar lengths."""
        training, group = self._training, self._training.group
        objective = cast(ContrastiveObjective[Any], training.objective)
        examples = [training.examples[member] for member in batch]
        inputs = [encoding for example in examples for encoding in example.encodings]
        count = max(training.streams * group.size, math.ceil(len(batch) / (objective.chunk or len(batch))))
        shares = data_order.shares([len(encoding) for encoding in inputs], count)
        rows = [row for share in shares for row in share]
        order = mx.array(sorted(range(len(rows)), key=rows.__getitem__))  # the position of each input in the parts
        whole = ComparedBatch(
            compare=self._compare,
            targets=(order, objective.targets(examples)),
            total=None if group.size == 1 else lambda outputs: group.sum({"": outputs})[""],
            width=objective.width,
        )
        place = (training.options.seed, step, number)
        parts = [
            functools.partial(self._inputs, [inputs[row] for row in share], (*place, part))
            if part % group.size == group.rank else None
            for part, share in enumerate(shares)
        ]  # fmt: skip
        return self.differentiate.compared(parameters, parts, [*map(len, shares)], whole, scale)

    def _inputs(self, inputs: Sequence[Encoding], place: tuple[int, ...]) -> tuple[TrainBatch, mx.array]:
        """Returns the inputs of a part as a batch, and the random key for the part's dropout."""
        batch = TrainBatch(make_batch(inputs, self._training.network.encoder.config), mx.zeros(0))
        return self._renumbered(batch), dropout_key(*place)

    def _renumbered(self, batch: TrainBatch) -> TrainBatch:
        """Replaces the token ids of a batch with row indices, if only some rows of the word embeddings are trained."""
        return batch if self._rows is None else replace(batch, inputs=self._rows.renumbered(batch.inputs))


def _compare(objective: LoopObjective[Any], outputs: mx.array, targets: Any) -> tuple[mx.array, float]:
    """Computes the loss from the outputs of all parts, and returns it with its weight."""
    order, objective_targets = targets
    return cast(ContrastiveObjective[Any], objective).compare(outputs[order], objective_targets)


@dataclass(frozen=True)
class StartedUpdate:
    """An update that was started. A GPU may still be computing it."""

    batches: list[list[int]]  # the indices of the examples in each batch
    lr: float  # the learning rate
    # The gradients, summed over the batches; `None` once the update has been applied.
    gradients: Gradients | None
    # The loss, its weight, the norm of the mean gradient and the terms of the loss; `None` until the update is applied.
    numbers: mx.array | list[float] | None = None
    # The parameters and moments before the update; `None` until it is applied. On a CPU, it may have overwritten them.
    before: tuple[Arrays, AdamW] | None = None


class Updater:
    """Computes the updates of a run in order. An update is started, its numbers are read, and then it is finished.

    On a GPU, an update can be started before the previous one is finished; at most two sets of parameters and moments
    are in memory. On a CPU, an update is computed when it is started.
    """

    def __init__(self, training: Training, trained: TrainedParameters, state: RunState) -> None:
        # Its progress counts finished updates; its arrays may be one update ahead.
        self.state = state  # before the next update
        self.started = deque[StartedUpdate]()  # the started updates that are not finished, the oldest first
        self.gradients = BatchGradients(training, trained)
        self._training, self._trained = training, trained
        norm, half = training.options.max_grad_norm, training.dtype == mx.float16
        self._change = optimizer_step(trained.factors, trained.decays, norm, scaled=half)

    def start(self, batches: list[list[int]], lr: float) -> None:
        """Starts another update, after the updates in `started`."""
        if not self.started:  # the state may have been evaluated or saved in between
            self._counters = self._change.counters(self.state.progress)
            self.gradients.differentiate.let_go(self.state.parameters)
        step = self.state.progress.step + len(self.started)
        gradients = self.gradients(self.state.parameters, batches, step, self._counters["scale"])
        self.started.append(StartedUpdate(batches, lr, gradients))
        del gradients  # `started` has the only reference, so that each gradient is freed as soon as it is used
        if len(self.started) == 1:
            self.follow()

    def follow(self) -> None:
        """Submits the last stages of the oldest started update, whose gradients a GPU may still be computing.

        The previous update has been computed, so at most two sets of parameters and moments are in memory.
        """
        if not self.started:
            return
        with interrupts.held():
            update, before = self.started[0], (self.state.parameters, self.state.optimizer)
            assert update.gradients is not None
            numbers, parameters, optimizer, self._counters = self._change(
                *before, update.gradients, self._counters, update.lr
            )
            self.started[0] = replace(update, numbers=numbers, gradients=None, before=before)
            self.state = replace(self.state, parameters=parameters, optimizer=optimizer)
            del update
            if isinstance(numbers, mx.array):  # other numbers are those of an update that was computed at once
                dispatch(numbers, parameters, optimizer.means, optimizer.squares, self._counters)

    def numbers(self) -> list[float]:
        """Returns the `numbers` of the oldest started update. A GPU has then computed it, and computes the next one.

        The previous state must be kept until this method returns: arrays that a GPU failed to compute can be read
        without an error, but their contents are arbitrary.
        """
        numbers, parameters, optimizer = self.started[0].numbers, self.state.parameters, self.state.optimizer
        if isinstance(numbers, mx.array):
            with device_errors(less_memory(self._training), wait=False):
                mx.eval(numbers, parameters, optimizer.means, optimizer.squares)
            numbers = cast(list[float], numbers.tolist())
        assert numbers is not None
        return numbers

    def finish(self, usable: bool) -> RunState:
        """Removes the oldest update from `started`, and returns the state after this update.

        The caller must count the step in the returned state, and assign it to `state`. An update whose numbers are not
        finite is not `usable`, and changes nothing.
        """
        lr, progress = self.started.popleft().lr, self.state.progress
        if not usable:
            return self.state
        decay = progress.decay * self._trained.kept_rows(lr)
        return replace(self.state, progress=replace(progress, updates=progress.updates + 1, decay=decay))

    def drop(self) -> None:
        """Discards the started updates, which a GPU may not have computed yet, and restores the state before them."""
        if self.started and self.started[0].before is not None:
            parameters, optimizer = self.started[0].before
            self.state = replace(self.state, parameters=parameters, optimizer=optimizer)
        self.started.clear()

    def attempt(self, batches: list[list[int]]) -> None:
        """Computes an update and discards the result."""
        state = replace(self.state, optimizer=self.state.optimizer.shared())
        counters = self._change.counters(state.progress)
        gradients = self.gradients(state.parameters, batches, state.progress.step, counters["scale"])
        _, parameters, optimizer, _ = self._change(state.parameters, state.optimizer, gradients, counters, 0.0)
        dispatch(parameters, optimizer.means, optimizer.squares)


def less_memory(training: Training) -> str:
    """Returns a hint that names options which reduce memory."""
    in_chunks = isinstance(training.objective, ContrastiveObjective)
    batches = "`chunk=`" if in_chunks else "`batch_size=` with `gradient_accumulation=`"
    return f"use a smaller {batches}, or `checkpointing=True`, and `overwrite=True` to start over"


def of_part(config: EncoderConfig, texts: int, length: int, layers: int, dtype: mx.Dtype) -> int:
    """The memory in bytes, besides that of the weights, for the gradients of texts of a padded length.

    `layers` is the number of layers whose arrays are kept for the backward pass.
    """
    kept = of_activations(config, texts, length, layers, dtype)
    return kept if devices.on_gpu() else int(KEPT_ON_CPU * kept)
