"""`mlxbert convert` on folders of sentence-transformers: modules, settings, terms and card go along."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import mlxbert
from mlxbert.errors import MlxbertError
from mlxbert.machine.device import mx
from tests.export.test_round_trip import check_manifest
from tests.helpers.st_folder import FLAGS, NORMALIZE, Spec, dense, layer_norm, pooling, save_st, write_json
from tests.helpers.tiny import save
from tests.helpers.torch_files import archive

pytestmark = pytest.mark.usefixtures("measurement")

TEXTS = ["the cat sat on the mat .", "a dog in the store , he bought milk .", "", "play ##ing"]
mx.random.seed(9)
WEIGHT, BIAS = mx.random.normal((7, 24)) * 0.3, mx.random.normal((7,))
STACKS: dict[str, list[Spec]] = {
    **{f"{mode}, old {old}": [pooling(mode, old=old)] for mode in FLAGS for old in (True, False)},
    "two poolings": [pooling("cls", "mean"), dense(mx.concatenate([WEIGHT, WEIGHT], axis=1), BIAS)],
    "Dense": [pooling("mean"), dense(WEIGHT, BIAS)],
    "Dense in half precision": [pooling("mean"), dense(WEIGHT.astype(mx.float16), BIAS.astype(mx.float16))],
    "Dense without bias": [pooling("mean"), dense(WEIGHT, activation="GELU")],
    "LayerNorm": [pooling("mean"), layer_norm(mx.arange(24) / 7, mx.ones(24))],
    "all": [pooling("mean", include_prompt=False), dense(WEIGHT, BIAS), layer_norm(BIAS, BIAS), NORMALIZE],
}
SETTINGS = {"prompts": {"query": "man is : ", "passage": "in "}, "default_prompt_name": "query"}


def assert_same(a: Path, b: Path) -> None:
    """Both folders give the very same vectors."""
    one, other = (mlxbert.embed(mlxbert.load(folder, task="embed", dtype="float32"), TEXTS) for folder in (a, b))
    assert np.array_equal(one, other) and np.isfinite(one).all()


@pytest.mark.sampled
@pytest.mark.parametrize("stack", STACKS)
def test_every_module_goes_along(stack: str, tmp_path: Path) -> None:
    a, b = save_st(tmp_path / "a", *STACKS[stack]), tmp_path / "b"
    check_manifest(mlxbert.convert(a, b))
    assert_same(a, b)
    for path in a.rglob("*.json"):
        assert json.loads((b / path.relative_to(a)).read_text()) == json.loads(path.read_text())
    for path in a.rglob("*.safetensors"):
        ours, theirs = (mx.load(str(folder / path.relative_to(a))) for folder in (b, a))
        assert isinstance(ours, dict) and isinstance(theirs, dict) and ours.keys() == theirs.keys()
        assert all(mx.array_equal(ours[name], array).item() for name, array in theirs.items())
        assert all(ours[name].dtype == array.dtype for name, array in theirs.items())
    check_manifest(mlxbert.convert(b, tmp_path / "c"))
    for path in b.rglob("*.safetensors"):
        assert (tmp_path / "c" / path.relative_to(b)).read_bytes() == path.read_bytes()


def test_a_module_for_training_alone_changes_nothing_and_stays_behind(tmp_path: Path) -> None:
    plain, own = [pooling("mean"), dense(WEIGHT, BIAS)], ("Dropout", {"dropout": 0.9}, None)
    save_st(tmp_path / "b", *plain, NORMALIZE)
    mlxbert.convert(save_st(tmp_path / "a", *plain, own, NORMALIZE), tmp_path / "c")
    vectors = [mlxbert.embed(mlxbert.load(tmp_path / name, dtype="float32"), "the cat") for name in "abc"]
    assert (vectors[0] == vectors[1]).all() and (vectors[0] == vectors[2]).all()
    kinds = [module["type"] for module in json.loads((tmp_path / "c" / "modules.json").read_text())]
    assert not any("Dropout" in kind for kind in kinds) and len(kinds) == 4


@pytest.mark.parametrize("name", ["sentence_bert_config.json", "sentence_distilbert_config.json"])
def test_settings_go_along(name: str, tmp_path: Path) -> None:
    a = save_st(tmp_path / "a", *STACKS["all"], settings=SETTINGS)
    write_json(a / name, {"max_seq_length": 7, "do_lower_case": True})
    check_manifest(mlxbert.convert(a, tmp_path / "b"))
    assert_same(a, tmp_path / "b")
    assert mlxbert.load(tmp_path / "b").embedder.config.max_length == 7
    assert (tmp_path / "b" / name).read_bytes() == (a / name).read_bytes()


@pytest.mark.parametrize("how", [{}, {"dtype": "float16"}, {"max_shard_size": "4KB"}], ids=str)
def test_a_transformer_in_a_folder_of_its_own_stays_there(how: dict[str, Any], tmp_path: Path) -> None:
    a, b = save_st(tmp_path / "a", *STACKS["all"]), tmp_path / "b"
    inner = save(a / "0_Transformer")
    for path in inner.iterdir():
        (a / path.name).unlink()
    write_json(inner / "sentence_bert_config.json", {"max_seq_length": 9})
    write_json(a / "config.json", {"__version__": "0.4.1"})
    entries = json.loads((a / "modules.json").read_text())
    write_json(a / "modules.json", [entries[0] | {"path": "0_Transformer"}, *entries[1:]])
    check_manifest(mlxbert.convert(a, b, **how))
    missing = {path.name for path in inner.iterdir()} - {path.name for path in (b / "0_Transformer").iterdir()}
    assert missing <= {"model.safetensors"}
    assert not list(b.glob("*.safetensors")) and json.loads((b / "config.json").read_text()) == {"__version__": "0.4.1"}
    if "dtype" not in how:
        assert_same(a, b)


def test_terms_and_card_go_along_and_nothing_that_nobody_asked_for(tmp_path: Path) -> None:
    a, b = save_st(tmp_path / "a", *STACKS["all"]), tmp_path / "b"
    (a / "README.md").write_text("---\nlicense: apache-2.0\n---\n\n# A model\n\nSch\u00f6n.\n", encoding="utf-8")
    (a / "LICENSE").write_text("Terms.")
    (a / "NOTICE.txt").write_text("Names.")
    for name in ("optimizer.pt", "training_args.bin", "notes.md", ".git", "model.onnx"):
        (a / name).write_bytes(b"x")
    found = mlxbert.convert(a, b)
    check_manifest(found)
    card = (b / "README.md").read_text(encoding="utf-8")
    assert card.startswith("---\nlicense: apache-2.0\n---\n\n# A model\n\nSch\u00f6n.\n") and "## Conversion" in card
    assert str(tmp_path) not in card
    assert (b / "LICENSE").read_text() == "Terms." and (b / "NOTICE.txt").read_text() == "Names."
    names = {path.name for path in b.iterdir()}
    assert not names & {"optimizer.pt", "training_args.bin", "notes.md", ".git", "model.onnx"}


@pytest.mark.parametrize("damage", ["missing", "torn", "pickle"])
def test_a_module_that_cannot_be_read_is_an_error_and_leaves_nothing(damage: str, tmp_path: Path) -> None:
    a = save_st(tmp_path / "a", *STACKS["Dense"])
    weights = a / "2_Dense" / "model.safetensors"
    if damage == "torn":
        weights.write_bytes(weights.read_bytes()[:-8])
    else:
        weights.unlink()
    if damage == "pickle":
        weights.with_name("pytorch_model.bin").write_bytes(archive(b"\x80\x02cos\nsystem\n."))
    with pytest.raises(MlxbertError) as caught:
        mlxbert.convert(a, tmp_path / "b")
    assert "2_Dense" in caught.value.message
    assert [path.name for path in tmp_path.iterdir()] == ["a"]
