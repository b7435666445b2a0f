"""What a folder says of its model, and what it cannot be used for; and that results of folders cannot be changed."""

import dataclasses
import json
import math
import pickle
import re
from pathlib import Path
from typing import Any

import pytest

import mlxbert
from mlxbert.cli.views import console
from mlxbert.cli.views.inspect import by_layer
from mlxbert.folders.inspect import inspect_headers
from mlxbert.folders.inspection import TensorFacts
from mlxbert.frozen_dict import FrozenDict, frozen
from mlxbert.goldens.golden_outputs import arrays
from mlxbert.machine.device import mx
from mlxbert.results.json import plain
from mlxbert.weights.formats.weight_files import open_weights
from mlxbert.weights.model_source import ModelRef
from tests.helpers.program import TERMINALS, Terminal, call, change_config, change_weights, terminal, tiny_model
from tests.helpers.rooms import needs
from tests.helpers.st_folder import NORMALIZE, dense, pooling, save_st, write_json
from tests.helpers.tf_files import write_model
from tests.helpers.tiny import VOCAB, save, with_nan


def inspected(folder: Path) -> dict[str, Any]:
    outcome = call("inspect", str(folder))
    assert (outcome.status, outcome.err) == (0, "")
    found: dict[str, Any] = outcome.lines[0]
    return found


def drawn(folder: Path | str, *options: str, columns: int = 100, show: Terminal = terminal) -> str:
    """What a terminal shows, without what steers it and without spaces at the ends of lines."""
    outcome, shown = show("inspect", str(folder), "--all", *options, COLUMNS=str(columns))
    assert outcome.status == 0
    return "\n".join(line.rstrip() for line in re.sub(r"\x1b\[[\d;]*m", "", shown).split("\n"))


@pytest.fixture
def model(tmp_path: Path) -> Path:
    return tiny_model(tmp_path / "model")


def test_the_kind_of_a_model_and_what_says_so(model: Path) -> None:
    change_config(model, architectures=["BertForPreTraining"], id2label={"0": "no", "1": "yes"})
    found = inspected(model)
    assert (found["family"], found["because"]) == ("bert", "config.json says model_type 'bert'")
    assert found["architectures"] == ["BertForPreTraining"]
    assert found["labels"] == {"0": "no", "1": "yes"}
    config = found["config"]
    assert config["positions"] == {"type": "Absolute", "max_position_embeddings": 24, "first_position": 0}
    assert (config["block"], config["layer_schedule"]) == ({"type": "PostNorm", "adds_input_twice": False}, [0, 1])
    assert (config["head_size"], config["num_stored_layers"], config["max_length"]) == (8, 2, 24)


def test_parts_are_named_as_in_the_file_and_counted(model: Path) -> None:
    found = inspected(model)
    named = {part: (facts["in_file"], facts["in_network"]) for part, facts in found["parts"].items()}
    assert named == {
        "encoder": ("bert", "encoder"),
        "pooler": ("bert.pooler.dense", "encoder.pooler.dense"),
        "masked_lm": ("cls.predictions", "heads.masked_lm"),
        "next_sentence": ("cls.seq_relationship", "heads.next_sentence.dense"),
    }
    stored = arrays(model / "model.safetensors")
    total = sum(array.size for array in stored.values())
    assert sum(part["parameters"] for part in found["parts"].values()) == total == found["parameters"]["total"]
    assert sum(part["tensors"] for part in found["parts"].values()) == len(stored)
    assert found["memory"] == {"float32": 4 * total, "float16": 2 * total, "bfloat16": 2 * total}
    size = (model / "model.safetensors").stat().st_size
    weights = {"format": "safetensors", "storage": "F32", "bytes": size, "files": {"model.safetensors": size}}
    assert found["weights"] == weights | {"here": True, "with_nan": []}
    assert not any("stored_as" in tensor for tensor in found["tensors"])  # names are those of transformers
    assert found["skipped"] == {"count": 0, "example": None}


