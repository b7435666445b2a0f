"""The families that rotate queries and keys: ModernBERT, NomicBERT, GTE "new"."""

from dataclasses import replace

from mlxbert.config import Biases, EncoderConfig, PreNorm, Rotation, Transform
from mlxbert.weights.config_json import ConfigJson
from mlxbert.weights.families.bert import (
    BUFFERS,
    POOLER,
    TOKEN_CLASSIFIER,
    WORDS,
    classifier_table,
    encoder_table,
    masked_lm_table,
)
from mlxbert.weights.families.family import (
    MIN_EPS,
    Family,
    read_activation,
    read_facts,
    read_head_size,
    read_heads,
    read_segments,
)
from mlxbert.weights.families.nomic import read_nomic
from mlxbert.weights.families.restated import restate_gte, restate_nomic
from mlxbert.weights.families.rotation import read_base, read_rotary, read_theta
from mlxbert.weights.keymap import Table, same, split

_FULL, _SLIDING = "full_attention", "sliding_attention"


def _modernbert_rotations(config: ConfigJson) -> tuple[Rotation, ...]:
    """Layers that see all and layers that see near tokens; two dialects of configurations say which."""
    layers = config.integer("num_hidden_layers", most=1000)
    every = config.integer("global_attn_every_n_layers", default=3)
    kinds = tuple(_SLIDING if layer % every else _FULL for layer in range(layers))
    if config.get("layer_types") is not None:
        kinds = config.texts("layer_types")
    if len(kinds) != layers or not set(kinds) <= {_FULL, _SLIDING}:
        raise config.refuse("layer_types", f"{layers} times {_FULL!r} or {_SLIDING!r}")
    config.only("rope_scaling", None, "mlxbert computes ModernBERT's rotation without scaling")
    rope = config.table("rope_parameters")
    if not rope.values.keys() <= {_FULL, _SLIDING}:
        raise config.refuse("rope_parameters", f"a table of {_FULL!r} and {_SLIDING!r}")
    thetas = {
        kind: read_theta(rope.table(kind), read_base(config, f"{old}_rope_theta", default))
        for kind, old, default in ((_FULL, "global", 160_000.0), (_SLIDING, "local", 10_000.0))
    }
    window = _window(config)
    return tuple(Rotation(thetas[kind], window if kind == _SLIDING else None) for kind in kinds)


def _window(config: ConfigJson) -> int:
    """How far near tokens are; `sliding_window`, which transformers reads too, is that, `local_attention` twice."""
    if config.get("sliding_window") is None:
        return config.integer("local_attention", default=128) // 2
    window = config.integer("sliding_window")
    if config.get("local_attention") is not None and config.integer("local_attention") // 2 != window:
        raise config.refuse("sliding_window", f"half of local_attention ({config.get('local_attention')})")
    return window


def _read_modernbert(config: ConfigJson) -> EncoderConfig:
    config = config.respelled(
        {
            "hidden_act": "hidden_activation",
            "layer_norm_eps": "norm_eps",
            "hidden_dropout_prob": "mlp_dropout",
            "attention_probs_dropout_prob": "attention_dropout",
        }
    )
    before = Transform(
        read_activation(config, "classifier_activation", "gelu"),
        norm=True,
        bias=config.flag("classifier_bias", default=False),
    )
    heads = read_heads(
        config,
        masked_lm=before,
        masked_lm_bias=config.flag("decoder_bias", default=True),
        classifier=before,
        classifier_pooling=config.choice("classifier_pooling", ("cls", "mean"), "cls"),
        token=before,
    )
    mlp_bias = config.flag("mlp_bias", default=False)
    return read_facts(
        config,
        positions=read_rotary(config, _modernbert_rotations(config)),
        heads=heads,
        type_vocab_size=0,
        layer_norm_eps=config.number("layer_norm_eps", low=MIN_EPS, high=1.0, default=1e-5),
        block=PreNorm(),
        gated=True,
        biases=Biases(
            attention=config.flag("attention_bias", default=False),
            up=mlp_bias,
            down=mlp_bias,
            norm=config.flag("norm_bias", default=False),
        ),
    )


def _gte_rotation(config: ConfigJson) -> Rotation:
    """Its authors' dialect knows `rope_scaling` of type "ntk" (https://kexue.fm/archives/9706)."""
    theta, scaling = read_base(config, "rope_theta", 160_000.0), config.table("rope_scaling")
    if not scaling.values:
        rope = config.table("rope_parameters")
        if rope.get("rope_type") == "linear":
            return Rotation(read_base(rope, "rope_theta", theta), stretch=rope.number("factor", low=1.0, high=1e6))
        return Rotation(read_theta(rope, theta))
    config.only("rope_parameters", None, "it says the same as rope_scaling, which is there too")
    if scaling.get("rope_type") is not None:
        raise scaling.refuse("rope_type", 'none: GTE\'s authors call it type, and "ntk" is the one mlxbert computes')
    scaling.choice("type", ("ntk",))
    scaling.only("mixed_b", None, "mlxbert computes this scaling without it")
    factor = scaling.number("factor", low=1.0, high=1e6)
    return Rotation(theta * factor, stretch=factor ** (2 / read_head_size(config)))


