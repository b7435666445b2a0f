"""What `mlxbert convert` must not do: lose numbers, delete what is somebody's, look finished before it is."""

import os
import re
import shutil
from pathlib import Path

import pytest

import mlxbert
from mlxbert import conversion
from mlxbert.compare import verify
from mlxbert.device import mx
from mlxbert.errors import ArgumentError, CheckpointError, MlxbertError, TokenizerError
from mlxbert.results import Difference, Verification
from mlxbert.weights import export, safetensors
from tests.cli_helpers import call, change_weights, names, snapshot, tiny_model
from tests.frozen import add_vocabulary, arrays
from tests.st_folder import NORMALIZE, dense, layer_norm, pooling, save_st
from tests.tf_files import write_model

BIAS = "bert.encoder.layer.0.output.dense.bias"


@pytest.fixture
def a(tmp_path: Path) -> Path:
    return tiny_model(tmp_path / "a")


@pytest.mark.parametrize("value", [65_520.0, -1e6, 3e38])
def test_a_number_that_float16_does_not_hold_is_refused(value: float, a: Path, tmp_path: Path) -> None:
    change_weights(a, lambda tensors: tensors.update({BIAS: mx.full(tensors[BIAS].shape, value)}))
    said = f"tensor {BIAS[5:]!r} holds {abs(value):g}, more than F16 can"
    with pytest.raises(CheckpointError, match=re.escape(said)) as caught:
        mlxbert.convert(a, tmp_path / "b", dtype="float16")
    assert caught.value.hint is not None and "bfloat16" in caught.value.hint
    assert names(tmp_path) == ["a"]
    assert mlxbert.convert(a, tmp_path / "b", dtype="bfloat16").difference["agree"]


def test_the_largest_number_that_float16_holds_is_kept(a: Path, tmp_path: Path) -> None:
    change_weights(a, lambda tensors: tensors.update({BIAS: mx.full(tensors[BIAS].shape, 65_519.0)}))
    mlxbert.convert(a, tmp_path / "b", dtype="float16")
    assert (arrays(tmp_path / "b" / "model.safetensors")[BIAS] == 65_504).all().item()


def test_numbers_that_are_none_stay_so(a: Path, tmp_path: Path) -> None:
    change_weights(a, lambda tensors: tensors.update({BIAS: tensors[BIAS] + mx.inf}))
    mlxbert.convert(a, tmp_path / "b", dtype="float16")
    assert (arrays(tmp_path / "b" / "model.safetensors")[BIAS] == mx.inf).all().item()


def test_modules_are_converted_too(tmp_path: Path) -> None:
    stack = [
        pooling("mean"),
        dense(mx.ones((6, 24)), mx.ones((6,))),
        layer_norm(mx.ones((6,)), mx.ones((6,))),
        NORMALIZE,
    ]
    a = save_st(tmp_path / "a", *stack)
    found = mlxbert.convert(a, tmp_path / "b", dtype="float16")
    for name in ("2_Dense", "3_LayerNorm"):
        stored = safetensors.read_header(tmp_path / "b" / name / "model.safetensors").tensors
        assert {info.dtype for info in stored.values()} == {"F16"}
        assert f"{name}: dtype F32 → F16" in found.changed
    again = mlxbert.convert(tmp_path / "b", tmp_path / "c", dtype="float16")
    assert again.changed == () and again.difference["tensors"]["rounded"] == 0
    large = [pooling("mean"), dense(mx.full((6, 24), 1e5))]
    with pytest.raises(CheckpointError, match=r"2_Dense/linear\.weight' holds 100000, more than F16 can"):
        mlxbert.convert(save_st(tmp_path / "large", *large), tmp_path / "d", dtype="float16")


def test_what_was_read_is_in_the_manifest(tmp_path: Path) -> None:
    a = save_st(tmp_path / "a", pooling("mean"), dense(mx.ones((6, 24))), settings={"prompts": {}})
    (a / "LICENSE.txt").write_text("terms")
    read = mlxbert.convert(a, tmp_path / "b").read
    assert {str(path.relative_to(a)) for path in a.rglob("*") if path.is_file()} == read.keys()
    tensorflow = add_vocabulary(write_model("bert-squad", tmp_path / "tf"))
    read = mlxbert.convert(tensorflow, tmp_path / "c").read
    assert {path.name for path in tensorflow.iterdir()} == read.keys() and len(read) > 4


def test_a_copy_beside_quantized_words_is_left_out(tmp_path: Path) -> None:
    a = tiny_model(tmp_path / "a", hidden_size=32, tie_word_embeddings=False)
    copy = "cls.predictions.decoder.weight"
    change_weights(a, lambda tensors: tensors.update({copy: tensors["bert.embeddings.word_embeddings.weight"] + 0}))
    found = mlxbert.convert(a, tmp_path / "b", quantize=8, group_size=32)
    assert found.difference["agree"] and copy in found.left_out
    assert "config.json: tie_word_embeddings taken out" in found.changed
    assert mlxbert.load(tmp_path / "b", task="fill-mask").folder == tmp_path / "b"


