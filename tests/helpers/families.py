"""The families and heads that are compared with transformers: tiny models whose values are far from the defaults."""

import re
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any

import pytest

from mlxbert.goldens.golden_outputs import Case, make_cases

_ALL = ("Model", "ForMaskedLM", "ForSequenceClassification", "ForTokenClassification", "ForQuestionAnswering")
# Random models with a gate or many steps amplify rounding: in half precision transformers is 10 % off its own single
# precision. Smaller weights keep that down.
_CALM = {"initializer_range": 0.15}
_LABELS = {0: "A", 1: "B", 2: "C", 3: "D"}

COMMON: dict[str, Any] = {
    "vocab_size": 43, "hidden_size": 30, "num_attention_heads": 3, "num_hidden_layers": 3, "intermediate_size": 41,
    "hidden_act": "gelu", "layer_norm_eps": 0.01, "max_position_embeddings": 27, "type_vocab_size": 3,
    "pad_token_id": 7, "initializer_range": 0.25,
}  # fmt: skip


@dataclass(frozen=True)
class Kind:
    """What tests expect of a family; the program's own description of the family is not used."""

    # The copies of the word embeddings and of the decoder's bias, and this bias; or `None` for the last two.
    decoder: tuple[str, str | None, str | None] | None
    counted: bool = False  # whether positions start at the pad id + 1 and skip pad tokens
    rotary: bool = False  # whether positions are rotary, without a table
    gelu_masked_lm: bool = False  # whether the masked-LM head always uses gelu
    classifier: str | None = None  # the activation in the sequence classifier; `None` if that uses the pooler
    activation_key: str | None = "hidden_act"  # in the configuration; `None` if the activation is fixed
    eps_key: str = "layer_norm_eps"


_CLS = "cls.predictions.decoder.weight", "cls.predictions.decoder.bias", "cls.predictions.bias"
_LM_HEAD = "lm_head.decoder.weight", "lm_head.decoder.bias", "lm_head.bias"
_LIKE_ROBERTA = Kind(_LM_HEAD, counted=True, gelu_masked_lm=True, classifier="tanh")
# By the prefix of the class names in transformers.
KINDS = {
    "Bert": Kind(_CLS),
    "Roberta": _LIKE_ROBERTA,
    "XLMRoberta": _LIKE_ROBERTA,
    "Camembert": _LIKE_ROBERTA,
    "MPNet": _LIKE_ROBERTA,
    "DistilBert": Kind(("vocab_projector.weight", None, None), classifier="relu", activation_key="activation"),
    "Albert": Kind(("predictions.decoder.weight", "predictions.decoder.bias", "predictions.bias")),
    "Electra": Kind(("generator_lm_head.weight", None, None), gelu_masked_lm=True, classifier="gelu"),
    "ModernBert": Kind(
        ("decoder.weight", None, None), rotary=True, classifier="silu", activation_key="hidden_activation",
        eps_key="norm_eps",
    ),
    "NomicBert": Kind(_CLS, rotary=True),
    "NomicMoe": Kind(_CLS, rotary=True, gelu_masked_lm=True, activation_key=None, eps_key="layer_norm_epsilon"),
    "Gte": Kind(("lm_head.decoder.weight", None, None), rotary=True, gelu_masked_lm=True),
    "DebertaV2": Kind(_CLS, classifier="silu"),  # pooler_hidden_act
    "JinaEmbeddingsV3": Kind(_LM_HEAD, rotary=True, gelu_masked_lm=True, classifier="tanh"),
    "JinaFlash": Kind(None, counted=True, classifier="tanh", activation_key=None),
    "EuroBert": Kind(None, rotary=True, classifier="gelu", eps_key="rms_norm_eps"),
    "Qwen2": Kind(None, rotary=True, eps_key="rms_norm_eps"),
    "Qwen3": Kind(None, rotary=True, eps_key="rms_norm_eps"),
    "NeoBERT": Kind(None, rotary=True, classifier="tanh", activation_key=None, eps_key="norm_eps"),
    "JinaBert": Kind(_CLS, rotary=True, activation_key="feed_forward_type"),
    "NormedJinaBert": Kind(_CLS, rotary=True, activation_key="feed_forward_type"),
    "Gemma3Text": Kind(None, rotary=True, activation_key="hidden_activation", eps_key="rms_norm_eps"),
}  # fmt: skip


_ELSEWHERE = "NomicMoe", "JinaFlash", "NeoBERT", "JinaBert", "NormedJinaBert"


