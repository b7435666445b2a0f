"""A CRF in a folder: written next to the weights, read back, converted, inspected; other programs pass over it."""

import json
import shutil
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

import mlxbert
from mlxbert import Labels
from mlxbert.errors import ArgumentError, CheckpointError
from mlxbert.machine.device import mx, nn
from mlxbert.nn.crf import CRF
from mlxbert.nn.heads import OWN_LAYERS
from mlxbert.weights.hub.files import needed_files
from tests.helpers.frozen import add_vocabulary, arrays, change_config, read_config, write_model
from tests.helpers.taggers import HEAD, NER

WITH = replace(NER, crf=True)
FILE = "crf.safetensors"
(NOTE,) = (own.note for own in OWN_LAYERS if own.file == FILE)
KINDS = ["bert", "roberta", "distilbert", "albert", "modernbert", "deberta-v3"]
NAMES = {"crf.start", "crf.transitions", "crf.end"}


def crf_of(model: mlxbert.Model) -> CRF:
    head: Any = model.network.heads[HEAD]
    found: CRF = head.crf
    return found


def with_crf(source: Path, folder: Path, dtype: str = "float32") -> mlxbert.Model:
    """A model with a random CRF, and its folder."""
    model = mlxbert.load(source, new_heads={HEAD: WITH}, dtype=dtype)
    random = {name: mx.random.normal(array.shape).astype(array.dtype) for name, array in _parameters(model).items()}
    crf_of(model).update(random)
    mlxbert.save(model, folder)
    return model


def _parameters(model: mlxbert.Model) -> dict[str, mx.array]:
    found: dict[str, mx.array] = dict(nn.utils.tree_flatten(crf_of(model).parameters()))
    return found


def assert_same(a: mlxbert.Model, b: mlxbert.Model) -> None:
    assert a.labels == b.labels
    for name, array in _parameters(a).items():
        assert mx.array_equal(array, _parameters(b)[name]).item(), name


