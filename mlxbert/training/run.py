"""The front end of `finetune` and `pretrain`: from a checked call to a model folder, as a stream of events.

The work is done in `DIR.partial/`, see `mlxbert.training.workspace`; `DIR` appears when everything is done. The same
call resumes; another one is refused.
"""

import json
import logging
import math
import sys
from abc import ABC, abstractmethod
from collections.abc import Callable, Generator, Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field, replace
from importlib import metadata
from pathlib import Path
from typing import Any, Self

from mlxbert.errors import ArgumentError, DivergedError
from mlxbert.folders import card, destination
from mlxbert.folders.save import write_trained
from mlxbert.machine import device as devices
from mlxbert.machine.cores import training_workers
from mlxbert.machine.device import BLAS, dtype_name, mx
from mlxbert.machine.distributed import ProcessGroup
from mlxbert.machine.faults import device_errors
from mlxbert.model import Model
from mlxbert.nn.embedder import Embedder
from mlxbert.nn.heads import has_own
from mlxbert.training.adapters import Adapters
from mlxbert.training.base import BaseModel
from mlxbert.training.estimate import Costs, measure
from mlxbert.training.events import Estimate, Event, Finished, Started
from mlxbert.training.gradients import install
from mlxbert.training.loop import Run, Training
from mlxbert.training.objectives.objective import LoopObjective
from mlxbert.training.options import TrainingOptions
from mlxbert.training.times import EARLIER, LOADING, Times
from mlxbert.training.workspace import Workspace, clean_up
from mlxbert.version import __version__

_LOG = logging.getLogger("mlxbert")
_FEW = 50  # updates: measuring some takes as long as a few of them
_ESTIMATING = "estimating the time"
_LORA_RATE = 10  # adapters begin at 0 and are small: they need larger steps than the weights next to them


@dataclass(frozen=True, kw_only=True)
class Result:
    """What is written: a trained model and what is known about it.

    Attributes:
        model: The model.
        record: What `training.json` says besides the manifest.
        card: The lines of the model card.
        keys: Keys of `config.json` besides those of the network; `None` removes one.
        embedder: How the model makes vectors, where it was trained for them.
        facts: What `Finished` says besides the score, by name.
        complete: Completes the folder, which can be loaded by then; what it returns belongs to `record` and `facts`.
    """

    model: Model
    record: Mapping[str, Any]
    card: Sequence[str]
    keys: Mapping[str, object] = field(default_factory=dict)
    embedder: Embedder | None = None
    facts: Mapping[str, Any] = field(default_factory=dict)
    complete: Callable[[Path], Mapping[str, Any]]


