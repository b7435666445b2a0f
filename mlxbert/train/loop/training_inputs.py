"""The inputs of a run of the training loop."""

from collections.abc import Callable, Mapping, Sequence, Set as AbstractSet
from dataclasses import dataclass, field
from typing import Any

from mlxbert.machine.device import mx
from mlxbert.nn.heads import Network
from mlxbert.train.loop.data_order import Order
from mlxbert.train.loop.distributed import ProcessGroup
from mlxbert.train.loop.phase_times import Times
from mlxbert.train.objectives.objective import LoopObjective
from mlxbert.train.options.loop_options import TrainingOptions

Evaluate = Callable[[], Mapping[str, float]]


@dataclass(frozen=True, kw_only=True)
class Training:
    """The inputs of one run."""

    network: Network  # the network, with float32 weights
    objective: LoopObjective[Any]
    examples: Sequence[Any]
    # Returns the location of an example in the data, given its index. Errors name this location.
    place: Callable[[int], str]
    order: Order  # determines the examples of each update
    options: TrainingOptions
    dtype: mx.Dtype  # the dtype of computation
    evaluate: Evaluate | None  # computes the metrics of the current network; `None` without validation data
    # Makes sample texts with the current network, to be shown with an evaluation.
    show: Callable[[], tuple[str, ...]] = tuple
    # The names of the trained parameters; `None` for all parameters that `freeze` does not exclude.
    trained: AbstractSet[str] | None = None
    streams: int = 1  # the number of parts of a batch that one process computes at the same time
    group: ProcessGroup = field(default_factory=ProcessGroup)  # the processes that share the work
    run: int = 0  # the number of the run, for events
    times: Times = field(default_factory=Times)  # measures the phases of the call
