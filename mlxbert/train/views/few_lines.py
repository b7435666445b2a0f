"""Prints the progress of training as a few lines on stderr, for use when no live view can be drawn."""

import time

from mlxbert.cli.views import console
from mlxbert.train.loop.events import Evaluated, Event, Finished, Started, Step
from mlxbert.train.views import value_texts

_PAUSE = 15.0  # seconds between lines about steps


class SparseLines:
    """Prints a line for the beginning of each run, for each evaluation, and for a step from time to time."""

    def __init__(self) -> None:
        self._printed = time.monotonic()
        self._steps = 0

    def write(self, event: Event) -> None:
        """Prints an event if it is important enough."""
        match event:
            case Started():
                self._steps = event.steps
                self._say(_begins(event))
                if event.estimate and (note := value_texts.sleeping(event.estimate.seconds)):
                    self._say(note)
            case Step() if time.monotonic() - self._printed >= _PAUSE:
                remaining = value_texts.duration(event.seconds_left)
                self._say(
                    f"step {event.step:,} of {self._steps:,}, loss {value_texts.figure(event.loss)}, {remaining} left"
                )
            case Evaluated():
                best = ", the best so far" if event.best else ""
                score = value_texts.score(event.metrics[event.metric])
                self._say(f"epoch {event.epoch:.2f}, {event.metric} {score}{best}")
            case Finished():
                self._say(f"{event.metric} {value_texts.score(event.score)}; {event.output} is complete")

    def close(self) -> None:
        """Does nothing."""

    def _say(self, text: str) -> None:
        console.say("note", text)
        self._printed = time.monotonic()


def _begins(event: Started) -> str:
    run = f"run {event.run + 1} of {event.runs} ({value_texts.varied(event.varied)}), " if event.runs > 1 else ""
    place = f"resumed after step {event.first_step:,} of" if event.first_step else "begins:"
    takes = f", {value_texts.about(event.estimate.seconds)}" if event.estimate else ""
    return f"{run}{event.task} from {event.model} {place} {console.counted(event.steps, 'step')}{takes}"
