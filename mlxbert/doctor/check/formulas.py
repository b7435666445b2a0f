"""The formulas of the layers in numpy and float64, independent of MLX, as references for `doctor --check`.

Gradients are computed for a cotangent `up`, which is the gradient of a loss with respect to the output.

Shapes: N rows, D width, B batch, H heads, L length, K keys, d head size.
"""

import math
from collections.abc import Callable
from typing import Any

import numpy as np
from numpy.typing import NDArray

F64 = NDArray[np.float64]
Function = Callable[[F64], F64]
_erf = np.vectorize(math.erf, otypes=[np.float64])
_STEP = 1e-4  # of central differences

ACTIVATIONS: dict[str, Function] = {
    "gelu": lambda x: 0.5 * x * (1 + _erf(x / math.sqrt(2))),
    "gelu_new": lambda x: 0.5 * x * (1 + np.tanh(math.sqrt(2 / math.pi) * (x + 0.044715 * x**3))),
    "quick_gelu": lambda x: x / (1 + np.exp(-1.702 * x)),
    "silu": lambda x: x / (1 + np.exp(-x)),
    "relu": lambda x: np.maximum(x, 0),
    "tanh": np.tanh,
    "sigmoid": lambda x: 1 / (1 + np.exp(-x)),
}


def slope(function: Function, x: F64) -> F64:
    """Returns the derivative of an elementwise function by central differences, accurate to about 1e-8."""
    return (function(x + _STEP) - function(x - _STEP)) / (2 * _STEP)


def softmax(scores: F64) -> F64:
    """Returns the softmax over the last axis."""
    shares = np.exp(scores - scores.max(-1, keepdims=True))
    return shares / shares.sum(-1, keepdims=True)


def log_sum_exp(x: F64) -> F64:
    """Returns the logarithm of the sum of exponentials over the last axis, which is kept with a length of 1."""
    largest = x.max(-1, keepdims=True)
    return np.log(np.exp(x - largest).sum(-1, keepdims=True)) + largest


def layer_norm(x: F64, weight: F64, bias: F64, eps: float, up: F64) -> tuple[F64, F64, F64, F64]:
    """Returns the layer norm of x (N, D), and the gradients of x, weight and bias for the cotangent `up`."""
    centred = x - x.mean(-1, keepdims=True)
    scale = 1 / np.sqrt((centred**2).mean(-1, keepdims=True) + eps)
    normed, pulled = centred * scale, up * weight
    along = pulled.mean(-1, keepdims=True) + normed * (pulled * normed).mean(-1, keepdims=True)
    return normed * weight + bias, scale * (pulled - along), (up * normed).sum(0), up.sum(0)


def rms_norm(x: F64, weight: F64, eps: float, up: F64) -> tuple[F64, F64, F64]:
    """Returns the RMS norm of x (N, D), and the gradients of x and weight for the cotangent `up`."""
    scale = 1 / np.sqrt((x**2).mean(-1, keepdims=True) + eps)
    normed, pulled = x * scale, up * weight
    return normed * weight, scale * (pulled - normed * (pulled * normed).mean(-1, keepdims=True)), (up * normed).sum(0)


def attention_weights(q: F64, k: F64, scale: float, shift: F64) -> F64:
    """Returns the attention weights (B, H, L, K): the softmax of scaled products of queries and keys plus `shift`."""
    return softmax(q @ k.swapaxes(-1, -2) * scale + shift)


def attention_gradients(q: F64, k: F64, v: F64, scale: float, shift: F64, up: F64) -> tuple[F64, F64, F64]:
    """Returns the gradients of queries, keys and values, given a cotangent (B, H, L, d) of the output of attention."""
    weights = attention_weights(q, k, scale, shift)
    return *weights_gradients(q, k, scale, weights, up @ v.swapaxes(-1, -2)), weights.swapaxes(-1, -2) @ up


def weights_gradients(q: F64, k: F64, scale: float, weights: F64, up: F64) -> tuple[F64, F64]:
    """Returns the gradients of queries and keys, given a cotangent (B, H, L, K) of the attention weights."""
    scores = weights * (up - (weights * up).sum(-1, keepdims=True))
    return scores @ k * scale, scores.swapaxes(-1, -2) @ q * scale


def rotated(x: F64, cosines: F64, sines: F64) -> F64:
    """Rotates vectors (…, L, d), given the cosines and the sines of the angles, both (L, d / 2).

    Element n of the first half and element n of the second half of a vector are rotated together.
    """
    first, second = np.split(x, 2, axis=-1)
    return np.concatenate([first * cosines - second * sines, second * cosines + first * sines], axis=-1)


def cross_entropy(logits: F64, targets: NDArray[Any]) -> tuple[float, F64]:
    """Returns the sum of the cross-entropies of all rows of the logits (N, C), and its gradient."""
    rows = np.arange(len(logits))
    value = (log_sum_exp(logits)[:, 0] - logits[rows, targets]).sum()
    gradient = softmax(logits)
    gradient[rows, targets] -= 1
    return float(value), gradient


def mixture(
    tokens: F64, up: F64, down: F64, chosen: NDArray[Any], weights: F64, activation: Function, cotangent: F64
) -> tuple[F64, tuple[F64, F64, F64, F64]]:
    """Sends each token through its chosen experts, one token at a time.

    With E experts of inner size I, of which K are chosen per token, `tokens` is (N, D), `up` and `down` are (E, I, D),
    `chosen` and `weights` are (N, K), and `cotangent` is (N, D).

    Returns:
        The outputs, and the gradients of `tokens`, `up`, `down` and `weights`.
    """
    outputs = np.zeros_like(tokens)
    slopes = np.zeros_like(tokens), np.zeros_like(up), np.zeros_like(down), np.zeros_like(weights)
    for row, place in np.ndindex(*chosen.shape):
        expert, share, pulled = chosen[row, place], weights[row, place], cotangent[row]
        before = up[expert] @ tokens[row]
        inner = activation(before)
        outputs[row] += share * (inner @ down[expert])
        inside = share * (down[expert] @ pulled) * slope(activation, before)
        slopes[0][row] += inside @ up[expert]
        slopes[1][expert] += np.outer(inside, tokens[row])
        slopes[2][expert] += share * np.outer(inner, pulled)
        slopes[3][row, place] = inner @ down[expert] @ pulled
    return outputs, slopes


class Adam:
    """AdamW (arXiv:1711.05101) for one array, by the formulas of the paper."""

    def __init__(self, parameter: F64) -> None:
        self.parameter, self.mean, self.square = parameter, np.zeros_like(parameter), np.zeros_like(parameter)
        self._updates = 0

    def update(self, gradient: F64, rate: float, decay: float) -> None:
        """Makes one update. Afterwards, `mean` and `square` hold the moments before bias correction."""
        self._updates += 1
        self.mean = 0.9 * self.mean + 0.1 * gradient
        self.square = 0.999 * self.square + 0.001 * gradient**2
        mean, square = self.mean / (1 - 0.9**self._updates), self.square / (1 - 0.999**self._updates)
        self.parameter = self.parameter * (1 - rate * decay) - rate * mean / (np.sqrt(square) + 1e-8)