@needs("export")
def test_names_of_the_file_and_what_else_it_holds(tmp_path: Path) -> None:
    folder = write_model("bert-pretraining", tmp_path / "google")
    words = json.loads((folder / "config.json").read_text(encoding="utf-8"))["vocab_size"]
    tokens = [*VOCAB[:5], *(f"w{number}" for number in range(words - 5))]
    (folder / "vocab.txt").write_text("\n".join(tokens), encoding="utf-8")
    found = inspected(folder)
    assert found["weights"]["format"] == "TensorFlow 1"
    stored = {tensor["name"]: tensor["stored_as"] for tensor in found["tensors"]}
    name, becomes = "bert.encoder.layer.1.output.dense.weight", "encoder.layers.1.feed_forward.down.weight"
    assert stored[name] == "bert/encoder/layer_1/output/dense/kernel"
    skipped = open_weights(folder, ["BertForPreTraining"]).skipped
    assert found["skipped"] == {"count": len(skipped), "example": skipped[0]} and "adam_m" in skipped[0]
    wide = drawn(folder, "--tensors", columns=200)
    assert "TensorFlow 1" in wide and skipped[0] in wide
    assert f"F32    12 x 20  {stored[name]} → {name} → {becomes}\n" in wide
    narrow = drawn(folder, "--tensors", columns=70)
    assert re.search(rf"{re.escape(stored[name])}\n +→ {re.escape(name)}\n +→ {re.escape(becomes)}\n", narrow)
    assert f"{stored[name].replace('1', '{0…1}')} → " in drawn(folder, columns=200)


def test_a_row_for_several_layers_names_the_layers_that_have_the_tensor() -> None:
    for layers, named in (((0, 1, 2), "{0…2}"), ((1, 2, 3, 4), "{1…4}"), ((1, 4), "{1,4}")):
        rows = [TensorFacts(f"layers.{n}.norm", f"l/layer_{n}/norm", "F32", (4,), f"layers.{n}.norm") for n in layers]
        (row,) = by_layer(rows)
        assert (row.name, row.stored_as) == (f"layers.{named}.norm", f"l/layer_{named}/norm")


@TERMINALS
def test_names_that_are_those_of_transformers_are_said_once(show: Terminal, model: Path) -> None:
    shown = drawn(model, columns=200, show=show)
    assert "not used" not in shown and re.search(r"weights +safetensors, F32, ", shown)


def test_an_encoder_alone_has_no_beginning_in_common(model: Path) -> None:
    def alone(arrays: dict[str, mx.array]) -> None:
        for name in list(arrays):
            array = arrays.pop(name)
            if name.startswith("bert.") and "pooler" not in name:
                arrays[name.removeprefix("bert.")] = array

    change_weights(model, alone)
    found = inspected(model)
    assert found["parts"]["encoder"]["in_file"] == "embeddings, encoder"
    assert found["tasks"] == ["embed"]
    assert found["lacking"] == {
        "fill-mask": "the weights have no masked-LM head",
        "next-sentence": "the weights have no pooler and next-sentence head",
        "classify": "the weights have no pooler and classification head",
        "tag": "the weights have no tagging head",
        "answer": "the weights have no question-answering head",
        "replaced": "the weights have no replaced-token-detection head",
    }


def test_what_is_not_used_and_why(model: Path) -> None:
    copy = "cls.predictions.decoder.bias"
    copied = {copy: "cls.predictions.bias", "classifier.bias": "bert.pooler.dense.bias"}
    change_weights(model, lambda arrays: arrays.update({"embeddings.position_ids": mx.arange(24)[None]}))
    change_weights(model, lambda arrays: arrays.update({name: arrays[of] for name, of in copied.items()}))
    found = inspected(model)
    why = {tensor["name"]: tensor["why"] for tensor in found["unused"]}
    assert why.keys() == {*copied, "embeddings.position_ids"} and found["weights"]["storage"] == "F32"
    assert why[copy] == "a copy of cls.predictions.bias"
    assert "head that mlxbert does not run" in why["classifier.bias"]
    shown = drawn(model)
    assert "not used" in shown and why["classifier.bias"] in shown


@pytest.mark.parametrize(
    ("damaged", "said"),
    [
        (None, "is missing"),
        (mx.zeros(3), "has shape (3,), expected (60,) by config.json"),
        (mx.zeros(60, mx.int32), "has dtype I32, expected one of F32, F16, BF16"),
    ],
    ids=["missing", "shape", "dtype"],
)
def test_a_damaged_head_is_said_and_the_rest_can_be_used(model: Path, damaged: mx.array | None, said: str) -> None:
    name = "cls.predictions.bias"
    change_weights(model, lambda arrays: arrays.pop(name) if damaged is None else arrays.update({name: damaged}))
    found, said = inspected(model), f"tensor '{name}' {said}"
    assert found["parts"]["masked_lm"]["problem"] == said
    lacking = {"classify", "tag", "answer", "replaced"}
    assert found["lacking"].pop("fill-mask") == said and set(found["lacking"]) == lacking
    assert found["tasks"] == ["next-sentence", "embed"]
    call("fill-mask", "[MASK]", "--model", str(model)).fails(1, said)
    assert call("next-sentence", "the", "cat", "--model", str(model)).status == 0


