"""Training calls: options → model → data → plan → run, as a stream of events.

`finetune`, `pretrain` and `distill` are front ends: within `claimed`, each finds the model, opens the data and makes a
`TrainingCall`, which begins the training. Each kind of data is a subclass of `Material`.

The work is done in `DIR.partial/` (see `mlxbert.train.training_folders`); `DIR` appears when everything is done.
Repeating the same call resumes the work; a different call is an error.
"""

import logging
import math
from abc import ABC, abstractmethod
from collections.abc import Generator, Iterator, Mapping, Sequence, Set as AbstractSet
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, replace
from importlib import metadata
from pathlib import Path
from typing import Any, Self

from mlxbert.errors import ArgumentError, DivergedError
from mlxbert.export import card
from mlxbert.folders import atomic_folder
from mlxbert.machine import device as devices
from mlxbert.machine.device import BLAS, dtype_name, mx
from mlxbert.machine.device_errors import device_errors
from mlxbert.model import Model
from mlxbert.nn.ops import backend
from mlxbert.train.base_model import BaseModel
from mlxbert.train.loop.data_order import Training
from mlxbert.train.loop.distributed import ProcessGroup, join
from mlxbert.train.loop.events import Estimate, Event, Finished, Started, TrainingEvents
from mlxbert.train.loop.gradients import install
from mlxbert.train.loop.phase_times import EARLIER, LOADING, Times
from mlxbert.train.loop.run_estimate import Costs, measure
from mlxbert.train.loop.training_run import Run
from mlxbert.train.lora_adapters import Adapters
from mlxbert.train.objectives.objective import LoopObjective
from mlxbert.train.options.loop_options import TrainingOptions
from mlxbert.train.training_folders import FolderContent, Workspace, clean_up, write_folder
from mlxbert.version import __version__
from mlxbert.weights.model_source import ModelRef, local_folder

_LOG = logging.getLogger("mlxbert")
_MIN_STEPS = 50  # a run with fewer updates gets no estimate, because measuring takes several updates
_ESTIMATING = "estimating the time"
_STATIC_RATE = 3e-3
_LORA_RATE = 10  # factor for adapters: they start at 0 and are small, so they need larger steps than full weights


class Material(ABC):
    """Training data of one kind, with the objective that learns from them."""

    base: BaseModel  # the model that training starts from
    # The objective that the loop optimizes. Its metric selects the best run.
    objective: LoopObjective[Any]

    @abstractmethod
    def usual(self, options: TrainingOptions) -> Mapping[str, Any]:
        """Returns defaults that suit the model and the data, for options that the caller did not set."""

    @abstractmethod
    def check(self, options: TrainingOptions) -> None:
        """Raises an error if a run with these options would fail after hours of work."""

    @abstractmethod
    def manifest(self, call: "TrainingCall") -> dict[str, Any]:
        """Returns everything that determines the result, except what `versions` returns.

        A run resumes only with an equal manifest.
        """

    def opened(self, call: "TrainingCall", folder: Path) -> Self:
        """Returns the material with its examples, which may be stored in `folder`, the folder of unfinished work."""
        return self

    @abstractmethod
    def model(self, options: TrainingOptions) -> tuple[Model, Adapters | None]:
        """Returns the model of a run before training, with its adapters (`None` if all weights are trained)."""

    @abstractmethod
    def training(self, call: "TrainingCall", options: TrainingOptions, model: Model) -> Mapping[str, Any]:
        """Returns the attributes of `Training` that depend on the kind of data, keyed by name."""

    @abstractmethod
    def reads(self) -> tuple[int, int]:
        """Returns how many tokens each evaluation processes, and how many tokens the final evaluation processes."""

    @abstractmethod
    def facts(self, call: "TrainingCall", number: int, loop: Run) -> Mapping[str, Any]:
        """Returns the attributes of `Started` that depend on the kind of data, keyed by name."""

    @abstractmethod
    def content(self, call: "TrainingCall", model: Model, results: Sequence[Mapping[str, Any]]) -> FolderContent:
        """Returns the content of the folder that the call writes.

        Args:
            model: The model with the weights of the best run.
            results: The result of each run: its `score`, `step`, `seconds` and `history`; the step at which
                it `ended`; the number of `planned` steps; and the options in which it differs from the
                other runs.
        """


@contextmanager
def claimed(
    output: str | Path, ref: ModelRef, options: TrainingOptions, *, overwrite: bool
) -> Iterator[tuple[Path, ProcessGroup]]:
    """Joins the processes of the run, and checks the output folder before the model is downloaded.

    An error of one process in the block, which finds the model and the data, is raised in all of them.

    Yields:
        The path of the output with links resolved, and the processes.
    """
    group, target = join(), Path(output)
    with group.raise_together():
        devices.use(ref.device, fast_float32=options.fast_float32)
        if not group.rank:
            if not overwrite:
                clean_up(output)
            target = atomic_folder.check_target(output, local_folder(str(ref.source)), overwrite)
        yield target, group


