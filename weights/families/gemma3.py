"""EmbeddingGemma: a Gemma 3 that attends to both sides, within a window in most layers."""

import math

from mlxbert.config import EncoderConfig, PreNorm, Rotation
from mlxbert.weights.families import llama, read, rotation, tables
from mlxbert.weights.families.family import Family
from mlxbert.weights.families.keymap import Table, same
from mlxbert.weights.formats.config_json import ConfigJson

_FULL, _SLIDING = "full_attention", "sliding_attention"


def _read(config: ConfigJson) -> EncoderConfig:
    hint = "EmbeddingGemma has it; other models of this type are generators" if not config.values.get(_KEY) else None
    config.only(_KEY, True, "mlxbert runs models of this type that attend to both sides", hint=hint)
    for key in ("final_logit_softcapping", "attn_logit_softcapping"):
        config.only(key, None, "mlxbert runs Gemma without it")
    config = config.with_aliases({"hidden_act": "hidden_activation"})
    size = config.integer("head_dim", most=2**12, default=256)
    return llama.facts(
        config,
        _rotations(config),
        own_head_size=size,
        hidden_act=read.activation(config, "hidden_act", "gelu_pytorch_tanh"),
        attention_scale=config.number("query_pre_attn_scalar", low=1e-3, high=1e6, default=256) ** -0.5,
        query_key_norm="head",
        norm="rms_plus_one",
        wide_range=True,
        embedding_scale=math.sqrt(config.integer("hidden_size")),
        block=PreNorm(output_norms=True),
        heads={"sequence_classifier": llama.classifier(config)},
    )


_KEY = "use_bidirectional_attention"


def _rotations(config: ConfigJson) -> tuple[Rotation, ...]:
    """The rotations of global and of local layers, which two dialects of configurations list."""
    layers = config.integer("num_hidden_layers", most=1000)
    every = config.with_aliases({"sliding_window_pattern": "_sliding_window_pattern"}).integer(
        "sliding_window_pattern", default=6
    )
    kinds = tuple(_SLIDING if (layer + 1) % every else _FULL for layer in range(layers))
    if config.get("layer_types") is not None:
        kinds = config.strings("layer_types")
    if len(kinds) != layers or not set(kinds) <= {_FULL, _SLIDING}:
        raise config.refuse("layer_types", f"{layers} times {_FULL!r} or {_SLIDING!r}")
    config.only("rope_scaling", None, "mlxbert computes Gemma's rotation without scaling")
    rope = config.nested("rope_parameters")
    thetas = {
        kind: rotation.read_theta(rope.nested(kind), rotation.read_base(config, key, default))
        for kind, key, default in ((_FULL, "rope_theta", 1e6), (_SLIDING, "rope_local_base_freq", 1e4))
    }
    window = config.integer("sliding_window", default=4096)
    # Some versions of transformers write half of the window, and one more, which is odd.
    near = window - 1 if window % 2 else window // 2
    return tuple(Rotation(thetas[kind], near if kind == _SLIDING else None) for kind in kinds)


_LAYER: Table = (
    same("attention_output_norm", "post_attention_layernorm"),
    same("feed_forward_norm", "pre_feedforward_layernorm"),
    same("feed_forward_output_norm", "post_feedforward_layernorm"),
)

GEMMA3 = Family(
    class_prefixes={"gemma3_text": "Gemma3Text"},
    facts=_read,
    prefixes=("model.",),
    encoder=llama.encoder(llama.LAYER, _LAYER, llama.QUERY_KEY_NORMS),
    parts=tables.heads("sequence_classifier", sequence_classifier=llama.SCORES),
    ignored=llama.DECODER,
)
