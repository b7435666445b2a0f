"""GGUF files: every tensor and every key, read back by the package `gguf`, and what llama.cpp cannot run."""

import hashlib
import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import mlxbert
from mlxbert.errors import ArgumentError, CheckpointError, ConfigError, TokenizerError
from mlxbert.labels.labels import Labels
from mlxbert.machine.device import mx, nn
from mlxbert.weights.build import parameters
from tests.helpers import tiny
from tests.helpers.gguf_models import CONFIGS, write_model, write_pooling
from tests.helpers.vocabularies import byte_files, put, trained

gguf = pytest.importorskip("gguf", reason="the package gguf is not installed")

# The tensors of each layer that llama.cpp loads, as its source lists them; "!" marks those with a bias.
_POST = "attn_q! attn_k! attn_v! attn_output! attn_output_norm! ffn_up! ffn_down! layer_output_norm!"
_PLAIN = "attn_norm attn_q attn_k attn_v attn_output ffn_norm ffn_gate ffn_up ffn_down"
LAYERS = {
    "bert": _POST,
    "jina-bert-v3": _POST,
    "nomic-bert-moe": _POST,
    "nomic-bert": "attn_q attn_k attn_v attn_output attn_output_norm! ffn_gate ffn_up ffn_down layer_output_norm!",
    "jina-bert-v2": _POST.replace("ffn_up!", "ffn_up ffn_gate"),
    "modern-bert": "attn_norm attn_qkv attn_output ffn_norm ffn_up ffn_down",
    "neo-bert": "attn_norm attn_qkv attn_output ffn_norm ffn_up ffn_down",
    "eurobert": _PLAIN,
    "qwen3": _PLAIN + " attn_q_norm attn_k_norm",
    "gemma-embedding": _PLAIN + " attn_q_norm attn_k_norm post_attention_norm post_ffw_norm",
}
TABLES = {
    "bert": "position_embd token_types token_embd_norm!", "jina-bert-v3": "token_types token_embd_norm!",
    "nomic-bert-moe": "token_types token_embd_norm!", "nomic-bert": "token_types token_embd_norm!",
    "jina-bert-v2": "token_types token_embd_norm!", "modern-bert": "token_embd_norm output_norm",
    "neo-bert": "enc.output_norm", "eurobert": "output_norm", "qwen3": "output_norm", "gemma-embedding": "output_norm",
}  # fmt: skip


def read(path: Path) -> tuple[dict[str, Any], dict[str, np.ndarray]]:
    """Returns the values and the tensors of a file."""
    reader = gguf.GGUFReader(path)
    values = {name: field.contents() for name, field in reader.fields.items()}
    return values, {tensor.name: gguf.dequantize(tensor.data, tensor.tensor_type) for tensor in reader.tensors}


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
    report = mlxbert.convert_to_gguf(tmp_path / "model", tmp_path / "a.gguf")
    values, tensors = read(tmp_path / "a.gguf")
    kind = name.split(",")[0]
    assert report.architecture == values["general.architecture"] == kind and report.type == "F32"
    assert tensors.keys() == expected_names(name) and len(tensors) == report.tensors
    ours = {key: np.array(array) for key, array in parameters(model.network).items()}
    word = ours["encoder.embeddings.word.weight"]
    np.testing.assert_array_equal(tensors["token_embd.weight"], word)
    down = ours["encoder.layers.2.feed_forward.down.weight"]
    np.testing.assert_array_equal(tensors["blk.2.ffn_down.weight"], down)
    config = model.config
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
    mlxbert.convert_to_gguf(tmp_path / "model", tmp_path / "a.gguf")
    values, tensors = read(tmp_path / "a.gguf")
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
            np.testing.assert_array_equal(
                tensors["position_embd.weight"], ours["encoder.embeddings.position.weight"][2:]
            )


