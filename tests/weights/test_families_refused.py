"""Configurations that are refused: look-alikes of the families, and values of every wrong kind."""

from pathlib import Path
from typing import Any

import pytest

from mlxbert.config import EncoderConfig
from mlxbert.errors import ConfigError
from mlxbert.weights.families.registry import FAMILIES, family_of
from mlxbert.weights.formats.config_json import ConfigJson
from tests.helpers.cases import together
from tests.helpers.families import FROZEN, walked_slowly
from tests.helpers.frozen import read_config, write_model

FILE = Path("some/model/config.json")
VAST = 10**400  # JSON may hold it, a float may not


@pytest.fixture(scope="module")
def written(tmp_path_factory: pytest.TempPathFactory) -> dict[str, dict[str, Any]]:
    """What transformers wrote for each family."""
    folder = tmp_path_factory.mktemp("written")
    found = {family: read_config(write_model(family, "Model", folder / family)) for family in FROZEN}
    new = {key: value for key, value in found["gte"].items() if key != "rope_parameters"}
    return found | {"new": new | {"model_type": "new", "rope_theta": 50.0}}


def parse(values: dict[str, Any]) -> EncoderConfig:
    """The facts of a configuration."""
    config = ConfigJson(FILE, values)
    return family_of(config)[1].read_config(config)


def assert_refused(values: dict[str, Any], said: str) -> None:
    """A ConfigError that names the file and says `said`."""
    with pytest.raises(ConfigError) as caught:
        parse(values)
    assert str(caught.value).startswith(f"{FILE}: ") and said in str(caught.value)


@pytest.mark.parametrize(
    "name",
    [
        *(
            *("ernie", "ernie_m", "megatron-bert", "roberta-prelayernorm", "xlm-roberta-xl", "nezha", "roformer"),
            "deberta",
        ),
        *("convbert", "rembert", "mobilebert", "squeezebert", "ibert"),
    ],
)
def test_families_that_look_like_ours_are_refused_with_the_difference(name: str) -> None:
    with pytest.raises(ConfigError, match=rf"config\.json: model_type is '{name}' \(.{{10,}}\)") as caught:
        parse({"model_type": name})
    assert caught.value.hint is not None and all(family in caught.value.hint for family in FAMILIES)


