"""The base class of the updaters for CPU and GPU."""

from abc import ABC, abstractmethod
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import ClassVar

from mlxbert.machine.device import mx
from mlxbert.training.loop.adamw import AdamW, Arrays
from mlxbert.training.loop.batch_gradients import BatchGradients
from mlxbert.training.loop.gradients import Gradients
from mlxbert.training.loop.saved_run import RunState
from mlxbert.training.loop.trained_parameters import TrainedParameters
from mlxbert.training.loop.training_inputs import Training
from mlxbert.training.objectives.objective import ContrastiveObjective


@dataclass(frozen=True)
class StartedUpdate:
    """An update that was started; a GPU may still be computing it.

    Attributes:
        batches: The numbers of the examples in each batch.
        lr: The learning rate.
        terms: The names of the terms of the loss.
        gradients: The sums over the batches; on a GPU, only until the update is applied.
        numbers: The loss, its weight, the norm of the mean gradient, and the terms; on a GPU, once it is applied.
        before: On a GPU, once it is applied: the previous parameters and moments, kept until it is computed.
    """

    batches: list[list[int]]
    lr: float
    terms: Sequence[str]
    gradients: Gradients | None
    numbers: mx.array | list[float] | None = None
    before: tuple[Arrays, AdamW] | None = None


class Updater(ABC):
    """Computes the updates of a run in order. Each update is started, and finished once its numbers were read.

    Args:
        training: The inputs of the run.
        trained: The trained and the frozen parameters.
        state: The state before the next update.

    Attributes:
        state: The state of the run. Its progress counts finished updates; on a GPU its arrays may be one update ahead.
        started: The updates that are not finished.
        gradients: Computes the gradients of updates.
        looks_ahead: Whether an update should be started before the previous update is finished.
    """

    looks_ahead: ClassVar[bool]

    def __init__(self, training: Training, trained: TrainedParameters, state: RunState) -> None:
        self.state, self.started = state, deque[StartedUpdate]()
        self.gradients = BatchGradients(training, trained)
        self._training, self._trained = training, trained

    @abstractmethod
    def start(self, batches: list[list[int]], lr: float) -> None:
        """Starts another update, after the updates in `started`."""

    @abstractmethod
    def numbers(self) -> list[float]:
        """The `numbers` of the first started update; waits for a GPU."""

    @abstractmethod
    def finish(self, usable: bool) -> RunState:
        """Removes the first update from `started`, and returns the state after it.

        The caller must assign the returned state to `state`, with the step counted.

        Args:
            usable: Whether the numbers of the update are finite; otherwise it changes nothing.
        """

    @abstractmethod
    def follow(self) -> None:
        """Continues with the next started update, once `state` is the state after a finished update."""

    def drop(self) -> None:
        """Discards the started updates, and goes back to the state after the last finished update."""
        self.started.clear()

    @abstractmethod
    def attempt(self, batches: list[list[int]]) -> None:
        """Computes an update and discards it."""

    @property
    def _step(self) -> int:
        """The number of updates before the next one to start."""
        return self.state.progress.step + len(self.started)

    def _counted(self, state: RunState, lr: float) -> RunState:
        """Counts an update whose result is already in the arrays of the state."""
        progress = state.progress
        decay = progress.decay * self._trained.kept_rows(lr)
        progress = replace(progress, updates=progress.updates + 1, decay=decay)
        return replace(state, progress=progress, optimizer=replace(state.optimizer, updates=progress.updates))


def less_memory(training: Training) -> str:
    """A hint with options that reduce memory."""
    batches = (
        "chunk=" if isinstance(training.objective, ContrastiveObjective) else "batch_size= with gradient_accumulation="
    )
    return f"a smaller {batches}, or checkpointing=True, saves memory; overwrite=True starts over with other options"
