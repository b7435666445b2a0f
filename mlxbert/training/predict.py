"""Predictions on many examples, shared among the processes of a run."""

import itertools
import math
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from mlxbert.device import mx
from mlxbert.nn.encoder import Batch
from mlxbert.nn.heads import Network
from mlxbert.tasks.runner import run_batches
from mlxbert.tasks.task import evaluation_mode
from mlxbert.training.distributed import Group
from mlxbert.training.objective import Objective, Predictions

_CHUNK = 512  # examples between two calls of `on_progress`


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
        on_progress: Called with how many examples are done, and N.

    Returns:
        float32 (N, …), or a list of N arrays where their shapes differ.
    """
    group = group or Group()
    turns = itertools.cycle(range(group.size))

    def forward(batch: Batch, numbers: list[int]) -> Sequence[Any]:
        # The processes take turns, so that batches, and the bits of the predictions, are those of one process.
        return list(objective.predict(network, batch)) if next(turns) == group.rank else [None] * len(numbers)

    found: list[Any] = []
    with evaluation_mode(network):
        for start in range(0, len(examples), _CHUNK):
            encodings = [example.encoding for example in examples[start : start + _CHUNK]]
            found += run_batches(encodings, forward, network.encoder.config, batch_tokens)
            if on_progress is not None:
                on_progress(len(found), len(examples))
    return _gathered(found, group)


def _gathered(found: Sequence[Any], group: Group) -> Predictions:
    """The predictions of all processes, each of which has `None` for those of the others."""
    rows: list[NDArray[np.float32] | None] = [None if row is None else np.asarray(row, np.float32) for row in found]
    if group.size > 1:
        rows = _exchanged(rows, group)
    arrays = [row for row in rows if row is not None]
    return np.array(arrays, np.float32) if len({row.shape for row in arrays}) < 2 else arrays


def _exchanged(rows: Sequence[NDArray[np.float32] | None], group: Group) -> list[NDArray[np.float32] | None]:
    """All rows, each of which one of the processes has."""
    mine = {number: [*row.shape] for number, row in enumerate(rows) if row is not None}
    shapes: dict[int, list[int]] = {}
    for source in range(group.size):
        shapes |= {int(number): shape for number, shape in group.broadcast(mine, source).items()}
    ends = np.cumsum([math.prod(shapes[number]) for number in range(len(rows))])
    whole = np.zeros(ends[-1] if len(rows) else 0, np.float32)
    for row, end in zip(rows, ends, strict=True):
        if row is not None:
            whole[end - row.size : end] = row.reshape(-1)
    summed = np.array(group.sum({"": mx.array(whole)})[""])
    return [part.reshape(shapes[number]) for number, part in enumerate(np.split(summed, ends[:-1]))]
