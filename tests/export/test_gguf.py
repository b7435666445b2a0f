"""GGUF files: every tensor and every key, read back by the package `gguf`, and what a file cannot give."""

import hashlib
import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tokenizers import Regex, Tokenizer, normalizers, pre_tokenizers

import mlxbert
from mlxbert.errors import ArgumentError, CheckpointError, ConfigError, TokenizerError
from mlxbert.export.gguf.write_gguf import _origin
from mlxbert.labels.labels import Labels
from mlxbert.machine.device import mx, nn
from mlxbert.weights.build import parameters
from tests.helpers import published, tiny
from tests.helpers.gguf_models import CONFIGS, write_model, write_pooling
from tests.helpers.llama import NO_POOLING, RANK, LlamaCpp
from tests.helpers.vocabularies import SENTENCES, byte_files, put, trained
from tests.tasks.test_reranker import language_model

gguf = pytest.importorskip("gguf", reason="the package gguf is not installed")

# The tensors of each layer that llama.cpp loads, as its source lists them; "!" marks those with a bias.
_POST = "attn_q! attn_k! attn_v! attn_output! attn_output_norm! ffn_up! ffn_down! layer_output_norm!"
_PLAIN = "attn_norm attn_q attn_k attn_v attn_output ffn_norm ffn_gate ffn_up ffn_down"
LAYERS = {
    **dict.fromkeys(("bert", "jina-bert-v3", "nomic-bert-moe"), _POST),
    "nomic-bert": "attn_q attn_k attn_v attn_output attn_output_norm! ffn_gate ffn_up ffn_down layer_output_norm!",
    "jina-bert-v2": _POST.replace("ffn_up!", "ffn_up ffn_gate"),
    **dict.fromkeys(("modern-bert", "neo-bert"), "attn_norm attn_qkv attn_output ffn_norm ffn_up ffn_down"),
    "eurobert": _PLAIN, "qwen3": _PLAIN + " attn_q_norm attn_k_norm",
    "gemma-embedding": _PLAIN + " attn_q_norm attn_k_norm post_attention_norm post_ffw_norm",
}  # fmt: skip
TABLES = {
    "bert": "position_embd token_types token_embd_norm!", "modern-bert": "token_embd_norm output_norm",
    "neo-bert": "enc.output_norm",
    **dict.fromkeys(
        ("jina-bert-v3", "nomic-bert-moe", "nomic-bert", "jina-bert-v2"), "token_types token_embd_norm!"
    ),
    **dict.fromkeys(("eurobert", "qwen3", "gemma-embedding"), "output_norm"),
}  # fmt: skip
UP, HEAD = "encoder.layers.0.feed_forward.up.weight", "sequence_classifier"
MULTI, REGRESSION = "multi_label_classification", "regression"


def read(path: Path) -> tuple[dict[str, Any], dict[str, np.ndarray]]:
    reader = gguf.GGUFReader(path)
    values = {name: field.contents() for name, field in reader.fields.items()}
    return values, {tensor.name: gguf.dequantize(tensor.data, tensor.tensor_type) for tensor in reader.tensors}


def convert(folder: Path, **options: Any) -> mlxbert.GgufConversion:
    return mlxbert.convert_to_gguf(folder, folder.with_name(folder.name + ".gguf"), overwrite=True, **options)


def converted(folder: Path) -> tuple[mlxbert.GgufConversion, dict[str, Any], dict[str, np.ndarray]]:
    report = convert(folder)
    return report, *read(report.file)


def refused(folder: Path, error: type[Exception], message: str, **options: Any) -> None:
    """Asserts that a model is not converted, and that nothing stays of the file."""
    with pytest.raises(error, match=message):
        convert(folder, **options)
    assert not [*folder.parent.glob(f"{folder.name}.gguf*")]


def changed(folder: Path, change: Callable[[mx.array], mx.array], *, name: str = UP, model: str = "bert") -> Path:
    """Writes a model in which one tensor is another."""
    write_model(before := folder.with_name(folder.name + "-before"), model)
    made = mlxbert.load(before, dtype="float32")
    made.network.update(nn.utils.tree_unflatten([(name, change(parameters(made.network)[name]))]))
    mlxbert.save(made, folder)
    return folder


@pytest.fixture
def bert(tmp_path: Path) -> Path:
    write_model(tmp_path / "model", "bert")
    return tmp_path / "model"


