"""The loop: updates, evaluations and saved states of one run, as events. It knows no task.

The order of the data and the dropout are functions of seed and update, so the state is what `State` holds: a run that
resumes from it computes, on a CPU, the same bits as one that was never interrupted.
"""

import contextlib
import functools
import math
import random
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence, Set as AbstractSet
from dataclasses import asdict, dataclass, field, replace
from typing import Any, cast

from mlxbert.errors import DeviceError, DivergedError, MlxbertError
from mlxbert.machine import interrupts, kernel_cache
from mlxbert.machine.device import dispatch, fit_cache, mx, nn, on_gpu, reset_cache, say_what_is_built
from mlxbert.machine.distributed import LostError, ProcessGroup
from mlxbert.machine.faults import device_errors, free_memory
from mlxbert.nn.encoder import Encoder
from mlxbert.nn.heads import Network
from mlxbert.nn.heads.masked_lm import MaskedLM
from mlxbert.text.batch import make_batch
from mlxbert.text.encoding import Encoding
from mlxbert.training import sampler, times
from mlxbert.training.checkpoint import Progress, State, Store
from mlxbert.training.events import Evaluated, Event, Saved, Step
from mlxbert.training.gradients import Differentiator, Gradients, MicroBatch, Whole, added, dropout_key, install
from mlxbert.training.objectives.objective import Comparison, LoopObjective, TrainBatch
from mlxbert.training.optimizer import (
    AdamW,
    Arrays,
    Scalar,
    clipping,
    depth_factors,
    is_frozen,
    learning_rate,
    norm,
    weight_decays,
)
from mlxbert.training.options import TrainingOptions
from mlxbert.training.rows import TABLE, SparseRows
from mlxbert.training.sampler import Order
from mlxbert.training.step import FIRST_SCALE, DeviceStep, rescaled
from mlxbert.training.times import Times

_SAVE_EVERY = 200
_RATE_WINDOW = 20  # updates over which speed is shown
_PATIENCE_AT_BEST = 3  # evaluations after one whose score cannot be better
Evaluate = Callable[[], Mapping[str, float]]


@dataclass(frozen=True, kw_only=True)
class Training:
    """What one run needs.

    Attributes:
        network: The network, with float32 weights.
        objective: What is trained.
        examples: Training examples.
        place: Where the example of a number stands, for errors.
        order: Which examples each update is computed from.
        options: How it is trained.
        dtype: The dtype of computation.
        evaluate: Computes metrics with the network as it is; `None` without validation data.
        show: Texts that an evaluation shows, made with the network as it is.
        trained: The names of the parameters that are trained; `None` for all that `freeze` leaves.
        streams: Parts of a batch that one process computes at a time.
        group: The processes.
        run: The number of the run, for events.
        times: Where time goes.
    """

    network: Network
    objective: LoopObjective[Any]
    examples: Sequence[Any]
    place: Callable[[int], str]
    order: Order
    options: TrainingOptions
    dtype: mx.Dtype
    evaluate: Evaluate | None
    show: Callable[[], tuple[str, ...]] = tuple
    trained: AbstractSet[str] | None = None
    streams: int = 1
    group: ProcessGroup = field(default_factory=ProcessGroup)
    run: int = 0
    times: Times = field(default_factory=Times)


@dataclass(frozen=True)
class Update:
    """An update that was started: a GPU may still compute it.

    Attributes:
        batches: Its batches.
        lr: Its learning rate.
        terms: The names of the losses that the loss consists of.
        numbers: The loss, its weight, the norm of the mean gradient, and the terms; on a GPU none until it is applied.
        finish: Gives the state after it, from the state of the run.
        gradients: On a GPU, until it is applied.
        before: On a GPU, once it is applied: the parameters and moments before it, kept until those after are computed.
    """

    batches: list[list[int]]
    lr: float
    terms: Sequence[str]
    numbers: mx.array | list[float]
    finish: Callable[[State], State]
    gradients: Gradients | None = None
    before: tuple[Arrays, AdamW] | None = None


