"""`mlxbert convert` on the frozen models: what is written has the names and the numbers of what was read."""

import hashlib
import json
import re
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import mlxbert
from mlxbert import Conversion
from mlxbert.errors import CheckpointError
from mlxbert.goldens.golden_outputs import load_network, outputs
from mlxbert.machine.device import mx
from mlxbert.weights.checkpoint import open_checkpoint
from tests.conftest import MEASURED
from tests.helpers.families import FROZEN, FROZEN_CELLS, walked, walked_slowly
from tests.helpers.frozen import (
    add_vocabulary,
    change_config,
    prefix_in,
    read_config,
    tensors_in,
    words_in,
    write_config,
    write_model,
    write_tensors,
)
from tests.helpers.tf_files import NETWORKS, frozen as frozen_tf, source, write_model as write_tf_model
from tests.weights.test_traps_names import (
    MASKED_LM,
    OLD_ENOUGH,
    POOLED,
    TIED,
    Arrays,
    assert_loads_as,
)

pytestmark = pytest.mark.usefixtures("measurement")


@pytest.fixture
def b(tmp_path: Path) -> Path:
    """Where to."""
    return tmp_path / "b"


def model(family: str, head: str, folder: Path) -> Path:
    """A frozen model with a vocabulary."""
    return add_vocabulary(write_model(family, head, folder))


def assert_equal(found: Arrays, wanted: Arrays) -> None:
    """The same names and the same numbers in the same dtype."""
    assert found.keys() == wanted.keys(), found.keys() ^ wanted.keys()
    for name, array in wanted.items():
        assert found[name].dtype == array.dtype and mx.array_equal(found[name], array).item(), name


def sha256(path: Path) -> str:
    return hashlib.sha256(path.read_bytes()).hexdigest()


def check_manifest(found: Conversion) -> dict[str, Any]:
    """The manifest lists the files as they are, all of them."""
    written: dict[str, Any] = json.loads((found.folder / "conversion.json").read_text(encoding="utf-8"))
    files = {path.relative_to(found.folder).as_posix(): path for path in found.folder.rglob("*") if path.is_file()}
    assert written["written"] == {name: sha256(path) for name, path in files.items() if name != "conversion.json"}
    assert found.bytes == sum(path.stat().st_size for name, path in files.items() if name != "conversion.json")
    assert not list(found.folder.parent.glob("*.partial")) and not list(found.folder.rglob(".unfinished"))
    assert written["difference"]["agree"], written["difference"]["differences"]
    return written


@pytest.mark.parametrize(("family", "head"), walked_slowly(FROZEN_CELLS), ids=str)
@MEASURED
def test_a_converted_model_is_the_model(family: str, head: str, tmp_path: Path, b: Path) -> None:
    a = model(family, head, tmp_path / "a")
    written = check_manifest(mlxbert.convert(a, b))
    assert written["read"] == {path.name: sha256(path) for path in a.iterdir()}
    assert written["left_out"] == written["changed"] == []
    assert_equal(tensors_in(b), tensors_in(a))
    assert list(read_config(b).items()) == list(read_config(a).items())
    assert open_checkpoint(b).config.labels == open_checkpoint(a).config.labels
    here, there = load_network(b), load_network(a)
    case = FROZEN[family].cases["pairs"]
    ours, theirs = outputs(here, case), outputs(there, case)
    assert all(np.array_equal(ours[name], array) for name, array in theirs.items())


@pytest.mark.sampled
@pytest.mark.parametrize("family", walked(FROZEN))
def test_what_was_converted_is_converted_to_itself(family: str, tmp_path: Path, b: Path) -> None:
    head = next(head for head in ("ForSequenceClassification", "ForMaskedLM") if head in FROZEN[family].heads)
    mlxbert.convert(model(family, head, tmp_path / "a"), b)
    check_manifest(mlxbert.convert(b, tmp_path / "c"))
    for name in ("model.safetensors", "config.json", "vocab.txt", "tokenizer_config.json"):
        assert (tmp_path / "c" / name).read_bytes() == (b / name).read_bytes(), name


def test_labels_and_what_nobody_here_knows_stay_in_the_configuration(tmp_path: Path, b: Path) -> None:
    a = model("roberta", "ForSequenceClassification", tmp_path / "a")
    labels = {"0": "sehr gut", "1": "gut", "2": "naja", "3": "schl\u00e4cht"}
    facts: dict[str, Any] = {"id2label": labels, "task_specific_params": {"x": [1, None, 2.5]}, "\u00e4": "\u2028"}
    change_config(a, **facts, label2id={label: int(number) for number, label in labels.items()})
    mlxbert.convert(a, b)
    assert list(read_config(b).items()) == list(read_config(a).items())
    mlxbert.convert(a, tmp_path / "c", dtype="bfloat16")
    changed = {key: value for key, value in read_config(tmp_path / "c").items() if read_config(a).get(key) != value}
    assert changed in ({"dtype": "bfloat16"}, {"torch_dtype": "bfloat16"})


