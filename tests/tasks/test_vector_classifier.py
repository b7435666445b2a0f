"""A classifier of vectors in a folder: written next to the weights, read back, converted, inspected, refused."""

import json
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import mlxbert
from mlxbert import Labels
from mlxbert.errors import ArgumentError, CheckpointError
from mlxbert.machine.device import mx
from mlxbert.nn.heads import OWN_LAYERS
from mlxbert.weights.hub.files import needed_files
from tests.helpers.frozen import add_vocabulary, arrays, change_config, read_config, write_model

HEAD = "sequence_classifier"
LABELS = Labels(("a", "b", "c"), "single_label_classification", head_pooling="mean")
FILE = "vector_classifier.safetensors"
(NOTE,) = (own.note for own in OWN_LAYERS if own.file == FILE)
NAMES = {"vector_classifier.weight", "vector_classifier.bias"}
KINDS = ["bert", "roberta", "distilbert", "albert", "electra", "mpnet", "modernbert", "nomic", "gte", "deberta-v3"]
TEXT = "the man sat in paris"


def saved(source: Path, folder: Path, dtype: str = "float32", labels: Labels = LABELS) -> mlxbert.Model:
    """A model with a random classifier of vectors, and its folder."""
    model = mlxbert.load(source, new_heads={HEAD: labels}, dtype=dtype)
    mlxbert.save(model, folder)
    return model


def scores(model: mlxbert.Model) -> list[float]:
    found = mlxbert.classify(model, TEXT)
    assert isinstance(found, mlxbert.Classification)
    return [label.score for label in found.labels]


