"""Keeps the state of a run in progress, so that it can be drawn."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from mlxbert.cli.views.training.curve import Curve
from mlxbert.training.loop.events import Evaluated, Event, Saved, Started, Step


@dataclass(frozen=True)
class Done:
    """A finished run: the options in which it differs from other runs, and its best evaluation."""

    varied: Mapping[str, Any]
    best: Evaluated | None


class DrawnRuns:
    """The runs so far: the full state of the current run, and the best evaluation of each earlier run."""

    def __init__(self) -> None:
        self.done: list[Done] = []
        self.started: Started | None = None
        self.phase = ""  # the name of the current phase, unless it is updating the weights
        self._begin()

    def _begin(self) -> None:
        self.loss = Curve(self.started.steps if self.started else 1)
        self.step: Step | None = None
        self.saved: Saved | None = None
        self.evaluations: list[Evaluated] = []

    @property
    def best(self) -> Evaluated | None:
        """The best evaluation of the current run."""
        return next((evaluated for evaluated in reversed(self.evaluations) if evaluated.best), None)

    @property
    def place(self) -> int:
        """The number of finished steps of the current run."""
        first = self.started.first_step if self.started else 0
        return self.step.step if self.step else first

    def note(self, event: Event) -> None:
        """Updates the state with an event."""
        match event:
            case Started():
                if self.started is not None:
                    self.done.append(Done(self.started.varied, self.best))
                self.started = event
                self._begin()
                self.evaluations += event.evaluations
                for step, loss in event.losses:
                    self.loss.add(step, loss)
            case Step():
                self.step = event
                self.loss.add(event.step, event.loss)
            case Evaluated():
                self.evaluations.append(event)
            case Saved():
                self.saved = event
