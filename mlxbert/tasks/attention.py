"""Where each token of a text looks: the attention weights of the encoder."""

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

MOST = 64_000_000  # weights: 256 MB


@takes_keywords
def attention(
    model: Model,
    text: str,
    *,
    options: TokenizeOptions,
    layers: int | Sequence[int] | None = None,
    heads: int | Sequence[int] | None = None,
) -> Attention:
    """Computes what each token of a text attends to.

    Example:
        >>> result = mlxbert.attention(mlxbert.load(), "The river bank was muddy.", layers=[0, 5])
        >>> result.weights.shape  # layers, heads, tokens, tokens

    Args:
        model: Any model; its heads are not used.
        text: The text.
        options: See `TokenizeOptions`.
        layers: Numbers of layers, from 0; negative ones count from the last. `None` for all.
        heads: Numbers of heads, as those of layers.

    Raises:
        InputError: Not a text, or too long with `overflow="error"`.
        ArgumentError: An argument is invalid; the model has fewer layers or heads.
        DeviceError: The device failed, or has too little memory.
    """
    check_model(model, text)
    model.require("embed")
    if not isinstance(text, str):
        raise InputError(f"text is {text!r:.60}, expected a string")
    config = model.config
    chosen = _numbers("layers", layers, len(config.layer_schedule))
    of_them = _numbers("heads", heads, config.num_attention_heads)
    encoding = model.tokenizer.encode(text, options.pair, overflow=options.overflow)
    batch, length = make_batch([encoding], config), len(encoding)
    size = len(chosen) * len(of_them) * length**2
    if size > MOST:
        raise ArgumentError(
            f"{len(chosen)} layers of {len(of_them)} heads have {size:,} weights, expected at most {MOST:,}",
            hint="choose some with layers= and heads=",
        )
    import numpy as np

    with device_errors(), evaluation_mode(model.network):
        found = model.network.encoder(
            batch.input_ids, batch.attention_mask, batch.token_type_ids, output_attentions=True
        ).attentions
        assert found is not None
        picked = mx.stack([found[layer][0][mx.array(of_them), :length, :length] for layer in chosen])
        weights = check_finite(np.array(picked.astype(mx.float32)), "attention weights")
    return Attention(
        text, options.pair, tokens_of(model.tokenizer, encoding), chosen, of_them, weights, encoding.truncated
    )


def _numbers(name: str, given: int | Sequence[int] | None, count: int) -> tuple[int, ...]:
    """The numbers of layers or heads, from 0."""
    if given is None:
        return tuple(range(count))
    wanted = (given,) if isinstance(given, int) and not isinstance(given, bool) else given
    numbers = tuple(wanted) if isinstance(wanted, Sequence) and not isinstance(wanted, str) else ()
    if not numbers or not all(type(number) is int and -count <= number < count for number in numbers):
        name, what = (name[:-1], "a number") if isinstance(given, int) else (name, "numbers")
        raise ArgumentError(f"{name} is {given!r:.60}, expected {what} from {-count} to {count - 1}")
    return tuple(number % count for number in numbers)