def expected_names(name: str) -> set[str]:
    kind = name.split(",")[0]
    layers = int(CONFIGS[name].get("num_hidden_layers") or CONFIGS[name]["n_layer"])
    stems = [(stem, "") for stem in ("token_embd", *TABLES[kind].split())]
    extra = " attn_q_norm! attn_k_norm! attn_norm_2!" if name.endswith("normed") else ""
    for layer in range(layers):
        stems += [(stem, f"blk.{layer}.") for stem in (LAYERS[kind] + extra).split()]
    names = {f"{place}{stem.rstrip('!')}.weight" for stem, place in stems}
    names |= {f"{place}{stem.rstrip('!')}.bias" for stem, place in stems if stem.endswith("!")}
    if name == "modern-bert":
        names -= {"blk.0.attn_norm.weight"}
    if name == "nomic-bert-moe":
        for layer in (1, 3):
            names -= {f"blk.{layer}.ffn_{way}.{end}" for way in ("up", "down") for end in ("weight", "bias")}
            names |= {f"blk.{layer}.ffn_{stem}.weight" for stem in ("up_exps", "down_exps", "gate_inp")}
    return names


@pytest.mark.parametrize("name", CONFIGS)
def test_every_tensor_and_the_sizes(tmp_path: Path, name: str) -> None:
    model = write_model(tmp_path / "model", name)
    report, values, tensors = converted(tmp_path / "model")
    kind = name.split(",")[0]
    assert report.architecture == values["general.architecture"] == kind and report.type == "F32"
    assert tensors.keys() == expected_names(name) and len(tensors) == report.tensors
    ours = {key: np.array(array) for key, array in parameters(model.network).items()}
    word = ours["encoder.embeddings.word.weight"]
    np.testing.assert_array_equal(tensors["token_embd.weight"], word)
    config, plain = model.config, 2 if name == "nomic-bert-moe" else 1
    down = ours[f"encoder.layers.{plain}.feed_forward.down.weight"]
    np.testing.assert_array_equal(tensors[f"blk.{plain}.ffn_down.weight"], down)
    assert values[f"{kind}.block_count"] == config.num_stored_layers
    assert values[f"{kind}.embedding_length"] == 64 and values[f"{kind}.feed_forward_length"] == down.shape[1]
    assert values[f"{kind}.context_length"] == config.max_length == len(tensors.get("position_embd.weight", range(64)))
    assert values[f"{kind}.attention.head_count"] == 4
    assert values[f"{kind}.attention.causal"] is (name == "qwen3")
    eps = [value for key, value in values.items() if key.endswith("epsilon")]
    assert eps == [pytest.approx(0.01)]
    assert values["tokenizer.ggml.tokens"][:6] == ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", "\u2581the"]
    assert len(values["tokenizer.ggml.tokens"]) == len(word)


@pytest.mark.parametrize("name", ["modern-bert", "neo-bert", "gemma-embedding", "nomic-bert-moe", "bert, counted"])
def test_what_is_computed_from_our_tensors(tmp_path: Path, name: str) -> None:
    model = write_model(tmp_path / "model", name)
    _, values, tensors = converted(tmp_path / "model")
    ours = {key: np.array(array) for key, array in parameters(model.network).items()}

    def of(stem: str) -> np.ndarray:
        return ours[f"encoder.layers.1.{stem}.weight"]

    match name:
        case "modern-bert":
            gated = np.concatenate([of("feed_forward.gate"), of("feed_forward.up")])
            np.testing.assert_array_equal(tensors["blk.1.ffn_up.weight"], gated)
            joined = np.concatenate([of(f"attention.{part}") for part in ("query", "key", "value")])
            np.testing.assert_array_equal(tensors["blk.1.attn_qkv.weight"], joined)
            pattern = [values[f"modern-bert.attention.sliding_window{end}"] for end in ("", "_pattern")]
            bases = [values[f"modern-bert.rope.freq_base{end}"] for end in ("", "_swa")]
            assert (pattern, bases) == ([8, 3], [500.0, 30.0])
        case "neo-bert":  # the rotation pairs elements 0 and 8 of a head of 16 here, 0 and 1 there
            rows = tensors["blk.1.attn_qkv.weight"]
            np.testing.assert_array_equal(rows[[0, 1, 2, 17]], of("attention.query")[[0, 8, 1, 24]])
            np.testing.assert_array_equal(rows[128:], of("attention.value"))
        case "gemma-embedding":
            np.testing.assert_array_equal(tensors["blk.1.ffn_norm.weight"], of("feed_forward_norm") + 1)
            pattern = [values[f"gemma-embedding.attention.sliding_window{end}"] for end in ("", "_pattern")]
            assert (pattern, values["gemma-embedding.attention.key_length"]) == ([8, 2], 32)
        case "nomic-bert-moe":
            up, down = (ours[f"encoder.layers.1.feed_forward.experts.{part}"] for part in ("w1", "w2"))
            np.testing.assert_array_equal(tensors["blk.1.ffn_up_exps.weight"].reshape(-1, 64), up)
            np.testing.assert_array_equal(tensors["blk.1.ffn_down_exps.weight"][2], down[192:288].T)
            counts = [values[f"nomic-bert-moe.{key}"] for key in ("expert_count", "expert_used_count")]
            assert (counts, values["nomic-bert-moe.moe_every_n_layers"]) == ([4, 2], 2)
        case _:
            rows = ours["encoder.embeddings.position.weight"]
            np.testing.assert_array_equal(tensors["position_embd.weight"], rows[2:])


