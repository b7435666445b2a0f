"""Counts the kernels that a GPU would launch for an update of a BERT with 12 layers; nothing is run on one.

    python -m benchmarks.step_kernels

The graphs have the operations and the arrays of bert-base with a classifier and dropout, but are narrow: widths change
no kernel. They are built and not run, and counted as in `tests/nn/test_metal_graphs.py`: primitives that are not views.
A norm, which a CPU unfolds, counts as the kernels of a GPU: one forward, three backward.
"""

import functools
import time
from collections.abc import Callable
from dataclasses import replace
from typing import Any, cast

import pytest

from mlxbert.machine.device import mx, nn, use
from mlxbert.nn.encoder import Batch, KnownIds
from mlxbert.training.checkpoint import Progress
from mlxbert.training.gradients import Differentiator, Gradients
from mlxbert.training.objectives import make_objective
from mlxbert.training.objectives.objective import TrainBatch
from mlxbert.training.optimizer import AdamW, weight_decays
from mlxbert.training.options import TrainingOptions
from mlxbert.training.step import DeviceStep
from tests.helpers.graphs import build_for_a_gpu, kernels
from tests.helpers.tiny import random_network, tiny_config

_LAYERS, _HEAD, _RATE = 12, "sequence_classifier", 0.1
_ROWS, _LENGTH = 8, 16
_TIMES = 5


def main() -> None:
    """Prints the numbers."""
    use("cpu")
    config = tiny_config(layer_schedule=tuple(range(_LAYERS)), pooler=True)
    places = dict.fromkeys(("embeddings", "attention", "attention_output", "feed_forward"), _RATE)
    heads = {_HEAD: replace(config.heads[_HEAD], dropout=_RATE)}
    network = random_network(replace(config, dropout=replace(config.dropout, **places), heads=heads), (_HEAD,))
    network.train()
    parameters = dict(nn.utils.tree_flatten(network.parameters()))
    ids = mx.ones((_ROWS, _LENGTH), mx.int32)
    batch = TrainBatch(Batch(ids, ids > 0, None, KnownIds(frozenset([1]))), mx.zeros(_ROWS, mx.int32))
    given = (mx.random.key(0), mx.array(1.0), None, None)
    square = mx.zeros((config.hidden_size, config.hidden_size))
    decays = weight_decays(parameters, config, TrainingOptions())
    device = DeviceStep(dict.fromkeys(parameters, 1.0), decays, 1.0, scaled=False)
    counters, numbers = device.counters(Progress()), (mx.array(1.0), mx.array(1.0))
    mx.eval(batch.inputs.input_ids, batch.inputs.attention_mask, batch.targets, given[:2], square, counters, numbers)
    with pytest.MonkeyPatch.context() as patch:
        build_for_a_gpu(patch)
        patch.setattr(mx.fast, "layer_norm", _norm(square))
        print(f"{len(parameters)} parameters")
        for dtype in (mx.float32, mx.bfloat16, mx.float16):
            made = Differentiator(network, make_objective("classify"), dtype)
            plain, compiled = made._differentiated, made._gradients
            alone = _seconds(functools.partial(plain, parameters, batch, *given))
            traced = _seconds(functools.partial(made._run, compiled, parameters, batch, *given))
            print(f"{dtype}, gradients: {alone[0]} kernels, {alone[1]:.0f} ms for their graph; "
                  f"compiled {traced[0]}, {traced[1]:.1f} ms, the first time {traced[2]:.0f} ms")  # fmt: skip
        optimizer = AdamW(parameters, parameters)
        found = Gradients(*numbers, parameters)
        count, later, first = _seconds(lambda: device(parameters, optimizer, found, counters, 1e-3))
        print(f"update: {count} kernels, {later:.1f} ms for their graph, the first time {first:.0f} ms")


def _norm(square: mx.array) -> Callable[..., mx.array]:
    """What has as many kernels as a norm on a GPU."""

    @mx.custom_function
    def norm(x: mx.array, weight: mx.array, bias: mx.array) -> mx.array:
        return mx.addmm(bias, x, square.astype(x.dtype))

    @norm.vjp
    def backward(inputs: Any, cotangent: mx.array, output: mx.array) -> tuple[mx.array, mx.array, mx.array]:
        rows = tuple(range(cotangent.ndim - 1))
        sums = cotangent.sum(axis=rows), cotangent.sum(axis=rows)
        return mx.addmm(inputs[0], cotangent, square.astype(cotangent.dtype)), *sums

    return lambda x, weight, bias, eps: cast(mx.array, norm(x, weight, bias))


def _seconds(make: Callable[[], Any]) -> tuple[int, float, float]:
    """The kernels of a graph, and the milliseconds in which Python makes it: the least later one, and the first."""
    spent = []
    for _ in range(_TIMES):
        start = time.perf_counter()
        found = make()
        spent.append(1000 * (time.perf_counter() - start))
    tree = [vars(one) if isinstance(one, AdamW) else one for one in found]
    arrays = [array for array in dict(nn.utils.tree_flatten(tree)).values() if isinstance(array, mx.array)]
    return kernels(arrays), min(spent[1:]), spent[0]


if __name__ == "__main__":
    main()
