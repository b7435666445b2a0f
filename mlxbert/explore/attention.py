"""Attention weights: how much each token of a text attends to the others."""

from collections.abc import Sequence

from mlxbert.errors import ArgumentError, InputError
from mlxbert.explore.results import Attention
from mlxbert.lazy_numpy import np
from mlxbert.machine.device import mx
from mlxbert.machine.device_errors import device_errors
from mlxbert.model import Model
from mlxbert.option_declarations import is_whole
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
    rollout: bool = False,
) -> Attention:
    """Computes the attention weights between the tokens of a text.

    With `rollout`, the weights of a layer say how much of each token has reached each token by then (Abnar and Zuidema
    2020, arXiv:2005.00928): the mean of the heads counts half, the token itself the other half, which stands for the
    residual connection, and the matrices of the layers up to this one are multiplied.

    Example:
        >>> result = mlxbert.attention(mlxbert.load(), "The river bank was muddy.", layers=[0, 5])
        >>> result.weights.shape  # layers, heads, tokens, tokens

    Args:
        model: Any model; its heads are not used.
        text: The text.
        options: See `TokenizeOptions`.
        layers: The indices of the layers, from 0; negative indices count from the last layer. `None` for all.
        heads: The indices of the heads, like `layers`.
        rollout: Whether to multiply the weights of the layers. The `weights` are then (layers, 1, tokens, tokens).

    Raises:
        InputError: The input is not a text, or is too long with `overflow="error"`.
        ArgumentError: An argument is invalid, or the model has fewer layers or heads.
        DeviceError: The device failed, or has too little memory.
    """
    check_model(model, text)
    model.require("embed")
    if not isinstance(text, str):
        raise InputError(f"`text` is {text!r:.60}, expected a string")
    config = model.config
    if config.is_static:
        raise ArgumentError(f"{model.source} is a static model, which has no attention")
    layer_ids = _numbers("layers", layers, len(config.layer_schedule))
    head_ids = _numbers("heads", heads, config.num_attention_heads)
    if rollout and heads is not None:
        raise ArgumentError("`heads` and `rollout` cannot be combined: a rollout takes the mean of all heads")
    encoding = model.tokenizer.encode(text, options.pair, overflow=options.overflow)
    batch, length = make_batch([encoding], config), len(encoding)
    _check_size(len(config.layer_schedule) if rollout else len(layer_ids), 1 if rollout else len(head_ids), length)
    with device_errors(), evaluation_mode(model.network):
        attentions = model.network.encoder(
            batch.input_ids, batch.attention_mask, batch.token_type_ids, output_attentions=True
        ).attentions
        assert attentions is not None
        if rollout:
            chosen = _rolled_out([weights[0, :, :length, :length] for weights in attentions], layer_ids)
        else:
            chosen = [attentions[layer][0][mx.array(head_ids), :length, :length] for layer in layer_ids]
        del attentions  # the weights of a layer are freed as soon as nothing needs them
        weights = check_finite(np.array(mx.stack(chosen).astype(mx.float32)), "attention weights")
    tokens, heads_of_result = tokens_of(model.tokenizer, encoding), () if rollout else head_ids
    return Attention(text, options.pair, tokens, layer_ids, heads_of_result, weights, encoding.truncated, rollout)


def _check_size(layers: int, heads: int, length: int) -> None:
    size = layers * heads * length**2
    if size > MOST:
        shorter = "fewer layers or fewer heads" if heads > 1 else "a shorter text"
        raise ArgumentError(
            f"{layers} layers of {heads} heads have {size:,} weights, expected at most {MOST:,}",
            hint=f"choose {shorter}",
        )


def _rolled_out(attentions: Sequence[mx.array], layers: Sequence[int]) -> list[mx.array]:
    """Multiplies the weights (heads, tokens, tokens) of layers; returns the product (1, tokens, tokens) at each."""
    products = list[mx.array]()
    reached = mx.eye(attentions[0].shape[-1])
    for weights in attentions[: max(layers) + 1]:
        mixed = weights.astype(mx.float32).mean(0) + mx.eye(weights.shape[-1])
        reached = (mixed / mixed.sum(-1, keepdims=True)) @ reached
        products.append(reached[None])
    return [products[layer] for layer in layers]


def _numbers(name: str, value: int | Sequence[int] | None, count: int) -> tuple[int, ...]:
    """Checks indices of layers or heads, and converts negative ones to indices from 0."""
    if value is None:
        return tuple(range(count))
    values = (value,) if is_whole(value) else value
    numbers = tuple(values) if isinstance(values, Sequence) and not isinstance(values, str) else ()
    if not numbers or not all(is_whole(number) and -count <= number < count for number in numbers):
        name, expected = (name[:-1], "a number") if isinstance(value, int) else (name, "numbers")
        raise ArgumentError(f"`{name}` is {value!r:.60}, expected {expected} from {-count} to {count - 1}")
    return tuple(int(number) % count for number in numbers)
