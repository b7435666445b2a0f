"""The CPU kernels give what the exact functions give, forwards and backwards."""

import math
from functools import partial
from typing import Any, cast

import numpy as np
import pytest

from mlxbert.cpu import mlx_kernels
from mlxbert.machine import device
from mlxbert.machine.device import mx, nn
from mlxbert.nn import ops
from mlxbert.nn.heads import probabilities
from tests.helpers.cases import together


def _random(*shape: int, scale: float = 1.0, seed: int = 0) -> mx.array:
    return mx.random.normal(shape, key=mx.random.key(seed)) * scale


def _largest(array: mx.array) -> float:
    return float(np.abs(np.array(array)).max())


def test_exp2_is_exact_to_float32_and_tiny_far_below() -> None:
    x = np.linspace(-64, 0, 100_001, dtype=np.float32)
    exact = np.exp2(x.astype(np.float64))
    assert (np.abs(np.array(mlx_kernels.exp2(mx.array(x))) - exact) / exact).max() < 3e-7
    found = np.array(mlx_kernels.exp2(mx.array([-65.0, -127.0, -1e4, -3e38, -math.inf])))
    assert (found <= 2.0**-63.9).all()
    assert (found >= 2.0**-64.1).all()  # products with it are normal numbers


POINTS = np.linspace(-12, 12, 20_001)


def _gelu(x: mx.array) -> mx.array:
    return cast(mx.array, mlx_kernels.gelu(x))


def _normal_cdf(x: float) -> float:
    return 0.5 * math.erfc(-x / math.sqrt(2))


def _gelu_slope(x: mx.array) -> np.ndarray[Any, Any]:
    return np.array(mx.grad(lambda x: _gelu(x).sum())(x).astype(mx.float32))


def test_gelu_and_its_gradient_are_close_to_the_exact_ones_everywhere() -> None:
    exact = np.array([x * _normal_cdf(x) for x in POINTS])
    found = np.array(_gelu(mx.array(POINTS.astype(np.float32))))
    assert (np.abs(found - exact) / np.maximum(np.abs(exact), 1)).max() < 4e-7
    far = np.array(_gelu(mx.array([-10.0, -1e3, -math.inf, 50.0, 1e3, math.inf, math.nan])))
    assert np.abs(far[:3]).max() < 1e-10
    assert far[3:6].tolist() == [50, 1e3, math.inf] and np.isnan(far[6])
    slopes = [_normal_cdf(x) + x * math.exp(-x * x / 2) / math.sqrt(2 * math.pi) for x in POINTS]
    assert np.abs(_gelu_slope(mx.array(POINTS.astype(np.float32))) - np.array(slopes)).max() < 5e-7
    assert np.allclose(_gelu_slope(mx.array([-1e4, -math.inf, 1e4, math.inf])), [0, 0, 1, 1], atol=5e-7)


@pytest.mark.parametrize("biased", [True, False])
def test_layer_norm_has_the_gradients_of_mlx(biased: bool) -> None:
    inputs = [_random(3, 7, 48, scale=3) + 2, *(_random(48, seed=seed) for seed in (1, 2)[: 1 + biased])]
    cotangent = _random(3, 7, 48, seed=3)

    def fast(x: mx.array, weight: mx.array, *biases: mx.array) -> mx.array:
        return mx.fast.layer_norm(x, weight, biases[0] if biases else None, 1e-5)

    def own(x: mx.array, weight: mx.array, *biases: mx.array) -> mx.array:
        return mlx_kernels.layer_norm(x, weight, [*biases], 1e-5)

    (found,), slopes = mx.vjp(own, inputs, [cotangent])
    (expected,), others = mx.vjp(fast, inputs, [cotangent])
    assert _largest(found - expected) < 3e-6
    assert all(_largest(one - other) < 1e-5 for one, other in zip(slopes, others, strict=True))


@pytest.mark.parametrize("dtype", [mx.float16, mx.bfloat16])
def test_gelu_in_half_precision_is_exact_but_for_rounding(dtype: mx.Dtype) -> None:
    x = mx.array(POINTS[::20].astype(np.float32)).astype(dtype)
    found, wide = _gelu(x), _gelu(x.astype(mx.float32))
    assert found.dtype == dtype and mx.array_equal(found, wide.astype(dtype))
    slope = mx.array(_gelu_slope(x.astype(mx.float32))).astype(dtype)
    assert np.array_equal(_gelu_slope(x), np.array(slope.astype(mx.float32)))


