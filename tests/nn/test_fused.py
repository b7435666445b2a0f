"""Kernels of training on a GPU: values and derivatives next to float64, and how they are fused."""

from collections.abc import Callable
from typing import Any, cast

import numpy as np
import pytest
from numpy.typing import NDArray

from mlxbert.machine.device import mx, scalar
from mlxbert.nn import fused_kernels
from tests.helpers.graphs import Graph

ALLOWED = {mx.float32: 2e-6, mx.float16: 4e-3, mx.bfloat16: 3e-2}
DTYPES = pytest.mark.parametrize("dtype", ALLOWED, ids=str)
F64 = NDArray[np.float64]
# Custom functions of MLX have no types.
dense, softmax, dropped, times, tanh = (
    cast(Callable[..., mx.array], one)
    for one in (
        fused_kernels.dense,
        fused_kernels.softmax,
        fused_kernels.dropped,
        fused_kernels.times,
        fused_kernels.tanh,
    )
)


def as_float64(array: mx.array) -> F64:
    return np.array(array.astype(mx.float32)).astype(np.float64)


def draw(*shape: int, seed: int = 0, dtype: mx.Dtype = mx.float32) -> mx.array:
    return mx.array(np.random.default_rng(seed).standard_normal(shape, np.float32)).astype(dtype)


def assert_near(found: Any, expected: F64, dtype: mx.Dtype) -> None:
    assert found.dtype == dtype and found.shape == expected.shape
    assert np.abs(as_float64(found) - expected).max() <= ALLOWED[dtype] * max(1, np.abs(expected).max())


def derivatives(function: Callable[..., mx.array], inputs: list[Any], up: mx.array) -> list[mx.array]:
    return mx.vjp(function, inputs, [up])[1]


@DTYPES
@pytest.mark.parametrize("biases", [0, 1])
def test_a_dense_layer(biases: int, dtype: mx.Dtype) -> None:
    x, weight, up = draw(2, 5, 8, dtype=dtype), draw(7, 8, seed=1, dtype=dtype), draw(2, 5, 7, seed=2, dtype=dtype)
    bias = [draw(7, seed=3, dtype=dtype)] * biases
    a, w, u = as_float64(x), as_float64(weight), as_float64(up)
    assert_near(dense(x, weight, bias), a @ w.T + (as_float64(bias[0]) if bias else 0), dtype)
    of_x, of_weight, *of_bias = derivatives(lambda x, w, *b: dense(x, w, [*b]), [x, weight, *bias], up)
    assert_near(of_x, u @ w, dtype)
    assert_near(of_weight, np.einsum("blo,bli->oi", u, a), dtype)
    assert len(of_bias) == biases
    for one in of_bias:
        assert_near(one, u.sum((0, 1)), dtype)


def test_the_gradient_of_a_matrix_has_its_order_in_memory() -> None:
    """A transposed view would be read against it by the update."""
    x, weight = draw(6, 8), draw(7, 8, seed=1)
    mx.eval(x, weight)
    graph = Graph([mx.grad(lambda w: dense(x, w, []).sum())(weight)])
    assert graph.nodes[-1].name == "Matmul"


@pytest.mark.parametrize("dtype", [mx.float16, mx.bfloat16])
def test_the_gradient_of_a_bias_is_not_summed_in_half_precision(dtype: mx.Dtype) -> None:
    """A GPU's sum rounds each of its steps: of 1,024 rows it is three times as far off as the rounded sum."""
    x, weight, bias = draw(6, 8, dtype=dtype), draw(7, 8, seed=1, dtype=dtype), draw(7, seed=2, dtype=dtype)
    mx.eval(x, weight, bias)
    gradient = mx.grad(lambda b: dense(x, weight, [b]).sum())(bias)
    assert "Sum" not in {node.name for node in Graph([gradient]).nodes}


@DTYPES
@pytest.mark.parametrize("masked", [False, True])
def test_a_softmax(masked: bool, dtype: mx.Dtype) -> None:
    scores, up = draw(2, 3, 5, dtype=dtype), draw(2, 3, 5, seed=1, dtype=dtype)
    seen = np.array([[[True] * 5], [[True, True, True, False, False]]])
    masks = [mx.array(seen)] if masked else []
    wide = np.where(seen, as_float64(scores), -np.inf) if masked else as_float64(scores)
    shares = np.exp(wide - wide.max(-1, keepdims=True))
    shares /= shares.sum(-1, keepdims=True)
    u = as_float64(up)
    assert_near(softmax(scores, masks), shares, dtype)
    [found] = derivatives(lambda x: softmax(x, masks), [scores], up)
    assert_near(found, shares * (u - (u * shares).sum(-1, keepdims=True)), dtype)


