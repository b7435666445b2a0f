"""Builds, but does not run, the graphs that MLX would run on a Mac's GPU; needs no GPU.

On a CPU, MLX replaces functions of `mx.fast` by several kernels that a GPU fuses. `Fused` counts the surplus kernels.
"""

import gc
import io
import re
import sys
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence, Set as AbstractSet
from dataclasses import dataclass
from functools import partial
from types import FunctionType
from typing import Any, Literal
from unittest.mock import Mock

import pytest

from mlxbert.machine.device import mx, nn
from mlxbert.nn import fused_kernels

Arrays = dict[str, mx.array]
# The primitives whose `eval_gpu` raises, read in MLX 0.32.2, and the file in mlx/backend/metal. Load and the
# collectives choose the CPU by themselves; they have no place in a pass or an update.
REFUSED = {name: "primitives.cpp" for name in ("Load", "QRF", "SVD", "Inverse", "Cholesky", "Eig", "Eigh", "LUF")}
REFUSED |= {name: "distributed.cpp" for name in ("AllReduce", "AllGather", "Send", "Recv", "ReduceScatter")}
SCATTERS = {"Scatter", "ScatterAxis"}  # indexing.cpp: refused for types of 8 bytes, but sums of complex64
_EIGHT_BYTES = (mx.int64, mx.uint64, mx.complex64)
# Views, mlx/backend/gpu/primitives.cpp and mlx/backend/common: they share the buffer. Three of them copy where strides
# leave no other way (Reshape, Flatten, Unflatten), so the count of kernels is too low by those.
_VIEWS = {
    "AsStrided", "Broadcast", "BroadcastAxes", "CustomTransforms", "Depends", "ExpandDims", "Flatten", "Reshape",
    "Slice", "Split", "Squeeze", "StopGradient", "Transpose", "Unflatten", "View",
}  # fmt: skip
_eval = mx.eval
_FAST = ("layer_norm", "rms_norm", "scaled_dot_product_attention")


def forget_compiled() -> None:
    """Frees the compiled functions of a GPU: an earlier test may have made them while nothing was compiled."""
    for module, names in (("nn.gpu", ("_fused", "_fused_rotation")), ("train.loop.optimizer_steps", ("_compiled",))):
        for name in names if (loaded := sys.modules.get(f"mlxbert.{module}")) else ():
            getattr(loaded, name).cache_clear()


def build_for_a_gpu(patch: pytest.MonkeyPatch) -> None:
    """Makes mlxbert build graphs for a GPU, evaluates nothing, and fails if a stream is chosen: a GPU has only one."""
    forget_compiled()
    for name, module in [*sys.modules.items()]:
        if name.partition(".")[0] == "mlxbert" and "on_gpu" in vars(module):
            patch.setattr(module, "on_gpu", lambda: True)
    for name in ("eval", "async_eval"):
        patch.setattr(mx, name, lambda *arrays: None)
    for name in ("stream", "new_stream", "set_default_stream", "set_default_device"):
        patch.setattr(mx, name, Mock(side_effect=AssertionError("a graph for a GPU has a part on another stream")))


@dataclass(frozen=True)
class Node:
    """A primitive of a graph."""

    name: str  # `Compiled` if `mx.compile` fused it
    inputs: tuple[str, ...]  # the names of arrays, including constants
    outputs: tuple[str, ...]

    @property
    def arrays(self) -> int:
        return len(self.inputs) + len(self.outputs)


@dataclass(frozen=True)
class Attention:
    """A call of `mx.fast.scaled_dot_product_attention`, which a CPU replaces by several kernels (see `Fused`)."""

    queries: int
    keys: int


@dataclass(frozen=True)
class Norm:
    """A call of `mx.fast.layer_norm`, which a CPU replaces by several kernels (see `Fused`)."""

    width: int
    dtype: mx.Dtype


