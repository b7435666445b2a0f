"""The job of a worker process of `mlxbert bench`, and the interface of a library that it measures."""

import json
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from typing import Any

OURS, PEER = "mlxbert", "torch"
# Texts of a batch, and tokens per text. 32 texts are the default batch of sentence-transformers. A single text of 512
# tokens is what is published of Apple's Neural Engine (maziyarpanahi/openmed#3071).
PASSES, UPDATE = ((32, 32), (32, 128), (32, 300), (1, 512)), (16, 128)
Spent = dict[str, float]
Work = Callable[[Sequence[int]], Spent]


@dataclass(frozen=True)
class WorkerJob:
    """The job of a worker process.

    Attributes:
        folder: The folder of the model, which `mlxbert.save` wrote.
        side: The library that computes: `mlxbert` or `torch`.
        dtype: The dtype to compute in.
        device: The device that computes: `gpu` or `cpu`.
        train: Whether to measure steps of training with float32 weights, instead of forward passes.
        tf32: Whether float32 products may be rounded to TF32.
    """

    folder: str
    side: str
    dtype: str
    device: str
    train: bool = False
    tf32: bool = False

    def to_json(self) -> str:
        """Returns the job as a command-line argument of the worker."""
        return json.dumps(asdict(self))


@dataclass(frozen=True)
class Side:
    """A library that a worker measures.

    Attributes:
        compute: A function that runs a forward pass or a step of training on texts of the given lengths in tokens.
        facts: A function that returns the facts to report.
        memory: A function that returns the used memory of the device in bytes; `None` for a CPU, for which the memory
            of the process is measured.
        memory_of: The kind of memory that is measured: `process`, `arrays`, or `arrays and cache`.
    """

    compute: Work
    facts: Callable[[], dict[str, Any]]
    memory: Callable[[], int] | None = None
    memory_of: str = "process"
