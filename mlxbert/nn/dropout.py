"""Dropout with explicit keys, so that a repeated training step draws the same masks.

    with dropout.seeded(key):
        loss = ...network.logits("sequence_classifier", batch)...

Inside the block, the keys of all layers come from `key`, in the order of the calls; outside, from MLX's global random
state. In evaluation mode, and at a rate of 0, nothing is drawn.
"""

import contextlib
import math
import threading
from collections.abc import Iterator

from mlxbert.machine.device import mx, nn
from mlxbert.nn.ops import backend
from mlxbert.option_declarations import RATE

_WORD = 2**16  # masks are drawn as 16-bit words: half the work of MLX's own masks, with 32 bits for each element
_WORDS_IN_KEY = 4
_source = threading.local()


@contextlib.contextmanager
def seeded(key: mx.array | None) -> Iterator[None]:
    """Makes this thread draw masks from `key` (see `mx.random.key`) within the `with` block, in the order of the calls.

    With `None`, the block changes nothing.
    """
    if key is None:
        yield
        return
    outside = getattr(_source, "key", None)
    _source.key = key
    try:
        yield
    finally:
        _source.key = outside


def next_key() -> mx.array:
    """Returns a fresh key, to be used only once."""
    key = getattr(_source, "key", None)
    if key is None:
        return mx.view(mx.random.randint(-(2**31), 2**31 - 1, (2,)), mx.uint32)
    _source.key, fresh = mx.random.split(key)
    return fresh


def draw_mask(shape: tuple[int, ...], rate: float) -> tuple[mx.array, float]:
    """Draws a mask, and computes the factor of the elements that it keeps.

    Args:
        rate: The share of elements to drop, at least 0 and less than 1; rounded to 1 / 65536.

    Returns:
        A bool array of `shape`, false if an element is dropped, and the inverse of the share of kept elements.
    """
    least, factor = _threshold(rate)
    return _draw_words(shape) >= mx.array(least, dtype=mx.uint16), factor


def _draw_words(shape: tuple[int, ...]) -> mx.array:
    """Random 16-bit words."""
    size = math.prod(shape)
    words = mx.view(mx.random.split(next_key(), -(-size // _WORDS_IN_KEY)), mx.uint16).reshape(-1)[:size]
    return words.reshape(shape)


def _threshold(rate: float) -> tuple[int, float]:
    """Returns the smallest random word that means "keep", and the factor by which kept elements are multiplied."""
    least = min(round(rate * _WORD), _WORD - 1)
    return least, _WORD / (_WORD - least)


class KeyedDropout(nn.Module):
    """Sets elements to 0 at random in training, and scales the others so that the mean stays the same.

    Args:
        rate: The share of elements to drop; `None` if the family has no dropout here, so that `set_rate` has no effect.
    """

    def __init__(self, rate: float | None) -> None:
        super().__init__()
        self.rate = rate

    @property
    def drops(self) -> bool:
        """Whether this layer drops anything in a forward pass now."""
        return bool(self.training and self.rate)

    def draw(self, shape: tuple[int, ...]) -> tuple[mx.array, float] | None:
        """Draws a mask (see `draw_mask`); returns `None` if nothing is dropped."""
        return draw_mask(shape, self.rate or 0.0) if self.drops else None

    def __call__(self, x: mx.array) -> mx.array:
        """Any shape and dtype → the same shape and dtype."""
        if not self.drops:
            return x
        return backend().drop(x, _draw_words(x.shape), *_threshold(self.rate or 0.0))


def drops(network: nn.Module) -> bool:
    """Whether the network drops anything in a forward pass now."""
    return any(isinstance(module, KeyedDropout) and module.drops for module in network.modules())


def set_rate(network: nn.Module, rate: float) -> None:
    """Sets the rate of all dropout layers in the encoder and the heads, except where the family has no dropout."""
    rate = RATE.check_number("dropout", rate)
    for module in network.modules():
        if isinstance(module, KeyedDropout) and module.rate is not None:
            module.rate = float(rate)
