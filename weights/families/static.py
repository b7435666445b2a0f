"""Static models: a vector for each token, and the mean of a text's vectors (model2vec, StaticEmbedding)."""

from mlxbert.config import Dropout, EncoderConfig, Initialization, Transform, Unordered
from mlxbert.nn.heads.sequence_classifier import ClassifierFacts
from mlxbert.weights.families import tensor_names
from mlxbert.weights.families.family import Family
from mlxbert.weights.families.keymap import same
from mlxbert.weights.formats.config_json import ConfigJson
from mlxbert.weights.formats.static_table import MODEL2VEC, MODEL_TYPES, MODULE_TABLE, TABLE

_MAX_LENGTH = 512  # of model2vec, if `config.json` lacks the key
_UNLIMITED = 10**6  # tokens


def _read(config: ConfigJson) -> EncoderConfig:
    width = config.integer("hidden_size")
    limited = config.values.get("model_type") == MODEL2VEC and "max_length" not in config.values
    return EncoderConfig(
        vocab_size=config.integer("vocab_size"),
        hidden_size=width,
        embedding_size=width,
        layer_schedule=(),
        num_attention_heads=1,
        intermediate_size=width,
        hidden_act="relu",
        layer_norm_eps=1e-12,
        type_vocab_size=0,
        pad_token_id=0,
        positions=Unordered(config.integer("max_length", default=_MAX_LENGTH if limited else _UNLIMITED)),
        embedding_norm=False,
        dropout=Dropout(),
        initialization=Initialization(zero_pad=False),
        heads={"sequence_classifier": ClassifierFacts(Transform("relu"), 0.1, 0.0, "mean")},
    )


STATIC = Family(
    title="static (model2vec, StaticEmbedding)",
    published=("minishlab/potion-base-8M", "sentence-transformers/static-retrieval-mrl-en-v1"),
    class_prefixes=dict.fromkeys(MODEL_TYPES, "Static"),
    facts=_read,
    prefixes=("",),
    encoder=(same("encoder.embeddings.word", MODULE_TABLE.removesuffix(".weight")),),
    parts=tensor_names.heads(
        "sequence_classifier", sequence_classifier={"transform.dense": "classifier.dense", "out": "classifier.out_proj"}
    ),
    old_spellings={f"^{TABLE}$": MODULE_TABLE},
    exported=lambda config, name: TABLE if name == MODULE_TABLE else name,
    foreign=lambda config, facts: True,
    pooled=False,
)
