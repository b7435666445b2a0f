"""Predictions on many examples, shared among the processes of a run."""

import itertools
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

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
    """The objective's predictions, float32 (N, …), with the network in evaluation mode.

    Args:
        network: The network.
        objective: Computes them.
        examples: N examples.
        group: The processes that share the work; each gets all predictions.
        batch_tokens: Tokens per batch, padding included.
        on_progress: Called with how many examples are done, and N.
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
    if group.size == 1:
        return np.array(found, np.float32)
    mine = {number: row for number, row in enumerate(found) if row is not None}
    # A process that has none does not know their shape.
    shapes = [group.broadcast([*np.shape(row)] if row is not None else None, source)
              for source in range(group.size) for row in [next(iter(mine.values()), None)]]  # fmt: skip
    whole = np.zeros((len(found), *next((shape for shape in shapes if shape is not None), ())), np.float32)
    for number, row in mine.items():
        whole[number] = row
    return np.array(group.sum({"": mx.array(whole)})[""])
