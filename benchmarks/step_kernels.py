"""Counts the kernels that a GPU would launch and build for an update, without a GPU.

    python -m benchmarks.step_kernels [MODEL ...]

The graphs have the operations and the arrays of published models with dropout, but are narrow, because widths do not
affect the kernels. The graphs are built but not run, and counted as in `tests/nn/test_metal_graphs.py`: primitives that
are not views. A norm, which a CPU decomposes, counts as the kernels of a GPU: one forward, three backward.

MLX compiles a library for each fused operation, for all shapes. On a CPU it uses a C++ compiler and writes a file per
library, whose name contains the operations, the dtypes and the constants, as on a GPU. So the graphs are computed once
on a CPU to count libraries. The compiled functions do nothing, because compiling takes long and no result is used. The
arrays of a library are the arguments of its kernels; Metal binds 31, including the shape and the strides.
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
from mlxbert.train.loop.adamw import AdamW
from mlxbert.train.loop.gradients import Differentiator, Gradients
from mlxbert.train.loop.optimizer_steps import DeviceStep
from mlxbert.train.loop.saved_run import Progress
from mlxbert.train.loop.trained_parameters import weight_decays
from mlxbert.train.objectives import make_objective
from mlxbert.train.objectives.objective import TrainBatch
from mlxbert.train.options.loop_options import TrainingOptions
from mlxbert.weights.build import parameters as parameters_of
from tests.helpers.graphs import Graph, build_for_a_gpu, kernels
from tests.helpers.tiny import CONFIG
from tests.train.pretraining import electras
from tests.train.pretraining.files import model_folder

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
# Takes the place of `g++`: compiles functions of the same names that do nothing.
_COMPILER = """#!/bin/sh
for word; do case $word in *.cpp) source=$word ;; esac; target=$word; done
[ "$source" ] || exec {compiler} "$@"
grep -oE 'void \\w+\\(' "$source" | sed 's/$/) {{}}/' | exec {compiler} -x c -shared -fPIC -o "$target" -
"""
_eval = mx.eval


@dataclass(frozen=True)
class Counted:
    """The counts of a graph.

    Attributes:
        kernels: The number of launched kernels.
        fused: The number of fused kernels among them.
        libraries: The number of libraries of the fused kernels.
        arrays: The maximum number of arrays of a fused kernel.
        milliseconds: The time in which Python builds the graph: the minimum of later times, and the first time.
    """

    kernels: int
    fused: int
    libraries: int
    arrays: int
    milliseconds: tuple[float, float]


def count(model: str, dtype: str, folder: Path) -> tuple[int, Counted, Counted]:
    """The number of trained arrays of a model, and the counts of the graphs of its gradients and its update.

    Args:
        model: One of `MODELS`.
        dtype: The dtype of computation.
        folder: An empty folder.
    """
    network, objective, batch = _made(MODELS[model], folder)
    network.train()
    parameters = {name: array.astype(mx.float32) for name, array in parameters_of(network).items()}
    zeros = {name: mx.zeros_like(array) for name, array in parameters.items()}
    square, config = mx.zeros((32, 32)), network.encoder.config
    key_and_scale = (mx.random.key(0), mx.array(1.0), None, None)
    decays = weight_decays(parameters, config, TrainingOptions())
    device = DeviceStep(dict.fromkeys(parameters, 1.0), decays, 1.0, scaled=dtype == "float16")
    counters, numbers = device.counters(Progress()), (mx.array(1.0), mx.array(1.0))
    mx.eval(
        nn.utils.tree_flatten([vars(batch.inputs), key_and_scale[:2], square, counters, numbers, parameters, zeros])
    )
    with pytest.MonkeyPatch.context() as patch:
        build_for_a_gpu(patch)
        patch.setattr(mx.fast, "layer_norm", _norm(square))
        differentiator = Differentiator(network, objective, getattr(mx, dtype))
        passes = functools.partial(differentiator._run, differentiator._gradients, parameters, batch, *key_and_scale)
        optimizer, gradients = AdamW(parameters, zeros), Gradients(*numbers, zeros)
        update = functools.partial(device, parameters, optimizer, gradients, counters, 1e-3)
        return len(parameters), _counted(passes), _counted(update)


def _made(facts: dict[str, Any], folder: Path) -> tuple[Network, Any, TrainBatch]:
    """Makes a network, its objective, and a batch."""
    if "model_type" not in facts:
        electra_folder = electras.Folder(folder)
        network = electra_folder.model(**facts).network
        objective = electras.objective(network)
        return network, objective, _words(objective)
    labels = mlxbert.Labels(("a", "b"), "single_label_classification")
    model = mlxbert.new_model(facts, model_folder(folder), heads={"sequence_classifier": labels}, device="cpu")
    ids = mx.ones((_ROWS, _LENGTH), mx.int32)
    inputs = Batch(ids, ids > 0, None, KnownIds(frozenset([1])))
    return model.network, make_objective("classify"), TrainBatch(inputs, mx.zeros(_ROWS, mx.int32))


def _words(objective: Any) -> TrainBatch:
    examples = electras.examples()
    batch: TrainBatch = objective.collate(examples, random.Random(0))
    return replace(batch, totals=objective.totals(examples))


def _norm(square: mx.array) -> Callable[..., mx.array]:
    """A replacement with as many kernels as a norm on a GPU, none of them fused."""

    @mx.custom_function
    def norm(x: mx.array, weight: mx.array, bias: mx.array) -> mx.array:
        return mx.addmm(bias, x, square[: x.shape[-1], : x.shape[-1]].astype(x.dtype))

    @norm.vjp
    def backward(inputs: Any, cotangent: mx.array, output: mx.array) -> tuple[mx.array, mx.array, mx.array]:
        rows, width = tuple(range(cotangent.ndim - 1)), cotangent.shape[-1]
        sums = cotangent.sum(axis=rows), cotangent.sum(axis=rows)
        return mx.addmm(inputs[0], cotangent, square[:width, :width].astype(cotangent.dtype)), *sums

    return lambda x, weight, bias, eps: cast(mx.array, norm(x, weight, bias))


def _compile_nothing(folder: Path) -> None:
    """Lets MLX compile empty libraries in this process."""
    compiler = folder / "g++"
    compiler.write_text(_COMPILER.format(compiler=shutil.which("g++")))
    compiler.chmod(0o755)
    os.environ["PATH"] = f"{folder}{os.pathsep}{os.environ['PATH']}"


def _counted(make: Callable[[], Any]) -> Counted:
    spent = []
    for _ in range(_TIMES):
        start = time.perf_counter()
        results = make()
        spent.append(1000 * (time.perf_counter() - start))
    tree = [vars(result) if isinstance(result, AdamW) else result for result in results]
    arrays = [array for array in dict(nn.utils.tree_flatten(tree)).values() if isinstance(array, mx.array)]
    fused = [node for node in Graph(arrays).nodes if node.name == "Compiled"]
    launched = kernels(arrays)
    with _libraries() as libraries:
        _eval(arrays)
    max_arrays = max((node.arrays for node in fused), default=0)
    return Counted(launched, len(fused), len(libraries), max_arrays, (min(spent[1:]), spent[0]))


@contextlib.contextmanager
def _libraries() -> Iterator[set[str]]:
    """Collects the libraries that MLX compiles in the context."""
    names: set[str] = set()
    folder = Path(os.environ["TMPDIR"]) / "mlx"
    before = {*folder.rglob("*.cpp")}
    yield names
    for path in {*folder.rglob("*.cpp")} - before:
        # On a GPU, the contiguous and strided variants of a kernel are in the same library.
        names |= {*re.findall(r"void (\w+)_(?:contiguous|strided_\d+)\(", path.read_text())}


def main() -> None:
    """Prints a line for each model and dtype."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("models", nargs="*", metavar="MODEL", help=f"of {', '.join(MODELS)}; all without any")
    parser.add_argument("--dtype", choices=DTYPES, action="append", help="all without any")
    parser.add_argument("--json", action="store_true", help="an object for each model and dtype")
    args = parser.parse_args()
    if shutil.which("g++") is None:
        raise SystemExit("this needs g++: MLX compiles for a CPU with it")
    cells = [(model, dtype) for model in args.models or MODELS for dtype in args.dtype or DTYPES]
    if len(cells) > 1:  # each in a separate process, which has no libraries yet
        for model, dtype in cells:
            command = [sys.executable, "-m", "benchmarks.step_kernels", model, "--dtype", dtype]
            subprocess.run([*command, *(["--json"] if args.json else [])], check=True)
        return
    use("cpu")
    with tempfile.TemporaryDirectory() as folder:
        os.environ["TMPDIR"] = folder
        _compile_nothing(Path(folder))
        (Path(folder) / "model").mkdir()
        arrays, gradients, update = count(*cells[0], Path(folder) / "model")
    facts = {
        "model": cells[0][0], "dtype": cells[0][1], "trained_arrays": arrays,
        "libraries": gradients.libraries + update.libraries, "most_arrays": max(gradients.arrays, update.arrays),
        "gradients": asdict(gradients), "update": asdict(update),
    }  # fmt: skip
    print(json.dumps(facts) if args.json else _line(facts, gradients, update), flush=True)


def _line(facts: dict[str, Any], gradients: Counted, update: Counted) -> str:
    parts = "; ".join(
        f"{name} {counted.kernels} kernels, {counted.fused} of them fused, {counted.libraries} libraries, graph in "
        f"{counted.milliseconds[0]:.1f} ms, the first time {counted.milliseconds[1]:.0f} ms"
        for name, counted in (("gradients", gradients), ("update", update))
    )
    return (
        f"{facts['model']}, {facts['trained_arrays']} trained arrays, {facts['dtype']}: {facts['libraries']} "
        f"libraries, at most {facts['most_arrays']} arrays; {parts}"
    )


if __name__ == "__main__":
    main()
