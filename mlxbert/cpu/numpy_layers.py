"""Activations, dense layers and norms on a Linux CPU with numpy's vector instructions.

MLX's wheel is built for any x86-64 processor: an operation processes four numbers at a time and takes 0.15 to 0.3 ns
for each, and an exponential or GELU consists of some twenty operations. numpy processes sixteen numbers at a time,
computes in place in a core's cache, and has an exponential: a softmax takes 1.3 ns per element instead of 7, a GELU 2.5
instead of 4.5. MLX still computes matrix products.

Functions for inference evaluate their inputs, so they run only within `mlxbert.nn.ops.inference`. A training step first
builds its graph, with arrays that numpy fills when their turn comes (see `mlxbert.cpu.cores.stages`).
"""

import functools
import math
import os
from collections.abc import Callable
from functools import partial
from itertools import pairwise
from typing import Any, TypeAlias, cast

from mlxbert.cpu import mlx_kernels
from mlxbert.cpu.cores import cores_at_hand, fill, fills, over_cores
from mlxbert.lazy_numpy import NDArray, np
from mlxbert.machine.device import mx, nn

Floats: TypeAlias = "NDArray[np.float32]"

_MIN_SIZE = 2**17  # elements; fewer take less time than importing numpy


def pays(size: int) -> bool:
    """Whether numpy is used to compute arrays of this many elements in inference."""
    return size >= _MIN_SIZE and shares_memory()


def pays_in_training(size: int) -> bool:
    """Whether numpy is used to compute arrays of this many elements in a training step."""
    return size >= _MIN_SIZE and fills() and shares_memory()


@functools.cache
def shares_memory() -> bool:
    """Whether numpy accesses the memory of an evaluated array without a copy; the code in this file depends on that."""
    array = mx.zeros(2) + 1
    mx.eval(array)
    view = np.asarray(array)
    if view.flags.writeable:
        view += 1
    return bool(mx.array_equal(array, mx.full(2, 2.0)))


@functools.cache
def block_size() -> int:
    """The number of float32 elements in a block: twice a core's cache, or two mebibytes if its size is unknown.

    With half as many elements, calls and waiting make attention 4 to 8 % slower; with a quarter, 18 to 26 %.
    """
    try:
        cache = os.sysconf("SC_LEVEL2_CACHE_SIZE")
    except (ValueError, OSError):
        cache = 0
    return 2 * max(cache if cache > 0 else 2**20, 2**18) // 4


def new(shape: tuple[int, ...], value: float = math.nan) -> "tuple[mx.array, Floats]":
    """Creates an array to be filled, and numpy's view of its memory; MLX would copy an array created by numpy."""
    array = mx.full(shape, value)
    mx.eval(array)
    return array, np.asarray(array)


