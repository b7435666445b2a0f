"""The activation functions that `hidden_act` may name, each as `transformers` computes it.

On a GPU each is one fused kernel (`mx.compile`). On a CPU nothing is compiled: MLX would call a C++ compiler at run
time, 0.4 s for each function, and do without where there is none.
"""

import functools
import math
from collections.abc import Callable

from mlxbert.device import mx, on_gpu
from mlxbert.errors import ConfigError

Activation = Callable[[mx.array], mx.array]

# erf(x) = x P(x^2) / Q(x^2) on [-4, 4], beyond which float32 knows only +-1: the rational approximation of Eigen's
# `generic_fast_erf_float` and of XLA. Coefficients from the highest power down.
_ERF_P = (
    -2.72614225801306e-10,
    2.77068142495902e-08,
    -2.10102402082508e-06,
    -5.69250639462346e-05,
    -7.34990630326855e-04,
    -2.95459980854025e-03,
    -1.60960333262415e-02,
)
_ERF_Q = (
    -1.45660718464996e-05,
    -2.13374055278905e-04,
    -1.68282697438203e-03,
    -7.37332916720468e-03,
    -1.42647390514189e-02,
)


def _horner(coefficients: tuple[float, ...], x: mx.array) -> mx.array:
    value = x * coefficients[0] + coefficients[1]
    for coefficient in coefficients[2:]:
        value = value * x + coefficient
    return value


def _erf_by_arithmetic(x: mx.array) -> mx.array:
    """`erf` from plain arithmetic, which MLX vectorises on a CPU; `mx.erf` takes 22 ns an element there."""
    wide = mx.clip(x.astype(mx.float32), -4.0, 4.0)
    square = wide * wide
    return (wide * _horner(_ERF_P, square) / _horner(_ERF_Q, square)).astype(x.dtype)


def gelu(x: mx.array) -> mx.array:
    """`x Phi(x)` with the exact normal distribution (arXiv:1606.08415)."""
    if on_gpu():
        return 0.5 * x * (1 + mx.erf(x * math.sqrt(0.5)))
    wide = x.astype(mx.float32)
    return (0.5 * wide * (1 + _erf_by_arithmetic(wide * math.sqrt(0.5)))).astype(x.dtype)


def gelu_tanh(x: mx.array) -> mx.array:
    """GELU by the tanh formula: `gelu_new`, `gelu_pytorch_tanh`, `gelu_fast`."""
    return 0.5 * x * (1 + mx.tanh(math.sqrt(2 / math.pi) * (x + 0.044715 * x * x * x)))


def quick_gelu(x: mx.array) -> mx.array:
    """GELU by a logistic curve."""
    return x * mx.sigmoid(1.702 * x)


def silu(x: mx.array) -> mx.array:
    """`x sigmoid(x)`, also called swish."""
    return x * mx.sigmoid(x)


def relu(x: mx.array) -> mx.array:
    """`max(x, 0)`."""
    return mx.maximum(x, 0)


ACTIVATIONS: dict[str, Activation] = {
    "gelu": gelu,
    "gelu_python": gelu,
    "gelu_new": gelu_tanh,
    "gelu_pytorch_tanh": gelu_tanh,
    "gelu_fast": gelu_tanh,
    "quick_gelu": quick_gelu,
    "relu": relu,
    "silu": silu,
    "swish": silu,
}


@functools.cache
def _fused(function: Activation) -> Activation:
    compiled: Activation = mx.compile(function, shapeless=True)
    return compiled


def check_activation(name: str) -> str:
    """Returns `name`, or refuses it with the list of known ones."""
    if name not in ACTIVATIONS:
        known = ", ".join(ACTIVATIONS)
        raise ConfigError(f"hidden_act is {name!r}, an activation mlxbert does not know; known: {known}")
    return name


def activate(name: str, x: mx.array) -> mx.array:
    """Applies the activation called `name` elementwise."""
    function = ACTIVATIONS[name]
    return _fused(function)(x) if on_gpu() else function(x)