@pytest.mark.parametrize(("name", "options", "error"), [
    ("F32", {"dtype": "float32"}, 0.0), ("F16", {"dtype": "float16"}, 1e-3), ("BF16", {"dtype": "bfloat16"}, 8e-3),
    ("Q8_0", {"quantize": 8}, 1e-2),
])  # fmt: skip
def test_types_of_matrices(bert: Path, name: str, options: dict[str, Any], error: float) -> None:
    ours = np.array(parameters(mlxbert.load(bert, dtype="float32").network)[UP])
    report = convert(bert, **options)
    reader = gguf.GGUFReader(report.file)
    types = {tensor.name: tensor.tensor_type.name for tensor in reader.tensors}
    assert report.type == types["blk.0.ffn_up.weight"] == types["token_embd.weight"] == name
    assert {types["position_embd.weight"], types["blk.0.ffn_up.bias"]} == {"F32"}
    stored = next(tensor for tensor in reader.tensors if tensor.name == "blk.0.ffn_up.weight")
    values = gguf.dequantize(stored.data, stored.tensor_type)
    if name == "BF16":
        values = (stored.data.view(np.uint16).astype(np.uint32) << 16).view(np.float32).reshape(ours.shape)
    assert np.abs(values - ours).max() <= error * np.abs(ours).max()
    assert report.file.stat().st_size == report.bytes


def test_a_pooling_and_what_is_left_out(tmp_path: Path) -> None:
    folder = tmp_path / "model"
    write_model(folder, "bert", {"masked_lm": None})
    report = convert(folder)
    assert report.pooling == "mean" and report.left_out == ("masked-LM head",)
    write_pooling(folder, pooling_mode_cls_token=True, pooling_mode_mean_tokens=False)
    put(folder, {
        "sentence_bert_config.json": {"max_seq_length": 32, "do_lower_case": False},
        "config_sentence_transformers.json": {"prompts": {"query": "find: ", "document": ""}},
    })  # fmt: skip
    report, values, _ = converted(folder)
    assert report.pooling == "cls" and values["bert.pooling_type"] == 2
    assert [any(word in phrase for phrase in report.left_out) for word in ("32 tokens", "(query)")] == [True, True]
    report.file.unlink()
    write_pooling(folder, pooling_mode_max_tokens=True, pooling_mode_mean_tokens=False)
    refused(folder, ConfigError, "max")


DENSE = {"cls.weight", "cls.bias", "cls.output.weight", "cls.output.bias"}
THREE = Labels(("bad", "fair", "good"))


@pytest.mark.parametrize(("name", "labels", "kept", "left_out"), [
    ("bert", THREE, DENSE, ["softmax"]),
    ("bert, counted", THREE, DENSE, ["softmax"]),
    ("modern-bert", THREE, DENSE - {"cls.bias"} | {"cls.norm.weight"}, ["softmax"]),
    ("neo-bert", THREE, DENSE, ["softmax"]),
    ("qwen3", THREE, {"cls.output.weight"}, []),
    ("nomic-bert", THREE, set(), ["classification head"]),
    ("eurobert", THREE, set(), ["classification head"]),
    ("bert", Labels(("a",)), DENSE, ["sigmoid"]),
    ("bert", Labels(("a",), REGRESSION), DENSE, []),
    ("bert", Labels(("a", "b"), MULTI), DENSE, ["sigmoid"]),
    ("bert", Labels(("a", "b"), MULTI, thresholds=(0.2, 0.4)), DENSE, ["sigmoid", "thresholds"]),
    ("qwen3", Labels(("a",)), {"cls.output.weight"}, []),
    ("qwen3", Labels(("a",), REGRESSION), set(), ["classification head"]),
    ("qwen3", Labels(("a", "b"), MULTI), set(), ["classification head"]),
])  # fmt: skip
def test_classifiers_and_what_follows_their_logits(
    tmp_path: Path, name: str, labels: Labels, kept: set[str], left_out: list[str]
) -> None:
    write_model(tmp_path / "model", name, {HEAD: labels})
    report, values, tensors = converted(tmp_path / "model")
    assert {tensor for tensor in tensors if tensor.startswith("cls")} == kept
    assert report.pooling == ("classifier" if kept else "mean")
    words = ("softmax", "sigmoid", "thresholds", "classification head")
    assert [word for word in words for phrase in report.left_out if word in phrase] == left_out
    names = ["yes", "no"] if name == "qwen3" and len(labels) == 1 else list(labels.names)
    assert values.get(f"{report.architecture}.classifier.output_labels") == (names if kept else None)


def test_the_second_row_of_a_reranker_is_zero(tmp_path: Path) -> None:
    model = write_model(tmp_path / "model", "qwen3", {HEAD: Labels(("a",))})
    rows = converted(tmp_path / "model")[2]["cls.output.weight"]
    ours = np.array(parameters(model.network)[f"heads.{HEAD}.out.weight"])
    np.testing.assert_array_equal(rows, np.concatenate([ours, np.zeros_like(ours)]))


