"""GTE, both in the dialect of its authors (`new`) and in the dialect of transformers."""

from dataclasses import replace
from typing import Any

from mlxbert.config import Biases, EncoderConfig, Rotation
from mlxbert.nn.heads import masked_lm
from mlxbert.weights.families import config_reader, rotary, tensor_names
from mlxbert.weights.families.keymap import Table, same, split
from mlxbert.weights.families.nomic import NOMIC
from mlxbert.weights.formats.config_json import ConfigJson


def _rotation(config: ConfigJson) -> Rotation:
    """Reads the rotation.

    In the authors' dialect, `rope_scaling` has the type "ntk" (https://kexue.fm/archives/9706).
    """
    theta, scaling = rotary.read_base(config, "rope_theta", 160_000.0), config.nested("rope_scaling")
    if not scaling.values:
        rope = config.nested("rope_parameters")
        if rope.get("rope_type") == "linear":
            return Rotation(
                rotary.read_base(rope, "rope_theta", theta),
                wavelength_scale=rope.number("factor", low=1.0, high=1e6),
            )
        return Rotation(rotary.read_theta(rope, theta))
    config.only("rope_parameters", None, "rope_scaling, which has the same meaning, is also present")
    hint = 'write "type": "ntk", the only type that mlxbert computes'
    scaling.only("rope_type", None, 'GTE calls this key "type"', hint=hint)
    scaling.choice("type", ("ntk",))
    scaling.only("mixed_b", None, "mlxbert computes this scaling without mixed_b")
    factor = scaling.number("factor", low=1.0, high=1e6)
    return Rotation(theta * factor, wavelength_scale=factor ** (2 / config_reader.head_size(config)))


def _read(config: ConfigJson) -> EncoderConfig:
    for key, allowed in (("layer_norm_type", "layer_norm"), ("position_embedding_type", "rope")):
        config.only(key, allowed, f"mlxbert runs GTE with {allowed!r} only")
    config.only("pack_qkv", True, "mlxbert runs GTE with queries, keys and values in one tensor")
    for key in ("logn_attention_scale", "logn_attention_clip1"):
        config.only(key, False, f"mlxbert runs GTE without {key}")
    dropout = config_reader.dropout(config, attention=0.0)
    return config_reader.facts(
        config,
        positions=rotary.read_rotary(config, (_rotation(config),) * config.integer("num_hidden_layers", most=1000)),
        heads=config_reader.heads(config_reader.head_dropout(config)),
        type_vocab_size=config_reader.segments(config, 1, least=0),
        gated=True,
        dropout=replace(dropout, activation=dropout.feed_forward),
        biases=Biases(up=False),
    )


def _overrides(config: ConfigJson, facts: EncoderConfig) -> dict[str, Any]:
    """Returns new values for keys of the authors' dialect, in which `model_type` is "new"."""
    if config.get("model_type") != "new":
        return {}
    classes = [name.replace("New", "Gte", 1) for name in config.strings("architectures")]
    return rotary.transformers_keys(facts) | {
        "model_type": "gte",
        "architectures": classes,
        "rope_theta": None,
        "rope_scaling": None,
    }


_LAYER: Table = (
    split(rotary.QKV, "attention.qkv_proj"),
    same("attention.output", "attention.o_proj"),
    same("attention_norm", "attn_ln"),
    split(("feed_forward.up", "feed_forward.gate"), "mlp.up_gate_proj"),
    same("feed_forward.down", "mlp.down_proj"),
    same("feed_forward_norm", "mlp_ln"),
)
_IN_MEMORY = {
    "attention.qkv_proj": rotary.QKV_IN_MEMORY,
    "attention.o_proj": ("self_attn.o_proj",),
    "mlp.up_gate_proj": ("mlp.up_proj", "mlp.gate_proj"),
    "mlp.down_proj": ("mlp.down_proj",),
}

GTE = replace(
    NOMIC,
    title="GTE",
    published=(
        "Alibaba-NLP/gte-base-en-v1.5",
        "Alibaba-NLP/gte-multilingual-base",
        "Alibaba-NLP/gte-multilingual-reranker-base",
        "Snowflake/snowflake-arctic-embed-m-v2.0",
    ),
    class_prefixes={"gte": "Gte", "new": "Gte"},  # `new`: the dialect of its authors
    facts=_read,
    prefixes=("gte.", "new."),
    encoder=tensor_names.encoder(rotary.rotary_embeddings("embeddings.LayerNorm"), _LAYER, "encoder.layer.{}."),
    parts={
        **NOMIC.parts,
        **tensor_names.heads(
            "masked_lm", masked_lm=masked_lm.stems("lm_head.decoder", "lm_head.dense", "lm_head.norm")
        ),
    },
    tied={"lm_head.decoder.weight": tensor_names.WORDS},
    modules=rotary.in_memory("encoder.layer.{}.", _IN_MEMORY),
    config_overrides=_overrides,
)
