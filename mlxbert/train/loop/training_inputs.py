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
    """The inputs of one run.

    Attributes:
        network: The network, with float32 weights.
        objective: The objective of the training.
        examples: The training examples.
        place: Returns the location of an example in the data, given its index. Errors name this location.
        order: Determines the examples of each update.
        options: The training options.
        dtype: The dtype of computation.
        evaluate: Computes the metrics of the current network; `None` without validation data.
        show: Makes sample texts with the current network, to be shown with an evaluation.
        trained: The names of the trained parameters; `None` for all parameters that `freeze` does not exclude.
        streams: The number of parts of a batch that one process computes at the same time.
        group: The processes that share the work.
        run: The number of the run, for events.
        times: Measures the phases of the call.
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