def test_types_of_matrices(tmp_path: Path) -> None:
    model = write_model(tmp_path / "model", "bert")
    ours = np.array(parameters(model.network)["encoder.layers.0.feed_forward.up.weight"])
    sizes = {}
    cases: tuple[tuple[str, dict[str, Any], float], ...] = (
        ("F32", {"dtype": "float32"}, 0.0),
        ("F16", {"dtype": "float16"}, 1e-3),
        ("BF16", {"dtype": "bfloat16"}, 8e-3),
        ("Q8_0", {"quantize": 8}, 1e-2),
    )
    for name, options, error in cases:
        report = mlxbert.convert_to_gguf(tmp_path / "model", tmp_path / f"{name}.gguf", **options)
        reader = gguf.GGUFReader(tmp_path / f"{name}.gguf")
        types = {tensor.name: tensor.tensor_type.name for tensor in reader.tensors}
        assert report.type == types["blk.0.ffn_up.weight"] == types["token_embd.weight"] == name
        assert {types[f"{vector}"] for vector in ("position_embd.weight", "blk.0.ffn_up.bias")} == {"F32"}
        stored = next(tensor for tensor in reader.tensors if tensor.name == "blk.0.ffn_up.weight")
        values = gguf.dequantize(stored.data, stored.tensor_type)
        if name == "BF16":
            values = (stored.data.view(np.uint16).astype(np.uint32) << 16).view(np.float32).reshape(ours.shape)
        assert np.abs(values - ours).max() <= error * np.abs(ours).max()
        assert (tmp_path / f"{name}.gguf").stat().st_size == report.bytes
        sizes[name] = report.bytes
    assert sizes["F32"] > sizes["F16"] == sizes["BF16"] > sizes["Q8_0"]


def test_a_pooling_and_what_is_left_out(tmp_path: Path) -> None:
    folder = tmp_path / "model"
    write_model(folder, "bert", {"masked_lm": None})
    report = mlxbert.convert_to_gguf(folder, tmp_path / "a.gguf")
    assert report.pooling == "mean" and report.left_out == ("masked-LM head",)
    write_pooling(folder, pooling_mode_cls_token=True, pooling_mode_mean_tokens=False)
    (folder / "sentence_bert_config.json").write_text('{"max_seq_length": 32, "do_lower_case": false}')
    settings = {"prompts": {"query": "find: ", "document": ""}}
    (folder / "config_sentence_transformers.json").write_text(json.dumps(settings))
    report = mlxbert.convert_to_gguf(folder, tmp_path / "a.gguf", overwrite=True)
    assert report.pooling == "cls" and read(tmp_path / "a.gguf")[0]["bert.pooling_type"] == 2
    assert [any(word in phrase for phrase in report.left_out) for word in ("32 tokens", "(query)")] == [True, True]
    write_pooling(folder, pooling_mode_max_tokens=True, pooling_mode_mean_tokens=False)
    with pytest.raises(ConfigError, match="max"):
        mlxbert.convert_to_gguf(folder, tmp_path / "a.gguf", overwrite=True)
    assert report.sha256 == hashlib.sha256((tmp_path / "a.gguf").read_bytes()).hexdigest()


@pytest.mark.parametrize(
    ("name", "kept"),
    [
        ("bert", {"cls.weight", "cls.bias", "cls.output.weight", "cls.output.bias"}),
        ("bert, counted", {"cls.weight", "cls.bias", "cls.output.weight", "cls.output.bias"}),
        ("modern-bert", {"cls.weight", "cls.norm.weight", "cls.output.weight", "cls.output.bias"}),
        ("neo-bert", {"cls.weight", "cls.bias", "cls.output.weight", "cls.output.bias"}),
        ("qwen3", {"cls.output.weight"}),
        ("nomic-bert", set()),
        ("eurobert", set()),
    ],
)
def test_classifiers(tmp_path: Path, name: str, kept: set[str]) -> None:
    write_model(tmp_path / "model", name, {"sequence_classifier": Labels(("bad", "fair", "good"))})
    report = mlxbert.convert_to_gguf(tmp_path / "model", tmp_path / "a.gguf")
    values, tensors = read(tmp_path / "a.gguf")
    assert {tensor for tensor in tensors if tensor.startswith("cls")} == kept
    assert report.pooling == ("classifier" if kept else "mean")
    labels = values.get(f"{report.architecture}.classifier.output_labels")
    assert labels == (["bad", "fair", "good"] if kept else None)
    assert ("classification head" in report.left_out) is not bool(kept)


