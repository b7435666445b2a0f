"""Compares the operations of models with numpy in float64, in shapes for which a GPU uses different kernels.

Inputs are rounded to the dtype first, so that only the error of the operation counts.

The first run on a GPU compiles most kernels, and each of them may take a second or two. On CUDA, there is a kernel for
each fused function, for each gather or scatter in each dtype, and, in half precision, for each shape of attention.
Therefore fewer shapes are checked in half precision: its kernels have the same source as those for float32, and differ
only in loading, converting and rounding. `tests/doctor` counts the kernels.
"""

from collections.abc import Callable, Iterator
from functools import partial
from itertools import product

import numpy as np
from numpy.typing import NDArray

from mlxbert.doctor.check import formulas
from mlxbert.doctor.check.formulas import F64
from mlxbert.doctor.check.operations import DTYPES, CheckedOperation, ComputedOperation, RandomInputs, as_float64
from mlxbert.machine.device import mx, on_cpu, on_gpu
from mlxbert.nn import dropout, gpu_attention, ops
from mlxbert.nn.activations import ACTIVATIONS
from mlxbert.nn.backend import PositionedQK
from mlxbert.nn.ops import backend, inference

WIDTH, BATCH, HEADS = 512, 2, 3
EPS = 1e-5  # of norms; the variance of some rows is not much larger
HALF_ACTIVATIONS = ("gelu", "gelu_new")  # their sums lose all digits, or overflow, in half precision
WIDTHS = (17, 30, 32, 384, 768)  # of layer norms
RMS_WIDTHS = (10, 30, 128, 256, 512, 768)
_USES_PRODUCTS = frozenset({"products"})
_EXPERTS = 4


def _in_both_modes(
    name: str, compute: Callable[[], mx.array], expected: F64, *, odd: bool = False
) -> Iterator[ComputedOperation]:
    """Yields the checks of a computation as training does it, and as inference does it."""
    yield ComputedOperation(name, compute(), expected, odd=odd)
    with inference():
        yield ComputedOperation(f"{name}, in inference", compute(), expected, odd=odd)


def is_odd(*widths: int) -> bool:
    """Whether one of the widths occurs in no published model, that is, whether it is not a multiple of 8."""
    return any(width % 8 for width in widths)


def kernels() -> Iterator[CheckedOperation]:
    """Yields the operations in an order in which each comes before the operations that use it."""
    yield CheckedOperation("products", "products", _products, quick=DTYPES)
    yield CheckedOperation("linear layers", "products", _linear, uses=_USES_PRODUCTS)
    yield CheckedOperation("quantized products", "quantized", _quantized)
    for name in formulas.ACTIVATIONS:
        half = name in HALF_ACTIVATIONS
        dtypes, quick = DTYPES if half else DTYPES[:1], DTYPES[:1] if name == "gelu" else ()
        yield CheckedOperation(name, "activations", partial(_activation, name), dtypes, quick=quick)
    yield CheckedOperation(
        "activated layers", "activations", _activated, DTYPES[:1], frozenset({"linear layers", "products", "gelu"})
    )
    sums = frozenset() if on_gpu() else _USES_PRODUCTS  # sums of rows: a CPU multiplies by ones
    yield CheckedOperation("layer norm", "norms", _layer_norm, uses=sums, quick=DTYPES)
    yield CheckedOperation("RMS norm", "norms", _rms_norm, uses=sums)
    yield CheckedOperation("attention", "attention", _attention, uses=_USES_PRODUCTS, quick=DTYPES)
    yield CheckedOperation(
        "attention to neighbors", "attention", _local_attention, uses=frozenset({"attention", "products"})
    )
    yield CheckedOperation("attention in one kernel", "attention", _fused)
    yield CheckedOperation("attention weights", "attention", _attention_weights, uses=_USES_PRODUCTS)
    yield CheckedOperation("rotation", "attention", _rotation)
    yield CheckedOperation("mixture of experts", "mixture", _mixture, uses=frozenset({"products", "gelu"}))
    yield CheckedOperation("sums", "sums", _sums, DTYPES[:1], quick=DTYPES[:1])
    yield CheckedOperation("rows of a table", "indices", _rows, quick=DTYPES[:1])
    yield CheckedOperation("largest values", "indices", _largest, DTYPES[:1])
    yield CheckedOperation("dropout", "dropout", _dropout, DTYPES[:1], quick=DTYPES[:1])


