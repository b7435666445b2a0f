"""EuroBERT: a Llama with bidirectional attention."""

from mlxbert.config import EncoderConfig, HeadFacts, Transform
from mlxbert.nn.heads import masked_lm, sequence_classifier
from mlxbert.weights.families import config_reader, llama, tensor_names
from mlxbert.weights.families.family import Family
from mlxbert.weights.formats.config_json import ConfigJson

_POOLINGS = {"bos": "cls", "mean": "mean", "late": "mean"}


def _read(config: ConfigJson) -> EncoderConfig:
    config.only("tie_word_embeddings", False, "mlxbert runs EuroBERT with an untied decoder only")
    config = config.with_aliases({"classifier_pooling": "clf_pooling"})
    bias = config.flag("mlp_bias", default=False)
    pooling = config.choice("classifier_pooling", _POOLINGS, "late")
    classifier = sequence_classifier.ClassifierFacts(
        Transform("gelu"), pooling=_POOLINGS[pooling], late=pooling == "late"
    )
    return llama.facts(
        config,
        (llama.rope(config),) * config.integer("num_hidden_layers", most=1000),
        bias=bias,
        layer_norm_eps=config.with_aliases({"layer_norm_eps": "rms_norm_eps"}).number(
            "layer_norm_eps", low=config_reader.MIN_EPS, high=1.0, default=1e-5
        ),
        heads={
            "masked_lm": masked_lm.MaskedLMFacts(None, bias=bias, tied=False),
            "sequence_classifier": classifier,
            "token_classifier": HeadFacts(),
        },
    )


EUROBERT = Family(
    title="EuroBERT",
    published=(
        "EuroBERT/EuroBERT-210m",
        "EuroBERT/EuroBERT-610m",
        "jinaai/jina-embeddings-v5-text-nano",
        "jinaai/jina-embeddings-v5-text-nano-retrieval",
    ),
    class_prefixes={"eurobert": "EuroBert"},
    facts=_read,
    prefixes=("model.",),
    encoder=llama.encoder(llama.LAYER, llama.NORM_BEFORE_FEED_FORWARD),
    parts=tensor_names.heads(
        *("masked_lm", "sequence_classifier", "token_classifier"),
        masked_lm={"decoder": "lm_head"},
        sequence_classifier={"transform.dense": "dense", "out": "classifier"},
    ),
)
