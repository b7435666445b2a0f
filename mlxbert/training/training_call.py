"""Calls of training: options → model → data → plan → run, as a stream of events.

`finetune`, `pretrain` and `distill` are faces of `begin`: each reads its options into a `TrainingRequest`, and says how
its model is found and its data are opened. A kind of data is a subclass of `Material`.

The work is done in `DIR.partial/`, see `mlxbert.training.workspace`; `DIR` appears when everything is done. The same
call resumes; another one is refused.
"""

import logging
import math
from abc import ABC, abstractmethod
from collections.abc import Callable, Generator, Iterator, Mapping, Sequence, Set as AbstractSet
from contextlib import ExitStack
from dataclasses import dataclass, replace
from importlib import metadata
from pathlib import Path
from typing import Any, Self, TypeVar

from mlxbert.errors import ArgumentError, DivergedError
from mlxbert.folders import card, destination
from mlxbert.machine import device as devices
from mlxbert.machine.cores import training_workers
from mlxbert.machine.device import BLAS, dtype_name, mx
from mlxbert.machine.device_errors import device_errors
from mlxbert.machine.distributed import ProcessGroup, join
from mlxbert.model import Model
from mlxbert.training.base_model import BaseModel
from mlxbert.training.loop.events import Estimate, Event, Finished, Started, TrainingEvents
from mlxbert.training.loop.gradients import install
from mlxbert.training.loop.phase_times import EARLIER, LOADING, Times
from mlxbert.training.loop.run_estimate import Costs, measure
from mlxbert.training.loop.training_inputs import Training
from mlxbert.training.loop.training_run import Run
from mlxbert.training.lora_layers import Adapters
from mlxbert.training.objectives.objective import LoopObjective
from mlxbert.training.options.loop_options import TrainingOptions
from mlxbert.training.trained_folder import FolderContent, write_folder
from mlxbert.training.workspace import Workspace, clean_up
from mlxbert.version import __version__
from mlxbert.weights.model_source import ModelRef, local_folder

_LOG = logging.getLogger("mlxbert")
_FEW = 50  # updates: measuring some takes as long as a few of them
_ESTIMATING = "estimating the time"
AnyBase = TypeVar("AnyBase", bound=BaseModel)
_LORA_RATE = 10  # adapters begin at 0 and are small: they need larger steps than the weights next to them


@dataclass(frozen=True, kw_only=True)
class TrainingRequest:
    """What a call of training asks for, whatever its data are.

    Attributes:
        task: What is trained, for reports.
        what: What the call does, for its representation: `fine-tuning`.
        output: The folder to write.
        ref: The model that training starts from, and the device.
        options: How it is trained.
        named: Which of these options the caller chose: the others may depend on the model and the data.
        variants: The options in which the runs differ.
        overwrite: Whether existing results and unfinished work are replaced.
        dry_run: Whether time and memory are estimated only.
        line: The command line of this call, where it is known.
        times: Where time goes.
    """

    task: str
    what: str
    output: str | Path
    ref: ModelRef
    options: TrainingOptions
    named: AbstractSet[str]
    variants: tuple[Mapping[str, Any], ...] = ({},)
    overwrite: bool
    dry_run: bool = False
    line: str | None = None
    times: Times