def test_what_cannot_be_run_is_refused_with_what_is_known(model: Path) -> None:
    change_config(model, model_type="gpt2")
    call("inspect", str(model)).fails(1, "config.json: model_type is 'gpt2'", "mlxbert runs bert,")
    change_config(model, model_type="bert", position_embedding_type="relative_key")
    call("inspect", str(model)).fails(1, "position_embedding_type is 'relative_key'")
    change_config(model, position_embedding_type="absolute")
    change_weights(model, lambda arrays: arrays.update({"other.weight": mx.zeros(3)}))
    call("inspect", str(model)).fails(1, "tensor 'other.weight' is not a weight", "hint: ")


def test_a_tokenizer_of_another_model_can_do_nothing(model: Path) -> None:
    with (model / "vocab.txt").open("a", encoding="utf-8") as file:
        file.write("more\n")
    found = inspected(model)
    assert (found["tokenizer"]["vocab_size"], found["tokenizer"]["word_embeddings"]) == (61, 60)
    assert found["tasks"] == []
    assert all("61 tokens" in reason and "60 word embeddings" in reason for reason in found["lacking"].values())
    call("fill-mask", "[MASK]", "--model", str(model)).fails(1, "61 tokens", "60 word")


def test_the_tokenizer_and_what_limits_the_input(model: Path) -> None:
    settings: list[tuple[dict[str, Any], int, list[str], bool]] = [
        ({}, 24, ["config"], True),
        ({"model_max_length": 20, "do_lower_case": False}, 20, ["tokenizer"], False),
        ({"model_max_length": 24}, 24, ["config", "tokenizer"], True),
    ]
    for given, longest, limited_by, lower in settings:
        write_json(model / "tokenizer_config.json", given)
        found = inspected(model)
        assert (found["max_length"], found["limited_by"]) == (longest, limited_by)
        limits = {"config": 24, "tokenizer": given.get("model_max_length"), "sentence_transformers": None}
        assert found["limits"] == limits and found["embedding"]["max_length"] == longest
        assert (found["tokenizer"]["kind"], found["tokenizer"]["lower_case"]) == ("WordPiece", lower)
    ends = {"type": "BertProcessing", "cls": ["[CLS]", 1], "sep": ["[SEP]", 2]}
    words = ["[UNK]", "[CLS]", "[SEP]", "a"]
    kinds: dict[str, dict[str, Any]] = {
        "BPE": {"vocab": {word: number for number, word in enumerate(words)}, "merges": []},
        "Unigram": {"unk_id": 0, "vocab": [[word, -1.0] for word in words]},
    }
    write_json(model / "tokenizer_config.json", {"tokenizer_class": "PreTrainedTokenizerFast"})
    for kind, vocabulary in kinds.items():
        saved = {"version": "1.0", "added_tokens": [], "model": {"type": kind} | vocabulary, "post_processor": ends}
        write_json(model / "tokenizer.json", saved)
        assert inspected(model)["tokenizer"]["kind"] == kind


def test_vectors_as_the_files_of_sentence_transformers_say(tmp_path: Path) -> None:
    settings = {"prompts": {"query": "q: "}, "default_prompt_name": "query", "similarity_fn_name": "dot"}
    specs = [pooling("cls"), dense(mx.zeros((7, 24)), mx.zeros(7)), NORMALIZE]
    folder = save_st(tmp_path / "st", *specs, transformer={"max_seq_length": 16}, settings=settings)
    found = inspected(folder)
    vectors, total = found["embedding"], found["parameters"]["total"]
    linear = {"kind": "Dense", "folder": "2_Dense", "parameters": 7 * 24 + 7}
    assert vectors["modules"][0] == linear | {"shapes": {"linear.weight": [7, 24], "linear.bias": [7]}}
    facts = {"poolings": ["cls"], "size": 7, "unit": True, "stated": True, "similarity": "dot", "max_length": 16}
    assert vectors.items() >= (facts | {"prompts": {"query": "q: "}, "default_prompt_name": "query"}).items()
    assert found["max_length"] == 32 and found["limits"]["sentence_transformers"] == 16
    assert found["parameters"]["2_Dense"] == 175
    assert found["memory"]["float16"] == 2 * (total - 175) + 4 * 175
    assert list(found["weights"]["files"]) == ["model.safetensors", "2_Dense/model.safetensors"]
    assert found["weights"]["bytes"] == sum((folder / file).stat().st_size for file in found["weights"]["files"])
    shown = drawn(folder)
    for line in ("for vectors +16 tokens", "pooling +cls\\b", "then +Dense linear.weight 7 x 24", "then +Normalize"):
        assert re.search(line, shown), line
    assert re.search("similarity +dot\\b", shown)


