"""The graphs that MLX would run on a Mac's GPU, built but not run, on a machine without one.

On a CPU, MLX unfolds what `mx.fast` fuses on a GPU. `Fused` says how many kernels too many are counted for that.
"""

import gc
import io
import re
import sys
from collections import Counter
from collections.abc import Callable, Iterable
from types import FunctionType
from typing import Any, NoReturn

import pytest

from mlxbert.machine.device import mx, nn

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


def primitives(arrays: Iterable[mx.array]) -> Counter[str]:
    """The primitives of a graph by name; what `mx.compile` fuses is one, `Compiled`."""
    dot = io.StringIO()
    mx.export_to_dot(dot, *arrays)
    found = re.findall(r'\[label ="([^"]*)", shape=rectangle\]', dot.getvalue())
    return Counter("Compiled" if name.startswith("Compiled") else name for name in found)


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
    """

    def __init__(self, patch: pytest.MonkeyPatch) -> None:
        self.surplus = 0
        for name in _FAST:
            patch.setattr(mx.fast, name, self._counted(getattr(mx.fast, name)))

    def _counted(self, function: Callable[..., mx.array]) -> Callable[..., mx.array]:
        def call(*arrays: Any, **options: Any) -> mx.array:
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
