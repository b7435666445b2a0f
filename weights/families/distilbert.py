"""DistilBERT: no segments, no pooler, other keys."""

from dataclasses import replace

from mlxbert.config import EncoderConfig, HeadDropout, Transform
from mlxbert.weights.config_json import ConfigJson
from mlxbert.weights.families.bert import BERT
from mlxbert.weights.families.family import (
    read_absolute,
    read_activation,
    read_dropout,
    read_facts,
    read_heads,
    read_initialization,
    read_rate,
)
from mlxbert.weights.families.tables import (
    EMBEDDINGS,
    QUESTION_ANSWERING,
    TOKEN_CLASSIFIER,
    WORDS,
    classifier_table,
    encoder_table,
    masked_lm_table,
)
from mlxbert.weights.keymap import Table, same


def _read_distilbert(config: ConfigJson) -> EncoderConfig:
    config = config.with_aliases(
        {
            "hidden_size": "dim",
            "num_hidden_layers": "n_layers",
            "num_attention_heads": "n_heads",
            "intermediate_size": "hidden_dim",
            "hidden_act": "activation",
            "hidden_dropout_prob": "dropout",
            "attention_probs_dropout_prob": "attention_dropout",
        }
    )
    activation = read_activation(config, "hidden_act", "gelu")
    dropout = read_dropout(config)
    head_dropout = HeadDropout(
        classifier=read_rate(config, "seq_classif_dropout", 0.2),
        token_classifier=dropout.feed_forward,
        question_answering=read_rate(config, "qa_dropout", 0.1),
    )
    heads = read_heads(
        config, masked_lm=Transform(activation, norm=True), classifier=Transform("relu"), dropout=head_dropout
    )
    sinusoidal = config.flag("sinusoidal_pos_embds", default=False)
    return read_facts(
        config,
        positions=read_absolute(config),
        heads=heads,
        type_vocab_size=0,
        layer_norm_eps=1e-12,  # fixed in transformers
        dropout=replace(dropout, attention_output=None),
        initialization=replace(read_initialization(config), sinusoidal_positions=sinusoidal),
    )


_LAYER: Table = (
    same("attention.query", "attention.q_lin"),
    same("attention.key", "attention.k_lin"),
    same("attention.value", "attention.v_lin"),
    same("attention.output", "attention.out_lin"),
    same("attention_norm", "sa_layer_norm"),
    same("feed_forward.up", "ffn.lin1"),
    same("feed_forward.down", "ffn.lin2"),
    same("feed_forward_norm", "output_layer_norm"),
)

DISTILBERT = replace(
    BERT,
    class_prefixes={"distilbert": "DistilBert"},
    read_config=_read_distilbert,
    prefixes=("distilbert.",),
    encoder=encoder_table(EMBEDDINGS, _LAYER, "transformer.layer.{}."),
    parts={
        "masked_lm": masked_lm_table("vocab_transform", "vocab_layer_norm", "vocab_projector"),
        "sequence_classifier": classifier_table("classifier", "pre_classifier"),
        "token_classifier": TOKEN_CLASSIFIER,
        "question_answering": QUESTION_ANSWERING,
    },
    tied={"vocab_projector.weight": WORDS},
)