def test_a_classifier_in_the_folder_of_an_embedding_model_and_tasks(bert: Path, tmp_path: Path) -> None:
    folder = tmp_path / "both"
    write_model(folder, "bert", {HEAD: Labels(("a", "b"))})
    write_pooling(folder, pooling_mode_mean_tokens=True)
    for task, pooling in ((None, "classifier"), ("classify", "classifier"), ("embed", "mean")):
        report = convert(folder, task=task)
        assert report.pooling == pooling
        assert ("classification head" in report.left_out) is (task == "embed")
    refused(bert, ArgumentError, r"'answer', expected one of classify, embed", task="answer")
    refused(bert, ArgumentError, "no classification head", task="classify")
    write_model(tmp_path / "eurobert", "eurobert", {HEAD: Labels(("a", "b"))})
    refused(tmp_path / "eurobert", ConfigError, "classification head", task="classify")


def test_the_dense_layers_of_gemma_are_kept_and_others_are_not(tmp_path: Path) -> None:
    for name in ("bert", "gemma-embedding"):
        folder = tmp_path / name
        write_model(folder, name)
        write_pooling(folder, pooling_mode_mean_tokens=True)
        modules = json.loads((folder / "modules.json").read_text())
        for place, (out, width) in ((2, (96, 64)), (3, (64, 96))):
            path, kind = f"{place}_Dense", "sentence_transformers.models.Dense"
            modules.append({"idx": place, "name": str(place), "path": path, "type": kind})
            config = {"in_features": width, "out_features": out, "bias": False}
            identity = {"activation_function": "torch.nn.modules.linear.Identity"}
            put(folder / path, {"config.json": config | identity})
            weights = {"linear.weight": mx.random.normal((out, width))}
            mx.save_safetensors(str(folder / path / "model.safetensors"), weights)
        (folder / "modules.json").write_text(json.dumps(modules))
        report, values, tensors = converted(folder)
        assert any("Dense" in phrase for phrase in report.left_out) is (name == "bert")
    assert tensors["dense_2.weight"].shape == (96, 64) and tensors["dense_3.weight"].shape == (64, 96)
    sizes = [values[f"gemma-embedding.dense_{place}_feat_{way}"] for place in (2, 3) for way in ("in", "out")]
    assert sizes == [64, 96, 96, 64]


def with_vocabulary(folder: Path, files: dict[str, Any], kind: str) -> Path:
    write_model(folder, "bert, counted")
    (folder / "vocab.txt").unlink()
    return put(folder, files | {"tokenizer_config.json": {"tokenizer_class": kind}})


def normalized(folder: Path, change: Callable[[Tokenizer], None], **settings: str) -> Path:
    library = mlxbert.load(folder).tokenizer.files.tokenizer
    change(library)
    (folder / "vocab.txt").unlink(missing_ok=True)
    library.save(str(folder / "tokenizer.json"))
    return put(folder, {"tokenizer_config.json": {"tokenizer_class": "PreTrainedTokenizerFast"} | settings})


def test_vocabularies_of_bytes(tmp_path: Path) -> None:
    folder = with_vocabulary(tmp_path / "model", byte_files(), "RobertaTokenizer")
    values = converted(folder)[1]
    ggml = {key.removeprefix("tokenizer.ggml."): value for key, value in values.items() if key.startswith("tokenizer")}
    assert (ggml["model"], ggml["pre"], ggml["merges"][:2]) == ("gpt2", "roberta-bpe", ["i n", "in g"])
    assert [ggml[f"{role}_token_id"] for role in ("bos", "eos", "padding")] == [0, 2, 1]
    assert ggml["tokens"][ggml["mask_token_id"]] == "<mask>"
    assert [ggml[f"add_{role}_token"] for role in ("bos", "eos", "sep")] == [True, True, True]
    assert ggml["token_type"][:4] == [3, 3, 3, 3] and ggml["token_type"][-1] == 5
    assert ggml["tokens"][-1] == f"[PAD{len(tiny.VOCAB) - 1}]"
    normalized(folder, lambda library: setattr(library, "normalizer", normalizers.Lowercase()), unk_token="<unk>")
    folder.with_name("model.gguf").unlink()
    refused(folder, TokenizerError, "Lowercase")


def unigram(folder: Path, change: Callable[[Tokenizer], None] | None = None) -> Path:
    """Writes a model with a Unigram vocabulary, perhaps with other steps in front of it."""
    pytest.importorskip("sentencepiece")
    files = {"sentencepiece.bpe.model": trained(size=50, rules="FB01\t66 69\n")}
    with_vocabulary(folder, files, "XLMRobertaTokenizer")
    ends = {"bos_token": "<s>", "eos_token": "</s>", "unk_token": "<unk>", "pad_token": "<pad>"}
    return folder if change is None else normalized(folder, change, **ends)


