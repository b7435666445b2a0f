"""`mlxbert.verify`: planted differences of facts, tokenizers, vectors, tensors and outputs, each found and named."""

import json
import logging
import math
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import mlxbert
from mlxbert import Verification
from mlxbert.errors import ArgumentError, CheckpointError
from mlxbert.export import verify as module
from mlxbert.export.compare import outputs
from mlxbert.export.compare.fixed_texts import PAIRS, TEXTS
from mlxbert.export.compare.outputs import _divergence, _same_choices, judge, more_bits
from mlxbert.export.compare.reports import MaskDifferences, OutputDifferences, TensorCounts, VectorDifferences
from mlxbert.frozen_dict import FrozenDict
from mlxbert.machine.device import mx
from mlxbert.results.embed import Embedding
from mlxbert.tasks.embed import embed_stream
from mlxbert.text.sample_texts import sample
from mlxbert.weights.formats import quantized
from mlxbert.weights.formats.quantized import Quantization
from mlxbert.weights.tokenizers.tokenizer_files import read_tokenizer
from tests.helpers.families import FROZEN_CELLS, walked_slowly
from tests.helpers.frozen import add_vocabulary, change_config, tensors_in, write_model, write_tensors
from tests.helpers.program import tiny_model
from tests.helpers.st_folder import NORMALIZE, dense, pooling, save_st, write_json
from tests.helpers.tiny import CONFIG, VOCAB, random_network, save, tensors_of, tiny_config, tiny_tensors
from tests.helpers.vocabularies import byte_files, put

LAYER = "bert.encoder.layer.0.attention.self"
OURS = "encoder.layers.0.attention"
DECODER, IDS = "cls.predictions.decoder.weight", "bert.embeddings.position_ids"


def names(found: Verification) -> list[str]:
    assert found.agree is (not found.differences)
    json.dumps(found.to_dict(), allow_nan=False)
    return [difference.name for difference in found.differences]


def hidden(found: Verification) -> float:
    assert found.outputs.last_hidden_state is not None
    return found.outputs.last_hidden_state


def vectors(found: Verification) -> VectorDifferences:
    assert found.outputs.vectors is not None
    return found.outputs.vectors


def without(folder: Path, *left_out: str) -> dict[str, mx.array]:
    return {name: array for name, array in tensors_in(folder).items() if not any(part in name for part in left_out)}


def cast(folder: Path, dtype: mx.Dtype, source: Path | None = None) -> None:
    """Writes the tensors of a folder, or of a source, in another dtype."""
    write_tensors(folder, {name: array.astype(dtype) for name, array in tensors_in(source or folder).items()})


def two(tmp_path: Path, family: str, head: str) -> tuple[Path, Path]:
    a, b = (write_model(family, head, tmp_path / name) for name in "ab")
    for folder in (a, b):
        if family == "roberta":
            put(folder, byte_files())
        else:
            add_vocabulary(folder)
    return a, b


@pytest.fixture(autouse=True)
def one_layer(monkeypatch: pytest.MonkeyPatch) -> None:
    tensors = {name: array for name, array in tiny_tensors().items() if ".layer.1." not in name}
    monkeypatch.setattr("tests.helpers.tiny.tiny_tensors", lambda: tensors)
    monkeypatch.setitem(CONFIG, "num_hidden_layers", 1)


@pytest.fixture
def a(tmp_path: Path) -> Path:
    return save(tmp_path / "a")


@pytest.fixture
def b(tmp_path: Path) -> Path:
    return save(tmp_path / "b")


