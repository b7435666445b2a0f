"""What a run of the loop is given."""

from collections.abc import Callable, Mapping, Sequence, Set as AbstractSet
from dataclasses import dataclass, field
from typing import Any

from mlxbert.machine.device import mx
from mlxbert.machine.distributed import ProcessGroup
from mlxbert.nn.heads import Network
from mlxbert.training.loop.data_order import Order
from mlxbert.training.loop.phase_times import Times
from mlxbert.training.objectives.objective import LoopObjective
from mlxbert.training.options.loop_options import TrainingOptions

Evaluate = Callable[[], Mapping[str, float]]


@dataclass(frozen=True, kw_only=True)
class Training:
    """What one run needs.

    Attributes:
        network: The network, with float32 weights.
        objective: What is trained.
        examples: Training examples.
        place: Where the example of a number stands, for errors.
        order: Which examples each update is computed from.
        options: How it is trained.
        dtype: The dtype of computation.
        evaluate: Computes metrics with the network as it is; `None` without validation data.
        show: Texts that an evaluation shows, made with the network as it is.
        trained: The names of the parameters that are trained; `None` for all that `freeze` leaves.
        streams: Parts of a batch that one process computes at a time.
        group: The processes.
        run: The number of the run, for events.
        times: Where time goes.
    """

    network: Network
    objective: LoopObjective[Any]
    examples: Sequence[Any]
    place: Callable[[int], str]
    order: Order
    options: TrainingOptions
    dtype: mx.Dtype
    evaluate: Evaluate | None
    show: Callable[[], tuple[str, ...]] = tuple
    trained: AbstractSet[str] | None = None
    streams: int = 1
    group: ProcessGroup = field(default_factory=ProcessGroup)
    run: int = 0
    times: Times = field(default_factory=Times)
