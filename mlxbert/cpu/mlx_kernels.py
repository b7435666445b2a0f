"""GELU, norms and attention for MLX's Linux CPU backend, built from its fast operations.

On that backend, `erf`, `exp` and `tanh` take 9 to 22 ns per element, one at a time; additions and multiplications take
0.2 ns. With MLX's own functions, a MiniLM spends most of its time in softmax. The functions in this file take half to a
fifth of the time, and agree with the exact functions to a few units in the last place of float32. They compute in
float32 and return the dtype of their input.

`mx.compile` would fuse them, but on a CPU it calls a C++ compiler at run time, if there is one (0.4 s for each shape of
graph), and loads the result from a folder in /tmp that other users can write to.
"""

import functools
import math
from collections.abc import Callable
from typing import Any, cast

from mlxbert.machine.device import mx
from mlxbert.nn.backend import tree_sum

Arrays = list[mx.array]

# 2^f on [-1/2, 1/2], relative error 7.5e-8: least squares at Chebyshev points, reweighted until minimax.
_EXP2 = (
    0.0013276466790908986, 0.009675541293003576, 0.055507132895888024, 0.2402211972487166, 0.6931469670549091,
    1.0000000716543684,
)  # fmt: skip
# Phi(-a) = p(a)^16 for 0 <= a <= TAIL_END, fitted likewise for the smallest error of a Phi(-a), 3.5e-8; no division,
# and fewer operations than a quotient of polynomials. With two coefficients less the error is 5.5e-7, and after a few
# layers hidden states are twice as far from exact ones as torch's.
TAIL_END = 7.0
TAIL = (
    5.40779171e-07, -7.24669450e-06, -8.56145088e-06, 5.99948651e-04, -1.27631106e-03, -0.0178461396, -0.0477564965,
    0.957603484,
)  # fmt: skip
# GELU'(x) - 1/2 = x P(x^2) / Q(x^2) within +-SLOPE_END, fitted likewise, error 1.1e-7.
SLOPE_END = 5.6
SLOPE_P = (0.021523574602, 4.02093473974, 2.21354492570, 1593.40900498, -3469.38016780, 89368.4428686)
SLOPE_Q = (1.0, 21.5114428388, 394.560635850, 4590.47244600, 32988.2243493, 112006.622815)
MASKED = -1e30  # so large that adding it to a score removes all digits of the score
_ROUND = 1.5 * 2**23  # adding it to a float32 puts the nearest integer into the last bits


def _polynomial(coefficients: tuple[float, ...], x: mx.array) -> mx.array:
    value = x if coefficients[0] == 1 else x * coefficients[0]
    value = value + coefficients[1]
    for coefficient in coefficients[2:]:
        value = value * x + coefficient
    return value


@mx.custom_function
def exp2(x: mx.array) -> mx.array:
    """`2**x` elementwise, for x <= 0 in float32, but at least 2**-64. Differentiable.

    Next to the 1 of a softmax, 2**-64 is negligible. Smaller values give subnormal products, which take a CPU thirty
    times as long: with them, masked attention took three times as long.
    """
    x = mx.maximum(x, -64.0)
    shifted = x + _ROUND
    fraction = x - (shifted - _ROUND)
    # The integer part, in the low bits of `shifted`, goes into the exponent bits; the shift drops all other bits.
    exponent = mx.left_shift(mx.view(shifted, mx.int32), 23)
    return mx.view(mx.view(_polynomial(_EXP2, fraction), mx.int32) + exponent, mx.float32)


@exp2.vjp
def _exp2_vjp(x: mx.array, cotangent: mx.array, output: mx.array) -> mx.array:
    return cotangent * output * math.log(2)


@mx.custom_function
def log_sum_exp(x: mx.array) -> Any:
    """Returns `Backend.log_sum_exp`, and two arrays that its derivative needs."""
    largest = x.max(axis=-1, keepdims=True)
    shares = exponentials(x - largest)
    total = tree_sum(shares)
    return largest + mx.log(total), shares, total


