"""What the updaters of both devices share: an update that was started, and the state that it is computed from."""

from abc import ABC, abstractmethod
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import ClassVar

from mlxbert.machine.device import mx
from mlxbert.training.loop.batch_gradients import BatchGradients
from mlxbert.training.loop.gradients import Gradients
from mlxbert.training.loop.optimizer import AdamW, Arrays
from mlxbert.training.loop.saved_run import RunState
from mlxbert.training.loop.trained_parameters import TrainedParameters
from mlxbert.training.loop.training_inputs import Training
from mlxbert.training.objectives.objective import ContrastiveObjective


@dataclass(frozen=True)
class StartedUpdate:
    """An update that was started: a GPU may still compute it.

    Attributes:
        batches: The numbers of its examples.
        lr: Its learning rate.
        terms: The names of the losses that the loss consists of.
        gradients: The sums over its batches; on a GPU until the update is applied.
        numbers: The loss, its weight, the norm of the mean gradient, and the terms; on a GPU once it is applied.
        before: On a GPU, once it is applied: the parameters and moments before it, kept until those after are computed.
    """

    batches: list[list[int]]
    lr: float
    terms: Sequence[str]
    gradients: Gradients | None
    numbers: mx.array | list[float] | None = None
    before: tuple[Arrays, AdamW] | None = None


class Updater(ABC):
    """Computes the updates of a run in their order. Each is started, and finished when its numbers were read.

    Args:
        training: What is trained.
        trained: Which parameters are trained.
        state: The state before the next update.

    Attributes:
        state: The state of the run. Its progress counts finished updates; on a GPU its arrays may be one ahead.
        started: The updates that are not finished.
        gradients: Computes the gradients of updates.
        looks_ahead: Whether an update should be started before the one before it is finished.
    """

    looks_ahead: ClassVar[bool]

    def __init__(self, training: Training, trained: TrainedParameters, state: RunState) -> None:
        self.state, self.started = state, deque[StartedUpdate]()
        self.gradients = BatchGradients(training, trained)
        self._training, self._trained = training, trained

    @abstractmethod
    def start(self, batches: list[list[int]], lr: float) -> None:
        """Starts the update that follows those that were started."""

    @abstractmethod
    def numbers(self) -> list[float]:
        """The numbers of the first update that was started, see `StartedUpdate`; a GPU is waited for."""

    @abstractmethod
    def finish(self, usable: bool) -> RunState:
        """The state after the first update that was started, which is one no longer.

        The caller must make it `state`, with the step counted.

        Args:
            usable: Whether its numbers are finite; if not, it changes nothing.
        """

    @abstractmethod
    def follow(self) -> None:
        """Goes on with the next update that was started, when `state` is the one after an update that was finished."""

    def drop(self) -> None:
        """Goes back to the state after the last finished update, without those that were started."""
        self.started.clear()

    @abstractmethod
    def attempt(self, batches: list[list[int]]) -> None:
        """Computes an update and drops it."""

    @property
    def _step(self) -> int:
        """How many updates come before the next one to start."""
        return self.state.progress.step + len(self.started)

    def _counted(self, state: RunState, lr: float) -> RunState:
        """A state whose progress counts the update that its arrays are after."""
        progress = state.progress
        decay = progress.decay * self._trained.kept_rows(lr)
        progress = replace(progress, updates=progress.updates + 1, decay=decay)
        return replace(state, progress=progress, optimizer=replace(state.optimizer, updates=progress.updates))


def less_memory(training: Training) -> str:
    """What takes less memory, as a hint."""
    batches = (
        "chunk=" if isinstance(training.objective, ContrastiveObjective) else "batch_size= with gradient_accumulation="
    )
    return f"a smaller {batches}, or checkpointing=True, takes less; overwrite=True starts over with other options"
