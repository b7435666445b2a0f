"""GGUF files: numbers, texts and outputs that a file cannot give are errors, or are listed as left out."""

import hashlib
import json
from collections.abc import Callable
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
from tests.export.test_gguf import read
from tests.helpers import tiny
from tests.helpers.gguf_models import CONFIGS, write_model, write_pooling
from tests.helpers.vocabularies import put, trained

pytest.importorskip("gguf", reason="the package gguf is not installed")
UP = "encoder.layers.0.feed_forward.up.weight"
HEAD = "sequence_classifier"


def changed(folder: Path, change: Callable[[mx.array], mx.array], *, name: str = UP, model: str = "bert") -> Path:
    """Writes a model in which one tensor is another."""
    made = write_model(folder.with_name(folder.name + "-before"), model)
    made.network.update(nn.utils.tree_unflatten([(name, change(parameters(made.network)[name]))]))
    mlxbert.save(made, folder)
    return folder


def small_block(array: mx.array) -> mx.array:
    array[0, :32] = 1e-7
    return array


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda array: array * 1e8, r"ffn_up.*more than Q8_0"),
        (lambda array: array * 1e-7, r"ffn_up.*would be 0 in Q8_0"),
        (lambda array: small_block(array * 1e-3), r"ffn_up.*1e-07.*would be 0"),
        (lambda array: array * mx.array(np.inf), r"ffn_up.*not finite"),
    ],
)
def test_numbers_that_q8_0_cannot_hold_are_errors(
    tmp_path: Path, change: Callable[[mx.array], mx.array], message: str
) -> None:
    folder = changed(tmp_path / "model", change)
    with pytest.raises(CheckpointError, match=message):
        mlxbert.convert_to_gguf(folder, tmp_path / "a.gguf", quantize=8)
    assert not list(tmp_path.glob("a.gguf*"))


def test_a_block_that_does_not_matter_becomes_zero_in_q8_0(tmp_path: Path) -> None:
    folder = changed(tmp_path / "model", small_block)
    mlxbert.convert_to_gguf(folder, tmp_path / "a.gguf", quantize=8)
    ours = np.array(parameters(mlxbert.load(folder, dtype="float32").network)[UP])
    theirs = read(tmp_path / "a.gguf")[1]["blk.0.ffn_up.weight"]
    assert not theirs[0, :32].any() and ours[0, :32].all()
    assert np.abs(theirs - ours).max() < 1e-2 * np.abs(ours).max()


def test_a_number_that_float16_cannot_hold_is_found_in_a_tensor_made_of_several(tmp_path: Path) -> None:
    key = "encoder.layers.0.attention.key.weight"
    folder = changed(tmp_path / "model", lambda array: array * 1e8, name=key, model="modern-bert")
    with pytest.raises(CheckpointError, match=r"blk\.0\.attn_qkv\.weight.*attention\.key\.weight"):
        mlxbert.convert_to_gguf(folder, tmp_path / "a.gguf", dtype="float16")


def unigram(folder: Path, change: Callable[[Tokenizer], None]) -> Path:
    """Writes a model with a Unigram vocabulary and other steps in front of it."""
    write_model(folder, "bert, counted")
    (folder / "vocab.txt").unlink()
    settings = {"tokenizer_class": "XLMRobertaTokenizer"}
    put(folder, {"sentencepiece.bpe.model": trained(size=50, rules="FB01\t66 69\n"), "tokenizer_config.json": settings})
    library = mlxbert.load(folder).tokenizer.files.tokenizer
    change(library)
    library.save(str(folder / "tokenizer.json"))
    ends = {"bos_token": "<s>", "eos_token": "</s>", "unk_token": "<unk>", "pad_token": "<pad>"}
    return put(folder, {"tokenizer_config.json": {"tokenizer_class": "PreTrainedTokenizerFast"} | ends})


def steps(*before: normalizers.Normalizer, prefix: str = "always", words: bool = False) -> Callable[[Tokenizer], None]:
    def change(library: Tokenizer) -> None:
        library.normalizer = normalizers.Sequence([library.normalizer, *before])
        space = pre_tokenizers.Metaspace(prepend_scheme=prefix)
        library.pre_tokenizer = pre_tokenizers.Sequence([pre_tokenizers.WhitespaceSplit(), space]) if words else space

    return change


RUNS, TRIM = normalizers.Replace(Regex(" {2,}"), " "), normalizers.Strip(left=False, right=True)


