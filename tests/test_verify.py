"""`mlxbert.verify`: models that agree, and planted differences, each found, named, and nothing else beside it."""

import dataclasses
import json
import math
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import mlxbert
from mlxbert import Verification
from mlxbert.compare import facts, outputs
from mlxbert.compare import verify as module
from mlxbert.compare.texts import PAIRS, TEXTS
from mlxbert.config import HeadConfig
from mlxbert.device import mx
from mlxbert.errors import ArgumentError, CheckpointError, MlxbertError
from mlxbert.results import Embedding
from mlxbert.tasks.embed import embed_stream
from mlxbert.weights.tokenizer_files import read_tokenizer
from tests.families import FROZEN_CELLS
from tests.frozen import change_config, tensors_in, write_model, write_tensors
from tests.st_folder import NORMALIZE, dense, pooling, save_st, write_json
from tests.tiny import CONFIG, VOCAB, random_network, save, tensors_of, tiny_config
from tests.vocabularies import byte_files, put

LAYER = "bert.encoder.layer.1.attention.self"
OURS = "encoder.layers.1.attention"
DECODER = "cls.predictions.decoder.weight"


def names(found: Verification) -> list[str]:
    """What differs."""
    assert found.agree is (not found.differences)
    json.dumps(found.to_dict(), allow_nan=False)
    return [difference.name for difference in found.differences]


@pytest.fixture
def a(tmp_path: Path) -> Path:
    return save(tmp_path / "a")


@pytest.fixture
def b(tmp_path: Path) -> Path:
    return save(tmp_path / "b")


def change(folder: Path, **tensors: Callable[[mx.array], mx.array]) -> None:
    """Changes tensors; `__` in a name stands for a dot."""
    found = tensors_in(folder)
    for name, changed in tensors.items():
        found[name.replace("__", ".")] = changed(found[name.replace("__", ".")])
    write_tensors(folder, found)


def test_a_model_agrees_with_itself(a: Path) -> None:
    found = mlxbert.verify(a, a)
    assert (found.agree, found.differences, found.notes) == (True, (), ())
    count = len(tensors_in(a))
    assert found.tensors == {"compared": count, "equal": count, "rounded": 0, "different": 0}
    assert found.outputs["texts"] == len(TEXTS) + len(PAIRS)
    assert found.outputs["last_hidden_state"] == 0.0 and found.outputs["heads"] == {"next_sentence": 0.0}
    assert found.outputs["vectors"] == {"smallest_cosine": 1.0, "largest_difference": 0.0}
    assert found.outputs["fill_mask"] == {"masks": 5, "same_first_word": 1.0, "largest_score_difference": 0.0}
    assert found.outputs["tolerance"] == module.TOLERANCES["F32"]
    assert mlxbert.verify(a, a, tolerance=0).agree


def test_a_copy_agrees(a: Path, tmp_path: Path) -> None:
    shutil.copytree(a, tmp_path / "copy")
    found = mlxbert.verify(a, tmp_path / "copy")
    assert found.agree and not found.notes
    assert found.tensors["equal"] == found.tensors["compared"] > 0


@pytest.mark.parametrize(("dtype", "stored"), [(mx.float16, "F16"), (mx.bfloat16, "BF16")])
def test_a_copy_in_half_precision_agrees_with_a_note(a: Path, b: Path, dtype: mx.Dtype, stored: str) -> None:
    write_tensors(b, {name: array.astype(dtype) for name, array in tensors_in(b).items()})
    for found in (mlxbert.verify(a, b, tolerance=1.0), mlxbert.verify(b, a, tolerance=1.0)):
        assert names(found) == []
        counts = found.tensors
        assert counts["equal"] + counts["rounded"] == counts["compared"] and counts["rounded"] > 0
        (note,) = found.notes
        assert "F32" in note and stored in note
        assert note.endswith(f"{counts['equal']} are equal, {counts['rounded']} more once stored alike")
        assert 0 < found.outputs["last_hidden_state"] < 1
    assert mlxbert.verify(a, b).outputs["tolerance"] == module.TOLERANCES[stored]