def test_the_dense_layers_of_gemma_are_kept_and_others_are_not(tmp_path: Path) -> None:
    found = {}
    for name in ("gemma-embedding", "bert"):
        folder = tmp_path / name
        write_model(folder, name)
        write_pooling(folder, pooling_mode_mean_tokens=True)
        modules = json.loads((folder / "modules.json").read_text())
        for place, (out, width) in ((2, (96, 64)), (3, (64, 96))):
            path = f"{place}_Dense"
            modules.append(
                {"idx": place, "name": str(place), "path": path, "type": "sentence_transformers.models.Dense"}
            )
            config: dict[str, Any] = {"in_features": width, "out_features": out, "bias": False}
            config["activation_function"] = "torch.nn.modules.linear.Identity"
            put(folder / path, {"config.json": config})
            mx.save_safetensors(
                str(folder / path / "model.safetensors"), {"linear.weight": mx.random.normal((out, width))}
            )
        (folder / "modules.json").write_text(json.dumps(modules))
        found[name] = mlxbert.convert_to_gguf(folder, tmp_path / f"{name}.gguf")
    values, tensors = read(tmp_path / "gemma-embedding.gguf")
    assert tensors["dense_2.weight"].shape == (96, 64) and tensors["dense_3.weight"].shape == (64, 96)
    sizes = [values[f"gemma-embedding.dense_{place}_feat_{way}"] for place in (2, 3) for way in ("in", "out")]
    assert sizes == [64, 96, 96, 64] and not any("Dense" in phrase for phrase in found["gemma-embedding"].left_out)
    assert any("Dense" in phrase for phrase in found["bert"].left_out)


def test_vocabularies(tmp_path: Path) -> None:
    """Each kind of vocabulary, in a model that is otherwise the same."""
    folder = tmp_path / "model"
    write_model(folder, "bert, counted")
    (folder / "vocab.txt").unlink()
    put(folder, byte_files() | {"tokenizer_config.json": {"tokenizer_class": "RobertaTokenizer"}})
    mlxbert.convert_to_gguf(folder, tmp_path / "a.gguf")
    values = read(tmp_path / "a.gguf")[0]
    ggml = {key.removeprefix("tokenizer.ggml."): value for key, value in values.items() if key.startswith("tokenizer")}
    assert (ggml["model"], ggml["pre"], ggml["merges"][:2]) == ("gpt2", "roberta-bpe", ["i n", "in g"])
    assert [ggml[f"{role}_token_id"] for role in ("bos", "eos", "padding")] == [0, 2, 1]
    assert ggml["tokens"][ggml["mask_token_id"]] == "<mask>"
    assert [ggml[f"add_{role}_token"] for role in ("bos", "eos", "sep")] == [True, True, True]
    assert (
        ggml["token_type"][:4] == [3, 3, 3, 3]
        and ggml["token_type"][-1] == 5
        and ggml["tokens"][-1] == f"[PAD{len(tiny.VOCAB) - 1}]"
    )


def test_unigram_vocabularies(tmp_path: Path) -> None:
    pytest.importorskip("sentencepiece")
    folder = tmp_path / "model"
    write_model(folder, "bert, counted")
    (folder / "vocab.txt").unlink()
    put(
        folder,
        {
            "sentencepiece.bpe.model": trained(size=50),
            "tokenizer_config.json": {"tokenizer_class": "XLMRobertaTokenizer"},
        },
    )
    mlxbert.convert_to_gguf(folder, tmp_path / "a.gguf")
    values = read(tmp_path / "a.gguf")[0]
    library = mlxbert.load(folder).tokenizer.files.tokenizer
    assert values["tokenizer.ggml.model"] == "t5"
    tokens = values["tokenizer.ggml.tokens"]
    assert [library.token_to_id(token) for token in tokens[:40]] == list(range(40))
    assert values["tokenizer.ggml.token_type"][:5] == [3, 3, 3, 2, 1]
    scores = values["tokenizer.ggml.scores"]
    assert len(scores) == len(tokens) and scores[4:10] == sorted(scores[4:10], reverse=True)
    assert len(values["tokenizer.ggml.precompiled_charsmap"]) > 1000