@pytest.mark.parametrize(
    ("change", "prefix", "merged", "notes"),
    [
        (steps(words=True), True, True, 0),
        (steps(RUNS, TRIM), True, True, 0),
        (steps(RUNS, normalizers.Replace(Regex("^ | $"), "")), True, True, 0),
        (steps(RUNS), True, True, 1),
        (steps(), True, False, 1),
        (steps(prefix="never"), False, False, 0),
        (steps(TRIM, prefix="never"), False, False, 1),
    ],
)
def test_spaces_before_a_unigram_vocabulary(
    tmp_path: Path, change: Callable[[Tokenizer], None], prefix: bool, merged: bool, notes: int
) -> None:
    report = mlxbert.convert_to_gguf(unigram(tmp_path / "model", change), tmp_path / "a.gguf")
    values = read(tmp_path / "a.gguf")[0]
    names = ("add_space_prefix", "remove_extra_whitespaces")
    assert [values[f"tokenizer.ggml.{name}"] for name in names] == [prefix, merged]
    assert len([note for note in report.left_out if "space" in note]) == notes


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (steps(normalizers.Replace("``", '"')), "``"),
        (steps(RUNS, TRIM, prefix="never"), "no space"),
        (steps(words=True, prefix="first"), "no space"),
        (steps(normalizers.Lowercase()), "Lowercase"),
    ],
)
def test_steps_that_llama_cpp_does_not_have_before_a_unigram_vocabulary(
    tmp_path: Path, change: Callable[[Tokenizer], None], message: str
) -> None:
    folder = unigram(tmp_path / "model", change)
    with pytest.raises(TokenizerError, match=message):
        mlxbert.convert_to_gguf(folder, tmp_path / "a.gguf")


def test_texts_are_lower_cased_only_before_word_pieces(tmp_path: Path) -> None:
    folder = unigram(tmp_path / "model", steps(words=True))
    write_pooling(folder, pooling_mode_mean_tokens=True)
    put(folder, {"sentence_bert_config.json": {"max_seq_length": 64, "do_lower_case": True}})
    with pytest.raises(TokenizerError, match="lower-cased"):
        mlxbert.convert_to_gguf(folder, tmp_path / "a.gguf")
    folder = tmp_path / "pieces"
    write_model(folder, "bert")
    put(folder, {"tokenizer_config.json": {"tokenizer_class": "BertTokenizer", "do_lower_case": False}})
    write_pooling(folder, pooling_mode_mean_tokens=True)
    put(folder, {"sentence_bert_config.json": {"max_seq_length": 64, "do_lower_case": True}})
    mlxbert.convert_to_gguf(folder, tmp_path / "a.gguf")
    assert read(tmp_path / "a.gguf")[0]["tokenizer.ggml.normalizer.lowercase"] is True


def test_word_pieces_with_control_characters(tmp_path: Path) -> None:
    folder = tmp_path / "model"
    write_model(folder, "bert")
    assert not any("control" in note for note in convert(folder).left_out)
    library = mlxbert.load(folder).tokenizer.files.tokenizer
    library.normalizer = normalizers.BertNormalizer(clean_text=False)
    (folder / "vocab.txt").unlink(missing_ok=True)
    library.save(str(folder / "tokenizer.json"))
    put(folder, {"tokenizer_config.json": {"tokenizer_class": "PreTrainedTokenizerFast", "unk_token": "[UNK]"}})
    report = mlxbert.convert_to_gguf(folder, tmp_path / "b.gguf")
    assert any("control" in note for note in report.left_out)


MULTI, REGRESSION = "multi_label_classification", "regression"


@pytest.mark.parametrize(
    ("name", "labels", "kept", "left_out"),
    [
        ("bert", Labels(("a", "b")), True, ["softmax"]),
        ("bert", Labels(("a",)), True, ["sigmoid"]),
        ("bert", Labels(("a",), REGRESSION), True, []),
        ("bert", Labels(("a", "b"), MULTI), True, ["sigmoid"]),
        ("bert", Labels(("a", "b"), MULTI, thresholds=(0.2, 0.4)), True, ["sigmoid", "thresholds"]),
        ("qwen3", Labels(("a", "b")), True, []),
        ("qwen3", Labels(("a",)), True, []),
        ("qwen3", Labels(("a",), REGRESSION), False, ["classification head"]),
        ("qwen3", Labels(("a", "b"), MULTI), False, ["classification head"]),
    ],
)
def test_what_follows_the_logits_of_a_classifier(
    tmp_path: Path, name: str, labels: Labels, kept: bool, left_out: list[str]
) -> None:
    write_model(tmp_path / "model", name, {HEAD: labels})
    report = mlxbert.convert_to_gguf(tmp_path / "model", tmp_path / "a.gguf")
    assert (report.pooling == "classifier") is kept
    words = ("softmax", "sigmoid", "thresholds", "classification head")
    assert [word for word in words for phrase in report.left_out if word in phrase] == left_out
    names = read(tmp_path / "a.gguf")[0].get(f"{name}.classifier.output_labels")
    expected = ["yes", "no"] if name == "qwen3" and len(labels) == 1 else list(labels.names)
    assert names == (expected if kept else None)


