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
    """The job of a worker process."""

    folder: str  # the folder of the model, which `mlxbert.save` wrote
    side: str  # the library that computes: `mlxbert` or `torch`
    dtype: str  # the dtype to compute in
    device: str  # the device that computes: `gpu` or `cpu`
    train: bool = False  # whether to measure steps of training with float32 weights, instead of forward passes
    tf32: bool = False  # whether float32 products may be rounded to TF32

    def to_json(self) -> str:
        return json.dumps(asdict(self))


@dataclass(frozen=True)
class MeasuredLibrary:
    """A library that a worker measures."""

    compute: Work  # a function that runs a forward pass or a step of training on texts of the given lengths in tokens
    facts: Callable[[], dict[str, Any]]  # a function that returns the facts to report
    # A function that returns the used memory of the device in bytes; `None` for a CPU, for which the memory of the
    # process is measured.
    memory: Callable[[], int] | None = None
    memory_of: str = "process"  # the kind of memory that is measured: `process`, `arrays`, or `arrays and cache`