LOOK_ALIKES: list[tuple[str, dict[str, Any]]] = [
    ("bert", {"use_task_id": True}),
    ("bert", {"is_decoder": True}),
    ("bert", {"position_embedding_type": "rotary"}),
    *(("xlm-roberta", {"position_embedding_type": kind}) for kind in ("alibi", "rotary")),
    ("bert", {"feed_forward_type": None, "position_embedding_type": "alibi"}),
    ("jina-v2", {"feed_forward_type": "original"}),
    ("jina-v2", {"feed_forward_type": "swiglu"}),
    *(
        ("neobert", change)
        for change in (
            *({"ngpt": True}, {"rms_norm": False}, {"rope": False}, {"hidden_act": "gelu"}, {"rope_theta": 160_000.0}),
            *(
                {"encoder_init_range": 0.02},
                {"expert_sizes": "0,1536,3072"},
                {"head_dim": 8},
                {"num_attention_heads": 2},
            ),
            *({"rope_scaling": {"factor": 2.0}}, {"num_key_value_heads": 1}),
        )
    ),
    *(
        (family, {"position_embedding_type": "relative_key"})
        for family in ("roberta", "albert", "electra", "camembert")
    ),
    ("distilbert", {"position_embedding_type": "relative_key_query"}),
    ("albert", {"inner_group_num": 2}),
    ("mpnet", {"relative_attention_num_buckets": 64}),
    ("modernbert", {"rope_scaling": {"rope_type": "yarn", "factor": 2.0}}),
    ("modernbert", {"is_decoder": True}),
    ("nomic", {"num_experts": 8}),
    ("nomic", {"moe_every_n_layers": 2}),
    *(("nomic", {key: True}) for key in ("prenorm", "parallel_block", "use_rms_norm", "causal")),
    *(("nomic", {key: True}) for key in ("qkv_proj_bias", "mlp_fc1_bias", "mlp_fc2_bias", "rotary_emb_interleaved")),
    ("nomic", {"rotary_emb_fraction": 0.5}),
    ("nomic", {"rotary_emb_fraction": 0.0}),
    ("nomic", {"rotary_emb_scale_base": 512}),
    ("nomic", {"rotary_scaling_factor": 0.5}),
    *(
        ("nomic moe", {key: 1})
        for key in ("moe_normalize_expert_weights", "expert_choice_router", "num_shared_experts")
    ),
    *(("nomic moe", change) for change in ({"num_experts": 1}, {"moe_top_k": 6}, {"moe_top_k": None}, {"moe_x": 1})),
    *(("nomic moe", {"activation_function": name}) for name in ("swiglu", "gelu_new")),
    ("nomic moe", {"moe_resid_pdrop": 0.1}),
    *(("nomic", change) for change in ({"rotary_head_dim": True}, {"register_tokens": 4})),
    ("nomic", {"rope_scaling": {"rope_type": "linear", "factor": 2.0}}),
    ("nomic", {"head_dim": 8}),
    ("gte", {"head_dim": 8}),
    ("gte", {"rope_scaling": {"type": "ntk", "factor": 2.0}, "rope_parameters": {"rope_theta": 3.0}}),
    ("new", {"rope_scaling": {"type": "ntk", "factor": 2.0, "mixed_b": 0.6}}),
    ("new", {"rope_scaling": {"rope_type": "yarn", "factor": 2.0}}),
    ("new", {"layer_norm_type": "rms_norm"}),
    ("new", {"position_embedding_type": "absolute"}),
    ("new", {"pack_qkv": False}),
    ("new", {"logn_attention_scale": True}),
    ("new", {"logn_attention_clip1": True}),
    ("deberta-v3", {"relative_attention": False}),
    ("deberta-v3", {"attention_head_size": 12}),
    ("deberta-v3", {"pooler_hidden_size": 12}),
    ("deberta-v3", {"pos_att_type": "c2p|p2p"}),
    ("deberta-v3", {"norm_rel_ebd": "batch_norm"}),
    *((family, {"pruned_heads": {"0": [1]}}) for family in FROZEN),
]


@together(("family", "changes"), LOOK_ALIKES)
def test_variants_that_are_not_computed_are_refused_by_name(
    family: str, changes: dict[str, Any], written: dict[str, dict[str, Any]]
) -> None:
    assert_refused(written[family] | changes, next(iter(changes)).removesuffix("_parameters"))


