"""Turns hidden states into the vector of a text: pooling, the layers after the pooling, truncation and normalization.

Shapes: B batch, L length, D hidden size, W size of a vector. All computations are in float32.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace

from mlxbert.errors import ArgumentError, shown
from mlxbert.machine.device import mx, nn
from mlxbert.nn import ops
from mlxbert.nn.activations import check_activation
from mlxbert.nn.encoder import EncoderOutput
from mlxbert.nn.ops import backend
from mlxbert.nn.pooling import POOLINGS, pool
from mlxbert.nn.unit_vectors import SMALLEST_NORM
from mlxbert.nn.vector_settings import VectorSettings
from mlxbert.option_declarations import check_listed

_JOIN = "+"


class Dense(nn.Module):
    """A linear layer and an activation, optionally with a residual connection."""

    def __init__(self, width: int, out: int, *, bias: bool = True, activation: str = "tanh", residual: bool = False):
        super().__init__()
        self.linear = ops.Linear(width, out, bias=bias)
        self.activation = check_activation(activation)
        self.has_residual = residual
        if residual and width != out:
            self.residual = ops.Linear(width, out, bias=False)

    def __call__(self, x: mx.array) -> mx.array:
        """(B, W) → (B, W')."""
        y = backend().activate(self.activation, self.linear(x))
        if not self.has_residual:
            return y
        return y + (self.residual(x) if "residual" in self else x)


class Normalize(nn.Module):
    """Scales vectors to length 1."""

    def __call__(self, x: mx.array) -> mx.array:
        """(B, W) → (B, W)."""
        return x / mx.maximum(mx.linalg.norm(x, axis=-1, keepdims=True), SMALLEST_NORM)


@dataclass(frozen=True)
class EmbeddingConfig(VectorSettings):
    """How a model turns a text into one dense vector.

    Attributes:
        poolings: Keys of `POOLINGS`; the vectors of several poolings are concatenated.
        include_prompt: Whether the tokens of a prompt are also pooled.
        dimensions: Number of leading values to keep (Matryoshka); `None` for all.
        normalize: Whether vectors are scaled to length 1 at the very end, after truncation.
        stated: Whether the model's files define the pooling; otherwise it is the default of the model's family.
    """

    poolings: tuple[str, ...] = ("mean",)
    include_prompt: bool = True
    dimensions: int | None = None
    normalize: bool = False


class Embedder(nn.Module):
    """Turns hidden states into vectors.

    Attributes:
        config: The configuration.
        width: Hidden size of the encoder, D.
        layers: The layers after the pooling: `Dense`, `LayerNorm`, `Normalize`.
        size: The number of values in a vector, W.
    """

    def __init__(self, config: EmbeddingConfig, width: int, layers: Sequence[nn.Module] = ()) -> None:
        super().__init__()
        self.config, self.width = config, width
        self.layers = list(layers)
        full = self._check_widths()
        if config.dimensions is not None and (type(config.dimensions) is not int or not 1 <= config.dimensions <= full):
            given = shown(config.dimensions)
            raise ArgumentError(f"`dimensions` is {given}, but the model's vectors have {full} values")
        self.size = config.dimensions or full
        self._truncated = self.size < full

    def _check_widths(self) -> int:
        """Checks the width of each layer's input, and returns the width after all layers."""
        width = self.width * len(self.config.poolings)
        for number, layer in enumerate(self.layers):
            if isinstance(layer, Normalize):
                continue
            weight = layer.linear.weight if isinstance(layer, Dense) else layer.weight
            if weight.shape[-1] != width:
                raise ArgumentError(
                    f"pooling '{_JOIN.join(self.config.poolings)}' gives {width} values, "
                    f"but layer {number + 1} after the pooling ({type(layer).__name__}) takes {weight.shape[-1]} values"
                )
            width = weight.shape[0]
        return width

    @property
    def unit(self) -> bool:
        """Whether the vectors have length 1."""
        ends = bool(self.layers) and isinstance(self.layers[-1], Normalize)
        return self.config.normalize or (ends and not self._truncated)

    def variant(
        self, *, pooling: str | None = None, normalize: bool | None = None, dimensions: int | None = None
    ) -> "Embedder":
        """Returns the same embedder with other options; `None` keeps the model's option.

        Args:
            pooling: One of `POOLINGS`, or several joined by `+`.
            normalize: `True` scales vectors to length 1 at the very end; `False` omits the model's own normalization.
            dimensions: Number of leading values to keep.
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
        return "attention" in self.config.poolings

    def __call__(self, output: EncoderOutput, attention_mask: mx.array | None = None, skip: int = 0) -> mx.array:
        """Pools the output of the encoder and applies the layers after the pooling.

        Args:
            output: The output of the encoder; it must include attentions if `needs_attentions`.
            attention_mask: (B, L), nonzero at real tokens; `None` when nothing is padded.
            skip: The number of tokens at the start that belong to a prompt; they are left out unless the model also
                pools prompts.

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
    """Parses names joined by `+`, such as `cls+mean`."""
    names = tuple(text.split(_JOIN)) if isinstance(text, str) else ()
    if not names or not all(name in POOLINGS for name in names):
        raise ArgumentError(
            f"`pooling` is {text!r:.60}, expected one of {', '.join(POOLINGS)}, or several joined by '{_JOIN}'"
        )
    check_listed("pooling", names)
    return names