def test_a_copy_of_the_builtin_model_in_floats_agrees(tmp_path: Path) -> None:
    model = mlxbert.load("builtin", dtype="float32")
    tensors = tensors_of(model.network)
    copy = tmp_path / "copy"
    shutil.copytree(model.folder, copy)
    for dtype, equal in ((mx.float32, True), (mx.float16, False)):
        write_tensors(copy, {name: array.astype(dtype) for name, array in tensors.items()})
        found = mlxbert.verify("builtin", copy)
        assert found.agree and (found.tensors["equal"] == len(tensors)) is equal
        assert found.notes[0].startswith("A is stored as int8-per-row, B as F")


def test_the_two_halves_of_one_model_agree(a: Path, b: Path) -> None:
    write_tensors(a, {name: array.astype(mx.float16) for name, array in tensors_in(a).items()})
    write_tensors(b, {name: array.astype(mx.bfloat16) for name, array in tensors_in(b).items()})
    assert names(mlxbert.verify(a, b, tolerance=1.0)) == []
    change(b, bert__pooler__dense__weight=lambda array: array * 1.01)
    assert names(mlxbert.verify(a, b, tolerance=1.0)) == ["encoder.pooler.dense.weight"]


def test_rounding_does_not_hide_a_changed_number(a: Path, b: Path) -> None:
    write_tensors(b, {name: array.astype(mx.float16) for name, array in tensors_in(b).items()})
    change(b, bert__pooler__dense__bias=lambda array: array.at[mx.array([5])].add(0.5))
    found = mlxbert.verify(a, b)
    assert names(found) == ["encoder.pooler.dense.bias"]
    assert "1 of 24 numbers differ, by up to 0.5 at [5]" in found.differences[0].text


def test_outputs_that_differ_without_another_reason_are_a_difference(a: Path, b: Path) -> None:
    write_tensors(b, {name: array.astype(mx.bfloat16) for name, array in tensors_in(b).items()})
    found = mlxbert.verify(a, b, tolerance=1e-7)
    (difference,) = found.differences
    assert (difference.kind, difference.name, difference.b) == ("output", "outputs", 1e-7)
    assert difference.a == pytest.approx(max(found.outputs["last_hidden_state"], *found.outputs["heads"].values()), 1)
    assert "nothing else tells why" in difference.text
    assert [difference.name for difference in mlxbert.verify(a, b, tolerance=0).differences] == ["outputs"]


def test_another_eps(a: Path, b: Path) -> None:
    change_config(b, layer_norm_eps=1e-5)
    found = mlxbert.verify(a, b)
    assert names(found) == ["layer_norm_eps"]
    assert found.differences[0].text == "layer_norm_eps: 0.01 and 1e-05"
    assert (found.differences[0].kind, found.differences[0].a) == ("config", 0.01)
    assert found.outputs["last_hidden_state"] > 1e-4


def test_another_activation(a: Path, b: Path) -> None:
    change_config(b, hidden_act="gelu_new")
    found = mlxbert.verify(a, b)
    assert names(found) == ["hidden_act", "heads.masked_lm.activation"]
    assert found.differences[0].text == "hidden_act: 'gelu' and 'gelu_new'"


def test_dropout_matters_in_training_only(a: Path, b: Path) -> None:
    change_config(b, hidden_dropout_prob=0.25)
    found = mlxbert.verify(a, b)
    assert found.agree
    assert found.notes == ("hidden_dropout: 0.1 and 0.25, which matters in training only",)


