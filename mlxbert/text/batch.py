"""Groups inputs of any length into batches, and pads each batch to arrays.

Within a window of consecutive inputs, a batch holds inputs of similar length and a bounded number of tokens; padding is
on the right. Batches depend only on their window, the options and the device: a second run has exactly the same
batches.

A GPU chooses kernels, compiles some of them, and caches memory by the shape of a batch. So on a GPU, windows are
larger, most batches are full, and the rows and the length of a batch come from small fixed sets.
"""

import sys
from collections.abc import Iterable, Iterator, Sequence
from functools import lru_cache

from mlxbert.config import EncoderConfig
from mlxbert.errors import InputError
from mlxbert.machine.device import gpu_size, mx, on_gpu
from mlxbert.nn.encoder import Batch, KnownIds, LabelledWords
from mlxbert.option_declarations import COUNT
from mlxbert.text.encoding import Encoding

# The number of items sorted by length together, on a CPU and wherever a user waits for the first results; a constant,
# so that batches depend only on the items.
WINDOW = 512
# The same number by the size of the GPU; `None` is a CPU. On CUDA, 20,000 texts of mixed length make 244 batches in
# windows of 512, 75 in windows of 4,096, and 68 in windows of 8,192 (`benchmarks/batches.py`).
WINDOWS = {None: WINDOW, "small": 1024, "medium": 2048, "large": 4096}
BATCH_TOKENS = {None: 2048, "small": 4096, "medium": 8192, "large": 16384}
OUTPUTS = 2**27  # bytes that the outputs of a window may take
MAX_PADDING = 1 / 32  # on a CPU, as a share of the maximum number of tokens of a batch


def default_batch_tokens() -> int:
    """The number of tokens per batch: enough to keep a GPU busy, but few enough for its memory or a CPU's caches."""
    return BATCH_TOKENS[gpu_size()]


def batch_cost() -> float:
    """The fixed cost of a batch on a GPU, as a share of the maximum number of tokens of a batch.

    It is the time to start a batch and, for a new shape, to choose and compile kernels. It takes about as long on any
    machine, so a fast GPU could compute more tokens meanwhile; on CUDA a new shape takes far longer than on Metal.
    """
    return 1 / 16 if mx.metal.is_available() else 1 / 8


