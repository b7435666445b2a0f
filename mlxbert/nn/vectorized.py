"""Attention and activations of inference on a Linux CPU, by numpy's vector instructions.

MLX's wheel is built for any x86-64 processor: an operation takes four numbers at a time and 0.15 to 0.3 ns for each,
and an exponential or GELU is some twenty of them. numpy takes sixteen, computes in place in a core's cache, and has an
exponential: a softmax takes 1.3 ns an element instead of 7, a GELU 2.5 instead of 4.5. Matrix products stay with MLX.

All of this evaluates what it is given, so it runs in `mlxbert.cores.inference` only.
"""

import functools
import math
import os
from collections.abc import Callable
from functools import partial
from itertools import pairwise, product
from typing import TYPE_CHECKING

from mlxbert.cores import cores_at_hand, inferring, over_cores
from mlxbert.device import mx, nn
from mlxbert.nn import kernels

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    Floats = NDArray[np.float32]

_WORTH = 2**17  # elements; fewer take less time than importing numpy
_LEAST = 2.0**-64  # see `kernels.exp2`
_FEWEST_QUERIES = 64  # of a block; with fewer, matrix products are slow


def pays(size: int) -> bool:
    """Whether arrays of so many elements are computed here."""
    return size >= _WORTH and inferring() and _shares_memory()


@functools.cache
def _shares_memory() -> bool:
    """Whether numpy sees the memory of an evaluated array, on which all of this rests, and not a copy of it."""
    import numpy as np

    array = mx.zeros(2) + 1
    mx.eval(array)
    view = np.asarray(array)
    if view.flags.writeable:
        view += 1
    return bool(mx.array_equal(array, mx.full(2, 2.0)))


@functools.cache
def block_size() -> int:
    """Elements of float32 in a block: twice the cache of a core, which is a mebibyte where the system does not say.

    With half of that, calls and waiting make attention 4 to 8 % slower; with a quarter, 18 to 26 %.
    """
    try:
        found = os.sysconf("SC_LEVEL2_CACHE_SIZE")
    except (ValueError, OSError):
        found = 0
    return 2 * max(found if found > 0 else 2**20, 2**18) // 4


