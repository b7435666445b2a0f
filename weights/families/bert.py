"""The families that are BERT in all but a handful of facts: each is a way to read its config and a table of names."""

from dataclasses import replace

from mlxbert.config import Absolute, EncoderConfig, Projection, RelativeBias, Transform
from mlxbert.weights.config_json import ConfigJson
from mlxbert.weights.families.family import Family, read_activation, read_facts, read_heads, read_pad, read_segments
from mlxbert.weights.families.mlx_names import MLX_SPELLINGS
from mlxbert.weights.keymap import Table, same, within

_MPNET_PAD = 1  # what its positions are counted from, whatever the configuration calls padding
_GELU = Transform("gelu", norm=True)  # of masked-word heads that do not ask hidden_act


def _absolute(config: ConfigJson, first: int = 0) -> Absolute:
    config.only("position_embedding_type", "absolute", "mlxbert computes 'absolute' positions only for this family")
    return Absolute(config.integer("max_position_embeddings", least=first + 1), first)


def _read_bert(config: ConfigJson, activation: str = "gelu") -> EncoderConfig:
    """A BERT; `activation` is what transformers takes where the configuration names none."""
    config.only("use_task_id", False, "mlxbert does not run models with task ids (ERNIE)")
    activation = read_activation(config, "hidden_act", activation)
    return read_facts(
        config,
        positions=_absolute(config),
        heads=read_heads(config, masked_lm=Transform(activation, norm=True)),
        type_vocab_size=read_segments(config),
        hidden_act=activation,
    )


def _read_roberta(config: ConfigJson) -> EncoderConfig:
    pad = read_pad(config, 1)
    return read_facts(
        config,
        positions=_absolute(config, pad + 1),
        heads=read_heads(config, masked_lm=_GELU, classifier=Transform("tanh")),
        type_vocab_size=read_segments(config),
        pad_token_id=pad,
    )


