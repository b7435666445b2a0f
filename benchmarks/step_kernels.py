"""Counts the kernels that a GPU would launch and build for an update; nothing is run on one.

    python -m benchmarks.step_kernels [MODEL ...]

The graphs have the operations and the arrays of published models with dropout, but are narrow: widths change no kernel.
They are built and not run, and counted as in `tests/nn/test_metal_graphs.py`: primitives that are not views. A norm,
which a CPU unfolds, counts as the kernels of a GPU: one forward, three backward.

Libraries are what MLX compiles for fused operations, each for all shapes: on a CPU with a C++ compiler, a file each,
whose name has the operations, the dtypes and the constants in it, as those on a GPU have. So the graphs are computed
once, on a CPU. A library's arrays are the arguments of its kernels; Metal binds 31, the shape and strides among them.
"""

import argparse
import contextlib
import functools
import json
import os
import random
import re
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any, cast

import pytest

import mlxbert
from mlxbert.machine.device import mx, nn, use
from mlxbert.nn.encoder import Batch, KnownIds
from mlxbert.nn.heads import Network
from mlxbert.training.loop.gpu_updater import DeviceStep
from mlxbert.training.loop.gradients import Differentiator, Gradients
from mlxbert.training.loop.optimizer import AdamW, weight_decays
from mlxbert.training.loop.saved_run import Progress
from mlxbert.training.objectives import make_objective
from mlxbert.training.objectives.objective import TrainBatch
from mlxbert.training.options.loop_options import TrainingOptions
from mlxbert.weights.build import parameters as parameters_of
from tests.helpers.graphs import Graph, build_for_a_gpu, kernels
from tests.helpers.tiny import CONFIG
from tests.pretraining import electras
from tests.pretraining.files import model_folder

_LAYERS, _ROWS, _LENGTH, _TIMES = 12, 8, 16, 5
_BERT = CONFIG | {"num_hidden_layers": _LAYERS, "hidden_size": 32, "num_attention_heads": 4}
_DEBERTA = _BERT | {
    "model_type": "deberta-v2", "relative_attention": True, "position_buckets": 8, "norm_rel_ebd": "layer_norm",
    "share_att_key": True, "pos_att_type": "p2c|c2p", "position_biased_input": False, "type_vocab_size": 0,
    "pooler_hidden_size": 32,
}  # fmt: skip
MODELS: dict[str, dict[str, Any]] = {
    "bert-base": _BERT, "MiniLM": _BERT | {"num_hidden_layers": 6}, "DeBERTa-v3": _DEBERTA,
    "ELECTRA pre-training": {"num_hidden_layers": _LAYERS},
}  # fmt: skip
DTYPES = ("float32", "bfloat16", "float16")
_eval = mx.eval


@dataclass(frozen=True)
class Counted:
    """What a graph has.

    Attributes:
        kernels: Kernels that are launched.
        fused: How many of them are fused.
        libraries: The libraries that these are from.
        arrays: The most arrays that a fused kernel has.
        milliseconds: In which Python makes the graph, the least later time; and the first time.
    """

    kernels: int
    fused: int
    libraries: int
    arrays: int
    milliseconds: tuple[float, float]


def count(model: str, dtype: str, folder: Path) -> tuple[int, Counted, Counted]:
    """The number of trained arrays of a model, and what the graphs of its gradients and of its update have.

    Args:
        model: One of `MODELS`.
        dtype: The dtype of computation.
        folder: An empty one.
    """
    network, objective, batch = _made(MODELS[model], folder)
    network.train()
    parameters = {name: array.astype(mx.float32) for name, array in parameters_of(network).items()}
    zeros = {name: mx.zeros_like(array) for name, array in parameters.items()}
    square, config = mx.zeros((32, 32)), network.encoder.config
    given = (mx.random.key(0), mx.array(1.0), None, None)
    decays = weight_decays(parameters, config, TrainingOptions())
    device = DeviceStep(dict.fromkeys(parameters, 1.0), decays, 1.0, scaled=dtype == "float16")
    counters, numbers = device.counters(Progress()), (mx.array(1.0), mx.array(1.0))
    mx.eval(nn.utils.tree_flatten([vars(batch.inputs), given[:2], square, counters, numbers, parameters, zeros]))
    with pytest.MonkeyPatch.context() as patch:
        build_for_a_gpu(patch)
        patch.setattr(mx.fast, "layer_norm", _norm(square))
        made = Differentiator(network, objective, getattr(mx, dtype))
        passes = functools.partial(made._run, made._gradients, parameters, batch, *given)
        optimizer, found = AdamW(parameters, zeros), Gradients(*numbers, zeros)
        update = functools.partial(device, parameters, optimizer, found, counters, 1e-3)
        return len(parameters), _counted(passes), _counted(update)


