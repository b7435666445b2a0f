"""Dense layers in 8 bits on a Linux CPU, whose products ONNX Runtime computes.

A weight is rounded to 8 bits with a scale for each row, and the input of a layer with a scale for each text, whenever
it is multiplied: what a text gives does not depend on the texts next to it in a batch. The sums are exact, in 32 bits.
Processors have instructions for such products, which take a quarter of the time of float32 and less.

Shapes: B batch, L length, N output size, K input size.
"""

import functools
import importlib
import platform
import sys
from pathlib import Path
from typing import Any

from mlxbert.errors import ArgumentError
from mlxbert.machine.device import mx, nn, on_gpu

_LEVELS = 127  # of weights, on either side of 0
_SMALLEST = 1e-12  # of the scales of rows, so that a row of zeros has one
# Without these instructions of x86, ONNX Runtime adds products of 8 bits in 16 bits, which is not enough for them.
_INSTRUCTIONS = {"x86_64": ("avx512_vnni", "avx_vnni"), "aarch64": ("asimddp",)}
_INSTEAD = "dtype='float32' works everywhere"


def check() -> None:
    """Raises ArgumentError if this device cannot compute in 8 bits."""
    if on_gpu() or sys.platform != "linux":
        raise ArgumentError(
            "dtype is 'int8', which only Linux computes, on a CPU",
            hint="device='cpu' uses the CPU" if on_gpu() and sys.platform == "linux" else _INSTEAD,
        )
    needed = _INSTRUCTIONS.get(platform.machine(), ())
    if not any(name in _instructions() for name in needed):
        raise ArgumentError(
            f"dtype is 'int8', for which this processor ({platform.machine()}) lacks instructions: expected "
            f"{' or '.join(needed) or 'x86-64 or arm64'}",
            hint=_INSTEAD,
        )
    for package in ("onnxruntime", "onnx"):
        try:
            importlib.import_module(package)
        except ImportError as problem:
            raise ArgumentError(
                f"dtype is 'int8', which needs the package {package} ({problem})", hint='pip install "mlxbert[int8]"'
            ) from None


@functools.cache
def _instructions() -> frozenset[str]:
    """Returns the names that Linux gives to the instructions of this processor."""
    lines = Path("/proc/cpuinfo").read_text(errors="replace").splitlines()
    return frozenset(next((line for line in lines if line.startswith(("flags", "Features"))), "").split())


class Int8Linear(nn.Module):
    """A dense layer in 8 bits; it cannot be trained or saved.

    Args:
        layer: The dense layer to round, in float32.

    Attributes:
        parameters_rounded: The number of weights and biases, which are not among the parameters of the module.
    """

    def __init__(self, layer: nn.Linear) -> None:
        super().__init__()
        import numpy as np

        weight = np.asarray(layer.weight.astype(mx.float32))
        bias = np.asarray(layer.bias.astype(mx.float32)) if "bias" in layer else np.zeros(len(weight), np.float32)
        self._product, self._width = _make_product(weight, bias), len(weight)
        self.parameters_rounded = weight.size + (bias.size if "bias" in layer else 0)

    def __call__(self, x: Any) -> Any:
        """(B, L, K) or (L, K), in MLX's or in numpy's form → the same with N."""
        import numpy as np

        if isinstance(x, mx.array):
            return mx.array(self(np.asarray(x.astype(mx.float32)))).astype(x.dtype)
        y = np.empty((*x.shape[:-1], self._width), np.float32)
        texts = np.ascontiguousarray(x, np.float32).reshape(-1, *x.shape[-2:])
        for text, result in zip(texts, y.reshape(-1, *y.shape[-2:]), strict=True):
            result[:] = self._product.run(None, {"x": text})[0]
        return y


def _make_product(weight: Any, bias: Any) -> Any:
    """Makes the session of ONNX Runtime that computes `x @ weight.T + bias` on one core, from float32 (N, K), (N,)."""
    import numpy as np
    import onnxruntime
    from onnx import TensorProto, helper, numpy_helper

    scales = np.maximum(np.abs(weight).max(axis=1), _SMALLEST) / _LEVELS
    rounded = np.rint(weight / scales[:, None]).astype(np.int8)
    constants = {
        "weight": np.ascontiguousarray(rounded.T), "scales": scales.astype(np.float32),
        "zeros": np.zeros(len(weight), np.int8), "bias": bias,
    }  # fmt: skip
    graph = helper.make_graph(
        [helper.make_node("DynamicQuantizeMatMul", ["x", *constants], ["y"], domain="com.microsoft")],
        "product",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, ["rows", weight.shape[1]])],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, ["rows", len(weight)])],
        [numpy_helper.from_array(array, name) for name, array in constants.items()],
    )
    model = helper.make_model(
        graph, opset_imports=[helper.make_opsetid("", 17), helper.make_opsetid("com.microsoft", 1)], ir_version=9
    )
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = options.inter_op_num_threads = 1  # the texts of a batch share the cores
    return onnxruntime.InferenceSession(model.SerializeToString(), options, providers=["CPUExecutionProvider"])
