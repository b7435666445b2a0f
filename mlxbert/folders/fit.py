"""What fits into the memory of this machine, estimated from the sizes of a model alone.

`finetune --dry-run` measures instead, on the user's data.
"""

from collections.abc import Mapping

from mlxbert.config import Disentangled, EncoderConfig
from mlxbert.folders.inspection import Fit
from mlxbert.machine import device as devices
from mlxbert.text.batch import default_batch_tokens

TEXTS, TEXT = 32, 128  # of a batch of training: its default size, and tokens of a paragraph
_LONGEST = 512  # tokens of a text in a batch of inference
_ADAMW = 16  # bytes for each parameter: weights, gradients and two moments, float32


def fit(config: EncoderConfig, parameters: int, weights: Mapping[str, int]) -> Fit:
    """What a model needs on the device in use, and whether the device has it.

    Args:
        config: The encoder.
        parameters: How many numbers the network has.
        weights: The bytes that they take, by dtype.
    """
    inferring, training = devices.choose_dtype(wide_range=config.wide_range), devices.choose_dtype(training=True)
    tokens, available = default_batch_tokens(), devices.available_memory()
    dtype = devices.dtype_name(inferring)
    batch = tokens * inferring.size * _values(config, min(_LONGEST, config.max_length))
    kept = TEXTS * TEXT * (len(config.layer_schedule) + 1) * _values(config, TEXT)  # one more: what is computed now
    copy = 0 if training.size == 4 else training.size  # of each weight, in the dtype of computation
    finetuning = (_ADAMW + copy) * parameters + kept * training.size
    return Fit(
        device="gpu" if devices.on_gpu() else "cpu",
        dtype=dtype,
        available=available,
        weights=weights[dtype],
        batch_tokens=tokens,
        batch=batch,
        fits=None if available is None else weights[dtype] + batch <= available,
        finetuning=finetuning,
        finetuning_fits=None if available is None else finetuning <= available,
    )


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