def slices(length: int, limit: int, multiple: int = 1) -> list[slice]:
    """Splits an axis into slices of nearly equal length, at most `limit`; the last slice is the longest.

    The number of slices is a multiple of `multiple` if the axis is long enough.
    """
    count = min(math.ceil(math.ceil(length / limit) / multiple) * multiple, length)
    ends = [length * number // count for number in range(count + 1)]
    return [slice(*part) for part in pairwise(ends)]


def _gelu(x: "Floats", tail: "Floats", distance: "Floats") -> None:
    """The same as `mlx_kernels.gelu`, bit for bit."""
    np.abs(x, out=distance)
    np.minimum(distance, _constants(mlx_kernels.TAIL_END, x.shape), out=distance)
    np.multiply(distance, mlx_kernels.TAIL[0], out=tail)
    tail += mlx_kernels.TAIL[1]
    for coefficient in mlx_kernels.TAIL[2:]:
        tail *= distance
        tail += coefficient
    for _ in range(4):
        tail *= tail
    tail *= distance
    np.maximum(x, _constants(0.0, x.shape), out=x)
    x -= tail


@functools.lru_cache(8)
def _constants(value: float, shape: tuple[int, ...]) -> "Floats":
    """Returns an array filled with `value`, because numpy's `minimum` takes three times as long with a plain number."""
    return np.full(shape, value, dtype=np.float32)


def _gelu_tanh(x: "Floats", inner: "Floats", _: "Floats") -> None:
    np.multiply(x, x, out=inner)
    inner *= 0.044715 * math.sqrt(2 / math.pi)
    inner += math.sqrt(2 / math.pi)
    inner *= x
    np.tanh(inner, out=inner)
    inner += 1
    x *= 0.5
    x *= inner


def _silu(x: "Floats", inner: "Floats", _: "Floats", slope: float = 1.0) -> None:
    np.multiply(x, -slope, out=inner)
    np.exp(inner, out=inner)
    inner += 1
    x /= inner


def _gelu_tanh_slope(x: "Floats", slope: "Floats", tanh: "Floats") -> None:
    linear, cubic = math.sqrt(2 / math.pi), 0.044715 * math.sqrt(2 / math.pi)
    np.clip(x, -10, 10, out=x)  # beyond, the slope is 0 or 1, and powers of x may overflow
    np.multiply(x, x, out=slope)
    np.multiply(slope, cubic, out=tanh)
    tanh += linear
    tanh *= x
    np.tanh(tanh, out=tanh)
    slope *= 3 * cubic
    slope += linear
    slope *= x  # times the derivative of the cubic polynomial
    np.multiply(tanh, tanh, out=x)
    np.subtract(1, x, out=x)
    slope *= x
    slope += tanh
    slope += 1
    slope *= 0.5


def _silu_slope(x: "Floats", slope: "Floats", share: "Floats", factor: float = 1.0) -> None:
    x *= factor
    np.negative(x, out=share)
    np.exp(share, out=share)
    share += 1
    np.reciprocal(share, out=share)
    np.subtract(1, share, out=slope)
    slope *= x
    slope += 1
    slope *= share


def _gelu_slope(x: "Floats", slope: "Floats", square: "Floats") -> None:
    """The derivative of GELU, as in `mlx_kernels.gelu`."""
    np.clip(x, -mlx_kernels.SLOPE_END, mlx_kernels.SLOPE_END, out=x)
    np.multiply(x, x, out=square)
    np.multiply(square, mlx_kernels.SLOPE_P[0], out=slope)
    slope += mlx_kernels.SLOPE_P[1]
    for coefficient in mlx_kernels.SLOPE_P[2:]:
        slope *= square
        slope += coefficient
    slope *= x
    np.add(square, mlx_kernels.SLOPE_Q[1], out=x)
    for coefficient in mlx_kernels.SLOPE_Q[2:]:
        x *= square
        x += coefficient
    slope /= x
    slope += 0.5


# Each function changes its first array in place and uses the others as buffers.
ACTIVATIONS: dict[str, Callable[["Floats", "Floats", "Floats"], None]] = {
    "gelu": _gelu,
    "gelu_python": _gelu,
    "gelu_new": _gelu_tanh,
    "gelu_pytorch_tanh": _gelu_tanh,
    "gelu_fast": _gelu_tanh,
    "quick_gelu": partial(_silu, slope=1.702),
    "silu": _silu,
    "swish": _silu,
}

# Their derivatives: each function reads the first array, overwrites it, and writes the result into the second.
SLOPES: dict[str, Callable[["Floats", "Floats", "Floats"], None]] = {
    "gelu": _gelu_slope,
    "gelu_python": _gelu_slope,
    "gelu_new": _gelu_tanh_slope,
    "gelu_pytorch_tanh": _gelu_tanh_slope,
    "gelu_fast": _gelu_tanh_slope,
    "quick_gelu": partial(_silu_slope, factor=1.702),
    "silu": _silu_slope,
    "swish": _silu_slope,
}


def activates(name: str, layer: nn.Linear, x: mx.array) -> bool:
    """Whether numpy computes the activation of `layer(x)` in inference."""
    return name in ACTIVATIONS and x.dtype == mx.float32 and pays(x.size // x.shape[-1] * layer.weight.shape[0])


def activated(name: str, layer: nn.Linear, x: mx.array) -> mx.array:
    """Computes the activation of `layer(x)` in parts that fit into the cache together with their buffers."""
    values = x @ layer.weight.T
    mx.eval(values)
    rows: Floats = np.asarray(values).reshape(-1, values.shape[-1])  # shares the memory of `values`
    bias = np.asarray(layer.bias) if "bias" in layer else None
    parts = [rows[part] for part in slices(len(rows), _rows_in_cache(rows), cores_at_hand())]
    over_cores(partial(_activate, name=name, bias=bias), parts)
    return values


def activate_in_place(name: str, rows: "Floats") -> None:
    """Replaces rows by their activation, on one core."""
    _activate([rows[part] for part in slices(len(rows), _rows_in_cache(rows))], name, None)


def _rows_in_cache(rows: "Floats") -> int:
    """The number of rows that fit into the cache together with their buffers."""
    return max(1, block_size() // 4 // rows.shape[1])


def _activate(parts: list["Floats"], name: str, bias: "Floats | None") -> list[None]:
    first, second = np.empty((2, *max(parts, key=len).shape), dtype=np.float32)
    with np.errstate(all="ignore"):
        for part in parts:
            if bias is not None:
                part += bias
            ACTIVATIONS[name](part, first[: len(part)], second[: len(part)])
    return [None] * len(parts)


def learns(name: str, layer: nn.Linear, x: mx.array) -> bool:
    """Whether numpy computes the activation of `layer(x)` and the derivative of the activation in a training step."""
    size = x.size // x.shape[-1] * layer.weight.shape[0]
    return name in SLOPES and x.dtype == mx.float32 and pays_in_training(size)


def learned(name: str, layer: nn.Linear, x: mx.array) -> mx.array:
    """Computes the activation of `layer(x)`, differentiable with respect to `x`, the weight and the bias."""
    y: mx.array = _learned(name)(x, layer.weight, [layer.bias] if "bias" in layer else [])[0]
    return y


@functools.cache
def _learned(name: str) -> Callable[..., tuple[mx.array, mx.array]]:
    @mx.custom_function
    def activated_dense(x: mx.array, weight: mx.array, biases: mlx_kernels.Arrays) -> Any:
        values = x @ weight.T
        (y, result), (slope, slopes) = new(values.shape), new(values.shape)
        fill(partial(_fill, values, biases, name, result, slopes))
        return y, slope

    @activated_dense.vjp
    def vjp(inputs: Any, cotangents: Any, outputs: Any) -> Any:
        return mlx_kernels.dense_vjp(inputs, cotangents[0] * outputs[1])

    return cast(Callable[..., tuple[mx.array, mx.array]], activated_dense)


def _fill(values: mx.array, biases: mlx_kernels.Arrays, name: str, result: "Floats", slopes: "Floats") -> None:
    """Computes the activation of a layer into `result`, and the derivative of the activation into `slopes`.

    `values` is the product of the layer's input and weight, without the bias; it is overwritten.
    """
    mx.eval(values, biases)
    rows, result, slopes = (array.reshape(-1, array.shape[-1]) for array in (np.asarray(values), result, slopes))
    parts = slices(len(rows), max(1, block_size() // 8 // rows.shape[1]))
    first, second = np.empty((2, *rows[parts[-1]].shape), dtype=np.float32)
    with np.errstate(all="ignore"):
        for part in parts:
            block = rows[part]
            for bias in biases:
                block += np.asarray(bias)
            result[part] = block
            ACTIVATIONS[name](result[part], first[: len(block)], second[: len(block)])
            SLOPES[name](block, slopes[part], first[: len(block)])


def normalized(x: mx.array, eps: float) -> mx.array:
    """Scales `x` to mean 0 and variance 1. Sums are products with ones: 0.2 ns per element instead of MLX's 1.5."""
    width = x.shape[-1]
    ones = mx.ones((width, 1))
    centred = x - (x @ ones) * (1 / width)
    variance = (centred * centred @ ones) * (1 / width)
    return centred * mx.rsqrt(variance + eps)


def unit_rms(x: mx.array, eps: float) -> mx.array:
    """Scales `x` to a mean square of 1 (see `normalized`)."""
    width = x.shape[-1]
    return x * mx.rsqrt((x * x @ mx.ones((width, 1))) * (1 / width) + eps)
