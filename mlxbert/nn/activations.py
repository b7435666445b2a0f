"""The activation functions that `hidden_act` may name, each as `transformers` computes it."""

import math
from collections.abc import Callable

from mlxbert.errors import ConfigError
from mlxbert.machine.device import mx

Activation = Callable[[mx.array], mx.array]


def gelu(x: mx.array) -> mx.array:
    """`x Phi(x)` with the exact normal CDF (arXiv:1606.08415)."""
    return 0.5 * x * (1 + mx.erf(x * math.sqrt(0.5)))


def gelu_tanh(x: mx.array) -> mx.array:
    """GELU with the tanh approximation: `gelu_new`, `gelu_pytorch_tanh`, `gelu_fast`."""
    return 0.5 * x * (1 + mx.tanh(math.sqrt(2 / math.pi) * (x + 0.044715 * x * x * x)))


def quick_gelu(x: mx.array) -> mx.array:
    """GELU approximated by a sigmoid."""
    return x * mx.sigmoid(1.702 * x)


def silu(x: mx.array) -> mx.array:
    """`x sigmoid(x)`, also called swish."""
    return x * mx.sigmoid(x)


def relu(x: mx.array) -> mx.array:
    """`max(x, 0)`."""
    return mx.maximum(x, 0)


def linear(x: mx.array) -> mx.array:
    """`x` unchanged."""
    return x


ACTIVATIONS: dict[str, Activation] = {
    "gelu": gelu, "gelu_python": gelu, "gelu_new": gelu_tanh, "gelu_pytorch_tanh": gelu_tanh, "gelu_fast": gelu_tanh,
    "quick_gelu": quick_gelu, "relu": relu, "silu": silu, "swish": silu, "tanh": mx.tanh, "sigmoid": mx.sigmoid,
    "linear": linear,
}  # fmt: skip


def check_activation(name: str) -> str:
    """Returns `name`, or raises an error if mlxbert does not know this activation."""
    if name not in ACTIVATIONS:
        names = ", ".join(ACTIVATIONS)
        raise ConfigError(f"hidden_act is {name!r}, expected one of {names}")
    return name