@pytest.fixture(scope="module")
def source(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return add_vocabulary(write_model("bert", "Model", tmp_path_factory.mktemp("bert")))


@pytest.mark.usefixtures("measurement")
@pytest.mark.parametrize("family", KINDS)
def test_it_is_saved_loaded_and_converted(family: str, tmp_path: Path) -> None:
    source = add_vocabulary(write_model(family, "Model", tmp_path / "source"))
    model = saved(source, tmp_path / "saved")
    assert arrays(tmp_path / "saved" / FILE).keys() == NAMES
    inside = arrays(tmp_path / "saved" / "model.safetensors").keys()
    assert not any("classifier" in name or "pooler" in name for name in inside)
    config = read_config(tmp_path / "saved")
    assert config["head_pooling"] == "mean" and config["architectures"][0].endswith("Model")
    assert NOTE in (tmp_path / "saved" / "saved.json").read_text()
    conversion = mlxbert.convert(tmp_path / "saved", tmp_path / "converted")
    assert NOTE in conversion.changed and NOTE in (tmp_path / "converted" / "README.md").read_text()
    mlxbert.save(mlxbert.load(tmp_path / "converted", dtype="float32"), tmp_path / "again")
    for name in ("saved", "converted", "again"):
        found = mlxbert.load(tmp_path / name, task="classify", dtype="float32")
        assert found.labels == LABELS and scores(found) == scores(model)


@pytest.mark.parametrize("pooling", ["cls", "mean", "cls+max"])
def test_the_scores_are_a_linear_function_of_the_vector(source: Path, tmp_path: Path, pooling: str) -> None:
    labels = Labels(LABELS.names, LABELS.problem_type, head_pooling=pooling)
    model = saved(source, tmp_path / "a", labels=labels)
    vector = mlxbert.embed(mlxbert.load(source, task="embed", dtype="float32"), TEXT, pooling=pooling)
    stored = {name: np.array(array) for name, array in arrays(tmp_path / "a" / FILE).items()}
    logits = stored["vector_classifier.weight"] @ vector + stored["vector_classifier.bias"]
    wanted = np.exp(logits) / np.exp(logits).sum()
    assert scores(model) == pytest.approx(sorted(wanted, reverse=True), abs=1e-6)


def test_it_follows_the_dtype_and_the_shards(source: Path, tmp_path: Path) -> None:
    model = saved(source, tmp_path / "half", "float16")
    assert {array.dtype for array in arrays(tmp_path / "half" / FILE).values()} == {mx.float16}
    mlxbert.save(mlxbert.load(tmp_path / "half"), tmp_path / "shards", max_shard_size="20KB")
    assert "vector" not in (tmp_path / "shards" / "model.safetensors.index.json").read_text()
    assert scores(mlxbert.load(tmp_path / "shards", dtype="float16")) == scores(model)


def test_inspect_and_verify_know_it(source: Path, tmp_path: Path) -> None:
    saved(source, tmp_path / "a")
    found = mlxbert.inspect(tmp_path / "a")
    assert FILE in dict(found.weights.files) and found.parts[HEAD].tensors == 2
    assert "classify" in found.tasks and "embed" in found.tasks
    shutil.copytree(tmp_path / "a", tmp_path / "b")
    assert mlxbert.verify(tmp_path / "a", tmp_path / "b")
    changed = {name: array + (name.endswith("bias")) for name, array in arrays(tmp_path / "a" / FILE).items()}
    mx.eval(changed)
    (tmp_path / "b" / FILE).unlink()
    mx.save_safetensors(str(tmp_path / "b" / FILE), changed)
    names = {difference.name for difference in mlxbert.verify(tmp_path / "a", tmp_path / "b").differences}
    assert any(f"{HEAD}.linear.bias" in name for name in names)


def test_it_is_left_behind_with_the_labels_that_had_it(source: Path, tmp_path: Path) -> None:
    saved(source, tmp_path / "a")
    for head, kind in ((HEAD, "SequenceClassification"), ("token_classifier", "TokenClassification")):
        model = mlxbert.load(tmp_path / "a", new_heads={head: Labels(("a", "b"))})
        folder = mlxbert.save(model, tmp_path / head)
        assert not (folder / FILE).exists() and "head_pooling" not in read_config(folder)
        assert read_config(folder)["architectures"] == [f"BertFor{kind}"]
    encoder = mlxbert.save(mlxbert.load(tmp_path / "a", task="embed"), tmp_path / "encoder")
    assert not (encoder / FILE).exists() and "head_pooling" not in read_config(encoder)


def test_a_folder_without_it_or_with_another(source: Path, tmp_path: Path) -> None:
    saved(source, tmp_path / "a")
    (tmp_path / "a" / FILE).rename(tmp_path / "kept")
    with pytest.raises(CheckpointError):
        mlxbert.load(tmp_path / "a", task="classify")
    mlxbert.load(tmp_path / "a", task="embed")
    mx.save_safetensors(str(tmp_path / "a" / FILE), {name: mx.zeros(3) for name in NAMES})
    with pytest.raises(CheckpointError, match="shape"):
        mlxbert.load(tmp_path / "a", task="classify")
    (tmp_path / "a" / FILE).write_bytes(b"nothing")
    with pytest.raises(CheckpointError, match=FILE):
        mlxbert.load(tmp_path / "a", task="classify")
    wrong: list[Any] = ["middle", 1, ["mean"], "attention", "mean+attention", ""]
    for value in wrong:
        change_config(tmp_path / "a", head_pooling=value)
        with pytest.raises(mlxbert.MlxbertError):
            mlxbert.load(tmp_path / "a", task="classify")


def test_only_whole_texts_have_one(source: Path) -> None:
    with pytest.raises(ArgumentError, match="pooling"):
        mlxbert.load(source, new_heads={"token_classifier": LABELS})
    with pytest.raises(ArgumentError, match="pooling"):
        mlxbert.load(source, new_heads={HEAD: Labels(("a", "b"), head_pooling="middle")})


def test_it_is_downloaded_with_the_weights() -> None:
    listed = ["config.json", "model.safetensors", FILE, "vocab.txt", "other.safetensors"]
    assert FILE in needed_files("a/b", listed, lambda name: json.loads("{}"))