def _made(facts: dict[str, Any], folder: Path) -> tuple[Network, Any, TrainBatch]:
    """A network, what it is trained for, and a batch."""
    if "model_type" not in facts:
        made = electras.Folder(folder)
        network = made.model(**facts).network
        objective = electras.objective(network)
        return network, objective, _words(objective)
    labels = mlxbert.Labels(("a", "b"), "single_label_classification")
    model = mlxbert.new_model(facts, model_folder(folder), heads={"sequence_classifier": labels}, device="cpu")
    ids = mx.ones((_ROWS, _LENGTH), mx.int32)
    inputs = Batch(ids, ids > 0, None, KnownIds(frozenset([1])))
    return model.network, make_objective("classify"), TrainBatch(inputs, mx.zeros(_ROWS, mx.int32))


def _words(objective: Any) -> TrainBatch:
    examples = electras.examples()
    found: TrainBatch = objective.collate(examples, random.Random(0))
    return replace(found, totals=objective.totals(examples))


def _norm(square: mx.array) -> Callable[..., mx.array]:
    """What has as many kernels as a norm on a GPU, none of them fused."""

    @mx.custom_function
    def norm(x: mx.array, weight: mx.array, bias: mx.array) -> mx.array:
        return mx.addmm(bias, x, square[: x.shape[-1], : x.shape[-1]].astype(x.dtype))

    @norm.vjp
    def backward(inputs: Any, cotangent: mx.array, output: mx.array) -> tuple[mx.array, mx.array, mx.array]:
        rows, width = tuple(range(cotangent.ndim - 1)), cotangent.shape[-1]
        sums = cotangent.sum(axis=rows), cotangent.sum(axis=rows)
        return mx.addmm(inputs[0], cotangent, square[:width, :width].astype(cotangent.dtype)), *sums

    return lambda x, weight, bias, eps: cast(mx.array, norm(x, weight, bias))


def _counted(make: Callable[[], Any]) -> Counted:
    spent = []
    for _ in range(_TIMES):
        start = time.perf_counter()
        found = make()
        spent.append(1000 * (time.perf_counter() - start))
    tree = [vars(one) if isinstance(one, AdamW) else one for one in found]
    arrays = [array for array in dict(nn.utils.tree_flatten(tree)).values() if isinstance(array, mx.array)]
    fused = [node for node in Graph(arrays).nodes if node.name == "Compiled"]
    launched = kernels(arrays)
    with _libraries() as libraries:
        _eval(arrays)
    most = max((node.arrays for node in fused), default=0)
    return Counted(launched, len(fused), len(libraries), most, (min(spent[1:]), spent[0]))


@contextlib.contextmanager
def _libraries() -> Iterator[set[str]]:
    """The libraries that MLX compiles within."""
    found: set[str] = set()
    folder = Path(os.environ["TMPDIR"]) / "mlx"
    before = {*folder.rglob("*.cpp")}
    yield found
    for path in {*folder.rglob("*.cpp")} - before:
        # On a GPU the ways in which a kernel goes through its arrays are in the same library.
        found |= {*re.findall(r"void (\w+)_(?:contiguous|strided_\d+)\(", path.read_text())}


def main() -> None:
    """Prints a line for each model and dtype."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("models", nargs="*", metavar="MODEL", help=f"of {', '.join(MODELS)}; all without any")
    parser.add_argument("--dtype", choices=DTYPES, action="append", help="all without any")
    parser.add_argument("--json", action="store_true", help="an object for each model and dtype")
    given = parser.parse_args()
    if shutil.which("g++") is None:
        raise SystemExit("this needs g++: MLX compiles for a CPU with it")
    cells = [(model, dtype) for model in given.models or MODELS for dtype in given.dtype or DTYPES]
    if len(cells) > 1:  # each in a process of its own, which has no libraries yet
        for model, dtype in cells:
            again = [sys.executable, "-m", "benchmarks.step_kernels", model, "--dtype", dtype]
            subprocess.run([*again, *(["--json"] if given.json else [])], check=True)
        return
    use("cpu")
    with tempfile.TemporaryDirectory() as folder:
        os.environ["TMPDIR"] = folder
        (Path(folder) / "model").mkdir()
        arrays, gradients, update = count(*cells[0], Path(folder) / "model")
    facts = {
        "model": cells[0][0], "dtype": cells[0][1], "trained_arrays": arrays,
        "libraries": gradients.libraries + update.libraries, "most_arrays": max(gradients.arrays, update.arrays),
        "gradients": asdict(gradients), "update": asdict(update),
    }  # fmt: skip
    print(json.dumps(facts) if given.json else _line(facts, gradients, update), flush=True)


def _line(facts: dict[str, Any], gradients: Counted, update: Counted) -> str:
    parts = "; ".join(
        f"{name} {one.kernels} kernels, {one.fused} of them fused, {one.libraries} libraries, graph in "
        f"{one.milliseconds[0]:.1f} ms, the first time {one.milliseconds[1]:.0f} ms"
        for name, one in (("gradients", gradients), ("update", update))
    )
    return (
        f"{facts['model']}, {facts['trained_arrays']} trained arrays, {facts['dtype']}: {facts['libraries']} "
        f"libraries, at most {facts['most_arrays']} arrays; {parts}"
    )


if __name__ == "__main__":
    main()
