"""The adapters that jina-embeddings-v3 has for its tasks, next to torch: merged, chosen by prompts, converted."""

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import mlxbert
from mlxbert.errors import CheckpointError, MlxbertError
from mlxbert.goldens.golden_outputs import load_network, outputs
from mlxbert.machine.device import nn
from mlxbert.train.base_model import BaseModel
from mlxbert.weights.model_folder import ModelFolder
from mlxbert.weights.model_source import ModelRef
from tests.helpers.families import COMMON, Compared, make_model
from tests.helpers.frozen import add_vocabulary, change_config, read_config, tensors_in, write_tensors
from tests.helpers.parity import assert_equal, reference_outputs

torch = pytest.importorskip("torch", reason="live parity needs torch: pip install -r requirements-parity.txt")
transformers = pytest.importorskip("transformers", reason="live parity needs transformers")
from tests.helpers.authors.flash import Stacked  # noqa: E402

pytestmark = [pytest.mark.slow, pytest.mark.sampled]

TASKS = ["retrieval.query", "retrieval.passage", "separation"]
PROMPTS = {"retrieval.query": "a query ", "retrieval.passage": "a text ", "separation": ""}
ADAPTED = Compared(
    "JinaFlash",
    {"theta": 50.0, "type_vocab_size": 1, "initializer_range": 0.15, "lora_rank": 4, "lora_alpha": 1}
    | {"lora_adaptations": TASKS, "task_instructions": PROMPTS, "num_hidden_layers": 2},
    ("Model",),
)
TEXTS = ["a cat", "the dog plays in paris", "milk"]


@pytest.fixture(autouse=True)
def no_task() -> Any:
    """A task is chosen for all models of torch."""
    yield
    Stacked.task = None


@pytest.fixture
def theirs() -> Any:
    """A model with adapters, as its authors computed it."""
    return make_model(ADAPTED, "Model")


@pytest.fixture
def folder(theirs: Any, tmp_path: Path) -> Path:
    """The model as its authors published it, with modules and a vocabulary."""
    theirs.save_pretrained(tmp_path / "jina")
    folder = add_vocabulary(tmp_path / "jina")
    types = {"": "custom_st.Transformer"}
    types |= {f"{name}": f"sentence_transformers.models.{name[2:]}" for name in ("1_Pooling", "2_Normalize")}
    modules = [
        {"idx": number, "name": f"{number}", "path": path, "type": kind, **({} if path else {"kwargs": ["task"]})}
        for number, (path, kind) in enumerate(types.items())
    ]
    (folder / "modules.json").write_text(json.dumps(modules), encoding="utf-8")
    (folder / "1_Pooling").mkdir()
    pooling = {"word_embedding_dimension": 30, "pooling_mode_mean_tokens": True}
    (folder / "1_Pooling" / "config.json").write_text(json.dumps(pooling), encoding="utf-8")
    return folder


def their_vectors(theirs: Any, model: mlxbert.Model, task: str | None, prompt: str, text: str) -> Any:
    """The normed mean of the states of one text."""
    Stacked.task = None if task is None else TASKS.index(task)
    ids = torch.tensor([model.tokenizer.encode(prompt + text).ids])
    with torch.no_grad():
        mean = theirs(ids).last_hidden_state[0].mean(0).numpy()
    return mean / np.linalg.norm(mean)


@pytest.mark.parametrize("task", [None, *TASKS])
def test_a_task_computes_what_its_authors_code_computes(task: str | None, theirs: Any, folder: Path) -> None:
    assert "model_type" not in read_config(folder)
    Stacked.task = None if task is None else TASKS.index(task)
    network = mlxbert.load(folder, adapter=task, dtype="float32").network
    for case in ADAPTED.cases.values():
        assert_equal(outputs(network, case), reference_outputs(theirs, case))


def test_prompts_choose_the_task(theirs: Any, folder: Path) -> None:
    model = mlxbert.load(folder, dtype="float32", task="embed")
    cases: tuple[tuple[dict[str, Any], str | None], ...] = (
        ({"kind": "query"}, "retrieval.query"),
        ({"kind": "document"}, "retrieval.passage"),
        ({"prompt": "a query "}, "retrieval.query"),
        ({"prompt_name": "separation"}, "separation"),
        ({"prompt": "cats "}, None),
        ({}, None),
    )
    for given, task in cases:
        prompt = given.get("prompt", "") if task is None else PROMPTS[task]
        for text, vector in zip(TEXTS, mlxbert.embed(model, TEXTS, **given), strict=True):
            assert np.abs(vector - their_vectors(theirs, model, task, prompt, text)).max() < 2e-5, given
    assert {*model._with_adapters} == {*TASKS}
    alone = mlxbert.load(folder, dtype="float32", adapter="retrieval.query")
    wanted = their_vectors(theirs, model, "retrieval.query", "a query ", TEXTS[0])
    assert np.abs(mlxbert.embed(alone, TEXTS[0]) - wanted).max() < 2e-5  # its prompt is the default
    assert np.array_equal(mlxbert.embed(alone, TEXTS, kind="document"), mlxbert.embed(model, TEXTS, kind="document"))