@pytest.mark.parametrize("cased", [True, False])
def test_case_is_told_where_only_the_vocabulary_tells_it(cased: bool, tmp_path: Path, b: Path) -> None:
    a = model("bert", "Model", tmp_path / "a")
    words, (before, after) = (
        (a / "vocab.txt").read_text(encoding="utf-8"),
        [f / "tokenizer_config.json" for f in (a, b)],
    )
    assert "paris" in words and "do_lower_case" not in (settings := json.loads(before.read_text()))
    (a / "vocab.txt").write_text(words.replace("paris", "Paris") if cased else words, encoding="utf-8")
    said = ["tokenizer_config.json: do_lower_case is false, because the vocabulary is cased"] * cased
    assert check_manifest(mlxbert.convert(a, b))["changed"] == said
    assert json.loads(after.read_text()) == settings | ({"do_lower_case": False} if cased else {})


@pytest.mark.sampled
@pytest.mark.parametrize("family", walked(FROZEN))
def test_the_prefix_is_the_one_that_transformers_expects(family: str, tmp_path: Path, b: Path) -> None:
    a = model(family, FROZEN[family].heads[1], tmp_path / "a")
    wanted = tensors_in(a)
    prefix = prefix_in(wanted)
    write_tensors(a, {name.removeprefix(prefix): array for name, array in wanted.items()})
    assert check_manifest(mlxbert.convert(a, b))["changed"][0].startswith("names of ")
    assert_equal(tensors_in(b), wanted)
    encoder = model(family, "Model", tmp_path / "encoder")
    bare = tensors_in(encoder)
    write_tensors(encoder, {prefix + name: array for name, array in bare.items()})
    mlxbert.convert(encoder, tmp_path / "c")
    assert_equal(tensors_in(tmp_path / "c"), bare)


@pytest.mark.parametrize("family", walked(OLD_ENOUGH))
def test_old_spellings_become_those_of_today(family: str, tmp_path: Path, b: Path) -> None:
    a = model(family, "ForMaskedLM", tmp_path / "a")
    wanted = tensors_in(a)
    pattern = re.compile(r"((?:layer_?norm|full_layer_layer_norm)\.)(weight|bias)$", flags=re.IGNORECASE)
    spelling = {"weight": "gamma", "bias": "beta"}
    old = {pattern.sub(lambda found: found[1] + spelling[found[2]], name): array for name, array in wanted.items()}
    buffers = {f"{prefix_in(wanted)}embeddings.{name}" for name in ("position_ids", "token_type_ids")}
    write_tensors(a, old | dict.fromkeys(buffers, mx.arange(8)[None]))
    assert {*check_manifest(mlxbert.convert(a, b))["left_out"]} == buffers
    assert_equal(tensors_in(b), wanted)


@pytest.mark.parametrize("family", ["modernbert", "nomic", "gte"])
def test_frequencies_of_rotations_are_left_out(family: str, tmp_path: Path, b: Path) -> None:
    a, frequencies = model(family, "Model", tmp_path / "a"), "encoder.rotary_emb.inv_freq"
    wanted = tensors_in(a)
    write_tensors(a, wanted | {frequencies: mx.ones(4)})
    assert check_manifest(mlxbert.convert(a, b))["left_out"] == [frequencies]
    assert_equal(tensors_in(b), wanted)


@pytest.mark.sampled
@pytest.mark.parametrize("family", walked(MASKED_LM))
def test_a_copy_of_the_decoder_goes_along_where_the_configuration_unties_it(
    family: str, tmp_path: Path, b: Path
) -> None:
    a = model(family, "ForMaskedLM", tmp_path / "a")
    tensors, decoder = tensors_in(a), TIED[family][0]
    copied = tensors | {decoder: tensors[words_in(tensors)]}
    write_tensors(a, copied)
    assert check_manifest(mlxbert.convert(a, b))["left_out"] == [decoder]
    assert_equal(tensors_in(b), tensors)
    change_config(a, tie_word_embeddings=False)
    assert check_manifest(mlxbert.convert(a, tmp_path / "c"))["left_out"] == []
    assert_equal(tensors_in(tmp_path / "c"), copied)
    write_tensors(a, copied | {decoder: copied[decoder] + mx.eye(43, copied[decoder].shape[1])})
    for untied in (True, False):
        change_config(a, tie_word_embeddings=not untied)
        mlxbert.convert(a, tmp_path / f"own {untied}")
        assert mx.array_equal(tensors_in(tmp_path / f"own {untied}")[decoder], tensors_in(a)[decoder]).item()
    write_tensors(a, tensors)
    change_config(a, tie_word_embeddings=False)
    with pytest.raises(CheckpointError, match="is missing"):
        mlxbert.convert(a, tmp_path / "d")


@pytest.mark.parametrize("family", walked(POOLED))
def test_a_pooler_that_is_absent_stays_so(family: str, tmp_path: Path, b: Path) -> None:
    a = model(family, "Model", tmp_path / "a")
    tensors = {name: array for name, array in tensors_in(a).items() if not name.startswith("pooler.")}
    mlxbert.convert(write_tensors(a, tensors), b)
    assert_equal(tensors_in(b), tensors)


