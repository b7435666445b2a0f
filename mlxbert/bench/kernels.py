"""MLX's kernels next to numpy in float64: those that the layers use, in shapes that take different paths on a GPU.

Each check yields what was computed and what should have been; inputs are rounded to the dtype first, so that only the
kernel's own error counts.
"""

import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from itertools import product
from typing import Any

import numpy as np
from numpy.typing import NDArray

from mlxbert.machine.device import dtype_name, mx, on_gpu
from mlxbert.nn import gpu
from mlxbert.nn.activations import ACTIVATIONS
from mlxbert.nn.cpu import windows
from mlxbert.nn.ops import activate

F64 = NDArray[np.float64]
DTYPES = (mx.float32, mx.float16, mx.bfloat16)
# Allowed errors, as shares of the largest value of the reference (of 1 at least). TF32 misses the first by far.
ALLOWED = {"float32": 1e-5, "float16": 4e-3, "bfloat16": 3e-2}
_WIDTH, _EPS = 512, 1e-12


@dataclass(frozen=True)
class Computed:
    """What a kernel computed.

    Attributes:
        kernel: What was computed, with its shape.
        dtype: In which dtype.
        found: The result; nothing is evaluated yet.
        expected: The result in float64.
        exact: Whether both have to be equal.
        factor: How much more error is allowed than of others.
    """

    kernel: str
    dtype: str
    found: mx.array
    expected: F64 | NDArray[Any]
    exact: bool = False
    factor: float = 1.0


class _Inputs:
    """Random inputs in a dtype, and the same values in float64."""

    def __init__(self, dtype: mx.Dtype) -> None:
        self._rng, self.dtype = np.random.default_rng(1), dtype

    def draw(self, *shape: int) -> tuple[mx.array, F64]:
        array = mx.array(self._rng.standard_normal(shape, np.float32)).astype(self.dtype)
        return array, as_float64(array)

    def ids(self, most: int, *shape: int) -> NDArray[np.int32]:
        return self._rng.integers(0, most, shape, np.int32)


def as_float64(array: mx.array) -> F64:
    """An array of MLX for numpy."""
    return np.array(array.astype(mx.float32)).astype(np.float64)


def kernels() -> Iterator[tuple[str, str, Callable[[], Iterator[Computed]]]]:
    """The groups of checks: their name, their dtype, and what makes them."""
    for group, make in (
        ("products", _products), ("attention", _attention), ("attention", _local_attention), ("attention", _fused),
        ("activations", _activations), ("norms", _norms),
        ("sums", _sums), ("indices", _indices), ("quantized", _quantized),
    ):  # fmt: skip
        for dtype in DTYPES:
            yield group, dtype_name(dtype), partial(_made, make, dtype)
    yield "dropout", "bool", _dropout


def _made(make: Callable[[_Inputs], Iterator[Computed]], dtype: mx.Dtype) -> Iterator[Computed]:
    return make(_Inputs(dtype))


def _products(inputs: _Inputs) -> Iterator[Computed]:
    name = dtype_name(inputs.dtype)
    for rows in (4, 64, 1024):
        (a, x), (b, y) = inputs.draw(rows, _WIDTH), inputs.draw(_WIDTH, _WIDTH)
        scale = _WIDTH**-0.5  # results near 1
        b, y = b * scale, as_float64(b * scale)
        yield Computed(f"product of ({rows}, {_WIDTH}) and ({_WIDTH}, {_WIDTH})", name, a @ b, x @ y)
        yield Computed(f"product of ({rows}, {_WIDTH}) and a transposed matrix", name, a @ b.T, x @ y.T)
        yield Computed(
            f"product of a transposed matrix ({rows}, {_WIDTH})", name, a.T @ (a * scale),
            x.T @ as_float64(a * scale),
        )  # fmt: skip


def _softmax(scores: F64) -> F64:
    shares = np.exp(scores - scores.max(-1, keepdims=True))
    return shares / shares.sum(-1, keepdims=True)


