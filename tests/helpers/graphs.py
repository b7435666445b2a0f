"""The graphs that MLX would run on a Mac's GPU, built but not run, on a machine without one.

On a CPU, MLX unfolds what `mx.fast` fuses on a GPU. `Fused` says how many kernels too many are counted for that.
"""

import gc
import importlib.metadata
import io
import re
import sys
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Iterator, Sequence, Set as AbstractSet
from dataclasses import dataclass
from functools import cached_property, partial
from types import FunctionType
from typing import Any, Literal, NoReturn

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


def build_for_a_gpu(patch: pytest.MonkeyPatch) -> None:
    """Takes the paths of GPUs, evaluates nothing, and fails where a stream is chosen: a GPU has one."""
    for name, module in [*sys.modules.items()]:
        if name.partition(".")[0] == "mlxbert" and "on_gpu" in vars(module):
            patch.setattr(module, "on_gpu", lambda: True)
    for name in ("eval", "async_eval"):
        patch.setattr(mx, name, lambda *arrays: None)
    for name in ("stream", "new_stream", "set_default_stream", "set_default_device"):
        patch.setattr(mx, name, _another_stream)


def _another_stream(*given: object) -> NoReturn:
    raise AssertionError(f"a graph for a GPU has a part on another stream: {given}")


@dataclass(frozen=True)
class Node:
    """A primitive of a graph.

    Attributes:
        name: Its name; `Compiled` of what `mx.compile` fuses.
        inputs: The names of the arrays that it takes, constants in it among them.
        outputs: The names of those that it gives.
    """

    name: str
    inputs: tuple[str, ...]
    outputs: tuple[str, ...]

    @property
    def arrays(self) -> int:
        """How many arrays its kernel has as arguments."""
        return len(self.inputs) + len(self.outputs)


@dataclass(frozen=True)
class Attention:
    """A call of `mx.fast.scaled_dot_product_attention`, which a CPU unfolds; see `Fused`."""

    queries: int
    keys: int


@dataclass(frozen=True)
class Norm:
    """A call of `mx.fast.layer_norm`, which a CPU unfolds; see `Fused`."""

    width: int
    dtype: mx.Dtype


class Graph:
    """The primitives that arrays are computed from, and the calls of `mx.fast` that were made for them.

    Attributes:
        nodes: The primitives, in the order of `mx.export_to_dot`.
        calls: The calls.
    """

    def __init__(self, arrays: Iterable[mx.array], calls: Sequence[Attention | Norm] = ()) -> None:
        dot = io.StringIO()
        mx.export_to_dot(dot, *arrays)
        self.nodes = [*_nodes(dot.getvalue().splitlines())]
        self.calls = calls

    @cached_property
    def makers(self) -> dict[str, Node]:
        """The primitive of each array that is computed."""
        return {name: node for node in self.nodes for name in node.outputs}

    @cached_property
    def takers(self) -> dict[str, list[Node]]:
        """The primitives that take each array."""
        found: dict[str, list[Node]] = defaultdict(list)
        for node in self.nodes:
            for name in node.inputs:
                found[name].append(node)
        return found

    def before(self, node: Node, through: AbstractSet[str], inputs: int | None = None) -> Iterator[Node]:
        """The primitives that a primitive gets its first inputs from; beyond those in `through`, also theirs."""
        for name in node.inputs[:inputs]:
            if (maker := self.makers.get(name)) is not None:
                yield maker
                if maker.name in through:
                    yield from self.before(maker, through)

    def after(self, node: Node, through: AbstractSet[str]) -> Iterator[Node]:
        """The primitives that take a primitive's arrays; beyond those in `through`, also theirs."""
        for name in node.outputs:
            for taker in self.takers[name]:
                yield taker
                if taker.name in through:
                    yield from self.after(taker, through)


def _nodes(lines: Iterable[str]) -> Iterator[Node]:
    """Each primitive is a line with its name, the lines of its inputs, and those of its outputs."""
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
    """Something in a graph that MLX refuses or computes wrongly on a GPU.

    Attributes:
        name: What it is.
        backends: Where.
        report: The report, or the file of MLX where it is read.
        since: The version of MLX in which it is; the first that mlxbert runs on, if it is older.
        until: The first version in which it is not; `None` as long as there is none.
        find: The primitives or calls of a graph that have it.
    """

    name: str
    backends: Literal["Metal", "CUDA", "both"]
    report: str
    since: str
    until: str | None
    find: Callable[[Graph], Iterable[object]]


_MOST_ARRAYS = 28  # of a fused kernel; Metal binds 31, and its shape and strides are up to 3 of them
_STRIDED = {"Broadcast", "Depends", "ExpandDims", "Slice", "Squeeze", "StopGradient", "Transpose"}  # views that may be
_FEW, _MANY = 8, 1024  # queries of Metal's vector attention, and keys from which on it takes two passes


def _large_kernels(graph: Graph) -> list[Node]:
    return [node for node in graph.nodes if node.name == "Compiled" and node.arrays > _MOST_ARRAYS]


def _gathered_beside(views: AbstractSet[str], graph: Graph) -> list[Node]:
    """Products of gathered matrices that take one from a view, or whose result a view is of; not its indices."""
    products = (node for node in graph.nodes if node.name == "GatherMM")
    near = ((node, (*graph.before(node, _STRIDED, 2), *graph.after(node, _STRIDED))) for node in products)
    return [node for node, others in near if any(one.name in views for one in others)]


