"""The base class of the updaters for CPU and GPU."""

from abc import ABC, abstractmethod
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import ClassVar

from mlxbert.machine.device import mx
from mlxbert.train.loop.adamw import AdamW, Arrays
from mlxbert.train.loop.batch_gradients import BatchGradients
from mlxbert.train.loop.gradients import Gradients
from mlxbert.train.loop.saved_run import RunState
from mlxbert.train.loop.trained_parameters import TrainedParameters
from mlxbert.train.loop.training_inputs import Training
from mlxbert.train.objectives.objective import ContrastiveObjective


@dataclass(frozen=True)
class StartedUpdate:
    """An update that was started. A GPU may still be computing it."""

    batches: list[list[int]]  # the indices of the examples in each batch
    lr: float  # the learning rate
    terms: Sequence[str]  # the names of the terms of the loss
    # The gradients, summed over the batches. On a GPU, they are `None` once the update has been applied.
    gradients: Gradients | None
    # The loss, its weight, the norm of the mean gradient, and the terms of the loss. On a GPU, they are `None` until
    # the update is applied.
    numbers: mx.array | list[float] | None = None
    # The parameters and moments before the update; `None` on a CPU, and until a GPU applies the update.
    before: tuple[Arrays, AdamW] | None = None


class Updater(ABC):
    """Computes the updates of a run in order. An update is started, its numbers are read, and then it is finished.

    Args:
        state: The state before the next update.

    Attributes:
        state: The state of the run. Its progress counts finished updates; on a GPU, its arrays may be one update ahead.
        started: The started updates that are not finished, the oldest first.
        looks_ahead: Whether each update should be started before the previous update is finished.
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
        """Returns the `numbers` of the oldest started update, after waiting for a GPU to compute them."""

    @abstractmethod
    def finish(self, usable: bool) -> RunState:
        """Removes the oldest update from `started`, and returns the state after this update.

        The caller must count the step in the returned state, and assign it to `state`.

        Args:
            usable: Whether the numbers of the update are finite. If they are not, the update changes nothing.
        """

    @abstractmethod
    def follow(self) -> None:
        """Applies the next started update on a GPU. `state` must be the state after the last finished update."""

    def drop(self) -> None:
        """Discards the started updates, and restores the state after the last finished update."""
        self.started.clear()

    @abstractmethod
    def attempt(self, batches: list[list[int]]) -> None:
        """Computes an update and discards the result."""

    @property
    def _step(self) -> int:
        """The number of the next update to start, from 0."""
        return self.state.progress.step + len(self.started)

    def _counted(self, state: RunState, lr: float) -> RunState:
        """Returns the state with one more update counted. Its arrays already hold the result of this update."""
        progress = state.progress
        decay = progress.decay * self._trained.kept_rows(lr)
        progress = replace(progress, updates=progress.updates + 1, decay=decay)
        return replace(state, progress=progress, optimizer=replace(state.optimizer, updates=progress.updates))


def less_memory(training: Training) -> str:
    """Returns a hint that names options which reduce memory."""
    batches = (
        "chunk=" if isinstance(training.objective, ContrastiveObjective) else "batch_size= with gradient_accumulation="
    )
    return f"use a smaller {batches}, or checkpointing=True, and overwrite=True to start over"
