"""Files in ONNX compute what the model computes, for every family and head."""

import json
import shutil
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import mlxbert
from mlxbert.config import Disentangled, EncoderConfig, RelativeBias
from mlxbert.errors import ArgumentError, CheckpointError, MlxbertError
from mlxbert.export.onnx import onnx_export
from mlxbert.export.onnx.graphs import Constant, Size, record
from mlxbert.export.verify import exported_file
from mlxbert.goldens import golden_outputs
from mlxbert.goldens.golden_outputs import Case, difference, golden_models, load_network, make_cases
from mlxbert.machine.device import in_plain_graphs, mx, on_gpu, plain_graphs
from mlxbert.nn.embedder import Embedder, EmbeddingConfig, parse_poolings
from mlxbert.nn.encoder import EncoderOutput
from mlxbert.nn.heads import Network
from mlxbert.nn.ops import inference
from mlxbert.nn.pooling import POOLINGS
from mlxbert.other_libraries import install_command
from mlxbert.weights.formats.file_names import ONNX
from mlxbert.weights.vector_kinds import KINDS
from tests.helpers import tiny, token_folders
from tests.helpers.frozen import change_config, read_config
from tests.helpers.sparse_folder import save_routed, save_splade

onnx = pytest.importorskip("onnx", reason="needs onnx: pip install 'mlxbert[onnx]'")
onnxruntime = pytest.importorskip("onnxruntime", reason="needs onnxruntime: pip install 'mlxbert[onnx]'")
from mlxbert.export.onnx import onnx_operators  # noqa: E402

SAID = {
    "animal": ["the cat sat", "a dog", "the dog sat on the mat", "cat", "he is a dog", "a cat , a dog"],
    "city": ["paris", "tokyo is a city", "the largest city", "he went to paris", "in tokyo", "city of paris"],
}
BOUND = 1e-5  # as a share of the largest value
# One model for each way of encoding positions and each kind of block; the others are slow.
QUICK = {
    ("bert", "ForPreTraining"), ("modernbert", "ForMaskedLM"), ("deberta-v2", "Model"), ("nomic-moe", "Model"),
    ("mpnet", "ForQuestionAnswering"), ("qwen3", "ForSequenceClassification"), ("jina-v2", "ForTokenClassification"),
    ("roberta", "ForSequenceClassification"),
}  # fmt: skip
MODELS = [
    pytest.param(*model, marks=() if model in QUICK else (pytest.mark.slow, pytest.mark.sampled))
    for model in golden_models()
]


class _File:
    """A network as a file in ONNX that has all outputs of the network, and the vectors of embedders."""

    def __init__(self, network: Network, embedders: Sequence[Embedder] = ()) -> None:
        network.eval()
        self.network, self.embedders, config = network, embedders, network.encoder.config
        inputs = ("input_ids", "attention_mask", "token_type_ids")[: 2 + (config.type_vocab_size > 1)]
        tables = isinstance(config.positions, Disentangled | RelativeBias)
        with inference():
            graph = record(self.run, len(inputs), config.max_length if tables else 12)
        names = ["hidden", *network.heads, *(f"vector {number}" for number in range(len(embedders)))]
        written = onnx_operators.write(graph, inputs, names, "a test")
        onnx.checker.check_model(written)
        self.session = onnxruntime.InferenceSession(written.SerializeToString(), providers=["CPUExecutionProvider"])

    def run(self, ids: mx.array, mask: mx.array, segments: mx.array | None = None) -> list[mx.array]:
        weights = any(embedder.needs_attentions for embedder in self.embedders)
        output: EncoderOutput = self.network.encoder(ids, mask, segments, output_attentions=weights)
        logits = [self.network.logits(head, output) for head in self.network.heads]
        return [output.last_hidden_state, *logits, *(embedder(output, mask) for embedder in self.embedders)]

    def differences(self, case: Case) -> list[float]:
        """The largest difference of each output, as a share of its largest value."""
        ids = case.input_ids.astype(np.int64)
        arrays = [ids, case.real.astype(np.int64), np.zeros_like(ids) if case.segments is None else case.segments]
        names = [entry.name for entry in self.session.get_inputs()]
        named = {name: array.astype(np.int64) for name, array in zip(names, arrays, strict=False)}
        found = self.session.run(None, named)
        with inference():
            expected = [np.array(array) for array in self.run(*map(mx.array, named.values()))]
        kept = [
            [array[case.real] if array.shape[:2] == case.real.shape else array for array in side]
            for side in (found, expected)
        ]
        return [difference(a, b) for a, b in zip(*kept, strict=True)]


