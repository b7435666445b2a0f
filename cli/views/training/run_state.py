"""What is known of a run while it continues."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from mlxbert.cli.views.training.curve import Curve
from mlxbert.training.loop.events import Evaluated, Event, Saved, Started, Step


@dataclass(frozen=True)
class Done:
    """A run that is over: the options in which it differs, and its best evaluation."""

    varied: Mapping[str, Any]
    best: Evaluated | None


class DrawnRuns:
    """The runs so far: all of the present one, and the best evaluation of each earlier one."""

    def __init__(self) -> None:
        self.done: list[Done] = []
        self.started: Started | None = None
        self.phase = ""  # what is done now, other than updates
        self._begin()

    def _begin(self) -> None:
        self.loss = Curve(self.started.steps if self.started else 1)
        self.step: Step | None = None
        self.saved: Saved | None = None
        self.evaluations: list[Evaluated] = []

    @property
    def best(self) -> Evaluated | None:
        """The best evaluation of the present run."""
        return next((found for found in reversed(self.evaluations) if found.best), None)

    @property
    def place(self) -> int:
        """How many steps of the present run are done."""
        first = self.started.first_step if self.started else 0
        return self.step.step if self.step else first

    def note(self, event: Event) -> None:
        """Takes in an event."""
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