@log_sum_exp.vjp
def _log_sum_exp_vjp(x: mx.array, cotangents: Any, outputs: Any) -> mx.array:
    _, shares, total = outputs
    return cast(mx.array, shares * (cotangents[0] / total))


def exponentials(x: mx.array) -> mx.array:
    """`exp(x)` for x <= 0 in float32, but at least 2**-64."""
    return cast(mx.array, exp2(x * (1 / math.log(2))))


@mx.custom_function
def gelu(x: mx.array) -> mx.array:
    """`x Phi(x)`, accurate to 4e-7 or to the last digit of float32. Differentiable."""
    wide = x.astype(mx.float32)
    distance = mx.minimum(mx.abs(wide), TAIL_END)
    tail = _polynomial(TAIL, distance)
    for _ in range(4):
        tail = tail * tail
    return (mx.maximum(wide, 0.0) - distance * tail).astype(x.dtype)


@gelu.vjp
def _gelu_vjp(x: mx.array, cotangent: mx.array, output: mx.array) -> mx.array:
    """Multiplies the cotangent by the derivative of GELU, `Phi(x) + x phi(x)`, accurate to 4e-7.

    MLX's own derivative keeps all intermediate arrays and takes twice as long.
    """
    inside = mx.clip(x.astype(mx.float32), -SLOPE_END, SLOPE_END)
    square = inside * inside
    slope = inside * _polynomial(SLOPE_P, square) / _polynomial(SLOPE_Q, square) + 0.5
    return (cotangent.astype(mx.float32) * slope).astype(x.dtype)


@mx.custom_function
def dense(x: mx.array, weight: mx.array, biases: Arrays) -> mx.array:
    """`x @ weight.T`, plus the bias if there is one. Differentiable."""
    y = x @ weight.T
    return y + biases[0] if biases else y


@dense.vjp
def _dense_vjp(inputs: Any, cotangent: mx.array, output: mx.array) -> Any:
    return dense_vjp(inputs, cotangent)


def dense_vjp(inputs: Any, cotangent: mx.array) -> tuple[mx.array, mx.array, Arrays]:
    """Returns the gradients for the inputs of `dense`, computed from `cotangent`, the gradient for its output.

    The weight's gradient has the weight's layout (MLX's own is transposed). The bias's gradient is computed as a
    product, because sums are slow.
    """
    x, weight, biases = inputs
    rows, wide = x.reshape(-1, x.shape[-1]), cotangent.reshape(-1, cotangent.shape[-1])
    return cotangent @ weight, wide.T @ rows, [(mx.ones((1, len(wide))) @ wide)[0] for _ in biases]


def layer_norm(x: mx.array, weight: mx.array, biases: Arrays, eps: float) -> mx.array:
    """A norm over the last axis. Differentiable. Sums are products with ones, which take a tenth of the time."""
    y: mx.array = _layer_norm(eps)(x, weight, biases)[0]
    return y