def test_a_model_agrees_with_itself(a: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.undo()  # with all texts
    found = mlxbert.verify(a, a)
    assert (found.agree, found.differences, found.notes) == (True, (), ())
    count = len(tensors_in(a))
    assert found.tensors == TensorCounts(compared=count, equal=count, rounded=0, different=0)
    assert found.outputs.texts == len(TEXTS) + len(PAIRS)
    assert hidden(found) == 0.0 and dict(found.outputs.heads) == {"next_sentence": 0.0}
    assert found.outputs.vectors == VectorDifferences(1.0, 1.0, 0.0)
    assert found.outputs.fill_mask == MaskDifferences(5, 1.0, 1.0, 0.0)
    assert found.outputs.tolerance == module.TOLERANCES["F32"]
    assert mlxbert.verify(a, a, tolerance=0).agree


SWAPPED = ["cat" if word == "on" else "on" if word == "cat" else word for word in VOCAB]
# How two folders differ, the names of the differences, and what is said of the first.
PLANTED: dict[str, tuple[Callable[[Path, Path], object], list[str], str]] = {
    "eps": (lambda a, b: change_config(b, layer_norm_eps=1e-5), ["layer_norm_eps"],
            "layer_norm_eps: 0.01 in A; 1e-05 in B"),
    "activation": (lambda a, b: change_config(b, hidden_act="gelu_new"),
                   ["hidden_act", "heads.masked_lm.transform.activation"], "hidden_act: gelu in A; gelu_new in B"),
    "lower casing": (lambda a, b: save(b, settings={"do_lower_case": False}), ["lower_case", "cut"], ""),
    "mask token": (lambda a, b: save(b, settings={"mask_token": "paris"}), ["special.mask"],
                   "special.mask: '[MASK]' in A; paris in B"),
    "two tokens swapped": (lambda a, b: save(b, vocab=SWAPPED), ["vocabulary"], "'cat' in A"),
    "a longer vocabulary": (lambda a, b: save(a, vocab=VOCAB[:-1]), ["vocabulary"], f"{len(VOCAB)} in B; "),
    "longest input": (lambda a, b: save(b, settings={"model_max_length": 20}), ["max_length"], "20 in B"),
    "longest input for vectors": (lambda a, b: save_st(b, pooling("mean"), transformer={"max_seq_length": 16}),
                                  ["max_length"], "16 in B"),
    "pooling": (lambda a, b: save_st(b, pooling("cls")), ["poolings"], "poolings: mean in A; cls in B"),
    "no Normalize": (lambda a, b: save_st(a, pooling("mean"), NORMALIZE), ["layers"], "Normalize in A"),
    "similarity": (lambda a, b: save_st(b, pooling("mean"), settings={"similarity_fn_name": "dot"}), ["similarity"],
                   "similarity: cosine in A; dot in B"),
    "a tensor of a head": (lambda a, b: write_tensors(b, without(b, "cls.predictions.bias")), ["masked_lm"],
                           "B: tensor 'cls.predictions.bias' is missing"),
}  # fmt: skip


@pytest.mark.sampled
@pytest.mark.parametrize("difference", PLANTED)
def test_a_planted_difference_is_found_and_named(difference: str, a: Path, b: Path, few_texts: tuple[str, ...]) -> None:
    plant, wanted, said = PLANTED[difference]
    plant(a, b)
    found = mlxbert.verify(a, b)
    assert names(found) == wanted and not found and said in found.differences[0].text
    assert found.outputs.texts in range(1, len(few_texts)) or "cut" not in wanted


RENAMED = {"0": "A", "1": "B", "2": "other", "3": "D"}
# The same of frozen models, whose outputs do not differ.
OF_FROZEN: dict[str, tuple[str, str, Callable[[Path], object], list[str], str]] = {
    "labels": ("bert", "ForSequenceClassification", lambda b: change_config(b, id2label=RENAMED),
               ["heads.labels.names"], "A, B, C, D in A; A, B, other, D in B"),
    "first position": ("roberta", "Model", lambda b: change_config(b, pad_token_id=6),
                       ["pad_token_id", "positions.first_position"], "positions.first_position: 8 in A; 7 in B"),
    "offsets": ("roberta", "Model", lambda b: write_json(b / "tokenizer_config.json", {"trim_offsets": False}),
                ["offsets"], ""),
}  # fmt: skip


@pytest.mark.parametrize("difference", OF_FROZEN)
def test_a_planted_difference_of_a_frozen_model_is_found_and_named(difference: str, tmp_path: Path) -> None:
    family, head, plant, wanted, said = OF_FROZEN[difference]
    a, b = two(tmp_path, family, head)
    plant(b)
    found = mlxbert.verify(a, b)
    assert names(found) == wanted and said in found.differences[-1].text and not any(found.outputs.heads.values())


# What changes no number, and what is noted of it.
NOTED: dict[str, tuple[Callable[[Path], object], list[str]]] = {
    "dropout": (lambda b: change_config(b, hidden_dropout_prob=0.25),
                ["training", "dropout.feed_forward", "heads.sequence_classifier.dropout"]),
    "labels of no head": (lambda b: change_config(b, id2label={"0": "no", "1": "yes"}),
                          ["heads.labels.names", "LABEL_0, LABEL_1 in A", "no, yes in B"]),
    "what is not used": (lambda b: write_tensors(b, tensors_in(b) | {IDS: mx.arange(32)[None]}), [f"only B has {IDS}"]),
    "the default said aloud": (lambda b: save_st(b, pooling("mean"), transformer={"max_seq_length": 32}), []),
}  # fmt: skip


@pytest.mark.parametrize("difference", NOTED)
def test_what_changes_no_number_is_noted(difference: str, a: Path, b: Path) -> None:
    plant, said = NOTED[difference]
    plant(b)
    found = mlxbert.verify(a, b)
    assert found.agree and len(found.notes) == bool(said) and all(part in found.notes[0] for part in said)
    assert difference != "what is not used" or mlxbert.verify(b, b).notes == ()


def test_how_far_a_difference_takes_outputs_apart(a: Path, b: Path) -> None:
    found = mlxbert.verify(a, save_st(b, pooling("cls")))
    assert hidden(found) == 0.0 and vectors(found).largest_difference > 1e-4
    change_config(b, layer_norm_eps=1e-5)
    assert hidden(mlxbert.verify(a, b)) > 1e-4


def test_a_missing_pooler(a: Path, b: Path) -> None:
    write_tensors(b, without(b, "pooler", "seq_relationship"))
    for found, side in ((mlxbert.verify(a, b), "A"), (mlxbert.verify(b, a), "B")):
        texts = {difference.name: difference.text for difference in found.differences}
        assert texts == {name: f"{name}: only {side} has this part" for name in ("pooler", "next_sentence")}


def test_a_classifier_that_only_one_model_has(tmp_path: Path) -> None:
    a, b = (
        add_vocabulary(write_model("bert", head, tmp_path / head)) for head in ("Model", "ForSequenceClassification")
    )
    change_config(b, id2label=RENAMED)
    for found in (mlxbert.verify(a, b), mlxbert.verify(b, a)):
        assert names(found) == ["heads.labels.names", "sequence_classifier"]
        assert found.tensors.equal == found.tensors.compared == len(tensors_in(a))


def test_a_second_text_in_another_segment(a: Path, b: Path, few_texts: tuple[str, ...]) -> None:
    for folder, segment in ((a, 1), (b, 0)):
        told = json.loads(read_tokenizer(folder).tokenizer.to_str())
        for piece in told["post_processor"]["pair"][3:]:
            next(iter(piece.values()))["type_id"] = segment
        write_json(folder / "tokenizer.json", told)
        write_json(folder / "tokenizer_config.json", {"tokenizer_class": "PreTrainedTokenizerFast"})
    found = mlxbert.verify(a, b)
    assert names(found) == ["offsets"] and found.outputs.texts == len(few_texts)
    assert "their offsets or segments are not" in found.differences[0].text


@pytest.mark.slow
def test_prompts_and_layers_behind_the_pooling(tmp_path: Path) -> None:
    mx.random.seed(1)
    weight = mx.random.normal((8, 24))
    a = save_st(tmp_path / "a", pooling("mean"), dense(weight), settings={"prompts": {"query": "q: "}})
    b = save_st(tmp_path / "b", pooling("mean"), dense(weight + 1), settings={"prompts": {"query": "find: "}})
    c = save_st(tmp_path / "c", pooling("mean"), dense(weight, activation="ReLU"))
    d = save_st(tmp_path / "d", pooling("mean"))
    found = mlxbert.verify(a, b)
    assert names(found) == ["prompts", "embedder.layers.0.linear.weight"]
    one, other = (_vectors(folder) for folder in (a, b))
    cosines = (one * other).sum(1) / np.linalg.norm(one, axis=1) / np.linalg.norm(other, axis=1)
    assert cosines.min() < cosines.max() - 0.01
    assert vectors(found).smallest_cosine == pytest.approx(cosines.min(), abs=1e-4)
    assert vectors(found).largest_difference == pytest.approx(np.abs(one - other).max(), rel=1e-3)
    assert names(mlxbert.verify(a, c)) == ["prompts", "layers"]
    assert names(mlxbert.verify(a, d)) == ["prompts", "layers"]


def _vectors(folder: Path) -> Any:
    results = list(embed_stream(mlxbert.load(folder, dtype="float32"), TEXTS, on_error="return"))
    return np.stack([result.embedding for result in results if isinstance(result, Embedding)])


def test_vectors_that_only_one_model_makes(a: Path, tmp_path: Path) -> None:
    b = save_st(tmp_path / "b", pooling("mean"))
    write_json(b / "modules.json", [{"type": "my.Module", "path": ""}])
    found = mlxbert.verify(a, b)
    assert names(found) == ["embedder"]
    assert found.differences[0].text.startswith("B makes no vectors (modules.json: a module has type 'my.Module'")
    assert found.outputs.vectors is None and mlxbert.verify(b, b).agree


def test_models_of_different_families_sizes_and_positions(a: Path, tmp_path: Path) -> None:
    modern = add_vocabulary(write_model("modernbert", "Model", tmp_path / "modern"))
    kinds = {difference.name: difference.text for difference in mlxbert.verify(a, modern).differences}
    assert kinds["positions"] == "positions: Absolute in A; Rotary in B"
    assert kinds["block"] == "block: PostNorm in A; PreNorm in B"
    assert "encoder.embeddings.position.weight: only A has it" in kinds.values()
    b = put(write_model("roberta", "Model", tmp_path / "b"), byte_files())
    found = mlxbert.verify(a, b)
    assert {"hidden_size", "kind"} <= {*names(found)}
    assert "family: bert in A; roberta in B" in found.notes
    shapes = [difference for difference in found.differences if difference.name == "encoder.embeddings.word.weight"]
    assert shapes[0].text == f"encoder.embeddings.word.weight: {len(VOCAB)} x 24 in A; 43 x 30 in B"
    assert found.outputs.last_hidden_state is None


def test_one_problem_in_two_folders_is_no_difference(tmp_path: Path) -> None:
    a, b = two(tmp_path, "bert", "ForSequenceClassification")
    for folder in (a, b):
        change_config(folder, id2label={"0": "A", "2": "B"})
    found = mlxbert.verify(a, b)
    assert found.agree
    (note,) = found.notes
    assert note.startswith("neither model can run sequence_classifier (config.json: id2label is")
    tensors = tensors_in(b)
    write_tensors(b, tensors | {"classifier.bias": tensors["classifier.bias"] + 1})
    assert names(mlxbert.verify(a, b)) == ["classifier.bias"]


def test_folders_that_cannot_be_loaded_are_an_error(a: Path, b: Path, tmp_path: Path) -> None:
    for one, other in ((a, tmp_path / "none"), (tmp_path / "none", a)):
        with pytest.raises(CheckpointError, match="no such folder"):
            mlxbert.verify(one, other)
    with pytest.raises(CheckpointError, match="is a file"):
        mlxbert.verify(a, a / "config.json")
    write_tensors(b, without(b, f"{LAYER}.query.weight"))
    with pytest.raises(CheckpointError, match="is missing"):
        mlxbert.verify(a, b)
    (b / "model.safetensors").write_bytes((a / "model.safetensors").read_bytes()[:-8])
    with pytest.raises(CheckpointError, match=r"model\.safetensors"):
        mlxbert.verify(a, b)


@pytest.mark.parametrize("given", [
    {"b": None}, {"device": "toaster"}, *({"tolerance": value} for value in (-1.0, math.nan, math.inf, "much")),
], ids=str)  # fmt: skip
def test_arguments_are_checked(a: Path, given: dict[str, Any]) -> None:
    with pytest.raises(ArgumentError, match="`b` is of type NoneType" if "b" in given else next(iter(given))):
        mlxbert.verify(**{"a": a, "b": a, **given})


def change(folder: Path, **tensors: Callable[[mx.array], mx.array]) -> None:
    """Changes tensors; `__` in a name stands for a dot."""
    found = tensors_in(folder)
    for name, changed in tensors.items():
        found[name.replace("__", ".")] = changed(found[name.replace("__", ".")])
    write_tensors(folder, found)


@pytest.mark.parametrize(("dtype", "stored"), [(mx.float16, "F16"), (mx.bfloat16, "BF16")])
def test_a_copy_in_half_precision_agrees_with_a_note(a: Path, b: Path, dtype: mx.Dtype, stored: str) -> None:
    cast(b, dtype)
    found = mlxbert.verify(a, b)
    assert names(found) == [] and found.outputs.tolerance == module.TOLERANCES[stored]
    counts = found.tensors
    assert counts.equal + counts.rounded == counts.compared and counts.rounded > 0
    (note,) = found.notes
    assert "F32" in note and stored in note
    assert f"{counts.equal} of " in note and f"{counts.rounded} more are equal after rounding" in note
    assert 0 < hidden(found) < 1


@pytest.mark.slow
def test_a_copy_of_the_builtin_model_in_floats_agrees(tmp_path: Path) -> None:
    model = mlxbert.load("builtin", dtype="float32")
    tensors = tensors_of(model.network)
    copy = tmp_path / "copy"
    shutil.copytree(model.folder, copy)
    for dtype, equal in ((mx.float32, True), (mx.float16, False)):
        write_tensors(copy, {name: array.astype(dtype) for name, array in tensors.items()})
        found = mlxbert.verify("builtin", copy)
        assert found.agree and (found.tensors.equal == len(tensors)) is equal
        assert found.outputs.tolerance == module.TOLERANCES["F32" if equal else "F16"]
        assert "8 bits" in found.notes[0] and "scale per row" in found.notes[0] and "-per-" not in found.notes[0]


@pytest.fixture
def packed(a: Path, b: Path) -> Path:
    tensors = quantized.pack(tensors_in(a))
    mx.save_safetensors(str(b / "model.safetensors"), tensors, {quantized.STORAGE_KEY: quantized.STORAGE})
    return b


@pytest.mark.slow
def test_a_model_in_8_bits_agrees_with_what_it_was_made_of(a: Path, packed: Path) -> None:
    for found in (mlxbert.verify(a, packed), mlxbert.verify(packed, a)):
        assert found.agree and found.tensors.different == 0 and found.tensors.rounded > 10
        assert found.outputs.tolerance is None and hidden(found) > 1e-3
        assert "8 bits with a scale per row" in found.notes[-1]
    assert names(mlxbert.verify(a, packed, tolerance=1e-6)) == ["outputs"]
    assert mlxbert.verify(packed, packed).outputs.tolerance == module.TOLERANCES["F32"]


def test_half_a_step_is_the_most_that_8_bits_explain(a: Path, packed: Path) -> None:
    weight = f"{LAYER}.query.weight"
    step = mx.abs(tensors_in(a)[weight][5]).max().item() / 127
    change(a, **{weight: lambda array: array.at[mx.array([5]), mx.array([7])].add(1.01 * step)})
    found = mlxbert.verify(a, packed)
    assert names(found) == [f"{OURS}.query.weight"]
    assert "1 of 576 numbers differ, by up to" in found.differences[0].text and "[5, 7]" in found.differences[0].text


def test_one_step_of_two_models_in_8_bits(packed: Path, tmp_path: Path) -> None:
    shutil.copytree(packed, tmp_path / "c")
    tensors = tensors_in(packed)
    tensors[f"{LAYER}.query.weight"] = tensors[f"{LAYER}.query.weight"].at[mx.array([1]), mx.array([2])].add(1)
    mx.save_safetensors(str(tmp_path / "c" / "model.safetensors"), tensors, {quantized.STORAGE_KEY: quantized.STORAGE})
    assert names(mlxbert.verify(packed, tmp_path / "c")) == [f"{OURS}.query.weight"]


@pytest.mark.parametrize("eight", [False, True])
def test_a_transposed_matrix(a: Path, b: Path, eight: bool, request: pytest.FixtureRequest) -> None:
    packed = request.getfixturevalue("packed") if eight else b
    change(a, **{f"{LAYER}.value.weight": lambda array: array.T + 0})
    for one, other in ((a, packed), (packed, a)):
        (difference,) = mlxbert.verify(one, other).differences
        assert difference.text == f"{OURS}.value.weight of B is the transposed tensor of A"


def test_the_two_halves_of_one_model_agree(a: Path, b: Path) -> None:
    cast(a, mx.float16)
    cast(b, mx.bfloat16)
    assert names(mlxbert.verify(a, b, tolerance=1.0)) == []
    change(b, bert__pooler__dense__weight=lambda array: array * 1.01)
    assert names(mlxbert.verify(a, b, tolerance=1.0)) == ["encoder.pooler.dense.weight"]


def test_rounding_does_not_hide_a_changed_number(a: Path, b: Path) -> None:
    cast(b, mx.float16)
    change(b, bert__pooler__dense__bias=lambda array: array.at[mx.array([5])].add(0.5))
    found = mlxbert.verify(a, b)
    assert names(found) == ["encoder.pooler.dense.bias"]
    assert "1 of 24 numbers differ, by up to 0.5 at [5]" in found.differences[0].text


def test_outputs_that_differ_without_another_reason_are_a_difference(a: Path, b: Path) -> None:
    cast(b, mx.bfloat16)
    found = mlxbert.verify(a, b, tolerance=1e-7)
    (difference,) = found.differences
    assert (difference.kind, difference.name, difference.b) == ("output", "outputs", 1e-7)
    assert difference.a == pytest.approx(max(hidden(found), *found.outputs.heads.values()), 1)
    assert "more than 1e-07" in difference.text and difference.text.endswith("same dtype (F32 in A; BF16 in B)")
    assert [difference.name for difference in mlxbert.verify(a, b, tolerance=0).differences] == ["outputs"]


def test_one_number_of_one_tensor(a: Path, b: Path) -> None:
    change(b, **{f"{LAYER}.value.weight": lambda array: array.at[mx.array([3]), mx.array([7])].add(-0.25)})
    found = mlxbert.verify(a, b)
    (difference,) = found.differences
    assert (difference.kind, difference.name) == ("tensor", f"{OURS}.value.weight")
    assert "1 of 576 numbers differ, by up to 0.25 at [3, 7]" in difference.text
    assert difference.a - difference.b == pytest.approx(0.25, abs=1e-6)
    assert found.tensors.different == 1
    assert hidden(found) > 0


@pytest.mark.parametrize("value", [math.nan, math.inf])
def test_a_number_that_is_none(a: Path, b: Path, value: float) -> None:
    change(b, **{f"{LAYER}.value.bias": lambda array: array.at[mx.array([3])].add(value)})
    for one, other, side in ((a, b, "B"), (b, a, "A")):
        found = mlxbert.verify(one, other)
        assert names(found) == [f"{OURS}.value.bias", "outputs"]
        assert str(value) in (found.differences[0].a, found.differences[0].b)
        assert "1 of 24 numbers differ, most at [3]: " in found.differences[0].text
        assert (found.differences[1].kind, [found.differences[1].a, found.differences[1].b].index(None)) == (
            "output",
            "BA".index(side),
        )
        said = f"outputs: only {side} fails, because the model computed hidden states that are not numbers (NaN)"
        assert found.differences[1].text == said and found.outputs.to_dict().keys() == {"tolerance"}
    same = mlxbert.verify(b, b)
    assert same.agree and len(same.notes) == 1 + math.isnan(value)
    assert same.notes[-1].startswith("outputs of A and B are not compared, because the model computed hidden states")


@pytest.mark.parametrize("dtype", [mx.float16, mx.bfloat16])
def test_a_number_that_a_dtype_cannot_hold(a: Path, b: Path, dtype: mx.Dtype) -> None:
    norm = "bert.encoder.layer.0.output.LayerNorm.weight"
    change(a, **{norm: lambda array: array.at[mx.array([2])].add(3.4e38 if dtype == mx.bfloat16 else 1e6)})
    cast(b, dtype, a)
    assert mx.isinf(tensors_in(b)[norm]).any().item()
    assert "encoder.layers.0.feed_forward_norm.weight" in names(mlxbert.verify(a, b, tolerance=1e6))


def test_infinite_numbers_of_two_signs(a: Path, b: Path) -> None:
    for folder, sign, dtype in ((a, 1, mx.float16), (b, -1, mx.bfloat16)):
        found = {name: array.astype(dtype) for name, array in tensors_in(folder).items()}
        found[f"{LAYER}.key.bias"] = found[f"{LAYER}.key.bias"] * mx.inf * sign
        write_tensors(folder, found)
    assert names(mlxbert.verify(a, b)) == [f"{OURS}.key.bias"]
    assert mlxbert.verify(a, a).agree


@pytest.mark.parametrize("broken", ["vectors", "logits of words"])
def test_what_is_no_number_behind_the_encoder(broken: str, tmp_path: Path) -> None:
    weight = mx.random.normal((8, 24))
    a, b = (save_st(tmp_path / name, pooling("mean"), dense(weight)) for name in "ab")
    if broken == "vectors":
        save_st(b, pooling("mean"), dense(weight * 1e38, activation="Identity"))
    else:
        change(b, cls__predictions__bias=lambda array: array * math.nan)
    found = mlxbert.verify(a, b)
    (difference,) = [one for one in found.differences if one.kind == "output"]
    assert difference.text.startswith("outputs: only B fails, because ")
    assert hidden(found) == 0 and (found.outputs.vectors is not None) is (broken != "vectors")


def test_logits_that_are_none(a: Path) -> None:
    change(a, cls__seq_relationship__bias=lambda array: array * math.nan)
    found = mlxbert.verify(a, a)
    assert found.agree and not found.outputs.heads
    said = "outputs of A and B are not compared, because the model computed logits of next_sentence that are not "
    said += "numbers (NaN)"
    assert found.notes == ("A has NaN in the weights heads.next_sentence.dense.bias", said)


@pytest.mark.parametrize(("found", "most"), [
    (OutputDifferences(texts=0), 0), (OutputDifferences(last_hidden_state=0.3, heads=FrozenDict({"x": 0.1})), 0.3),
    (OutputDifferences(heads=FrozenDict({"x": 0.1, "y": 0.2})), 0.2),
    (OutputDifferences(vectors=VectorDifferences(0.9, 0.75, 0.125)), 0.25),
    (OutputDifferences(vectors=VectorDifferences(0.9, 0.75, 0.5)), 0.5),
    (OutputDifferences(fill_mask=MaskDifferences(1, 1.0, 1.0, 0.5)), 0.5),
], ids=str)  # fmt: skip
def test_every_output_counts(found: OutputDifferences, most: float) -> None:
    assert found.largest == most


def test_a_decoder_of_its_own_is_compared(a: Path, b: Path) -> None:
    for folder in (b, a):
        tensors = tensors_in(folder)
        write_tensors(folder, tensors | {DECODER: tensors["bert.embeddings.word_embeddings.weight"] + 0.5})
        found = mlxbert.verify(a, b)
        assert found.agree is (folder == a) and hidden(found) == 0.0  # the other is tied at first
    change(b, cls__predictions__bias=lambda array: array + 1, cls__predictions__decoder__weight=lambda array: array + 1)
    assert sorted(names(mlxbert.verify(a, b)))[:2] == [f"heads.masked_lm.decoder.{part}" for part in ("bias", "weight")]


def test_a_layer_more(a: Path, tmp_path: Path) -> None:
    network = random_network(tiny_config(layer_schedule=(0, 1)))
    b = save(tmp_path / "b", tensors_of(network), CONFIG | {"num_hidden_layers": 2})
    write_tensors(b, tensors_in(b) | tensors_in(a))
    found = mlxbert.verify(a, b)
    assert names(found)[0] == "layer_schedule"
    assert all(name.startswith("encoder.layers.1.") for name in names(found)[1:]) and len(names(found)) > 5


@pytest.mark.slow
def test_heads_that_are_not_run_are_compared(tmp_path: Path) -> None:
    a, b, c = (add_vocabulary(write_model("bert", "ForSequenceClassification", tmp_path / name)) for name in "abc")
    for folder in (a, b, c):
        change_config(folder, architectures=["BertForMultipleChoice"])
    count = len(tensors_in(a))
    cast(b, mx.float16)
    found = mlxbert.verify(a, b)
    assert names(found) == [] and found.tensors.compared == count and found.tensors.rounded > 2
    change(b, classifier__bias=lambda array: array + 1)
    found = mlxbert.verify(a, b)
    assert names(found) == ["classifier.bias"] and found.differences[0].kind == "tensor"
    write_tensors(c, {name: array for name, array in tensors_in(c).items() if not name.startswith("classifier")})
    found = mlxbert.verify(a, c)
    assert found.agree and found.tensors.compared == count - 2
    assert any(note.startswith("only A has classifier.bias, classifier.weight") for note in found.notes)


@pytest.mark.parametrize(("family", "head"), walked_slowly(FROZEN_CELLS), ids=str)
def test_every_family_and_head_is_compared(tmp_path: Path, family: str, head: str, few_texts: tuple[str, ...]) -> None:
    a, b = two(tmp_path, family, head)
    name, array = next((name, array) for name, array in tensors_in(b).items() if array.ndim == 2 and ".0." in name)
    write_tensors(b, tensors_in(b) | {name: array + mx.eye(array.shape[0], array.shape[1])})
    found = mlxbert.verify(a, b)
    assert [difference.kind for difference in found.differences] == ["tensor"]
    assert found.outputs.texts == len(few_texts) + len(PAIRS) and hidden(found) > 1e-4
    assert all(apart > 0 for apart in found.outputs.heads.values())


FAR, NEAR = VectorDifferences(0.955, 0.898, 0.2), VectorDifferences(0.9999, 0.999, 0.01)
WORDS = MaskDifferences(5, 1.0, 0.95, 0.1)


@pytest.mark.parametrize(("found", "vectors", "named"), [
    (OutputDifferences(18, vectors=FAR), True, ["vectors"]),
    (OutputDifferences(18, vectors=FAR), False, ["vectors"]),
    (OutputDifferences(18, vectors=FAR, fill_mask=WORDS), False, []),
    (OutputDifferences(18, vectors=FAR, fill_mask=WORDS), True, ["vectors"]),
    (OutputDifferences(18, vectors=NEAR, fill_mask=WORDS), True, []),
    (OutputDifferences(18, fill_mask=MaskDifferences(5, 1.0, 0.5, 0.1)), True, ["masked_lm"]),
    (OutputDifferences(18, choices=FrozenDict({"tag": 0.8, "next_sentence": 1.0})), True, ["tag"]),
    (OutputDifferences(18, choices=FrozenDict({"sequence_classifier": math.nan})), True, ["sequence_classifier"]),
    (OutputDifferences(18), True, []),
])  # fmt: skip
def test_what_is_kept_is_judged_by_use(found: OutputDifferences, vectors: bool, named: list[str]) -> None:
    differences = [*judge(found, makes_vectors=vectors)]
    assert [one.name for one in differences] == named
    assert all(one.kind == "output" and f"{one.b:g}" in one.text for one in differences)
    if "vectors" in named:
        assert "0.955" in differences[-1].text and differences[-1].b == outputs.LEAST_COSINE


def test_choices_of_heads_and_the_divergence_of_kullback_and_leibler() -> None:
    texts: Any = [np.array([1.0, 2.0]), np.array([3.0, 0.0]), np.array([0.0, 1.0]), np.array([1.0, 0.0])]
    other: Any = [np.array([0.0, 9.0]), np.array([0.1, 0.2]), np.array([0.0, 1.0]), np.array([1.0, 0.0])]
    assert _same_choices("sequence_classifier", texts, other) == 0.75
    tokens: Any = [np.array([[1.0, 0.0], [0.0, 1.0]]), np.array([[1.0, 0.0]])]
    assert _same_choices("token_classifier", tokens, [tokens[0][::-1], tokens[1]]) == pytest.approx(1 / 3)
    spans: Any = [np.array([[1.0, 0.0], [0.0, 1.0], [0.0, 0.0]])]
    assert _same_choices("question_answering", spans, [np.roll(spans[0], 1, axis=0)]) == 0.0
    assert _same_choices("discriminator", [np.array([1.0, -1.0])], [np.array([2.0, 1.0])]) == 0.5
    scores: Any = [np.array([value]) for value in (1.0, 2.0, 4.0)]
    assert _same_choices("sequence_classifier", scores, [2 * one + 1 for one in scores]) == pytest.approx(1.0)
    assert _same_choices("sequence_classifier", scores, [0 * one for one in scores]) is None
    one, other = {"a": 0.6, "b": 0.4}, {"a": 0.4, "b": 0.6}
    assert _divergence(one, one) == 0
    assert _divergence(one, other) == pytest.approx(0.6 * math.log(1.5) + 0.4 * math.log(2 / 3), abs=1e-6)
    assert _divergence({"a": 0.9}, {"b": 0.9}) > 1


@pytest.mark.parametrize(("bits", "group", "words"), [
    (4, 64, ["quantize=8", "group_size=32"]), (4, 32, ["quantize=8"]), (8, 64, ["group_size=32"]), (8, 32, ["dtype"]),
])  # fmt: skip
def test_what_keeps_more_is_said(bits: int, group: int, words: list[str]) -> None:
    said = more_bits(Quantization(bits, group))
    assert all(word in said for word in words) and ("quantize=8" in said) == ("quantize=8" in words)


def test_a_conversion_that_keeps_too_little_warns_with_the_number(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    a = tiny_model(tmp_path / "a", hidden_size=32)
    monkeypatch.setattr(outputs, "LEAST_WORDS", 1.1)
    monkeypatch.setattr("mlxbert.export.convert.sample", lambda: sample()[:16])
    with caplog.at_level(logging.WARNING):
        found = mlxbert.convert(a, tmp_path / "b", quantize=4, group_size=32)
    kept = found.difference.outputs.fill_mask
    assert kept is not None and not found.difference.agree
    assert f"{kept.kept_probability:.3f}" in caplog.text and "quantize=8" in caplog.text
    assert not mlxbert.verify(a, tmp_path / "b")
    assert mlxbert.verify(a, tmp_path / "b", tolerance=100.0).agree
