"""Estimates from a model's sizes how much memory it takes on the device in use, before its weights are read.

`finetune --dry-run` measures the memory instead, on the user's data.
"""

from mlxbert.config import Alibi, Disentangled, EncoderConfig, RelativeBias
from mlxbert.machine import device as devices
from mlxbert.machine.device import mx
from mlxbert.nn.ops import backend
from mlxbert.text.batch import default_batch_tokens

TEXTS, TEXT = 32, 128  # a training batch: its default number of texts, and the tokens of a paragraph
_LONGEST = 512  # tokens of a text in an inference batch
_ADAMW = 16  # bytes per trained parameter: weight, gradient and two moments, float32
KEPT_ON_CPU = 0.6  # of what a GPU keeps for gradients: a CPU computes several steps at once; measured: 0.57 to 0.68
_REPLACED = 12  # further bytes during an update on a GPU: the old weight and moments, until the new ones are computed


def of_batch(config: EncoderConfig, dtype: mx.Dtype) -> int:
    """The memory in bytes, besides the weights, for a batch of the default size with texts of 512 tokens."""
    return default_batch_tokens() * dtype.size * _values_per_token(config, min(_LONGEST, config.max_length))


def of_text(config: EncoderConfig, length: int, dtype: mx.Dtype) -> int:
    """The memory in bytes, besides the weights, for a single text of `length` tokens."""
    match config.positions:
        case Disentangled() | RelativeBias():  # a number for each pair of tokens is added to the scores
            rows = length
        case positions:
            rows = backend().score_rows(config.head_size, length, dtype, sloped=isinstance(positions, Alibi))
    return dtype.size * length * _values_per_token(config, rows)


def of_trained(trained: int, frozen: int = 0) -> int:
    """The memory in bytes for the weights in training; trained weights also have gradients and AdamW's moments."""
    size = devices.choose_dtype(training=True).size
    copy = 0 if size == 4 else size  # each weight once more, in the dtype of computation
    return (_ADAMW + copy + _replaced()) * trained + (4 + copy) * frozen


def _replaced() -> int:
    return _REPLACED if devices.on_gpu() else 0


def of_training(config: EncoderConfig, parameters: int) -> int:
    """The memory in bytes for training all weights, with 32 texts of 128 tokens per batch."""
    kept = of_activations(config, TEXTS, TEXT, len(config.layer_schedule), devices.choose_dtype(training=True))
    return of_trained(parameters) + max(kept - _replaced() * parameters, 0)  # activations are freed before the update


def of_activations(config: EncoderConfig, texts: int, length: int, layers: int, dtype: mx.Dtype) -> int:
    """Estimates the memory of the activations of some layers, in bytes."""
    return dtype.size * texts * length * (layers + 1) * _values_per_token(config, length)  # + 1: the current layer


def warn_unless_it_fits(what: str, needed: int) -> None:
    """Warns once if something needs more memory than is free; raises no error, because that is only estimated.

    Args:
        what: The beginning of the message, up to the number: `my-model: needs about`.
        needed: The memory needed, in bytes.
    """
    available, unused = devices.available_memory(), devices.unused_memory()
    if available is not None and unused is not None and needed > unused:
        amounts = f"{needed / 1e9:.1f} GB of memory, but of {available / 1e9:.1f} GB only {unused / 1e9:.1f} are free"
        devices.hint_once(f"{what} {amounts}, so the system may become very slow or kill this process")


def _values_per_token(config: EncoderConfig, length: int) -> int:
    """The number of values that a layer computes for each token of texts of `length` tokens.

    Counts arrays with rows of four widths:

    - as wide as the model: two projections, sums, norms, dropout
    - as wide as all heads together: queries, keys, values, and their weighted sum in two layouts
    - as wide as the feed-forward: its first layer and the steps of the activation
    - as long as the text, for each head: scores, their softmax, its dropout, and for disentangled positions the
      products with distances
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
