"""ELECTRA, generator and discriminator: embeddings that may be narrower than the hidden states, no pooler."""

from dataclasses import replace

from mlxbert.config import EncoderConfig, HeadFacts, Projection, Transform
from mlxbert.nn.heads import masked_lm
from mlxbert.weights.families import config_reader, tensor_names
from mlxbert.weights.families.bert import BERT, read_bert
from mlxbert.weights.families.keymap import same
from mlxbert.weights.formats.config_json import ConfigJson


def _read_electra(config: ConfigJson) -> EncoderConfig:
    facts = read_bert(config)
    width = config.integer("embedding_size", default=128)
    return replace(
        facts,
        embedding_size=width,
        projection=Projection() if width != facts.hidden_size else None,
        heads=config_reader.heads(
            config_reader.head_dropout(config), Transform("gelu"), discriminator=HeadFacts(Transform(facts.hidden_act))
        ),
    )


ELECTRA = replace(
    BERT,
    title="ELECTRA",
    published=(
        "google/electra-base-discriminator",
        "google/electra-base-generator",
        "cross-encoder/ms-marco-electra-base",
    ),
    class_prefixes={"electra": "Electra"},
    facts=_read_electra,
    prefixes=("electra.",),
    encoder=tensor_names.encoder(
        (*tensor_names.EMBEDDINGS, same("embeddings.projection", "embeddings_project")),
        tensor_names.LAYER,
        "encoder.layer.{}.",
    ),
    parts=tensor_names.heads(
        *("masked_lm", "discriminator", *tensor_names.TASK_HEADS),
        masked_lm=masked_lm.stems(
            "generator_lm_head", "generator_predictions.dense", "generator_predictions.LayerNorm"
        ),
        sequence_classifier=tensor_names.TWO_LAYERS,
    ),
    ignored=(r"sequence_summary\..*",),  # the multiple-choice head
    tied={"generator_lm_head.weight": tensor_names.WORDS},
)