# A compiler of Metal once made kernels for M5 chips that were right for 256 rows of 2,048 numbers and wrong for 1,024
# (ml-explore/mlx#3586). On a CPU, the code of half precision is the same for all sizes, and takes seconds for these.
_SHAPES = ((4, WIDTH, WIDTH), (64, WIDTH, WIDTH), (1024, WIDTH, WIDTH))
_LARGE = ((1024, 2048, 2048), (2048, 768, 3072))


def _products(inputs: RandomInputs) -> Iterator[ComputedOperation]:
    for rows, width, size in (*_SHAPES, *_LARGE) if inputs.wide or on_gpu() else _SHAPES:
        (a, x), (up, u) = inputs.draw(rows, width), inputs.draw(rows, size)
        b, y = inputs.draw(width, size, scale=width**-0.5)  # makes results near 1
        yield ComputedOperation(f"product of ({rows}, {width}) and ({width}, {size})", a @ b, x @ y)
        yield ComputedOperation(f"product of ({rows}, {size}) and a transposed matrix", up @ b.T, u @ y.T)
        yield ComputedOperation(f"product of a transposed matrix ({rows}, {width})", a.T @ up, x.T @ u)


def linear(inputs: RandomInputs, width: int, size: int) -> tuple[ops.Linear, F64]:
    """Makes a linear layer with random weights and biases; returns the layer, and its weights in float64."""
    layer = ops.Linear(width, size)
    (layer.weight, weight), (layer.bias, _) = inputs.draw(size, width, scale=width**-0.5), inputs.draw(size)
    return layer, weight


def _linear(inputs: RandomInputs) -> Iterator[ComputedOperation]:
    for width, size in ((30, 41), (64, 64)) if inputs.wide else ((64, 64),):
        layer, weight = linear(inputs, width, size)
        for rows in (5, 1024):
            x, a = inputs.draw(rows, width)
            name, expected = f"linear layer {width} -> {size}, {rows} rows", a @ weight.T + as_float64(layer.bias)
            yield from _in_both_modes(name, partial(layer, x), expected, odd=is_odd(width, size))


def quantized(inputs: RandomInputs) -> tuple[Callable[[mx.array], mx.array], F64, float]:
    """Makes 8-bit weights (width, width).

    Returns the product with them, the weights in float64, and a factor for the allowed error: unpacking rounds the
    weights again, and a CPU accumulates half precision in half precision.
    """
    weight, _ = inputs.draw(WIDTH, WIDTH, scale=WIDTH**-0.5)
    packed, scales, biases = mx.quantize(weight, bits=8, group_size=64)
    unpacked = mx.dequantize(packed, scales.astype(mx.float32), biases.astype(mx.float32), bits=8, group_size=64)
    factor = 1.0 if inputs.wide else 8.0 if mx.default_device() == mx.cpu else 2.0
    return (
        lambda x: mx.quantized_matmul(x, packed, scales, biases, bits=8, group_size=64), as_float64(unpacked), factor
    )  # fmt: skip


def _quantized(inputs: RandomInputs) -> Iterator[ComputedOperation]:
    (multiply, weight, factor), (x, a) = quantized(inputs), inputs.draw(40, WIDTH)
    yield ComputedOperation(f"product of (40, {WIDTH}) and 8-bit weights", multiply(x), a @ weight.T, factor=factor)


def activation_inputs(inputs: RandomInputs) -> tuple[mx.array, F64]:
    """Returns numbers from -9 to 9 in the dtype of the check, and the same numbers in float64."""
    x = mx.array(np.linspace(-9, 9, 4099, dtype=np.float32)).astype(inputs.dtype)
    return x, as_float64(x)


def _activation(name: str, inputs: RandomInputs) -> Iterator[ComputedOperation]:
    assert {ACTIVATIONS[name] for name in formulas.ACTIVATIONS} == {*ACTIVATIONS.values()} - {ACTIVATIONS["linear"]}
    x, values = activation_inputs(inputs)
    yield ComputedOperation(name, backend().activate(name, x), formulas.ACTIVATIONS[name](values))


def _activated(inputs: RandomInputs) -> Iterator[ComputedOperation]:
    """Checks a linear layer with its activation; in inference, a CPU computes both in a single pass."""
    layer, weight = linear(inputs, 64, 128)
    x, a = inputs.draw(1024, 64)
    expected = formulas.ACTIVATIONS["gelu"](a @ weight.T + as_float64(layer.bias))
    yield from _in_both_modes("linear layer with gelu", partial(backend().activated, "gelu", layer, x), expected)