def test_the_second_row_of_a_reranker_is_zero(tmp_path: Path) -> None:
    model = write_model(tmp_path / "model", "qwen3", {HEAD: Labels(("a",))})
    convert(tmp_path / "model")
    rows = read(tmp_path / "model.gguf")[1]["cls.output.weight"]
    ours = np.array(parameters(model.network)[f"heads.{HEAD}.out.weight"])
    np.testing.assert_array_equal(rows, np.concatenate([ours, np.zeros_like(ours)]))


def test_a_classifier_in_the_folder_of_an_embedding_model_and_tasks(tmp_path: Path) -> None:
    folder = tmp_path / "model"
    write_model(folder, "bert", {HEAD: Labels(("a", "b"))})
    write_pooling(folder, pooling_mode_mean_tokens=True)
    for task, pooling in ((None, "classifier"), ("classify", "classifier"), ("embed", "mean")):
        report = mlxbert.convert_to_gguf(folder, tmp_path / f"{task}.gguf", task=task)
        assert report.pooling == pooling
        assert ("classification head" in report.left_out) is (task == "embed")
    with pytest.raises(ArgumentError, match=r"'answer', expected one of classify, embed"):
        mlxbert.convert_to_gguf(folder, tmp_path / "a.gguf", task="answer")
    write_model(tmp_path / "plain", "bert")
    with pytest.raises(ArgumentError, match="no classification head"):
        mlxbert.convert_to_gguf(tmp_path / "plain", tmp_path / "a.gguf", task="classify")
    write_model(tmp_path / "eurobert", "eurobert", {HEAD: Labels(("a", "b"))})
    with pytest.raises(ConfigError, match="classification head"):
        mlxbert.convert_to_gguf(tmp_path / "eurobert", tmp_path / "a.gguf", task="classify")


@pytest.mark.parametrize("name", ["modern-bert", "gemma-embedding"])
def test_a_model_in_which_no_layer_attends_to_all_tokens(tmp_path: Path, name: str) -> None:
    write_model(tmp_path / "model", name)
    path = tmp_path / "model" / "config.json"
    config = json.loads(path.read_text())
    config["layer_types"] = ["sliding_attention"] * config["num_hidden_layers"]
    config = {key: value for key, value in config.items() if key != "global_attn_every_n_layers"}
    path.write_text(json.dumps(config))
    with pytest.raises(ConfigError, match="all tokens"):
        mlxbert.convert_to_gguf(tmp_path / "model", tmp_path / "a.gguf")


def test_the_license_and_the_languages_of_the_card_are_in_the_file(tmp_path: Path) -> None:
    folder = tmp_path / "model"
    write_model(folder, "bert")
    card = "---\nlicense: other\nlicense_name: mine\nlicense_link: LICENSE\nlanguage: [en, no]\n---\nA model.\n"
    put(folder, {"README.md": card})
    mlxbert.convert_to_gguf(folder, tmp_path / "a.gguf")
    values = read(tmp_path / "a.gguf")[0]
    general: dict[str, Any] = {key: value for key, value in values.items() if key.startswith("general.")}
    assert [general[f"general.license{end}"] for end in ("", ".name", ".link")] == ["other", "mine", "LICENSE"]
    assert general["general.languages"] == ["en", "no"] and general["general.name"] == "model"
    assert "general.source.url" not in general
    there = _origin("some/where", folder, on_hub=True)
    assert there["general.source.url"] == "https://huggingface.co/some/where"


def test_nothing_stays_of_a_file_that_is_not_finished(tmp_path: Path) -> None:
    folder = changed(tmp_path / "model", lambda array: array * 1e8)
    (tmp_path / "mine").mkdir()
    with pytest.raises(CheckpointError, match="float16"):
        mlxbert.convert_to_gguf(folder, tmp_path / "mine" / "b" / "c" / "a.gguf", dtype="float16")
    assert (tmp_path / "mine").is_dir() and not list((tmp_path / "mine").iterdir())


