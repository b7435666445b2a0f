"""Adapters next to PEFT: what one of the two writes computes the same in the other, and what contradicts itself.

The first step of training has the same loss, and the same gradients of A, B, magnitudes and heads.
"""

import json
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import mlxbert
from mlxbert.errors import ArgumentError, CheckpointError, MlxbertError
from mlxbert.goldens.golden_outputs import Case, arrays as stored_arrays, load_network, outputs
from mlxbert.machine.device import mx, nn, scalar
from mlxbert.nn.encoder import Batch
from mlxbert.train.base_model import BaseModel
from mlxbert.train.files.trained_model import write_trained
from mlxbert.train.loop.gradients import Differentiator, dropout_key
from mlxbert.train.lora_adapters import Adapters, adapt_model, choose
from mlxbert.train.nn.losses import cross_entropy
from mlxbert.train.objectives.objective import TrainBatch
from mlxbert.train.options.loop_options import TrainingOptions
from mlxbert.weights.adapters.module_selection import Selection
from mlxbert.weights.build import parameters
from mlxbert.weights.formats.config_json import ConfigJson
from mlxbert.weights.model_folder import ModelFolder
from mlxbert.weights.model_source import ModelRef
from tests.helpers.families import COMMON, FAMILIES, Compared, class_of, make_config, make_model
from tests.helpers.frozen import add_vocabulary, change_config, read_config, tensors_in, write_tensors
from tests.helpers.parity import assert_equal, reference_outputs
from tests.train.pretraining.test_lora import models, start

torch = pytest.importorskip("torch", reason="live parity needs torch: pip install -r requirements-parity.txt")
transformers = pytest.importorskip("transformers", reason="live parity needs transformers")
peft = pytest.importorskip("peft", reason="live parity needs peft")
from tests.helpers.authors.flash import Stacked  # noqa: E402

pytestmark = [pytest.mark.slow]

NAMES = ("A", "B", "C", "D")
HEADS = {"sequence_classifier": "ForSequenceClassification", "token_classifier": "ForTokenClassification"}
KINDS: dict[str, dict[str, Any]] = {
    "lora": {"lora_layers": "all-linear"},
    "dora": {"dora": True, "lora_alpha": 5.0},
    "rslora": {"rslora": True, "dora": True, "lora_layers": "all-linear", "lora_alpha": 3.0},
}
CELLS = [
    *((family, "sequence_classifier", kind) for kind in KINDS for family in
      ("bert", "roberta", "distilbert", "albert", "modernbert, mean, biases", "deberta-v2")),
    *((family, "sequence_classifier", "dora") for family in ("electra", "mpnet", "albert, two groups", "deberta-v3")),
    *((family, "sequence_classifier", kind) for family in
      ("nomic", "gte", "modernbert", "neobert", "jina-v2, normed") for kind in ("lora", "dora")),
    ("bert", "token_classifier", "lora"), ("modernbert", "token_classifier", "dora"),
]  # fmt: skip


def _ours(model: mlxbert.Model, head: str, case: Case) -> Any:
    arrays = [None if array is None else mx.array(array) for array in (case.input_ids, case.mask, case.segments)]
    network = model.network
    assert arrays[0] is not None
    output = network(arrays[0], arrays[1], arrays[2])
    return np.array(network.logits(head, output)) * _shown(head, case)


def _theirs(model: Any, head: str, case: Case) -> Any:
    given = {"input_ids": case.input_ids, "attention_mask": case.mask, "token_type_ids": case.segments}
    with torch.no_grad():
        found = model(**{name: torch.tensor(array).long() for name, array in given.items() if array is not None})
    return found.logits.numpy() * _shown(head, case)


def _shown(head: str, case: Case) -> Any:
    return case.real[..., None] if head == "token_classifier" else 1


def _cases(family: str) -> list[Case]:
    cases = FAMILIES[family].cases
    return [cases["padding"], *([cases["pairs"]] if FAMILIES[family].segments > 1 else [])]


def _difference(family: str, head: str, a: Any, b: Any) -> float:
    pairs = [(a(head, case), b(head, case)) for case in _cases(family)]
    return max(float(np.abs(one - two).max() / max(1.0, np.abs(two).max())) for one, two in pairs)


def adapted(base: Path, head: str, kind: dict[str, Any], out: Path) -> tuple[mlxbert.Model, Adapters]:
    """A model whose adapters have values as after training, which are written into a folder."""
    add_vocabulary(base)
    model = mlxbert.load(base, new_heads={head: mlxbert.Labels(NAMES)}, dtype="float32", device="cpu")
    adapters = adapt_model(model, TrainingOptions(lora=3, **kind))
    assert adapters is not None
    mx.random.seed(5)
    arrays = parameters(model.network)
    changed = [(name, arrays[name] + mx.random.normal(arrays[name].shape) * 0.1) for name in sorted(adapters.trained)]
    model.network.load_weights(changed, strict=False)
    out.mkdir()
    source = BaseModel(ref=ModelRef(base), files=ModelFolder(base))
    write_trained(model, out, lambda folder: {}, {}, adapter=adapters.writer(model, source))
    return model, adapters