def test_swapped_queries_and_keys(a: Path, b: Path) -> None:
    tensors = tensors_in(b)
    for suffix in ("weight", "bias"):
        query, key = f"{LAYER}.query.{suffix}", f"{LAYER}.key.{suffix}"
        tensors[query], tensors[key] = tensors[key], tensors[query]
    write_tensors(b, tensors)
    found = mlxbert.verify(a, b)
    assert sorted(names(found)) == [f"{OURS}.query.bias", f"{OURS}.query.weight"]
    assert {difference.b for difference in found.differences} == {f"{OURS}.key.bias", f"{OURS}.key.weight"}
    assert all(difference.text.endswith(" are swapped") for difference in found.differences)
    assert found.tensors["different"] == 4


def test_tensors_that_went_round_in_a_circle(a: Path, b: Path) -> None:
    tensors = tensors_in(b)
    one, two, three = (f"{LAYER}.{name}.weight" for name in ("query", "key", "value"))
    tensors[one], tensors[two], tensors[three] = tensors[two], tensors[three], tensors[one]
    write_tensors(b, tensors)
    said = {difference.text for difference in mlxbert.verify(a, b).differences}
    assert f"{OURS}.query.weight of A is {OURS}.value.weight of B" in said and len(said) == 3


def test_biases_of_one_number_are_not_taken_for_each_other(a: Path, b: Path) -> None:
    change(a, **{f"{LAYER}.query.bias": lambda array: array * 0, f"{LAYER}.key.bias": lambda array: array * 0 + 1})
    change(b, **{f"{LAYER}.query.bias": lambda array: array * 0 + 1, f"{LAYER}.key.bias": lambda array: array * 0})
    found = mlxbert.verify(a, b)
    assert all("numbers differ" in difference.text for difference in found.differences)
    assert len(found.differences) == 2


def test_a_transposed_matrix(a: Path, b: Path) -> None:
    change(b, **{f"{LAYER}.value.weight": lambda array: array.T + 0})
    found = mlxbert.verify(a, b)
    assert names(found) == [f"{OURS}.value.weight"]
    assert found.differences[0].text.endswith("transposed")


def test_one_number_of_one_tensor(a: Path, b: Path) -> None:
    change(b, **{f"{LAYER}.value.weight": lambda array: array.at[mx.array([3]), mx.array([7])].add(-0.25)})
    found = mlxbert.verify(a, b)
    (difference,) = found.differences
    assert (difference.kind, difference.name) == ("tensor", f"{OURS}.value.weight")
    assert "1 of 576 numbers differ, by up to 0.25 at [3, 7]" in difference.text
    assert difference.a - difference.b == pytest.approx(0.25, abs=1e-6)
    assert found.tensors["different"] == 1
    assert found.outputs["last_hidden_state"] > 0


@pytest.mark.parametrize("value", [math.nan, math.inf])
def test_a_number_that_is_none(a: Path, b: Path, value: float) -> None:
    change(b, **{f"{LAYER}.value.bias": lambda array: array.at[mx.array([3])].add(value)})
    found = mlxbert.verify(a, b)
    assert names(found) == [f"{OURS}.value.bias"]
    assert found.differences[0].b == str(value)
    assert any(note.startswith("outputs are not compared") for note in found.notes)
    assert mlxbert.verify(b, b).agree


def test_logits_that_are_none(a: Path) -> None:
    change(a, cls__seq_relationship__bias=lambda array: array * math.nan)
    found = mlxbert.verify(a, a)
    assert found.agree and "heads" not in found.outputs
    assert found.notes == (f"outputs are not compared: {a} computes what is no number (NaN)",)


@pytest.mark.parametrize(("found", "most"), [
    ({"texts": 0}, 0), ({"last_hidden_state": 0.3, "heads": {"x": 0.1}}, 0.3), ({"heads": {"x": 0.1, "y": 0.2}}, 0.2),
    ({"vectors": {"smallest_cosine": 0.75, "largest_difference": 0.125}}, 0.25),
    ({"vectors": {"smallest_cosine": 0.75, "largest_difference": 0.5}}, 0.5),
    ({"fill_mask": {"masks": 1, "same_first_word": 1.0, "largest_score_difference": 0.5}}, 0.5),
], ids=str)  # fmt: skip
def test_every_output_counts(found: dict[str, Any], most: float) -> None:
    assert outputs.largest(found) == most


