"""Measures the sizes from which `mlxbert.nn.gpu_attention` should pad heads and divide texts into blocks.

Run on a GPU: python benchmarks/thresholds.py [--dtype float16]
"""

import argparse
import json
import statistics
import time
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

from mlxbert.machine.device import choose_dtype, mx
from mlxbert.nn import gpu_attention

KEYS, BLOCKS = (64, 128, 192, 256, 384, 512), (4, 6, 8, 12, 16)
_HEADS, _HEAD_SIZE, _WIDE, _WINDOW = 12, 32, 64, 64  # MiniLM's heads; ModernBERT's window
_CALLS = 8  # per measurement, so that the start does not matter
Work = Callable[[mx.array], mx.array]


def thresholds(dtype: mx.Dtype, *, tokens: int = 16384, runs: int = 5) -> dict[str, Any]:
    """Measures both thresholds on the device in use.

    Args:
        dtype: The dtype to compute in.
        tokens: The number of tokens in a batch.
        runs: The number of runs; medians are compared.

    Returns:
        `padding` of head size 32 by the number of keys, and `blocks` of 64 tokens by their number: `speedup`, which
        pays above 1; `pays_from`, the measured threshold or `None`; `used_from`, the threshold in the code.
    """
    measure = partial(_speedup, dtype=dtype, tokens=tokens, runs=runs)
    padding = {keys: measure(_padding, keys) for keys in KEYS}
    blocks = {count: measure(_blocks, count) for count in BLOCKS}
    return {
        "padding": {"speedup": padding, "pays_from": pays_from(padding), "used_from": gpu_attention.PADDED_FROM},
        "blocks": {"speedup": blocks, "pays_from": pays_from(blocks), "used_from": gpu_attention.BLOCKS_FROM},
    }


def pays_from(speedups: dict[int, float]) -> int | None:
    """The size from which all speedups are above 1."""
    threshold = None
    for size in sorted(speedups, reverse=True):
        if speedups[size] <= 1:
            break
        threshold = size
    return threshold


def _padding(dtype: mx.Dtype, tokens: int, keys: int) -> tuple[mx.array, Sequence[Work]]:
    """Queries, plain attention, and attention with padded heads."""
    shape = max(tokens // keys, 1), _HEADS, keys, _HEAD_SIZE
    q, k, v = (mx.random.normal(shape).astype(dtype) for _ in range(3))
    return q, [partial(_padded, k=k, v=v, wide=wide) for wide in (_HEAD_SIZE, _WIDE)]


def _padded(q: mx.array, k: mx.array, v: mx.array, wide: int) -> mx.array:
    return gpu_attention.padded_attention(q, k, v, _HEAD_SIZE**-0.5, None, wide)


def _blocks(dtype: mx.Dtype, tokens: int, count: int) -> tuple[mx.array, Sequence[Work]]:
    """Queries, attention to all tokens with a mask, and attention in blocks."""
    length = count * _WINDOW
    q, k, v = (mx.random.normal((max(tokens // length, 1), _HEADS, length, 64)).astype(dtype) for _ in range(3))
    places = mx.arange(length)
    near = (mx.abs(places[:, None] - places) <= _WINDOW)[None, None]
    blocks = gpu_attention.blocks(length, _WINDOW, None)
    assert blocks is not None
    mx.eval(near, blocks)
    return q, [
        lambda q: gpu_attention.attention(q, k, v, 64**-0.5, near, gradient=False),
        lambda q: gpu_attention.attention_in_blocks(q, k, v, 64**-0.5, blocks),
    ]


def _speedup(
    make: Callable[[mx.Dtype, int, int], tuple[mx.array, Sequence[Work]]],
    size: int,
    *,
    dtype: mx.Dtype,
    tokens: int,
    runs: int,
) -> float:
    """The speedup of the second function over the first, measured in turn."""
    q, functions = make(dtype, tokens, size)
    seconds: list[list[float]] = [[] for _ in functions]
    for number in range(runs + 1):  # the first warms up
        for function, spent in zip(functions, seconds, strict=True):
            begun, output = time.perf_counter(), q
            for _ in range(_CALLS):
                output = function(output)
            mx.eval(output)
            spent += [time.perf_counter() - begun] if number else []
    first, second = map(statistics.median, seconds)
    return round(first / second, 3)


def main() -> None:
    """Prints the thresholds as JSON."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--dtype", default="auto")
    print(json.dumps(thresholds(choose_dtype(parser.parse_args().dtype))))


if __name__ == "__main__":
    main()