def test_unigram_vocabularies(tmp_path: Path) -> None:
    folder = unigram(tmp_path / "model")
    values = converted(folder)[1]
    library = mlxbert.load(folder).tokenizer.files.tokenizer
    assert values["tokenizer.ggml.model"] == "t5"
    tokens = values["tokenizer.ggml.tokens"]
    assert [library.token_to_id(token) for token in tokens[:40]] == list(range(40))
    assert values["tokenizer.ggml.token_type"][:5] == [3, 3, 3, 2, 1]
    scores = values["tokenizer.ggml.scores"]
    assert len(scores) == len(tokens) and scores[4:10] == sorted(scores[4:10], reverse=True)
    assert values["tokenizer.ggml.precompiled_charsmap"]


def steps(*before: normalizers.Normalizer, prefix: str = "always", words: bool = False) -> Callable[[Tokenizer], None]:
    def change(library: Tokenizer) -> None:
        library.normalizer = normalizers.Sequence([library.normalizer, *before])
        space = pre_tokenizers.Metaspace(prepend_scheme=prefix)
        library.pre_tokenizer = pre_tokenizers.Sequence([pre_tokenizers.WhitespaceSplit(), space]) if words else space

    return change


RUNS, TRIM = normalizers.Replace(Regex(" {2,}"), " "), normalizers.Strip(left=False, right=True)
ENDS = normalizers.Replace(Regex("^ | $"), "")


@pytest.mark.parametrize(("change", "prefix", "merged", "notes"), [
    (steps(words=True), True, True, 0),
    (steps(RUNS, TRIM), True, True, 0),
    (steps(RUNS, ENDS), True, True, 0),
    (steps(RUNS), True, True, 1),
    (steps(), True, False, 1),
    (steps(prefix="never"), False, False, 0),
    (steps(TRIM, prefix="never"), False, False, 1),
])  # fmt: skip
def test_spaces_before_a_unigram_vocabulary(
    tmp_path: Path, change: Callable[[Tokenizer], None], prefix: bool, merged: bool, notes: int
) -> None:
    report, values, _ = converted(unigram(tmp_path / "model", change))
    names = ("add_space_prefix", "remove_extra_whitespaces")
    assert [values[f"tokenizer.ggml.{name}"] for name in names] == [prefix, merged]
    assert len([note for note in report.left_out if "space" in note]) == notes


@pytest.mark.parametrize(("change", "message"), [
    (steps(normalizers.Replace("``", '"')), "``"), (steps(RUNS, TRIM, prefix="never"), "no space"),
    (steps(words=True, prefix="first"), "no space"), (steps(normalizers.Lowercase()), "Lowercase"),
])  # fmt: skip
def test_steps_that_llama_cpp_does_not_have_before_a_unigram_vocabulary(
    tmp_path: Path, change: Callable[[Tokenizer], None], message: str
) -> None:
    refused(unigram(tmp_path / "model", change), TokenizerError, message)


def test_texts_are_lower_cased_only_before_word_pieces(bert: Path, tmp_path: Path) -> None:
    put(bert, {"tokenizer_config.json": {"tokenizer_class": "BertTokenizer", "do_lower_case": False}})
    for folder in (unigram(tmp_path / "unigram", steps(words=True)), bert):
        write_pooling(folder, pooling_mode_mean_tokens=True)
        put(folder, {"sentence_bert_config.json": {"max_seq_length": 64, "do_lower_case": True}})
    refused(tmp_path / "unigram", TokenizerError, "lower-cased")
    assert converted(bert)[1]["tokenizer.ggml.normalizer.lowercase"] is True


@pytest.mark.parametrize(("setting", "note"), [("clean_text", "control"), ("handle_chinese_chars", "Chinese")])
def test_word_pieces_that_are_split_differently(setting: str, note: str, bert: Path) -> None:
    assert not any(note in phrase for phrase in convert(bert).left_out)
    changed = normalizers.BertNormalizer(**{setting: False})
    normalized(bert, lambda library: setattr(library, "normalizer", changed), unk_token="[UNK]")
    assert any(note in phrase for phrase in convert(bert).left_out)


def test_arguments_and_places(bert: Path, tmp_path: Path) -> None:
    refused(bert, ArgumentError, "expected 8 bits", quantize=4)
    refused(bert, ArgumentError, "given, too", quantize=8, dtype="float16")
    refused(bert, ArgumentError, "expected one of float32", dtype="int8")
    (tmp_path / "b.gguf").write_text("mine")
    for place, message in (
        ("a.bin", "does not end in"), ("b.gguf", "is not a GGUF file"),
        ("b.gguf/a.gguf", r"b\.gguf is a file, expected a folder"),
    ):  # fmt: skip
        with pytest.raises(ArgumentError, match=message):
            mlxbert.convert_to_gguf(bert, tmp_path / place, overwrite=True)
    convert(bert)
    with pytest.raises(ArgumentError, match="already exists"):
        mlxbert.convert_to_gguf(bert, tmp_path / "model.gguf")


