"""DeBERTa versions 2 and 3."""

import re
from dataclasses import replace

from mlxbert.config import Absolute, Convolution, Disentangled, EncoderConfig, HeadFacts, Projection, Transform
from mlxbert.nn.heads import masked_lm, sequence_classifier
from mlxbert.weights.families import config_reader, tensor_names
from mlxbert.weights.families.bert import BERT
from mlxbert.weights.families.family import Family
from mlxbert.weights.families.keymap import Table, channels_last, same
from mlxbert.weights.formats.config_json import ConfigJson

_ATTENTION_KINDS = ("c2p", "p2c")
_MAX_DISTANCE = 2**29  # rows on each side of the table of distances; MLX limits the length of an axis


def _attention_kinds(config: ConfigJson) -> tuple[str, ...]:
    joined = config.get("pos_att_type", "")
    parts = joined.split("|") if isinstance(joined, str) else config.strings("pos_att_type")
    kinds = tuple(kind.strip().lower() for kind in parts)
    if not set(kinds) <= {*_ATTENTION_KINDS, ""}:
        raise config.refuse("pos_att_type", f"one or more of {', '.join(_ATTENTION_KINDS)}")
    return kinds


def _positions(config: ConfigJson) -> Disentangled:
    config.only("relative_attention", True, "mlxbert runs DeBERTa with relative attention only")
    if not config.flag("relative_attention", default=False):
        raise config.refuse("relative_attention", "true")
    length = config.integer("max_position_embeddings", most=_MAX_DISTANCE)
    farthest = config.integer("max_relative_positions", least=-1, most=_MAX_DISTANCE, default=-1)
    farthest = farthest if farthest > 0 else length
    buckets = max(config.integer("position_buckets", least=-1, default=-1), 0)
    if buckets and not 1 < buckets // 2 < farthest - 1:
        raise config.refuse(
            "position_buckets", f"a number from 4 to less than twice max_relative_positions ({farthest})"
        )
    kinds = _attention_kinds(config)
    norms = [norm.strip() for norm in config.string("norm_rel_ebd", default="none").lower().split("|")]
    if not set(norms) <= {"layer_norm", "none", ""}:
        raise config.refuse("norm_rel_ebd", "'layer_norm' or 'none'")
    return Disentangled(
        max_length=length,
        table=Absolute(length) if config.flag("position_biased_input", default=True) else None,
        max_relative_positions=farthest,
        buckets=buckets,
        content_to_position="c2p" in kinds,
        position_to_content="p2c" in kinds,
        shared_projections=config.flag("share_att_key", default=False),
        norm="layer_norm" in norms,
    )


def _convolution(config: ConfigJson) -> Convolution | None:
    kernel = config.integer("conv_kernel_size", least=0, default=0)
    if not kernel:
        return None
    if kernel % 2 == 0:
        raise config.refuse("conv_kernel_size", "an odd number")
    groups = config.integer("conv_groups", default=1)
    if config.integer("hidden_size") % groups:
        raise config.refuse("conv_groups", "a divisor of the hidden size")
    return Convolution(kernel, groups, config_reader.activation(config, "conv_act", "tanh"))


def _read_deberta(config: ConfigJson) -> EncoderConfig:
    width = config.integer("hidden_size")
    config.only("pooler_hidden_size", width, f"mlxbert needs {width}, the hidden size")
    config.only(
        "attention_head_size",
        config_reader.head_size(config),
        "mlxbert needs hidden_size / num_attention_heads",
    )
    narrow = config.integer("embedding_size", default=width)
    dropout = config_reader.dropout(config)
    hidden = config_reader.rate(config, "hidden_dropout_prob", 0.1)
    classifier = sequence_classifier.ClassifierFacts(
        Transform(config_reader.activation(config, "pooler_hidden_act", "gelu")),
        config_reader.rate(config, "cls_dropout", hidden),
        config_reader.rate(config, "pooler_dropout", 0.0),
        pooling="cls",
    )
    return config_reader.facts(
        config,
        positions=_positions(config),
        heads={
            "masked_lm": masked_lm.MaskedLMFacts(
                Transform(config_reader.activation(config, "hidden_act", "gelu"), norm=True)
            ),
            "sequence_classifier": classifier,
            "token_classifier": HeadFacts(dropout=hidden),
        },
        embedding_size=narrow,
        projection=Projection(before_norm=True, bias=False) if narrow != width else None,
        type_vocab_size=config_reader.segments(config, 0, least=0),
        layer_norm_eps=config.number("layer_norm_eps", low=config_reader.MIN_EPS, high=1.0, default=1e-7),
        convolution=_convolution(config),
        dropout=replace(dropout, distances=hidden, convolution=hidden),
    )


_EMBEDDINGS: Table = (
    same("embeddings.word", "embeddings.word_embeddings"),
    same("embeddings.position", "embeddings.position_embeddings"),
    same("embeddings.token_type", "embeddings.token_type_embeddings"),
    same("embeddings.projection", "embeddings.embed_proj"),
    same("embeddings.norm", "embeddings.LayerNorm"),
)
_LAYER: Table = (
    same("attention.query", "attention.self.query_proj"),
    same("attention.key", "attention.self.key_proj"),
    same("attention.value", "attention.self.value_proj"),
    same("attention.position_key", "attention.self.pos_key_proj"),
    same("attention.position_query", "attention.self.pos_query_proj"),
    same("attention.output", "attention.output.dense"),
    same("attention_norm", "attention.output.LayerNorm"),
    *tensor_names.FEED_FORWARD,
)
_REST: Table = (
    same("positions", "encoder.rel_embeddings"),
    same("positions.norm", "encoder.LayerNorm"),
    channels_last("convolution.conv", "encoder.conv.conv"),
    same("convolution.norm", "encoder.conv.LayerNorm"),
)


def _exported(config: ConfigJson, name: str) -> str:
    """Returns a tensor's name in transformers. For tensors of the masked-LM head, it depends on the key `legacy`."""
    if config.flag("legacy", default=True):
        return name
    name = re.sub(r"^cls\.predictions\.transform\.", "lm_predictions.lm_head.", name)
    return re.sub(r"^cls\.predictions\.bias$", "lm_predictions.lm_head.bias", name)


DEBERTA = Family(
    title="DeBERTa 2 and 3",
    published=(
        "microsoft/deberta-v2-xlarge",
        "microsoft/deberta-v3-base",
        "microsoft/mdeberta-v3-base",
        "mixedbread-ai/mxbai-rerank-base-v1",
    ),
    class_prefixes={"deberta-v2": "DebertaV2"},  # version 3 has this name, too
    facts=_read_deberta,
    prefixes=("deberta.",),
    encoder=tensor_names.encoder(_EMBEDDINGS, _LAYER, "encoder.layer.{}.", _REST),
    parts=tensor_names.heads(sequence_classifier={"transform.dense": "pooler.dense"}),
    # The head that version 3 was trained with; transformers initializes a random head instead (`legacy` in its config).
    old_spellings={
        r"^lm_predictions\.lm_head\.(dense|LayerNorm)\.": r"cls.predictions.transform.\1.",
        r"^lm_predictions\.lm_head\.bias$": "cls.predictions.bias",
    },
    # Ignored: a table of positions that the model does not use, and the replaced-token-detection head.
    buffers=tensor_names.BUFFERS,
    ignored=(r"embeddings\.position_embeddings\.weight", r"mask_predictions\..*"),
    tied=BERT.tied,
    exported=_exported,
)
