"""ModernBERT: rotary positions, local and global attention, pre-norm blocks."""

import math
from dataclasses import replace

from mlxbert.config import Biases, Dropout, EncoderConfig, HeadFacts, Initialization, PreNorm, Rotation, Transform
from mlxbert.nn.heads import masked_lm, sequence_classifier
from mlxbert.weights.families import config_reader, rotary, tensor_names
from mlxbert.weights.families.family import Family
from mlxbert.weights.families.keymap import Table, same, split
from mlxbert.weights.formats.config_json import ConfigJson


def _rotations(config: ConfigJson) -> tuple[Rotation, ...]:
    """Reads the rotations of the layers with global and with local attention."""
    every = config.integer("global_attn_every_n_layers", default=3)
    layers = range(config.integer("num_hidden_layers", most=1000))
    assumed = [rotary.SLIDING if layer % every else rotary.FULL for layer in layers]
    bases = {
        rotary.FULL: ("global_rope_theta", 160_000.0),
        rotary.SLIDING: ("local_rope_theta", 10_000.0),
    }
    return rotary.read_local_and_global(config, assumed, bases, _window(config))


def _window(config: ConfigJson) -> int:
    """Reads how many tokens the window has on each side.

    This is `sliding_window`, which transformers also reads, or half of `local_attention`.
    """
    if config.get("sliding_window") is None:
        return config.integer("local_attention", default=128) // 2
    window = config.integer("sliding_window")
    if config.get("local_attention") is not None and config.integer("local_attention") // 2 != window:
        raise config.refuse("sliding_window", f"half of local_attention ({config.get('local_attention')})")
    return window


def _read(config: ConfigJson) -> EncoderConfig:
    config = config.with_aliases(
        {
            "hidden_act": "hidden_activation",
            "layer_norm_eps": "norm_eps",
            "hidden_dropout_prob": "mlp_dropout",
            "attention_probs_dropout_prob": "attention_dropout",
        }
    )
    transform = Transform(
        config_reader.activation(config, "classifier_activation", "gelu"),
        norm=True,
        bias=config.flag("classifier_bias", default=False),
    )
    rate = config_reader.rate(config, "classifier_dropout", 0.0)
    pooling = config.choice("classifier_pooling", ("cls", "mean"), "cls")
    attention_bias, mlp_bias = config.flag("attention_bias", default=False), config.flag("mlp_bias", default=False)
    return config_reader.facts(
        config,
        positions=rotary.read_rotary(config, _rotations(config)),
        heads={
            "masked_lm": masked_lm.MaskedLMFacts(transform, bias=config.flag("decoder_bias", default=True)),
            "sequence_classifier": sequence_classifier.ClassifierFacts(transform, rate, pooling=pooling),
            "token_classifier": HeadFacts(transform, rate),
            "question_answering": HeadFacts(transform, rate),
        },
        type_vocab_size=0,
        layer_norm_eps=config.number("layer_norm_eps", low=config_reader.MIN_EPS, high=1.0, default=1e-5),
        block=PreNorm(first_norm=False),
        dropout=_dropout(config),
        initialization=_initialization(config),
        gated=True,
        biases=Biases(
            attention=attention_bias,
            attention_output=attention_bias,
            up=mlp_bias,
            down=mlp_bias,
            norm=config.flag("norm_bias", default=False),
        ),
    )


def _dropout(config: ConfigJson) -> Dropout:
    attention = config_reader.rate(config, "attention_probs_dropout_prob", 0.0)
    return Dropout(
        embeddings=config_reader.rate(config, "embedding_dropout", 0.0),
        attention=attention,
        attention_output=attention,
        activation=config_reader.rate(config, "hidden_dropout_prob", 0.0),
    )


def _initialization(config: ConfigJson) -> Initialization:
    """Reads how new weights are initialized.

    Layers that add to the residual stream have a smaller standard deviation. The padding token's row of the word
    embeddings is random, too, rather than 0.
    """
    plain = config_reader.initialization(config)
    return replace(
        plain,
        cutoff=config.number("initializer_cutoff_factor", low=1e-3, high=1e3, default=2.0),
        output_std=plain.std / math.sqrt(2 * config.integer("num_hidden_layers", most=1000)),
        classifier_std=config.integer("hidden_size") ** -0.5,
        zero_pad=False,
    )


_EMBEDDINGS: Table = (
    same("embeddings.word", "embeddings.tok_embeddings"),
    same("embeddings.norm", "embeddings.norm"),
)
_LAYER: Table = (
    same("attention_norm", "attn_norm"),
    split(rotary.QKV, "attn.Wqkv"),
    same("attention.output", "attn.Wo"),
    same("feed_forward_norm", "mlp_norm"),
    split(("feed_forward.gate", "feed_forward.up"), "mlp.Wi"),
    same("feed_forward.down", "mlp.Wo"),
)


_CLASSIFIER = {"out": "classifier", "transform.dense": "head.dense", "transform.norm": "head.norm"}

MODERNBERT = Family(
    title="ModernBERT",
    published=(
        "answerdotai/ModernBERT-base",
        "jhu-clsp/mmBERT-base",
        "jhu-clsp/ettin-encoder-150m",
        "ibm-granite/granite-embedding-english-r2",
        "nomic-ai/modernbert-embed-base",
        "Alibaba-NLP/gte-modernbert-base",
    ),
    class_prefixes={"modernbert": "ModernBert"},
    facts=_read,
    prefixes=("model.",),
    encoder=tensor_names.encoder(_EMBEDDINGS, _LAYER, "layers.{}.", (same("final_norm", "final_norm"),)),
    parts=tensor_names.heads(
        masked_lm=masked_lm.stems("decoder", "head.dense", "head.norm"),
        **dict.fromkeys(tensor_names.TASK_HEADS, _CLASSIFIER),
    ),
    buffers=(rotary.FREQUENCIES,),
    tied={"decoder.weight": "embeddings.tok_embeddings.weight"},
)
