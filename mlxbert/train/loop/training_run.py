"""A run of the training loop, which yields events: updates, evaluations and saved states.

The order of the data and the dropout masks are functions of the seed and the number of the update, so `RunState` is the
whole state: on a CPU, a resumed run computes the same bits as a run that was never interrupted.
"""

import contextlib
import logging
import math
import random
from collections import deque
from collections.abc import Generator, Iterator, Mapping
from dataclasses import asdict, replace
from typing import Any

from mlxbert.errors import DeviceError, DivergedError, MlxbertError
from mlxbert.machine import interrupts, kernel_cache
from mlxbert.machine.device import fit_cache, mx, on_gpu, reset_cache, say_what_is_built
from mlxbert.machine.device_errors import StoppedError, device_errors, free_memory
from mlxbert.nn.encoder import Encoder
from mlxbert.train.loop import phase_times
from mlxbert.train.loop.adamw import AdamW, Arrays
from mlxbert.train.loop.data_order import Training
from mlxbert.train.loop.distributed import LostError
from mlxbert.train.loop.events import Evaluated, Event, Saved, Step
from mlxbert.train.loop.gradients import install
from mlxbert.train.loop.learning_rate import learning_rate
from mlxbert.train.loop.optimizer_steps import FIRST_SCALE, rescaled
from mlxbert.train.loop.saved_run import Progress, RunState, RunStore
from mlxbert.train.loop.trained_parameters import split_parameters
from mlxbert.train.loop.updater import Updater, less_memory

_LOG = logging.getLogger("mlxbert")
_SAVE_EVERY = 200
_RATE_WINDOW = 20  # number of updates from which the speed is computed


