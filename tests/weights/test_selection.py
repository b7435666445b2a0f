"""Settings of an adapter next to its tensors, and the patterns in them."""

import json
import re
import shutil
import time
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings, strategies as st

import mlxbert
from mlxbert.errors import ConfigError
from mlxbert.goldens.golden_outputs import arrays
from mlxbert.machine.device import mx
from mlxbert.weights.adapters.module_selection import Selection
from mlxbert.weights.formats.config_json import ConfigJson
from tests.helpers.cases import together
from tests.helpers.frozen import write_tensors
from tests.helpers.tiny import CONFIG, save

LAYER = "base_model.model.bert.encoder.layer."
MAGNITUDE = "lora_magnitude_vector"


@pytest.fixture(scope="module")
def base(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("model")
    return mlxbert.save(mlxbert.new_model(CONFIG, save(folder / "vocabulary"), heads={"masked_lm": None}), folder / "m")


@pytest.fixture(scope="module")
def adapter(base: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("adapter")
    width = CONFIG["hidden_size"]
    places = [f"{LAYER}{layer}.attention.self.{name}" for layer in (0, 1) for name in ("query", "value")]
    tensors = {f"{place}.lora_A.weight": mx.ones((3, width)) for place in places}
    tensors |= {f"{place}.lora_B.weight": mx.ones((width, 3)) for place in places}
    mx.save_safetensors(str(folder / "adapter_model.safetensors"), tensors, {"format": "pt"})
    stated = {"peft_type": "LORA", "r": 3, "lora_alpha": 6, "use_dora": False, "fan_in_fan_out": False}
    stated |= {"base_model_name_or_path": str(base), "target_modules": ["query", "value"], "modules_to_save": None}
    (folder / "adapter_config.json").write_text(json.dumps(stated), encoding="utf-8")
    return folder


def _changed(adapter: Path, folder: Path, changes: dict[str, Any]) -> Path:
    shutil.copytree(adapter, folder)
    path = folder / "adapter_config.json"
    path.write_text(json.dumps({**json.loads(path.read_text(encoding="utf-8")), **changes}), encoding="utf-8")
    return folder


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"r": 4}, ("r is 4", "expected 3", "query.lora_A")),
        ({"r": None}, ("r is None", "expected 3")),
        ({"rank_pattern": {"0.attention.self.query": 5}}, ("rank_pattern.0.attention.self.query is 5", "expected 3")),
        ({"target_modules": ["query"]}, ("target_modules is ['query']", "value")),
        ({"target_modules": ["query", "value", "key"]}, ("target_modules", "key")),
        ({"target_modules": r".*layer\.0.*(query|value)"}, ("target_modules", "layer.1")),
        *(({"target_modules": value}, ("target_modules",)) for value in (None, ".*nothing")),
        ({"target_modules": ".*query", "layers_to_transform": [0]}, ("layers_to_transform",)),
        *(
            ({"exclude_modules": value}, ("exclude_modules", named))
            for value, named in (
                (["layer.1.attention.self.query"], "layer.1.attention.self.query"),
                (".*value", "value"),
            )
        ),
        ({"modules_to_save": ["attention"]}, ("modules_to_save", "attention")),
        *(
            ({"layers_to_transform": layers}, (f"layers_to_transform is {layers!r}", named))
            for layers, named in (([0], "layer.1"), (1, "layer.0"), ("0", ""))
        ),
        ({"layers_to_transform": [0, 1], "layers_pattern": "blocks"}, ("layers_to_transform", "layer.0")),
        ({"use_dora": True}, ("use_dora is True", MAGNITUDE)),
        ({"fan_in_fan_out": True}, ("fan_in_fan_out is True",)),
    ],
)
def test_settings_that_contradict_the_tensors_are_refused_with_both(
    base: Path, adapter: Path, tmp_path: Path, changes: dict[str, Any], said: tuple[str, ...]
) -> None:
    with pytest.raises(ConfigError) as caught:
        mlxbert.load(base, adapter=_changed(adapter, tmp_path / "changed", changes))
    assert all(fact in caught.value.message for fact in said)