def window_size(output_bytes: int = 0) -> int:
    """The number of items that are sorted by length together, on the device in use.

    Args:
        output_bytes: Approximate memory, in bytes, of an item's outputs until its result exists. The outputs of a whole
            window may be in memory together, because the first item may be in the last batch. If the outputs of
            `WINDOW` items do not fit into `OUTPUTS`, the number is smaller than `WINDOW`, and a divisor of it.
    """
    fitting = OUTPUTS // max(output_bytes, 1)
    if fitting < WINDOW:
        return 1 << max(fitting, 1).bit_length() - 1
    return min(WINDOWS[gpu_size()], fitting // WINDOW * WINDOW)


def padded_length(length: int, limit: int) -> int:
    """The padded length of a batch whose longest input has `length` tokens; at most `limit`.

    It is at least 1, because texts of static models may have no tokens. Otherwise it is `length` on a CPU. A GPU
    chooses and compiles kernels by shape, so there the lengths come from a small set.
    """
    return bucket(max(length, 1), limit) if on_gpu() else max(length, 1)


def bucket(length: int, limit: int) -> int:
    """The next multiple of 16 up to 128, and of 64 beyond; never more than `limit`."""
    step = 16 if length <= 128 else 64
    return max(length, min(-(-length // step) * step, limit))


def padded_count(count: int) -> int:
    """On a GPU, the count rounded up to 1, 2, 3, 4, 6, 8, 12, 16, 24 and so on; on a CPU, the count itself."""
    if not on_gpu():
        return count
    power = 1 << (count - 1).bit_length()
    return power * 3 // 4 if count <= power * 3 // 4 else power


@lru_cache
def row_counts(length: int, batch_tokens: int) -> tuple[int, ...]:
    """The numbers of rows that a GPU's batches of this length may have.

    These are the values of `padded_count` below the maximum that fits into `batch_tokens`, and the maximum itself.
    """
    full = max(batch_tokens // length, 1)
    rounded = (count for power in range(full.bit_length()) for count in (2**power, 3 * 2**power) if count < full)
    return (*sorted(rounded), full)


def padded_rows(rows: int, length: int, batch_tokens: int) -> int:
    """The number of rows of a batch with `rows` inputs of a padded length; on a GPU, rounded up to `row_counts`."""
    if not on_gpu():
        return rows
    return next((count for count in row_counts(length, batch_tokens) if count >= rows), rows)


def make_batch(encodings: Sequence[Encoding], config: EncoderConfig) -> Batch:
    """Pads inputs on the right to the `padded_length` of the longest input, and makes a batch of them."""
    length = padded_length(max(map(len, encodings)), config.max_length)
    pad_id = config.pad_token_id
    attended = [len(encoding) - encoding.unattended for encoding in encodings]
    padded = min(map(len, encodings)) < length
    # Tokenizers may put the second text into segment 1 even if the model has one segment (XLM-RoBERTa) or none.
    last = max(max(encoding.token_type_ids, default=0) for encoding in encodings) if config.type_vocab_size > 1 else 0
    if last >= max(config.type_vocab_size, 1):
        raise InputError(
            f"the tokenizer uses segment {last}, but the model has only segments 0 to {config.type_vocab_size - 1}"
        )
    ids = KnownIds(frozenset([pad_id] * padded).union(*(encoding.ids for encoding in encodings)), last)
    ids.check(config)

    def rows(values: Iterable[list[int]], fill: int) -> mx.array:
        return mx.array([row + [fill] * (length - len(row)) for row in values], dtype=mx.int32)

    return Batch(
        input_ids=rows((encoding.ids for encoding in encodings), pad_id),
        attention_mask=rows(([1] * count for count in attended), 0) != 0 if min(attended) < length else None,
        token_type_ids=rows((encoding.token_type_ids for encoding in encodings), 0) if last else None,
        ids=ids,
        labelled_words=_labelled_words(encodings),
    )


def _labelled_words(encodings: Sequence[Encoding]) -> LabelledWords | None:
    """Pads the places of labels and words; returns `None` for inputs that are not made of these."""
    places = [encoding.labelled_words for encoding in encodings if encoding.labelled_words is not None]
    if len(places) < len(encodings):
        return None
    most_words, most_labels = (max(map(len, rows)) for rows in zip(*places, strict=True))
    most_words = padded_length(max(most_words, 1), sys.maxsize)
    words = [row + [-1] * (most_words - len(row)) for row, _ in places]
    labels = [row + [0] * (most_labels - len(row)) for _, row in places]
    counts = [len(row) for row, _ in places]
    return LabelledWords(*(mx.array(values, dtype=mx.int32) for values in (words, counts, labels)))


def plan(lengths: Sequence[int], batch_tokens: int) -> Iterator[list[int]]:
    """Groups inputs of similar length so that no group exceeds `batch_tokens`, padding included.

    On a CPU, the padding of a group is limited to a small share of `batch_tokens`: computing a share of this size costs
    about as much as starting another batch. An input longer than `batch_tokens` gets its own group.

    Yields:
        The indices of the inputs of a group, the shortest first; each input is in exactly one group.
    """
    batch_tokens = COUNT.check_whole("batch_tokens", batch_tokens)
    order = sorted(range(len(lengths)), key=lambda number: lengths[number])
    if on_gpu():
        yield from _cheapest(order, lengths, batch_tokens)
        return
    group: list[int] = []
    tokens = 0
    for number in order:
        longest = lengths[number]
        padding = longest * len(group) - tokens
        if group and (longest * (len(group) + 1) > batch_tokens or padding > batch_tokens * MAX_PADDING):
            yield group
            group, tokens = [], 0
        group.append(number)
        tokens += longest
    if group:
        yield group


def _cheapest(order: Sequence[int], lengths: Sequence[int], batch_tokens: int) -> Iterator[list[int]]:
    """Groups inputs at the lowest total cost; the number of rows of each group is one of `row_counts`.

    The cost is the number of padded tokens, plus `batch_cost` for each group. Only the group with the shortest inputs
    may have fewer inputs than rows. `order` has the indices of the inputs, the shortest first.
    """
    fixed = batch_tokens * batch_cost()
    costs, sizes = [0.0], [0]  # for the first n inputs: their lowest cost, and the size of their last group
    for count, number in enumerate(order, 1):
        length = lengths[number]
        cost, rows = min(
            (costs[max(count - rows, 0)] + rows * length, rows) for rows in row_counts(length, batch_tokens)
        )
        costs.append(cost + fixed)
        sizes.append(min(rows, count))
    groups, end = list[list[int]](), len(order)
    while end:
        groups.append([*order[end - sizes[end] : end]])
        end -= sizes[end]
    yield from reversed(groups)