def test_an_untied_decoder(a: Path, b: Path) -> None:
    tensors = tensors_in(b)
    tensors[DECODER] = tensors["bert.embeddings.word_embeddings.weight"] + 0.5
    write_tensors(b, tensors)
    found = mlxbert.verify(a, b)
    (difference,) = found.differences
    assert (difference.kind, difference.name, difference.a) == ("part", "masked_lm", None)
    assert difference.text.startswith(f"B: {DECODER!r} differs from 'embeddings.word_embeddings.weight'")
    assert "fill_mask" not in found.outputs and found.outputs["last_hidden_state"] == 0.0
    assert found.tensors["compared"] == len(tensors_in(a))


def test_the_rest_of_an_untied_head_is_compared_nevertheless(a: Path, b: Path) -> None:
    for folder in (a, b):
        tensors = tensors_in(folder)
        write_tensors(folder, tensors | {DECODER: tensors["bert.embeddings.word_embeddings.weight"] + 0.5})
    same = mlxbert.verify(a, b)
    assert same.agree and any(note.startswith("masked_lm can be run with neither") for note in same.notes)
    change(b, cls__predictions__bias=lambda array: array + 1, cls__predictions__decoder__weight=lambda array: array + 1)
    assert sorted(names(mlxbert.verify(a, b))) == ["cls.predictions.bias", DECODER]


def test_a_missing_pooler(a: Path, b: Path) -> None:
    kept = {name: array for name, array in tensors_in(b).items() if "pooler" not in name}
    write_tensors(b, {name: array for name, array in kept.items() if "seq_relationship" not in name})
    found = mlxbert.verify(a, b)
    assert sorted(names(found)) == ["next_sentence", "pooler"]
    assert {difference.text for difference in found.differences} == {
        "pooler: A has it, B has not",
        "next_sentence: A has it, B has not",
    }
    assert mlxbert.verify(b, a).differences[0].text.endswith(": B has it, A has not")


def test_renamed_labels(tmp_path: Path) -> None:
    a, b = (write_model("bert", "ForSequenceClassification", tmp_path / name) for name in "ab")
    for folder in (a, b):
        (folder / "vocab.txt").write_text("\n".join(VOCAB[:43]) + "\n", encoding="utf-8")
    change_config(b, id2label={"0": "A", "1": "B", "2": "other", "3": "D"})
    found = mlxbert.verify(a, b)
    assert names(found) == ["heads.labels"]
    assert (found.differences[0].a, found.differences[0].b) == (["A", "B", "C", "D"], ["A", "B", "other", "D"])
    assert found.outputs["heads"] == {"sequence_classifier": 0.0}


def test_facts_of_heads_that_neither_model_has_are_noted(a: Path, b: Path) -> None:
    change_config(b, id2label={"0": "no", "1": "yes"})
    found = mlxbert.verify(a, b)
    assert found.agree
    (note,) = found.notes
    assert note.startswith(
        "heads.labels: ('LABEL_0', 'LABEL_1') and ('no', 'yes'), which matters to heads that neither"
    )


def test_a_classifier_that_only_one_model_has(tmp_path: Path) -> None:
    a, b = (write_model("bert", head, tmp_path / head) for head in ("Model", "ForSequenceClassification"))
    for folder in (a, b):
        (folder / "vocab.txt").write_text("\n".join(VOCAB[:43]) + "\n", encoding="utf-8")
    change_config(b, id2label={"0": "A", "1": "B", "2": "other", "3": "D"})
    for found in (mlxbert.verify(a, b), mlxbert.verify(b, a)):
        assert names(found) == ["heads.labels", "sequence_classifier"]
        assert found.tensors["equal"] == found.tensors["compared"] == len(tensors_in(a))


def test_every_fact_of_heads_has_its_users() -> None:
    assert {field.name for field in dataclasses.fields(HeadConfig)} == facts._USERS.keys()


