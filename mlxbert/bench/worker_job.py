"""What a worker of `mlxbert bench` is started with, and what it measures with."""

import json
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from typing import Any

OURS, PEER = "mlxbert", "torch"
# Texts of a batch, and the tokens of each. 32 texts are the batch of sentence-transformers.
PASSES, UPDATE = ((32, 32), (32, 128), (32, 300)), (16, 128)
Spent = dict[str, float]
Work = Callable[[Sequence[int]], Spent]


@dataclass(frozen=True)
class WorkerJob:
    """What a worker measures.

    Attributes:
        folder: The model, as `mlxbert.save` writes it.
        side: The library that computes: `mlxbert` or `torch`.
        dtype: The dtype to compute in.
        device: `gpu` or `cpu`.
        train: Whether steps of training are measured, with float32 weights, rather than forward passes.
        tf32: Whether float32 products may be rounded to TF32.
    """

    folder: str
    side: str
    dtype: str
    device: str
    train: bool = False
    tf32: bool = False

    def to_json(self) -> str:
        """The job as an argument of the worker's command line."""
        return json.dumps(asdict(self))


@dataclass(frozen=True)
class Side:
    """A library that is measured in a worker.

    Attributes:
        compute: A forward pass, or a step of training, on texts of these lengths in tokens.
        facts: What the worker reports of itself.
        memory: The bytes on the device, see `memory_of`; `None` for a CPU, where the memory of the process counts.
        memory_of: What `memory` counts: `arrays`, or `arrays and cache`.
    """

    compute: Work
    facts: Callable[[], dict[str, Any]]
    memory: Callable[[], int] | None = None
    memory_of: str = "process"
