"""jina-embeddings-v5: adapters in folders of their own, which each vector needs, on a EuroBERT or a Qwen3."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import mlxbert
from mlxbert.errors import ConfigError, MlxbertError
from mlxbert.goldens.golden_outputs import arrays
from mlxbert.machine.device import mx
from mlxbert.weights.hub.needed_files import needed_files
from tests.helpers.frozen import add_vocabulary, change_config, read_config, tensors_in, write_model, write_tensors
from tests.helpers.rooms import needs
from tests.helpers.st_folder import write_json

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


@pytest.fixture(scope="module", params=MERGED)
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
