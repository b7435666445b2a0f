"""The events that a training run reports: frozen dataclasses. The command line prints each event as one JSON line."""

import contextlib
import logging
from collections.abc import Callable, Generator, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, ClassVar

from mlxbert.errors import ArgumentError
from mlxbert.progress import notebook_bar
from mlxbert.results.json import Each, listed
from mlxbert.results.result import Shown
from mlxbert.results.short_repr import Brief
from mlxbert.train.data.data_report import DataReport
from mlxbert.train.loop.phase_times import Times
from mlxbert.train.scores.evaluation_summary import Evaluation, Summary
from mlxbert.weights.model_source import ModelRef

if TYPE_CHECKING:
    from mlxbert.model import Model

_LOG = logging.getLogger("mlxbert")


@dataclass(frozen=True, kw_only=True)
class Event(Shown):
    """Base class of all events.

    Attributes:
        event: The name of the kind of event, as in JSON.
        run: The number of the run, from 0. It is 0 if there is only one run.
    """

    event: ClassVar[str]
    run: int = 0

    def to_dict(self, each: Each[Any] = listed) -> dict[str, Any]:
        """Returns the event as plain dicts and lists, its kind first. Numbers that JSON cannot hold become `None`."""
        return {"event": self.event, **super().to_dict(each)}


@dataclass(frozen=True, kw_only=True)
class Started(Event):
    """A run begins, or resumes.

    Attributes:
        task: The task: `classify`, `multilabel`, …
        model: The model that training starts from.
        output: The folder that will hold the result.
        runs: The number of runs.
        varied: The options in which the runs differ, such as the seed, with the values of this run.
        examples: The number of training examples; each window of a long record is one example.
        epochs: The number of passes over the examples.
        steps: The total number of updates.
        first_step: The number of updates that earlier processes have done; 0 for a new run.
        parameters: The number of trained parameters.
        frozen: The number of parameters that are not trained.
        new_head: Whether the head is new; false if the model's own head, which has the same labels, is trained. `None`
            if vectors are trained, which need no head.
        device: `cpu` or `gpu`, and the dtype of computation, such as `cpu, float32`.
        processes: The number of processes that share the work.
        report: The report on the data; `None` except in the first run.
        estimate: The estimated time and memory of all runs; `None` in later runs, or if there are only a few updates.
        corpus: The report on the pre-training corpus, keyed by name; `None` without a corpus.
        losses: For a resumed run, pairs of a step and the mean loss since the step of the previous pair.
        evaluations: For a resumed run, its earlier evaluations; the best one is marked.
    """

    event = "started"
    task: str
    model: str
    output: str
    runs: int
    varied: Mapping[str, Any]
    examples: int
    epochs: float
    steps: int
    first_step: int
    parameters: int
    frozen: int
    new_head: bool | None
    device: str
    processes: int = 1
    report: DataReport | None = None
    estimate: "Estimate | None" = None
    corpus: Mapping[str, Any] | None = None
    losses: tuple[tuple[int, float], ...] = ()
    evaluations: "tuple[Evaluated, ...]" = ()


@dataclass(frozen=True, kw_only=True)
class Estimate(Brief):
    """The estimated time and memory of the training, measured on a few steps."""

    seconds: float  # the remaining time in seconds for updates, evaluations, and everything after the updates
    memory: int  # the peak memory in bytes, which the largest batch needs
    available: int | None  # the memory of the device in bytes
    free: int | None  # the part of this memory that other programs do not hold


@dataclass(frozen=True, kw_only=True)
class Step(Event):
    """One update of the weights is done.

    Attributes:
        step: The number of updates so far, including this one.
        epoch: The number of passes over the data so far, such as 1.5.
        loss: The mean loss of the examples of this step.
        lr: The learning rate of the step.
        gradient_norm: The norm of the gradient before clipping.
        tokens_per_second: The speed over the last steps, not counting padding.
        memory: The peak memory so far in bytes, as reported by MLX.
        seconds_left: The estimated time until the end of this run.
        terms: The terms of `loss`, keyed by name; empty if there is only one.
    """

    event = "step"
    step: int
    epoch: float
    loss: float
    lr: float
    gradient_norm: float
    tokens_per_second: float
    memory: int
    seconds_left: float
    terms: Mapping[str, float] = field(default_factory=dict)


