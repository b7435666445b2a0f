"""What the families that rotate queries and keys have in common when their configurations are read."""

from mlxbert.config import Rotary, Rotation
from mlxbert.weights.config_json import ConfigJson
from mlxbert.weights.families.family import read_head_size


def read_base(config: ConfigJson, key: str, default: float | None = None) -> float:
    """The base of the angles."""
    return config.number(key, low=1.0, high=1e12, default=default)


def read_theta(rope: ConfigJson, default: float) -> float:
    """The base in a table of transformers, which must be of the plain kind."""
    for key in ("rope_type", "type"):
        rope.only(key, "default", "mlxbert computes the plain rotation only, without scaling")
    return read_base(rope, "rope_theta", default)


def read_rotary(config: ConfigJson, rotations: tuple[Rotation, ...], longest: int | None = None) -> Rotary:
    """Positions that rotate: one rotation per layer; the longest input where another key than usual says it."""
    size = read_head_size(config)
    if size % 2:
        raise config.refuse("num_attention_heads", f"heads of an even size to rotate, not of {size}")
    config.only("head_dim", size, f"expected hidden size by heads, {size}")
    return Rotary(config.integer("max_position_embeddings") if longest is None else longest, rotations)