@functools.cache
def _layer_norm(eps: float) -> Callable[..., tuple[mx.array, mx.array, mx.array]]:
    @mx.custom_function
    def norm(x: mx.array, weight: mx.array, biases: Arrays) -> Any:
        mean = mx.full((x.shape[-1], 1), 1 / x.shape[-1])
        centred = x - x @ mean
        scale = mx.rsqrt(centred * centred @ mean + eps)
        unit = centred * scale
        return unit * weight + biases[0] if biases else unit * weight, unit, scale

    @norm.vjp
    def vjp(inputs: Any, cotangents: Any, outputs: Any) -> Any:
        (x, weight, biases), cotangent, (_, unit, scale) = inputs, cotangents[0], outputs
        width, mean = x.shape[-1], mx.full((x.shape[-1], 1), 1 / x.shape[-1])
        wide, ones = cotangent * weight, mx.ones((1, x.size // width))
        slope = wide - wide @ mean - unit * (wide * unit @ mean)
        sums = [(ones @ array.reshape(-1, width))[0] for array in (cotangent * unit, *(cotangent for _ in biases))]
        return slope * scale, sums[0], sums[1:]

    return cast(Callable[..., tuple[mx.array, mx.array, mx.array]], norm)


def attention(
    q: mx.array,
    k: mx.array,
    v: mx.array,
    scale: float,
    mask: mx.array | None,
    bias: mx.array | None = None,
    kept: tuple[mx.array, float] | None = None,
    weigh: "Weigh | None" = None,
) -> mx.array:
    """Scaled dot-product attention. Differentiable with respect to q, k, v and the bias.

    From q (B, H, …, L, head size), k and v (B, H, …, K, head size); the bias is added to the scores (B, H, …, L, K),
    and the mask is true if a token may be attended to. A fully masked row gives the mean of all values. `kept` is the
    mask of dropout, false if a weight is dropped, and the factor of the other weights.
    """
    # Adding a huge negative number takes a tenth of the time of `where`.
    masked = [] if mask is None else [mx.where(mask, 0.0, MASKED)]
    biased = [] if bias is None else [bias]
    dropped = [] if kept is None else [kept[0]]
    factor = 1.0 if kept is None else kept[1]
    return _differentiable_attention(scale, factor, weigh or _weigh)(q, k, v, masked, biased, dropped)[0]


# Takes scores (B, H, …, L, K) to powers of two of the same shape, and their sums over K.
Weigh = Callable[[mx.array], tuple[mx.array, mx.array]]


def _weigh(scores: mx.array) -> tuple[mx.array, mx.array]:
    weights = cast(mx.array, exp2(scores - scores.max(axis=-1, keepdims=True)))
    return weights, weights.sum(axis=-1, keepdims=True)


def _differentiable_attention(
    scale: float, factor: float, weigh: Weigh
) -> Callable[..., tuple[mx.array, mx.array, mx.array]]:
    """Attention with a derivative of its own: automatic differentiation would keep many more arrays (B, H, L, K)."""

    @mx.custom_function
    def attend(q: mx.array, k: mx.array, v: mx.array, masked: Arrays, biased: Arrays, kept: Arrays) -> Any:
        scores = ((q * (scale / math.log(2))) @ k.swapaxes(-1, -2)).astype(mx.float32)
        for bias in biased:
            scores = scores + bias.astype(mx.float32) * (1 / math.log(2))
        for mask in masked:
            scores = scores + mask
        weights, sums = weigh(scores)
        share = factor / sums
        # Scaling the few output values is cheaper than scaling every weight.
        mixed = _kept(weights, kept).astype(v.dtype) @ v
        return (mixed.astype(mx.float32) * share).astype(v.dtype), weights, share

    @attend.vjp
    def attend_vjp(inputs: Any, cotangents: Any, outputs: Any) -> Any:
        q, k, v, masked, biased, kept = inputs
        mixed, weights, share = outputs
        wide = cotangents[0].astype(mx.float32)
        scaled = (wide * share).astype(v.dtype)
        values = _kept(weights, kept).astype(v.dtype).swapaxes(-1, -2) @ scaled
        common = (wide * mixed.astype(mx.float32)).sum(axis=-1, keepdims=True) * (share / factor)
        scores = weights * (_kept((scaled @ v.swapaxes(-1, -2)).astype(mx.float32), kept) - common)
        narrow = scores.astype(q.dtype)
        return (
            (narrow @ k) * scale,
            (narrow.swapaxes(-1, -2) @ q) * scale,
            values,
            [mx.zeros_like(mask) for mask in masked],
            [_sum_to(scores, bias) for bias in biased],
            [mx.zeros_like(mask) for mask in kept],
        )

    return cast(Callable[..., tuple[mx.array, mx.array, mx.array]], attend)


def _kept(x: mx.array, kept: Arrays) -> mx.array:
    return x * kept[0] if kept else x


def _sum_to(x: mx.array, like: mx.array) -> mx.array:
    """Returns `x`, summed over the axes along which `like` was broadcast."""
    axes = [axis for axis, (long, short) in enumerate(zip(x.shape, like.shape, strict=True)) if long != short]
    return (x.sum(axis=axes, keepdims=True) if axes else x).astype(like.dtype)