def _read_distilbert(config: ConfigJson) -> EncoderConfig:
    config = config.respelled(
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
    heads = read_heads(config, masked_lm=Transform(activation, norm=True), classifier=Transform("relu"))
    # Its norms have a fixed eps; sinusoidal positions are stored in the table as learned ones are.
    return read_facts(config, positions=_absolute(config), heads=heads, type_vocab_size=0, layer_norm_eps=1e-12)


def _read_albert(config: ConfigJson) -> EncoderConfig:
    config.only("inner_group_num", 1, "mlxbert runs ALBERT with one layer in a group (inner_group_num 1)")
    facts = _read_bert(config, "gelu_new")
    steps, groups = len(facts.layer_schedule), config.integer("num_hidden_groups", default=1)
    if groups > steps:
        raise config.refuse("num_hidden_groups", f"at most the number of layers ({steps})")
    return replace(
        facts,
        embedding_size=config.integer("embedding_size", default=128),
        projection=Projection(),
        layer_schedule=tuple(int(step / (steps / groups)) for step in range(steps)),
    )


def _read_electra(config: ConfigJson) -> EncoderConfig:
    facts = _read_bert(config)
    width = config.integer("embedding_size", default=128)
    return replace(
        facts,
        embedding_size=width,
        projection=Projection() if width != facts.hidden_size else None,
        heads=replace(facts.heads, masked_lm=_GELU, classifier=Transform("gelu")),
    )


def _read_mpnet(config: ConfigJson) -> EncoderConfig:
    config.only("relative_attention_num_buckets", 32, "MPNet computes with 32 buckets whatever its table holds")
    return read_facts(
        config,
        positions=RelativeBias(_absolute(config, _MPNET_PAD + 1)),
        heads=read_heads(config, masked_lm=_GELU, classifier=Transform("tanh")),
        type_vocab_size=0,
        pad_token_id=read_pad(config, _MPNET_PAD),
    )


_EMBEDDINGS: Table = (
    same("embeddings.word", "embeddings.word_embeddings"),
    same("embeddings.position", "embeddings.position_embeddings"),
    same("embeddings.token_type", "embeddings.token_type_embeddings"),
    same("embeddings.norm", "embeddings.LayerNorm"),
)
FEED_FORWARD: Table = (
    same("feed_forward.up", "intermediate.dense"),
    same("feed_forward.down", "output.dense"),
    same("feed_forward_norm", "output.LayerNorm"),
)
_LAYER: Table = (
    same("attention.query", "attention.self.query"),
    same("attention.key", "attention.self.key"),
    same("attention.value", "attention.self.value"),
    same("attention.output", "attention.output.dense"),
    same("attention_norm", "attention.output.LayerNorm"),
    *FEED_FORWARD,
)
_DISTILBERT_LAYER: Table = (
    same("attention.query", "attention.q_lin"),
    same("attention.key", "attention.k_lin"),
    same("attention.value", "attention.v_lin"),
    same("attention.output", "attention.out_lin"),
    same("attention_norm", "sa_layer_norm"),
    same("feed_forward.up", "ffn.lin1"),
    same("feed_forward.down", "ffn.lin2"),
    same("feed_forward_norm", "output_layer_norm"),
)
_ALBERT_LAYER: Table = (
    same("attention.query", "attention.query"),
    same("attention.key", "attention.key"),
    same("attention.value", "attention.value"),
    same("attention.output", "attention.dense"),
    same("attention_norm", "attention.LayerNorm"),
    same("feed_forward.up", "ffn"),
    same("feed_forward.down", "ffn_output"),
    same("feed_forward_norm", "full_layer_layer_norm"),
)
_MPNET_LAYER: Table = (
    same("attention.query", "attention.attn.q"),
    same("attention.key", "attention.attn.k"),
    same("attention.value", "attention.attn.v"),
    same("attention.output", "attention.attn.o"),
    same("attention_norm", "attention.LayerNorm"),
    *FEED_FORWARD,
)


def encoder_table(embeddings: Table, layer: Table, layers: str, rest: Table = ()) -> Table:
    """The tensors of an encoder; `layers` is what stands before those of a layer, `{}` for its number."""
    return within("encoder.", "", embeddings + within("layers.{}.", layers, layer) + rest)


def masked_lm_table(transform: str, norm: str, bias: str) -> Table:
    """The tensors of a masked-word head; `bias` is the stem of the bias of each word."""
    return (
        same("heads.masked_lm", bias),
        same("heads.masked_lm.transform.dense", transform),
        same("heads.masked_lm.transform.norm", norm),
    )


def classifier_table(out: str, transform: str | None = None) -> Table:
    """The tensors of a sequence classifier."""
    before = () if transform is None else (same("heads.sequence_classifier.transform.dense", transform),)
    return (*before, same("heads.sequence_classifier.out", out))


POOLER: Table = within("encoder.", "", (same("pooler.dense", "pooler.dense"),))
TOKEN_CLASSIFIER: Table = (same("heads.token_classifier.out", "classifier"),)
QUESTION_ANSWERING: Table = (same("heads.question_answering.out", "qa_outputs"),)
MASKED_LM: Table = masked_lm_table(
    "cls.predictions.transform.dense", "cls.predictions.transform.LayerNorm", "cls.predictions"
)
WORDS = "embeddings.word_embeddings.weight"
BUFFERS = (r"embeddings\.(position_ids|token_type_ids)",)
_OLD_SPELLINGS = {r"\.gamma$": ".weight", r"\.beta$": ".bias"}

BERT = Family(
    read_config=_read_bert,
    prefixes=("bert.",),
    encoder=encoder_table(_EMBEDDINGS, _LAYER, "encoder.layer.{}."),
    parts={
        "pooler": POOLER,
        "masked_lm": MASKED_LM,
        "next_sentence": (same("heads.next_sentence.dense", "cls.seq_relationship"),),
        "sequence_classifier": classifier_table("classifier"),
        "token_classifier": TOKEN_CLASSIFIER,
        "question_answering": QUESTION_ANSWERING,
    },
    old_spellings=_OLD_SPELLINGS | MLX_SPELLINGS,
    buffers=BUFFERS,
    tied={"cls.predictions.decoder.weight": WORDS, "cls.predictions.decoder.bias": "cls.predictions.bias"},
)
ROBERTA = replace(
    BERT,
    read_config=_read_roberta,
    prefixes=("roberta.",),
    parts={
        "pooler": POOLER,
        "masked_lm": masked_lm_table("lm_head.dense", "lm_head.layer_norm", "lm_head"),
        "sequence_classifier": classifier_table("classifier.out_proj", "classifier.dense"),
        "token_classifier": TOKEN_CLASSIFIER,
        "question_answering": QUESTION_ANSWERING,
    },
    tied={"lm_head.decoder.weight": WORDS, "lm_head.decoder.bias": "lm_head.bias"},
)
DISTILBERT = replace(
    BERT,
    read_config=_read_distilbert,
    prefixes=("distilbert.",),
    encoder=encoder_table(_EMBEDDINGS, _DISTILBERT_LAYER, "transformer.layer.{}."),
    parts={
        "masked_lm": masked_lm_table("vocab_transform", "vocab_layer_norm", "vocab_projector"),
        "sequence_classifier": classifier_table("classifier", "pre_classifier"),
        "token_classifier": TOKEN_CLASSIFIER,
        "question_answering": QUESTION_ANSWERING,
    },
    tied={"vocab_projector.weight": WORDS},
)
ALBERT = replace(
    BERT,
    read_config=_read_albert,
    prefixes=("albert.",),
    encoder=encoder_table(
        (*_EMBEDDINGS, same("embeddings.projection", "encoder.embedding_hidden_mapping_in")),
        _ALBERT_LAYER,
        "encoder.albert_layer_groups.{}.albert_layers.0.",
    ),
    parts={
        "pooler": within("encoder.", "", (same("pooler.dense", "pooler"),)),
        "masked_lm": masked_lm_table("predictions.dense", "predictions.LayerNorm", "predictions"),
        "sentence_order": (same("heads.sentence_order.dense", "sop_classifier.classifier"),),
        "sequence_classifier": classifier_table("classifier"),
        "token_classifier": TOKEN_CLASSIFIER,
        "question_answering": QUESTION_ANSWERING,
    },
    old_spellings=_OLD_SPELLINGS,  # its own pooler.weight is what tools of MLX call BERT's
    tied={"predictions.decoder.weight": WORDS, "predictions.decoder.bias": "predictions.bias"},
)
ELECTRA = replace(
    BERT,
    read_config=_read_electra,
    prefixes=("electra.",),
    encoder=encoder_table(
        (*_EMBEDDINGS, same("embeddings.projection", "embeddings_project")), _LAYER, "encoder.layer.{}."
    ),
    parts={
        "masked_lm": masked_lm_table(
            "generator_predictions.dense", "generator_predictions.LayerNorm", "generator_lm_head"
        ),
        "discriminator": (
            same("heads.discriminator.transform.dense", "discriminator_predictions.dense"),
            same("heads.discriminator.out", "discriminator_predictions.dense_prediction"),
        ),
        "sequence_classifier": classifier_table("classifier.out_proj", "classifier.dense"),
        "token_classifier": TOKEN_CLASSIFIER,
        "question_answering": QUESTION_ANSWERING,
    },
    ignored=(r"sequence_summary\..*",),  # of multiple choice
    tied={"generator_lm_head.weight": WORDS},
)
MPNET = replace(
    ROBERTA,
    read_config=_read_mpnet,
    prefixes=("mpnet.",),
    encoder=encoder_table(
        _EMBEDDINGS, _MPNET_LAYER, "encoder.layer.{}.", (same("positions", "encoder.relative_attention_bias"),)
    ),
)