@dataclass(frozen=True)
class Compared:
    """A family that is compared with transformers."""

    classes: str  # the prefix of its class names in transformers
    changes: dict[str, Any] = field(default_factory=dict)  # differences from `COMMON`; `None` removes a fact
    heads: tuple[str, ...] = _ALL  # the suffixes of its class names

    @property
    def in_transformers(self) -> bool:
        return self.classes not in _ELSEWHERE

    @property
    def kind(self) -> Kind:
        return KINDS[self.classes]

    @property
    def facts(self) -> dict[str, Any]:
        return {key: value for key, value in (COMMON | self.changes).items() if value is not None}

    @property
    def max_length(self) -> int:
        facts = self.facts
        if self.kind.counted:
            return int(facts["max_position_embeddings"]) - 1 - int(facts["pad_token_id"])
        return int(facts.get("max_length") or facts["max_position_embeddings"])

    @property
    def cases(self) -> dict[str, Case]:
        facts = self.facts
        return make_cases(facts["vocab_size"], self.max_length, facts["pad_token_id"], self.segments)

    @property
    def segments(self) -> int:
        """The number of segment types that inputs may have; 1 if the model is given no segment ids."""
        return int(self.facts.get("type_vocab_size", 0)) or 1


_ROBERTA = {"type_vocab_size": 2, "max_position_embeddings": 35}
_DISTIL = {
    "hidden_size": None, "num_attention_heads": None, "num_hidden_layers": None, "intermediate_size": None,
    "hidden_act": None, "layer_norm_eps": None, "type_vocab_size": None, "dim": 30, "n_heads": 3, "n_layers": 3,
    "hidden_dim": 41, "activation": "relu",
}  # fmt: skip
_MODERN = {
    "hidden_act": None, "hidden_activation": "gelu", "layer_norm_eps": None, "norm_eps": 0.01, "type_vocab_size": None,
    "num_hidden_layers": 5, "local_attention": 8, "classifier_activation": "silu",
    **dict.fromkeys(("bos_token_id", "eos_token_id", "cls_token_id", "sep_token_id"), 2),
}  # fmt: skip
_DEBERTA = {
    "type_vocab_size": 0, "relative_attention": True, "position_buckets": 8, "max_relative_positions": 20,
    "norm_rel_ebd": "layer_norm", "share_att_key": True, "pos_att_type": "p2c|c2p", "position_biased_input": False,
    "pooler_hidden_act": "silu",
}  # fmt: skip
_LLAMA = {
    "type_vocab_size": None, "layer_norm_eps": None, "rms_norm_eps": 0.01, "hidden_act": "silu", "head_dim": 14,
    "num_attention_heads": 6, "num_key_value_heads": 2,
    "rope_parameters": {"rope_type": "default", "rope_theta": 50.0},
    **dict.fromkeys(("bos_token_id", "eos_token_id"), 2),
}  # fmt: skip
_GEMMA = {
    "hidden_act": None, "hidden_activation": "gelu_pytorch_tanh", "use_bidirectional_attention": True,
    "sliding_window": 8, "query_pre_attn_scalar": 37,
    "layer_types": ["sliding_attention", "full_attention", "sliding_attention"],
}  # fmt: skip
_EURO = _LLAMA | {"head_dim": None, "num_attention_heads": 3, "num_key_value_heads": 1, "mask_token_id": 3}
_EURO_HEADS = "Model", "ForMaskedLM", "ForSequenceClassification", "ForTokenClassification"
_NEO = {
    "type_vocab_size": None, "hidden_act": None, "layer_norm_eps": None, "max_position_embeddings": None,
    "norm_eps": 0.01, "max_length": 27,
}  # fmt: skip
_JINA_NORMED = {
    "feed_forward_type": "geglu", "hidden_act": "gelu_new",
    "auto_map": {"AutoConfig": "jinaai/jina-bert-v2-qk-post-norm--configuration_bert.JinaBertConfig"},
}  # fmt: skip
_THETAS = {
    "full_attention": {"rope_type": "default", "rope_theta": 500.0},
    "sliding_attention": {"rope_type": "default", "rope_theta": 30.0},
}