@dataclass(frozen=True, kw_only=True)
class Evaluated(Event):
    """The validation data were evaluated.

    Attributes:
        step: The number of updates so far.
        epoch: The number of passes over the data so far.
        metrics: All metrics, keyed by name. The loss is called `log_loss`, `mse` or, for `tag` and `answer`, `loss`.
        metric: The name of the metric that selects the best checkpoint.
        best: Whether this evaluation is the best so far.
        seconds: The duration of the evaluation.
        filled: In pre-training, sample texts whose blanks the model has filled.
    """

    event = "evaluated"
    step: int
    epoch: float
    metrics: Mapping[str, float]
    metric: str
    best: bool
    seconds: float
    filled: tuple[str, ...] = ()


@dataclass(frozen=True, kw_only=True)
class Saved(Event):
    """The state was saved. The same command resumes from here.

    Attributes:
        step: The number of updates so far.
        path: The folder of the unfinished run.
    """

    event = "saved"
    step: int
    path: str


@dataclass(frozen=True, kw_only=True)
class Finished(Event):
    """Everything is done, and the folder is in place.

    Attributes:
        output: The folder of the model.
        metric: The name of the metric that selected the best run and checkpoint.
        score: The value of `metric` on the validation data.
        step: The step at which the best run reached this score.
        ended: The step at which the best run ended.
        planned: The number of steps that were planned for the best run. `patience` or `minutes` may have ended the run
            earlier.
        seconds: The total time in seconds, including training by earlier processes.
        phases: The time of each phase in seconds, keyed by name.
        runs: The score and the varied options of every run: `{"seed": 0, "score": 0.93}`.
        evaluation: All metrics of the model on the validation data.
        summary: The comparison of the score with simple baselines.
        check: The largest difference between the logits of mlxbert and transformers; `None` if they were not compared.
        opens: The programs that can open the folder.
    """

    event = "finished"
    output: str
    metric: str
    score: float
    step: int
    ended: int
    planned: int
    seconds: float
    phases: Mapping[str, float] = field(default_factory=dict)
    runs: tuple[Mapping[str, Any], ...] = ()
    evaluation: Evaluation | None = None
    summary: Summary | None = None
    check: float | None = None
    opens: str = ""


class TrainingEvents(Generator[Event, None, None]):
    """The result of `finetune`, `pretrain` and `distill`: an iterator over training events.

    Iterating over the events trains the model. The method `run` does so, and returns the model.
    """

    def __init__(
        self, events: Generator[Event, None, None], what: str, result: ModelRef, times: Times, *, dry: bool = False
    ) -> None:
        self._events, self._what, self._result, self._times, self._dry = events, what, result, times, dry
        self._how = "iterate over the run" if dry else "call .run(), or iterate over the run"
        self._begun = False

    def run(self, on_event: Callable[[Event], object] = lambda event: None) -> "Model":
        """Trains to the end. In a notebook, a progress bar is shown.

        Args:
            on_event: Called with each event. An exception that it raises ends the training, which can be resumed.

        Returns:
            The trained model, loaded from its folder on the device of the training.

        Raises:
            MlxbertError: Training failed; or no model can be returned, because the call is a dry run or has already
                been run.
        """
        from mlxbert.loading import load  # not at the top: events alone, as in the helps, need no model

        if self._dry:
            raise ArgumentError(
                "run() cannot return a model, because this is a dry run",
                hint="iterate over the run instead; the first event has the report",
            )
        if self._begun:
            hint = "call the function again to resume, or mlxbert.load to open a finished model"
            raise ArgumentError("run() was already called, or the events were already read", hint=hint)
        with contextlib.closing(self), notebook_bar("steps") as bar:
            if bar is not None:
                on_phase = self._times.on_phase
                self._times.on_phase = lambda name: bar.set_description(name) or on_phase(name)
            for event in self:
                if bar is not None:
                    _draw(bar, event)
                on_event(event)
        return load(self._result)

    def send(self, value: None, /) -> Event:
        """Returns the next event."""
        self._begun = True
        return self._events.send(value)

    def throw(self, *problem: Any) -> Event:
        """Ends the training with an exception."""
        self._begun = True
        return self._events.throw(*problem)

    def __repr__(self) -> str:
        return f"<{self._what} into {self._result.source}{'' if self._begun else f', not started: {self._how}'}>"

    def __del__(self) -> None:
        if not self._begun:
            _LOG.warning("%s into %s was never started (%s)", self._what, self._result.source, self._how)


def _draw(bar: Any, event: Event) -> None:
    """Advances the progress bar of a notebook, and shows the latest loss and score."""
    match event:
        case Started():
            bar.reset(event.steps)
            bar.update(event.first_step)
            bar.shown = {}
        case Step():
            bar.shown["loss"] = f"{event.loss:.3g}"
            bar.set_postfix(bar.shown, refresh=False)
            bar.update()
        case Evaluated():
            bar.shown[event.metric] = f"{event.metrics[event.metric]:.3f}"
            bar.set_postfix(bar.shown)
