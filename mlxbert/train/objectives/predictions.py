"""Predictions on many examples."""

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from mlxbert.machine.device import mx
from mlxbert.nn.encoder import Batch
from mlxbert.nn.heads import Network
from mlxbert.progress import OnProgress
from mlxbert.tasks.runner import run_batches
from mlxbert.tasks.task import evaluation_mode
from mlxbert.text.batch import window_size
from mlxbert.text.encoding import Encoding
from mlxbert.train.objectives.objective import Objective, Predictions, Share, alone


def predict(
    network: Network,
    objective: Objective[Any],
    examples: Sequence[Any],
    *,
    share: Share = alone,
    batch_tokens: int | None = None,
    on_progress: OnProgress | None = None,
) -> Predictions:
    """Computes an objective's predictions for examples (see `compute`)."""
    return compute(
        network, objective.inputs(examples), objective.predict,
        share=share, batch_tokens=batch_tokens, on_progress=on_progress,
    )  # fmt: skip


def compute(
    network: Network,
    inputs: Sequence[Encoding],
    function: Callable[[Network, Batch], mx.array],
    *,
    share: Share = alone,
    batch_tokens: int | None = None,
    on_progress: OnProgress | None = None,
) -> Predictions:
    """Applies a function to batches of inputs, with the network in evaluation mode.

    Args:
        share: Divides the inputs among the processes of a run. Each process gets all results.
        on_progress: Called with the number of finished inputs, and N; first with 0, then after every batch.

    Returns:
        The results of the function, float32 (N, …); a list of N arrays if their shapes differ.
    """
    done = 0
    report = on_progress or (lambda done, total: None)

    def forward(batch: Batch, numbers: list[int]) -> mx.array:
        return function(network, batch)

    def read(outputs: mx.array, numbers: list[int]) -> Sequence[Any]:
        nonlocal done
        done += len(numbers)
        report(done, len(inputs))
        return [*np.asarray(outputs, np.float32)]

    def rows_of(inputs: Sequence[Encoding]) -> list[Any]:
        parts = (inputs[start : start + window] for start in range(0, len(inputs), window))
        config = network.encoder.config
        return [row for part in parts for row in run_batches(part, forward, read, config, batch_tokens)]

    report(done, len(inputs))
    window = window_size()
    with evaluation_mode(network):
        rows = [*share(inputs, rows_of)]
    return np.array(rows, np.float32) if len({row.shape for row in rows}) < 2 else rows