def small_block(array: mx.array) -> mx.array:
    array[0, :32] = 1e-7
    return array


@pytest.mark.parametrize(("change", "message"), [
    (lambda array: array * 1e8, r"ffn_up.*more than Q8_0"),
    (lambda array: array * 1e-7, r"ffn_up.*would be 0 in Q8_0"),
    (lambda array: small_block(array * 1e-3), r"ffn_up.*1e-07.*would be 0"),
    (lambda array: array * mx.array(np.inf), r"ffn_up.*not finite"),
])  # fmt: skip
def test_numbers_too_large_for_q8_0_fail(tmp_path: Path, change: Callable[[mx.array], mx.array], message: str) -> None:
    refused(changed(tmp_path / "model", change), CheckpointError, message, quantize=8)


def test_a_block_that_does_not_matter_becomes_zero_in_q8_0(tmp_path: Path) -> None:
    folder = changed(tmp_path / "model", small_block)
    ours = np.array(parameters(mlxbert.load(folder, dtype="float32").network)[UP])
    theirs = read(convert(folder, quantize=8).file)[1]["blk.0.ffn_up.weight"]
    assert not theirs[0, :32].any() and ours[0, :32].all()
    assert np.abs(theirs - ours).max() < 1e-2 * np.abs(ours).max()


def test_a_number_that_float16_cannot_hold_is_found_in_a_tensor_made_of_several(tmp_path: Path) -> None:
    key = "encoder.layers.0.attention.key.weight"
    folder = changed(tmp_path / "model", lambda array: array * 1e8, name=key, model="modern-bert")
    refused(folder, CheckpointError, r"blk\.0\.attn_qkv\.weight.*attention\.key\.weight.*float16", dtype="float16")
    (tmp_path / "mine").mkdir()
    with pytest.raises(CheckpointError, match="float16"):
        mlxbert.convert_to_gguf(folder, tmp_path / "mine" / "b" / "c" / "a.gguf", dtype="float16")
    assert (tmp_path / "mine").is_dir() and not list((tmp_path / "mine").iterdir())


def test_the_license_and_the_languages_of_the_card_are_in_the_file(bert: Path) -> None:
    card = "---\nlicense: other\nlicense_name: mine\nlicense_link: LICENSE\nlanguage: [en, no]\n---\nA model.\n"
    put(bert, {"README.md": card})
    general = {key: value for key, value in converted(bert)[1].items() if key.startswith("general.")}
    assert [general[f"general.license{end}"] for end in ("", ".name", ".link")] == ["other", "mine", "LICENSE"]
    assert general["general.languages"] == ["en", "no"] and general["general.name"] == "model"
    assert "general.source.url" not in general
    there = _origin("some/where", bert, on_hub=True)
    assert there["general.source.url"] == "https://huggingface.co/some/where"


def test_progress_counts_the_header_and_every_tensor(bert: Path) -> None:
    calls: list[tuple[int, int | None]] = []
    report = convert(bert, on_written=lambda *both: calls.append(both))
    (total,) = {total for _, total in calls}
    assert len(calls) == report.tensors and calls == sorted(calls) and calls[-1][0] == total
    assert total is not None and report.bytes - 32 * (report.tensors + 1) <= total <= report.bytes
    assert report.sha256 == hashlib.sha256(report.file.read_bytes()).hexdigest()


def test_the_bias_of_experts_is_reported_unless_it_is_zero(tmp_path: Path) -> None:
    name, other = (f"encoder.layers.{layer}.feed_forward.bias" for layer in (1, 3))
    folder = changed(tmp_path / "one", mx.zeros_like, name=name, model="nomic-bert-moe")
    assert any("bias of the experts in 1 layer" in note for note in convert(folder).left_out)
    model = mlxbert.load(folder, dtype="float32")
    model.network.update(nn.utils.tree_unflatten([(other, mx.zeros((64,)))]))
    mlxbert.save(model, tmp_path / "none")
    assert not any("bias" in note for note in convert(tmp_path / "none").left_out)


def configured(folder: Path, config: dict[str, Any]) -> Path:
    words = put(folder.with_name("words"), {"vocab.txt": "\n".join(tiny.VOCAB) + "\n"})
    put(words, {"tokenizer_config.json": {"tokenizer_class": "BertTokenizer"}})
    mlxbert.new_model(config, words, dtype="float32").save(folder)
    return folder


def without_period(name: str, *kinds: str) -> dict[str, Any]:
    """A configuration that lists which layers attend to a window and which to all tokens."""
    config = {key: value for key, value in CONFIGS[name].items() if key != "global_attn_every_n_layers"}
    return config | {
        "layer_types": [f"{kind}_attention" for kind in kinds or ["sliding"] * config["num_hidden_layers"]]
    }