class Material(ABC):
    """What a call trains on: a kind of data with the objective that learns from it.

    Attributes:
        base: The model that training starts from.
        objective: What the loop trains; its metric chooses the best run.
    """

    base: BaseModel
    objective: LoopObjective[Any]

    @abstractmethod
    def usual(self, options: TrainingOptions) -> Mapping[str, Any]:
        """Values that suit the model and the data, for options that the caller did not choose."""

    @abstractmethod
    def check(self, options: TrainingOptions) -> None:
        """Refuses what a run with these options would meet after hours of work."""

    @abstractmethod
    def manifest(self, call: "TrainingCall") -> dict[str, Any]:
        """What decides every bit of the result besides `versions`: only with the same manifest does a run resume."""

    def opened(self, call: "TrainingCall", folder: Path) -> Self:
        """The material with what is kept in the folder of unfinished work."""
        return self

    @abstractmethod
    def model(self, options: TrainingOptions) -> tuple[Model, Adapters | None]:
        """The model of a run before training, and the adapters that are trained instead of all weights, if any."""

    @abstractmethod
    def training(self, call: "TrainingCall", options: TrainingOptions, model: Model) -> Mapping[str, Any]:
        """The attributes of `Training` that depend on the kind of data, by name."""

    @abstractmethod
    def reads(self) -> tuple[int, int]:
        """The tokens that an evaluation reads, and those that are read after training."""

    @abstractmethod
    def facts(self, call: "TrainingCall", number: int, loop: Run) -> Mapping[str, Any]:
        """What `Started` says of a run that depends on the kind of data, by name."""

    @abstractmethod
    def content(self, call: "TrainingCall", model: Model, results: Sequence[Mapping[str, Any]]) -> FolderContent:
        """What is written.

        Args:
            call: The call.
            model: The model with the weights of the best run.
            results: Of each run `score`, `step`, `seconds`, `history`, the step after which it `ended`, how many were
                `planned`, and the options in which it differs.
        """


def begin(
    request: TrainingRequest, find: Callable[[ModelRef], AnyBase], read: Callable[[AnyBase], Material]
) -> TrainingEvents:
    """Checks everything that can be checked before training.

    Args:
        request: What is asked for.
        find: Checks what can be checked without the model that training starts from, and finds the model.
        read: Opens the data, and makes a plan of them.
    """
    ref, times, group = request.ref, request.times, join()
    with group.raise_together():
        devices.use(ref.device, fast_float32=request.options.fast_float32)
        target = claim(request, group)
        base = find(ref)
        for folder in (base.files.adapter, base.folder):
            if folder is not None and not group.rank:
                destination.check_location(target, folder)
        base.warn_unless_it_fits(request.options)
        material = read(base)
        usual = material.usual(request.options)
        options = replace(
            request.options, **{name: value for name, value in usual.items() if name not in request.named}
        )
        call = TrainingCall(
            request=request, target=target, material=material, options=options,
            dtype=devices.choose_dtype(ref.dtype, training=True),
            group=ProcessGroup() if request.dry_run else group,
        )  # fmt: skip
        for number in range(len(request.variants)):  # checked before hours of work
            material.check(call.chosen(number))
    events = call.estimated(first=not group.rank) if request.dry_run else call.events()
    times.begin("")
    result = ModelRef(target, offline=ref.offline, device=ref.device)
    return TrainingEvents(events, f"{request.what} of {base.name}", result, times, dry=request.dry_run)


