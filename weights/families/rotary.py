"""Functions that read rotary positions, and the tensor names that families with such positions share."""

import re
from collections.abc import Mapping, Sequence
from typing import Any

from mlxbert.config import EncoderConfig, Rotary, Rotation
from mlxbert.weights.families import config_reader
from mlxbert.weights.families.keymap import Table, same
from mlxbert.weights.formats.config_json import ConfigJson

QKV = ("attention.query", "attention.key", "attention.value")
QKV_IN_MEMORY = ("self_attn.q_proj", "self_attn.k_proj", "self_attn.v_proj")
FREQUENCIES = r".*(inv_freq|rotary_emb\..*)"  # buffers
FULL, SLIDING = "full_attention", "sliding_attention"  # a layer attends to all tokens, or to tokens within a window


def in_memory(layer: str, stems: Mapping[str, tuple[str, ...]]) -> dict[str, tuple[str, ...]]:
    """Returns `Family.modules` for a family whose layers have other names in memory than on disk.

    `layer` is the prefix of a layer on disk, with `{}` for its number. `stems` maps names on disk to names in memory.
    """
    pattern = re.escape(layer).replace(r"\{\}", r"(\d+)")
    return {pattern + re.escape(stem): tuple(rf"layers.\1.{name}" for name in names) for stem, names in stems.items()}


def read_base(config: ConfigJson, key: str, default: float | None = None) -> float:
    """Reads the base of the rotation angles."""
    return config.number(key, low=1.0, high=1e12, default=default)


def read_theta(rope: ConfigJson, default: float) -> float:
    """Reads the base of the rotation angles from transformers' `rope_parameters`; rejects scaled rotations."""
    for key in ("rope_type", "type"):
        rope.only(key, "default", "mlxbert computes the plain rotation only, without scaling")
    return read_base(rope, "rope_theta", default)


def read_rotary(config: ConfigJson, rotations: tuple[Rotation, ...], longest: int | None = None) -> Rotary:
    """Reads rotary positions, given one rotation per layer; `longest` overrides `max_position_embeddings`."""
    size = config_reader.head_size(config)
    if size % 2:
        raise config.refuse("num_attention_heads", f"a number that gives heads of an even size, not of {size}")
    config.only("head_dim", size, f"mlxbert needs {size}, which is hidden_size / num_attention_heads")
    return Rotary(config.integer("max_position_embeddings") if longest is None else longest, rotations)


def read_local_and_global(
    config: ConfigJson, assumed: Sequence[str], bases: Mapping[str, tuple[str, float]], window: int
) -> tuple[Rotation, ...]:
    """Reads the rotations of a model whose layers attend either to all tokens or to tokens within a window.

    Args:
        config: The configuration, in one of two dialects. The newer one lists the kinds of the layers in `layer_types`
            and has one base per kind in `rope_parameters`.
        assumed: The kind of each layer, used if `layer_types` is missing.
        bases: Maps each kind to the key that states its base in the older dialect, and the default for this key.
        window: The maximum distance within the window.
    """
    kinds = tuple(assumed) if config.get("layer_types") is None else config.strings("layer_types")
    if len(kinds) != len(assumed) or not set(kinds) <= bases.keys():
        raise config.refuse("layer_types", f"a list of {len(assumed)} entries, each {FULL!r} or {SLIDING!r}")
    config.only("rope_scaling", None, "mlxbert computes the plain rotation only, without scaling")
    rope = config.nested("rope_parameters")
    if not rope.values.keys() <= bases.keys():
        raise config.refuse("rope_parameters", f"an object with the keys {FULL!r} and {SLIDING!r}")
    thetas = {kind: read_theta(rope.nested(kind), read_base(config, *base)) for kind, base in bases.items()}
    return tuple(Rotation(thetas[kind], window if kind == SLIDING else None) for kind in kinds)


def rotary_embeddings(norm: str) -> Table:
    """Returns the tensor names of embeddings without a table of positions."""
    return (
        same("embeddings.word", "embeddings.word_embeddings"),
        same("embeddings.token_type", "embeddings.token_type_embeddings"),
        same("embeddings.norm", norm),
    )


def transformers_keys(config: EncoderConfig) -> dict[str, Any]:
    """Returns, in the spelling of transformers, the keys that other dialects spell differently or omit."""
    assert isinstance(config.positions, Rotary)
    rotation = config.positions.rotations[0]
    plain = {"rope_type": "default", "rope_theta": rotation.theta}
    # In transformers, "linear" divides every frequency by the factor.
    scaled = {"rope_type": "linear", "rope_theta": rotation.theta, "factor": rotation.wavelength_scale}
    return {
        "vocab_size": config.vocab_size,
        "hidden_size": config.hidden_size,
        "num_hidden_layers": config.num_stored_layers,
        "num_attention_heads": config.num_attention_heads,
        "intermediate_size": config.intermediate_size,
        "hidden_act": config.hidden_act,
        "hidden_dropout_prob": config.dropout.feed_forward,
        "attention_probs_dropout_prob": config.dropout.attention,
        "max_position_embeddings": config.positions.max_length,
        "type_vocab_size": config.type_vocab_size,
        "layer_norm_eps": config.layer_norm_eps,
        "pad_token_id": config.pad_token_id,
        "rope_parameters": plain if rotation.wavelength_scale == 1 else scaled,
        "auto_map": None,
    }
