"""Kernels of training on a GPU: the slowest elementwise functions, each fused in the same way wherever it is called.

A training step is traced by `mx.compile`, which fuses neighboring elementwise operations, even across functions that
are compiled by themselves; under `mx.grad`, MLX fuses nothing else. Each new combination of operations and numbers is
another kernel library that the first update waits for: 0.1 s on Metal, more than a second on CUDA. So these functions
are isolated from their neighbors, and numbers that differ between runs are passed as arrays.
"""

import functools
from collections.abc import Callable
from typing import Any, cast as cast_to

from mlxbert.machine.device import mx

Function = Callable[..., mx.array]


def number(value: float, dtype: mx.Dtype = mx.float32) -> mx.array:
    """Converts a number to a scalar array, which kernels can take as an argument.

    `mx.compile` would write a Python number, or the value of an evaluated scalar, into the kernel's code.
    """
    return mx.array([value, value], dtype)[:1].reshape(())  # `[0]` would run a kernel


def fusion_barrier(x: mx.array) -> mx.array:
    """Returns `x` without a copy; `mx.compile` does not fuse the operations before this call with those after it."""
    return cast_to(mx.array, mx.depends([x], [])[0])


def one_kernel(function: Function) -> Function:
    """Decorates an elementwise function of arrays so that it has the same kernel wherever it is called."""

    @functools.wraps(function)
    def separate(*arrays: mx.array) -> mx.array:
        return fusion_barrier(function(*map(fusion_barrier, arrays)))

    return separate


@functools.cache
def cast(dtype: mx.Dtype) -> Function:
    """Returns a function that casts float32 to a dtype; its derivative is not fused with earlier operations."""

    @mx.custom_function
    def differentiable(x: mx.array) -> mx.array:
        return x.astype(dtype)

    @differentiable.vjp
    def derivative(x: mx.array, cotangent: mx.array, output: mx.array) -> mx.array:
        return fusion_barrier(cotangent).astype(mx.float32)

    return cast_to(Function, differentiable)


@functools.cache
def activation(function: Callable[[mx.array], mx.array]) -> Callable[[mx.array], mx.array]:
    """Makes an elementwise function one kernel, and its derivative another kernel.

    The derivative is computed from the input of the function, not from its output.
    """
    forward, backward = one_kernel(function), one_kernel(lambda x, up: mx.vjp(function, [x], [up])[1][0])

    @mx.custom_function
    def differentiable(x: mx.array) -> mx.array:
        return forward(x)

    @differentiable.vjp
    def derivative(x: mx.array, cotangent: mx.array, output: mx.array) -> mx.array:
        return backward(x, cotangent)

    return cast_to(Callable[[mx.array], mx.array], differentiable)


@mx.custom_function
def tanh(x: mx.array) -> mx.array:
    """The hyperbolic tangent of a few rows in float32, as separate operations, which need no compiled kernel."""
    return fusion_barrier(mx.tanh(fusion_barrier(x.astype(mx.float32)))).astype(x.dtype)


@tanh.vjp
def _tanh_vjp(x: mx.array, cotangent: mx.array, output: mx.array) -> mx.array:
    wide, up = (fusion_barrier(array.astype(mx.float32)) for array in (x, cotangent))
    y = fusion_barrier(mx.tanh(wide))
    return fusion_barrier(up - fusion_barrier(up * fusion_barrier(y * y))).astype(x.dtype)


@mx.custom_function
def times(x: mx.array, factor: mx.array) -> mx.array:
    """Multiplies `x` by a scalar, which gets no gradient."""
    return _times(x, factor)


@times.vjp
def _times_vjp(inputs: Any, cotangent: mx.array, output: mx.array) -> tuple[mx.array, mx.array]:
    _, factor = inputs
    return _times(cotangent, factor), mx.zeros_like(factor)


@one_kernel
def _times(x: mx.array, factor: mx.array) -> mx.array:
    return x * factor.astype(x.dtype)


@mx.custom_function
def dropped(x: mx.array, words: mx.array, least: mx.array, factor: mx.array) -> mx.array:
    """Multiplies each element of `x` by `factor` if its random word in `words` is at least `least`; else sets it to 0.

    Only `x` gets a gradient. Only the words are kept for the backward pass.
    """
    return _dropped(x, words, least, factor)


@dropped.vjp
def _dropped_vjp(inputs: Any, cotangent: mx.array, output: mx.array) -> tuple[mx.array, ...]:
    _, words, least, factor = inputs
    return _dropped(cotangent, words, least, factor), *map(mx.zeros_like, (words, least, factor))


@one_kernel
def _dropped(x: mx.array, words: mx.array, least: mx.array, factor: mx.array) -> mx.array:
    return mx.where(words >= least, x * factor.astype(x.dtype), 0)


@mx.custom_function
def softmax(scores: mx.array, masks: list[mx.array]) -> mx.array:
    """The softmax over the last axis, in the dtype of the scores.

    Args:
        scores: (…, L).
        masks: An empty list, or one mask: bool, broadcast to the scores, true if a score counts.
    """
    for mask in masks:
        scores = _masked(scores, mask)
    return mx.softmax(scores, axis=-1, precise=True)


@softmax.vjp
def _softmax_vjp(inputs: Any, cotangent: mx.array, weights: mx.array) -> tuple[mx.array, list[mx.array]]:
    _, masks = inputs
    mean = fusion_barrier(fusion_barrier(cotangent) * fusion_barrier(weights)).sum(axis=-1, keepdims=True)
    if not masks:
        return _from_mean(weights, cotangent, mean), []
    [mask] = masks
    return _from_mean_where(mask, weights, cotangent, mean), [mx.zeros_like(mask)]


@one_kernel
def _masked(scores: mx.array, mask: mx.array) -> mx.array:
    return mx.where(mask, scores, mx.finfo(scores.dtype).min)


@one_kernel
def _from_mean(weights: mx.array, cotangent: mx.array, mean: mx.array) -> mx.array:
    return weights * (cotangent - mean)


@one_kernel
def _from_mean_where(mask: mx.array, weights: mx.array, cotangent: mx.array, mean: mx.array) -> mx.array:
    return mx.where(mask, weights * (cotangent - mean), 0)  # also for a fully masked row


@mx.custom_function
def dense(x: mx.array, weight: mx.array, biases: list[mx.array]) -> mx.array:
    """`x @ weight.T`, plus a bias if there is one."""
    return mx.addmm(biases[0], x, weight.T) if biases else x @ weight.T


@dense.vjp
def _dense_vjp(inputs: Any, cotangent: mx.array, output: mx.array) -> tuple[mx.array, mx.array, list[mx.array]]:
    # MLX's own derivative is a transposed view of x.T @ cotangent, which the update would read out of memory order.
    x, weight, biases = inputs
    rows, up = x.reshape(-1, x.shape[-1]), cotangent.reshape(-1, cotangent.shape[-1])
    gradient = (up.T @ rows).astype(weight.dtype)
    return (cotangent @ weight).astype(x.dtype), gradient, [_column_sums(up).astype(bias.dtype) for bias in biases]


def _column_sums(rows: mx.array) -> mx.array:
    """(N, D) → (D,): sums as matrix products, which accumulate half precision in float32; MLX's sums do not."""
    if rows.dtype == mx.float32:
        return rows.sum(axis=0)
    return (mx.ones((1, len(rows)), rows.dtype) @ rows).reshape(-1)