def _cases(config: EncoderConfig) -> dict[str, Case]:
    return make_cases(config.vocab_size, config.max_length, config.pad_token_id, config.type_vocab_size or 1)


@pytest.mark.parametrize(("family", "head"), MODELS)
def test_outputs_equal_those_of_the_model(family: str, head: str, tmp_path: Path) -> None:
    file = _File(load_network(golden_outputs.write_model(family, head, tmp_path)))
    for name, case in _cases(file.network.encoder.config).items():
        assert max(file.differences(case)) <= BOUND, name


def test_texts_longer_than_the_recorded_batch_have_windows_and_distances(tmp_path: Path) -> None:
    folder = golden_outputs.write_model("modernbert", "Model", tmp_path)
    change_config(folder, max_position_embeddings=300)
    file, ids = _File(load_network(folder)), np.random.default_rng(3).integers(0, 40, (2, 300)).astype(np.int32)
    assert max(file.differences(Case(ids))) <= BOUND


@pytest.fixture(scope="module")
def source(tmp_path_factory: pytest.TempPathFactory) -> Path:
    tensors = {name: array for name, array in tiny.tiny_tensors().items() if ".layer.1." not in name}
    return tiny.save(tmp_path_factory.mktemp("source"), tensors, tiny.CONFIG | {"num_hidden_layers": 1})