@pytest.mark.parametrize(
    ("name", "shape", "said", "hint"),
    [
        (f"{LAYER}0.attention.self.query.{MAGNITUDE}", (24,), r"use_dora is False.*lora_magnitude_vector", ""),
        (
            "base_model.model.bert.embeddings.word_embeddings.weight",
            (CONFIG["vocab_size"] + 2, 24),
            rf"{CONFIG['vocab_size'] + 2} tokens.*has {CONFIG['vocab_size']}",
            "resize_token_embeddings",
        ),
    ],
)
def test_magnitudes_without_dora_and_added_tokens_are_refused(
    name: str, shape: tuple[int, ...], said: str, hint: str, base: Path, adapter: Path, tmp_path: Path
) -> None:
    folder = _changed(adapter, tmp_path / "changed", {})
    write_tensors(folder, arrays(folder / "adapter_model.safetensors") | {name: mx.ones(shape)})
    (folder / "model.safetensors").rename(folder / "adapter_model.safetensors")
    with pytest.raises(mlxbert.MlxbertError, match=said) as caught:
        mlxbert.load(base, adapter=folder)
    assert hint in str(caught.value.hint)


@pytest.mark.parametrize(
    "changes",
    [
        {"target_modules": ["query", "value"]},
        {"target_modules": r".*\.layer\.[01]\.attention\.self\.(query|value)"},
        {"target_modules": r"^bert.encoder.layer.\d+.attention.self.(?:query|value)$"},
        {"target_modules": ["query", "value"], "layers_to_transform": [0, 1], "layers_pattern": ["blocks", "layer"]},
        {"target_modules": ["query", "value", "key"], "exclude_modules": r".*\.key"},
        {"r": 8, "rank_pattern": {"query": 3, "^bert.encoder.layer.0.attention.self.value": 3, r"1.*\.value": 3}},
    ],
)
def test_settings_that_say_the_same_in_other_words_are_used(
    base: Path, adapter: Path, tmp_path: Path, changes: dict[str, Any]
) -> None:
    assert mlxbert.load(base, adapter=_changed(adapter, tmp_path / "changed", changes))


# What a fragment of a pattern can be; names are of two letters and dots, so that many fit.
_FRAGMENTS = st.sampled_from(
    ["a", "b", r"\.", ".", "[ab]", "[^a]", r"\w", "^", "$", "(a|b)", "(?:ab|b.)?", "(a(b|a)?)"]
)
_PATTERNS = st.lists(st.tuples(_FRAGMENTS, st.sampled_from(["", "*", "+", "?", "*?"])), max_size=6).map(
    lambda parts: "".join(f + ("" if f[0] in "(^$" or f == "$" else quantifier) for f, quantifier in parts)
)


@settings(max_examples=50, deadline=None)
@given(_PATTERNS, st.text("ab.", max_size=8))
def test_patterns_match_as_regular_expressions_do(pattern: str, name: str) -> None:
    target = Selection(_settings(target_modules=pattern or "a"))
    assert (target.left_out_by(name) is None) == bool(re.fullmatch(pattern or "a", name))
    alpha = Selection(_settings(target_modules="a", alpha_pattern={pattern: 1.0}))
    assert (alpha.stated("lora_alpha", name)[1] == pattern) == bool(re.match(rf"(.*\.)?({pattern})$", name))


def _settings(**values: Any) -> ConfigJson:
    return ConfigJson(Path("adapter_config.json"), values)


@together("key", ["target_modules", "exclude_modules", "layers_pattern", "rank_pattern", "alpha_pattern"])
@together(
    "pattern",
    [
        *("(a+)+b", "(a|aa)*b", "(", "a)", "a{2}", r"(a)\1", "(?=a)", "[", "[z-a]", "\\", "(" * 3000, "*" * 501),
        "a" * 20_001,
    ],
)
def test_other_patterns_are_refused(key: str, pattern: str) -> None:
    value: Any = {pattern: 1} if key in ("rank_pattern", "alpha_pattern") else pattern
    with pytest.raises(ConfigError, match="adapter_config"):
        Selection(_settings(**{"target_modules": "a"} | {key: value}))


def test_patterns_take_no_time() -> None:
    name = "a" * 60 + "." + "a" * 60
    start = time.perf_counter()
    for pattern in ("a*" * 60 + "b", "(a?a?a?a?a?)?" * 60 + "b", ".*a.*a.*a.*a.*a.*a.*a.*a.*b"):
        assert Selection(_settings(target_modules=pattern)).left_out_by(name) == "target_modules"
    assert time.perf_counter() - start < 1
