"""Predictions on many examples, shared among the processes of a run."""

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
    mine = range(group.rank, len(examples), group.size)
    found: dict[int, Any] = {}

    def forward(batch: Batch, numbers: list[int]) -> Sequence[Any]:
        return list(objective.predict(network, batch))

    with evaluation_mode(network):
        for start in range(0, len(mine), _CHUNK):
            numbers = mine[start : start + _CHUNK]
            encodings = [examples[number].encoding for number in numbers]
            config = network.encoder.config
            found.update(zip(numbers, run_batches(encodings, forward, config, batch_tokens), strict=True))
            if on_progress is not None:
                on_progress(min(len(examples), (start + len(numbers)) * group.size), len(examples))
    if group.size == 1:
        return np.array([found[number] for number in range(len(examples))], np.float32)
    width = np.shape(objective.predict(network, _first_input(examples, objective))[0]) if not found else None
    shape = np.shape(next(iter(found.values()))) if width is None else width
    whole = np.zeros((len(examples), *shape), np.float32)
    for number, row in found.items():
        whole[number] = row
    return np.array(group.sum({"": mx.array(whole)})[""])


def _first_input(examples: Sequence[Any], objective: Objective[Any]) -> Batch:
    from mlxbert.text.batch import make_batch

    return make_batch([examples[0].encoding], objective.config)