def check_base(base: BaseModel, target: Path, options: TrainingOptions, group: ProcessGroup) -> None:
    """Raises an error if the output would be in a folder of the model; warns if training does not fit into memory."""
    for folder in (base.files.adapter, base.folder):
        if folder is not None and not group.rank:
            atomic_folder.check_location(target, folder)
    base.warn_unless_it_fits(options)


def completed(options: TrainingOptions, named: AbstractSet[str], material: Material) -> TrainingOptions:
    """Returns the options with defaults that suit the model and the data, for all that the caller did not name."""
    defaults = material.usual(options)
    return replace(options, **{name: value for name, value in defaults.items() if name not in named})


@dataclass(frozen=True, kw_only=True)
class TrainingCall:
    """A training call whose arguments have been checked. It consists of one or several runs of the loop."""

    task: str  # its name, for reports
    what: str  # the activity, such as `fine-tuning`
    target: Path  # the folder to write
    ref: ModelRef  # the base model and the device
    material: Material
    options: TrainingOptions  # with defaults that suit the model and the data, see `completed`
    variants: tuple[Mapping[str, Any], ...] = ({},)  # for each run, the options in which it differs from the others
    overwrite: bool
    dry_run: bool = False
    line: str | None = None  # the command line of this call, if it is known
    times: Times
    group: ProcessGroup

    def begin(self) -> TrainingEvents:
        with self.group.raise_together():
            for number in range(len(self.variants)):  # checked now, before hours of work
                self.material.check(self.chosen(number))
            devices.choose_dtype(self.ref.dtype, training=True)
        alone = replace(self, group=ProcessGroup())
        events = alone.estimated(first=not self.group.rank) if self.dry_run else self.events()
        self.times.begin("")
        result = ModelRef(self.target, offline=self.ref.offline, device=self.ref.device)
        name = f"{self.what} of {self.material.base.name}"
        return TrainingEvents(events, name, result, self.times, dry=self.dry_run)

    @property
    def dtype(self) -> mx.Dtype:
        return devices.choose_dtype(self.ref.dtype, training=True)

    def chosen(self, number: int) -> TrainingOptions:
        return replace(self.options, **self.variants[number])

    def training(self, number: int, models: "RunModels") -> Training:
        options, group = self.chosen(number), self.group
        model, adapters = models.of(number)
        return Training(
            network=model.network, options=options, dtype=self.dtype, group=group, run=number, times=self.times,
            trained=None if adapters is None else adapters.trained,
            **self.material.training(self, options, model),
            streams=group.broadcast(max(backend().workers(), 1)),
        )  # fmt: skip

    def estimated(self, *, first: bool) -> Generator[Event, None, None]:
        """Yields the only event of a dry run. Its estimate is measured by the first process."""
        if first:
            yield self._started(0, Run(self.training(0, RunModels(self)), None), always=True)

    def _started(self, number: int, loop: Run, *, always: bool = False) -> Started:
        """Makes the first event of a run. If `always` is true, even a run of few updates has an estimate."""
        estimate = self._estimated(number, loop, always=always)
        variants, variant = self.variants, self.variants[number]
        return Started(
            run=number, task=self.task, model=self.material.base.name, output=str(self.target),
            runs=len(variants),
            varied={name: value for name, value in variant.items() if any(other[name] != value for other in variants)},
            steps=loop.steps, first_step=loop.state.progress.step,
            parameters=loop.trained.count - loop.trained.frozen_count, frozen=loop.trained.frozen_count,
            device=f"{'gpu' if devices.on_gpu() else 'cpu'}, {dtype_name(self.dtype)}",
            processes=self.group.size, losses=loop.state.progress.losses, evaluations=tuple(loop.earlier()),
            estimate=estimate, **self.material.facts(self, number, loop),
        )  # fmt: skip

    def _estimated(self, number: int, loop: Run, *, always: bool) -> Estimate | None:
        """In the first run, returns the estimated time and memory of all runs; in later runs, `None`.

        A run of few updates has no estimate, unless `always` is true or `minutes` limits it. With the option `minutes`,
        this method also limits the number of updates of a new run.
        """
        decide = self.options.minutes is not None and loop.state.progress.budget is None
        if not decide and (number or not (always or loop.steps - loop.state.progress.step >= _MIN_STEPS)):
            return None
        self.times.begin(_ESTIMATING)
        costs = measure(loop, *self.material.reads())
        if decide:
            self._limit(number, loop, costs)
        return None if number else costs.estimate(loop, len(self.variants))

    def _limit(self, number: int, loop: Run, costs: Costs) -> None:
        """Limits a run to its share of the remaining time.

        The time for the last evaluation, and for work that is done only once, is deducted first.
        """
        assert self.options.minutes is not None
        runs, spent = len(self.variants) - number, self.times.total()
        measuring = (runs - 1) * self.times.seconds[_ESTIMATING] / (number + 1)  # the later runs are measured, too
        seconds = 60 * self.options.minutes - spent - measuring - costs.once
        seconds = self.group.broadcast(seconds / runs - costs.evaluation)
        steps = self.group.broadcast(costs.updates(loop, seconds))
        if steps < 1:
            minimum = math.ceil(10 * self.options.minutes + runs * (costs.cycle(loop) - seconds) / 6) / 10
            raise ArgumentError(
                f"`minutes` is {self.options.minutes:g}, expected time for at least one update of the weights",
                hint=f"use more than `minutes={minimum + 0.1:.1f}`, which is about enough for one update",
            )
        loop.limit(steps, seconds)

    def versions(self) -> dict[str, Any]:
        """Returns the versions, the device and the processes, on which the bits of a result depend."""
        return {
            "mlxbert": __version__, "mlx": metadata.version("mlx"), "dtype": dtype_name(self.dtype),
            "device": "gpu" if devices.on_gpu() else "cpu", "tf32": devices.on_gpu() and devices.tf32(),
            "blas": BLAS.name, "streams": backend().workers(),
            "processes": self.group.size,
        }  # fmt: skip

    def events(self) -> Generator[Event, None, None]:
        with self.group.raise_together():
            manifest = {**self.versions(), **self.material.manifest(self)}
        if self.group.size > 1:
            # All processes use the number of streams of the first one; the BLAS library need not be the same.
            self.group.check_same({name: value for name, value in manifest.items() if name not in ("streams", "blas")})
        return self._events(manifest)

    def _events(self, manifest: Mapping[str, Any]) -> Generator[Event, None, None]:
        first = self.group.rank == 0
        workspace = Workspace(self.target, manifest)
        with device_errors(), ExitStack() as held:
            with self.group.raise_together():
                if first:
                    held.enter_context(workspace.locked(overwrite=self.overwrite))
            call = replace(self, material=self.material.opened(self, workspace.folder))
            models = RunModels(call)
            for number in range(len(self.variants)):
                with self.group.raise_together():
                    finished = first and workspace.is_finished(number)
                    if finished:
                        self.times.add(EARLIER, workspace.result(number)["seconds"])
                if not self.group.broadcast(finished):
                    yield from (event for event in call._train(number, workspace, models) if first)
            with self.group.raise_together():  # no process loads the folder before it is complete
                ended = call._finished(workspace, manifest, models) if first else None
            if ended is not None:
                yield ended

    def _train(self, number: int, workspace: Workspace, models: "RunModels") -> Iterator[Event]:
        """Trains one of the runs. Among several runs, a diverging run counts as the worst; the others continue."""
        first = self.group.rank == 0
        self.times.begin(LOADING)
        devices.use(self.ref.device)  # another model may have been loaded since the call
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
        results = [workspace.result(number) for number in range(len(self.variants))]
        objective, base = self.material.objective, self.material.base
        qualities = {
            number: objective.quality(entry)
            for number, result in enumerate(results) if result["score"] is not None
            for entry in result["history"] if entry["step"] == result["step"]
        }  # fmt: skip
        if not qualities:
            raise DivergedError(f"all {len(results)} runs diverged", hint="use smaller learning rates")
        best = max(qualities, key=qualities.__getitem__)
        self.times.begin("evaluating")
        model, adapters = models.of(best)
        install(model.network, workspace.weights(best))
        content = self.material.content(self, model, results)
        self.times.begin("saving")
        with workspace.model() as folder:
            facts = write_folder(folder, content, base, self.target, manifest, self.line, adapters)
            atomic_folder.check_target(self.target, base.folder, self.overwrite)  # checked again, hours later
            atomic_folder.move(folder, self.target)
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
    """Provides the model of each run. Only one model is in memory at a time.

    If the last run is requested again, its model is reused, with the trained weights.
    """

    def __init__(self, call: TrainingCall) -> None:
        self._call = call
        self._last: tuple[int, Model, Adapters | None] | None = None

    def of(self, number: int) -> tuple[Model, Adapters | None]:
        if self._last is None or self._last[0] != number:
            self._last = None
            self._last = number, *self._call.material.model(self._call.chosen(number))
        return self._last[1:]


def usual_rate(width: int, options: TrainingOptions, factor: float, *, static: bool = False) -> float:
    """Returns `factor` times the default learning rate for a hidden size.

    The sizes 768 and 1,024 have the learning rates of BERT; smaller models and adapters have higher ones. A
    static model has by far the highest, because each token's vector is in few batches.
    """
    if static:
        return _STATIC_RATE * factor
    rate = 1e-4 if width < 512 else 5e-5 if width < 1000 else 2e-5  # narrower models need larger steps
    return rate * (factor * (1 if options.lora is None else _LORA_RATE))
