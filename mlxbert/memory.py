"""How much memory a model takes on the device in use, estimated from its sizes before its weights are read.

`finetune --dry-run` measures instead, on the user's data.
"""

from mlxbert.config import Alibi, Disentangled, EncoderConfig, RelativeBias
from mlxbert.machine import device as devices
from mlxbert.machine.device import mx
from mlxbert.nn import ops
from mlxbert.text.batch import default_batch_tokens

TEXTS, TEXT = 32, 128  # of a batch of training: its default size, and tokens of a paragraph
_LONGEST = 512  # tokens of a text in a batch of inference
_ADAMW = 16  # bytes for each trained parameter: weights, gradients and two moments, float32
_REPLACED = (
    12  # more of them during an update on a GPU: weights and moments before it, until those after it are computed
)


def of_batch(config: EncoderConfig, dtype: mx.Dtype) -> int:
    """Bytes that a batch of the default size takes besides the weights, with texts of 512 tokens."""
    return default_batch_tokens() * dtype.size * _values(config, min(_LONGEST, config.max_length))


def of_text(config: EncoderConfig, length: int, dtype: mx.Dtype) -> int:
    """Bytes that one text of `length` tokens takes besides the weights."""
    match config.positions:
        case Disentangled() | RelativeBias():  # numbers for all pairs of tokens are added to the scores
            rows = length
        case positions:
            rows = ops.score_rows(config.head_size, length, dtype, sloped=isinstance(positions, Alibi))
    return dtype.size * length * _values(config, rows)


def of_trained(trained: int, frozen: int = 0) -> int:
    """Bytes of weights in training: those that are trained have gradients and the moments of AdamW, frozen ones not."""
    size = devices.choose_dtype(training=True).size
    copy = 0 if size == 4 else size  # of each weight, in the dtype of computation
    return (_ADAMW + copy + _replaced()) * trained + (4 + copy) * frozen


def _replaced() -> int:
    return _REPLACED if devices.on_gpu() else 0


def of_training(config: EncoderConfig, parameters: int) -> int:
    """Bytes that training all weights takes with 32 texts of 128 tokens per batch."""
    kept = TEXTS * TEXT * (len(config.layer_schedule) + 1) * _values(config, TEXT)  # one more: what is computed now
    activations = kept * devices.choose_dtype(training=True).size  # which are freed before the update
    return of_trained(parameters) + max(activations - _replaced() * parameters, 0)


def warn_unless_it_fits(what: str, needed: int) -> None:
    """Warns, once, of what takes more than the device has; as this is an estimate, nothing is refused.

    Args:
        what: What needs how much memory, up to the number: `my-model: needs about`.
        needed: Bytes.
    """
    available = devices.available_memory()
    if available is not None and needed > available:
        amounts = f"{needed / 1e9:.1f} GB of memory, of {available / 1e9:.1f}"
        devices.hint_once(f"{what} {amounts}: it may run very slowly, or the system may kill it")


def _values(config: EncoderConfig, length: int) -> int:
    """How many values a layer computes for each token of texts of `length` tokens.

    As wide as the model: two projections, sums, norms, dropout. As wide as its heads: queries, keys, values, their
    mixture in two orders. As wide as the feed-forward: its first layer and the steps of the activation. As long as the
    text, for each head: scores, their softmax, its dropout; with disentangled positions also the products with
    distances.
    """
    wide = (5 if config.gated else 3) * (1 if config.experts is None else config.experts.used)
    scores = 8 if isinstance(config.positions, Disentangled) else 3
    heads = config.head_size * config.num_attention_heads
    return (
        7 * config.hidden_size
        + 5 * heads
        + wide * config.intermediate_size
        + scores * config.num_attention_heads * length
    )