def attention(
    q: mx.array, k: mx.array, v: mx.array, scale: float, mask: mx.array | None, bias: mx.array | None = None
) -> mx.array:
    """What `kernels.attention` computes without dropout, in blocks of texts, heads or queries."""
    batch, heads, rows = q.shape[0], q.shape[1], q.shape[-2]
    size = math.prod(q.shape[2:-1]) * k.shape[-2]  # of a head
    texts = max(1, block_size() // (size * heads))
    some = max(1, min(heads, block_size() // size))
    queries = min(rows, max(_FEWEST_QUERIES, block_size() * rows // size))
    q = q * scale
    mx.eval(q, k, v, mask, bias)
    slices = [_slices(*axis) for axis in ((batch, texts), (heads, some, cores_at_hand()), (rows, queries))]
    blocks = over_cores(partial(_attend_all, q=q, k=k, v=v, mask=mask, bias=bias), list(product(*slices)))
    for axis, count in ((-2, len(slices[2])), (1, len(slices[1])), (0, len(slices[0]))):
        blocks = [_joined(blocks[start : start + count], axis) for start in range(0, len(blocks), count)]
    return blocks[0]


Ranges = tuple[slice, ...]


def _slices(length: int, most: int, multiple: int = 1) -> list[slice]:
    """An axis in slices of about the same length, `most` at most; a multiple of so many, where there is enough."""
    count = min(math.ceil(math.ceil(length / most) / multiple) * multiple, length)
    ends = [length * number // count for number in range(count + 1)]
    return [slice(*part) for part in pairwise(ends)]


def _attend_all(
    blocks: list[Ranges], q: mx.array, k: mx.array, v: mx.array, mask: mx.array | None, bias: mx.array | None
) -> list[mx.array]:
    import numpy as np

    with np.errstate(all="ignore"):  # what is not finite is found later, with the text it belongs to
        found = [_attend(ranges, q, k, v, mask, bias) for ranges in blocks]
    mx.eval(found)
    return found


def _attend(
    ranges: Ranges,
    q: mx.array,
    k: mx.array,
    v: mx.array,
    mask: mx.array | None,
    bias: mx.array | None,
) -> mx.array:
    """A block of attention. The scores have keys as rows: numpy then takes maxima and sums twice as fast."""
    import numpy as np

    texts, heads, queries = ranges
    scores = k[texts, heads] @ q[texts, heads, ..., queries, :].swapaxes(-1, -2)
    scores = scores.astype(mx.float32)
    added = [] if bias is None else [_part(bias.astype(mx.float32), ranges)]
    added += [] if mask is None else [mx.where(_part(mask, ranges), 0.0, kernels.MASKED)]
    mx.eval(scores, added)
    weights: Floats = np.asarray(scores)  # the same memory: nobody else has these scores
    for array in added:
        weights += np.asarray(array).swapaxes(-1, -2)
    weights -= weights.max(axis=-2, keepdims=True)
    np.exp(weights, out=weights)
    weights += _LEAST
    share = mx.array(1 / weights.sum(axis=-2)[..., None])
    mixed = scores.astype(v.dtype).swapaxes(-1, -2) @ v[texts, heads]
    mixed = (mixed.astype(mx.float32) * share).astype(v.dtype)
    mx.async_eval(mixed)  # while the next block waits for its scores
    return mixed


def _part(x: mx.array, ranges: Ranges) -> mx.array:
    """A part of what is broadcast to (B, H, …, L, K)."""
    whole = slice(None)
    texts, heads, queries = (
        part if x.shape[axis] > 1 else whole for part, axis in zip(ranges, (0, 1, -2), strict=True)
    )
    return x[texts, heads, ..., queries, :]


def _joined(parts: list[mx.array], axis: int) -> mx.array:
    return parts[0] if len(parts) == 1 else mx.concatenate(parts, axis=axis)


def _gelu(x: "Floats", tail: "Floats", distance: "Floats") -> None:
    """`kernels.gelu`, to the bit."""
    import numpy as np

    np.abs(x, out=distance)
    np.minimum(distance, _constants(kernels.TAIL_END, x.shape), out=distance)
    np.multiply(distance, kernels.TAIL[0], out=tail)
    tail += kernels.TAIL[1]
    for coefficient in kernels.TAIL[2:]:
        tail *= distance
        tail += coefficient
    for _ in range(4):
        tail *= tail
    tail *= distance
    np.maximum(x, _constants(0.0, x.shape), out=x)
    x -= tail


@functools.lru_cache(8)
def _constants(value: float, shape: tuple[int, ...]) -> "Floats":
    """An array of one number: numpy's minimum with a plain number takes three times as long."""
    import numpy as np

    return np.full(shape, value, dtype=np.float32)


def _gelu_tanh(x: "Floats", inner: "Floats", _: "Floats") -> None:
    import numpy as np

    np.multiply(x, x, out=inner)
    inner *= 0.044715 * math.sqrt(2 / math.pi)
    inner += math.sqrt(2 / math.pi)
    inner *= x
    np.tanh(inner, out=inner)
    inner += 1
    x *= 0.5
    x *= inner


def _silu(x: "Floats", inner: "Floats", _: "Floats", slope: float = 1.0) -> None:
    import numpy as np

    np.multiply(x, -slope, out=inner)
    np.exp(inner, out=inner)
    inner += 1
    x /= inner


# Each changes its first array and uses the others.
ACTIVATIONS: dict[str, Callable[["Floats", "Floats", "Floats"], None]] = {
    "gelu": _gelu,
    "gelu_python": _gelu,
    "gelu_new": _gelu_tanh,
    "gelu_pytorch_tanh": _gelu_tanh,
    "gelu_fast": _gelu_tanh,
    "quick_gelu": partial(_silu, slope=1.702),
    "silu": _silu,
    "swish": _silu,
}


class Linear(nn.Linear):
    """A dense layer. `mx.addmm` copies the bias into every row, 1.1 ns an element; adding it later takes 0.2."""

    def __call__(self, x: mx.array) -> mx.array:
        """(…, input size) → (…, output size)."""
        if "bias" not in self or not inferring():
            return super().__call__(x)
        return x @ self.weight.T + self.bias


def activates(name: str, layer: Linear, x: mx.array) -> bool:
    """Whether the activation of `layer(x)` is computed here."""
    return name in ACTIVATIONS and x.dtype == mx.float32 and pays(x.size // x.shape[-1] * layer.weight.shape[0])


def activated(name: str, layer: Linear, x: mx.array) -> mx.array:
    """The activation of `layer(x)`, in parts that stay in the cache with what they need."""
    import numpy as np

    values = x @ layer.weight.T
    mx.eval(values)
    rows: Floats = np.asarray(values).reshape(-1, values.shape[-1])  # the same memory: nobody else has this product
    bias = np.asarray(layer.bias) if "bias" in layer else None
    most = max(1, block_size() // 4 // rows.shape[1])
    parts = [rows[part] for part in _slices(len(rows), most, cores_at_hand())]
    over_cores(partial(_activate, name=name, bias=bias), parts)
    return values


def _activate(parts: list["Floats"], name: str, bias: "Floats | None") -> list[None]:
    import numpy as np

    one, other = np.empty((2, *max(parts, key=len).shape), dtype=np.float32)
    with np.errstate(all="ignore"):
        for part in parts:
            if bias is not None:
                part += bias
            ACTIVATIONS[name](part, one[: len(part)], other[: len(part)])
    return [None] * len(parts)


class LayerNorm(nn.LayerNorm):
    """A norm over the last axis. MLX takes 3 ns an element, 1.5 of them for sums; products with ones take 0.2."""

    def __call__(self, x: mx.array) -> mx.array:
        """(…, D) → (…, D)."""
        if x.dtype != mx.float32 or not inferring():
            return super().__call__(x)
        width = x.shape[-1]
        ones = mx.ones((width, 1))
        centred = x - (x @ ones) * (1 / width)
        variance = (centred * centred @ ones) * (1 / width)
        y = centred * mx.rsqrt(variance + self.eps)
        y = y * self.weight if "weight" in self else y
        return y + self.bias if "bias" in self else y
