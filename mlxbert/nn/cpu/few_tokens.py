"""The layers of an encoder for few tokens on a Linux CPU: on numpy's arrays, with direct calls of the BLAS.

MLX takes about 10 microseconds for an operation however small, and a layer has about eighty: of a text with a few dozen
tokens, they would take most of the time. An operation of numpy, and a call of the BLAS, takes one or two. A head's part
of queries, keys and values is a matrix whose rows are far apart, which numpy multiplies without a copy.

The layers get arrays of numpy in place of MLX's: `ops` hands such arrays to the functions of this file, and the
arithmetic of blocks is the same for both kinds. The encoder knows which layers do without other operations.

Shapes: B batch, L length, D hidden size, H heads, d head size.
"""

import importlib
import sys
import threading
from typing import Any

from mlxbert.machine.cores import inferring, is_worker
from mlxbert.machine.device import BLAS, mx, nn, on_gpu
from mlxbert.nn.cpu import mlx_kernels, numpy_layers

Floats = Any  # an array of numpy, float32, in the place of an array of MLX
_MAX_TOKENS = 256  # with more, it pays to compute on all cores what is not a product (see `numpy_layers`)
_MULTIPLE = 8  # the BLAS needs a third less time for 16 rows than for 14
_BY_ROWS, _AS_IT_IS, _TRANSPOSED = 101, 111, 112  # CBLAS's names
_MIN_WEIGHT = 2.0**-64  # see `mlx_kernels.exp2`


def pays(tokens: int) -> bool:
    """Whether a batch of this many tokens takes less time on numpy's arrays.

    Not in one of several threads, as the BLAS that numpy brings has all cores in each of them. What a process has done
    before does not matter: the same text must have the same digits in each.
    """
    if on_gpu() or not inferring() or not numpy_layers.shares_memory():
        return False
    return tokens <= _MAX_TOKENS and not is_worker() and BLAS.sgemm is not None


def start_importing_numpy() -> None:
    """Imports numpy on a thread, while the weights of a model are read: the import takes longer than a short text."""
    if sys.platform == "linux" and not on_gpu() and BLAS.sgemm is not None:
        threading.Thread(target=importlib.import_module, args=("numpy",)).start()


def is_memory(x: object) -> bool:
    """Whether an array is one of numpy's, and so belongs to this file."""
    return not isinstance(x, mx.array)


def memory(x: mx.array) -> Floats:
    """The memory of an array, in numpy's form; evaluates the array."""
    import numpy as np

    return np.asarray(x)


def without_warnings() -> Any:
    """Silences numpy within a `with` block: NaN and infinity are detected later, with the text that they belong to."""
    import numpy as np

    return np.errstate(all="ignore")


def dense(layer: nn.Linear, x: Floats) -> Floats:
    """(…, input size) → (…, output size)."""
    import numpy as np

    assert BLAS.sgemm is not None
    # No copies, except of what does not fit: the BLAS trusts the addresses that it gets.
    weight = np.ascontiguousarray(memory(layer.weight), np.float32)
    rows = np.ascontiguousarray(x.reshape(-1, x.shape[-1]), np.float32)
    (width, inner), real = weight.shape, len(rows)
    if missing := -real % _MULTIPLE:
        rows = np.concatenate([rows, np.zeros((missing, inner), np.float32)])
    y = np.empty((len(rows), width), np.float32)
    BLAS.sgemm(
        _BY_ROWS, _AS_IT_IS, _TRANSPOSED, len(rows), width, inner,
        1.0, _address(rows), inner, _address(weight), inner, 0.0, _address(y), width,
    )  # fmt: skip
    y = y[:real].reshape(*x.shape[:-1], width)
    if "bias" in layer:
        y += memory(layer.bias)
    return y


def _address(x: Floats) -> int:
    address: int = x.__array_interface__["data"][0]
    return address


def activated(name: str, layer: nn.Module, x: Floats) -> Floats:
    """The activation of `layer(x)`, one of `numpy_layers.ACTIVATIONS`."""
    y = layer(x)
    numpy_layers.activate_in_place(name, y.reshape(-1, y.shape[-1]))
    return y


def layer_norm(layer: nn.LayerNorm, x: Floats) -> Floats:
    """(…, D) → (…, D)."""
    import numpy as np

    sums = np.add.reduce(x, axis=-1, keepdims=True)  # `mean` takes twice as long
    sums *= 1 / x.shape[-1]
    y = x - sums
    y *= _inverse_root(y, layer.eps)
    if "weight" in layer:
        y *= memory(layer.weight)
    if "bias" in layer:
        y += memory(layer.bias)
    return y


def unit_rms(x: Floats, eps: float) -> Floats:
    """Scales `x` to a mean square of 1."""
    return x * _inverse_root(x, eps)


def _inverse_root(x: Floats, eps: float) -> Floats:
    """Returns 1 / sqrt(mean square + eps) over the last axis, which is kept with length 1."""
    import numpy as np

    squares = np.einsum("...i,...i->...", x, x)[..., None]
    squares *= 1 / x.shape[-1]
    squares += eps
    np.sqrt(squares, out=squares)
    return np.reciprocal(squares, out=squares)


def rotated(x: Floats, cosines: mx.array, sines: mx.array) -> Floats:
    """Rotates vectors (B, H, L, d) by their positions (see `ops.rotate`)."""
    import numpy as np

    first, second = np.split(x, 2, axis=-1)
    along, across = memory(cosines), memory(sines)
    return np.concatenate([first * along - second * across, second * along + first * across], axis=-1)


def attention(q: Floats, k: Floats, v: Floats, scale: float, mask: mx.array | None, bias: mx.array | None) -> Floats:
    """Computes `mlx_kernels.attention` without dropout, from (B, H, L, d), (B, key heads, L, d) and the same.

    Scores have keys as rows, which makes numpy's maxima and sums faster.
    """
    import numpy as np

    (batch, heads, length, size), shared = q.shape, k.shape[1]
    # Query heads that share a key head become an axis of their own.
    grouped = (batch, shared, heads // shared, length, size)
    mixed = np.empty((batch, length, heads, size), np.float32)
    by_head = mixed.transpose(0, 2, 1, 3)
    weights = np.empty((batch, shared, heads // shared, k.shape[2], length), np.float32)
    by_query = weights.reshape(batch, heads, -1, length).swapaxes(-1, -2)
    scaled = (q * np.float32(scale)).reshape(grouped)
    np.matmul(k[:, :, None], scaled.swapaxes(-1, -2), out=weights)
    if bias is not None:
        by_query += memory(bias)
    if mask is not None:
        by_query += np.where(memory(mask), np.float32(0), np.float32(mlx_kernels.MASKED))
    weights -= weights.max(axis=-2, keepdims=True)
    np.exp(weights, out=weights)
    weights += _MIN_WEIGHT
    np.matmul(weights.swapaxes(-1, -2), v[:, :, None], out=by_head.reshape(grouped))
    mixed *= np.reciprocal(by_query.sum(axis=-1)).transpose(0, 2, 1)[..., None]
    return by_head
