"""Pools the token vectors to one vector per text, by the modes of sentence-transformers or by attention weights.

Shapes: B batch, L length, D hidden size, H heads. All sums are in float32: float16 has too few digits for 512 tokens.
"""

from collections.abc import Callable

from mlxbert.errors import ArgumentError
from mlxbert.machine.device import mx
from mlxbert.nn.encoder import EncoderOutput, real_tokens
from mlxbert.other_libraries import not_one_of

# hidden (B, L, D) float32, 1 for real tokens and 0 for others (B, L, 1) float32, the encoder's output → (B, D)
# A text of a static model may have no real token: sums, means and maxima of it are 0.
Pooling = Callable[[mx.array, mx.array, EncoderOutput], mx.array]


def _cls(hidden: mx.array, real: mx.array, output: EncoderOutput) -> mx.array:
    first = real.argmax(axis=1)  # not 0 if a prompt is skipped
    return mx.take_along_axis(hidden, first[:, :, None], axis=1)[:, 0]


def _mean(hidden: mx.array, real: mx.array, output: EncoderOutput) -> mx.array:
    return (hidden * real).sum(axis=1) / mx.maximum(real.sum(axis=1), 1)


def _max(hidden: mx.array, real: mx.array, output: EncoderOutput) -> mx.array:
    return mx.where(real.max(axis=1) > 0, mx.where(real > 0, hidden, -mx.inf).max(axis=1), 0)


def _mean_sqrt_len(hidden: mx.array, real: mx.array, output: EncoderOutput) -> mx.array:
    return (hidden * real).sum(axis=1) / mx.sqrt(mx.maximum(real.sum(axis=1), 1))


def _weighted_mean(hidden: mx.array, real: mx.array, output: EncoderOutput) -> mx.array:
    """Returns a weighted mean of each text's tokens; the nth token has weight n (SGPT, arXiv:2202.08904)."""
    weights = real * mx.arange(1, hidden.shape[1] + 1, dtype=mx.float32)[None, :, None]
    return (hidden * weights).sum(axis=1) / mx.maximum(weights.sum(axis=1), 1)


def _last_token(hidden: mx.array, real: mx.array, output: EncoderOutput) -> mx.array:
    last = (real * mx.arange(hidden.shape[1])[None, :, None]).argmax(axis=1)
    return mx.take_along_axis(hidden, last[:, :, None], axis=1)[:, 0]


def _attention(hidden: mx.array, real: mx.array, output: EncoderOutput) -> mx.array:
    """Returns a weighted sum of each text's tokens.

    The weight of a token is the attention of the first token to it in the last layer, averaged over the heads.
    """
    if output.attentions is None:
        raise ArgumentError(
            "pooling 'attention' needs the attention weights", hint="pass `output_attentions=True` to the network"
        )
    if not output.attentions:
        raise ArgumentError("pooling 'attention' needs layers with attention, which a static model does not have")
    weights = output.attentions[-1][:, :, 0].astype(mx.float32).mean(axis=1)
    return (hidden * weights[:, :, None] * real).sum(axis=1)


POOLINGS: dict[str, Pooling] = {
    "cls": _cls,
    "mean": _mean,
    "max": _max,
    "mean_sqrt_len": _mean_sqrt_len,
    "weighted_mean": _weighted_mean,
    "last_token": _last_token,
    "attention": _attention,
}


def pool(mode: str, output: EncoderOutput, attention_mask: mx.array | None = None, *, skip: int = 0) -> mx.array:
    """Pools hidden states to one vector per text; padding is left out.

    Args:
        mode: A key of `POOLINGS`.
        output: The output of the encoder, with attentions for the mode `attention`.
        attention_mask: (B, L), nonzero at real tokens; by default the mask of `output`.
        skip: Number of leading tokens to leave out.

    Returns:
        float32 (B, D).
    """
    if mode not in POOLINGS:
        raise not_one_of("pooling", mode, POOLINGS)
    if not isinstance(output, EncoderOutput):
        raise ArgumentError(f"`output` is {type(output).__name__}, expected an EncoderOutput")
    hidden = output.last_hidden_state.astype(mx.float32)
    attention_mask = output.attention_mask if attention_mask is None else attention_mask
    if attention_mask is not None and attention_mask.shape != hidden.shape[:2]:
        raise ArgumentError(f"`attention_mask` has shape {attention_mask.shape}, expected {hidden.shape[:2]}")
    if attention_mask is None:
        real = mx.ones((*hidden.shape[:2], 1))
    else:
        real = real_tokens(attention_mask)[:, :, None].astype(mx.float32)
    if skip:
        real = real * (mx.arange(hidden.shape[1]) >= skip)[None, :, None]
    return POOLINGS[mode](hidden, real, output)