def test_progress_counts_the_header_and_every_tensor(tmp_path: Path) -> None:
    write_model(tmp_path / "model", "bert")
    calls: list[tuple[int, int | None]] = []
    report = mlxbert.convert_to_gguf(
        tmp_path / "model", tmp_path / "a.gguf", on_written=lambda done, total: calls.append((done, total))
    )
    (total,) = {total for _, total in calls}
    assert len(calls) == report.tensors and calls == sorted(calls) and calls[-1][0] == total
    assert total is not None and report.bytes - 32 * (report.tensors + 1) <= total <= report.bytes
    assert report.sha256 == hashlib.sha256((tmp_path / "a.gguf").read_bytes()).hexdigest()


def test_a_file_in_the_place_of_a_folder(tmp_path: Path) -> None:
    write_model(tmp_path / "model", "bert")
    (tmp_path / "b.gguf").write_text("mine")
    with pytest.raises(ArgumentError, match=r"b\.gguf is a file, expected a folder"):
        mlxbert.convert_to_gguf(tmp_path / "model", tmp_path / "b.gguf" / "a.gguf")


def test_the_bias_of_experts_is_reported_unless_it_is_zero(tmp_path: Path) -> None:
    name = "encoder.layers.1.feed_forward.bias"
    other = "encoder.layers.3.feed_forward.bias"
    folder = changed(tmp_path / "one", mx.zeros_like, name=name, model="nomic-bert-moe")
    assert any("bias of the experts in 1 layer" in note for note in convert(folder).left_out)
    model = mlxbert.load(folder, dtype="float32")
    model.network.update(nn.utils.tree_unflatten([(other, mx.zeros((64,)))]))
    mlxbert.save(model, tmp_path / "none")
    assert not any("bias" in note for note in convert(tmp_path / "none").left_out)


def convert(folder: Path) -> mlxbert.GgufConversion:
    return mlxbert.convert_to_gguf(folder, folder.with_name(folder.name + ".gguf"))


@pytest.mark.parametrize(
    ("name", "changes", "message"),
    [
        ("bert", {"hidden_act": "relu"}, r"hidden_act is relu, expected gelu or"),
        ("bert", {"model_type": "electra", "embedding_size": 32}, r"width of embeddings is 32, expected the width of"),
        ("modern-bert", {"mlp_bias": True}, r"layers with a bias are up, down, expected none"),
        ("eurobert", {"mlp_bias": True}, r"layers with a bias are up, down, norm, expected norm"),
        ("nomic-bert", {"hidden_act": "gelu"}, r"hidden_act is gelu, expected silu"),
        ("qwen3", {"model_type": "qwen2"}, r"mlxbert does not write Qwen2 models for llama\.cpp"),
    ],
)
def test_settings_that_llama_cpp_does_not_compute(
    tmp_path: Path, name: str, changes: dict[str, Any], message: str
) -> None:
    words = put(tmp_path / "words", {"vocab.txt": "\n".join(tiny.VOCAB) + "\n"})
    put(words, {"tokenizer_config.json": {"tokenizer_class": "BertTokenizer"}})
    mlxbert.new_model(CONFIGS[name] | changes, words, dtype="float32").save(tmp_path / "model")
    with pytest.raises(ConfigError, match=message):
        mlxbert.convert_to_gguf(tmp_path / "model", tmp_path / "a.gguf")


def test_layers_with_a_window_in_no_pattern_are_listed_one_by_one(tmp_path: Path) -> None:
    words = put(tmp_path / "words", {"vocab.txt": "\n".join(tiny.VOCAB) + "\n"})
    put(words, {"tokenizer_config.json": {"tokenizer_class": "BertTokenizer"}})
    kinds = ["full_attention", "full_attention", "sliding_attention", "full_attention", "sliding_attention"]
    config = {key: value for key, value in CONFIGS["modern-bert"].items() if key != "global_attn_every_n_layers"}
    mlxbert.new_model(config | {"layer_types": kinds}, words, dtype="float32").save(tmp_path / "model")
    convert(tmp_path / "model")
    pattern = read(tmp_path / "model.gguf")[0]["modern-bert.attention.sliding_window_pattern"]
    assert pattern == [False, False, True, False, True]