@pytest.mark.parametrize(("family", "head", "kind"), CELLS)
@pytest.mark.sampled
def test_peft_opens_what_is_written_here(family: str, head: str, kind: str, tmp_path: Path) -> None:
    base = tmp_path / "base"
    # A model with the masked-LM head has no pooler: it is fresh, and part of the adapter.
    make_model(FAMILIES[family], "Model" if kind == "lora" else "ForMaskedLM").save_pretrained(base)
    model, _ = adapted(base, head, KINDS[kind], tmp_path / "out")
    (tmp_path / "out/.unfinished").unlink()
    # Theirs.
    theirs_of = class_of(FAMILIES[family].classes + HEADS[head])
    plain = theirs_of.from_pretrained(base, num_labels=4, attn_implementation="eager")
    theirs = peft.PeftModel.from_pretrained(plain, tmp_path / "out").eval()
    assert _difference(family, head, partial(_ours, model), partial(_theirs, theirs)) < 1e-5
    # Merged while it is loaded, with and without the name of its base.
    for name, adapter in ((base, tmp_path / "out"), (tmp_path / "out", None)):
        merged = mlxbert.load(name, adapter=adapter, dtype="float32", device="cpu")
        assert merged.labels is not None and merged.labels.names == NAMES and [*merged.network.heads] == [head]
        assert _difference(family, head, partial(_ours, merged), partial(_ours, model)) < 1e-5
    # Merged into a folder, for transformers.
    mlxbert.convert(base, tmp_path / "merged", adapter=tmp_path / "out")
    opened = theirs_of.from_pretrained(tmp_path / "merged", attn_implementation="eager")
    assert [*opened.config.id2label.values()] == [*NAMES]
    assert _difference(family, head, partial(_theirs, opened.eval()), partial(_ours, model)) < 1e-5


@pytest.mark.parametrize(
    ("family", "head"), [("nomic moe", "token_classifier"), ("jina-reranker-v2", "sequence_classifier")]
)
def test_adapters_have_the_names_of_the_authors_code(family: str, head: str, tmp_path: Path) -> None:
    """Of models that transformers does not have; the experts are parameters of a module, not modules, and have none."""
    base = tmp_path / "base"
    theirs = make_model(FAMILIES[family], HEADS[head])
    theirs.save_pretrained(base)
    model, _ = adapted(base, head, KINDS["lora"], tmp_path / "out")
    stored = stored_arrays(tmp_path / "out" / "adapter_model.safetensors")
    written = {name.removeprefix("base_model.model.") for name in stored}
    linear = {name for name, module in theirs.named_modules() if isinstance(module, torch.nn.Linear)}
    layers = {name for name in linear if ".layers." in name}
    assert {name.partition(".lora_")[0] for name in written if ".lora_" in name} == layers
    assert {name for name in written if ".lora_" not in name} <= {name for name, _ in theirs.named_parameters()}
    merged = mlxbert.load(base, adapter=tmp_path / "out", dtype="float32", device="cpu")
    assert _difference(family, head, partial(_ours, merged), partial(_ours, model)) < 1e-5
    with pytest.raises(ArgumentError, match="experts"):
        choose(model.architecture, TrainingOptions(lora=3, lora_layers="experts"))


def _random_theirs(model: Any) -> None:
    torch.manual_seed(3)
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if "lora_B" in name or "magnitude" in name or "modules_to_save" in name:
                parameter.add_(torch.randn_like(parameter) * 0.1)


