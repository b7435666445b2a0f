"""Inputs of any length to batches: which inputs go together, and their padded arrays.

Within a window of consecutive inputs, a batch holds inputs of similar length and a bounded number of tokens; padding is
on the right. Batches depend only on their window and the options, so a second run computes exactly the same.
"""

from collections.abc import Iterable, Iterator, Sequence

from mlxbert.bounds import check_whole
from mlxbert.config import EncoderConfig
from mlxbert.errors import InputError
from mlxbert.machine.device import gpu_size, mx, on_gpu
from mlxbert.nn.encoder import Batch, KnownIds
from mlxbert.text.encoding import Encoding

WINDOW = 512  # items that are sorted by length together; a constant, so that batches depend only on the items
BATCH_TOKENS = {None: 2048, "small": 4096, "medium": 8192, "large": 16384}  # by the size of the GPU, `None` for a CPU
MOST_PADDING = 1 / 32  # share of the bound on a batch's tokens, of which a GPU pads twice as much


def default_batch_tokens() -> int:
    """Tokens per batch: enough to keep a GPU busy, few enough for its memory, or for a CPU's caches."""
    return BATCH_TOKENS[gpu_size()]


def padded_length(length: int, most: int) -> int:
    """The padded length of a batch whose longest input has `length` tokens.

    A CPU computes exactly as much as there is. On a GPU kernels are chosen, and compiled, by shape: there, lengths come
    from a small fixed set.
    """
    return bucket(length, most) if on_gpu() else length


def bucket(length: int, most: int) -> int:
    """The next multiple of 16 up to 128, and of 64 beyond; never more than `most`."""
    step = 16 if length <= 128 else 64
    return max(length, min(-(-length // step) * step, most))


def make_batch(encodings: Sequence[Encoding], config: EncoderConfig) -> Batch:
    """Pads inputs on the right to the `padded_length` of the longest.

    Raises:
        InputError: An id is not a row of the model's tables: MLX would read past them.
    """
    length = padded_length(max(map(len, encodings)), config.max_length)
    pad_id = config.pad_token_id
    padded = any(len(encoding) < length for encoding in encodings)
    # Tokenizers may put the second text into segment 1 although the model has one segment (XLM-RoBERTa) or none.
    last = max(max(encoding.token_type_ids, default=0) for encoding in encodings) if config.type_vocab_size > 1 else 0
    if last >= max(config.type_vocab_size, 1):
        raise InputError(
            f"the tokenizer gives segment {last}, the model has segments 0 to {config.type_vocab_size - 1}"
        )
    ids = KnownIds(frozenset([pad_id] * padded).union(*(encoding.ids for encoding in encodings)), last)
    ids.check(config)

    def rows(values: Iterable[list[int]], fill: int) -> mx.array:
        return mx.array([row + [fill] * (length - len(row)) for row in values], dtype=mx.int32)

    return Batch(
        input_ids=rows((encoding.ids for encoding in encodings), pad_id),
        attention_mask=rows(([1] * len(encoding) for encoding in encodings), 0) != 0 if padded else None,
        token_type_ids=rows((encoding.token_type_ids for encoding in encodings), 0) if last else None,
        ids=ids,
    )


def plan(lengths: Sequence[int], batch_tokens: int) -> Iterator[list[int]]:
    """Groups inputs of similar length so that no group exceeds `batch_tokens`, padding included.

    A group also ends before padding takes more than a small share of the bound: the fixed cost of another batch is
    about that of computing that many tokens. A longer input gets a group of its own.

    Yields:
        Numbers of inputs; each input is in exactly one group.

    Raises:
        ArgumentError: `batch_tokens` is not a positive integer.
    """
    check_whole("batch_tokens", batch_tokens)
    most = MOST_PADDING * (2 if on_gpu() else 1)
    group: list[int] = []
    tokens = 0
    for number in sorted(range(len(lengths)), key=lambda number: lengths[number]):
        longest = lengths[number]
        padding = longest * len(group) - tokens
        if group and (longest * (len(group) + 1) > batch_tokens or padding > batch_tokens * most):
            yield group
            group, tokens = [], 0
        group.append(number)
        tokens += longest
    if group:
        yield group