HOSTILE: list[tuple[str, str, Any, str]] = [
    *(("bert", "model_type", value, f"model_type is {value!r}") for value in ("gpt2", "BERT", ["bert"])),
    *(("bert", "hidden_act", value, f"is {value!r}") for value in ("gelu_accurate", "GELU", {"name": "gelu"})),
    ("bert", "position_embedding_type", ["absolute"], "absolute"),
    ("bert", "is_decoder", "no", "is_decoder is 'no'"),
    ("bert", "add_cross_attention", True, "add_cross_attention is True"),
    *(("bert", "num_attention_heads", value, f"num_attention_heads is {value}") for value in (7, 60)),
    *(
        ("bert", "layer_norm_eps", value, f"layer_norm_eps is {value!r}")
        for value in ("1e-12", -1e-5, float("nan"), float("inf"), True, 0.0)
    ),
    *(("bert", "hidden_dropout_prob", value, f"hidden_dropout_prob is {value}") for value in (1.5, 1.0)),
    *(("bert", "attention_probs_dropout_prob", value, f"dropout_prob is {value}") for value in (1, -0.1)),
    *(("bert", "pad_token_id", value, f"pad_token_id is {value}") for value in (10**6, -1)),
    *(("bert", "num_hidden_layers", value, f"num_hidden_layers is {value}") for value in (10**9, 10**6)),
    *(("bert", key, value, f"{key} is {value}") for key, value in (("hidden_size", 3 * 2**40), ("vocab_size", 2**31))),
    ("bert", "type_vocab_size", 0, "type_vocab_size is 0"),
    ("bert", "problem_type", ["regression"], "problem_type"),
    ("bert", "problem_type", "ranking", "problem_type"),
    ("roberta", "max_position_embeddings", 8, "max_position_embeddings"),
    ("roberta", "max_position_embeddings", VAST, "max_position_embeddings"),
    ("distilbert", "dim", 0, "dim"),
    ("distilbert", "n_heads", 7, "n_heads"),
    ("albert", "embedding_size", "x", "embedding_size"),
    ("albert", "num_hidden_groups", 0, "num_hidden_groups"),
    ("albert", "num_hidden_groups", 4, "num_hidden_groups"),
    ("electra", "embedding_size", [17], "embedding_size"),
    ("mpnet", "relative_attention_num_buckets", "32", "relative_attention_num_buckets"),
    ("mpnet", "max_position_embeddings", 2, "max_position_embeddings"),
    ("modernbert", "layer_types", ["full_attention"], "layer_types"),
    ("modernbert", "layer_types", ["full_attention"] * 4 + ["linear_attention"], "layer_types"),
    ("modernbert", "layer_types", "full_attention", "layer_types"),
    ("modernbert", "rope_parameters", {"rope_theta": 5.0}, "rope_parameters"),
    ("modernbert", "rope_parameters", {"full_attention": []}, "rope_parameters.full_attention"),
    ("modernbert", "rope_parameters", {"full_attention": {"rope_theta": VAST}}, "full_attention.rope_theta"),
    ("modernbert", "rope_parameters", {"sliding_attention": {"rope_type": ["x"]}}, "sliding_attention.rope_type"),
    ("modernbert", "local_attention", 0, "local_attention"),
    ("modernbert", "global_attn_every_n_layers", 0, "global_attn_every_n_layers"),
    ("modernbert", "global_rope_theta", VAST, "global_rope_theta"),
    ("modernbert", "sliding_window", 9, "sliding_window"),
    ("modernbert", "classifier_pooling", ["cls"], "classifier_pooling"),
    ("modernbert", "decoder_bias", "yes", "decoder_bias"),
    ("modernbert", "num_attention_heads", 2, "num_attention_heads"),
    ("nomic", "activation_function", "glu", "activation_function"),
    ("nomic", "rope_theta", -10, "rope_theta"),
    ("nomic", "rope_parameters", {"rope_theta": VAST}, "rope_parameters.rope_theta"),
    ("nomic", "rope_parameters", {"type": "linear"}, "rope_parameters.type"),
    ("nomic", "num_attention_heads", 10, "num_attention_heads"),
    ("neobert", "max_length", 0, "max_length"),
    ("neobert", "norm_eps", 0, "norm_eps"),
    ("neobert", "intermediate_size", "3072", "intermediate_size"),
    ("neobert", "decoder_init_range", -1, "decoder_init_range"),
    ("neobert", "classifier_dropout", 1.5, "classifier_dropout"),
    ("jina-v2", "feed_forward_type", ["geglu"], "feed_forward_type"),
    ("jina-v2", "max_position_embeddings", 0, "max_position_embeddings"),
    ("jina-v2", "num_attention_heads", 7, "num_attention_heads"),
    ("gte", "rope_parameters", {"rope_theta": float("nan")}, "rope_parameters.rope_theta"),
    ("new", "rope_scaling", {"type": "ntk", "factor": VAST}, "rope_scaling.factor"),
    ("new", "rope_scaling", {"type": "ntk", "factor": 0.5}, "rope_scaling.factor"),
    ("new", "rope_scaling", {"type": "ntk"}, "rope_scaling.factor is missing"),
    ("new", "rope_scaling", {"type": ["ntk"], "factor": 2.0}, "rope_scaling.type"),
    ("new", "num_attention_heads", 60, "num_attention_heads"),
    ("new", "type_vocab_size", -1, "type_vocab_size"),
    ("deberta-v3", "pos_att_type", 5, "pos_att_type"),
    ("deberta-v3", "pos_att_type", ["c2p", None], "pos_att_type"),
    ("deberta-v3", "position_buckets", 3, "position_buckets"),
    ("deberta-v3", "position_buckets", 40, "position_buckets"),
    ("deberta-v3", "max_relative_positions", "20", "max_relative_positions"),
    ("deberta-v2, no buckets", "max_relative_positions", 2**30, "max_relative_positions"),
    ("deberta-v2, no buckets", "max_position_embeddings", 2**30, "max_position_embeddings"),
    ("deberta-v3", "share_att_key", "true", "share_att_key"),
    ("deberta-v2", "conv_groups", 0, "conv_groups"),
    ("deberta-v2", "conv_groups", 4, "conv_groups"),
    ("deberta-v2", "conv_kernel_size", 4, "conv_kernel_size"),
    ("deberta-v2", "conv_act", ["gelu"], "conv_act"),
    ("deberta-v2", "embedding_size", True, "embedding_size"),
    ("deberta-v2", "pooler_hidden_act", "x", "pooler_hidden_act"),
    ("qwen3", "auto_map", {"AutoModel": "modeling.Bidirectional"}, "is_causal"),
    ("qwen3", "rope_parameters", {"full_attention": {"rope_type": "yarn", "factor": 4}}, "rope_parameters"),
    ("qwen3", "rope_scaling", {"rope_type": "yarn", "factor": 4}, "rope_scaling"),
    ("qwen3", "layer_types", ["full_attention", "sliding_attention"], "layer_types"),
    ("qwen3", "num_key_value_heads", 4, "num_key_value_heads"),
    ("gemma3", "rope_parameters", {"rope_type": "linear", "factor": 8.0}, "rope_parameters"),
    ("gemma3", "rope_parameters", {"full_attention": {"rope_type": "linear", "factor": 8.0}}, "rope_type"),
    ("gemma3", "layer_types", ["full_attention"], "layer_types"),
    ("jina-v3", "rope_scaling", {"rope_type": "linear", "factor": 4}, "rope_scaling"),
    ("jina-v3", "rotary_emb_interleaved", True, "rotary_emb_interleaved"),
    ("jina-v3", "rotary_emb_scale_base", 512, "rotary_emb_scale_base"),
]