FAMILIES: dict[str, Compared] = {
    "bert": Compared("Bert", {}, (*_ALL, "ForPreTraining", "ForNextSentencePrediction")),
    "bert, other activation": Compared("Bert", {"hidden_act": "gelu_new", "num_hidden_layers": 1}),
    "roberta": Compared("Roberta", _ROBERTA),
    "roberta, other activation": Compared("Roberta", _ROBERTA | {"hidden_act": "relu", "num_hidden_layers": 1}),
    "xlm-roberta": Compared("XLMRoberta", _ROBERTA | {"type_vocab_size": 1}),
    "camembert": Compared("Camembert", _ROBERTA | {"type_vocab_size": 1, "hidden_act": "silu"}),
    "distilbert": Compared("DistilBert", _DISTIL),
    "albert": Compared("Albert", {"embedding_size": 17, "num_hidden_groups": 1}, (*_ALL, "ForPreTraining")),
    "albert, two groups": Compared(
        "Albert", _CALM | {"embedding_size": 30, "num_hidden_layers": 4, "num_hidden_groups": 2}
    ),
    "electra": Compared("Electra", {"embedding_size": 17, "hidden_act": "relu"}, (*_ALL, "ForPreTraining")),
    "electra, as wide": Compared("Electra", {"embedding_size": 30}, (*_ALL, "ForPreTraining")),
    "mpnet": Compared("MPNet", {"type_vocab_size": None, "pad_token_id": 1, "max_position_embeddings": 50}),
    "mpnet, long": Compared(
        "MPNet", {"type_vocab_size": None, "pad_token_id": 1, "max_position_embeddings": 150}, ("Model",)
    ),
    "modernbert": Compared("ModernBert", _MODERN | {"rope_parameters": _THETAS}),
    "modernbert, mean, biases": Compared(
        "ModernBert",
        _MODERN
        | {"classifier_pooling": "mean", "decoder_bias": False}
        | dict.fromkeys(("attention_bias", "mlp_bias", "norm_bias", "classifier_bias"), True),
    ),
    "nomic": Compared(
        "NomicBert",
        _CALM | {"hidden_act": "silu", "rope_parameters": {"rope_type": "default", "rope_theta": 50.0}},
        ("Model", "ForMaskedLM", "ForSequenceClassification", "ForTokenClassification"),
    ),
    "nomic moe": Compared(
        "NomicMoe",
        {
            "initializer_range": 0.1, "theta": 50.0, "num_hidden_layers": 5, "num_experts": 5, "moe_top_k": 2,
            "moe_every_n_layers": 3, "hidden_dropout_prob": 0.1, "attention_probs_dropout_prob": 0.1,
        },
        ("Model", "ForMaskedLM", "ForTokenClassification"),
    ),
    "gte": Compared(
        "Gte",
        _CALM | {"rope_parameters": {"rope_type": "default", "rope_theta": 50.0}, "type_vocab_size": 2},
        ("Model", "ForMaskedLM", "ForSequenceClassification", "ForTokenClassification"),
    ),
    "gte, no segments": Compared("Gte", _CALM | {"type_vocab_size": 0, "hidden_act": "silu"}, ("Model", "ForMaskedLM")),
    "deberta-v3": Compared("DebertaV2", _DEBERTA),
    "deberta-v2": Compared(
        "DebertaV2",
        _DEBERTA
        | {
            "share_att_key": False, "conv_kernel_size": 3, "conv_groups": 2, "conv_act": "gelu", "embedding_size": 17,
            "position_biased_input": True, "type_vocab_size": 2,
        },
    ),
    "deberta-v2, no buckets": Compared(
        "DebertaV2", _DEBERTA | {"position_buckets": -1, "norm_rel_ebd": "none", "pos_att_type": "c2p"}
    ),
    "jina-v3": Compared(
        "JinaEmbeddingsV3",
        _CALM
        | {"rope_parameters": {"rope_type": "default", "rope_theta": 50.0}, "type_vocab_size": 1, "hidden_act": "silu"},
    ),
    "jina-reranker-v2": Compared(
        "JinaFlash",
        _ROBERTA | {"type_vocab_size": 1, "hidden_dropout_prob": 0.1, "attention_probs_dropout_prob": 0.1},
        ("Model", "ForSequenceClassification"),
    ),
    "eurobert": Compared("EuroBert", _CALM | _EURO, _EURO_HEADS),
    "eurobert, mean, biases": Compared(
        "EuroBert",
        _CALM | _EURO | {"classifier_pooling": "mean", "attention_bias": True, "mlp_bias": True, "hidden_act": "gelu"},
        _EURO_HEADS,
    ),
    "qwen3": Compared(
        "Qwen3", _LLAMA | {"attention_bias": True}, ("Model", "ForSequenceClassification", "ForTokenClassification")
    ),
    "qwen2": Compared(
        "Qwen2",
        _CALM | _LLAMA | {"head_dim": None, "num_attention_heads": 3, "num_key_value_heads": 1, "is_causal": False},
        ("Model", "ForSequenceClassification", "ForTokenClassification"),
    ),
    "gemma3": Compared(
        "Gemma3Text", _LLAMA | _GEMMA | {"rope_parameters": _THETAS}, ("Model", "ForSequenceClassification")
    ),
    "neobert": Compared("NeoBERT", _CALM | _NEO, ("Model", "ForMaskedLM", "ForSequenceClassification")),
    "jina-v2": Compared("JinaBert", _CALM | {"feed_forward_type": "geglu"}),
    "jina-v2, reglu": Compared(
        "JinaBert", {"feed_forward_type": "reglu", "num_hidden_layers": 1}, ("Model", "ForMaskedLM")
    ),
    "jina-v2, normed": Compared(
        "NormedJinaBert", _CALM | _JINA_NORMED,
        ("Model", "ForMaskedLM", "ForSequenceClassification", "ForTokenClassification"),
    ),
}  # fmt: skip