class Run:
    """One run: `events` does the work.

    Attributes:
        order: Which examples each update is computed from.
        state: After the last update.
    """

    def __init__(self, training: Training, store: Store | None) -> None:
        self._t, self._store = training, store
        options = training.options
        self.order = training.order
        self._recent: deque[tuple[float, int]] = deque(maxlen=_RATE_WINDOW)
        network = training.network
        for module in network.modules():
            if isinstance(module, Encoder):
                module.checkpointing, module.frozen = options.checkpointing, options.freeze
        trained = self._split_parameters(dict(nn.utils.tree_flatten(network.parameters())))
        self._started = deque[Update]()  # updates that are not finished: on a GPU the arrays of the state are ahead
        self._device = self._device_step() if on_gpu() else None
        say_what_is_built("training")
        self._differentiate = Differentiator(network, training.objective, training.dtype)
        self._differentiate.freeze(self._frozen)
        with training.group.raise_together():
            stored = store.load(trained) if store is not None and training.group.rank == 0 else None
        self.state = self._shared(stored or self._first_state(trained))
        self._saved = stored is not None
        if self.state.progress.steps is not None:
            self.order.end_after(self.state.progress.steps)

    @property
    def steps(self) -> int:
        """Updates in all."""
        return self.order.steps

    @property
    def computed(self) -> float:
        """When the forward and backward passes of the last update were done on a CPU, by `times.clock`."""
        return self._differentiate.computed

    @property
    def every(self) -> int:
        """Updates between two evaluations."""
        return self._t.options.eval_every or self.order.epoch_steps

    def limit(self, steps: int, seconds: float) -> None:
        """Ends a run that has not begun after a number of updates, or earlier if they take longer than estimated."""
        self.state = replace(self.state, progress=replace(self.state.progress, steps=steps, budget=seconds))
        self.order.end_after(steps)

    def _split_parameters(self, whole: Arrays) -> Arrays:
        """Those that are trained, as they are before the first update; they are not kept here."""
        config = self._t.network.encoder.config
        layers, options, chosen = config.num_stored_layers, self._t.options, self._t.trained
        self._frozen = {
            name: array for name, array in whole.items()
            if is_frozen(name, layers, options) or (chosen is not None and name not in chosen)
        }  # fmt: skip
        trained = {name: array for name, array in whole.items() if name not in self._frozen}
        self._rows: SparseRows | None = None
        decodes = any(isinstance(module, MaskedLM) for module in self._t.network.modules())
        if TABLE in trained and not decodes and not self._t.objective.all_words:  # a decoder uses the whole table
            used = {token for example in self._t.examples for token in self._t.objective.tokens(example)}
            positions = config.positions.table  # some models count positions from the id of padding
            last = max(config.pad_token_id, 0 if positions is None else positions.first_position - 1)
            self._rows = SparseRows(trained[TABLE], used, last)
            trained[TABLE] = self._rows.take()
        self._factors = depth_factors(list(trained), layers, options)
        self._decays = weight_decays(trained, config, options)
        self.parameters = sum(array.size for array in whole.values())
        self.frozen = sum(array.size for array in self._frozen.values())
        return trained

    def _device_step(self) -> DeviceStep:
        options, half = self._t.options, self._t.dtype == mx.float16
        return DeviceStep(self._factors, self._decays, options.max_grad_norm, scaled=half)

    def _first_state(self, trained: Arrays) -> State:
        scale = FIRST_SCALE if self._t.dtype == mx.float16 else 1.0
        return State(Progress(scale=scale), trained, AdamW.new(trained))

    def _shared(self, state: State) -> State:
        """The state of the first process, in every process."""
        group = self._t.group
        if group.size == 1:
            return state
        progress = Progress.from_dict(group.broadcast(asdict(state.progress)))
        parameters, means, squares = (
            group.broadcast_arrays(arrays)
            for arrays in (state.parameters, state.optimizer.means, state.optimizer.squares)
        )
        return State(progress, parameters, AdamW(means, squares, progress.updates))

    def events(self) -> Iterator[Event]:
        """Trains to the end; interrupted, or if the device or another process fails, it saves the state first."""
        started = times.clock() - self.state.progress.seconds
        self._began, self._first_step = times.clock(), self.state.progress.step
        try:
            with device_errors(self._smaller()):
                while True:
                    self._stop_in_time(started)
                    if self._evaluation_due(self.state.progress):
                        yield self._evaluated(started)
                        yield from self._save()
                    progress = self.state.progress
                    if progress.step >= self.steps or progress.stopped:
                        break
                    yield self._step(started)
                    if self._save_due(self.state.progress.step):
                        yield from self._save()
        except DeviceError as problem:
            raise self._failed(problem) from problem
        except (KeyboardInterrupt, GeneratorExit, LostError):
            self._save_what_was_started(started)
            raise
        finally:
            reset_cache()
        if not self._saved:
            yield from self._save()

    def _save_what_was_started(self, started: float) -> None:
        # Whatever ends this, the same call meets it again when it resumes.
        with contextlib.suppress(DivergedError, DeviceError), device_errors(self._smaller()):
            while self._started and self._started[0].before is not None:  # what was not applied is computed again
                self._finish(started, times.clock())
        self._drop_what_was_started()
        for _ in self._save():
            pass

    def _drop_what_was_started(self) -> None:
        """Goes back to the state after the last finished update: a GPU may not have computed any other."""
        if self._started and self._started[0].before is not None:
            parameters, optimizer = self._started[0].before
            self.state = replace(self.state, parameters=parameters, optimizer=optimizer)
        self._started.clear()

    def earlier(self) -> Iterator[Evaluated]:
        """The evaluations before it was resumed, of which only the metrics are kept."""
        metric, best = self._t.objective.metric, self.state.progress.best_step
        for entry in self.state.progress.history:
            found = dict(entry)
            at: dict[str, Any] = {"run": self._t.run, "step": int(found.pop("step")), "epoch": found.pop("epoch")}
            yield Evaluated(**at, metrics=found, metric=metric, best=at["step"] == best, seconds=0.0)

    def _stop_in_time(self, started: float) -> None:
        """Ends the run, in all processes, where another update would not fit into its time."""
        if not self._started and self._late(started):
            self.state = replace(self.state, progress=replace(self.state.progress, stopped=True))

    def _late(self, started: float) -> bool:
        progress = self.state.progress
        if progress.budget is None or not progress.step:
            return False
        update = max((seconds for seconds, _ in self._recent), default=0.0)
        late = times.clock() - started + update * (1 + len(self._started)) > progress.budget
        return bool(self._t.group.broadcast(late)) if self._t.group.size > 1 else late

    def _smaller(self) -> str:
        """What takes less memory, as a hint."""
        batches = "chunk=" if isinstance(self._t.objective, Comparison) else "batch_size= with gradient_accumulation="
        return f"a smaller {batches}, or checkpointing=True, takes less; overwrite=True starts over with other options"

    def _failed(self, problem: DeviceError) -> DeviceError:
        """An error of the device, after the state of the last finished update is saved."""
        kept = ""
        self._drop_what_was_started()
        if self._store is not None and self.state.progress.step > 0:
            free_memory()
            try:
                list(self._save())
                kept = f"; the state after step {self.state.progress.step} is saved, and the same call resumes from it"
            except MlxbertError as other:
                kept = f"; {other.message}"
        return type(problem)(problem.message + kept, hint=problem.hint)

    def best(self) -> Arrays:
        """The trained parameters of the best evaluation, or after the last update where nothing was evaluated."""
        progress = self.state.progress
        if progress.best_step < 0 or progress.best_step == progress.step:
            return self._whole(self.state.parameters, progress.decay)
        if self.state.best is not None:
            return self.state.best
        assert self._store is not None
        return self._store.best(progress.best_step)

    def restore(self) -> None:
        """Leaves the network as others use it: in evaluation mode, and what was not trained as it was before."""
        network = self._t.network
        for module in network.modules():
            if isinstance(module, Encoder):
                module.checkpointing, module.frozen = False, 0
        install(network, self._frozen)
        network.eval()

    def _whole(self, parameters: Arrays, decay: float) -> Arrays:
        """The trained parameters of the network, all rows of its word embeddings included."""
        return parameters if self._rows is None else self._rows.whole(parameters, decay)

    def _save(self) -> Iterator[Event]:
        self._saved = True
        if self._store is None or self._t.group.rank:
            return
        with self._t.times.phase("saving"):
            self._store.save(self.state)
            kernel_cache.move_compiled()
        self.state = replace(self.state, best=None)
        yield Saved(run=self._t.run, step=self.state.progress.step, path=str(self._store.folder))

    def _save_due(self, step: int) -> bool:
        return step % (self._t.options.save_every or _SAVE_EVERY) == 0

    def _evaluation_due(self, progress: Progress) -> bool:
        due = progress.step > 0 and (progress.step % self.every == 0 or progress.step == self.steps or progress.stopped)
        return due and progress.evaluated != progress.step and self._t.evaluate is not None

    def _evaluated(self, started: float) -> Evaluated:
        assert self._t.evaluate is not None
        state, objective = replace(self.state, optimizer=self.state.optimizer.shared()), self._t.objective
        begun = times.clock()
        whole = self._whole(state.parameters, state.progress.decay)
        install(self._t.network, {**self._frozen, **whole})
        with self._t.times.phase("evaluating"):
            metrics = dict(self._t.evaluate())
        score = metrics.get(objective.metric, math.nan)
        if math.isnan(score):  # nothing could be compared with it
            raise MlxbertError(
                f"the metrics of {objective.name} are {metrics}, expected a number called {objective.metric!r}"
            )
        sign = -1 if objective.minimize else 1
        progress = state.progress
        better = progress.best_step < 0 or sign * score > sign * progress.best_score
        best = better or score == progress.best_score  # of equal ones the one that was trained longer
        worse = 0 if better else progress.worse + 1
        found = {"step": progress.step, "epoch": self.order.epochs(progress.step), **metrics}
        progress = replace(
            progress,
            evaluated=progress.step,
            worse=worse,
            stopped=progress.stopped or worse >= self._patience(score),
            seconds=times.clock() - started,
            history=(*progress.history, found),
        )
        if best:
            progress = replace(progress, best_step=progress.step, best_score=score)
        self.state = replace(state, progress=progress, best=whole if best else state.best)
        return Evaluated(
            run=self._t.run, step=progress.step, epoch=found["epoch"], metrics=metrics, metric=objective.metric,
            best=best, seconds=times.clock() - begun, filled=self._t.show(),
        )  # fmt: skip

    def _patience(self, score: float) -> float:
        """After how many evaluations without improvement the run ends."""
        if self._t.options.patience is not None:
            return self._t.options.patience
        return _PATIENCE_AT_BEST if score == self._t.objective.perfect else math.inf

    def _step(self, started: float) -> Step:
        """The next update. A GPU gets the one after it before Python waits for its numbers."""
        begun = times.clock()
        if not self._started:
            self._start()
        if self._device is not None and self._continues(started):
            self._start()
        return self._finish(started, begun)

    def _continues(self, started: float) -> bool:
        """Whether an update follows those that were started, with nothing between them that needs the state."""
        after = replace(self.state.progress, step=self.state.progress.step + len(self._started))
        due = after.step >= self.steps or self._save_due(after.step) or self._evaluation_due(after)
        return not due and not self._late(started)

    def _start(self) -> None:
        """Starts the next update: a GPU computes it while Python goes ahead; on a CPU its gradients are there."""
        step = self.state.progress.step + len(self._started)
        batches, lr = self.order.batches(step), learning_rate(step, self.steps, self._t.options)
        if self._device is None:
            found = self._gradients(batches, step, self.state.progress.scale)
            numbers = self._measured(found, self.state.progress.scale)
            divisor, length = numbers[1] * self.state.progress.scale, numbers[2]
            finish = functools.partial(self._updated, gradients=found.arrays, length=length, divisor=divisor, lr=lr)
            self._started.append(Update(batches, lr, [*found.terms], numbers, finish))
            return
        if not self._started:  # an evaluation or a saved state may have come between
            self._counters = self._device.counters(self.state.progress)
            self._differentiate.let_go(self.state.parameters)
        found = self._gradients(batches, step, self._counters["scale"])
        finish = functools.partial(self._counted, lr=lr)
        self._started.append(Update(batches, lr, [*found.terms], [], finish, found))
        del found  # nobody else has the gradients: each is freed as soon as it is used
        if len(self._started) == 1:
            self._apply()

    def _apply(self) -> None:
        """Gives a GPU the update of the first gradients that were started, while it computes them.

        The one before it is computed by then: no more than two sets of parameters and moments are in memory.
        """
        assert self._device is not None
        with interrupts.held():
            update, before = self._started[0], (self.state.parameters, self.state.optimizer)
            assert update.gradients is not None
            values, parameters, optimizer, self._counters = self._device(
                *before, update.gradients, self._counters, update.lr
            )
            self._started[0] = replace(update, numbers=values, gradients=None, before=before)
            self.state = replace(self.state, parameters=parameters, optimizer=optimizer)
            del update
            dispatch(values, parameters, optimizer.means, optimizer.squares, self._counters)

    def _finish(self, started: float, begun: float) -> Step:
        """Reads the numbers of the first update that was started; then it belongs to the state."""
        update, progress = self._started[0], self.state.progress
        numbers = update.numbers if isinstance(update.numbers, list) else self._computed_numbers(update.numbers)
        loss, weight, length, *sums = numbers
        usable = math.isfinite(length) and math.isfinite(loss)
        if not usable and (self._t.dtype != mx.float16 or progress.scale <= 1 or not math.isfinite(loss)):
            self._drop_what_was_started()
            for _ in self._save() if progress.step > 0 else ():
                pass
            raise self._not_finite(loss, update.batches)
        with interrupts.held():  # an update may be written over the state before it
            self._started.popleft()
            state = self.state
            if usable:
                state = update.finish(state)
                fit_cache()
            seconds = times.clock() - started
            scaled = rescaled(state.progress, usable) if self._t.dtype == mx.float16 else state.progress
            done = replace(scaled, step=progress.step + 1, seconds=seconds).with_loss(loss / weight, self.steps)
            self.state = replace(state, progress=done)
            self._saved = False
        if self._started:
            self._apply()
        if progress.step == self._first_step:
            kernel_cache.move_compiled()
        self._recent.append((times.clock() - begun, sum(map(self.order.tokens, update.batches))))
        terms = {name: one / weight for name, one in zip(update.terms, sums, strict=True)}
        return self._step_event(loss / weight, terms, update.lr, length)

    def _computed_numbers(self, numbers: mx.array) -> list[float]:
        """The numbers of the update that was applied, when a GPU has computed it; it then computes the next.

        Only then the state before it may be given up: what a GPU has not computed can be read, too, and is anything.
        """
        parameters, optimizer = self.state.parameters, self.state.optimizer
        with device_errors(self._smaller(), wait=False):
            mx.eval(numbers, parameters, optimizer.means, optimizer.squares)
        return cast(list[float], numbers.tolist())

    def _measured(self, found: Gradients, scale: float) -> list[float]:
        """The loss, its weight, the norm of the mean gradient and the terms, read at once.

        Args:
            found: Sums over the parts of the batch.
            scale: The factor of the loss.
        """
        weight = mx.where(found.weight == 0, 1.0, found.weight)  # batches without a target change nothing
        values = mx.stack([found.loss, weight, norm(found.arrays), *found.terms.values()])
        loss, divisor, length, *terms = cast(list[float], values.tolist())
        return [loss, divisor, length / (divisor * scale), *terms]

    def _updated(self, state: State, gradients: Arrays, length: float, divisor: float, lr: float) -> State:
        """The state after an update of the weights on a CPU.

        Args:
            state: The state before.
            gradients: Sums over the parts of the batch.
            length: The norm of the mean gradient.
            divisor: What makes means of the sums.
            lr: The learning rate.
        """
        factor = cast(float, clipping(length, self._t.options.max_grad_norm))
        rates = {name: lr * self._factors[name] for name in state.parameters}
        optimizer, parameters = state.optimizer.update(
            state.parameters, gradients, factor / divisor, rates, self._decays
        )
        return self._counted(replace(state, parameters=parameters, optimizer=optimizer), lr)

    def _counted(self, state: State, lr: float) -> State:
        """A state whose progress counts the update that its arrays are after."""
        kept = 1 - lr * self._factors.get(TABLE, 0.0) * self._decays.get(TABLE, 0.0)
        progress = replace(state.progress, updates=state.progress.updates + 1, decay=state.progress.decay * kept)
        return replace(state, progress=progress, optimizer=replace(state.optimizer, updates=progress.updates))

    def try_batches(self, batches: list[list[int]]) -> None:
        """Makes the inputs and targets of an update, and drops them."""
        for batch in batches:
            self._t.objective.collate([self._t.examples[number] for number in batch], random.Random(0))

    def try_update(self, batches: list[list[int]]) -> None:
        """Computes an update and drops it."""
        with device_errors(self._smaller()):
            state = replace(self.state, optimizer=self.state.optimizer.shared())
            found = self._gradients(batches, state.progress.step, state.progress.scale)
            if self._device is not None:
                counters = self._device.counters(state.progress)
                _, parameters, optimizer, _ = self._device(state.parameters, state.optimizer, found, counters, 0.0)
                dispatch(parameters, optimizer.means, optimizer.squares)
                return
            _, divisor, length, *_ = self._measured(found, state.progress.scale)
            self._updated(state, found.arrays, length, divisor * state.progress.scale, lr=0.0)

    def _step_event(self, loss: float, terms: Mapping[str, float], lr: float, length: float) -> Step:
        step = self.state.progress.step
        spent, tokens = (sum(values) for values in zip(*self._recent, strict=True))
        each = (times.clock() - self._began) / (step - self._first_step)
        return Step(
            run=self._t.run, step=step, epoch=self.order.epochs(step), loss=loss, lr=lr, gradient_norm=length,
            tokens_per_second=tokens / spent, memory=mx.get_peak_memory(), seconds_left=each * (self.steps - step),
            terms=terms,
        )  # fmt: skip

    def _gradients(self, batches: list[list[int]], step: int, scale: Scalar) -> Gradients:
        """The sums over all parts in all processes, for the update after `step` others."""
        group, compared = self._t.group, isinstance(self._t.objective, Comparison)
        self._t.network.train()
        if compared:
            each = (self._compared(number, batch, step, scale) for number, batch in enumerate(batches))
            found = functools.reduce(added, each)
        else:
            examples = [[self._t.examples[number] for number in batch] for batch in batches]
            totals = self._t.objective.totals([example for batch in examples for example in batch])
            parts = [part for number, batch in enumerate(examples) for part in self._parts(number, batch, step, totals)]
            found = self._differentiate(self.state.parameters, parts, scale)
        if group.size == 1:
            return found
        if compared:  # all have the same loss of the whole batch
            return replace(found, arrays=group.sum(found.arrays))
        terms = {f"term {name}": term for name, term in found.terms.items()}
        summed = group.sum({"loss": found.loss, "weight": found.weight, **terms, **found.arrays})
        loss, weight = summed.pop("loss"), summed.pop("weight")
        terms = {name: summed.pop(f"term {name}") for name in found.terms}
        return Gradients(loss, weight, summed, terms)

    def _parts(self, number: int, batch: Sequence[Any], step: int, totals: Any) -> Iterator[MicroBatch]:
        """This process's parts of a batch."""
        training, group = self._t, self._t.group
        found = sampler.parts([len(example) for example in batch], training.streams * group.size)
        for part, members in enumerate(found):
            if part % group.size == group.rank:
                place = (training.options.seed, step, number, part)
                yield functools.partial(self._part, [batch[member] for member in members], place, totals)

    def _part(self, examples: Sequence[Any], place: tuple[int, ...], totals: Any) -> tuple[TrainBatch, mx.array]:
        """The batch of some examples, and the key of its dropout."""
        batch = self._t.objective.collate(examples, random.Random(f"collate {place}"))
        return self._renumbered(replace(batch, totals=totals)), dropout_key(*place)

    def _compared(self, number: int, batch: Sequence[int], step: int, scale: Scalar) -> Gradients:
        """Those of a batch whose examples are compared: its parts are inputs of similar length."""
        training, group, objective = self._t, self._t.group, self._t.objective
        assert isinstance(objective, Comparison)
        examples = [training.examples[member] for member in batch]
        inputs = [encoding for example in examples for encoding in example.encodings]
        count = max(training.streams * group.size, math.ceil(len(batch) / (objective.chunk or len(batch))))
        shares = sampler.shares([len(one) for one in inputs], count)
        order = [row for share in shares for row in share]
        back = mx.array(sorted(range(len(order)), key=order.__getitem__))  # the place of each input among the parts
        whole = Whole(
            compare=self._compare,
            targets=(back, objective.targets(examples)),
            total=None if group.size == 1 else lambda outputs: group.sum({"": outputs})[""],
            width=objective.width,
        )
        place = (training.options.seed, step, number)
        parts = [
            functools.partial(self._inputs, [inputs[row] for row in share], (*place, part))
            if part % group.size == group.rank else None
            for part, share in enumerate(shares)
        ]  # fmt: skip
        return self._differentiate.compared(self.state.parameters, parts, [*map(len, shares)], whole, scale)

    def _compare(self, outputs: mx.array, targets: Any) -> tuple[mx.array, float]:
        """The loss of the outputs of all parts, and its weight."""
        back, others = targets
        return cast(Comparison[Any], self._t.objective).compare(outputs[back], others)

    def _inputs(self, inputs: Sequence[Encoding], place: tuple[int, ...]) -> tuple[TrainBatch, mx.array]:
        """The batch of some inputs, and the key of its dropout."""
        batch = TrainBatch(make_batch(inputs, self._t.network.encoder.config), mx.zeros(0))
        return self._renumbered(batch), dropout_key(*place)

    def _renumbered(self, batch: TrainBatch) -> TrainBatch:
        return batch if self._rows is None else replace(batch, inputs=self._rows.renumbered(batch.inputs))

    def _not_finite(self, loss: float, batches: list[list[int]]) -> DivergedError:
        step = self.state.progress.step + 1
        places = [self._t.place(number) for batch in batches for number in batch]
        shown = ", ".join(places[:5]) + (f" and {len(places) - 5} more" if len(places) > 5 else "")
        other = "" if self._t.dtype == mx.float32 else ", or dtype='float32'"
        what = f"the loss is {loss}" if not math.isfinite(loss) else "the gradient is not finite"
        kept = "; the state before it is kept" if step > 1 else ""
        return DivergedError(
            f"{what} at step {step}, in the batch of {shown}{kept}",
            hint=f"a smaller learning rate may help{other}; overwrite=True starts over with other options",
        )