@pytest.mark.parametrize(("config", "message"), [
    (CONFIGS["bert"] | {"hidden_act": "relu"}, r"hidden_act is relu, expected gelu or"),
    (CONFIGS["bert"] | {"model_type": "electra", "embedding_size": 32}, r"width of embeddings is 32, expected the wid"),
    (CONFIGS["modern-bert"] | {"mlp_bias": True}, r"layers with a bias are up, down, expected none"),
    (CONFIGS["eurobert"] | {"mlp_bias": True}, r"layers with a bias are up, down, norm, expected norm"),
    (CONFIGS["nomic-bert"] | {"hidden_act": "gelu"}, r"hidden_act is gelu, expected silu"),
    (CONFIGS["qwen3"] | {"model_type": "qwen2"}, r"mlxbert does not write Qwen2 models for llama\.cpp"),
    (CONFIGS["bert"] | {"model_type": "mpnet", "pad_token_id": 1, "max_position_embeddings": 66},
     r"MPNet.*BERT.*ModernBERT.*EmbeddingGemma"),
    (without_period("modern-bert"), "all tokens"), (without_period("gemma-embedding"), "all tokens"),
], ids=range(9))  # fmt: skip
def test_settings_that_llama_cpp_does_not_compute(tmp_path: Path, config: dict[str, Any], message: str) -> None:
    refused(configured(tmp_path / "model", config), ConfigError, message)


def test_layers_with_a_window_in_no_pattern_are_listed_one_by_one(tmp_path: Path) -> None:
    config = without_period("modern-bert", "full", "full", "sliding", "full", "sliding")
    pattern = converted(configured(tmp_path / "model", config))[1]["modern-bert.attention.sliding_window_pattern"]
    assert pattern == [False, False, True, False, True]


IDS = [2, 5, 6, 8, 20, 24, 11, 30, 31, 32, 15, 17, 3]
PAIR = [2, 5, 6, 3, 8, 20, 24, 3]
TEXTS = [
    *SENTENCES, "the cat", "", "  the   dog\tsat\n", "Tokyo is playing in Paris.", "a caf\u00e9, THE CAT!", "b b bc",
]  # fmt: skip


@pytest.fixture
def opened() -> Iterator[Any]:
    """Opens files with llama.cpp, and frees them afterwards."""
    library = pytest.importorskip("llama_cpp", reason="llama-cpp-python is not installed")
    models: list[LlamaCpp] = []

    def open_file(path: Path, pooling: int | None = None) -> LlamaCpp:
        models.append(LlamaCpp(library, path, pooling, context=256))
        return models[-1]

    yield open_file
    for model in models:
        model.close()


def lowest_cosine(a: np.ndarray, b: np.ndarray) -> float:
    units = [rows / np.linalg.norm(rows, axis=-1, keepdims=True) for rows in (a, b)]
    return float((units[0] * units[1]).sum(-1).min())


@pytest.mark.slow
@pytest.mark.parametrize("name", CONFIGS)
def test_hidden_states(tmp_path: Path, opened: Any, name: str) -> None:
    model = write_model(tmp_path / "model", name)
    if name == "nomic-bert-moe":  # llama.cpp does not add this bias, which the report says
        names = [key for key in parameters(model.network) if key.endswith("feed_forward.bias")]
        arrays = parameters(model.network)
        model.network.load_weights([(key, mx.zeros_like(arrays[key])) for key in names], strict=False)
        mlxbert.save(model, tmp_path / "zero")
        (tmp_path / "model").rename(tmp_path / "with bias")
        (tmp_path / "zero").rename(tmp_path / "model")
    for options, least in (({"dtype": "float32"}, 0.99999), ({"dtype": "float16"}, 0.9999), ({"quantize": 8}, 0.99)):
        file = tmp_path / f"{least}.gguf"
        assert not any("bias" in note for note in mlxbert.convert_to_gguf(tmp_path / "model", file, **options).left_out)
        theirs = opened(file, NO_POOLING).run(IDS)
        ours = np.array(model.network.encoder(mx.array([IDS])).last_hidden_state[0])
        assert lowest_cosine(ours, theirs) > least


@pytest.mark.slow
@pytest.mark.parametrize("name", ["bert", "bert, counted", "modern-bert", "neo-bert", "qwen3"])
@pytest.mark.parametrize("labels", [("bad", "fair", "good"), ("score",)])
def test_scores(tmp_path: Path, opened: Any, name: str, labels: tuple[str, ...]) -> None:
    model = write_model(tmp_path / "model", name, {"sequence_classifier": Labels(labels)})
    mlxbert.convert_to_gguf(tmp_path / "model", tmp_path / "a.gguf")
    file = opened(tmp_path / "a.gguf")
    assert file.pooling == RANK
    output = model.network.encoder(mx.array([PAIR]))
    ours = np.array(model.network.logits("sequence_classifier", output)[0])
    theirs = file.run(PAIR)
    if name == "qwen3":  # llama.cpp gives probabilities; one score is that of "yes"
        ours = ours if len(labels) > 1 else np.array([ours[0], 0.0])
        ours = np.exp(ours) / np.exp(ours).sum()
    np.testing.assert_allclose(theirs, ours, atol=2e-3 * max(1, np.abs(ours).max()))