class Run:
    """One run of the training loop; iterating over `events` does the work."""

    def __init__(self, training: Training, store: RunStore | None) -> None:
        self.training, self._store, self.order = training, store, training.order
        self._pace = Pace()
        options = training.options
        for module in training.network.modules():
            if isinstance(module, Encoder):
                module.checkpointing, module.frozen = options.checkpointing, options.freeze
        self.trained, parameters = split_parameters(training)
        say_what_is_built("training")
        with training.group.raise_together():
            stored = store.load(parameters) if store is not None and training.group.rank == 0 else None
        self._saved, self._repeated = stored is not None, -1  # the step from which an update was repeated last
        if stored is None:
            scale = FIRST_SCALE if training.dtype == mx.float16 else 1.0
            stored = RunState(Progress(scale=scale), parameters, AdamW.new(parameters))
        self.updater = Updater(training, self.trained, _shared(training, stored))
        if self.state.progress.steps is not None:
            self.order.end_after(self.state.progress.steps)

    @property
    def state(self) -> RunState:
        """The state after the last finished update. On a GPU, its arrays may be one update ahead."""
        return self.updater.state

    @property
    def steps(self) -> int:
        """The total number of updates."""
        return self.order.steps

    @property
    def computed(self) -> float:
        """The time, by `phase_times.clock`, at which a CPU finished the forward and backward passes of an update."""
        return self.updater.gradients.differentiate.computed

    @property
    def every(self) -> int:
        """The number of updates from one evaluation to the next."""
        return self.training.options.eval_every or self.order.epoch_steps

    def limit(self, steps: int, seconds: float) -> None:
        """Limits a new run to `steps` updates, and to `seconds` in case the updates take longer than estimated."""
        self._advance(steps=steps, budget=seconds)
        self.order.end_after(steps)

    def _advance(self, **changes: Any) -> None:
        """Replaces fields of the progress."""
        self.updater.state = replace(self.state, progress=replace(self.state.progress, **changes))

    def events(self) -> Iterator[Event]:
        """Trains to the end, and yields the events of the run.

        After an interruption, or a failure of a device or process, the state is saved before the error is raised. An
        update that macOS stops is repeated once.
        """
        self._pace.begin(self.state.progress)
        try:
            while (problem := (yield from self._until_failure())) is not None and self._repeats(problem):
                pass
        except (KeyboardInterrupt, GeneratorExit, LostError):
            self._save_started()
            raise
        finally:
            reset_cache()
        if problem is not None:
            raise self._failed(problem) from problem
        if not self._saved:
            yield from self._save()

    def _until_failure(self) -> Generator[Event, None, DeviceError | None]:
        """Trains to the end, or until the device fails: then drops the started updates, and returns the error."""
        try:
            with device_errors(less_memory(self.training)):
                while True:
                    self._stop_in_time()
                    if self._evaluation_due(self.state.progress):
                        yield self._evaluated()
                        yield from self._save()
                    progress = self.state.progress
                    if progress.step >= self.steps or progress.stopped:
                        return None
                    yield self._step()
                    if self._save_due(self.state.progress.step):
                        yield from self._save()
        except DeviceError as problem:
            with interrupts.held():
                self.updater.drop()
            return problem

    def _repeats(self, problem: DeviceError) -> bool:
        """Whether training continues from the last finished update after a failure; once from the same update.

        Several processes must compute the same updates at the same time, so none of them repeats one alone.
        """
        step = self.state.progress.step
        if not isinstance(problem, StoppedError) or step == self._repeated or self.training.group.size > 1:
            return False
        self._repeated, self._saved = step, False  # the device may have failed while the state was saved
        free_memory()
        _LOG.warning("macOS stopped the work after step %d, so it is repeated from there; %s", step, problem.hint)
        return True

    def _save_started(self) -> None:
        # Errors are suppressed: the resumed run computes the same updates and raises them again.
        started = self.updater.started
        with contextlib.suppress(DivergedError, DeviceError), device_errors(less_memory(self.training)):
            while started and started[0].before is not None:  # an update that was not applied is computed again
                self._finish(phase_times.clock())
        self.updater.drop()
        list(self._save())

    def earlier(self) -> Iterator[Evaluated]:
        """Yields the evaluations from before the run was resumed. Only the metrics of these evaluations were stored."""
        metric, best = self.training.objective.metric, self.state.progress.best_step
        for entry in self.state.progress.history:
            metrics = dict(entry)
            at: dict[str, Any] = {"run": self.training.run, "step": int(metrics.pop("step"))}
            at["epoch"] = metrics.pop("epoch")
            yield Evaluated(**at, metrics=metrics, metric=metric, best=at["step"] == best, seconds=0.0)

    def _stop_in_time(self) -> None:
        """Ends the run, in all processes, if another update would exceed the time limit."""
        if not self.updater.started and self._late():
            self._advance(stopped=True)

    def _late(self) -> bool:
        progress, group = self.state.progress, self.training.group
        if progress.budget is None or not progress.step:
            return False
        update = self._pace.slowest * (1 + len(self.updater.started))
        late = self._pace.seconds + update > progress.budget
        return bool(group.broadcast(late)) if group.size > 1 else late

    def _failed(self, problem: DeviceError) -> DeviceError:
        """After a device error, saves the state of the last finished update.

        Returns the error, whose message also says whether the state was saved.
        """
        note = ""
        if self._store is not None and self.state.progress.step > 0:
            free_memory()
            try:
                list(self._save())
                note = f" (the state after step {self.state.progress.step} is saved, so the same call resumes there)"
            except MlxbertError as failure:
                note = f" ({failure.message})"
        return type(problem)(problem.message + note, hint=problem.hint)

    def best(self) -> Arrays:
        """Returns the trained parameters at the best evaluation or, without evaluations, after the last update."""
        progress = self.state.progress
        if progress.best_step < 0 or progress.best_step == progress.step:
            return self.trained.whole(self.state.parameters, progress.decay)
        if self.state.best is not None:
            return self.state.best
        assert self._store is not None
        return self._store.best(progress.best_step)

    def restore(self) -> None:
        """Prepares the network for use: sets evaluation mode, and restores the original dtype of frozen parameters."""
        network = self.training.network
        for module in network.modules():
            if isinstance(module, Encoder):
                module.checkpointing, module.frozen = False, 0
        install(network, self.trained.frozen)
        network.eval()

    def _save(self) -> Iterator[Event]:
        self._saved = True
        if self._store is None or self.training.group.rank:
            return
        with self.training.times.phase("saving"):
            self._store.save(self.state)
            kernel_cache.move_compiled()
        self.updater.state = replace(self.state, best=None)
        yield Saved(run=self.training.run, step=self.state.progress.step, path=str(self._store.folder))

    def _save_due(self, step: int) -> bool:
        return step % (self.training.options.save_every or _SAVE_EVERY) == 0

    def _evaluation_due(self, progress: Progress) -> bool:
        due = progress.step > 0 and (progress.step % self.every == 0 or progress.step == self.steps or progress.stopped)
        return due and progress.evaluated != progress.step and self.training.evaluate is not None

    def _evaluated(self) -> Evaluated:
        """Evaluates the network with the parameters of the state."""
        training, progress, begun = self.training, self.state.progress, phase_times.clock()
        assert training.evaluate is not None
        state = replace(self.state, optimizer=self.state.optimizer.shared())
        parameters = self.trained.whole(state.parameters, progress.decay)
        install(training.network, {**self.trained.frozen, **parameters})
        with training.times.phase("evaluating"):
            metrics = training.group.broadcast(dict(training.evaluate()))  # last digits differ between machines
        epoch = self.order.epochs(progress.step)
        evaluated, best = _after_evaluation(training, progress, metrics, epoch)
        evaluated = replace(evaluated, seconds=self._pace.seconds)
        self.updater.state = replace(state, progress=evaluated, best=parameters if best else state.best)
        return Evaluated(
            run=training.run, step=progress.step, epoch=epoch, metrics=metrics, metric=training.objective.metric,
            best=best, seconds=phase_times.clock() - begun, filled=training.show(),
        )  # fmt: skip

    def _step(self) -> Step:
        """Computes the next update. On a GPU, the following update is usually started before this one is finished."""
        begun = phase_times.clock()
        if not self.updater.started:
            self._start()
        if on_gpu() and self._continues():
            self._start()
        return self._finish(begun)

    def _continues(self) -> bool:
        """Returns whether the next update to start follows directly, without evaluating or saving the state first."""
        progress = self.state.progress
        after = replace(progress, step=progress.step + len(self.updater.started))
        due = after.step >= self.steps or self._save_due(after.step) or self._evaluation_due(after)
        return not due and not self._late()

    def _start(self) -> None:
        """Starts the next update. A GPU computes it in the background; a CPU computes the gradients right away."""
        step = self.state.progress.step + len(self.updater.started)
        self.training.objective.begin_update(step, self.steps)
        self.updater.start(self.order.batches(step), learning_rate(step, self.steps, self.training.options))

    def _finish(self, begun: float) -> Step:
        """Reads the numbers of the oldest started update, and makes this update part of the state."""
        updater, progress, float16 = self.updater, self.state.progress, self.training.dtype == mx.float16
        update = updater.started[0]
        loss, weight, length, *term_sums = updater.numbers()
        usable = math.isfinite(length) and math.isfinite(loss)
        if not usable and (not float16 or progress.scale <= 1 or not math.isfinite(loss)):
            updater.drop()
            if progress.step > 0:
                list(self._save())
            raise self._not_finite(loss, update.batches)
        with interrupts.held():  # an update may overwrite the previous state
            state = updater.finish(usable)
            if usable:
                fit_cache()
            rescaled_progress = rescaled(state.progress, usable) if float16 else state.progress
            counted = replace(rescaled_progress, step=progress.step + 1, seconds=self._pace.seconds)
            updater.state = replace(state, progress=counted.with_loss(loss / weight, self.steps))
            self._saved = False
        updater.follow()
        if progress.step == self._pace.first_step:
            kernel_cache.move_compiled()
        self._pace.recent.append((phase_times.clock() - begun, sum(map(self.order.tokens, update.batches))))
        step, losses = self.state.progress.step, self.training.objective.losses
        return Step(
            run=self.training.run, step=step, epoch=self.order.epochs(step), loss=loss / weight, lr=update.lr,
            gradient_norm=length, tokens_per_second=self._pace.tokens_per_second, memory=mx.get_peak_memory(),
            seconds_left=self._pace.seconds_of_a_step(step) * (self.steps - step),
            terms={name: total / weight for name, total in zip(losses, term_sums, strict=True)},
        )  # fmt: skip

    def try_batches(self, batches: list[list[int]]) -> None:
        """Makes the inputs and targets of an update, so that this work can be timed, and discards them."""
        for batch in batches:
            examples = [self.training.examples[number] for number in batch]
            self.training.objective.collate(examples, random.Random(0))

    def try_update(self, batches: list[list[int]]) -> None:
        """Computes an update and discards the result."""
        with device_errors(less_memory(self.training)):
            self.updater.attempt(batches)

    def _not_finite(self, loss: float, batches: list[list[int]]) -> DivergedError:
        step = self.state.progress.step + 1
        places = [self.training.place(number) for batch in batches for number in batch]
        listed = ", ".join(places[:5]) + (f" and {len(places) - 5} more" if len(places) > 5 else "")
        float32_advice = "" if self.training.dtype == mx.float32 else ", or `dtype='float32'`"
        problem = f"the loss is {loss}" if not math.isfinite(loss) else "the gradient is not finite"
        note = " (the previous state is kept)" if step > 1 else ""
        return DivergedError(
            f"{problem} at step {step}, in the batch of {listed}{note}",
            hint=f"use a smaller learning rate{float32_advice}, and `overwrite=True` to start over",
        )