@pytest.fixture(scope="module")
def exported(source: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("onnx") / "model"
    mlxbert.convert(source, folder, to="onnx", task="embed")
    return folder


@pytest.fixture
def copied(exported: Path, tmp_path: Path) -> Path:
    return shutil.copytree(exported, tmp_path / "changed")


def _run(folder: Path, **inputs: Any) -> dict[str, Any]:
    session = onnxruntime.InferenceSession(str(folder / ONNX), providers=["CPUExecutionProvider"])
    arrays = {name: np.array(values, np.int64) for name, values in inputs.items()}
    return dict(zip([entry.name for entry in session.get_outputs()], session.run(None, arrays), strict=True))


@pytest.mark.slow
def test_an_embedding_model_becomes_its_vectors(tmp_path: Path) -> None:
    conversion = mlxbert.convert("builtin", tmp_path / "onnx", to="onnx")
    assert any("left out" in sentence and "masked-LM" in sentence for sentence in conversion.changed)
    model = mlxbert.load("builtin")
    texts = ["A cat sat on the mat.", "Stocks fell."]
    encodings = [model.tokenizer.encode(text) for text in texts]
    width = max(map(len, encodings))
    padded = [[*encoding.ids, *[0] * (width - len(encoding))] for encoding in encodings]
    mask = [[1] * len(encoding) + [0] * (width - len(encoding)) for encoding in encodings]
    outputs = _run(tmp_path / "onnx", input_ids=padded, attention_mask=mask, token_type_ids=np.zeros_like(padded))
    assert np.abs(outputs["sentence_embedding"] - mlxbert.embed(model, texts)).max() < BOUND
    assert mlxbert.verify("builtin", tmp_path / "onnx")


def test_the_result_agrees_with_its_source_and_is_no_model_itself(source: Path, exported: Path) -> None:
    result = mlxbert.verify(source, exported)
    assert result.agree and result.outputs.vectors is not None
    assert result.outputs.vectors.largest_difference < BOUND
    manifest = json.loads((exported / "conversion.json").read_text())
    assert ONNX in manifest["written"] and not [*exported.rglob("*.safetensors")]
    session = onnxruntime.InferenceSession(str(exported / ONNX), providers=["CPUExecutionProvider"])
    assert [output.name for output in session.get_outputs()] == ["last_hidden_state", "sentence_embedding"]
    with pytest.raises(ArgumentError):
        mlxbert.verify(exported, source)
    with pytest.raises(MlxbertError, match="ONNX"):
        mlxbert.load(exported)


def test_each_task_is_a_file_of_its_own(source: Path, tmp_path: Path) -> None:
    conversion = mlxbert.convert(source, tmp_path / "words", to="onnx")
    assert conversion.difference.outputs.heads["masked_lm"] < 1e-4
    outputs = _run(tmp_path / "words", input_ids=[[2, 4, 3]], attention_mask=[[1] * 3], token_type_ids=[[0] * 3])
    assert [*outputs] == ["logits"] and outputs["logits"].shape == (1, 3, len(tiny.VOCAB))


def _graph(change: Callable[[Any], object]) -> Callable[[Path], None]:
    def changed(folder: Path) -> None:
        model = onnx.load(folder / ONNX)
        change(model.graph)
        onnx.save(model, folder / ONNX)

    return changed


def _scale(graph: Any) -> None:
    table = max(graph.initializer, key=lambda tensor: len(tensor.raw_data))
    values = onnx.numpy_helper.to_array(table) * np.float32(1.5)
    table.CopyFrom(onnx.numpy_helper.from_array(values, table.name))


def _swap(folder: Path) -> None:
    words = {"cat": "tokyo", "tokyo": "cat"}
    lines = [words.get(word, word) for word in (folder / "vocab.txt").read_text().split("\n")]
    (folder / "vocab.txt").write_text("\n".join(lines))


CHANGES: dict[str, tuple[Callable[[Path], object], str | type[MlxbertError], str]] = {
    "numbers": (_graph(_scale), "output", "outputs"), "words": (_swap, "tokenizer", ""),
    "heads": (lambda folder: change_config(folder, num_attention_heads=1), "config", ""),
    "positions": (lambda folder: change_config(folder, max_position_embeddings=16), "config", ""),
    "no configuration": (lambda folder: (folder / "config.json").unlink(), MlxbertError, "config"),
    "another task": (_graph(lambda graph: graph.output.pop()), CheckpointError, "sentence_embedding"),
    "no graph": (lambda folder: (folder / ONNX).write_bytes(b"no model"), CheckpointError, "onnxruntime"),
}  # fmt: skip


@pytest.mark.parametrize("change", CHANGES)
def test_a_changed_export_does_not_agree_or_is_an_error(change: str, source: Path, copied: Path) -> None:
    make, wanted, said = CHANGES[change]
    make(copied)
    if isinstance(wanted, type):
        with pytest.raises(wanted, match=said):
            mlxbert.verify(source, copied)
    else:
        found = mlxbert.verify(source, copied)
        assert (wanted, True) in {(one.kind, said in one.text) for one in found.differences}


def test_large_weights_are_in_their_own_file(source: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(onnx_export, "_LARGEST", 2000)
    conversion = mlxbert.convert(source, tmp_path / "model", to="onnx")
    sizes = {path.name: path.stat().st_size for path in (tmp_path / "model" / ONNX).parent.iterdir()}
    assert sizes["model.onnx_data"] > 2000
    assert conversion.difference.agree and mlxbert.verify(source, tmp_path / "model")


def test_a_wrong_translation_writes_nothing(source: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def half(writer: Any, operation: Any) -> str:
        weights = writer.add("Softmax", writer.value(operation.inputs[0]), axis=-1)
        return str(writer.add("Mul", weights, writer.constant(np.array(0.5, np.float32))))

    monkeypatch.setitem(onnx_operators._TRANSLATIONS, "Softmax", half)
    with pytest.raises(CheckpointError, match="would be a different model"):
        mlxbert.convert(source, tmp_path / "model", to="onnx")
    assert not [*tmp_path.iterdir()]


@pytest.mark.parametrize(("options", "named"), [
    ({"to": "tflite"}, "tflite"), ({"to": "onnx", "task": "tag"}, "tagging head"),
    ({"to": "onnx", "task": "sing"}, "sing"), ({"to": "onnx", "dtype": "float16"}, "float32"),
    ({"to": "onnx", "quantize": 8}, "float32"), ({"task": "embed"}, "embed"),
], ids=str)  # fmt: skip
def test_bad_arguments_write_nothing(options: dict[str, Any], named: str, source: Path, tmp_path: Path) -> None:
    with pytest.raises(ArgumentError, match=named):
        mlxbert.convert(source, tmp_path / "model", **options)
    assert not [*tmp_path.iterdir()]


def test_a_missing_package_is_named(source: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(__import__("sys").modules, "onnx", None)
    with pytest.raises(MlxbertError, match="onnx") as caught:
        mlxbert.convert(source, tmp_path / "model", to="onnx")
    assert caught.value.hint == install_command("onnx")
    assert not [*tmp_path.iterdir()]


def test_other_folders_hold_no_export(tmp_path: Path, exported: Path) -> None:
    assert exported_file(tmp_path) is None
    assert exported_file(exported) == exported / ONNX
    escape = '{"written": {"../onnx/model.onnx": ""}}'
    for content in ("", "[]", '{"written": 3}', '{"written": [3]}', escape, "[" * 10**5):
        (tmp_path / "conversion.json").write_text(content)
        assert exported_file(tmp_path) is None


def test_every_pooling_is_exported(tmp_path: Path) -> None:
    network = load_network(golden_outputs.write_model("bert", "Model", tmp_path))
    config = network.encoder.config
    poolings = [parse_poolings(pooling) for pooling in (*POOLINGS, "cls+mean")]
    file = _File(
        network, [Embedder(EmbeddingConfig(poolings=each, normalize=True), config.hidden_size) for each in poolings]
    )
    for case in _cases(config).values():
        assert max(file.differences(case)) <= BOUND


def test_a_tagger_keeps_its_labels_and_loses_its_crf(source: Path, tmp_path: Path) -> None:
    labels, tagger = mlxbert.Labels(("O", "B-X", "I-X"), crf=True), tmp_path / "tagger"
    mlxbert.save(mlxbert.load(source, new_heads={"token_classifier": labels}), tagger)
    conversion = mlxbert.convert(tagger, tmp_path / "onnx", to="onnx")
    assert any("CRF" in sentence for sentence in conversion.changed)
    config = read_config(tmp_path / "onnx")
    assert config["id2label"] == {"0": "O", "1": "B-X", "2": "I-X"} and "crf" not in config
    assert config["architectures"] == ["BertForTokenClassification"]
    assert not (tmp_path / "onnx" / "modules.json").exists()
    assert "library_name: onnx" in (tmp_path / "onnx" / "README.md").read_text()
    outputs = _run(tmp_path / "onnx", input_ids=[[2, 3]], attention_mask=[[1, 1]], token_type_ids=[[0, 0]])
    assert outputs["logits"].shape == (1, 2, 3)
    assert mlxbert.verify(tagger, tmp_path / "onnx")
    with pytest.raises(CheckpointError, match="was not made from"):
        mlxbert.verify(source, tmp_path / "onnx")
    change_config(tmp_path / "onnx", id2label={"0": "I-X", "1": "B-X", "2": "O"}, label2id=None)
    assert [difference.name for difference in mlxbert.verify(tagger, tmp_path / "onnx").differences] == ["labels"]


def _trained(source: Path, output: Path, **options: Any) -> None:
    rows = [{"text": text, "label": label} for label, texts in SAID.items() for text in texts]
    output.with_name("train.jsonl").write_text("\n".join(map(json.dumps, rows)))
    for _ in mlxbert.finetune(
        "classify", train=output.with_name("train.jsonl"), output=output, model=source, **options
    ):
        pass


@pytest.mark.slow
def test_a_classifier_of_few_examples_becomes_its_classes(source: Path, tmp_path: Path) -> None:
    _trained(source, tmp_path / "few", few_shot=True)
    mlxbert.convert(tmp_path / "few", tmp_path / "onnx", to="onnx")
    config = read_config(tmp_path / "onnx")
    assert config["architectures"] == ["BertForSequenceClassification"] and [*config["id2label"].values()] == [*SAID]
    model = mlxbert.load(tmp_path / "few")
    for text in ("the cat sat", "he went to the store"):
        ids = model.tokenizer.encode(text).ids
        inputs = {"input_ids": [ids], "attention_mask": [[1] * len(ids)], "token_type_ids": [[0] * len(ids)]}
        best = int(_run(tmp_path / "onnx", **inputs)["logits"].argmax())
        result = mlxbert.classify(model, text)
        assert isinstance(result, mlxbert.Classification) and result.labels[0].label == config["id2label"][str(best)]
    mlxbert.convert(tmp_path / "few", tmp_path / "vectors", to="onnx", task="embed")
    assert mlxbert.verify(tmp_path / "few", tmp_path / "vectors")


@pytest.mark.slow
def test_an_adapter_is_merged_and_named(source: Path, tmp_path: Path) -> None:
    _trained(source, tmp_path / "adapter", lora=4, few_shot=False, epochs=1)
    conversion = mlxbert.convert(source, tmp_path / "onnx", to="onnx", adapter=tmp_path / "adapter")
    assert any("adapter" in sentence for sentence in conversion.changed)
    assert [*conversion.difference.outputs.heads] == ["sequence_classifier"]


@pytest.mark.parametrize(("make", "task", "left_out"), [
    (save_splade, None, ["next-sentence head", "sparse vectors"]),
    (save_routed, "fill-mask", ["next-sentence head", "sparse vectors"]),
    (save_splade, "embed", None), (save_routed, "embed", None), (token_folders._pylate, None, None),
    (token_folders._stanford, "embed", None), (token_folders.bge_m3, None, [KINDS["tokens"].title]),
])  # fmt: skip
def test_what_is_left_out_is_said_and_another_model_refused(
    make: Any, task: str | None, left_out: list[str] | None, tmp_path: Path
) -> None:
    make(tmp_path / "model")
    if left_out is None:
        with pytest.raises(ArgumentError, match="would be another model"):
            mlxbert.convert(tmp_path / "model", tmp_path / "onnx", to="onnx", task=task)
        with pytest.raises(mlxbert.MlxbertError, match=r"another model|not dense vectors"):
            mlxbert.convert_to_gguf(tmp_path / "model", tmp_path / "model.gguf")
        return
    conversion = mlxbert.convert(tmp_path / "model", tmp_path / "onnx", to="onnx", task=task)
    assert [*conversion.left_out] == left_out == conversion.to_dict()["left_out"]
    assert all(any(part in sentence for sentence in conversion.changed) for part in left_out)
    assert (tmp_path / "onnx" / "modules.json").exists() is (task is None and "sparse vectors" not in left_out)
    assert not (tmp_path / "onnx" / "router_config.json").exists()


def test_sizes_are_formulas_of_rows_and_length() -> None:
    graph = record(lambda ids: [mx.concatenate([ids, ids], axis=1).flatten()[3:]], 1, 9)
    [size] = graph.shapes[graph.outputs[0]]
    assert isinstance(size, Size)
    assert [size.at(rows, length) for rows, length in ((1, 1), (7, 100))] == [-1, 1397]
    assert graph.shapes[graph.inputs[0]] == (Size((0, 1, 0, 0, 0)), Size((0, 0, 1, 0, 0)))
    graph = record(lambda ids: [(ids[:, :, None] + ids[:, None, :]).flatten(1)], 1, 8)
    assert graph.shapes[graph.outputs[0]][1] == Size((0, 0, 0, 0, 1))
    for longest in (1, 4, 5):
        with pytest.raises(MlxbertError, match="at least 6"):
            record(lambda ids: [ids], 1, longest)


def test_a_constant_of_the_length_is_the_middle_of_the_longest() -> None:
    graph = record(
        lambda ids: [ids + mx.array([*range(1 - ids.shape[1], ids.shape[1])])[None, ids.shape[1] - 1 :]], 1, 8
    )
    [table] = [each for each in graph.constants.values() if isinstance(each, Constant) and each.count is not None]
    assert isinstance(table.start, Size) and isinstance(table.count, Size)
    for length in (1, 5, 8):
        start = table.start.at(2, length)
        assert table.values[start : start + table.count.at(2, length)].tolist() == [*range(1 - length, length)]


@pytest.mark.parametrize("function", [
    lambda ids: [ids + 1 if ids.shape[1] > 6 else ids], lambda ids: [ids[:, : 2 ** ids.shape[1] % 5 + 1]],
    lambda ids: [ids + mx.array(np.arange(ids.shape[1]) ** ids.shape[1])], lambda ids: [ids * (0.5 / ids.shape[1])],
], ids=["branch", "size", "constant", "factor"])  # fmt: skip
def test_what_is_no_formula_of_the_batch_is_refused(function: object) -> None:
    with pytest.raises(MlxbertError):
        record(function, 1, 9)  # type: ignore[arg-type]


def test_plain_graphs_end_with_their_block() -> None:
    before = on_gpu()
    with plain_graphs():
        assert on_gpu() and in_plain_graphs()
    assert on_gpu() == before and not in_plain_graphs()
