"""EmbeddingGemma: a Gemma 3 with bidirectional attention, which most layers limit to a window."""

import math

from mlxbert.config import EncoderConfig, PreNorm, Rotation
from mlxbert.weights.families import config_reader, llama, rotary, tensor_names
from mlxbert.weights.families.family import Family
from mlxbert.weights.families.keymap import Table, same
from mlxbert.weights.formats.config_json import ConfigJson

_KEY = "use_bidirectional_attention"


def _read(config: ConfigJson) -> EncoderConfig:
    hint = (
        "use EmbeddingGemma, because other models of this type only generate text"
        if not config.values.get(_KEY)
        else None
    )
    config.only(_KEY, True, "mlxbert runs models of this type only with bidirectional attention", hint=hint)
    for key in ("final_logit_softcapping", "attn_logit_softcapping"):
        config.only(key, None, "mlxbert runs Gemma without softcapping")
    config = config.with_aliases({"hidden_act": "hidden_activation"})
    size = config.integer("head_dim", most=2**12, default=256)
    return llama.facts(
        config,
        _rotations(config),
        own_head_size=size,
        hidden_act=config_reader.activation(config, "hidden_act", "gelu_pytorch_tanh"),
        attention_scale=config.number("query_pre_attn_scalar", low=1e-3, high=1e6, default=256) ** -0.5,
        query_key_norm="head",
        norm="rms_plus_one",
        embedding_scale=math.sqrt(config.integer("hidden_size")),
        block=PreNorm(output_norms=True),
        heads={"sequence_classifier": llama.classifier(config)},
    )


def _rotations(config: ConfigJson) -> tuple[Rotation, ...]:
    """Reads the rotations of the layers with global and with local attention."""
    pattern = config.with_aliases({"sliding_window_pattern": "_sliding_window_pattern"})
    every = pattern.integer("sliding_window_pattern", default=6)
    layers = range(config.integer("num_hidden_layers", most=1000))
    assumed = [rotary.SLIDING if (layer + 1) % every else rotary.FULL for layer in layers]
    bases = {rotary.FULL: ("rope_theta", 1e6), rotary.SLIDING: ("rope_local_base_freq", 1e4)}
    window = config.integer("sliding_window", default=4096)
    # Some versions of transformers write half of the window plus 1, an odd number.
    near = window - 1 if window % 2 else window // 2
    return rotary.read_local_and_global(config, assumed, bases, near)


_LAYER: Table = (
    same("attention_output_norm", "post_attention_layernorm"),
    same("feed_forward_norm", "pre_feedforward_layernorm"),
    same("feed_forward_output_norm", "post_feedforward_layernorm"),
)

GEMMA3 = Family(
    title="EmbeddingGemma",
    published=("google/embeddinggemma-300m",),
    class_prefixes={"gemma3_text": "Gemma3Text"},
    facts=_read,
    prefixes=("model.",),
    encoder=llama.encoder(llama.LAYER, _LAYER, llama.QUERY_KEY_NORMS),
    parts=tensor_names.heads("sequence_classifier", sequence_classifier=llama.SCORES),
    ignored=llama.DECODER,
    wide_range=True,
)