@dataclass(frozen=True, kw_only=True)
class TrainingCall:
    """A checked call of training, which is one run of the loop or several.

    Attributes:
        request: What is asked for.
        target: The folder to write.
        material: The data.
        options: How it is trained.
        dtype: The dtype of computation.
        group: The processes.
    """

    request: TrainingRequest
    target: Path
    material: Material
    options: TrainingOptions
    dtype: mx.Dtype
    group: ProcessGroup

    @property
    def times(self) -> Times:
        """Where time goes."""
        return self.request.times

    @property
    def variants(self) -> tuple[Mapping[str, Any], ...]:
        """The options in which the runs differ."""
        return self.request.variants

    def chosen(self, number: int) -> TrainingOptions:
        """The options of a run."""
        return replace(self.options, **self.variants[number])

    def training(self, number: int, models: "RunModels") -> Training:
        """What the loop needs for a run."""
        options, group = self.chosen(number), self.group
        model, adapters = models.of(number)
        return Training(
            network=model.network, options=options, dtype=self.dtype, group=group, run=number, times=self.times,
            trained=None if adapters is None else adapters.trained,
            **self.material.training(self, options, model),
            streams=group.broadcast(max(len(training_workers()), 1)),
        )  # fmt: skip

    def estimated(self, *, first: bool) -> Generator[Event, None, None]:
        """What a run would take, measured by the first process: the only event of a dry run."""
        if first:
            yield self._started(0, Run(self.training(0, RunModels(self)), None), always=True)

    def _started(self, number: int, loop: Run, *, always: bool = False) -> Started:
        """The first event of a run; `always` with an estimate."""
        estimate = self._estimated(number, loop, always=always)
        variants, variant = self.variants, self.variants[number]
        return Started(
            run=number, task=self.request.task, model=self.material.base.name, output=str(self.target),
            runs=len(variants),
            varied={name: value for name, value in variant.items() if any(one[name] != value for one in variants)},
            steps=loop.steps, first_step=loop.state.progress.step, parameters=loop.parameters - loop.frozen,
            frozen=loop.frozen, device=f"{'gpu' if devices.on_gpu() else 'cpu'}, {dtype_name(self.dtype)}",
            processes=self.group.size, losses=loop.state.progress.losses, evaluations=tuple(loop.earlier()),
            estimate=estimate, **self.material.facts(self, number, loop),
        )  # fmt: skip

    def _estimated(self, number: int, loop: Run, *, always: bool) -> Estimate | None:
        """What all runs will take, in the first one; `minutes` decide here how many updates a new run has."""
        decide = self.options.minutes is not None and loop.state.progress.budget is None
        if not decide and (number or not (always or loop.steps - loop.state.progress.step >= _FEW)):
            return None
        self.times.begin(_ESTIMATING)
        costs = measure(loop, *self.material.reads())
        if decide:
            self._limit(number, loop, costs)
        return None if number else costs.estimate(loop, len(self.variants))

    def _limit(self, number: int, loop: Run, costs: Costs) -> None:
        """Gives a run its share of the time that is left, without what follows the updates."""
        assert self.options.minutes is not None
        runs, spent = len(self.variants) - number, self.times.total()
        again = (runs - 1) * self.times.seconds[_ESTIMATING] / (number + 1)  # each of the later runs is measured, too
        left = 60 * self.options.minutes - spent - again - costs.once
        left = self.group.broadcast(left / runs - costs.evaluation)
        steps = self.group.broadcast(costs.updates(loop, left))
        if steps < 1:
            least = math.ceil(10 * self.options.minutes + runs * (costs.cycle(loop) - left) / 6) / 10
            raise ArgumentError(
                f"minutes is {self.options.minutes:g}, expected time for at least one update of the weights",
                hint=f"minutes={least + 0.1:.1f} is about enough for one; training needs many",
            )
        loop.limit(steps, left)

    def versions(self) -> dict[str, Any]:
        """What decides the bits of a result besides what is trained: versions, device, processes."""
        return {
            "mlxbert": __version__, "mlx": metadata.version("mlx"), "dtype": dtype_name(self.dtype),
            "device": "gpu" if devices.on_gpu() else "cpu", "tf32": devices.on_gpu() and devices.tf32(),
            "blas": BLAS.name, "streams": len(training_workers()),
            "processes": self.group.size,
        }  # fmt: skip

    def events(self) -> Generator[Event, None, None]:
        """Does the work, once it is iterated."""
        with self.group.raise_together():
            manifest = {**self.versions(), **self.material.manifest(self)}
        if self.group.size > 1:
            # How many parts of a batch one process computes at a time is that of the first; BLAS only needs to be fast.
            self.group.check_same({name: value for name, value in manifest.items() if name not in ("streams", "blas")})
        return self._events(manifest)

    def _events(self, manifest: Mapping[str, Any]) -> Generator[Event, None, None]:
        first = self.group.rank == 0
        workspace = Workspace(self.target, manifest)
        with device_errors(), ExitStack() as held:
            with self.group.raise_together():
                if first:
                    held.enter_context(workspace.locked(overwrite=self.request.overwrite))
            call = replace(self, material=self.material.opened(self, workspace.folder))
            models = RunModels(call)
            for number in range(len(self.variants)):
                with self.group.raise_together():
                    finished = first and workspace.is_finished(number)
                    if finished:
                        self.times.add(EARLIER, workspace.result(number)["seconds"])
                if not self.group.broadcast(finished):
                    yield from (event for event in call._train(number, workspace, models) if first)
            if first:
                yield call._finished(workspace, manifest, models)

    def _train(self, number: int, workspace: Workspace, models: "RunModels") -> Iterator[Event]:
        """One of the runs; of several, one that diverges is the worst and does not end the others."""
        first = self.group.rank == 0
        self.times.begin(LOADING)
        devices.use(self.request.ref.device)  # another model may have been loaded since the call
        loop = Run(self.training(number, models), workspace.store(number) if first else None)
        if earlier := loop.state.progress.seconds:
            self.times.add(EARLIER, earlier)
        started = self._started(number, loop)
        self.times.begin("training")
        yield started
        diverged = False
        try:
            yield from loop.events()
        except DivergedError as problem:
            if len(self.variants) == 1:
                raise
            diverged = True
            _LOG.warning("run %d is abandoned: %s", number + 1, problem)
        if first:
            progress = loop.state.progress
            result = {
                "score": None if diverged else progress.best_score, "step": progress.best_step,
                "seconds": progress.seconds, "history": progress.history,
                "ended": progress.step, "planned": loop.steps, **self.variants[number],
            }  # fmt: skip
            workspace.finish(number, result, {} if diverged else loop.best())
        loop.restore()

    def _finished(self, workspace: Workspace, manifest: Mapping[str, Any], models: "RunModels") -> Finished:
        """Writes the folder of the best run."""
        results = [workspace.result(number) for number in range(len(self.variants))]
        scores = {number: result["score"] for number, result in enumerate(results) if result["score"] is not None}
        if not scores:
            raise DivergedError(f"all {len(results)} runs diverged", hint="smaller learning rates may help")
        objective, base = self.material.objective, self.material.base
        best = (min if objective.minimize else max)(scores, key=scores.__getitem__)
        self.times.begin("evaluating")
        model, adapters = models.of(best)
        install(model.network, workspace.weights(best))
        content = self.material.content(self, model, results)
        self.times.begin("saving")
        with workspace.model() as folder:
            facts = write_folder(folder, content, base, self.target, manifest, self.request.line, adapters)
            destination.check_target(self.target, base.folder, self.request.overwrite)  # hours have passed
            destination.move(folder, self.target)
        workspace.remove()
        self.times.begin("")
        names = {**self.variants[best], "seed": None}
        return Finished(
            run=best, output=str(self.target), metric=objective.metric, score=results[best]["score"],
            step=results[best]["step"], ended=results[best]["ended"], planned=results[best]["planned"],
            seconds=self.times.total(),
            phases=dict(self.times.seconds),
            runs=tuple(
                {**{name: result.get(name, self.options.seed) for name in names}, "score": result["score"]}
                for result in results
            ),
            opens=card.opened_by(content.model, embeds=content.embedder is not None, adapter=adapters is not None),
            **content.facts, **facts,
        )  # fmt: skip