def test_what_llama_cpp_lacks(tmp_path: Path) -> None:
    write_model(tmp_path / "model", "bert")
    config = json.loads((tmp_path / "model" / "config.json").read_text())

    def refused(error: type[Exception], match: str, **changes: Any) -> None:
        (tmp_path / "model" / "config.json").write_text(json.dumps(config | changes))
        with pytest.raises(error, match=match):
            mlxbert.convert_to_gguf(tmp_path / "model", tmp_path / "a.gguf")
        assert not (tmp_path / "a.gguf").exists() and not list(tmp_path.glob("*.unfinished"))

    refused(ConfigError, "hidden_act is relu", hidden_act="relu")
    (tmp_path / "model" / "config.json").write_text(json.dumps(config))
    settings = {"tokenizer_class": "BertTokenizer", "tokenize_chinese_chars": False}
    (tmp_path / "model" / "tokenizer_config.json").write_text(json.dumps(settings))
    assert any("Chinese" in note for note in mlxbert.convert_to_gguf(tmp_path / "model", tmp_path / "a.gguf").left_out)


def test_families_that_llama_cpp_lacks(tmp_path: Path) -> None:
    sizes = CONFIGS["bert"] | {"model_type": "mpnet", "pad_token_id": 1, "max_position_embeddings": 66}
    files: dict[str, Any] = {
        "vocab.txt": "\n".join(tiny.VOCAB) + "\n",
        "tokenizer_config.json": {"tokenizer_class": "BertTokenizer"},
    }
    words = put(tmp_path / "words", files)
    mlxbert.save(mlxbert.new_model(sizes, words), tmp_path / "model")
    with pytest.raises(ConfigError, match=r"MPNet.*BERT.*ModernBERT.*EmbeddingGemma"):
        mlxbert.convert_to_gguf(tmp_path / "model", tmp_path / "a.gguf")


def test_arguments(tmp_path: Path) -> None:
    write_model(tmp_path / "model", "bert")
    cases: tuple[tuple[dict[str, Any], str], ...] = (
        ({"quantize": 4}, "expected 8 bits"),
        ({"quantize": 8, "dtype": "float16"}, "only one|given, too"),
        ({"dtype": "int8"}, "expected one of float32"),
    )
    for options, match in cases:
        with pytest.raises(ArgumentError, match=match):
            mlxbert.convert_to_gguf(tmp_path / "model", tmp_path / "a.gguf", **options)
    with pytest.raises(ArgumentError, match="does not end in"):
        mlxbert.convert_to_gguf(tmp_path / "model", tmp_path / "a.bin")
    (tmp_path / "b.gguf").write_text("mine")
    with pytest.raises(ArgumentError, match="is not a GGUF file"):
        mlxbert.convert_to_gguf(tmp_path / "model", tmp_path / "b.gguf", overwrite=True)
    mlxbert.convert_to_gguf(tmp_path / "model", tmp_path / "c.gguf")
    with pytest.raises(ArgumentError, match="already exists"):
        mlxbert.convert_to_gguf(tmp_path / "model", tmp_path / "c.gguf")


def test_a_number_that_float16_cannot_hold_is_an_error(tmp_path: Path) -> None:
    model = write_model(tmp_path / "model", "bert")
    model.network.update(
        nn.utils.tree_unflatten([("encoder.embeddings.word.weight", mx.full((len(tiny.VOCAB), 64), 1e6))])
    )
    mlxbert.save(model, tmp_path / "large")
    with pytest.raises(CheckpointError, match="float16"):
        mlxbert.convert_to_gguf(tmp_path / "large", tmp_path / "a.gguf", dtype="float16")
    assert not list(tmp_path.glob("a.gguf*"))


def test_a_tokenizer_that_llama_cpp_lacks(tmp_path: Path) -> None:
    folder = tmp_path / "model"
    write_model(folder, "bert, counted")
    (folder / "vocab.txt").unlink()
    put(folder, byte_files() | {"tokenizer_config.json": {"tokenizer_class": "RobertaTokenizer"}})
    library = mlxbert.load(folder).tokenizer.files.tokenizer
    from tokenizers import normalizers

    library.normalizer = normalizers.Lowercase()
    library.save(str(folder / "tokenizer.json"))
    put(folder, {"tokenizer_config.json": {"tokenizer_class": "PreTrainedTokenizerFast", "unk_token": "<unk>"}})
    with pytest.raises(TokenizerError, match="Lowercase"):
        mlxbert.convert_to_gguf(folder, tmp_path / "a.gguf")