@pytest.mark.parametrize(
    ("family", "targets", "options"),
    [
        ("bert", ["query", "value"], {}),
        ("bert", r".*\.layer\.[01]\.attention\.self\.(query|key)", {"use_dora": True, "use_rslora": True}),
        ("bert", "all-linear", {"rank_pattern": {"query": 5}, "alpha_pattern": {"query": 7, "0.output.dense": 1}}),
        ("roberta", ["query", "dense"], {"use_dora": True, "exclude_modules": r".*classifier.*"}),
        ("distilbert", ["q_lin", "lin1"], {"use_rslora": True, "modules_to_save": ["pre_classifier", "classifier"]}),
        ("albert", ["query", "ffn"], {"use_dora": True}),
        ("electra", ["query", "value"], {}),
        ("mpnet", ["q", "o"], {"use_dora": True}),
        ("modernbert", ["Wqkv", "Wi"], {"use_dora": True}),
        ("modernbert", ["Wo"], {"modules_to_save": ["head", "classifier"]}),
        ("nomic", ["q_proj", "v_proj", "up_proj"], {"use_dora": True}),
        ("gte", ["k_proj", "gate_proj", "o_proj"], {"use_dora": True}),
        ("neobert", ["qkv", "w12"], {"use_dora": True}),
        ("jina-v2, normed", ["query", "up_gated_layer"], {"use_dora": True}),
        ("deberta-v2", ["query_proj", "pos_key_proj"], {"modules_to_save": ["pooler", "classifier"]}),
        ("deberta-v3", ["value_proj"], {"use_dora": True, "task_type": None}),
    ],
)
def test_what_peft_writes_opens_here(family: str, targets: Any, options: dict[str, Any], tmp_path: Path) -> None:
    head = "sequence_classifier"
    model = make_model(FAMILIES[family], "ForSequenceClassification")
    model.save_pretrained(tmp_path / "base")
    add_vocabulary(tmp_path / "base")
    model.name_or_path = str(tmp_path / "base")
    config = peft.LoraConfig(**{"r": 3, "lora_alpha": 4, "target_modules": targets, "task_type": "SEQ_CLS"} | options)
    theirs = peft.get_peft_model(model, config)
    _random_theirs(theirs)
    theirs.save_pretrained(tmp_path / "adapter")
    ours = mlxbert.load(tmp_path / "base", adapter=tmp_path / "adapter", dtype="float32", device="cpu")
    assert [*ours.network.heads] == [head]
    assert ours.labels is not None and ours.labels.names == NAMES
    assert _difference(family, head, partial(_ours, ours), partial(_theirs, theirs.eval())) < 1e-5


def test_a_head_that_the_base_lacks_has_numbers_for_labels(tmp_path: Path) -> None:
    make_model(FAMILIES["bert"], "ForMaskedLM").save_pretrained(tmp_path / "base")
    add_vocabulary(tmp_path / "base")
    model = transformers.AutoModelForTokenClassification.from_pretrained(tmp_path / "base", num_labels=5)
    theirs = peft.get_peft_model(model, peft.LoraConfig(target_modules=["query"], task_type="TOKEN_CLS"))
    _random_theirs(theirs)
    theirs.save_pretrained(tmp_path / "adapter")
    ours = mlxbert.load(tmp_path / "adapter", dtype="float32", device="cpu")
    assert ours.labels is not None and ours.labels.names == tuple(f"LABEL_{number}" for number in range(5))
    assert [*ours.network.heads] == ["token_classifier"]  # the head of the base belongs to the encoder as it was
    head = "token_classifier"
    assert _difference("bert", head, partial(_ours, ours), partial(_theirs, theirs.eval())) < 1e-5


def test_patterns_of_peft_choose_the_same_modules(tmp_path: Path) -> None:
    model = make_model(FAMILIES["bert"], "ForSequenceClassification")
    names = [name for name, module in model.named_modules() if isinstance(module, torch.nn.Linear)]
    excluded: Any = {}, {"exclude_modules": ["1.output.dense"]}, {"exclude_modules": ".*1.attention.*"}
    layers: Any = {"layers_to_transform": 1}, {"layers_to_transform": [0], "layers_pattern": "layer"}
    patterns = ".*layer.[01].*(query|dense)", r"bert\.encoder.*\.\d+\..*key$"
    for targets in (["query"], ["0.output.dense", "key"], *patterns):
        for more in (*excluded, *(layers if isinstance(targets, list) else ())):
            given = {"target_modules": targets, **more}
            ours, config = Selection(ConfigJson(tmp_path, given)), peft.LoraConfig(**given)
            found = {name for name in names if ours.left_out_by(name) is None}
            assert found == {name for name in names if _chosen(config, name)}


def _chosen(config: Any, name: str) -> bool:
    found = peft.tuners.tuners_utils.check_target_module_exists(config, name)
    return bool(found) and not isinstance(found, peft.tuners.tuners_utils._ExcludedModule)


TARGETS = [1, 0, 3]


class _Objective:
    """The mean loss of a batch."""

    pure = True
    losses: tuple[str, ...] = ()

    def terms(self, network: Any, batch: TrainBatch) -> tuple[dict[str, mx.array], float]:
        logits = network.logits("sequence_classifier", batch.inputs)
        return {"": cross_entropy(logits, batch.targets).sum() / 3}, 3.0