@together(
    ("masked", "bias_shape", "kept"),
    [
        (False, None, False), (False, (1, 1, 1, 7), True), (True, None, False), (True, (1, 1, 1, 7), True),
        (True, (1, 3, 7, 7), False), (True, (1, 3, 7, 7), True), (True, (2, 3, 7, 7), False),
        (True, (2, 3, 7, 7), True),
    ],
)  # fmt: skip
def test_attention_has_the_gradients_of_plain_arithmetic(
    masked: bool, bias_shape: tuple[int, ...] | None, kept: bool
) -> None:
    inputs = [_random(2, 3, 7, 8, seed=seed) for seed in (1, 2, 3)]
    inputs += [] if bias_shape is None else [_random(*bias_shape, seed=5)]
    mask = mx.array([[1] * 7, [1] * 4 + [0] * 3]).astype(mx.bool_)[:, None, None] if masked else None
    weight, drawn = _random(2, 3, 7, 8, seed=4), (_random(2, 3, 7, 7, seed=6) > -1, 1.25) if kept else None

    def ours(q: mx.array, k: mx.array, v: mx.array, bias: mx.array | None = None) -> mx.array:
        return (mlx_kernels.attention(q, k, v, 0.3, mask, bias, drawn) * weight).sum()

    def plain(q: mx.array, k: mx.array, v: mx.array, bias: mx.array | float = 0.0) -> mx.array:
        scores = (q * 0.3) @ k.swapaxes(-1, -2) + bias
        weights = mx.softmax(scores if mask is None else mx.where(mask, scores, -1e30), axis=-1)
        return ((weights if drawn is None else weights * drawn[0] * drawn[1]) @ v * weight).sum()

    found, found_gradients = mx.value_and_grad(ours, [*range(len(inputs))])(*inputs)
    exact, exact_gradients = mx.value_and_grad(plain, [*range(len(inputs))])(*inputs)
    assert _largest(found - exact) < 2e-5
    for one, other in zip(found_gradients, exact_gradients, strict=True):
        assert one.shape == other.shape and _largest(one - other) < 1e-5
        assert _largest(other) > 0.1


def test_attention_does_not_overflow() -> None:
    q, k, v = (_random(1, 1, 5, 8, scale=scale, seed=5) for scale in (300, 300, 1))
    found = mlx_kernels.attention(q, k, v, 1.0, None)
    exact = mx.fast.scaled_dot_product_attention(q, k, v, scale=1.0)
    assert _largest(found - exact) < 1e-4


@pytest.mark.parametrize("dtype", [mx.float32, mx.float16, mx.bfloat16])
def test_a_row_that_may_see_nothing_gives_no_nan(dtype: mx.Dtype) -> None:
    q, k, v = (_random(1, 2, 4, 8, seed=seed).astype(dtype) for seed in (6, 7, 8))
    found = mlx_kernels.attention(q, k, v, 0.3, mx.zeros((1, 1, 1, 4), dtype=mx.bool_))
    assert found.dtype == dtype
    mean = v.astype(mx.float32).mean(axis=2, keepdims=True)
    assert _largest(found.astype(mx.float32) - mean) < 2e-2


def test_probabilities_of_a_vocabulary_add_up_to_one_beside_a_likely_word() -> None:
    logits = np.full((2, 30522), 0.0, dtype=np.float32)
    logits[:, 17] = 20.0  # every other word is below float32's last digit of this one
    wide = np.exp(logits.astype(np.float64) - 20)
    exact = wide / wide.sum(axis=-1, keepdims=True)
    assert np.abs(np.array(probabilities(mx.array(logits))) - exact).max() < 2e-6


def test_a_dense_layer_has_the_gradients_of_the_plain_one() -> None:
    layer, x = ops.Linear(5, 3), mx.random.normal((2, 7, 5), key=mx.random.key(1))
    plain = nn.Linear(5, 3)
    plain.update(layer.parameters())

    def loss(module: nn.Module, x: mx.array, parameters: Any) -> mx.array:
        module.update(parameters)
        return mx.sin(module(x)).sum()

    found, expected = (
        mx.value_and_grad(partial(loss, module), argnums=(0, 1))(x, layer.parameters()) for module in (layer, plain)
    )
    flat, same = (dict(nn.utils.tree_flatten(list(one))) for one in (found, expected))
    for name, array in same.items():
        np.testing.assert_allclose(np.array(flat[name]), np.array(array), atol=1e-5)
    gradient = np.asarray(found[1][1]["weight"])
    assert device.on_gpu() or gradient.flags.c_contiguous  # as the parameter is, for the optimizer