def test_vectors_by_default_and_vectors_that_are_impossible(tmp_path: Path) -> None:
    folder = save(tmp_path / "plain")
    assert inspected(folder)["embedding"]["stated"] is False
    assert re.search(r"pooling +mean \(default: no sentence-transformers files\)", drawn(folder))
    write_json(folder / "modules.json", [{"type": "other.Module", "path": ""}])
    found = inspected(folder)
    assert found["embedding"].keys() == {"problem"} and found["tasks"] == ["fill-mask", "next-sentence"]
    assert "a module has type 'other.Module'" in found["lacking"]["embed"]
    assert "cannot embed" in drawn(folder)


@pytest.mark.parametrize("whole", [True, False])
def test_the_view_fits_a_terminal_without_cut_numbers(whole: bool, model: Path) -> None:
    found = inspected(model)
    assert sum(math.prod(tensor["shape"]) for tensor in found["tensors"]) == found["parameters"]["total"]
    for columns in (80, 200):
        text = drawn(model, *(["--tensors"] if whole else []), columns=columns)
        assert max(map(len, text.split("\n"))) <= columns and "…" not in text.replace("{0…1}", "")
        assert all(f" {count:,} " in text for count in found["parameters"].values())
        assert all(f" {console.size(size)}" in text for size in found["memory"].values())
        for tensor in found["tensors"]:
            if whole or "layer." not in tensor["name"]:
                shape = " x ".join(map(str, tensor["shape"]))
                assert re.search(rf"^{tensor['dtype']} +{shape} +{re.escape(tensor['name'])}\b", text, re.MULTILINE)
                assert re.search(rf"→ {re.escape(tensor['becomes'])}$", text, re.MULTILINE)


@needs("export")
def test_weights_with_nan_are_named_though_no_fixed_text_meets_them(tmp_path: Path) -> None:
    a = with_nan(tiny_model(tmp_path / "a"), "##h")
    (name,) = mlxbert.inspect(a).weights.with_nan
    assert inspect_headers(ModelRef(a)).weights.with_nan == ()  # a server asks for sizes alone
    assert name.endswith("word_embeddings.weight") and "damaged" in terminal("inspect", str(a))[1]
    assert any("NaN in the weights" in note for note in mlxbert.verify(a, a).notes)


def unchangeable(value: Any) -> bool:
    """Whether a value is made of frozen dataclasses, read-only mappings, tuples and single values alone."""
    if dataclasses.is_dataclass(value):
        fields = [getattr(value, field.name) for field in dataclasses.fields(value)]
        return type(value).__dataclass_params__.frozen and all(map(unchangeable, fields))  # type: ignore[union-attr]
    if isinstance(value, FrozenDict | tuple):
        return all(map(unchangeable, value.values() if isinstance(value, FrozenDict) else value))
    return value is None or isinstance(value, bool | int | float | str | Path)


@needs("export")
def test_results_are_frozen_all_the_way_down(tmp_path: Path) -> None:
    modules = pooling("mean"), dense(mx.ones((6, 24))), NORMALIZE
    settings = {"prompts": {"query": "q: "}, "similarity_fn_name": "dot"}
    a = save_st(tmp_path / "a", *modules, settings=settings)
    b = save_st(tmp_path / "b", pooling("cls"), settings={"prompts": {"other": ""}})
    results = mlxbert.inspect(a), mlxbert.verify(a, b), mlxbert.convert(a, tmp_path / "c")
    for found in results:
        assert unchangeable(found)
        json.dumps(found.to_dict(), allow_nan=False)
    prompts = next(one for one in results[1].differences if one.name == "prompts")
    assert (prompts.a, prompts.to_dict()["a"]) == (FrozenDict({"query": "q: "}), {"query": "q: "})


def test_a_frozen_dictionary_is_a_mapping_that_cannot_be_changed() -> None:
    found = frozen({"a": [1, {"b": None}], "c": {}})
    assert list(found) == ["a", "c"] and found["a"][1]["b"] is None and len(found["c"]) == 0
    assert plain(found) == {"a": [1, {"b": None}], "c": {}} and found == {"a": (1, {"b": None}), "c": {}}
    assert len({found, frozen({"a": [1, {"b": None}], "c": {}})}) == 1
    one, other = FrozenDict({"a": 1, "b": 2}), FrozenDict({"b": 2, "a": 1})
    assert one == other == {"a": 1, "b": 2} and len({one, other}) == 1
    assert pickle.loads(pickle.dumps(found)) == found
    with pytest.raises(KeyError):
        found["x"]
    with pytest.raises(TypeError):
        found["a"] = 1
