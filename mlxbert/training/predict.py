"""Predictions on many examples, shared among the processes of a run."""

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from mlxbert.distributed import Group, Turns
from mlxbert.nn.encoder import Batch
from mlxbert.nn.heads import Network
from mlxbert.tasks.runner import run_batches
from mlxbert.tasks.task import evaluation_mode
from mlxbert.training.objective import Objective, Predictions

_CHUNK = 512  # examples that are sorted by length together


def predict(
    network: Network,
    objective: Objective[Any],
    examples: Sequence[Any],
    *,
    group: Group | None = None,
    batch_tokens: int | None = None,
    on_progress: Callable[[int, int], None] | None = None,
) -> Predictions:
    """The objective's predictions, with the network in evaluation mode.

    Args:
        network: The network.
        objective: Computes them.
        examples: N examples.
        group: The processes that share the work; each gets all predictions.
        batch_tokens: Tokens per batch, padding included.
        on_progress: Called with how many examples are done, and N; first with 0, then after every batch.

    Returns:
        float32 (N, …), or a list of N arrays where their shapes differ.
    """
    turns = Turns(group or Group())
    done = 0
    tell = on_progress or (lambda done, total: None)

    def forward(batch: Batch, numbers: list[int]) -> Sequence[Any]:
        nonlocal done
        rows = turns.take(len(numbers), lambda: [*np.asarray(objective.predict(network, batch), np.float32)])
        done += len(numbers)
        tell(done, len(examples))
        return rows

    tell(done, len(examples))
    found: list[Any] = []
    with evaluation_mode(network):
        for start in range(0, len(examples), _CHUNK):
            encodings = [example.encoding for example in examples[start : start + _CHUNK]]
            found += run_batches(encodings, forward, network.encoder.config, batch_tokens)
    rows = turns.exchanged(found)
    return np.array(rows, np.float32) if len({row.shape for row in rows}) < 2 else rows
