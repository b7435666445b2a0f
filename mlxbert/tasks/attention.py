"""Attention weights: how much each token of a text attends to the others."""

from collections.abc import Sequence

from mlxbert.errors import ArgumentError, InputError
from mlxbert.machine.device import mx
from mlxbert.machine.device_errors import device_errors
from mlxbert.model import Model
from mlxbert.results.attention import Attention
from mlxbert.tasks.argument_checks import check_model
from mlxbert.tasks.keywords import takes_keywords
from mlxbert.tasks.options import TokenizeOptions
from mlxbert.tasks.task import check_finite, evaluation_mode
from mlxbert.tasks.tokenize import tokens_of
from mlxbert.text.batch import make_batch

MOST = 64_000_000  # maximum number of weights: 256 MB


@takes_keywords
def attention(
    model: Model,
    text: str,
    *,
    options: TokenizeOptions,
    layers: int | Sequence[int] | None = None,
    heads: int | Sequence[int] | None = None,
) -> Attention:
    """Computes the attention weights between the tokens of a text.

    Example:
        >>> result = mlxbert.attention(mlxbert.load(), "The river bank was muddy.", layers=[0, 5])
        >>> result.weights.shape  # layers, heads, tokens, tokens

    Args:
        model: Any model; its heads are not used.
        text: The text.
        options: See `TokenizeOptions`.
        layers: The indices of the layers, from 0; negative indices count from the last layer. `None` for all.
        heads: The indices of the heads, like `layers`.

    Raises:
        InputError: The input is not a text, or is too long with `overflow="error"`.
        ArgumentError: An argument is invalid, or the model has fewer layers or heads.
        DeviceError: The device failed, or has too little memory.
    """
    check_model(model, text)
    model.require("embed")
    if not isinstance(text, str):
        raise InputError(f"text is {text!r:.60}, expected a string")
    config = model.config
    layer_ids = _numbers("layers", layers, len(config.layer_schedule))
    head_ids = _numbers("heads", heads, config.num_attention_heads)
    encoding = model.tokenizer.encode(text, options.pair, overflow=options.overflow)
    batch, length = make_batch([encoding], config), len(encoding)
    size = len(layer_ids) * len(head_ids) * length**2
    if size > MOST:
        raise ArgumentError(
            f"{len(layer_ids)} layers of {len(head_ids)} heads have {size:,} weights, expected at most {MOST:,}",
            hint="choose fewer layers or fewer heads",
        )
    import numpy as np

    with device_errors(), evaluation_mode(model.network):
        attentions = model.network.encoder(
            batch.input_ids, batch.attention_mask, batch.token_type_ids, output_attentions=True
        ).attentions
        assert attentions is not None
        stacked = mx.stack([attentions[layer][0][mx.array(head_ids), :length, :length] for layer in layer_ids])
        weights = check_finite(np.array(stacked.astype(mx.float32)), "attention weights")
    return Attention(
        text, options.pair, tokens_of(model.tokenizer, encoding), layer_ids, head_ids, weights, encoding.truncated
    )


def _numbers(name: str, value: int | Sequence[int] | None, count: int) -> tuple[int, ...]:
    """Checks indices of layers or heads, and converts negative ones to indices from 0."""
    if value is None:
        return tuple(range(count))
    values = (value,) if isinstance(value, int) and not isinstance(value, bool) else value
    numbers = tuple(values) if isinstance(values, Sequence) and not isinstance(values, str) else ()
    if not numbers or not all(type(number) is int and -count <= number < count for number in numbers):
        name, expected = (name[:-1], "a number") if isinstance(value, int) else (name, "numbers")
        raise ArgumentError(f"{name} is {value!r:.60}, expected {expected} from {-count} to {count - 1}")
    return tuple(number % count for number in numbers)