class Pace:
    """Measures the speed of a run."""

    def __init__(self) -> None:
        self.first_step = 0
        self._began = self._zero = 0.0
        self.recent: deque[tuple[float, int]] = deque(maxlen=_RATE_WINDOW)  # seconds and tokens of each update

    def begin(self, progress: Progress) -> None:
        """Starts the clock, which includes the time and the updates of earlier processes."""
        self._began, self.first_step = phase_times.clock(), progress.step
        self._zero = self._began - progress.seconds

    @property
    def seconds(self) -> float:
        """The time of the run in seconds, including earlier processes."""
        return phase_times.clock() - self._zero

    @property
    def slowest(self) -> float:
        """The time of the slowest recent update in seconds."""
        return max((seconds for seconds, _ in self.recent), default=0.0)

    @property
    def tokens_per_second(self) -> float:
        """The number of tokens per second in the recent updates, not counting padding."""
        seconds, tokens = (sum(values) for values in zip(*self.recent, strict=True))
        return tokens / seconds

    def seconds_of_a_step(self, step: int) -> float:
        """Returns the mean seconds per update, including evaluations, over this process's updates up to a step."""
        return (phase_times.clock() - self._began) / (step - self.first_step)


def _shared(training: Training, state: RunState) -> RunState:
    """Broadcasts the state of the first process to all processes."""
    group = training.group
    if group.size == 1:
        return state
    progress = Progress.from_dict(group.broadcast(asdict(state.progress)))
    parameters, means, squares = (
        group.broadcast_arrays(arrays) for arrays in (state.parameters, state.optimizer.means, state.optimizer.squares)
    )
    return RunState(progress, parameters, AdamW(means, squares))