def _sorts_of(views: AbstractSet[str], graph: Graph) -> list[Node]:
    """Sorts of an array that is a view."""
    sorts = (node for node in graph.nodes if node.name in ("Sort", "ArgSort", "Partition", "ArgPartition"))
    return [node for node in sorts if any(one.name in views for one in graph.before(node, _STRIDED))]


PATTERNS = [
    Pattern("more arrays in a fused kernel than Metal binds", "Metal", "ml-explore/mlx#1880", "0.32.1", None,
            _large_kernels),
    Pattern("a gathered product next to an inserted axis", "CUDA", "ml-explore/mlx#4253", "0.32.1", None,
            partial(_gathered_beside, {"ExpandDims", "Squeeze"})),
    Pattern("a sort of a transposed view", "both", "ml-explore/mlx#4366", "0.32.1", None,
            partial(_sorts_of, {"AsStrided", "Transpose"})),
    Pattern("attention of few queries to many keys", "Metal", "ml-explore/mlx#4022", "0.32.1", None, lambda graph: [
        call for call in graph.calls if isinstance(call, Attention) and call.queries <= _FEW and call.keys >= _MANY
    ]),
    Pattern("a layer norm in training whose rows 16 bytes do not divide", "CUDA",
            "mlx/backend/cuda/layer_norm.cu", "0.32.1", None, lambda graph: [
        call for call in graph.calls if isinstance(call, Norm) and call.width % (16 // call.dtype.size)
    ]),
]  # fmt: skip


def wrong(graph: Graph, *, training: bool = True) -> list[str]:
    """The patterns of `PATTERNS` that a graph has, of those that are in the installed MLX."""
    here = _version(importlib.metadata.version("mlx"))
    return [
        f"{pattern.name} ({pattern.report})"
        for pattern in PATTERNS
        if _version(pattern.since) <= here and (pattern.until is None or here < _version(pattern.until))
        if training or "training" not in pattern.name
        if [*pattern.find(graph)]
    ]


def _version(text: str) -> tuple[int, ...]:
    return tuple(map(int, re.findall(r"\d+", text)[:3]))


def primitives(arrays: Iterable[mx.array]) -> Counter[str]:
    """The primitives of a graph by name; what `mx.compile` fuses is one, `Compiled`."""
    return Counter(node.name for node in Graph(arrays).nodes)


def kernels(arrays: Iterable[mx.array]) -> int:
    """The primitives of a graph that are not views, about the number of kernels that a GPU launches."""
    return sum(count for name, count in primitives(arrays).items() if name.split()[0] not in _VIEWS)


def refused(arrays: Iterable[mx.array]) -> list[str]:
    """The primitives of a graph for which Metal has no kernel."""
    return sorted({name for name in primitives(arrays) if REFUSED.keys() & {*name.split()}})


class Fused:
    """Counts the kernels that a CPU has for the functions of `mx.fast` beyond the one that a GPU has.

    Attributes:
        surplus: How many it has seen.
        calls: The calls that patterns are about.
    """

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
            given, named = nn.utils.tree_map(_alone, [arrays, options])
            self.surplus += kernels([function(*given, **named)]) - 1
            return function(*arrays, **options)

        return call


def _alone(value: Any) -> Any:
    """An evaluated array like another, so that a function of it has a graph of its own."""
    if not isinstance(value, mx.array):
        return value
    zeros = mx.zeros(value.shape, dtype=value.dtype)
    _eval(zeros)
    return zeros


def faults(patch: pytest.MonkeyPatch, function: Callable[..., list[mx.array]], parameters: Arrays) -> list[str]:
    """What Metal refuses in the graph of a function of parameters by name, its dtypes included.

    The exporter does not take custom functions, so their derivatives are those that MLX finds by itself here; the
    functions that give theirs are in the graph for `refused`. Neither does it take copies, whose dtype is that of what
    is copied. Compiled functions are traced through.
    """
    patch.setattr(mx, "contiguous", lambda array: array)
    patch.setattr(fused_kernels, "activation", lambda function: function)
    patch.setattr(fused_kernels, "cast", lambda dtype: lambda x: x.astype(dtype))
    for name, module in [*sys.modules.items()]:
        if name.partition(".")[0] == "mlxbert":
            for attribute, value in [*vars(module).items()]:
                if isinstance(value, mx.custom_function):
                    patch.setattr(module, attribute, _plain(value))
    found: list[str] = []

    def see(node: dict[str, Any]) -> None:
        if node["type"] == "primitive":
            found.extend(_faults(node["name"], [dtype for _, _, dtype in node["outputs"]]))

    mx.export_function(see, function, **parameters)  # type: ignore[arg-type]
    return sorted({*found})


def _plain(function: Any) -> FunctionType:
    """The Python function in an `mx.custom_function`: the first that was given."""
    return next(one for one in gc.get_referents(function) if isinstance(one, FunctionType))


def _faults(name: str, dtypes: list[mx.Dtype]) -> list[str]:
    found = [name] if name in REFUSED else []
    found += [f"{name} of {dtype}" for dtype in dtypes if dtype == mx.float64]  # array.cpp: "not supported on the GPU"
    return found + [f"{name} of {dtype}" for dtype in dtypes if name in SCATTERS and dtype in _EIGHT_BYTES]