def _read_gte(config: ConfigJson) -> EncoderConfig:
    for key, allowed in (("layer_norm_type", "layer_norm"), ("position_embedding_type", "rope")):
        config.only(key, allowed, f"mlxbert runs GTE with {allowed!r} there")
    config.only("pack_qkv", True, "mlxbert runs GTE with queries, keys and values in one tensor")
    for key in ("logn_attention_scale", "logn_attention_clip1"):
        config.only(key, False, "mlxbert runs GTE without it")
    return read_facts(
        config,
        positions=read_rotary(config, (_gte_rotation(config),) * config.integer("num_hidden_layers", most=1000)),
        heads=read_heads(config, masked_lm=Transform("gelu", norm=True)),
        type_vocab_size=read_segments(config, 1, least=0),
        gated=True,
        biases=Biases(up=False),
    )


_QKV = ("attention.query", "attention.key", "attention.value")
_MODERNBERT_EMBEDDINGS: Table = (
    same("embeddings.word", "embeddings.tok_embeddings"),
    same("embeddings.norm", "embeddings.norm"),
)
_MODERNBERT_LAYER: Table = (
    same("attention_norm", "attn_norm"),
    split(_QKV, "attn.Wqkv"),
    same("attention.output", "attn.Wo"),
    same("feed_forward_norm", "mlp_norm"),
    split(("feed_forward.gate", "feed_forward.up"), "mlp.Wi"),
    same("feed_forward.down", "mlp.Wo"),
)
_NOMIC_LAYER: Table = (
    split(_QKV, "attn.Wqkv"),
    same("attention.output", "attn.out_proj"),
    same("attention_norm", "norm1"),
    same("feed_forward.up", "mlp.fc11"),
    same("feed_forward.gate", "mlp.fc12"),
    same("feed_forward.down", "mlp.fc2"),
    same("feed_forward_norm", "norm2"),
)
_GTE_LAYER: Table = (
    split(_QKV, "attention.qkv_proj"),
    same("attention.output", "attention.o_proj"),
    same("attention_norm", "attn_ln"),
    split(("feed_forward.up", "feed_forward.gate"), "mlp.up_gate_proj"),
    same("feed_forward.down", "mlp.down_proj"),
    same("feed_forward_norm", "mlp_ln"),
)


def _embeddings(norm: str) -> Table:
    return (
        same("embeddings.word", "embeddings.word_embeddings"),
        same("embeddings.token_type", "embeddings.token_type_embeddings"),
        same("embeddings.norm", norm),
    )


def _with_head(part: str, out: str) -> Table:
    """ModernBERT's heads have what stands before the last layer under one name."""
    return (
        same(f"heads.{part}", out) if part == "masked_lm" else same(f"heads.{part}.out", out),
        same(f"heads.{part}.transform.dense", "head.dense"),
        same(f"heads.{part}.transform.norm", "head.norm"),
    )


_FREQUENCIES = r".*(inv_freq|rotary_emb\..*)"  # buffers

MODERNBERT = Family(
    read_config=_read_modernbert,
    prefixes=("model.",),
    encoder=encoder_table(_MODERNBERT_EMBEDDINGS, _MODERNBERT_LAYER, "layers.{}.", (same("final_norm", "final_norm"),)),
    parts={
        "masked_lm": _with_head("masked_lm", "decoder"),
        "sequence_classifier": _with_head("sequence_classifier", "classifier"),
        "token_classifier": _with_head("token_classifier", "classifier"),
        "question_answering": _with_head("question_answering", "classifier"),
    },
    buffers=(_FREQUENCIES,),
    tied={"decoder.weight": "embeddings.tok_embeddings.weight"},
)
NOMIC = Family(
    read_config=read_nomic,
    prefixes=("nomic_bert.", "bert."),
    encoder=encoder_table(_embeddings("emb_ln"), _NOMIC_LAYER, "encoder.layers.{}."),
    parts={
        "pooler": POOLER,
        "masked_lm": masked_lm_table(
            "cls.predictions.transform.dense", "cls.predictions.transform.layer_norm", "cls.predictions"
        ),
        "sequence_classifier": classifier_table("classifier"),
        "token_classifier": TOKEN_CLASSIFIER,
    },
    buffers=(*BUFFERS, _FREQUENCIES),
    tied={"cls.predictions.decoder.weight": WORDS, "cls.predictions.decoder.bias": "cls.predictions.bias"},
    restated=restate_nomic,
)
GTE = replace(
    NOMIC,
    read_config=_read_gte,
    prefixes=("gte.", "new."),
    encoder=encoder_table(_embeddings("embeddings.LayerNorm"), _GTE_LAYER, "encoder.layer.{}."),
    parts={
        **NOMIC.parts,
        "masked_lm": masked_lm_table("lm_head.dense", "lm_head.norm", "lm_head.decoder"),
    },
    tied={"lm_head.decoder.weight": WORDS},
    restated=restate_gte,
)
