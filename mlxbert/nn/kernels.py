"""GELU and attention for MLX's Linux CPU backend, from the operations that it computes fast.

There `erf`, `exp` and `tanh` take 9 to 22 ns an element, one at a time; additions and multiplications 0.2 ns. With
them, a MiniLM spends most of its time in softmax. The functions here cost half to a fifth and agree with the exact ones
to a few units in the last place of float32. They compute in float32 and return the dtype of their input.

`mx.compile` would fuse them, but on a CPU it calls a C++ compiler at run time, where there is one (0.4 s for each shape
of graph), and loads the result from a folder in /tmp that others can write to.
"""

import math
from typing import cast

from mlxbert.device import mx

# 2^f on [-1/2, 1/2], relative error 7.5e-8: least squares at Chebyshev points, reweighted until minimax.
_EXP2 = (
    0.0013276466790908986,
    0.009675541293003576,
    0.055507132895888024,
    0.2402211972487166,
    0.6931469670549091,
    1.0000000716543684,
)
# Phi(x) - 1/2 = x P(x^2) / Q(x^2) within +-_PHI_END, fitted likewise; scaled by 1 + 3e-7, so that it reaches 1/2 at the
# end in float32 and GELU is 0 below.
_PHI_END = 5.232590180780452
_PHI_P = (-2.1737198e-08, 7.58991965e-06, 5.82563773e-04, 7.13161283e-03, 7.59249374e-02, 3.98940468e-01)
_PHI_Q = (1.9852767e-04, 4.21522933e-03, 5.24119654e-02, 3.56955602e-01, 1.0)
_ROUND = 1.5 * 2**23  # added to a float32, it leaves the nearest integer in the last bits


def _polynomial(coefficients: tuple[float, ...], x: mx.array) -> mx.array:
    value = x * coefficients[0] + coefficients[1]
    for coefficient in coefficients[2:]:
        value = value * x + coefficient
    return value


@mx.custom_function
def exp2(x: mx.array) -> mx.array:
    """`2**x` elementwise, for x <= 0 in float32; below -64 it stays at 2**-64. Differentiable.

    Next to the 1 of a softmax, 2**-64 is negligible. Smaller values give subnormal products, for which a CPU takes
    thirty times as long: masked attention ran at a third of its speed.
    """
    x = mx.maximum(x, -64.0)
    shifted = x + _ROUND
    fraction = x - (shifted - _ROUND)
    # The integer part goes into the exponent bits: the low bits of `shifted` hold it, the shift drops all others.
    exponent = mx.left_shift(mx.view(shifted, mx.int32), 23)
    return mx.view(mx.view(_polynomial(_EXP2, fraction), mx.int32) + exponent, mx.float32)


@exp2.vjp
def _exp2_vjp(x: mx.array, cotangent: mx.array, output: mx.array) -> mx.array:
    return cotangent * output * math.log(2)


def gelu(x: mx.array) -> mx.array:
    """`x Phi(x)`, to 2.2e-6 or the last digit of float32."""
    wide = x.astype(mx.float32)
    inside = mx.clip(wide, -_PHI_END, _PHI_END)
    square = inside * inside
    phi = inside * _polynomial(_PHI_P, square) / _polynomial(_PHI_Q, square) + 0.5
    return (wide * mx.maximum(phi, 0.0)).astype(x.dtype)


def attention(
    q: mx.array, k: mx.array, v: mx.array, scale: float, mask: mx.array | None, bias: mx.array | None = None
) -> mx.array:
    """Scaled dot-product attention.

    Args:
        q: (B, H, …, L, head size).
        k: (B, H, …, K, head size).
        v: (B, H, …, K, head size).
        scale: Factor of the products.
        mask: bool, broadcast to (B, H, …, L, K), true where a token may be attended to.
        bias: Added to the scores, broadcast to (B, H, …, L, K).

    Returns:
        (B, H, …, L, head size). A fully masked row gives the mean of all values.
    """
    scores = ((q * (scale / math.log(2))) @ k.swapaxes(-1, -2)).astype(mx.float32)
    if bias is not None:
        scores = scores + bias.astype(mx.float32) * (1 / math.log(2))
    if mask is not None:
        scores = mx.where(mask, scores, mx.finfo(mx.float32).min)
    weights = cast(mx.array, exp2(scores - mx.stop_gradient(mx.max(scores, axis=-1, keepdims=True))))
    total = weights.sum(axis=-1, keepdims=True)
    # Dividing the few output values is cheaper than dividing every weight.
    return ((weights.astype(v.dtype) @ v).astype(mx.float32) / total).astype(v.dtype)