def test_a_row_that_is_masked_as_a_whole_has_no_gradient() -> None:
    scores, up, mask = draw(2, 5), draw(2, 5, seed=1), mx.array([[True] * 5, [False] * 5])
    [found] = derivatives(lambda x: softmax(x, [mask]), [scores], up)
    [expected] = derivatives(lambda x: mx.softmax(mx.where(mask, x, mx.finfo(mx.float32).min), axis=-1), [scores], up)
    assert_near(found, as_float64(expected), mx.float32)
    assert not as_float64(found)[1].any() and as_float64(found)[0].all()


def test_a_gradient_has_the_dtype_of_what_it_is_of() -> None:
    x, weight = draw(3, 8, dtype=mx.bfloat16), draw(7, 8)
    found = derivatives(lambda x, w: dense(x, w, []), [x, weight], mx.ones((3, 7)))
    assert [one.dtype for one in found] == [mx.bfloat16, mx.float32]


@DTYPES
def test_dropout(dtype: mx.Dtype) -> None:
    x, up = draw(40, 30, dtype=dtype), draw(40, 30, seed=1, dtype=dtype)
    words = mx.random.randint(0, 2**16, (40, 30), mx.uint16, key=mx.random.key(1))
    numbers = fused_kernels.number(2**14, mx.uint16), fused_kernels.number(4 / 3)
    kept = (np.array(words) >= 2**14) * (4 / 3)
    assert 0.6 < (kept > 0).mean() < 0.9
    assert_near(dropped(x, words, *numbers), as_float64(x) * kept, dtype)
    [found] = derivatives(lambda x: dropped(x, words, *numbers), [x], up)
    assert_near(found, as_float64(up) * kept, dtype)


@DTYPES
def test_products_with_scalars_casts_and_tanh(dtype: mx.Dtype) -> None:
    x, up = draw(4, 6, dtype=dtype), draw(4, 6, seed=1, dtype=dtype)
    assert_near(times(x, fused_kernels.number(0.3)), as_float64(x) * 0.3, dtype)
    assert_near(derivatives(lambda x: times(x, fused_kernels.number(0.3)), [x], up)[0], as_float64(up) * 0.3, dtype)
    assert_near(tanh(x), np.tanh(as_float64(x)), dtype)
    expected = as_float64(up) / np.cosh(as_float64(x)) ** 2
    assert_near(derivatives(tanh, [x], up)[0], expected, dtype)
    wide = draw(4, 6)
    assert mx.array_equal(fused_kernels.cast(dtype)(wide), wide.astype(dtype)).item()
    assert_near(derivatives(fused_kernels.cast(dtype), [wide], up)[0], as_float64(up), mx.float32)


def test_an_activation_keeps_its_input_alone() -> None:
    def cube(x: mx.array) -> mx.array:
        return x * x * x

    x = draw(5)
    [found] = derivatives(fused_kernels.activation(cube), [x], mx.ones(5))
    assert_near(fused_kernels.activation(cube)(x), as_float64(x) ** 3, mx.float32)
    assert_near(found, 3 * as_float64(x) ** 2, mx.float32)


def test_what_is_next_to_a_kernel_is_not_fused_with_it() -> None:
    scale = fused_kernels.one_kernel(lambda x: mx.exp(x) * x)

    def step(x: mx.array) -> mx.array:
        return mx.sin(mx.cos(scale(mx.tan(mx.tanh(x)))))

    x = draw(5)
    mx.eval(x)
    names = [node.name for node in Graph([mx.compile(step)(x)]).nodes if node.name != "Depends"]
    assert names == ["Compiled"] * 3


def test_a_number_is_no_part_of_a_kernel() -> None:
    """It is an argument: what differs between models and runs does not make other kernels."""

    def product(x: mx.array, make: Callable[[float], Any]) -> Graph:
        return Graph([mx.compile(lambda x: mx.exp(x * make(0.3)))(x)])

    x = draw(5)
    mx.eval(x)
    number, constant = (product(x, make).nodes for make in (fused_kernels.number, mx.array))
    assert {node.name for node in number} == {"Compiled", "Reshape", "Slice"} and len(constant) == 1
    assert scalar(fused_kernels.number(0.25)) == 0.25
