"""What a training run reports while it runs: frozen dataclasses, one per JSON line of the command line."""

import contextlib
import logging
from collections.abc import Callable, Generator, Mapping
from dataclasses import dataclass, field
from typing import Any, ClassVar

from mlxbert.errors import ArgumentError
from mlxbert.loading import load
from mlxbert.model import Model
from mlxbert.progress import notebook_bar
from mlxbert.results.brief import Brief
from mlxbert.results.json import Each, listed
from mlxbert.results.notebook import Shown
from mlxbert.training.data.data_report import DataReport
from mlxbert.training.loop.phase_times import Times
from mlxbert.training.scores.evaluation_summary import Evaluation, Summary
from mlxbert.weights.model_source import ModelRef

_LOG = logging.getLogger("mlxbert")


@dataclass(frozen=True, kw_only=True)
class Event(Shown):
    """Base of all events.

    Attributes:
        event: The name of the kind, as in JSON.
        run: Number of the run, from 0, where several seeds or values are tried.
    """

    event: ClassVar[str]
    run: int = 0

    def to_dict(self, each: Each[Any] = listed) -> dict[str, Any]:
        """The event as plain dicts and lists, its kind first; numbers that JSON does not have are `None`."""
        return {"event": self.event, **super().to_dict(each)}


@dataclass(frozen=True, kw_only=True)
class Started(Event):
    """A run begins, or resumes.

    Attributes:
        task: What is trained: `classify`, `multilabel`, …
        model: The model that training starts from.
        output: The folder that will hold the result.
        runs: How many runs there are in all.
        varied: The options in which this run differs from the others: seed, a value that is tried.
        examples: Training examples; of a long record each window is one.
        epochs: Passes over them.
        steps: Updates of the weights in all.
        first_step: Steps that an earlier process has done; 0 for a new run.
        parameters: Trained numbers.
        frozen: Numbers that stay as they are.
        new_head: Whether the head that is trained is new; otherwise the model had it, with these labels. `None` where
            vectors are trained, without a head.
        device: `cpu` or `gpu`, and the dtype of computation, such as `cpu, float32`.
        processes: How many processes share the work.
        report: What the data look like; in the first run only.
        estimate: Time and memory of all runs, in the first one only; `None` of a few updates.
        corpus: What the corpus of pre-training consists of, by name.
        losses: Of a run that resumes: steps done before, and the mean loss since the one before it.
        evaluations: Of a run that resumes: the evaluations before, of which the best is marked.
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
    """What a run will take, measured on a few steps.

    Attributes:
        seconds: Time of what is left: updates, evaluations, and what follows them.
        memory: Bytes at the peak, in the largest batch.
        available: Bytes that the device has.
    """

    seconds: float
    memory: int
    available: int | None


@dataclass(frozen=True, kw_only=True)
class Step(Event):
    """One update of the weights is done.

    Attributes:
        step: Updates so far, from 1.
        epoch: Passes over the data so far, with a fraction.
        loss: Mean loss of the step's examples.
        lr: The learning rate of the step.
        gradient_norm: Length of the gradient before clipping.
        tokens_per_second: Over the last steps, without padding.
        memory: Bytes at the peak so far, as MLX counts them.
        seconds_left: Until the end of this run.
        terms: The losses that `loss` consists of, by name; empty where it is a single one.
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
        step: Updates so far.
        epoch: Passes over the data so far.
        metrics: All metrics by name; the loss is `log_loss`, `mse` or, of `tag` and `answer`, `loss`.
        metric: The name of the one that chooses the best.
        best: Whether it is the best so far.
        seconds: What the evaluation took.
        filled: Texts whose blanks the model fills, in pre-training.
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
    """The state is on disk: the same command resumes here.

    Attributes:
        step: Updates so far.
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
        metric: The name of the metric that chose the best.
        score: Its value on the validation data.
        step: After how many steps it was reached.
        ended: After how many steps that run ended.
        planned: How many steps it would have taken, had `patience`, a perfect score or `minutes` not ended it.
        seconds: Time of everything, of earlier processes that of training.
        phases: The same by what was done.
        runs: The score of every run, with the options in which it differs: `{"seed": 0, "score": 0.93}`.
        evaluation: All metrics of the model on the validation data.
        summary: How good it is next to simple baselines.
        check: The largest difference of a logit from what transformers computes; `None` where it was not compared.
        opens: Which programs open the folder.
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
    summary: Summary | None = field(default=None)
    check: float | None = None
    opens: str = ""


class TrainingEvents(Generator[Event, None, None]):
    """What `finetune`, `pretrain` and `distill` return: training that has not begun, as an iterator of events.

    Iterating over it does the work; so does `run`, which gives the model.
    """

    def __init__(
        self, events: Generator[Event, None, None], what: str, result: ModelRef, times: Times, *, dry: bool = False
    ) -> None:
        self._events, self._what, self._result, self._times, self._dry = events, what, result, times, dry
        self._how = "iterate over it" if dry else "call .run(), or iterate over it"
        self._begun = False

    def run(self, on_event: Callable[[Event], object] = lambda event: None) -> Model:
        """Trains to the end; a notebook shows a bar.

        Args:
            on_event: Called with each event. An exception that it raises ends the training, which can be resumed.

        Returns:
            The trained model, loaded from its folder on the device of the training.

        Raises:
            MlxbertError: Something cannot be used, or the call was a dry run, which gives no model.
        """
        if self._dry:
            raise ArgumentError(
                "run() gives no model: it is a dry run", hint="iterate over it: the first event has the report"
            )
        if self._begun:
            hint = "call finetune again to resume, or mlxbert.load to open a finished model"
            raise ArgumentError("run() was called before, or the events were iterated over", hint=hint)
        with contextlib.closing(self), notebook_bar("steps") as bar:
            if bar is not None:
                told = self._times.on_phase
                self._times.on_phase = lambda name: bar.set_description(name) or told(name)
            for event in self:
                if bar is not None:
                    _draw(bar, event)
                on_event(event)
        return load(self._result)

    def send(self, value: None, /) -> Event:
        """The next event."""
        self._begun = True
        return self._events.send(value)

    def throw(self, *problem: Any) -> Event:
        """Ends the training with an exception."""
        self._begun = True
        return self._events.throw(*problem)

    def __repr__(self) -> str:
        return f"<{self._what} into {self._result.source}{'' if self._begun else f', not begun: {self._how}'}>"

    def __del__(self) -> None:
        if not self._begun:
            _LOG.warning("%s into %s was never begun: %s", self._what, self._result.source, self._how)


def _draw(bar: Any, event: Event) -> None:
    """Advances the bar of a notebook, and shows the last loss and the last score."""
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