@pytest.fixture(scope="module")
def source(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return add_vocabulary(write_model("bert", "Model", tmp_path_factory.mktemp("bert")))


@pytest.mark.usefixtures("measurement")
@pytest.mark.parametrize("family", KINDS)
def test_it_is_saved_loaded_and_converted(family: str, tmp_path: Path) -> None:
    source = add_vocabulary(write_model(family, "Model", tmp_path / "source"))
    model = with_crf(source, tmp_path / "saved")
    assert not any(array.any().item() for array in _parameters(mlxbert.load(source, new_heads={HEAD: WITH})).values())
    assert arrays(tmp_path / "saved" / FILE).keys() == NAMES
    assert not NAMES & arrays(tmp_path / "saved" / "model.safetensors").keys()
    assert read_config(tmp_path / "saved")["crf"] is True
    assert NOTE in (tmp_path / "saved" / "saved.json").read_text()
    conversion = mlxbert.convert(tmp_path / "saved", tmp_path / "converted")
    assert NOTE in conversion.changed and NOTE in (tmp_path / "converted" / "README.md").read_text()
    mlxbert.save(mlxbert.load(tmp_path / "converted", dtype="float32"), tmp_path / "again")
    for name in ("saved", "converted", "again"):
        assert_same(model, mlxbert.load(tmp_path / name, dtype="float32"))
        text = "the man sat in paris"
        found, wanted = (mlxbert.tag(one, text) for one in (mlxbert.load(tmp_path / name, dtype="float32"), model))
        assert found == wanted


def test_it_follows_the_dtype_and_the_shards(source: Path, tmp_path: Path) -> None:
    model = with_crf(source, tmp_path / "half", "float16")
    assert {array.dtype for array in arrays(tmp_path / "half" / FILE).values()} == {mx.float16}
    assert_same(model, mlxbert.load(tmp_path / "half", dtype="float16"))
    mlxbert.save(mlxbert.load(tmp_path / "half"), tmp_path / "shards", max_shard_size="20KB")
    assert (tmp_path / "shards" / "model.safetensors.index.json").is_file()
    assert "crf" not in (tmp_path / "shards" / "model.safetensors.index.json").read_text()
    assert_same(model, mlxbert.load(tmp_path / "shards", dtype="float16"))


def test_inspect_and_verify_know_it(source: Path, tmp_path: Path) -> None:
    with_crf(source, tmp_path / "a")
    found = mlxbert.inspect(tmp_path / "a")
    assert FILE in dict(found.weights.files) and found.parts[HEAD].tensors == 5 and "tag" in found.tasks
    assert {tensor.name for tensor in found.tensors} >= NAMES
    shutil.copytree(tmp_path / "a", tmp_path / "b")
    assert mlxbert.verify(tmp_path / "a", tmp_path / "b")
    changed = {name: array + (name == "crf.end") for name, array in arrays(tmp_path / "a" / FILE).items()}
    mx.eval(changed)
    (tmp_path / "b" / FILE).unlink()
    mx.save_safetensors(str(tmp_path / "b" / FILE), changed)
    (difference,) = mlxbert.verify(tmp_path / "a", tmp_path / "b").differences
    assert "crf.end" in difference.name
    change_config(tmp_path / "b", crf=None)
    names = {difference.name for difference in mlxbert.verify(tmp_path / "a", tmp_path / "b").differences}
    assert any("crf" in name for name in names)


def test_it_is_left_behind_with_the_labels_that_had_it(source: Path, tmp_path: Path) -> None:
    with_crf(source, tmp_path / "a")
    for head, labels in ((HEAD, NER), ("sequence_classifier", Labels(("a", "b")))):
        saved = mlxbert.save(mlxbert.load(tmp_path / "a", new_heads={head: labels}), tmp_path / head)
        assert not (saved / FILE).exists() and "crf" not in read_config(saved)
    fresh = mlxbert.load(tmp_path / "a", new_heads={HEAD: Labels(("O", "B-X", "I-X"), crf=True)})
    assert all(not array.any().item() for array in _parameters(fresh).values())
    change_config(tmp_path / "a", crf=None)  # a file that nothing asks for
    assert mlxbert.load(tmp_path / "a").labels == NER


def test_a_folder_without_its_crf_or_with_another(source: Path, tmp_path: Path) -> None:
    with_crf(source, tmp_path / "a")
    (tmp_path / "a" / FILE).rename(tmp_path / "kept")
    with pytest.raises(CheckpointError, match=r"crf\.start.* missing"):
        mlxbert.load(tmp_path / "a", task="tag")
    mlxbert.load(tmp_path / "a", task="embed")
    mx.save_safetensors(str(tmp_path / "a" / FILE), {name: mx.zeros(3) for name in NAMES})
    with pytest.raises(CheckpointError, match=r"crf\.\w+.* shape"):
        mlxbert.load(tmp_path / "a", task="tag")
    (tmp_path / "a" / FILE).write_bytes(b"nothing")
    with pytest.raises(CheckpointError, match=FILE):
        mlxbert.load(tmp_path / "a", task="tag")
    for wrong in ("yes", 1):
        change_config(tmp_path / "a", crf=wrong)
        with pytest.raises(CheckpointError, match="crf is"):
            mlxbert.load(tmp_path / "a", task="tag")


def test_only_tags_of_words_have_one(source: Path) -> None:
    with pytest.raises(ArgumentError, match="crf, which is for"):
        mlxbert.load(source, new_heads={"sequence_classifier": WITH})
    with pytest.raises(ArgumentError, match="crf is True"):
        mlxbert.load(source, new_heads={HEAD: Labels(("O", "B-X", "I-X", "Z"), crf=True)})


def test_it_is_downloaded_with_the_weights() -> None:
    listed = ["config.json", "model.safetensors", FILE, "vocab.txt", "other.safetensors"]
    assert FILE in needed_files("a/b", listed, lambda name: json.loads("{}"))