def rows_of(inputs: RandomInputs, rows: int, width: int) -> tuple[mx.array, F64, F64]:
    """Returns the input rows for a norm, the same rows in float64, and the scale of each row, (N, 1).

    Every other row is so small that the `EPS` of the norm matters. The gradients of small rows are large; multiplied by
    the scales, the gradients of all rows have a similar size.
    """
    x, _ = inputs.draw(rows, width)
    scale = np.where(np.arange(rows)[:, None] % 2, 2.0**-7, 1.0)
    x = x * mx.array(scale, dtype=inputs.dtype)
    return x, as_float64(x), scale


def _layer_norm(inputs: RandomInputs) -> Iterator[ComputedOperation]:
    for width in WIDTHS if inputs.wide else (30, 768):
        (x, a, _), (weight, w), (bias, b) = rows_of(inputs, 40, width), inputs.draw(width), inputs.draw(width)
        layer = ops.LayerNorm(width, eps=EPS)
        layer.weight, layer.bias = weight, bias
        expected, *_ = formulas.layer_norm(a, w, b, EPS, np.zeros_like(a))
        yield from _in_both_modes(f"layer norm of {width}", partial(layer, x), expected, odd=is_odd(width))


def _rms_norm(inputs: RandomInputs) -> Iterator[ComputedOperation]:
    for width in RMS_WIDTHS if inputs.wide else (256, 768):
        (x, a, _), (weight, w) = rows_of(inputs, 40, width), inputs.draw(width)
        layer = ops.RMSNorm(width, eps=EPS, plus_one=False)
        layer.weight = weight
        expected, *_ = formulas.rms_norm(a, w, EPS, np.zeros_like(a))
        yield from _in_both_modes(f"RMS norm of {width}", partial(layer, x), expected, odd=is_odd(width))


# Cases of attention: head size, length and mask. Metal has a kernel for each head size from 64 on, another for up to 8
# queries, and pads narrow heads from 256 keys on; CUDA uses products in float32, and plans of cuDNN in half precision.
MASKS = NONE, BOOLEAN, ADDED = ("no mask", "a boolean mask", "an additive mask")
WHOLE = "one input masked as a whole"
_FEW = (64, 5, NONE)
_CASES = (*product((32, 64, 96), (17, 128), MASKS), *product((32, 64), (512,), MASKS), (64, 17, WHOLE), _FEW)
_HALF_CASES = (
    *product((64,), (17, 128), (NONE, ADDED)), (64, 17, WHOLE), (64, 128, BOOLEAN), (96, 128, BOOLEAN),
    (32, 512, BOOLEAN), _FEW,
)  # fmt: skip


_FEW_CASES = ((64, 17, WHOLE), (64, 128, BOOLEAN))