def _attention(inputs: _Inputs) -> Iterator[Computed]:
    """Inputs of different lengths; in one case the second sees no key, and the first has to stay finite."""
    name, batch, heads = dtype_name(inputs.dtype), 2, 3
    for size in (32, 64, 96):
        for length in (17, 128, 512):
            (q, a), (k, b), (v, c) = (inputs.draw(batch, heads, length, size) for _ in range(3))
            seen = np.arange(length)[None] < np.array([[length], [max(length // 2, 1)]])
            masks: dict[str, tuple[mx.array | None, NDArray[Any]]] = {
                "no mask": (None, np.zeros((batch, 1, 1, length))),
                "a boolean mask": (mx.array(seen)[:, None, None], np.where(seen, 0, -np.inf)[:, None, None]),
            }
            bias, added = inputs.draw(1, heads, length, length)
            masks["an additive mask"] = bias, added
            for kind, (mask, shift) in masks.items():
                expected = _softmax(a @ b.swapaxes(-1, -2) * size**-0.5 + shift) @ c
                yield Computed(
                    f"attention, head size {size}, length {length}, {kind}", name,
                    gpu.attention(q, k, v, size**-0.5, mask, gradient=False),
                    expected,
                )  # fmt: skip
            none = mx.concatenate([mx.array(seen[:1]), mx.zeros_like(mx.array(seen[:1]))])[:, None, None]
            yield Computed(
                f"attention, head size {size}, length {length}, one input masked as a whole", name,
                mx.isfinite(gpu.attention(q, k, v, size**-0.5, none, gradient=False)[0]).all(),
                np.array(1.0), exact=True,
            )  # fmt: skip


def _local_attention(inputs: _Inputs) -> Iterator[Computed]:
    """In blocks, as layers with a sliding window do on GPUs; of the second input half is padding."""
    length, window, size = 600, 64, 64
    (q, a), (k, b), (v, c) = (inputs.draw(2, 3, length, size) for _ in range(3))
    seen = (np.arange(length) < np.array([[length], [length // 2]]))[:, None]
    blocks = windows.blocks(length, window, mx.array(seen)[:, None])
    assert blocks is not None
    found = gpu.attention_in_blocks(q, k, v, size**-0.5, blocks)
    near = np.abs(np.arange(length)[:, None] - np.arange(length)) <= window
    shift = np.where(near & seen, 0, -1e9)[:, None]
    real = seen[:, :, :, None]
    yield Computed(
        f"attention to {window} tokens on each side, head size {size}, length {length}", dtype_name(inputs.dtype),
        found * mx.array(real), _softmax(a @ b.swapaxes(-1, -2) * size**-0.5 + shift) @ c * real,
    )  # fmt: skip


def _fused(inputs: _Inputs) -> Iterator[Computed]:
    """Whether MLX has one kernel for the shapes that `gpu.is_fused` says; only MLX newer than 0.32.1 can be asked."""
    if not (on_gpu() and gpu.on_metal()):
        return
    for size, queries in product((32, 48, 64, 72, 80, 96, 128), (8, 128)):
        q, _ = inputs.draw(1, 1, queries, size)
        try:
            mx.fast.scaled_dot_product_attention(q, q, q, scale=1.0, force_fused=True)
            found = True
        except ValueError:
            found = False
        except TypeError:  # an unknown argument
            return
        yield Computed(
            f"attention of {queries} queries, head size {size}, in one kernel", dtype_name(inputs.dtype),
            mx.array(found), np.array(gpu.is_fused(size, queries, inputs.dtype, None, gradient=False)), exact=True,
        )  # fmt: skip


_erf = np.vectorize(math.erf, otypes=[np.float64])
_FORMULAS: dict[str, Callable[[F64], F64]] = {
    "gelu": lambda x: 0.5 * x * (1 + _erf(x / math.sqrt(2))),
    "gelu_new": lambda x: 0.5 * x * (1 + np.tanh(math.sqrt(2 / math.pi) * (x + 0.044715 * x**3))),
    "quick_gelu": lambda x: x / (1 + np.exp(-1.702 * x)),
    "silu": lambda x: x / (1 + np.exp(-x)),
    "relu": lambda x: np.maximum(x, 0),
    "tanh": np.tanh,
    "sigmoid": lambda x: 1 / (1 + np.exp(-x)),
}
_STEP = 1e-4  # of central differences


def _activations(inputs: _Inputs) -> Iterator[Computed]:
    assert {ACTIVATIONS[name] for name in _FORMULAS} == set(ACTIVATIONS.values()) - {ACTIVATIONS["linear"]}
    x = mx.array(np.linspace(-9, 9, 4099, dtype=np.float32)).astype(inputs.dtype)
    values, dtype = as_float64(x), dtype_name(inputs.dtype)
    for name, formula in _FORMULAS.items():
        yield Computed(name, dtype, activate(name, x), formula(values))
        slope = (formula(values + _STEP) - formula(values - _STEP)) / (2 * _STEP)
        kept = values != 0 if name == "relu" else np.ones_like(values, bool)  # whose slope at 0 is a convention
        yield Computed(
            f"gradient of {name}", dtype,
            mx.grad(partial(_sum_of_activation, name))(x) * mx.array(kept),
            slope * kept,
        )  # fmt: skip


def _sum_of_activation(name: str, x: mx.array) -> mx.array:
    return activate(name, x).sum()


def _norms(inputs: _Inputs) -> Iterator[Computed]:
    dtype = dtype_name(inputs.dtype)
    for width in (384, 1024):
        (x, a), (weight, w), (bias, b) = inputs.draw(40, width), inputs.draw(width), inputs.draw(width)
        centred = a - a.mean(-1, keepdims=True)
        scale = 1 / np.sqrt(centred.var(-1, keepdims=True) + _EPS)
        normed = centred * scale
        yield Computed(
            f"layer norm of {width}", dtype,
            mx.fast.layer_norm(x, weight, bias, _EPS), normed * w + b,
        )  # fmt: skip
        up, u = inputs.draw(40, width)
        pulled = u * w
        expected = scale * (
            pulled - pulled.mean(-1, keepdims=True) - normed * (pulled * normed).mean(-1, keepdims=True)
        )
        yield Computed(
            f"gradient of layer norm of {width}", dtype,
            mx.grad(partial(_sum_of_norm, weight, bias, up))(x),
            expected,
        )  # fmt: skip


def _sum_of_norm(weight: mx.array, bias: mx.array, up: mx.array, x: mx.array) -> mx.array:
    return (mx.fast.layer_norm(x, weight, bias, _EPS) * up).astype(mx.float32).sum()


def _sums(inputs: _Inputs) -> Iterator[Computed]:
    """Over a vocabulary, in float32 as the losses are."""
    dtype = dtype_name(inputs.dtype)
    x, a = inputs.draw(8, 30_000)
    largest = a.max(-1, keepdims=True)
    yield Computed(
        "logsumexp over 30,000", dtype, mx.logsumexp(x.astype(mx.float32), axis=-1),
        np.log(np.exp(a - largest).sum(-1)) + largest[:, 0],
    )  # fmt: skip
    yield Computed(
        "softmax over 30,000", dtype, mx.softmax(x.astype(mx.float32), axis=-1).max(-1) * 1000,
        _softmax(a).max(-1) * 1000,
    )  # fmt: skip
    yield Computed("sum of 30,000", dtype, (x.astype(mx.float32) ** 2).sum(-1) / 30_000, (a**2).mean(-1))


def _indices(inputs: _Inputs) -> Iterator[Computed]:
    dtype = dtype_name(inputs.dtype)
    table, t = inputs.draw(1000, 64)
    ids = inputs.ids(50, 8, 40)  # each several times
    yield Computed("rows of a table", dtype, table[mx.array(ids)], t[ids], exact=True)
    up, u = inputs.draw(8, 40, 64)
    expected = np.zeros_like(t)
    np.add.at(expected, ids, u)
    yield Computed(
        "gradient of rows of a table", dtype,
        mx.grad(lambda table: (table[mx.array(ids)] * up).astype(mx.float32).sum())(table), expected,
    )  # fmt: skip
    x, a = inputs.draw(4, 30_000)
    a = np.sort(a, axis=-1)[:, -5:]
    yield Computed(
        "the 5 largest of 30,000", dtype,
        mx.sort(mx.take_along_axis(x, mx.argpartition(x, kth=-5, axis=-1)[:, -5:], axis=-1), axis=-1), a,
        exact=True,
    )  # fmt: skip


def _quantized(inputs: _Inputs) -> Iterator[Computed]:
    (x, a), (weight, _) = inputs.draw(40, _WIDTH), inputs.draw(_WIDTH, _WIDTH)
    packed, scales, biases = mx.quantize(weight * _WIDTH**-0.5, bits=8, group_size=64)
    whole = as_float64(
        mx.dequantize(packed, scales.astype(mx.float32), biases.astype(mx.float32), bits=8, group_size=64)
    )
    yield Computed(
        f"product of ({40}, {_WIDTH}) and 8-bit weights", dtype_name(inputs.dtype),
        mx.quantized_matmul(x, packed, scales, biases, bits=8, group_size=64), a @ whole.T,
        factor=4,  # on a CPU half precision is summed in half precision
    )  # fmt: skip


def _dropout() -> Iterator[Computed]:
    """The same bits as the CPU: a run that is resumed on another device drops the same values."""
    key = mx.random.key(7)
    bits = mx.random.bernoulli(0.9, (40, 384), key, stream=mx.cpu)
    yield Computed("bits of dropout", "bool", mx.random.bernoulli(0.9, (40, 384), key), np.array(bits), exact=True)
