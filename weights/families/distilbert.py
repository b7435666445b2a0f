"""DistilBERT: no segments, no pooler, and other keys in `config.json`."""

from dataclasses import replace

from mlxbert.config import EncoderConfig, HeadFacts, Transform
from mlxbert.nn.heads import masked_lm, sequence_classifier
from mlxbert.weights.families import config_reader, tensor_names
from mlxbert.weights.families.bert import BERT
from mlxbert.weights.families.keymap import Table, same
from mlxbert.weights.formats.config_json import ConfigJson


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
    activation = config_reader.activation(config, "hidden_act", "gelu")
    dropout, rate = config_reader.dropout(config), config_reader.rate(config, "seq_classif_dropout", 0.2)
    sinusoidal = config.flag("sinusoidal_pos_embds", default=False)
    return config_reader.facts(
        config,
        positions=config_reader.absolute(config),
        heads={
            "masked_lm": masked_lm.MaskedLMFacts(Transform(activation, norm=True)),
            "sequence_classifier": sequence_classifier.ClassifierFacts(Transform("relu"), rate, pooling="cls"),
            "token_classifier": HeadFacts(dropout=dropout.feed_forward),
            "question_answering": HeadFacts(dropout=config_reader.rate(config, "qa_dropout", 0.1)),
        },
        type_vocab_size=0,
        layer_norm_eps=1e-12,  # fixed in transformers
        dropout=replace(dropout, attention_output=None),
        initialization=replace(config_reader.initialization(config), sinusoidal_positions=sinusoidal),
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
    title="DistilBERT",
    published=("distilbert/distilbert-base-uncased", "sentence-transformers/distiluse-base-multilingual-cased-v2"),
    class_prefixes={"distilbert": "DistilBert"},
    facts=_read_distilbert,
    prefixes=("distilbert.",),
    encoder=tensor_names.encoder(tensor_names.EMBEDDINGS, _LAYER, "transformer.layer.{}."),
    parts=tensor_names.heads(
        masked_lm=masked_lm.stems("vocab_projector", "vocab_transform", "vocab_layer_norm"),
        sequence_classifier={"transform.dense": "pre_classifier"},
    ),
    tied={"vocab_projector.weight": tensor_names.WORDS},
)