@together(("family", "key", "value", "said"), HOSTILE)
def test_hostile_values_are_refused_by_name(
    family: str, key: str, value: Any, said: str, written: dict[str, dict[str, Any]]
) -> None:
    assert_refused(written[family] | {key: value}, said)


@pytest.mark.parametrize("family", walked_slowly([*FROZEN, "new"]))
def test_no_value_of_any_key_raises_anything_else(family: str, written: dict[str, dict[str, Any]]) -> None:
    """Every key that any family knows, with values of every kind: read, or refused with a ConfigError."""
    keys = {key for values in written.values() for key in values} | {key for _, key, *_ in HOSTILE}
    keys |= {key for _, changes in LOOK_ALIKES for key in changes}
    numbers: tuple[Any, ...] = (0, 1, -1, 1.5, VAST, -VAST, float("inf"), float("nan"))
    kinds: tuple[Any, ...] = (*numbers, True, None, "", "x", [], [5], [[]], [None], {}, {"x": 1})
    refused = 0
    for key in keys:
        for value in kinds:
            try:
                parse(written[family] | {key: value})
            except ConfigError as problem:
                refused += 1
                assert str(problem).startswith(f"{FILE}: ")
    assert refused > 100


def test_more_heads_than_the_model_is_wide_are_refused_before_anything_is_divided(
    written: dict[str, dict[str, Any]],
) -> None:
    scaled = {"rope_scaling": {"type": "ntk", "factor": 2.0}, "num_attention_heads": 60}
    assert_refused(written["new"] | scaled, "num_attention_heads is 60, expected a divisor of the hidden size (30)")
