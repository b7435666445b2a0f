"""Initial weights of new networks and new heads."""

import math
import zlib
from collections.abc import Iterable

from mlxbert.config import EncoderConfig, Initialization
from mlxbert.machine.device import mx, nn
from mlxbert.option_declarations import SEED

# Layers whose output is added to the residual stream, and the dense layers of heads.
_OUTPUTS = (".attention.output.weight", ".feed_forward.down.weight", ".transform.dense.weight")


def initialize(
    network: nn.Module, config: EncoderConfig, names: Iterable[str], seed: int = 0, dtype: mx.Dtype = mx.float32
) -> None:
    """Draws initial weights as configured. Norms start at 1 (at 0 if 1 is added to the weight), biases and others at 0.

    Each parameter depends only on the seed and its name, not on which other parameters are drawn.

    Args:
        network: The network; parameters that are not in `names` do not change.
        seed: A whole number.
        dtype: The dtype of the parameters; they are drawn in float32.
    """
    seed = SEED.check_whole("seed", seed)
    parameters: dict[str, mx.array] = dict(nn.utils.tree_flatten(network.parameters()))
    norms = {
        f"{path}.weight"
        for path, module in network.named_modules()
        if isinstance(module, nn.LayerNorm | nn.RMSNorm) and not getattr(module, "plus_one", False)
    }
    zeros = {f"{path}.weight" for path, module in network.named_modules() if getattr(module, "plus_one", False)}
    drawn = {}
    for name in names:
        shape = parameters[name].shape
        if name in norms:
            drawn[name] = mx.ones(shape, dtype=dtype)
        elif name in zeros or not name.endswith((".weight", ".w1", ".w2")):
            drawn[name] = mx.zeros(shape, dtype=dtype)
        else:
            key = mx.random.key(zlib.crc32(f"{seed} {name}".encode()))
            drawn[name] = _weight(name, shape, config, key).astype(dtype)
    network.load_weights(list(drawn.items()), strict=False)


def _weight(name: str, shape: tuple[int, ...], config: EncoderConfig, key: mx.array) -> mx.array:
    """The initial weights of a matrix, an embedding table or a convolution, in float32."""
    initialization = config.initialization
    if name == "encoder.embeddings.position.weight" and initialization.sinusoidal_positions:
        return _sinusoids(*shape)
    # Scores of spans are products of the outputs of many layers, which small weights would make tiny.
    std = (3 * shape[-1]) ** -0.5 if name.startswith("heads.open_entities.") else _std(name, initialization)
    if initialization.cutoff is None:
        drawn = mx.random.normal(shape, scale=std, key=key)
    else:
        drawn = mx.random.truncated_normal(-initialization.cutoff, initialization.cutoff, shape, key=key) * std
    pad = _pad_row(name, config)
    return drawn if pad is None else mx.where((mx.arange(shape[0]) == pad)[:, None], 0, drawn)


def _std(name: str, initialization: Initialization) -> float:
    if initialization.output_std is not None and name.endswith(_OUTPUTS):
        return initialization.output_std
    if initialization.classifier_std is not None and name.startswith("heads.") and name.endswith(".out.weight"):
        return initialization.classifier_std
    return initialization.std


def _pad_row(name: str, config: EncoderConfig) -> int | None:
    """The row of an embedding table that belongs to padding and is initialized with zeros; `None` if there is none."""
    if not config.initialization.zero_pad:
        return None
    if name == "encoder.embeddings.word.weight":
        return config.pad_token_id
    if name == "encoder.embeddings.position.weight" and config.positions.table is not None:
        first = config.positions.table.first_position
        return first - 1 if first else None
    return None


def _sinusoids(rows: int, width: int) -> mx.array:
    """Returns sines in even and cosines in odd columns ("Attention Is All You Need", arXiv:1706.03762)."""
    frequencies = mx.exp(mx.arange(0, width, 2) * (-math.log(10_000.0) / width))
    angles = mx.arange(rows)[:, None] * frequencies
    return mx.stack([mx.sin(angles), mx.cos(angles)], axis=-1).reshape(rows, -1)[:, :width]
