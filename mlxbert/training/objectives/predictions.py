"""Predictions on many examples, shared among the processes of a run."""

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from mlxbert.machine.device import mx
from mlxbert.machine.distributed import ProcessGroup, Turns
from mlxbert.nn.encoder import Batch
from mlxbert.nn.heads import Network
from mlxbert.progress import OnProgress
from mlxbert.tasks.runner import run_batches
from mlxbert.tasks.task import evaluation_mode
from mlxbert.text.batch import window_size
from mlxbert.text.encoding import Encoding
from mlxbert.training.objectives.objective import Objective, Predictions


def predict(
    network: Network,
    objective: Objective[Any],
    examples: Sequence[Any],
    *,
    group: ProcessGroup | None = None,
    batch_tokens: int | None = None,
    on_progress: OnProgress | None = None,
) -> Predictions:
    """The objective's predictions; see `compute`.

    Args:
        network: The network.
        objective: Computes them.
        examples: Examples with N inputs.
        group: See `compute`, as the following ones.
        batch_tokens: Tokens per batch, padding included.
        on_progress: Called with how many inputs are done, and N.

    Returns:
        float32 (N, …), or a list of N arrays where their shapes differ.
    """
    return compute(
        network, objective.inputs(examples), objective.predict,
        group=group, batch_tokens=batch_tokens, on_progress=on_progress,
    )  # fmt: skip


def compute(
    network: Network,
    inputs: Sequence[Encoding],
    function: Callable[[Network, Batch], mx.array],
    *,
    group: ProcessGroup | None = None,
    batch_tokens: int | None = None,
    on_progress: OnProgress | None = None,
) -> Predictions:
    """What a function of batches gives, with the network in evaluation mode.

    Args:
        network: The network.
        inputs: N inputs.
        function: A batch of B inputs to numbers (B, …), which stay lazy.
        group: The processes that share the work; each gets all predictions.
        batch_tokens: Tokens per batch, padding included.
        on_progress: Called with how many inputs are done, and N; first with 0, then after every batch.

    Returns:
        float32 (N, …), or a list of N arrays where their shapes differ.
    """
    turns = Turns(group or ProcessGroup())
    done = 0
    tell = on_progress or (lambda done, total: None)

    def forward(batch: Batch, numbers: list[int]) -> mx.array:
        return function(network, batch)

    def read(found: mx.array | None, numbers: list[int]) -> Sequence[Any]:
        nonlocal done
        done += len(numbers)
        tell(done, len(inputs))
        return [None] * len(numbers) if found is None else [*np.asarray(found, np.float32)]

    tell(done, len(inputs))
    found: list[Any] = []
    with evaluation_mode(network):
        window = window_size()
        for start in range(0, len(inputs), window):
            some = inputs[start : start + window]
            found += run_batches(some, forward, read, network.encoder.config, batch_tokens, mine=turns.is_mine)
    rows = turns.all_gather(found)
    return np.array(rows, np.float32) if len({row.shape for row in rows}) < 2 else rows