@pytest.mark.parametrize("head", ["ForTokenClassification", "ForQuestionAnswering", "ForPreTraining"])
def test_other_heads_are_run(tmp_path: Path, head: str) -> None:
    family = "electra" if head == "ForPreTraining" else "bert"
    a, b = (write_model(family, head, tmp_path / name) for name in "ab")
    for folder in (a, b):
        (folder / "vocab.txt").write_text("\n".join(VOCAB[:43]) + "\n", encoding="utf-8")
    change_config(b, layer_norm_eps=0.02)
    found = mlxbert.verify(a, b)
    assert names(found) == ["layer_norm_eps"]
    (apart,) = found.outputs["heads"].values()
    assert apart > 1e-4


def test_lower_casing(a: Path, tmp_path: Path) -> None:
    b = save(tmp_path / "b", settings={"do_lower_case": False})
    found = mlxbert.verify(a, b)
    assert names(found) == ["lower_case", "cut"]
    assert (found.differences[0].a, found.differences[0].b) == (True, False)
    assert found.differences[1].text.startswith("cut: 'The cat sat on the mat.' becomes '[CLS] the cat")
    assert 0 < found.outputs["texts"] < len(TEXTS)


def test_a_second_text_in_another_segment(a: Path, b: Path) -> None:
    for folder, segment in ((a, 1), (b, 0)):
        told = json.loads(read_tokenizer(folder).tokenizer.to_str())
        for piece in told["post_processor"]["pair"][3:]:
            next(iter(piece.values()))["type_id"] = segment
        write_json(folder / "tokenizer.json", told)
    found = mlxbert.verify(a, b)
    assert names(found) == ["offsets"] and found.outputs["texts"] == len(TEXTS)
    assert "their offsets or segments are not" in found.differences[0].text


def test_offsets_of_the_same_tokens(tmp_path: Path) -> None:
    a, b = (put(write_model("roberta", "Model", tmp_path / name), byte_files()) for name in "ab")
    told = json.loads(read_tokenizer(b).tokenizer.to_str())
    told["post_processor"]["trim_offsets"] = False
    write_json(b / "tokenizer.json", told)
    assert names(mlxbert.verify(a, b)) == ["offsets"]


def test_another_mask_token(a: Path, tmp_path: Path) -> None:
    found = mlxbert.verify(a, save(tmp_path / "b", settings={"mask_token": "paris"}))
    assert [difference.text for difference in found.differences] == ["special.mask: '[MASK]' and 'paris'"]


def test_two_words_of_the_vocabulary_swapped(a: Path, tmp_path: Path) -> None:
    vocab = list(VOCAB)
    vocab[6], vocab[9] = vocab[9], vocab[6]
    found = mlxbert.verify(a, save(tmp_path / "b", vocab=vocab))
    assert names(found) == ["vocabulary"]
    assert found.differences[0].text == "vocabulary: the first that differs is id 6, 'cat' and 'on'"


def test_a_longer_vocabulary(a: Path, tmp_path: Path) -> None:
    found = mlxbert.verify(save(tmp_path / "b", vocab=VOCAB[:-1]), a)
    assert names(found) == ["vocabulary"]
    assert f"{len(VOCAB) - 1} and {len(VOCAB)} tokens" in found.differences[0].text


def test_another_longest_input(a: Path, tmp_path: Path) -> None:
    found = mlxbert.verify(a, save(tmp_path / "b", settings={"model_max_length": 20}))
    assert names(found) == ["max_length"]
    assert (found.differences[0].kind, found.differences[0].b) == ("tokenizer", 20)


def test_another_first_position(tmp_path: Path) -> None:
    a, b = (write_model("roberta", "Model", tmp_path / name) for name in "ab")
    for folder in (a, b):
        put(folder, byte_files())
    change_config(b, pad_token_id=6)
    found = mlxbert.verify(a, b)
    assert names(found) == ["pad_token_id", "positions.first_position"]
    assert [difference.text for difference in found.differences][1] == "positions.first_position: 8 and 7"


