"""Inputs of any length to batches, and results back in the order of the inputs.

Within a window of consecutive inputs batches are made of inputs of like length and of a bounded number of tokens;
padding is on the right.
"""

import itertools
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import TypeVar

from mlxbert.device import mx, on_gpu
from mlxbert.errors import ArgumentError
from mlxbert.tokenizer import Encoding

WINDOW = 256  # inputs sorted by length together; a constant, so that batches depend on nothing but the inputs

T = TypeVar("T")
R = TypeVar("R")


@dataclass(frozen=True)
class Batch:
    """Inputs for one forward pass.

    Attributes:
        input_ids: int32 (B, L).
        attention_mask: bool (B, L), or `None` when nothing is padded.
        token_type_ids: int32 (B, L), or `None` when every segment is 0.
    """

    input_ids: mx.array
    attention_mask: mx.array | None
    token_type_ids: mx.array | None


def default_batch_tokens() -> int:
    """Tokens per batch: what keeps a GPU busy, or what stays in a CPU's caches."""
    return 16384 if on_gpu() else 2048


def make_batch(encodings: Sequence[Encoding], pad_id: int) -> Batch:
    """Pads inputs on the right to the longest of them."""
    length = max(map(len, encodings))
    padded = any(len(encoding) < length for encoding in encodings)
    segments = any(any(encoding.token_type_ids) for encoding in encodings)

    def rows(values: Iterable[list[int]], fill: int) -> mx.array:
        return mx.array([row + [fill] * (length - len(row)) for row in values], dtype=mx.int32)

    return Batch(
        input_ids=rows((encoding.ids for encoding in encodings), pad_id),
        attention_mask=rows(([1] * len(encoding) for encoding in encodings), 0) != 0 if padded else None,
        token_type_ids=rows((encoding.token_type_ids for encoding in encodings), 0) if segments else None,
    )


def plan(lengths: Sequence[int], batch_tokens: int) -> Iterator[list[int]]:
    """Groups inputs of like length so that no group exceeds `batch_tokens`, padding included.

    Args:
        lengths: Tokens of each input.
        batch_tokens: The bound; an input longer than it gets a group of its own.

    Yields:
        Numbers of inputs; each input is in exactly one group.

    Raises:
        ArgumentError: `batch_tokens` is less than 1.
    """
    if batch_tokens < 1:
        raise ArgumentError(f"batch_tokens is {batch_tokens}, expected at least 1")
    group: list[int] = []
    for number in sorted(range(len(lengths)), key=lambda number: lengths[number]):
        if group and lengths[number] * (len(group) + 1) > batch_tokens:
            yield group
            group = []
        group.append(number)
    if group:
        yield group


def in_batches(
    encodings: Sequence[Encoding], compute: Callable[[list[int]], Sequence[R]], batch_tokens: int | None
) -> list[R]:
    """Runs `compute` on groups of inputs and gives its results in the order of the inputs.

    Args:
        encodings: The inputs.
        compute: From the numbers of a group's inputs to one result for each.
        batch_tokens: Tokens per batch, padding included; `None` for the default.
    """
    results: dict[int, R] = {}
    lengths = [len(encoding) for encoding in encodings]
    for group in plan(lengths, default_batch_tokens() if batch_tokens is None else batch_tokens):
        results.update(zip(group, compute(group), strict=True))
    return [results[number] for number in range(len(encodings))]


def windows(items: Iterable[T], size: int = WINDOW) -> Iterator[list[T]]:
    """Consecutive items, `size` at a time."""
    iterator = iter(items)
    while window := list(itertools.islice(iterator, size)):
        yield window