class Graph:
    """The primitives that compute some arrays, and the calls of `mx.fast` that these arrays need."""

    def __init__(self, arrays: Iterable[mx.array], calls: Sequence[Attention | Norm] = ()) -> None:
        dot = io.StringIO()
        mx.export_to_dot(dot, *arrays)
        self.nodes = [*_nodes(dot.getvalue().splitlines())]
        self.calls = calls

        self.makers = {name: node for node in self.nodes for name in node.outputs}

    def before(self, node: Node, through: AbstractSet[str], inputs: int | None = None) -> Iterator[Node]:
        """Yields what computes a primitive's first `inputs` inputs, or all, and what is before that in `through`."""
        for name in node.inputs[:inputs]:
            if (maker := self.makers.get(name)) is not None:
                yield maker
                if maker.name in through:
                    yield from self.before(maker, through)

    def after(self, node: Node, through: AbstractSet[str]) -> Iterator[Node]:
        """Yields the primitives that take a primitive's outputs, and those after what of them is in `through`."""
        for taker in self.nodes:
            if {*node.outputs} & {*taker.inputs}:
                yield taker
                if taker.name in through:
                    yield from self.after(taker, through)


def _nodes(lines: Iterable[str]) -> Iterator[Node]:
    """Parses a graph: a line with the name of each primitive, followed by the lines of its inputs and its outputs."""
    name: str | None = None
    inputs, outputs = list[str](), list[str]()
    for line in lines:
        if label := re.search(r'\[label ="([^"]*)", shape=rectangle\]', line):
            if name is not None:
                yield Node(name, tuple(inputs), tuple(outputs))
            name = "Compiled" if label[1].startswith("Compiled") else label[1]
            inputs, outputs = [], []
        elif into := re.fullmatch(r'"(\w+)" -> \d+', line):
            inputs.append(into[1])
        elif out := re.fullmatch(r'\d+ -> "(\w+)"', line):
            outputs.append(out[1])
    if name is not None:
        yield Node(name, tuple(inputs), tuple(outputs))


@dataclass(frozen=True)
class Pattern:
    """A pattern in graphs that MLX rejects or computes wrongly on a GPU."""

    name: str
    backends: Literal["Metal", "CUDA", "both"]
    report: str  # the report of the problem, or the file of MLX that shows it
    find: Callable[[Graph], Iterable[object]]  # the primitives or calls of a graph that match


_MOST_ARRAYS = 28  # of a fused kernel; Metal binds 31, and its shape and strides are up to 3 of them
_STRIDED = {"Broadcast", "Depends", "ExpandDims", "Slice", "Squeeze", "StopGradient", "Transpose"}  # views that may be
_FEW, _MANY = 8, 1024  # queries of Metal's vector attention, and keys from which on it takes two passes


def _large_kernels(graph: Graph) -> list[Node]:
    return [node for node in graph.nodes if node.name == "Compiled" and node.arrays > _MOST_ARRAYS]


def _gathered_beside(views: AbstractSet[str], graph: Graph) -> list[Node]:
    """Returns products of gathered matrices in which a matrix is a view, or whose result is turned into a view."""
    products = (node for node in graph.nodes if node.name == "GatherMM")
    near = ((node, (*graph.before(node, _STRIDED, 2), *graph.after(node, _STRIDED))) for node in products)
    return [node for node, others in near if any(neighbor.name in views for neighbor in others)]


def _sorts_of(views: AbstractSet[str], graph: Graph) -> list[Node]:
    sorts = (node for node in graph.nodes if node.name in ("Sort", "ArgSort", "Partition", "ArgPartition"))
    return [node for node in sorts if any(source.name in views for source in graph.before(node, _STRIDED))]