@pytest.mark.parametrize("family", ["bert", "modernbert", "neobert"])
@pytest.mark.parametrize(
    "kind",
    [{}, {"dora": True, "lora_layers": "all-linear"}, {"rslora": True, "lora_layers": "all-linear"}],
    ids=["lora", "dora", "rslora"],
)
def test_loss_and_gradients_are_those_of_peft(family: str, kind: dict[str, Any], tmp_path: Path) -> None:
    compared, base = FAMILIES[family], tmp_path / "base"
    rates = {key: 0.0 for key in make_config(compared, "Model").to_dict() if key.endswith(("dropout", "dropout_prob"))}
    calm = Compared(compared.classes, compared.changes | rates | {"initializer_range": 0.1}, compared.heads)
    torch.manual_seed(20)
    class_of(f"{compared.classes}Model")(make_config(calm, "Model")).save_pretrained(base)
    model, adapters = adapted(base, "sequence_classifier", kind, tmp_path / "out")
    trained = adapters.trained
    ids = FAMILIES[family].cases["full length"].input_ids
    network, arrays = model.network, parameters(model.network)
    differentiator = Differentiator(network, _Objective(), mx.float32)  # type: ignore[arg-type]
    differentiator.freeze({name: array for name, array in arrays.items() if name not in trained})
    network.train()
    batch = TrainBatch(Batch(mx.array(ids)), mx.array(TARGETS))
    found = differentiator({name: arrays[name] for name in trained}, [lambda: (batch, dropout_key(0))])
    network.eval()
    network.load_weights(list(found.arrays.items()), strict=False)  # gradients in the place of weights are written
    # Layers that share A are given the gradient of A once: that of their sum.
    (tmp_path / "gradients").mkdir()
    adapters.writer(model, BaseModel(ref=ModelRef(base), files=ModelFolder(base)))(tmp_path / "gradients")
    gradients = stored_arrays(tmp_path / "gradients" / "adapter_model.safetensors")

    plain = class_of(f"{compared.classes}ForSequenceClassification").from_pretrained(
        base, num_labels=4, attn_implementation="eager"
    )
    theirs = peft.PeftModel.from_pretrained(plain, tmp_path / "out", is_trainable=True).double().train()
    outputs = theirs(input_ids=torch.tensor(ids).long(), labels=torch.tensor(TARGETS))
    outputs.loss.backward()
    assert scalar(found.loss) == pytest.approx(outputs.loss.item(), rel=1e-5)
    expected = {name.replace(".default", "").replace(".modules_to_save", ""): parameter.grad.numpy()
                for name, parameter in theirs.named_parameters() if parameter.requires_grad}  # fmt: skip
    expected = {name.replace("magnitude_vector.weight", "magnitude_vector"): grad for name, grad in expected.items()}
    assert expected.keys() == gradients.keys()
    largest = max(np.abs(grad).max() for grad in expected.values())
    for name, grad in expected.items():
        assert np.abs(np.array(gradients[name]) - grad).max() < 1e-5 * largest, name


IDS = [[2, 7, 9, 4, 12, 3], [2, 4, 8, 30, 11, 3]]


@pytest.fixture(scope="module")
def pretrained(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return models(tmp_path_factory.mktemp("adapters"))


@pytest.mark.parametrize("options", [{}, {"dora": True, "lora_layers": "all-linear"}, {"rslora": True}], ids=str)
@pytest.mark.parametrize(
    ("model", "objective"), [("words", "mlm"), ("bare", "mlm"), ("words", "mlm,nsp"), ("both", "mlm,nsp")]
)
def test_peft_computes_the_same_of_pre_training(
    model: str, objective: str, options: dict[str, Any], pretrained: Path, tmp_path: Path
) -> None:
    [*start(pretrained, model, tmp_path / "out", objective=objective, **options)]
    ours = mlxbert.load(tmp_path / "out", dtype="float32", device="cpu").network
    kind = transformers.BertForMaskedLM if objective == "mlm" else transformers.BertForPreTraining
    theirs = peft.PeftModel.from_pretrained(kind.from_pretrained(pretrained / model), tmp_path / "out").eval()
    with torch.no_grad():
        found = theirs(input_ids=torch.tensor(IDS))
    pairs = [("masked_lm", found.logits if objective == "mlm" else found.prediction_logits)]
    pairs += [] if objective == "mlm" else [("next_sentence", found.seq_relationship_logits)]
    for head, logits in pairs:
        np.testing.assert_allclose(np.array(ours.logits(head, Batch(mx.array(IDS)))), logits.numpy(), atol=1e-5)


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
    return make_model(ADAPTED, "Model")


@pytest.fixture
def folder(theirs: Any, tmp_path: Path) -> Path:
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
    Stacked.task = None if task is None else TASKS.index(task)
    ids = torch.tensor([model.tokenizer.encode(prompt + text).ids])
    with torch.no_grad():
        mean = theirs(ids).last_hidden_state[0].mean(0).numpy()
    return mean / np.linalg.norm(mean)


@pytest.mark.sampled
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


@pytest.mark.sampled
@pytest.mark.parametrize("task", [None, *TASKS[:2]])
@pytest.mark.parametrize("how", ["convert", "save"])
def test_written_models_open_everywhere(how: str, task: str | None, theirs: Any, folder: Path, tmp_path: Path) -> None:
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