@dataclass(frozen=True, kw_only=True)
class TrainingRun(ABC):
    """A checked call of `finetune` or `pretrain`, which is one run of the loop or several.

    Attributes:
        base: The model that training starts from.
        target: The folder to write.
        task: What is trained, for reports.
        objective: What the loop trains; its metric chooses the best run.
        options: How it is trained.
        variants: The options in which the runs differ.
        dtype: The dtype of computation.
        overwrite: Whether existing results and unfinished work are replaced.
        group: The processes.
        line: The command line of this call, where it is known.
        times: Where time goes.
    """

    base: BaseModel
    target: Path
    task: str
    objective: LoopObjective[Any]
    options: TrainingOptions
    variants: tuple[Mapping[str, Any], ...] = ({},)
    dtype: mx.Dtype
    overwrite: bool
    group: ProcessGroup
    line: str | None = None
    times: Times = field(default_factory=Times)

    @abstractmethod
    def manifest(self) -> dict[str, Any]:
        """What decides every bit of the result besides `versions`: only with the same manifest does a run resume."""

    def opened(self, folder: Path) -> Self:
        """The run with what is kept in the folder of unfinished work."""
        return self

    @abstractmethod
    def model(self, number: int) -> tuple[Model, Adapters | None]:
        """The model of a run before training, and the adapters that are trained instead of all weights, if any."""

    @abstractmethod
    def training(self, number: int) -> Training:
        """What the loop needs for a run."""

    @abstractmethod
    def reads(self) -> tuple[int, int]:
        """The tokens that an evaluation reads, and those that are read after training."""

    @abstractmethod
    def facts(self, number: int, loop: Run) -> Mapping[str, Any]:
        """What `Started` says of a run that depends on the kind of training, by name."""

    @abstractmethod
    def result(self, model: Model, results: Sequence[Mapping[str, Any]]) -> Result:
        """What is written.

        Args:
            model: The model with the weights of the best run.
            results: Of each run `score`, `step`, `seconds`, `history`, the step after which it `ended`, how many were
                `planned`, and the options in which it differs.
        """

    def chosen(self, number: int) -> TrainingOptions:
        """The options of a run."""
        return replace(self.options, **self.variants[number])

    def _training(self, number: int, model: Model, adapters: Adapters | None, **facts: Any) -> Training:
        """What every loop needs; `facts` are the other attributes of `Training`."""
        return Training(
            network=model.network, options=self.chosen(number), dtype=self.dtype, group=self.group, run=number,
            times=self.times,
            trained=None if adapters is None else adapters.trained,
            streams=self.group.broadcast(max(len(training_workers()), 1)), **facts,
        )  # fmt: skip

    def started(self, number: int, loop: Run, *, always: bool = False) -> Started:
        """The first event of a run; `always` with an estimate."""
        estimate = self._estimated(number, loop, always=always)
        variants, variant = self.variants, self.variants[number]
        return Started(
            run=number, task=self.task, model=self.base.name, output=str(self.target), runs=len(variants),
            varied={name: value for name, value in variant.items() if any(one[name] != value for one in variants)},
            steps=loop.steps, first_step=loop.state.progress.step, parameters=loop.parameters - loop.frozen,
            frozen=loop.frozen, device=f"{'gpu' if devices.on_gpu() else 'cpu'}, {dtype_name(self.dtype)}",
            processes=self.group.size, losses=loop.state.progress.losses, evaluations=tuple(loop.earlier()),
            estimate=estimate, **self.facts(number, loop),
        )  # fmt: skip

    def _estimated(self, number: int, loop: Run, *, always: bool) -> Estimate | None:
        """What all runs will take, in the first one; `minutes` decide here how many updates a new run has."""
        decide = self.options.minutes is not None and loop.state.progress.budget is None
        if not decide and (number or not (always or loop.steps - loop.state.progress.step >= _FEW)):
            return None
        self.times.begin(_ESTIMATING)
        costs = measure(loop, *self.reads())
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
            said = f"minutes is {self.options.minutes:g}, expected time for at least one update of the weights"
            raise ArgumentError(said, hint=f"minutes={least + 0.1:.1f} is about enough for one; training needs many")
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
            manifest = {**self.versions(), **self.manifest()}
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
                    held.enter_context(workspace.locked(overwrite=self.overwrite))
            run = self.opened(workspace.folder)
            for number in range(len(self.variants)):
                with self.group.raise_together():
                    finished = first and workspace.is_finished(number)
                    if finished:
                        self.times.add(EARLIER, workspace.result(number)["seconds"])
                if not self.group.broadcast(finished):
                    yield from (event for event in run._train(number, workspace) if first)
            if first:
                yield run._finished(workspace, manifest)

    def _train(self, number: int, workspace: Workspace) -> Iterator[Event]:
        """One of the runs; of several, one that diverges is the worst and does not end the others."""
        first = self.group.rank == 0
        self.times.begin(LOADING)
        loop = Run(self.training(number), workspace.store(number) if first else None)
        if earlier := loop.state.progress.seconds:
            self.times.add(EARLIER, earlier)
        started = self.started(number, loop)
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

    def _finished(self, workspace: Workspace, manifest: Mapping[str, Any]) -> Finished:
        """Writes the folder of the best run."""
        results = [workspace.result(number) for number in range(len(self.variants))]
        scores = {number: result["score"] for number, result in enumerate(results) if result["score"] is not None}
        if not scores:
            raise DivergedError(f"all {len(results)} runs diverged", hint="smaller learning rates may help")
        chosen = (min if self.objective.minimize else max)(scores, key=scores.__getitem__)
        self.times.begin("evaluating")
        model, adapters = self.model(chosen)
        install(model.network, workspace.weights(chosen))
        found = self.result(model, results)
        self.times.begin("saving")

        more: Mapping[str, Any] = {}

        def describe(folder: Path) -> Mapping[str, str]:
            nonlocal more
            more = found.complete(folder)
            lines = [*found.card, *([] if adapters is None else card.adapter_note(self.base.name))]
            if self.line is not None:
                lines += ["The command that repeats it:", "", "```sh", self.line, "```", ""]
            own = has_own(found.model.network.heads, found.model.network.encoder.config.labels)
            library = card.library_of(own=own, embeds=found.embedder is not None) if adapters is None else "peft"
            text = card.trained(self.base.name, self.target.name, "\n".join(lines), library)
            record = {**manifest, "python": sys.version.split()[0], **found.record, **more}
            return {"training.json": json.dumps(record, indent=1, ensure_ascii=False) + "\n", "README.md": text}

        with workspace.model() as folder:
            adapter = None if adapters is None else adapters.writer(found.model, self.base)
            write_trained(found.model, folder, describe, found.keys, found.embedder, adapter)
            destination.check_target(self.target, self.base.folder, self.overwrite)  # hours have passed
            destination.move(folder, self.target)
        workspace.remove()
        self.times.begin("")
        names = {**self.variants[chosen], "seed": None}
        return Finished(
            run=chosen, output=str(self.target), metric=self.objective.metric, score=results[chosen]["score"],
            step=results[chosen]["step"], ended=results[chosen]["ended"], planned=results[chosen]["planned"],
            seconds=self.times.total(),
            phases=dict(self.times.seconds),
            runs=tuple(
                {**{name: result.get(name, self.options.seed) for name in names}, "score": result["score"]}
                for result in results
            ),
            opens=card.opened_by(found.model, embeds=found.embedder is not None, adapter=adapters is not None),
            **found.facts, **more,
        )  # fmt: skip


def claim(output: str | Path, base: BaseModel, overwrite: bool, group: ProcessGroup) -> Path:
    """The folder that a run may write, links resolved."""
    if group.rank:
        return Path(output)
    if not overwrite:
        clean_up(output)
    if base.files.adapter is not None:
        destination.check_target(output, base.files.adapter, overwrite)
    return destination.check_target(output, base.folder, overwrite)


def usual_rate(width: int, options: TrainingOptions, factor: float) -> float:
    """The learning rate for a model of some width; those of models 768 and 1,024 wide are BERT's, times a factor."""
    rate = 1e-4 if width < 512 else 5e-5 if width < 1000 else 2e-5  # narrower ones need larger steps
    return rate * (factor * (1 if options.lora is None else _LORA_RATE))


def metrics_table(metrics: Mapping[str, float]) -> Iterable[str]:
    """The lines of a table of metrics in Markdown."""
    return ["| metric | value |", "|---|---|", *(f"| {name} | {value:.4f} |" for name, value in metrics.items()), ""]