SUMMARY = {"sequence_summary.summary.weight": (30, 30), "sequence_summary.summary.bias": (30,)}
MASKS = {"mask_predictions.dense.weight": (30, 30), "mask_predictions.classifier.bias": (1,)}
CARRIED: list[tuple[str, str, dict[str, tuple[int, ...]]]] = [
    ("bert", "BertForMultipleChoice", {"classifier.weight": (1, 30), "classifier.bias": (1,)}),
    ("electra", "ElectraForMultipleChoice", SUMMARY | {"classifier.weight": (1, 30)}),
    ("deberta-v3", "DebertaV2Model", MASKS),
    ("deberta-v3", "DebertaV2Model", {"deberta.embeddings.position_embeddings.weight": (27, 30)}),
]


@pytest.mark.parametrize(("family", "kind", "shapes"), CARRIED, ids=str)
def test_heads_that_are_not_run_go_along(
    family: str, kind: str, shapes: dict[str, tuple[int, ...]], tmp_path: Path, b: Path
) -> None:
    a = model(family, "Model", tmp_path / "a")
    change_config(a, architectures=[kind])
    prefix = prefix_in(tensors_in(write_model(family, "ForMaskedLM", tmp_path / "head")))
    inside = all(name.startswith(prefix) for name in shapes)
    mx.random.seed(4)
    tensors = {prefix + name: array for name, array in tensors_in(a).items()}
    tensors |= {name: mx.random.normal(shape) for name, shape in shapes.items()}
    assert check_manifest(mlxbert.convert(write_tensors(a, tensors), b))["left_out"] == []
    wanted = {name.removeprefix(prefix): array for name, array in tensors.items()} if inside else tensors
    assert_equal(tensors_in(b), wanted)
    assert_loads_as(b, load_network(a))
    mlxbert.convert(a, tmp_path / "half", dtype="float16")
    assert {array.dtype for array in tensors_in(tmp_path / "half").values()} == {mx.float16}


@pytest.mark.parametrize("legacy", [None, True, False])
def test_the_head_of_deberta_3_has_the_name_that_its_configuration_tells(
    legacy: bool | None, tmp_path: Path, b: Path
) -> None:
    a = model("deberta-v3", "ForMaskedLM", tmp_path / "a")
    tensors = tensors_in(a)
    new = {
        re.sub(r"^cls\.predictions\.(transform\.)?", "lm_predictions.lm_head.", name): t for name, t in tensors.items()
    }
    assert new.keys() != tensors.keys()
    config = {key: value for key, value in read_config(a).items() if key != "legacy"}
    write_config(a, config if legacy is None else config | {"legacy": legacy})
    mlxbert.convert(write_tensors(a, new), b)
    assert_equal(tensors_in(b), new if legacy is False else tensors)
    assert read_config(b) == read_config(a)
    assert_loads_as(b, load_network(a))


@pytest.mark.parametrize("network", NETWORKS)
def test_a_checkpoint_of_tensorflow_becomes_safetensors(network: str, tmp_path: Path, b: Path) -> None:
    a = add_vocabulary(write_tf_model(network, tmp_path / "a"))
    written = check_manifest(mlxbert.convert(a, b))
    assert written["changed"][0] == "weights: TensorFlow 1 \u2192 safetensors"
    wanted = {name: mx.array(array) for name, array in frozen_tf(network, "tensors").items()}
    ties = {"cls.predictions.decoder.weight", "cls.predictions.decoder.bias"}
    ties |= {"predictions.decoder.weight", "predictions.decoder.bias", "generator_lm_head.weight"}
    assert "global_step" in written["left_out"]
    found = tensors_in(b)
    assert_equal(found, {name: array for name, array in wanted.items() if name not in ties})
    assert any(name.startswith(("bert.", "albert.", "electra.")) for name in found)


def test_a_folder_of_google_is_complete_afterwards(tmp_path: Path, b: Path) -> None:
    a = shutil.copytree(source("bert-classifier"), tmp_path / "a")
    (a / "bert.safetensors").unlink()
    add_vocabulary(a)
    said = check_manifest(mlxbert.convert(a, b))["changed"]
    assert 'config.json: architectures is ["BertForSequenceClassification"]' in said
    config = read_config(b)
    assert config["model_type"] == "bert" and config["architectures"] == ["BertForSequenceClassification"]
    assert len(config["id2label"]) == len(config["label2id"]) == tensors_in(b)["classifier.weight"].shape[0]
    assert not (b / "bert_config.json").exists()
    assert_loads_as(b, load_network(a))


def test_an_archive_of_numpy_becomes_safetensors(tmp_path: Path, b: Path) -> None:
    a = model("bert", "ForPreTraining", tmp_path / "a")
    tensors = tensors_in(a)
    mx.savez(str(a / "weights.npz"), **tensors)
    (a / "model.safetensors").unlink()
    assert check_manifest(mlxbert.convert(a, b))["format"] == "NumPy archive"
    assert_equal(tensors_in(b), tensors)
