"""What configurations of language models say, and what is refused rather than computed in another way."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from mlxbert.errors import ConfigError
from mlxbert.goldens.golden_outputs import load_network
from mlxbert.machine import device
from mlxbert.machine.device import mx
from mlxbert.weights.families.registry import read_architecture
from mlxbert.weights.formats.config_json import ConfigJson
from mlxbert.weights.sentence_transformers import read_embedder
from tests.helpers.families import FROZEN
from tests.helpers.frozen import change_config, write_model
from tests.helpers.st_folder import write_json

QWEN: dict[str, Any] = {
    "model_type": "qwen3", "vocab_size": 43, "hidden_size": 24, "num_hidden_layers": 2, "num_attention_heads": 4,
    "num_key_value_heads": 2, "head_dim": 10, "intermediate_size": 41, "max_position_embeddings": 64,
}  # fmt: skip
GEMMA = QWEN | {"model_type": "gemma3_text", "use_bidirectional_attention": True, "sliding_window": 8}
JINA: dict[str, Any] = {
    "model_type": "jina_embeddings_v3", "vocab_size": 43, "hidden_size": 24, "num_hidden_layers": 2,
    "num_attention_heads": 4, "intermediate_size": 41, "max_position_embeddings": 64,
}  # fmt: skip
_YARN = {"full_attention": {"rope_type": "yarn", "factor": 4}}


@pytest.mark.parametrize(
    ("config", "key"),
    [
        (QWEN | {"auto_map": {"AutoModel": "modeling.Bidirectional"}}, "is_causal"),
        (QWEN | {"rope_parameters": _YARN}, "rope_parameters"),
        (QWEN | {"rope_scaling": {"rope_type": "yarn", "factor": 4}}, "rope_scaling"),
        (QWEN | {"layer_types": ["full_attention", "sliding_attention"]}, "layer_types"),
        (QWEN | {"num_key_value_heads": 3}, "num_key_value_heads"),
        (GEMMA | {"rope_parameters": {"rope_type": "linear", "factor": 8.0}}, "rope_parameters"),
        (GEMMA | {"rope_parameters": {"full_attention": {"rope_type": "linear", "factor": 8.0}}}, "rope_type"),
        (GEMMA | {"layer_types": ["full_attention"]}, "layer_types"),
        (JINA | {"rope_scaling": {"rope_type": "linear", "factor": 4}}, "rope_scaling"),
        (JINA | {"rotary_emb_interleaved": True}, "rotary_emb_interleaved"),
        (JINA | {"rotary_emb_scale_base": 512}, "rotary_emb_scale_base"),
    ],
)
def test_what_would_be_computed_in_another_way_is_refused(config: dict[str, Any], key: str) -> None:
    with pytest.raises(ConfigError, match=key):
        read_architecture(ConfigJson(Path("config.json"), config))


def test_the_base_of_the_angles_is_read_where_transformers_reads_it() -> None:
    positions: Any = read_architecture(ConfigJson(Path("config.json"), JINA | {"rope_theta": 500})).config.positions
    assert {rotation.theta for rotation in positions.rotations} == {500}


def test_a_classifier_does_not_pool_the_token_that_pads_not_even_within_a_text(tmp_path: Path) -> None:
    network = load_network(write_model("qwen3", "ForTokenClassification", tmp_path))
    pad = FROZEN["qwen3"].facts["pad_token_id"]
    facts = network.encoder.config.heads["sequence_classifier"]
    assert facts.skipped == pad  # type: ignore[attr-defined]
    gemma = load_network(write_model("gemma3", "ForSequenceClassification", tmp_path / "gemma"))
    whole = gemma(mx.array([[3, 9, 5, pad]]))
    head: Any = gemma.heads["sequence_classifier"]
    wanted = head.out(whole.last_hidden_state[:, 2])
    assert np.abs(np.array(gemma.logits("sequence_classifier", whole)) - np.array(wanted)).max() < 1e-6


@pytest.mark.parametrize(
    ("changes", "pooling"),
    [
        ({"architectures": ["Qwen3ForCausalLM"]}, "last_token"),
        ({"architectures": ["Qwen3ForCausalLM"], "is_causal": False}, "mean"),
        ({"model_type": "neobert"}, "cls"),
        ({"model_type": "eurobert"}, "mean"),
        ({"architectures": ["Qwen3Model"]}, "mean"),
    ],
)
def test_without_modules_a_model_is_pooled_as_its_family_is(
    changes: dict[str, Any], pooling: str, tmp_path: Path
) -> None:
    write_json(tmp_path / "config.json", QWEN | changes)
    embedder = read_embedder(tmp_path, 24)
    assert embedder.config.poolings == (pooling,) and not embedder.config.stated


def test_models_whose_values_float16_cannot_hold_have_another_dtype(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(device, "on_gpu", lambda: True)
    monkeypatch.setattr(mx.metal, "is_available", lambda: True)
    assert device.choose_dtype() == mx.float16
    assert device.choose_dtype(wide_range=True) == mx.bfloat16
    assert device.choose_dtype("float16", wide_range=True) == mx.float16


@pytest.mark.parametrize("family", ["gemma3", "qwen3"])
def test_these_families_are_such_models(family: str, tmp_path: Path) -> None:
    assert load_network(write_model(family, "Model", tmp_path)).encoder.config.wide_range


def test_qwen2_and_jina_v5_are_such_models_and_eurobert_is_not(tmp_path: Path) -> None:
    qwen = {key: value for key, value in QWEN.items() if key != "head_dim"} | {"model_type": "qwen2"}
    for config in (qwen, QWEN | {"model_type": "jina_embeddings_v5", "use_sliding_window": False}):
        assert read_architecture(ConfigJson(Path("config.json"), config)).config.wide_range
    assert not load_network(write_model("eurobert", "Model", tmp_path / "eurobert")).encoder.config.wide_range


def test_the_window_of_older_files_is_half_and_one(tmp_path: Path) -> None:
    folder = write_model("gemma3", "Model", tmp_path)
    windows = []
    for stated in (8, 5):
        change_config(folder, sliding_window=stated)
        positions: Any = load_network(folder).encoder.config.positions
        windows.append({rotation.window for rotation in positions.rotations})
    assert windows == [{4, None}, {4, None}]


def test_gemma_has_two_bases_in_older_files() -> None:
    older = GEMMA | {"rope_theta": 7, "rope_local_base_freq": 5, "sliding_window_pattern": 2}
    positions: Any = read_architecture(ConfigJson(Path("config.json"), older)).config.positions
    assert [(rotation.theta, rotation.window) for rotation in positions.rotations] == [(5, 4), (7, None)]