def test_what_would_be_another_model_is_not_written(
    a: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def differing(kind: str) -> None:
        said = Difference(kind, "x", 1, 2, "x: 1 and 2")
        found = Verification(False, "a", "b", (said,), ("a note",), {}, {"tolerance": 1e-4})
        monkeypatch.setattr(conversion, "verify", lambda *sides: found)

    differing("config")
    with pytest.raises(CheckpointError, match="another model: x: 1 and 2"):
        mlxbert.convert(a, tmp_path / "b")
    assert names(tmp_path) == ["a"] and not caplog.records
    differing("output")
    found = mlxbert.convert(a, tmp_path / "b")
    assert not found.difference["agree"] and found.difference["notes"] == ("a note",)
    assert [record.getMessage() for record in caplog.records] == [
        f"{a}: the result computes something else: x: 1 and 2"
    ]


def test_nothing_looks_finished_while_it_is_measured(a: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    seen = []

    def look(source: Path, result: Path) -> Verification:
        partial = tmp_path / "b.partial"
        with pytest.raises(MlxbertError, match=r"no config\.json"):
            mlxbert.load(partial)
        assert mlxbert.load(result, task="fill-mask") and not (partial / "conversion.json").exists()
        seen.append(result)
        return verify.verify(source, result)

    monkeypatch.setattr(conversion, "verify", look)
    mlxbert.convert(a, tmp_path / "b")
    (view,) = seen
    assert not view.exists() and not any(path.is_symlink() for path in (tmp_path / "b").rglob("*"))
    assert names(tmp_path / "b") == ["README.md", "config.json", "conversion.json", "model.safetensors", "vocab.txt"]


def test_what_another_conversion_finished_meanwhile_is_not_replaced(
    a: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    plan = export.plan

    def late(*arguments: object) -> object:
        monkeypatch.setattr(export, "plan", plan)
        mlxbert.convert(a, tmp_path / "b", dtype="float16")
        return plan(*arguments)  # type: ignore[arg-type]

    monkeypatch.setattr(export, "plan", late)
    with pytest.raises(ArgumentError, match="is there already"):
        mlxbert.convert(a, tmp_path / "b")
    assert names(tmp_path) == ["a", "b"]
    assert {info.dtype for info in safetensors.read_header(tmp_path / "b" / "model.safetensors").tensors.values()} == {
        "F16"
    }


def test_a_disk_without_room_is_told_before_anything_is_written(
    a: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    size = sum(tensor.nbytes for tensor in arrays(a / "model.safetensors").values())
    usage = shutil.disk_usage(tmp_path)
    monkeypatch.setattr(shutil, "disk_usage", lambda place: usage._replace(free=size - 1))
    call("convert", str(a), str(tmp_path / "x" / "b")).fails(1, f"{size:,} bytes", f"{size - 1:,} are free")
    assert names(tmp_path) == ["a"]
    monkeypatch.setattr(shutil, "disk_usage", lambda place: usage._replace(free=size))
    assert call("convert", str(a), str(tmp_path / "x" / "b")).status == 0


def test_a_vocabulary_that_is_missing_is_told_before_anything_is_written(
    a: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (a / "vocab.txt").unlink()
    monkeypatch.setattr(export, "write_weights", None)
    with pytest.raises(TokenizerError):
        mlxbert.convert(a, tmp_path / "b")


def test_terms_that_lie_elsewhere_are_nobodys_to_publish(a: Path, tmp_path: Path) -> None:
    (tmp_path / "secret").write_text("mine")
    (a / "here").write_text("terms")
    for link, place in {"NOTICE": "../secret", "README.md": "../secret", "LICENSE": "here"}.items():
        os.symlink(place, a / link)
    mlxbert.convert(a, tmp_path / "b")
    assert "NOTICE" not in names(tmp_path / "b") and (tmp_path / "b" / "LICENSE").read_text() == "terms"
    assert all(b"mine" not in content for content in snapshot(tmp_path / "b").values())


def test_a_card_tells_of_the_last_conversion_only(tmp_path: Path) -> None:
    a = tiny_model(tmp_path / "a", hidden_size=32)
    front = "---\nlicense: mit\nlibrary_name: transformers\n---"
    (a / "README.md").write_text(f"{front}\n\n# A model\n\nIts text.\n")
    mlxbert.convert(a, tmp_path / "b", dtype="float16")
    card = (tmp_path / "b" / "README.md").read_text()
    assert card.startswith(f"{front}\n\n# A model\n\nIts text.\n\n## Conversion\n\nConverted from a by mlxbert")
    mlxbert.convert(tmp_path / "b", tmp_path / "c", quantize=8, group_size=32)
    card = (tmp_path / "c" / "README.md").read_text()
    assert card.startswith("---\nlicense: mit\nlibrary_name: mlx\n---\n\n## Conversion\n\nConverted from b by")
    assert card.count("## Conversion") == 1 and "do not open them" in card and card.endswith("# A model\n\nIts text.\n")
    mlxbert.convert(tmp_path / "c", tmp_path / "d", dtype="float32")
    card = (tmp_path / "d" / "README.md").read_text()
    assert card.startswith("---\nlicense: mit\n---\n\n# A model\n\nIts text.\n\n## Conversion\n\nConverted from c by")
    assert "do not open them" not in card and str(tmp_path) not in card


@pytest.mark.parametrize("source", [None, 3, b"a", ["a"]])
def test_a_source_that_is_none(source: object, tmp_path: Path) -> None:
    with pytest.raises(ArgumentError, match=f"source is of type {type(source).__name__}, expected a name of the hub"):
        mlxbert.convert(source, tmp_path / "b")  # type: ignore[arg-type]


def test_a_target_that_is_none(a: Path) -> None:
    with pytest.raises(ArgumentError, match="folder is None, expected where to write"):
        mlxbert.convert(a, None)  # type: ignore[arg-type]


def test_a_loaded_model_is_no_source(a: Path, tmp_path: Path) -> None:
    model = mlxbert.load(a)
    with pytest.raises(ArgumentError, match="source is of type Model"):
        mlxbert.convert(model, tmp_path / "b")  # type: ignore[arg-type]
    assert len(repr(model)) < 300 and str(a) in repr(model)
