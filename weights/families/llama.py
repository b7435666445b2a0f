"""Facts and tensors of the families that follow Llama.

They share pre-RMSNorm, rotary positions, a gated feed-forward, and keys that several heads share.
"""

from typing import Any

from mlxbert.config import Biases, Dropout, EncoderConfig, PreNorm, Rotary, Rotation
from mlxbert.nn.heads import sequence_classifier
from mlxbert.weights.families import config_reader, rotary, tensor_names
from mlxbert.weights.families.keymap import Table, same
from mlxbert.weights.formats.config_json import ConfigJson

_BASE = 10_000.0  # of the angles, if a file does not state it
LAYER: Table = (
    same("attention_norm", "input_layernorm"),
    same("attention.query", "self_attn.q_proj"),
    same("attention.key", "self_attn.k_proj"),
    same("attention.value", "self_attn.v_proj"),
    same("attention.output", "self_attn.o_proj"),
    same("feed_forward.gate", "mlp.gate_proj"),
    same("feed_forward.up", "mlp.up_proj"),
    same("feed_forward.down", "mlp.down_proj"),
)
NORM_BEFORE_FEED_FORWARD: Table = (same("feed_forward_norm", "post_attention_layernorm"),)
QUERY_KEY_NORMS: Table = (
    same("attention.query_norm", "self_attn.q_norm"),
    same("attention.key_norm", "self_attn.k_norm"),
)
SCORES = {"out": "score"}  # the last layer of heads
DECODER = (r"lm_head\.weight",)  # of a language model


def encoder(*layer: Table) -> Table:
    """Returns the table of an encoder. The tables in `layer` together describe one layer."""
    embeddings = (same("embeddings.word", "embed_tokens"),)
    return tensor_names.encoder(embeddings, sum(layer, ()), "layers.{}.", (same("final_norm", "norm"),))


def classifier(config: ConfigJson) -> sequence_classifier.ClassifierFacts:
    """Returns the facts of the text classifier that transformers adds to language models.

    Its input is the hidden state of the last token that is not padding.
    """
    pad = None if config.get("pad_token_id") is None else config_reader.pad(config, 0)
    return sequence_classifier.ClassifierFacts(pooling="last_token", bias=False, skipped=pad)


def rope(config: ConfigJson) -> Rotation:
    """Reads the rotation in the older or the newer spelling; all layers share it."""
    config.only("rope_scaling", None, "mlxbert computes the plain rotation only, without scaling")
    rope = config.nested("rope_parameters")
    if any(isinstance(value, dict) for value in rope.values.values()):
        raise config.refuse("rope_parameters", "one rotation for all layers")
    base = rotary.read_base(config, "rope_theta", _BASE)
    return Rotation(rotary.read_theta(rope, base))


def facts(config: ConfigJson, rotations: tuple[Rotation, ...], *, bias: bool = False, **own: Any) -> EncoderConfig:
    """Reads the facts of a model; `bias` states whether the feed-forward has biases."""
    config = config.with_aliases({**config.aliases, "layer_norm_eps": "rms_norm_eps"})
    heads, attention_bias = config.integer("num_attention_heads"), config.flag("attention_bias", default=False)
    shared = config.integer("num_key_value_heads", most=heads, default=heads)
    if heads % shared:
        raise config.refuse("num_key_value_heads", f"a divisor of num_attention_heads ({heads})")
    size = own.setdefault("own_head_size", _head_size(config))
    if size % 2:
        raise config.refuse("head_dim", "an even number, because halves of a head are rotated")
    rate = config_reader.rate(config, "attention_dropout", 0.0)
    common: dict[str, Any] = {
        "type_vocab_size": 0,
        "num_key_value_heads": shared,
        "norm": "rms",
        "embedding_norm": False,
        "block": PreNorm(),
        "gated": True,
        "hidden_act": config_reader.activation(config, "hidden_act", "silu"),
        "layer_norm_eps": config.number("layer_norm_eps", low=config_reader.MIN_EPS, high=1.0, default=1e-6),
        "biases": Biases(attention_bias, attention_bias, bias, bias),
        "dropout": Dropout(attention=rate),
    }
    return config_reader.facts(
        config, positions=Rotary(config.integer("max_position_embeddings"), rotations), **common | own
    )


def _head_size(config: ConfigJson) -> int:
    """Reads the width of an attention head, which may differ from the hidden size divided by the number of heads."""
    return config_reader.head_size(config) if config.get("head_dim") is None else config.integer("head_dim", most=2**12)
