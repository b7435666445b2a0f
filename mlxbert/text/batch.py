"""Inputs of any length to batches, and results back in the order of the inputs.

Within a window of consecutive inputs batches are made of inputs of like length and of a bounded number of tokens;
padding is on the right. Batches depend on nothing but their window and the options, so that a second run computes the
very same.
"""

import itertools
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import TypeVar

from mlxbert.config import EncoderConfig
from mlxbert.device import mx, on_gpu
from mlxbert.errors import ArgumentError, InputError
from mlxbert.nn.encoder import Batch
from mlxbert.text.encoding import Encoding

WINDOW = 512  # inputs sorted by length together; a constant, so that batches depend on nothing but the inputs
MOST_PADDING = 1 / 16  # of the tokens of a batch

T = TypeVar("T")
R = TypeVar("R")


def default_batch_tokens() -> int:
    """Tokens per batch: what keeps a GPU busy, or what stays in a CPU's caches."""
    return 16384 if on_gpu() else 1024


@dataclass
class Usage:
    """What was computed, counted as it goes on.

    Attributes:
        inputs: Inputs of the model: texts, or windows of them.
        tokens: Tokens of these inputs, special tokens included.
        slots: Places for tokens in the batches, padding included.
        batches: Forward passes.
        texts: Texts that became vectors.
        cut: How many of them were longer than the model takes and were cut.
    """

    inputs: int = 0
    tokens: int = 0
    slots: int = 0
    batches: int = 0
    texts: int = 0
    cut: int = 0

    @property
    def padding(self) -> float:
        """The share of slots that held no token, 0 to 1."""
        return 1 - self.tokens / self.slots if self.slots else 0.0

    def add(self, lengths: Sequence[int], padded: int) -> None:
        """Counts a batch of inputs of these lengths, padded to `padded` tokens each."""
        self.inputs += len(lengths)
        self.tokens += sum(lengths)
        self.slots += padded * len(lengths)
        self.batches += 1


def padded_length(length: int, most: int) -> int:
    """The length to which a batch is padded whose longest input has `length` tokens.

    A CPU computes on exactly as much as there is. On a GPU kernels are chosen, and compiled, by shape: there lengths
    come from a small fixed set.

    Args:
        length: Tokens of the longest input.
        most: Tokens that the model takes.
    """
    return bucket(length, most) if on_gpu() else length


def bucket(length: int, most: int) -> int:
    """The next multiple of 16 up to 128, of 64 beyond; never more than `most`."""
    step = 16 if length <= 128 else 64
    return max(length, min(-(-length // step) * step, most))


def make_batch(encodings: Sequence[Encoding], config: EncoderConfig) -> Batch:
    """Pads inputs on the right to the length of the longest, or a little more (`padded_length`)."""
    length = padded_length(max(map(len, encodings)), config.max_length)
    pad_id = config.pad_token_id
    padded = any(len(encoding) < length for encoding in encodings)
    # Tokenizers may call the second text segment 1 where the model has but one segment (XLM-RoBERTa) or none.
    last = max(max(encoding.token_type_ids, default=0) for encoding in encodings) if config.type_vocab_size > 1 else 0
    if last >= max(config.type_vocab_size, 1):  # MLX would read past the table
        raise InputError(
            f"the tokenizer gives segment {last}, the model has segments 0 to {config.type_vocab_size - 1}"
        )

    def rows(values: Iterable[list[int]], fill: int) -> mx.array:
        return mx.array([row + [fill] * (length - len(row)) for row in values], dtype=mx.int32)

    return Batch(
        input_ids=rows((encoding.ids for encoding in encodings), pad_id),
        attention_mask=rows(([1] * len(encoding) for encoding in encodings), 0) != 0 if padded else None,
        token_type_ids=rows((encoding.token_type_ids for encoding in encodings), 0) if last else None,
    )


def check_batch_tokens(batch_tokens: int) -> None:
    """Refuses a number of tokens per batch that is none."""
    if type(batch_tokens) is not int or batch_tokens < 1:
        raise ArgumentError(f"batch_tokens is {batch_tokens!r:.60}, expected at least 1")


def plan(lengths: Sequence[int], batch_tokens: int) -> Iterator[list[int]]:
    """Groups inputs of like length so that no group exceeds `batch_tokens`, padding included.

    A group also ends where padding would take more than a small share of the bound: what another batch costs by itself
    is about as much as computing so many tokens.

    Args:
        lengths: Tokens of each input.
        batch_tokens: The bound; an input longer than it gets a group of its own.

    Yields:
        Numbers of inputs; each input is in exactly one group.

    Raises:
        ArgumentError: `batch_tokens` is less than 1, or no whole number.
    """
    check_batch_tokens(batch_tokens)
    group: list[int] = []
    tokens = 0
    for number in sorted(range(len(lengths)), key=lambda number: lengths[number]):
        longest = lengths[number]
        padding = longest * len(group) - tokens
        if group and (longest * (len(group) + 1) > batch_tokens or padding > batch_tokens * MOST_PADDING):
            yield group
            group, tokens = [], 0
        group.append(number)
        tokens += longest
    if group:
        yield group


def in_batches(
    encodings: Sequence[Encoding],
    compute: Callable[[Batch, list[int]], Sequence[R]],
    config: EncoderConfig,
    batch_tokens: int | None,
    usage: Usage | None = None,
) -> list[R]:
    """Runs `compute` on batches of inputs and gives its results in the order of the inputs.

    Args:
        encodings: The inputs.
        compute: From a batch and the numbers of its inputs to one result for each.
        config: The encoder's facts: its longest input, its padding.
        batch_tokens: Tokens per batch, padding included; `None` for the default.
        usage: Counts what was computed.
    """
    results: dict[int, R] = {}
    lengths = [padded_length(len(encoding), config.max_length) for encoding in encodings]
    for group in plan(lengths, default_batch_tokens() if batch_tokens is None else batch_tokens):
        batch = make_batch([encodings[number] for number in group], config)
        if usage is not None:
            usage.add([len(encodings[number]) for number in group], batch.input_ids.shape[1])
        results.update(zip(group, compute(batch, group), strict=True))
    return [results[number] for number in range(len(encodings))]


def windows(items: Iterable[T], size: int = WINDOW) -> Iterator[list[T]]:
    """Consecutive items, `size` at a time."""
    iterator = iter(items)
    while window := list(itertools.islice(iterator, size)):
        yield window