class RunModels:
    """The models of the runs. One is in memory at a time; after its run it has other weights, but need not be loaded.

    Args:
        call: The call.
    """

    def __init__(self, call: TrainingCall) -> None:
        self._call = call
        self._last: tuple[int, Model, Adapters | None] | None = None

    def of(self, number: int) -> tuple[Model, Adapters | None]:
        """The model of a run, and the adapters that are trained instead of all weights, if any."""
        if self._last is None or self._last[0] != number:
            self._last = None
            self._last = number, *self._call.material.model(self._call.chosen(number))
        return self._last[1:]


def claim(request: TrainingRequest, group: ProcessGroup) -> Path:
    """The folder that a run may write, links resolved; refused before the model is downloaded."""
    if group.rank:
        return Path(request.output)
    if not request.overwrite:
        clean_up(request.output)
    return destination.check_target(request.output, local_folder(str(request.ref.source)), request.overwrite)


def usual_rate(width: int, options: TrainingOptions, factor: float) -> float:
    """The learning rate for a model of some width; those of models 768 and 1,024 wide are BERT's, times a factor."""
    rate = 1e-4 if width < 512 else 5e-5 if width < 1000 else 2e-5  # narrower ones need larger steps
    return rate * (factor * (1 if options.lora is None else _LORA_RATE))