# The long ones reach the last bucket of distances: too large to be frozen.
FROZEN = {family: compared for family, compared in FAMILIES.items() if not family.endswith("long")}
# One head of each family, for tests that do not need them all; together they cover every head.
REPRESENTATIVES = {
    "bert": "ForPreTraining", "bert, other activation": "ForMaskedLM", "roberta": "ForSequenceClassification",
    "roberta, other activation": "ForQuestionAnswering", "xlm-roberta": "ForTokenClassification",
    "camembert": "ForMaskedLM", "distilbert": "ForSequenceClassification", "albert": "ForPreTraining",
    "albert, two groups": "ForMaskedLM", "electra": "ForPreTraining", "electra, as wide": "ForMaskedLM",
    "mpnet": "ForQuestionAnswering", "modernbert": "ForMaskedLM",
    "modernbert, mean, biases": "ForSequenceClassification", "nomic": "ForMaskedLM", "nomic moe": "ForMaskedLM",
    "gte": "ForTokenClassification",
    "gte, no segments": "Model", "deberta-v3": "ForMaskedLM", "deberta-v2": "ForSequenceClassification",
    "deberta-v2, no buckets": "Model", "eurobert": "ForMaskedLM",
    "eurobert, mean, biases": "ForSequenceClassification", "qwen3": "ForTokenClassification",
    "qwen2": "ForSequenceClassification",
    "gemma3": "ForSequenceClassification", "neobert": "ForMaskedLM", "jina-v2": "ForTokenClassification",
    "jina-v2, reglu": "Model", "jina-v2, normed": "ForSequenceClassification",
    "jina-v3": "ForMaskedLM", "jina-reranker-v2": "ForSequenceClassification",
}  # fmt: skip
# What is computed like another family, or differs from one in a value.
_VARIANTS = {family for family in FAMILIES if ", " in family} | {"xlm-roberta", "camembert", "deberta-v3", "qwen2"}


def walked(families: Iterable[str]) -> list[Any]:
    """Returns families as parameters of a test; variants of a family are slow."""
    return [pytest.param(name, marks=pytest.mark.slow if name in _VARIANTS else ()) for name in families]


def walked_slowly(parameters: Iterable[Any]) -> list[Any]:
    """Marks parameters as slow unless their first value is BERT, or ModernBERT, which has blocks."""
    sets = [parameter if hasattr(parameter, "values") else pytest.param(parameter) for parameter in parameters]
    return [
        parameter
        if parameter.values[0] in ("bert", "modernbert")
        else pytest.param(*parameter.values, marks=(*parameter.marks, pytest.mark.slow))
        for parameter in sets
    ]


def _marks(family: str, head: str) -> tuple[pytest.MarkDecorator, ...]:
    if REPRESENTATIVES[family] != head:
        return pytest.mark.slow, pytest.mark.sampled
    return (pytest.mark.slow,) if family in _VARIANTS else ()


FROZEN_CELLS = [
    pytest.param(family, head, marks=_marks(family, head))
    for family, compared in FROZEN.items()
    for head in compared.heads
]
CELLS = [(family, head) for family, compared in FAMILIES.items() for head in compared.heads]


def class_of(name: str) -> Any:
    pytest.importorskip("torch", reason="needs torch: pip install -r requirements-parity.txt")
    from tests.helpers import authors  # it imports torch

    return authors.class_of(name)


def make_config(compared: Compared, head: str) -> Any:
    labels = {} if head in ("ForQuestionAnswering", "ForPreTraining") else {"id2label": _LABELS}
    facts = compared.facts | labels | {"attn_implementation": "eager"}
    return class_of(f"{compared.classes}Config")(**facts)


def make_model(compared: Compared, head: str, seed: int = 20) -> Any:
    """Returns a random model of transformers.

    Biases of 0 and norms of 1 are changed, because a test would not notice if they were ignored.
    """
    torch = pytest.importorskip("torch", reason="needs torch: pip install -r requirements-parity.txt")

    torch.manual_seed(seed)
    model = class_of(compared.classes + head)(make_config(compared, head)).eval()
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if parameter.ndim == 1:
                parameter.add_(torch.randn_like(parameter) * 0.3)
            elif parameter.ndim == 2 and re.search(r"embed|relative_attention_bias|\bencoder\.weight", name):
                parameter.add_(torch.randn_like(parameter) * 0.2)  # the row of padding, too
    return model
