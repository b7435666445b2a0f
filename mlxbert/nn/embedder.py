"""From hidden states to the vector of a text: pooling, what sentence-transformers puts after it, and how long it gets.

Shapes: B batch, L length, D hidden size, W width of a vector. Everything here runs in float32.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace

from mlxbert.device import mx, nn
from mlxbert.errors import ArgumentError
from mlxbert.nn.activations import activate, check_activation
from mlxbert.nn.encoder import EncoderOutput
from mlxbert.nn.pooling import POOLINGS, pool

SMALLEST_NORM = 1e-12  # torch.nn.functional.normalize
_JOIN = "+"


class Dense(nn.Module):
    """A linear layer, an activation, and perhaps the input added to it."""

    def __init__(self, width: int, out: int, *, bias: bool = True, activation: str = "tanh", residual: bool = False):
        super().__init__()
        self.linear = nn.Linear(width, out, bias=bias)
        self.activation = check_activation(activation)
        self.adds = residual
        if residual and width != out:
            self.residual = nn.Linear(width, out, bias=False)

    def __call__(self, x: mx.array) -> mx.array:
        """(B, W) → (B, W')."""
        y = activate(self.activation, self.linear(x))
        if not self.adds:
            return y
        return y + (self.residual(x) if "residual" in self else x)


class Normalize(nn.Module):
    """Vectors of length 1."""

    def __call__(self, x: mx.array) -> mx.array:
        """(B, W) → (B, W)."""
        return x / mx.maximum(mx.linalg.norm(x, axis=-1, keepdims=True), SMALLEST_NORM)


@dataclass(frozen=True)
class EmbeddingConfig:
    """How a model makes one vector of a text.

    Attributes:
        poolings: Names of `POOLINGS`; the vectors of several stand one after the other.
        include_prompt: Whether the tokens of a prompt are pooled, too.
        dimensions: Only so many leading values are kept (Matryoshka); `None` for all.
        normalize: Whether vectors are brought to length 1 at the very end, after cutting.
        prompts: Texts that may be put before a text, by name.
        default_prompt_name: The one that is used when none is named.
        max_length: The longest input in tokens, where the model has its own limit.
        lower_case: Whether texts are lower-cased before anything else.
        stated: Whether the model says all this; mean pooling is assumed otherwise.
    """

    poolings: tuple[str, ...] = ("mean",)
    include_prompt: bool = True
    dimensions: int | None = None
    normalize: bool = False
    prompts: Mapping[str, str] = field(default_factory=dict)
    default_prompt_name: str | None = None
    max_length: int | None = None
    lower_case: bool = False
    stated: bool = False


class Embedder(nn.Module):
    """Hidden states to vectors.

    Attributes:
        config: How.
        width: Hidden size of the encoder, D.
        layers: What stands between pooling and the end: `Dense`, `LayerNorm`, `Normalize`.
        size: How many values a vector has, W.
    """

    def __init__(self, config: EmbeddingConfig, width: int, layers: Sequence[nn.Module] = ()) -> None:
        super().__init__()
        self.config, self.width = config, width
        self.layers = list(layers)
        full = self._check_widths()
        if config.dimensions is not None and (type(config.dimensions) is not int or not 1 <= config.dimensions <= full):
            raise ArgumentError(f"dimensions is {config.dimensions!r:.60}, the model's vectors have {full}")
        self.size = config.dimensions or full
        self._cut = self.size < full

    def _check_widths(self) -> int:
        """The width after all layers, each of which fits the one before."""
        width = self.width * len(self.config.poolings)
        for number, layer in enumerate(self.layers):
            if isinstance(layer, Normalize):
                continue
            weight = layer.linear.weight if isinstance(layer, Dense) else layer.weight
            if weight.shape[-1] != width:
                raise ArgumentError(
                    f"pooling '{_JOIN.join(self.config.poolings)}' gives {width} values, "
                    f"layer {number + 1} behind it ({type(layer).__name__}) takes {weight.shape[-1]}"
                )
            width = weight.shape[0]
        return width

    @property
    def unit(self) -> bool:
        """Whether vectors come out with length 1."""
        ends = bool(self.layers) and isinstance(self.layers[-1], Normalize)
        return self.config.normalize or (ends and not self._cut)

    def variant(
        self, *, pooling: str | None = None, normalize: bool | None = None, dimensions: int | None = None
    ) -> "Embedder":
        """The same with some things done otherwise; `None` leaves them as the model has them.

        Args:
            pooling: One of `POOLINGS`, or several joined by `+`.
            normalize: True brings vectors to length 1 at the very end; False leaves out the model's own normalizing.
            dimensions: Keep only so many leading values.

        Raises:
            ArgumentError: An unknown pooling, or sizes that do not fit.
        """
        config, layers = self.config, list(self.layers)
        if pooling is not None:
            config = replace(config, poolings=parse_poolings(pooling))
        if dimensions is not None:
            config = replace(config, dimensions=dimensions)
        if normalize is not None:
            config = replace(config, normalize=normalize)
        while normalize is False and layers and isinstance(layers[-1], Normalize):
            layers.pop()
        return Embedder(config, self.width, layers)

    @property
    def needs_attentions(self) -> bool:
        """Whether the encoder has to give its attentions."""
        return "attention" in self.config.poolings

    def __call__(self, output: EncoderOutput, attention_mask: mx.array | None = None, skip: int = 0) -> mx.array:
        """Pools and finishes.

        Args:
            output: What the encoder gave; with attentions where `needs_attentions`.
            attention_mask: (B, L), nonzero at real tokens; `None` when nothing is padded.
            skip: How many leading tokens a prompt takes; they are left out unless the model pools them, too.

        Returns:
            float32 (B, W).
        """
        skip = 0 if self.config.include_prompt else skip
        pooled = [pool(mode, output, attention_mask, skip=skip) for mode in self.config.poolings]
        x = mx.concatenate(pooled, axis=-1)
        for layer in self.layers:
            x = layer(x)
        x = x[:, : self.config.dimensions]
        return Normalize()(x) if self.config.normalize else x


def parse_poolings(text: str) -> tuple[str, ...]:
    """`cls+mean` as a tuple of names.

    Raises:
        ArgumentError: A name is unknown.
    """
    names = tuple(text.split(_JOIN)) if isinstance(text, str) else ()
    if not names or not all(name in POOLINGS for name in names):
        raise ArgumentError(
            f"pooling is {text!r:.60}, expected one of {', '.join(POOLINGS)}, or several joined by '{_JOIN}'"
        )
    return names