def test_another_pooling(tmp_path: Path) -> None:
    found = mlxbert.verify(save_st(tmp_path / "a", pooling("mean")), save_st(tmp_path / "b", pooling("cls")))
    assert names(found) == ["poolings"]
    assert found.outputs["last_hidden_state"] == 0.0 and found.outputs["vectors"]["largest_difference"] > 1e-4


def test_a_missing_normalize_module(tmp_path: Path) -> None:
    a, b = save_st(tmp_path / "a", pooling("mean"), NORMALIZE), save_st(tmp_path / "b", pooling("mean"))
    found = mlxbert.verify(a, b)
    assert names(found) == ["layers"]
    assert found.differences[0].text == "layers behind the pooling: Normalize / nothing"


def test_another_limit_for_vectors(tmp_path: Path) -> None:
    a = save_st(tmp_path / "a", pooling("mean"), transformer={"max_seq_length": 32})
    b = save_st(tmp_path / "b", pooling("mean"), transformer={"max_seq_length": 16})
    found = mlxbert.verify(a, b)
    assert names(found) == ["max_length"]
    assert (found.differences[0].kind, found.differences[0].a, found.differences[0].b) == ("embedding", 32, 16)


def test_the_default_said_aloud_is_no_difference(a: Path, tmp_path: Path) -> None:
    assert mlxbert.verify(a, save_st(tmp_path / "b", pooling("mean"), transformer={"max_seq_length": 32})).agree


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
    assert found.outputs["vectors"]["smallest_cosine"] == pytest.approx(cosines.min(), abs=1e-4)
    assert found.outputs["vectors"]["largest_difference"] == pytest.approx(np.abs(one - other).max(), rel=1e-3)
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
    assert found.differences[0].text.startswith("B: no vectors: modules.json: module 'my.Module'")
    assert "vectors" not in found.outputs and mlxbert.verify(b, b).agree


def test_models_of_different_families_and_sizes(a: Path, tmp_path: Path) -> None:
    b = put(write_model("roberta", "Model", tmp_path / "b"), byte_files())
    found = mlxbert.verify(a, b)
    assert {"hidden_size", "kind"} <= {*names(found)}
    assert "family: bert and roberta" in found.notes
    shapes = [difference for difference in found.differences if difference.name == "encoder.embeddings.word.weight"]
    assert shapes[0].text == f"encoder.embeddings.word.weight: shapes ({len(VOCAB)}, 24) and (43, 30)"
    assert "last_hidden_state" not in found.outputs


def test_other_kinds_of_positions_and_of_sizes(a: Path, tmp_path: Path) -> None:
    b = write_model("modernbert", "Model", tmp_path / "b")
    (b / "vocab.txt").write_text("\n".join(VOCAB[:43]) + "\n", encoding="utf-8")
    found = mlxbert.verify(a, b)
    kinds = {difference.name: difference.text for difference in found.differences}
    assert kinds["positions"] == "positions: Absolute and Rotary"
    assert kinds["block"] == "block: PostNorm and PreNorm"
    assert "encoder.embeddings.position.weight: only A has it" in kinds.values()


def test_a_layer_more(a: Path, tmp_path: Path) -> None:
    network = random_network(tiny_config(layer_schedule=(0, 1, 2)))
    b = save(tmp_path / "b", tensors_of(network), CONFIG | {"num_hidden_layers": 3})
    write_tensors(b, tensors_in(b) | tensors_in(a))
    found = mlxbert.verify(a, b)
    assert names(found)[0] == "layer_schedule"
    assert all(name.startswith("encoder.layers.2.") for name in names(found)[1:]) and len(names(found)) > 5


def test_what_is_not_used_is_noted(a: Path, b: Path) -> None:
    write_tensors(b, tensors_in(b) | {"bert.embeddings.position_ids": mx.arange(32)[None]})
    found = mlxbert.verify(a, b)
    assert found.agree
    assert found.notes == ("not used, so not compared: bert.embeddings.position_ids",)