def masked(inputs: RandomInputs, length: int, kind: str) -> tuple[mx.array | None, F64]:
    """Returns a mask for a batch of two texts, and the float64 numbers that the reference adds to its scores for it.

    If `kind` is `ADDED`, the mask consists of random numbers for each head, which are added to the scores. If it is
    `NONE`, there is no mask. Otherwise, the mask is boolean and excludes half of the second text or, if `kind` is
    `WHOLE`, the whole second text. That text then has no defined result, so the numbers for the reference do not mask
    it, but it must not change the result of the first text.
    """
    if kind == ADDED:
        return inputs.draw(1, HEADS, length, length)
    nothing = np.zeros((1, 1, 1, 1))
    if kind == NONE:
        return None, nothing
    seen = np.arange(length)[None] < np.array([[length], [length // 2]])
    if kind == WHOLE:
        return mx.array(seen & [[True], [False]])[:, None, None], nothing
    return mx.array(seen)[:, None, None], np.where(seen, 0.0, -np.inf)[:, None, None]


def _attention(inputs: RandomInputs) -> Iterator[ComputedOperation]:
    """Checks attention as layers compute it on a GPU; on a CPU, also checks the functions that layers use there."""
    for size, length, kind in _FEW_CASES if inputs.few else _CASES if inputs.wide else _HALF_CASES:
        (q, a), (k, b), (v, c) = (inputs.draw(BATCH, HEADS, length, size) for _ in range(3))
        mask, shift = masked(inputs, length, kind)
        defined = slice(1) if kind == WHOLE else slice(None)
        expected = (formulas.attention_weights(a, b, size**-0.5, shift) @ c)[defined]
        name = f"attention, head size {size}, length {length}, {kind}"
        factor = score_factor(inputs)
        result = gpu_attention.attention(q, k, v, size**-0.5, mask, gradient=False)[defined]
        yield ComputedOperation(name, result, expected, factor=factor)
        if not on_gpu():
            qk = positioned(q, k, mask, kind)
            result = backend().attention(qk, v, size**-0.5, NO_DROPOUT)[defined]
            yield ComputedOperation(f"{name}, CPU function", result, expected, factor=factor)
            with inference():
                result = backend().attention(qk, v, size**-0.5, NO_DROPOUT)[defined]
            yield ComputedOperation(f"{name}, CPU function in inference", result, expected, factor=factor)


def score_factor(inputs: RandomInputs) -> float:
    """Returns a factor for the allowed error of attention.

    In half precision, the factor allows for a second rounding: that of the scores before the softmax.
    """
    return 1.0 if inputs.wide else 1.8


def positioned(q: mx.array, k: mx.array, mask: mx.array | None, kind: str) -> PositionedQK:
    """Combines queries, keys and a mask, in the form that layers pass to attention; an `ADDED` mask is the bias."""
    return PositionedQK(q, k, bias=mask) if kind == ADDED else PositionedQK(q, k, mask=mask)


NO_DROPOUT = dropout.KeyedDropout(None)


def _local_attention(inputs: RandomInputs) -> Iterator[ComputedOperation]:
    """Checks attention in blocks, which GPUs use for sliding windows; half of the second text is padding."""
    length, window, size = 600, 64, 64
    (q, a), (k, b), (v, c) = (inputs.draw(BATCH, HEADS, length, size) for _ in range(3))
    seen = (np.arange(length) < np.array([[length], [length // 2]]))[:, None]
    blocks = gpu_attention.blocks(length, window, mx.array(seen)[:, None])
    assert blocks is not None
    result = gpu_attention.attention_in_blocks(q, k, v, size**-0.5, blocks)
    near = np.abs(np.arange(length)[:, None] - np.arange(length)) <= window
    shift = np.where(near & seen, 0, -1e9)[:, None]
    real = seen[:, :, :, None]
    yield ComputedOperation(
        f"attention to {window} tokens on each side, head size {size}, length {length}",
        result * mx.array(real), formulas.attention_weights(a, b, size**-0.5, shift) @ c * real,
        factor=score_factor(inputs),
    )  # fmt: skip


def _fused(inputs: RandomInputs) -> Iterator[ComputedOperation]:
    """Checks that `gpu_attention.is_fused` knows for which shapes MLX computes attention in a single kernel.

    Yields nothing on a device without Metal.
    """
    if not (on_gpu() and gpu_attention.on_metal()):
        return
    for size, queries in product((32, 48, 64, 72, 80, 96, 128), (8, 128)):
        q, _ = inputs.draw(1, 1, queries, size)
        try:
            mx.fast.scaled_dot_product_attention(q, q, q, scale=1.0, force_fused=True)
            fused = True
        except ValueError:
            fused = False
        yield ComputedOperation(
            f"attention of {queries} queries, head size {size}, in one kernel", mx.array(fused),
            np.array(gpu_attention.is_fused(size, queries, inputs.dtype, None, gradient=False)), exact=True,
        )  # fmt: skip


def _attention_weights(inputs: RandomInputs) -> Iterator[ComputedOperation]:
    for length, size in ((17, 10), (128, 64)):
        (q, a), (k, b) = (inputs.draw(BATCH, HEADS, length, size) for _ in range(2))
        mask, shift = masked(inputs, length, BOOLEAN)
        yield ComputedOperation(
            f"attention weights, head size {size}, length {length}",
            backend().attention_weights(PositionedQK(q, k, mask=mask), size**-0.5),
            formulas.attention_weights(a, b, size**-0.5, shift), factor=score_factor(inputs), odd=is_odd(size),
        )  # fmt: skip


def rotation_inputs(inputs: RandomInputs) -> tuple[list[mx.array], list[F64]]:
    """Returns vectors, cosines and sines for a rotation: first as MLX arrays, then in float64."""
    angles = np.arange(17)[:, None] * 10_000.0 ** (-np.arange(32) / 32)
    arrays = [
        inputs.draw(BATCH, HEADS, 17, 64)[0],
        *(mx.array(x).astype(inputs.dtype) for x in (np.cos(angles), np.sin(angles))),
    ]
    return arrays, [as_float64(array) for array in arrays]


def _rotation(inputs: RandomInputs) -> Iterator[ComputedOperation]:
    (x, cosines, sines), values = rotation_inputs(inputs)
    yield ComputedOperation("rotation", backend().rotate(x, cosines, sines), formulas.rotated(*values))


Mixture = tuple[list[mx.array], list[F64], NDArray[np.int32]]


def mixture_inputs(inputs: RandomInputs) -> Mixture:
    """Returns the inputs of a mixture of experts as MLX arrays, the same in float64, and each token's chosen experts.

    The inputs are the tokens, the two weight matrices of the experts, and the weights of the chosen experts.
    """
    drawn = [
        inputs.draw(40, 32), *(inputs.draw(_EXPERTS, 48, 32, scale=scale) for scale in (32**-0.5, 48**-0.5)),
        inputs.draw(40, 2),
    ]  # fmt: skip
    first = inputs.ids(_EXPERTS, 40)
    chosen = np.stack([first, (first + 1 + inputs.ids(_EXPERTS - 1, 40)) % _EXPERTS], axis=1)
    return [array for array, _ in drawn], [values for _, values in drawn], chosen


def _mixture(inputs: RandomInputs) -> Iterator[ComputedOperation]:
    (tokens, up, down, weights), (t, u, d, w), chosen = mixture_inputs(inputs)
    expected, _ = formulas.mixture(t, u, d, chosen, w, formulas.ACTIVATIONS["gelu"], np.zeros_like(t))
    arguments = tokens, up, down, mx.array(chosen), weights, "gelu"
    yield ComputedOperation("mixture of experts", backend().mixture(*arguments), expected, factor=2)
    if not on_gpu():  # a GPU computes inference in the same way
        with inference():
            found = backend().mixture(*arguments)
            yield ComputedOperation("mixture of experts, in inference", found, expected, factor=2)


def _sums(inputs: RandomInputs) -> Iterator[ComputedOperation]:
    """Checks sums over a vocabulary in float32, the dtype of losses."""
    x, a = inputs.draw(8, 30_000)
    yield ComputedOperation("logsumexp over 30,000", backend().log_sum_exp(x), formulas.log_sum_exp(a))
    # MLX on a CPU adds the numbers sequentially.
    yield ComputedOperation("softmax over 30,000", backend().softmax(x).max(-1), formulas.softmax(a).max(-1), factor=4)
    yield ComputedOperation("sum of 30,000", (x**2).sum(-1), (a**2).sum(-1), factor=4)


def _rows(inputs: RandomInputs) -> Iterator[ComputedOperation]:
    for width in (30, 64) if inputs.wide else (64,):
        table, t = inputs.draw(1000, width)
        ids = inputs.ids(50, 8, 40)
        yield ComputedOperation(
            f"rows of a table of {width}", table[mx.array(ids)], t[ids], exact=True, odd=is_odd(width)
        )


def _largest(inputs: RandomInputs) -> Iterator[ComputedOperation]:
    x, a = inputs.draw(4, 30_000)
    best = mx.argpartition(x, kth=-5, axis=-1)[:, -5:]
    yield ComputedOperation(
        "the 5 largest of 30,000", mx.sort(mx.take_along_axis(x, best, axis=-1), axis=-1),
        np.sort(a, axis=-1)[:, -5:], exact=True,
    )  # fmt: skip


_RATE, _DRAWN = 0.1, (40, 384)


def _dropout(inputs: RandomInputs) -> Iterator[ComputedOperation]:
    """Checks that dropout masks are random, and equal those of a CPU, so that a run can resume on another device.

    With 15,360 numbers, the share of kept numbers has a standard deviation of 0.0024. For the share of bits that are
    equal in two masks, it is 0.0031.
    """
    key = mx.random.key(7)
    with dropout.seeded(key):
        (here, factor), (next_one, _) = (dropout.draw_mask(_DRAWN, _RATE) for _ in range(2))
    with on_cpu(), dropout.seeded(key):
        bits = [np.array(dropout.draw_mask(_DRAWN, _RATE)[0]) for _ in range(2)]
    for place, (found, expected) in enumerate(zip((here, next_one), bits, strict=True), 1):
        yield ComputedOperation(f"bits of dropout, place {place}", found, expected, exact=True)
    loose = 0.12 / 1e-5  # allows 0.02 of the share, see `ComputedOperation.error`
    yield ComputedOperation(
        "share that dropout keeps", here.astype(mx.float32).mean(), np.array(1 - _RATE), factor=loose
    )
    same = (here == next_one).astype(mx.float32).mean()
    yield ComputedOperation("dropout masks of two places", same, np.array(_RATE**2 + (1 - _RATE) ** 2), factor=loose)
    x, a = inputs.draw(*_DRAWN)
    layer = dropout.KeyedDropout(_RATE)
    with dropout.seeded(key):
        yield ComputedOperation("dropout of numbers", layer(x), a * bits[0] / (1 - _RATE), factor=10)  # 1 / 65536
    assert abs(factor - 1 / (1 - _RATE)) < 1e-4