def test_prompts_of_a_trained_network_choose_no_adapter(folder: Path) -> None:
    model = mlxbert.load(folder, dtype="float32", task="embed")
    adapted = mlxbert.embed(model, TEXTS, kind="query")
    trained = mlxbert.load(folder, dtype="float32", task="embed")
    trained.network.update(nn.utils.tree_map(lambda array: array * 1.001, trained.network.parameters()))
    found = mlxbert.embed(trained, TEXTS, kind="query")
    assert not trained._with_adapters and np.abs(found - adapted).max() > 1e-2
    base = mlxbert.embed(replace(model, _load_with_adapter=None), TEXTS, kind="query")
    assert 0 < np.abs(found - base).max() < 1e-2
    initial = BaseModel(ref=ModelRef(folder), files=ModelFolder(folder)).with_heads({}, 0)
    assert np.abs(mlxbert.embed(initial, TEXTS, kind="query") - base).max() < 2e-5


def test_a_search_embeds_queries_and_texts_for_their_tasks(theirs: Any, folder: Path) -> None:
    model = mlxbert.load(folder, dtype="float32")
    query, *texts = (
        their_vectors(theirs, model, task, PROMPTS[task], text)
        for task, text in zip((TASKS[0], *TASKS[1:2] * 3), ("a cat", *TEXTS), strict=True)
    )
    found = mlxbert.similarity(model, "a cat", TEXTS)
    scores = {hit.text: hit.score for hit in found}
    assert all(abs(scores[text] - float(query @ vector)) < 2e-5 for text, vector in zip(TEXTS, texts, strict=True))


@pytest.mark.parametrize("task", [None, *TASKS[:2]])
@pytest.mark.parametrize("how", ["convert", "save"])
def test_what_is_written_opens_here_and_in_transformers(
    how: str, task: str | None, theirs: Any, folder: Path, tmp_path: Path
) -> None:
    model = mlxbert.load(folder, adapter=task, dtype="float32")
    if how == "convert":
        found = mlxbert.convert(folder, tmp_path / "b", adapter=task)
        assert found.difference.agree and any("lora_A" in name for name in found.left_out)
    else:
        mlxbert.save(model, tmp_path / "b")
    config = read_config(tmp_path / "b")
    assert config["model_type"] == "jina_embeddings_v3" and config["architectures"] == ["JinaEmbeddingsV3Model"]
    assert not {"auto_map", "lora_adaptations", "rotary_emb_base"} & config.keys()
    again, native = mlxbert.load(tmp_path / "b", dtype="float32"), transformers.AutoModel
    assert np.array_equal(mlxbert.embed(again, TEXTS), mlxbert.embed(model, TEXTS))
    opened, report = native.from_pretrained(
        tmp_path / "b", output_loading_info=True, attn_implementation="eager", add_pooling_layer=False
    )
    assert not report["missing_keys"] and not report["unexpected_keys"]
    Stacked.task = None if task is None else TASKS.index(task)
    case = ADAPTED.cases["padding"]
    wanted, got = reference_outputs(theirs, case), reference_outputs(opened.eval(), case)
    assert_equal(got, {name: array for name, array in wanted.items() if name in got})
    assert np.abs(got["last hidden"] - wanted["last hidden"]).max() < 2e-5


def test_what_does_not_fit_is_refused(folder: Path) -> None:
    with pytest.raises(MlxbertError, match="nothing"):
        mlxbert.load(folder, adapter="nothing", offline=True)
    tensors = tensors_in(folder)
    name = "encoder.layers.1.mlp.fc2.parametrizations.weight.0.lora_B"
    write_tensors(folder, tensors | {name: tensors[name][:2]})
    with pytest.raises(CheckpointError, match=r"layers\.1\.mlp\.fc2.*shape"):
        mlxbert.load(folder, adapter="separation")
    write_tensors(folder, {name: array for name, array in tensors.items() if "lora_" not in name})
    with pytest.raises(CheckpointError, match="no adapters"):
        mlxbert.load(folder, adapter="separation")


def test_inspect_shows_tasks_and_what_the_file_is_known_by(folder: Path) -> None:
    found = mlxbert.inspect(folder)
    assert found.adapters == (*TASKS,) and "XLMRobertaFlashConfig" in found.because
    assert found.family == "jina_embeddings_v3" and found.embedding.prompts == PROMPTS  # type: ignore[union-attr]
    assert {tensor.name.rpartition(".")[2] for tensor in found.unused} == {"lora_A", "lora_B"}


def test_bases_that_files_leave_out(folder: Path) -> None:
    for kind, base in ((None, 10_000.0), ("jina_embeddings_v3", 20_000.0)):
        change_config(folder, model_type=kind, rotary_emb_base=None)
        positions: Any = load_network(folder).encoder.config.positions
        assert {rotation.theta for rotation in positions.rotations} == {base}
        assert positions.max_length == COMMON["max_position_embeddings"]