PATTERNS = [
    Pattern("more arrays in a fused kernel than Metal binds", "Metal", "ml-explore/mlx#1880", _large_kernels),
    Pattern("a gathered product next to an inserted axis", "CUDA", "ml-explore/mlx#4253",
            partial(_gathered_beside, {"ExpandDims", "Squeeze"})),
    Pattern("a sort of a transposed view", "both", "ml-explore/mlx#4366",
            partial(_sorts_of, {"AsStrided", "Transpose"})),
    Pattern("attention of few queries to many keys", "Metal", "ml-explore/mlx#4022", lambda graph: [
        call for call in graph.calls if isinstance(call, Attention) and call.queries <= _FEW and call.keys >= _MANY
    ]),
    Pattern("a layer norm in training whose rows 16 bytes do not divide", "CUDA",
            "mlx/backend/cuda/layer_norm.cu", lambda graph: [
        call for call in graph.calls if isinstance(call, Norm) and call.width % (16 // call.dtype.size)
    ]),
]  # fmt: skip


def wrong(graph: Graph, *, training: bool = True) -> list[str]:
    """Returns the patterns in a graph that MLX rejects or computes wrongly, in all versions that mlxbert supports."""
    patterns = (pattern for pattern in PATTERNS if training or "training" not in pattern.name)
    return [f"{pattern.name} ({pattern.report})" for pattern in patterns if [*pattern.find(graph)]]


def primitives(arrays: Graph | Iterable[mx.array]) -> Counter[str]:
    """Counts the primitives of a graph by name; everything that `mx.compile` fuses counts as one `Compiled`."""
    return Counter(node.name for node in (arrays if isinstance(arrays, Graph) else Graph(arrays)).nodes)


def kernels(arrays: Graph | Iterable[mx.array]) -> int:
    """Returns the number of primitives that are not views, which is about the number of kernels that a GPU launches."""
    return sum(count for name, count in primitives(arrays).items() if name.split()[0] not in _VIEWS)


def refused(arrays: Graph | Iterable[mx.array]) -> list[str]:
    """Returns the primitives of a graph for which Metal has no kernel."""
    return sorted({name for name in primitives(arrays) if REFUSED.keys() & {*name.split()}})


class Fused:
    """Counts the surplus kernels: a CPU runs several kernels for a function of `mx.fast`, a GPU runs one."""

    def __init__(self, patch: pytest.MonkeyPatch) -> None:
        self.surplus, self.calls = 0, list[Attention | Norm]()
        for name in _FAST:
            patch.setattr(mx.fast, name, self._counted(getattr(mx.fast, name)))

    def _counted(self, function: Callable[..., mx.array]) -> Callable[..., mx.array]:
        def call(*arrays: Any, **options: Any) -> mx.array:
            if function.__name__ == "layer_norm":
                self.calls.append(Norm(arrays[0].shape[-1], arrays[0].dtype))
            if function.__name__ == "scaled_dot_product_attention":
                self.calls.append(Attention(arrays[0].shape[-2], arrays[1].shape[-2]))
            arguments, named = nn.utils.tree_map(_alone, [arrays, options])
            self.surplus += kernels([function(*arguments, **named)]) - 1
            return function(*arrays, **options)

        return call


def _alone(value: Any) -> Any:
    """Returns an evaluated array of the same shape and dtype, so that a function of it has a separate graph."""
    if not isinstance(value, mx.array):
        return value
    zeros = mx.zeros(value.shape, dtype=value.dtype)
    _eval(zeros)
    return zeros


def faults(patch: pytest.MonkeyPatch, function: Callable[..., list[mx.array]], parameters: Arrays) -> list[str]:
    """Returns what Metal rejects, including dtypes, in the graph of a function; `parameters` are its arguments by name.

    MLX's exporter does not accept custom functions. They are replaced by plain functions, whose derivatives MLX finds
    itself; `refused` checks graphs with the custom derivatives. The exporter does not accept copies either; they are
    left out, because a copy has the dtype of its input. Compiled functions are traced.
    """
    patch.setattr(mx, "contiguous", lambda array: array)
    patch.setattr(fused_kernels, "activation", lambda function: function)
    patch.setattr(fused_kernels, "cast", lambda dtype: lambda x: x.astype(dtype))
    for name, module in [*sys.modules.items()]:
        if name.partition(".")[0] == "mlxbert":
            for attribute, value in [*vars(module).items()]:
                if isinstance(value, mx.custom_function):
                    patch.setattr(module, attribute, _plain(value))
    rejected: list[str] = []

    def see(node: dict[str, Any]) -> None:
        if node["type"] == "primitive":
            rejected.extend(_faults(node["name"], [dtype for _, _, dtype in node["outputs"]]))

    mx.export_function(see, function, **parameters)  # type: ignore[arg-type]
    return sorted({*rejected})


def _plain(function: Any) -> FunctionType:
    return next(referent for referent in gc.get_referents(function) if isinstance(referent, FunctionType))


def _faults(name: str, dtypes: list[mx.Dtype]) -> list[str]:
    rejected = [name] if name in REFUSED else []
    # array.cpp: "not supported on the GPU"
    rejected += [f"{name} of {dtype}" for dtype in dtypes if dtype == mx.float64]
    return rejected + [f"{name} of {dtype}" for dtype in dtypes if name in SCATTERS and dtype in _EIGHT_BYTES]
