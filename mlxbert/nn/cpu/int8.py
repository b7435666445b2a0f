"""8-bit dense layers for Linux CPUs, computed by ONNX Runtime.

A weight is rounded once, with a scale for each row. The input of a layer is rounded whenever it is multiplied, with a
scale for each text, so that no text makes the numbers of another one coarse; the padding of a text counts. The sums are
exact, in 32 bits. Processors have instructions for such products: on one core they take a fifth to a third of the time
of float32.

Shapes: B batch, L length, N output size, K input size.
"""

import functools
import importlib
import platform
import sys
from pathlib import Path
from typing import Any

from mlxbert.errors import ArgumentError, CheckpointError
from mlxbert.machine.device import mx, nn, on_gpu
from mlxbert.optional_packages import install_command

_LEVELS = 127  # of weights, on either side of 0
_SMALLEST = 1e-12  # the largest number of a row counts as this at least, so that a row of zeros has a scale
# Without these instructions of x86, ONNX Runtime adds products of 8 bits in 16 bits, which can overflow.
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
        except Exception as problem:  # a package that does not fit to another one raises errors of all kinds
            raise ArgumentError(
                f"dtype is 'int8', which needs the package {package} ({problem})", hint=install_command("int8")
            ) from None


@functools.cache
def _instructions() -> frozenset[str]:
    """Returns the names that Linux gives to the instructions of this processor."""
    try:
        lines = Path("/proc/cpuinfo").read_text(errors="replace").splitlines()
    except OSError:
        return frozenset()
    return frozenset(next((line for line in lines if line.startswith(("flags", "Features"))), "").split())


class Int8Linear(nn.Module):
    """A dense layer in 8 bits; it cannot be trained, differentiated or saved.

    Args:
        layer: The dense layer to round, in float32.

    Attributes:
        parameters_rounded: The number of weights and biases, which are not among the parameters of the module.

    Raises:
        CheckpointError: A weight is not finite, which 8 bits cannot say.
    """

    def __init__(self, layer: nn.Linear) -> None:
        super().__init__()
        import numpy as np

        weight = np.asarray(layer.weight)
        bias = np.asarray(layer.bias) if "bias" in layer else np.zeros(len(weight), np.float32)
        if not np.isfinite(weight).all():
            raise CheckpointError("a weight is not finite, so it cannot be rounded to 8 bits", hint=_INSTEAD)
        self._product, self._width = _make_product(weight, bias), len(weight)
        self.parameters_rounded = weight.size + (bias.size if "bias" in layer else 0)

    def __call__(self, x: Any) -> Any:
        """(B, L, K) or (L, K), float32, in MLX's or in numpy's form → the same with N."""
        import numpy as np

        if isinstance(x, mx.array):
            product = mx.custom_function(lambda x: mx.array(self(np.asarray(x))))
            product.vjp(_refuse)
            return product(x)
        y = np.empty((*x.shape[:-1], self._width), np.float32)
        texts = np.ascontiguousarray(x, np.float32).reshape(-1, *x.shape[-2:])
        for text, result in zip(texts, y.reshape(-1, *y.shape[-2:]), strict=True):
            # Rounded to 8 bits, NaN would become a number; the caller is to find it.
            result[:] = self._product.run(None, {"x": text})[0] if np.isfinite(text).all() else np.nan
        return y


def _refuse(*_: Any) -> Any:
    raise ArgumentError("the model was loaded in int8, so it has no gradients", hint="load it in float32")


def _make_product(weight: Any, bias: Any) -> Any:
    """Makes the session of ONNX Runtime that computes `x @ weight.T + bias` on one core, from float32 (N, K), (N,)."""
    import numpy as np
    import onnxruntime
    from onnx import TensorProto, helper, numpy_helper

    _share_memory()
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
    options.add_session_config_entry("session.use_env_allocators", "1")
    options.intra_op_num_threads = options.inter_op_num_threads = 1  # the texts of a batch share the cores
    return onnxruntime.InferenceSession(model.SerializeToString(), options, providers=["CPUExecutionProvider"])


@functools.cache
def _share_memory() -> None:
    """Makes all sessions share their memory; each would keep as much as its largest output, in dozens of layers."""
    import onnxruntime

    kind = onnxruntime.OrtAllocatorType.ORT_ARENA_ALLOCATOR
    information = onnxruntime.OrtMemoryInfo("Cpu", kind, 0, onnxruntime.OrtMemType.DEFAULT)
    onnxruntime.create_and_register_allocator(information, None)
