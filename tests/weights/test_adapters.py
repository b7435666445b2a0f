"""Adapters: settings next to tensors and the patterns in them; those of jina-embeddings-v5, which each vector needs."""

import json
import re
import shutil
import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings, strategies as st

import mlxbert
from mlxbert.errors import ConfigError, MlxbertError
from mlxbert.goldens.golden_outputs import arrays
from mlxbert.machine.device import mx
from mlxbert.weights.adapters.module_selection import Selection
from mlxbert.weights.formats.config_json import ConfigJson
from mlxbert.weights.hub.needed_files import needed_files
from tests.helpers.cases import together
from tests.helpers.frozen import add_vocabulary, change_config, read_config, tensors_in, write_model, write_tensors
from tests.helpers.rooms import needs
from tests.helpers.st_folder import write_json
from tests.helpers.tiny import CONFIG, save

LAYER = "base_model.model.bert.encoder.layer."
MAGNITUDE = "lora_magnitude_vector"


@pytest.fixture(scope="module")
def base(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("model")
    return mlxbert.save(mlxbert.new_model(CONFIG, save(folder / "vocabulary"), heads={"masked_lm": None}), folder / "m")


@pytest.fixture(scope="module")
def adapter(base: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder, width = tmp_path_factory.mktemp("adapter"), CONFIG["hidden_size"]
    places = [f"{LAYER}{layer}.attention.self.{name}" for layer in (0, 1) for name in ("query", "value")]
    tensors = {f"{place}.lora_A.weight": mx.ones((3, width)) for place in places}
    tensors |= {f"{place}.lora_B.weight": mx.ones((width, 3)) for place in places}
    mx.save_safetensors(str(folder / "adapter_model.safetensors"), tensors, {"format": "pt"})
    stated = {"peft_type": "LORA", "r": 3, "lora_alpha": 6, "use_dora": False, "fan_in_fan_out": False}
    stated |= {"base_model_name_or_path": str(base), "target_modules": ["query", "value"], "modules_to_save": None}
    write_json(folder / "adapter_config.json", stated)
    return folder


def _changed(adapter: Path, folder: Path, changes: dict[str, Any]) -> Path:
    path = shutil.copytree(adapter, folder) / "adapter_config.json"
    write_json(path, json.loads(path.read_text(encoding="utf-8")) | changes)
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


TASKS = ["retrieval", "text-matching", "clustering", "classification"]
PROMPTS = {"query": "cat ", "document": "dog "}
TEXTS = ["a cat", "the dog plays in paris", "milk"]
RANK, ALPHA = 3, 6
MERGED = {"eurobert": "EuroBertModel", "qwen3": "Qwen3Model"}
OF_QWEN = {"use_sliding_window": False, "max_window_layers": 2}
CODE = {"AutoConfig": "configuration_jina_embeddings_v5.JinaEmbeddingsV5Config"}


def _write_adapter(folder: Path, matrices: dict[str, mx.array], seed: int) -> None:
    """A and B of an adapter, for each matrix."""
    folder.mkdir(parents=True)
    settings = {
        "peft_type": "LORA", "task_type": "FEATURE_EXTRACTION", "r": RANK, "lora_alpha": ALPHA, "bias": "none",
        "init_lora_weights": "gaussian", "base_model_name_or_path": "jinaai/jina-embeddings-v5-text-nano",
        "target_modules": ["gate_proj", "v_proj", "q_proj", "down_proj", "o_proj", "k_proj", "up_proj"],
        "corda_config": None, "eva_config": None, "loftq_config": {}, "trainable_token_indices": None,
    }  # fmt: skip
    write_json(folder / "adapter_config.json", settings)
    stored = {}
    for place, (name, matrix) in enumerate(matrices.items()):
        (rows, columns), keys = matrix.shape, mx.random.split(mx.random.key(seed + place))
        for letter, shape, key in zip("AB", ((RANK, columns), (rows, RANK)), keys, strict=True):
            stored[f"base_model.model.{name}.lora_{letter}.weight"] = mx.random.normal(shape, key=key)
    mx.save_safetensors(str(folder / "adapter_model.safetensors"), stored)


@pytest.fixture(scope="module", params=MERGED)  # on a EuroBERT or a Qwen3, in folders of their own
def family(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture(scope="module")
def folder(family: str, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A model as its authors publish it."""
    folder = add_vocabulary(write_model(family, "Model", tmp_path_factory.mktemp("jina") / "jina"))
    own = {"model_type": "jina_embeddings_v5", "architectures": ["JinaEmbeddingsV5Model"], "task_names": TASKS}
    change_config(folder, **own, auto_map=CODE, **(OF_QWEN if family == "qwen3" else {}))
    module = {"idx": 0, "name": "transformer", "path": "", "type": "custom_st.Transformer"}
    write_json(folder / "modules.json", [module | {"kwargs": ["task", "truncate_dim"]}])
    named = {"prompts": PROMPTS, "default_prompt_name": "document", "similarity_fn_name": "cosine"}
    write_json(folder / "config_sentence_transformers.json", named)
    matrices = {
        name.removesuffix(".weight").removeprefix("model."): array
        for name, array in tensors_in(folder).items()
        if name.endswith("_proj.weight")
    }
    for number, task in enumerate(TASKS):
        _write_adapter(folder / "adapters" / task, matrices, 100 * number)
    return folder


def test_an_adapter_gives_the_vectors_of_the_merged_model(family: str, folder: Path, tmp_path: Path) -> None:
    """Merged by hand, as its authors publish merged models; adapters differ."""
    add_vocabulary(write_model(family, "Model", tmp_path))
    seen = []
    for task in TASKS[:2]:
        stored, tensors = arrays(folder / "adapters" / task / "adapter_model.safetensors"), tensors_in(folder)
        for name in tensors:
            stem = f"base_model.model.{name.removesuffix('.weight').removeprefix('model.')}.lora_"
            if f"{stem}A.weight" in stored:
                update = stored[f"{stem}B.weight"] @ stored[f"{stem}A.weight"]
                tensors[name] = tensors[name] + ALPHA / RANK * update
        merged = mlxbert.load(write_tensors(tmp_path, tensors), dtype="float32")
        model = mlxbert.load(folder, adapter=task, dtype="float32", task="embed")
        assert model.config.positions == merged.config.positions
        given: list[tuple[dict[str, Any], str]] = [
            ({}, "dog "), ({"kind": "query"}, "cat "), ({"prompt_name": "query"}, "cat "),
        ]  # fmt: skip
        for options, prompt in given:
            found = np.asarray(mlxbert.embed(model, TEXTS, **options))
            texts = [prompt + text for text in TEXTS]
            wanted = np.asarray(mlxbert.embed(merged, texts, pooling="last_token", normalize=True))
            assert np.abs(found - wanted).max() < 2e-5, options
        seen.append(found)
    assert np.abs(seen[0] - seen[1]).max() > 1e-2


def test_without_an_adapter_there_are_no_vectors(folder: Path) -> None:
    with pytest.raises(ConfigError) as problem:
        mlxbert.load(folder, task="embed")
    assert all(task in problem.value.message for task in TASKS) and TASKS[0] in str(problem.value.hint)
    with pytest.raises(ConfigError, match=TASKS[1]):
        mlxbert.embed(mlxbert.load(folder), TEXTS)
    found = mlxbert.inspect(folder)
    assert found.adapters == (*TASKS,) and found.family == "jina_embeddings_v5"
    with pytest.raises(MlxbertError, match="separation"):
        mlxbert.load(folder, adapter="separation", offline=True)


@needs("export")
def test_what_is_written_is_a_plain_model_with_the_same_vectors(family: str, folder: Path, tmp_path: Path) -> None:
    model = mlxbert.load(folder, adapter="clustering", dtype="float32")
    assert mlxbert.convert(folder, tmp_path / "converted", adapter="clustering").difference.agree
    for target in (tmp_path / "converted", mlxbert.save(model, tmp_path / "saved")):
        config = read_config(target)
        assert (config["model_type"], config["architectures"]) == (family, [MERGED[family]])
        assert not {"auto_map", "task_names"} & config.keys() and not (target / "adapters").exists()
        modules = [module["type"].rpartition(".")[2] for module in json.loads((target / "modules.json").read_text())]
        assert modules == ["Transformer", "Pooling", "Normalize"]
        again = mlxbert.load(target, dtype="float32")
        for kind in (None, "query"):
            assert np.array_equal(mlxbert.embed(again, TEXTS, kind=kind), mlxbert.embed(model, TEXTS, kind=kind))


@pytest.mark.slow
def test_peft_computes_the_same(family: str, folder: Path, tmp_path: Path) -> None:
    torch, peft, transformers = map(pytest.importorskip, ("torch", "peft", "transformers"))
    plain = write_model(family, "Model", tmp_path / "plain")
    base = transformers.AutoModel.from_pretrained(plain, attn_implementation="eager")
    theirs = peft.PeftModel.from_pretrained(base, folder / "adapters" / "retrieval").eval()
    model = mlxbert.load(folder, adapter="retrieval", dtype="float32")
    for text, vector in zip(TEXTS, np.asarray(mlxbert.embed(model, TEXTS)), strict=True):
        with torch.no_grad():
            last = theirs(torch.tensor([model.tokenizer.encode(f"dog {text}").ids])).last_hidden_state[0, -1]
        assert np.abs(vector - (last / last.norm()).numpy()).max() < 2e-5


def test_the_files_of_all_adapters_are_downloaded() -> None:
    adapters = [f"adapters/{task}/adapter_{what}" for task in TASKS for what in ("config.json", "model.safetensors")]
    listed = ["config.json", "model.safetensors", "tokenizer.json", "modules.json", *adapters, "adapters/README.md"]

    def needed(config: dict[str, Any]) -> set[str]:
        files: dict[str, Any] = {"config.json": config, "modules.json": [{"path": "", "type": "custom_st.Transformer"}]}
        return {*needed_files("jina", listed, files.__getitem__)}

    assert needed({"task_names": TASKS}) == {*listed} - {"adapters/README.md"}
    assert needed({}) == {*listed} - {*adapters, "adapters/README.md"}