def same_ids(folder: Path, file: LlamaCpp) -> None:
    tokenizer = mlxbert.load(folder).tokenizer
    texts = [text[:40] for text in TEXTS]
    assert [file.tokenize(text) for text in texts] == [tokenizer.encode(text).ids for text in texts]


@pytest.mark.slow
@pytest.mark.parametrize(("kind", "settings", "files"), [
    ("BertTokenizer", {"do_lower_case": True}, None), ("BertTokenizer", {"do_lower_case": False}, None),
    ("RobertaTokenizer", {}, byte_files),
    ("XLMRobertaTokenizer", {}, lambda: {"sentencepiece.bpe.model": trained(size=50)}),
], ids=range(4))  # fmt: skip
def test_ids(tmp_path: Path, opened: Any, kind: str, settings: dict[str, Any], files: Any) -> None:
    folder = tmp_path / "model"
    write_model(folder, "bert, counted" if files else "bert")
    if files:
        (folder / "vocab.txt").unlink()
    put(folder, (files() if files else {}) | {"tokenizer_config.json": {"tokenizer_class": kind} | settings})
    mlxbert.convert_to_gguf(folder, tmp_path / "a.gguf")
    same_ids(folder, opened(tmp_path / "a.gguf"))


@pytest.mark.slow
@pytest.mark.parametrize("change", [steps(words=True), steps(RUNS, TRIM), steps(RUNS, ENDS), steps(prefix="never")])
def test_ids_of_unigram_vocabularies_with_other_spaces(tmp_path: Path, opened: Any, change: Any) -> None:
    folder = unigram(tmp_path / "model", change)
    report = mlxbert.convert_to_gguf(folder, tmp_path / "a.gguf")
    assert not any("space" in note for note in report.left_out)
    same_ids(folder, opened(tmp_path / "a.gguf"))


@pytest.mark.slow
@pytest.mark.parametrize("write", [published.eurobert, published.qwen3, published.gemma, published.modernbert])
def test_ids_of_published_vocabularies(tmp_path: Path, opened: Any, write: Any) -> None:
    """Texts without accents that are characters of their own: llama.cpp does not compose them."""
    words = write(tmp_path / "words")
    added = json.loads((words / "tokenizer.json").read_text())
    rows = 1 + max([*added["model"]["vocab"].values(), *(token["id"] for token in added["added_tokens"])])
    name = {"eurobert": "eurobert", "qwen3": "qwen3", "gemma": "gemma-embedding"}.get(write.__name__, "modern-bert")
    config = CONFIGS[name] | {"vocab_size": rows}
    mlxbert.new_model(config, words, dtype="float32").save(tmp_path / "model")
    mlxbert.convert_to_gguf(tmp_path / "model", tmp_path / "a.gguf")
    same_ids(tmp_path / "model", opened(tmp_path / "a.gguf"))


@pytest.mark.slow
def test_a_reranker_with_a_prompt(tmp_path: Path, opened: Any) -> None:
    folder = language_model(tmp_path / "model")
    report = mlxbert.convert_to_gguf(folder, tmp_path / "a.gguf")
    assert report.pooling == "classifier" and report.architecture == "qwen3"
    values = read(tmp_path / "a.gguf")[0]
    prompt = values["tokenizer.chat_template.rerank"].replace("{query}", "a cat").replace("{document}", "The cat sat.")
    model = mlxbert.load(folder, task="classify", dtype="float32")
    ids = model.tokenizer.encode("a cat", "The cat sat.").ids
    file = opened(tmp_path / "a.gguf")
    assert file.pooling == RANK and file.tokenize(prompt) == ids
    [ours] = mlxbert.rerank(model, "a cat", ["The cat sat."])
    assert file.run(ids)[0] == pytest.approx(ours.score, abs=1e-3) and file.run(ids).sum() == pytest.approx(1)


@pytest.mark.slow
def test_vectors_of_the_built_in_model(tmp_path: Path, opened: Any) -> None:
    model = mlxbert.load("builtin", dtype="float32")
    ours = mlxbert.embed(model, SENTENCES, normalize=True)
    for options, least in (({}, 0.999), ({"dtype": "float32"}, 0.9999), ({"quantize": 8}, 0.999)):
        file = tmp_path / f"{len(options)}{least}.gguf"
        mlxbert.convert_to_gguf("builtin", file, **options)
        llama = opened(file)
        theirs = np.stack([llama.run(llama.tokenize(text)) for text in SENTENCES])
        assert lowest_cosine(np.asarray(ours), theirs) > least