def _after_evaluation(
    training: Training, progress: Progress, metrics: Mapping[str, float], epoch: float
) -> tuple[Progress, bool]:
    """Returns the progress after an evaluation, and whether this evaluation is the best so far."""
    objective = training.objective
    score, loss = quality = objective.quality(metrics)
    if math.isnan(score):  # NaN cannot be compared with other scores
        raise MlxbertError(
            f"the metrics of {objective.name} are {metrics}, expected a number called {objective.metric!r}"
        )
    earlier = [objective.quality(entry) for entry in progress.history] or [(-math.inf, -math.inf)]
    scores, losses = zip(*earlier, strict=True)
    # While the score stays the same, or falls a little, training may still lower the loss. Once the score is perfect,
    # the loss no longer counts.
    learns = loss > max(losses) and progress.best_score != objective.perfect
    worse = 0 if score > max(scores) or learns else progress.worse + 1
    best = quality >= max(earlier)  # of equal ones, the later one
    entry = {"step": progress.step, "epoch": epoch, **metrics}
    evaluated = replace(
        progress, evaluated=progress.step, worse=worse, history=(*progress.history, entry),
        stopped=progress.stopped or worse >= (training.options.patience or math.inf),
    )  # fmt: skip
    best_score = metrics[objective.metric]
    return (replace(evaluated, best_step=progress.step, best_score=best_score) if best else evaluated), best