def test_one_problem_in_two_folders_is_no_difference(tmp_path: Path) -> None:
    a, b = (write_model("bert", "ForSequenceClassification", tmp_path / name) for name in "ab")
    for folder in (a, b):
        (folder / "vocab.txt").write_text("\n".join(VOCAB[:43]) + "\n", encoding="utf-8")
        change_config(folder, id2label={"0": "A", "2": "B"})
    found = mlxbert.verify(a, b)
    assert found.agree
    (note,) = found.notes
    assert note.startswith("sequence_classifier can be run with neither: config.json: id2label is")
    tensors = tensors_in(b)
    write_tensors(b, tensors | {"classifier.bias": tensors["classifier.bias"] + 1})
    assert names(mlxbert.verify(a, b)) == ["classifier.bias"]


@pytest.mark.parametrize(("family", "head"), FROZEN_CELLS, ids=" ".join)
def test_every_family_and_head_is_compared(tmp_path: Path, family: str, head: str) -> None:
    a, b = (write_model(family, head, tmp_path / name) for name in "ab")
    for folder in (a, b):
        (folder / "vocab.txt").write_text("\n".join(VOCAB[:43]) + "\n", encoding="utf-8")
        write_json(folder / "tokenizer_config.json", {"tokenizer_class": "BertTokenizer"})
    found = mlxbert.verify(a, b)
    assert found.agree and found.outputs["texts"] == len(TEXTS) + len(PAIRS), found.notes
    name, array = next((name, array) for name, array in tensors_in(b).items() if array.ndim == 2 and "layer" in name)
    write_tensors(b, tensors_in(b) | {name: array + mx.eye(array.shape[0], array.shape[1])})
    found = mlxbert.verify(a, b)
    assert [difference.kind for difference in found.differences] == ["tensor"]
    assert found.outputs["last_hidden_state"] > 1e-4
    assert all(apart > 0 for apart in found.outputs["heads"].values())


def test_one_that_cannot_be_loaded_is_an_error(a: Path, tmp_path: Path) -> None:
    for one, other in ((a, tmp_path / "none"), (tmp_path / "none", a)):
        with pytest.raises(CheckpointError, match="no such folder"):
            mlxbert.verify(one, other)
    with pytest.raises(CheckpointError, match="is a file"):
        mlxbert.verify(a, a / "config.json")


def test_damaged_weights_are_an_error(a: Path, b: Path) -> None:
    path = b / "model.safetensors"
    path.write_bytes(path.read_bytes()[:-8])
    with pytest.raises(CheckpointError, match=r"model\.safetensors"):
        mlxbert.verify(a, b)


def test_an_encoder_that_lacks_a_tensor_is_an_error(a: Path, b: Path) -> None:
    tensors = tensors_in(b)
    del tensors[f"{LAYER}.query.weight"]
    write_tensors(b, tensors)
    with pytest.raises(CheckpointError, match="is missing"):
        mlxbert.verify(a, b)


def test_a_head_that_lacks_a_tensor_is_a_difference(a: Path, b: Path) -> None:
    tensors = tensors_in(b)
    del tensors["cls.predictions.bias"]
    write_tensors(b, tensors)
    found = mlxbert.verify(a, b)
    assert [difference.text for difference in found.differences] == ["B: tensor 'cls.predictions.bias' is missing"]


@pytest.mark.parametrize("tolerance", [-1.0, math.nan, math.inf, "much"])
def test_a_tolerance_that_is_none(a: Path, tolerance: Any) -> None:
    with pytest.raises(ArgumentError, match="tolerance"):
        mlxbert.verify(a, a, tolerance=tolerance)


def test_a_source_that_is_none(a: Path) -> None:
    nothing: Any = None
    with pytest.raises(ArgumentError, match="b is None"):
        mlxbert.verify(a, nothing)
    with pytest.raises(MlxbertError):
        mlxbert.verify(a, a, device="toaster")
