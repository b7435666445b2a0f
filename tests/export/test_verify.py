"""`mlxbert.verify` of facts, parts, tokenizers and ways to vectors: planted differences, each found and named."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import mlxbert
from mlxbert import Verification
from mlxbert.errors import ArgumentError, CheckpointError, MlxbertError
from mlxbert.export import verify as module
from mlxbert.export.compare.fixed_texts import PAIRS, TEXTS
from mlxbert.export.compare.reports import MaskDifferences, TensorCounts, VectorDifferences
from mlxbert.machine.device import mx
from mlxbert.results.embed import Embedding
from mlxbert.tasks.embed import embed_stream
from mlxbert.weights.tokenizers.tokenizer_files import read_tokenizer
from tests.helpers.frozen import add_vocabulary, change_config, tensors_in, write_model, write_tensors
from tests.helpers.st_folder import NORMALIZE, dense, pooling, save_st, write_json
from tests.helpers.tiny import VOCAB, save
from tests.helpers.vocabularies import byte_files, put


def names(found: Verification) -> list[str]:
    """What differs."""
    assert found.agree is (not found.differences)
    json.dumps(found.to_dict(), allow_nan=False)
    return [difference.name for difference in found.differences]


def hidden(found: Verification) -> float:
    """The largest difference of hidden states."""
    assert found.outputs.last_hidden_state is not None
    return found.outputs.last_hidden_state


def vectors(found: Verification) -> VectorDifferences:
    """The differences of vectors."""
    assert found.outputs.vectors is not None
    return found.outputs.vectors


def without(folder: Path, *left_out: str) -> dict[str, mx.array]:
    """The tensors of a folder but for those whose names contain one of these."""
    return {name: array for name, array in tensors_in(folder).items() if not any(part in name for part in left_out)}


@pytest.fixture
def a(tmp_path: Path) -> Path:
    return save(tmp_path / "a")


@pytest.fixture
def b(tmp_path: Path) -> Path:
    return save(tmp_path / "b")


def test_a_model_agrees_with_itself(a: Path) -> None:
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
    "eps": (
        lambda a, b: change_config(b, layer_norm_eps=1e-5),
        ["layer_norm_eps"],
        "layer_norm_eps: 0.01 in A; 1e-05 in B",
    ),
    "activation": (
        lambda a, b: change_config(b, hidden_act="gelu_new"),
        ["hidden_act", "heads.masked_lm.transform.activation"],
        "hidden_act: gelu in A; gelu_new in B",
    ),
    "lower casing": (lambda a, b: save(b, settings={"do_lower_case": False}), ["lower_case", "cut"], ""),
    "mask token": (
        lambda a, b: save(b, settings={"mask_token": "paris"}),
        ["special.mask"],
        "special.mask: '[MASK]' in A; paris in B",
    ),
    "two tokens swapped": (lambda a, b: save(b, vocab=SWAPPED), ["vocabulary"], "'cat' in A"),
    "a longer vocabulary": (lambda a, b: save(a, vocab=VOCAB[:-1]), ["vocabulary"], f"{len(VOCAB)} in B; "),
    "longest input": (lambda a, b: save(b, settings={"model_max_length": 20}), ["max_length"], "20 in B"),
    "longest input for vectors": (
        lambda a, b: save_st(b, pooling("mean"), transformer={"max_seq_length": 16}),
        ["max_length"],
        "16 in B",
    ),
    "pooling": (lambda a, b: save_st(b, pooling("cls")), ["poolings"], "poolings: mean in A; cls in B"),
    "no Normalize": (lambda a, b: save_st(a, pooling("mean"), NORMALIZE), ["layers"], "Normalize in A"),
    "similarity": (
        lambda a, b: save_st(b, pooling("mean"), settings={"similarity_fn_name": "dot"}),
        ["similarity"],
        "similarity: cosine in A; dot in B",
    ),
    "a tensor of a head": (
        lambda a, b: write_tensors(b, without(b, "cls.predictions.bias")),
        ["masked_lm"],
        "B: tensor 'cls.predictions.bias' is missing",
    ),
}


@pytest.mark.sampled
@pytest.mark.parametrize("difference", PLANTED)
def test_a_planted_difference_is_found_and_named(difference: str, a: Path, b: Path) -> None:
    plant, wanted, said = PLANTED[difference]
    plant(a, b)
    found = mlxbert.verify(a, b)
    assert names(found) == wanted and not found and said in found.differences[0].text


def test_how_far_a_difference_takes_outputs_apart(a: Path, b: Path) -> None:
    save_st(b, pooling("cls"))
    found = mlxbert.verify(a, b)
    assert hidden(found) == 0.0 and vectors(found).largest_difference > 1e-4
    change_config(b, layer_norm_eps=1e-5)
    assert hidden(mlxbert.verify(a, b)) > 1e-4


def test_texts_that_are_cut_differently_are_not_compared(a: Path, b: Path) -> None:
    found = mlxbert.verify(a, save(b, settings={"do_lower_case": False}))
    assert found.outputs.texts in range(1, len(TEXTS))


def test_dropout_matters_in_training_only(a: Path, b: Path) -> None:
    change_config(b, hidden_dropout_prob=0.25)
    found = mlxbert.verify(a, b)
    assert found.agree
    (note,) = found.notes
    assert "training" in note and "dropout.feed_forward" in note and "heads.sequence_classifier.dropout" in note


def test_a_missing_pooler(a: Path, b: Path) -> None:
    write_tensors(b, without(b, "pooler", "seq_relationship"))
    found = mlxbert.verify(a, b)
    assert sorted(names(found)) == ["next_sentence", "pooler"]
    assert {difference.text for difference in found.differences} == {
        "pooler: only A has this part",
        "next_sentence: only A has this part",
    }
    assert mlxbert.verify(b, a).differences[0].text.endswith(": only B has this part")


def test_renamed_labels(tmp_path: Path) -> None:
    a, b = (add_vocabulary(write_model("bert", "ForSequenceClassification", tmp_path / name)) for name in "ab")
    change_config(b, id2label={"0": "A", "1": "B", "2": "other", "3": "D"})
    found = mlxbert.verify(a, b)
    assert names(found) == ["heads.labels.names"]
    assert (found.differences[0].a, found.differences[0].b) == (("A", "B", "C", "D"), ("A", "B", "other", "D"))
    assert dict(found.outputs.heads) == {"sequence_classifier": 0.0}


def test_facts_of_heads_that_neither_model_has_are_noted(a: Path, b: Path) -> None:
    change_config(b, id2label={"0": "no", "1": "yes"})
    found = mlxbert.verify(a, b)
    assert found.agree
    (note,) = found.notes
    assert all(fact in note for fact in ("heads.labels.names", "LABEL_0, LABEL_1 in A", "no, yes in B"))


def test_a_classifier_that_only_one_model_has(tmp_path: Path) -> None:
    a, b = (
        add_vocabulary(write_model("bert", head, tmp_path / head)) for head in ("Model", "ForSequenceClassification")
    )
    change_config(b, id2label={"0": "A", "1": "B", "2": "other", "3": "D"})
    for found in (mlxbert.verify(a, b), mlxbert.verify(b, a)):
        assert names(found) == ["heads.labels.names", "sequence_classifier"]
        assert found.tensors.equal == found.tensors.compared == len(tensors_in(a))


def test_a_second_text_in_another_segment(a: Path, b: Path) -> None:
    for folder, segment in ((a, 1), (b, 0)):
        told = json.loads(read_tokenizer(folder).tokenizer.to_str())
        for piece in told["post_processor"]["pair"][3:]:
            next(iter(piece.values()))["type_id"] = segment
        write_json(folder / "tokenizer.json", told)
        write_json(folder / "tokenizer_config.json", {"tokenizer_class": "PreTrainedTokenizerFast"})
    found = mlxbert.verify(a, b)
    assert names(found) == ["offsets"] and found.outputs.texts == len(TEXTS)
    assert "their offsets or segments are not" in found.differences[0].text


def test_offsets_of_the_same_tokens(tmp_path: Path) -> None:
    a, b = (put(write_model("roberta", "Model", tmp_path / name), byte_files()) for name in "ab")
    write_json(b / "tokenizer_config.json", {"trim_offsets": False})
    assert names(mlxbert.verify(a, b)) == ["offsets"]


def test_another_first_position(tmp_path: Path) -> None:
    a, b = (put(write_model("roberta", "Model", tmp_path / name), byte_files()) for name in "ab")
    change_config(b, pad_token_id=6)
    found = mlxbert.verify(a, b)
    assert names(found) == ["pad_token_id", "positions.first_position"]
    assert [difference.text for difference in found.differences][1] == "positions.first_position: 8 in A; 7 in B"


def test_the_default_said_aloud_is_no_difference(a: Path, tmp_path: Path) -> None:
    assert mlxbert.verify(a, save_st(tmp_path / "b", pooling("mean"), transformer={"max_seq_length": 32})).agree


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


def test_models_of_different_families_and_sizes(a: Path, tmp_path: Path) -> None:
    b = put(write_model("roberta", "Model", tmp_path / "b"), byte_files())
    found = mlxbert.verify(a, b)
    assert {"hidden_size", "kind"} <= {*names(found)}
    assert "family: bert in A; roberta in B" in found.notes
    shapes = [difference for difference in found.differences if difference.name == "encoder.embeddings.word.weight"]
    assert shapes[0].text == f"encoder.embeddings.word.weight: {len(VOCAB)} x 24 in A; 43 x 30 in B"
    assert found.outputs.last_hidden_state is None


def test_other_kinds_of_positions_and_of_sizes(a: Path, tmp_path: Path) -> None:
    b = add_vocabulary(write_model("modernbert", "Model", tmp_path / "b"))
    found = mlxbert.verify(a, b)
    kinds = {difference.name: difference.text for difference in found.differences}
    assert kinds["positions"] == "positions: Absolute in A; Rotary in B"
    assert kinds["block"] == "block: PostNorm in A; PreNorm in B"
    assert "encoder.embeddings.position.weight: only A has it" in kinds.values()


def test_one_problem_in_two_folders_is_no_difference(tmp_path: Path) -> None:
    a, b = (add_vocabulary(write_model("bert", "ForSequenceClassification", tmp_path / name)) for name in "ab")
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
    write_tensors(b, without(b, "bert.encoder.layer.1.attention.self.query.weight"))
    with pytest.raises(CheckpointError, match="is missing"):
        mlxbert.verify(a, b)
    (b / "model.safetensors").write_bytes((a / "model.safetensors").read_bytes()[:-8])
    with pytest.raises(CheckpointError, match=r"model\.safetensors"):
        mlxbert.verify(a, b)


def test_a_source_that_is_none(a: Path) -> None:
    nothing: Any = None
    with pytest.raises(ArgumentError, match="`b` is of type NoneType"):
        mlxbert.verify(a, nothing)
    with pytest.raises(MlxbertError):
        mlxbert.verify(a, a, device="toaster")
