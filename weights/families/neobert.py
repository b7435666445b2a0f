"""NeoBERT: pre-RMSNorm, a rotation of adjacent elements; queries, keys and values are fused head by head."""

import math

from mlxbert.config import Biases, Dropout, EncoderConfig, Initialization, PreNorm, Rotation, Transform
from mlxbert.nn.heads import masked_lm
from mlxbert.weights.families import config_reader, keymap, rotary, tensor_names
from mlxbert.weights.families.family import Family
from mlxbert.weights.families.keymap import Table, TensorName, same, split
from mlxbert.weights.formats.config_json import ConfigJson

_ROTATION = Rotation(10_000.0)  # its authors' code has no key for the base
_MULTIPLE = 8  # of the width of the feed-forward, in its authors' code
# Keys of other models with the same `model_type`, and the values in the authors' own models.
_ONLY = {
    "ngpt": False,
    "rms_norm": True,
    "rope": True,
    "rope_theta": _ROTATION.theta,
    "rope_scaling": None,
    "rope_parameters": None,
    "encoder_init_range": None,  # halves of a head are rotated, and the feed-forward is as wide as the file states
    "expert_sizes": None,
    "num_key_value_heads": None,
}


def _read(config: ConfigJson) -> EncoderConfig:
    for key, allowed in _ONLY.items():
        config.only(key, allowed, "mlxbert runs NeoBERT as its authors published it")
    config.choice("hidden_act", ("SwiGLU", "swiglu"), "SwiGLU")
    layers = config.integer("num_hidden_layers", most=1000)
    rate = config_reader.rate(config, "classifier_dropout", 0.1)
    # The authors draw weights uniformly from -range to range: this is the standard deviation.
    width = config.number("decoder_init_range", low=0.0, high=1e6, default=0.02) / math.sqrt(3)
    return config_reader.facts(
        config.with_aliases({"layer_norm_eps": "norm_eps"}),
        positions=rotary.read_rotary(config, (_ROTATION,) * layers, config.integer("max_length", default=1024)),
        layer_norm_eps=config.number("norm_eps", low=config_reader.MIN_EPS, high=1.0, default=1e-6),
        type_vocab_size=0,
        norm="rms",
        embedding_norm=False,
        block=PreNorm(),
        gated=True,
        hidden_act="silu",
        # A gated feed-forward has three matrices instead of two.
        intermediate_size=-(-(2 * config.integer("intermediate_size") // 3) // _MULTIPLE) * _MULTIPLE,
        biases=Biases(attention=False, attention_output=False, up=False, down=False),
        dropout=Dropout(),
        initialization=Initialization(std=width, zero_pad=False),
        heads=config_reader.heads(rate, Transform("tanh"), masked_lm=masked_lm.MaskedLMFacts(None, tied=False)),
    )


_LAYER: Table = (
    same("attention_norm", "attention_norm"),
    TensorName(rotary.QKV, ("qkv",), keymap.PAIRS),
    same("attention.output", "wo"),
    same("feed_forward_norm", "ffn_norm"),
    split(("feed_forward.gate", "feed_forward.up"), "ffn.w12"),
    same("feed_forward.down", "ffn.w3"),
)

NEOBERT = Family(
    title="NeoBERT",
    published=("chandar-lab/NeoBERT",),
    class_prefixes={"neobert": "NeoBERT"},
    class_names={"NeoBERTModel": "NeoBERT", "NeoBERTForMaskedLM": "NeoBERTLMHead"},
    pooling=lambda config: "cls",
    foreign=lambda config, facts: True,
    facts=_read,
    prefixes=("model.",),
    encoder=tensor_names.encoder(
        (same("embeddings.word", "encoder"),), _LAYER, "transformer_encoder.{}.", (same("final_norm", "layer_norm"),)
    ),
    parts=tensor_names.heads(
        *("masked_lm", "sequence_classifier"),
        masked_lm={"decoder": "decoder"},
        sequence_classifier={"transform.dense": "dense", "out": "classifier"},
    ),
)
