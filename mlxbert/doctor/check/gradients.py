"""Compares the gradients of the operations of models with their formulas in float64.

They are computed as in training, through mlxbert's own layers and functions. A gradient that is wrong by 1 % is a fault
(see `ComputedOperation.error`). Training would not reveal it, because Adam divides gradients by their size.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from itertools import product
from typing import Any

import numpy as np

from mlxbert.doctor.check import formulas
from mlxbert.doctor.check.formulas import F64
from mlxbert.doctor.check.kernels import (
    ADDED,
    BATCH,
    BOOLEAN,
    EPS,
    HEADS,
    MASKS,
    NO_DROPOUT,
    NONE,
    RMS_WIDTHS,
    WIDTH,
    WIDTHS,
    activation_inputs,
    is_odd,
    linear,
    masked,
    mixture_inputs,
    positioned,
    quantized,
    rotation_inputs,
    rows_of,
    score_factor,
)
from mlxbert.doctor.check.operations import DTYPES, CheckedOperation, ComputedOperation, Make, RandomInputs
from mlxbert.machine.device import mx, on_cpu, on_gpu
from mlxbert.nn import dropout, gpu_attention, ops
from mlxbert.nn.backend import PositionedQK
from mlxbert.nn.ops import backend
from mlxbert.train.nn import losses

_AFFINE = ("weight", "bias")  # parameters of layers
_ROWS = (1, 5, 40, 4100)  # of layer norms; a GPU sums many rows in two passes
_WORDS = 30_522  # the vocabulary of BERT
_FLOAT32 = DTYPES[:1]
# Head size, length and mask. On Metal, MLX 0.32.4 has fused gradients for head sizes from 64 on without a mask, and
# raises for up to 8 queries; with MLX_SDPA_VJP_FALLBACK=1, which mlxbert sets, it differentiates the operations.
_PLAIN = ((64, 5, NONE), (64, 8, NONE), (64, 128, NONE), (96, 128, NONE))
_CASES = (
    *_PLAIN,
    (72, 128, NONE),
    (128, 128, NONE),
    *product((10, 64), (17,), MASKS),
    *product((64, 96), (128,), MASKS[1:]),
)
_HALF_CASES = (*_PLAIN, (64, 128, BOOLEAN))
_FEW_CASES = ((64, 8, NONE), (64, 128, BOOLEAN))
_TRAINED_CASES = (
    *product((64,), (5, 8, 128), (NONE, BOOLEAN)),
    (10, 17, BOOLEAN),
    (32, 128, BOOLEAN),
    (64, 128, ADDED),
)


def gradients() -> Iterator[CheckedOperation]:
    """Yields the checks of the gradients of operations in `kernels`, and the check of a loss and its gradient."""

    def of(
        name: str, make: Make, *uses: str, dtypes: tuple[mx.Dtype, ...] = DTYPES, quick: tuple[mx.Dtype, ...] = ()
    ) -> CheckedOperation:
        return CheckedOperation(f"gradient of {name}", "gradients", make, dtypes, frozenset({name, *uses}), quick)

    yield of("linear layers", _linear, "products", quick=_FLOAT32)
    yield of("quantized products", _quantized)
    for name in formulas.ACTIVATIONS:
        always = name == "gelu"
        make, dtypes = partial(_activation, name), DTYPES if always else _FLOAT32
        yield of(name, make, dtypes=dtypes, quick=_FLOAT32 if always else ())
    sums = () if on_gpu() else ("products",)  # sums of rows: a CPU multiplies by ones
    yield of("layer norm", _layer_norm, *sums, quick=DTYPES)
    yield of("RMS norm", _rms_norm, *sums)
    yield of("attention", _attention, "products", quick=DTYPES)
    yield of("attention weights", _attention_weights, "products")
    # In these dtypes, training differentiates weights and products; in the others, it differentiates `attention`.
    unfused = tuple(dtype for dtype in DTYPES if not gpu_attention.differentiates_attention(dtype))
    if on_gpu() and unfused:
        parts = "products", "attention weights", "gradient of attention weights"
        yield of("attention in training", _trained_attention, *parts, dtypes=unfused, quick=unfused)
    yield of("rotation", _rotation, dtypes=_FLOAT32)
    yield of("mixture of experts", _mixture, "products", "gelu", "gradient of gelu")
    yield of("rows of a table", _rows, quick=_FLOAT32)
    yield of("dropout", _dropout, dtypes=_FLOAT32)
    yield CheckedOperation("cross entropy", "gradients", _cross_entropy, _FLOAT32, frozenset({"sums"}), quick=_FLOAT32)


def _vjp(function: Callable[..., mx.array], arrays: list[mx.array], up: mx.array) -> list[mx.array]:
    """Returns the gradients of a function with respect to arrays, for a cotangent."""
    return mx.vjp(function, arrays, [up])[1]


def _of_each(
    title: str, parts: Sequence[str], gradients: Sequence[mx.array], expected: Sequence[F64], **facts: Any
) -> Iterator[ComputedOperation]:
    """Yields the check of each gradient; `facts` are further fields of `ComputedOperation`."""
    for part, gradient, right in zip(parts, gradients, expected, strict=True):
        yield ComputedOperation(f"{title}: {part}", gradient, right, **facts)


def _with_parameters(layer: Any, names: Sequence[str]) -> Callable[..., mx.array]:
    """Returns a function of the input and the named parameters of a layer."""

    def run(x: mx.array, *parameters: mx.array) -> mx.array:
        for name, parameter in zip(names, parameters, strict=True):
            setattr(layer, name, parameter)
        return layer(x)

    return run


def _linear(inputs: RandomInputs) -> Iterator[ComputedOperation]:
    for width, size in ((30, 41), (64, 64)) if inputs.wide else ((64, 64),):
        layer, weight = linear(inputs, width, size)
        arrays, run = [layer.weight, layer.bias], _with_parameters(layer, _AFFINE)
        for rows in (1, 5, 40, 1024) if inputs.wide else (40, 1024):
            (x, a), (up, u) = inputs.draw(rows, width), inputs.draw(rows, size)
            title = f"gradient of linear layer {width} -> {size}, {rows} rows"
            expected, gradients = (u @ weight, u.T @ a, u.sum(0)), _vjp(run, [x, *arrays], up)
            yield from _of_each(title, ("input", *_AFFINE), gradients, expected, odd=is_odd(width, size))


def _quantized(inputs: RandomInputs) -> Iterator[ComputedOperation]:
    """Checks the gradient that LoRA on quantized weights needs; Metal had it wrong once (ml-explore/mlx#4202)."""
    (multiply, weight, factor), (x, _), (up, u) = quantized(inputs), inputs.draw(40, WIDTH), inputs.draw(40, WIDTH)
    (gradient,) = _vjp(multiply, [x], up)
    yield ComputedOperation(
        f"gradient of product of (40, {WIDTH}) and 8-bit weights", gradient, u @ weight, factor=factor
    )


def _activation(name: str, inputs: RandomInputs) -> Iterator[ComputedOperation]:
    x, values = activation_inputs(inputs)
    up, u = inputs.draw(len(values))
    kept = values != 0 if name == "relu" else np.ones_like(values, bool)  # its slope at 0 is a convention
    (gradient,) = _vjp(lambda x: backend().activate(name, x), [x], up)
    expected = formulas.slope(formulas.ACTIVATIONS[name], values) * u * kept
    yield ComputedOperation(f"gradient of {name}", gradient * mx.array(kept), expected)


def _layer_norm(inputs: RandomInputs) -> Iterator[ComputedOperation]:
    """Checks the gradients of layer norms of several widths and numbers of rows.

    With 40 rows, it also uses a cotangent to which nothing else refers, because a GPU overwrites such an array.
    """
    for width, rows in product(WIDTHS, _ROWS) if inputs.wide else product((30, 768), (40,)):
        (x, a, scale), (weight, w), (bias, b) = rows_of(inputs, rows, width), inputs.draw(width), inputs.draw(width)
        up, u = inputs.draw(rows, width)
        run = _with_parameters(ops.LayerNorm(width, eps=EPS), _AFFINE)
        _, *expected = formulas.layer_norm(a, w, b, EPS, u)
        yield from _norm_gradients(
            f"gradient of layer norm of {width}, {rows} rows", run, [x, weight, bias], up, expected, scale
        )
        if rows == 40:
            name = f"gradient of layer norm of {width}, {rows} rows, a cotangent that is overwritten"
            yield from _norm_gradients(name, run, [x, weight, bias], up * 1, expected, scale)


def _rms_norm(inputs: RandomInputs) -> Iterator[ComputedOperation]:
    for width in RMS_WIDTHS if inputs.wide else (256, 768):
        (x, a, scale), (weight, w), (up, u) = rows_of(inputs, 40, width), inputs.draw(width), inputs.draw(40, width)
        run = _with_parameters(ops.RMSNorm(width, eps=EPS, plus_one=False), _AFFINE[:1])
        _, *expected = formulas.rms_norm(a, w, EPS, u)
        yield from _norm_gradients(f"gradient of RMS norm of {width}", run, [x, weight], up, expected, scale)


def _norm_gradients(
    name: str, run: Callable[..., mx.array], arrays: list[mx.array], up: mx.array, expected: list[F64], scale: F64
) -> Iterator[ComputedOperation]:
    """Yields the checks of the gradients of a norm's input, weight and bias.

    `scale` holds a factor for each row. The rows of the gradient of the input are multiplied by these factors before
    they are compared (see `rows_of`).
    """
    odd = is_odd(up.shape[-1])
    of_input, *of_parameters = _vjp(run, arrays, up)
    yield ComputedOperation(
        f"{name}: input", of_input.astype(mx.float32) * mx.array(scale, dtype=mx.float32), expected[0] * scale,
        odd=odd,
    )  # fmt: skip
    yield from _of_each(name, _AFFINE[: len(of_parameters)], of_parameters, expected[1:], odd=odd)


def _attention(inputs: RandomInputs) -> Iterator[ComputedOperation]:
    """Checks the gradients of MLX's attention, which has kernels for some shapes.

    On a GPU, training uses it in layers with a distance penalty, and in other layers if
    `gpu_attention.differentiates_attention` says so. On a CPU, mlxbert's own functions are checked as well.
    """
    for size, length, kind in _FEW_CASES if inputs.few else _CASES if inputs.wide else _HALF_CASES:
        name = f"gradient of attention, head size {size}, length {length}, {kind}"
        cpu_functions = {} if on_gpu() or length > 17 else {f"{name}, CPU function": _trained}
        yield from _attention_gradients(inputs, size, length, kind, {name: _requested, **cpu_functions})


def _trained_attention(inputs: RandomInputs) -> Iterator[ComputedOperation]:
    """Checks the gradients of the attention kernel that a GPU uses in training without dropout."""
    for size, length, kind in _FEW_CASES if inputs.few else _TRAINED_CASES:
        name = f"gradient of attention in training, head size {size}, length {length}, {kind}"
        yield from _attention_gradients(inputs, size, length, kind, {name: _trained})


# Computes attention from queries, keys and values, a scale, a mask and its kind.
_Attend = Callable[[mx.array, mx.array, mx.array, float, mx.array | None, str], mx.array]


def _requested(q: mx.array, k: mx.array, v: mx.array, scale: float, mask: mx.array | None, kind: str) -> mx.array:
    return gpu_attention.attention(q, k, v, scale, mask, gradient=True)


def _trained(q: mx.array, k: mx.array, v: mx.array, scale: float, mask: mx.array | None, kind: str) -> mx.array:
    return backend().attention(positioned(q, k, mask, kind), v, scale, NO_DROPOUT)


def _attention_gradients(
    inputs: RandomInputs, size: int, length: int, kind: str, functions: Mapping[str, _Attend]
) -> Iterator[ComputedOperation]:
    """Yields the checks of the gradients of attention functions.

    `functions` maps the title of each check to the function.
    """
    (q, a), (k, b), (v, c), (up, u) = (inputs.draw(BATCH, HEADS, length, size) for _ in range(4))
    (mask, shift), scale = masked(inputs, length, kind), size**-0.5
    expected = formulas.attention_gradients(a, b, c, scale, shift, u)
    for title, attend in functions.items():

        def run(q: mx.array, k: mx.array, v: mx.array, attend: _Attend = attend) -> mx.array:
            return attend(q, k, v, scale, mask, kind)

        found, factor = _vjp(run, [q, k, v], up), score_factor(inputs)
        yield from _of_each(title, ("queries", "keys", "values"), found, expected, factor=factor, odd=is_odd(size))


def _attention_weights(inputs: RandomInputs) -> Iterator[ComputedOperation]:
    size = 64
    for length, kind in product((5, 8, 17, 128), (NONE, BOOLEAN)):
        (q, a), (k, b), (up, u) = (
            *(inputs.draw(BATCH, HEADS, length, size) for _ in range(2)),
            inputs.draw(BATCH, HEADS, length, length),
        )
        mask, shift = masked(inputs, length, kind)
        weights = formulas.attention_weights(a, b, size**-0.5, shift)

        def run(q: mx.array, k: mx.array, mask: mx.array | None = mask) -> mx.array:
            return backend().attention_weights(PositionedQK(q, k, mask=mask), size**-0.5)

        expected = formulas.weights_gradients(a, b, size**-0.5, weights, u)
        title = f"gradient of attention weights, head size {size}, length {length}, {kind}"
        found = _vjp(run, [q, k], up)
        yield from _of_each(title, ("queries", "keys"), found, expected, factor=score_factor(inputs))


def _rotation(inputs: RandomInputs) -> Iterator[ComputedOperation]:
    """Checks that the gradient of a rotation is the cotangent, rotated in the opposite direction."""
    (x, cosines, sines), (_, c, s) = rotation_inputs(inputs)
    up, u = inputs.draw(*x.shape)
    (gradient,) = _vjp(lambda x: backend().rotate(x, cosines, sines), [x], up)
    yield ComputedOperation("gradient of rotation", gradient, formulas.rotated(u, c, -s))


def _mixture(inputs: RandomInputs) -> Iterator[ComputedOperation]:
    arrays, (t, u, d, w), chosen = mixture_inputs(inputs)
    pulled, p = inputs.draw(*arrays[0].shape)
    _, expected = formulas.mixture(t, u, d, chosen, w, formulas.ACTIVATIONS["gelu"], p)
    gradients = _vjp(
        lambda tokens, up, down, weights: backend().mixture(tokens, up, down, mx.array(chosen), weights, "gelu"),
        arrays,
        pulled,
    )
    parts = "tokens", "first weights", "second weights", "shares"
    yield from _of_each("gradient of mixture of experts", parts, gradients, expected, factor=2)


def _rows(inputs: RandomInputs) -> Iterator[ComputedOperation]:
    """Checks the gradient of a table of rows. If a row is looked up several times, its gradients must add up."""
    for width in (30, 64) if inputs.wide else (64,):
        (table, t), (up, u), ids = inputs.draw(1000, width), inputs.draw(8, 40, width), inputs.ids(50, 8, 40)
        expected = np.zeros_like(t)
        np.add.at(expected, ids, u)
        (gradient,) = _vjp(lambda table, ids=ids: table[mx.array(ids)], [table], up)
        yield ComputedOperation(f"gradient of rows of a table of {width}", gradient, expected, odd=is_odd(width))


def _dropout(inputs: RandomInputs) -> Iterator[ComputedOperation]:
    """Checks that dropout applies the same mask to the gradient as to the values."""
    (x, _), (up, u), layer, key = inputs.draw(40, 64), inputs.draw(40, 64), dropout.KeyedDropout(0.25), mx.random.key(3)
    with on_cpu(), dropout.seeded(key):
        bits = np.array(dropout.draw_mask((40, 64), 0.25)[0])
    with dropout.seeded(key):
        (gradient,) = _vjp(layer, [x], up)
    yield ComputedOperation("gradient of dropout", gradient, u * bits / 0.75)


def _cross_entropy(inputs: RandomInputs) -> Iterator[ComputedOperation]:
    for classes in (2, 4, _WORDS):
        x, a = inputs.draw(8, classes)
        targets = inputs.ids(classes, 8)
        value, slopes = formulas.cross_entropy(a, targets)
        loss, gradient = mx.value_and_grad(losses.cross_entropy)(x, mx.array(targets))
        yield ComputedOperation(f"cross entropy of {classes:,} classes", loss, np.array(value))
        yield ComputedOperation(f"gradient of cross entropy of {classes:,} classes", gradient, slopes)
