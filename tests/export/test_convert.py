"""What `mlxbert convert` must not do: lose numbers, delete what is somebody's, look finished before it is."""

import fcntl
import json
import os
import re
import shutil
from itertools import product
from pathlib import Path
from typing import Any

import pytest

import mlxbert
from mlxbert.errors import ArgumentError, CheckpointError, MlxbertError, TokenizerError
from mlxbert.export import card, convert, verify
from mlxbert.export.compare.compared_model import OpenedModel
from mlxbert.export.compare.reports import Difference, OutputDifferences, TensorCounts, Verification
from mlxbert.goldens.golden_outputs import arrays
from mlxbert.machine.device import mx
from mlxbert.weights import save
from mlxbert.weights.formats import safetensors
from tests.conftest import MEASURED, UNMEASURED
from tests.helpers.cases import together
from tests.helpers.frozen import add_vocabulary
from tests.helpers.program import call, change_weights, names, snapshot, tiny_model
from tests.helpers.st_folder import NORMALIZE, dense, layer_norm, pooling, save_st
from tests.helpers.tf_files import write_model

pytestmark = pytest.mark.usefixtures("measurement")

BIAS = "bert.encoder.layer.0.output.dense.bias"


@pytest.fixture
def a(tmp_path: Path) -> Path:
    return tiny_model(tmp_path / "a")


@pytest.mark.parametrize("value", [65_520.0, -1e6, 3e38])
def test_a_number_that_float16_does_not_hold_is_refused(value: float, a: Path, tmp_path: Path) -> None:
    change_weights(a, lambda tensors: tensors.update({BIAS: mx.full(tensors[BIAS].shape, value)}))
    said = f"model.safetensors: tensor {BIAS!r} holds {abs(value):g}, more than float16 can hold"
    with pytest.raises(CheckpointError, match=re.escape(said)) as caught:
        mlxbert.convert(a, tmp_path / "b", dtype="float16")
    assert caught.value.hint is not None and "bfloat16" in caught.value.hint
    assert names(tmp_path) == ["a"]
    assert mlxbert.convert(a, tmp_path / "b", dtype="bfloat16").difference.agree


@pytest.mark.parametrize(("value", "kept"), [(65_519.0, 65_504), (mx.inf, mx.inf)])
def test_the_largest_numbers_that_float16_holds_are_kept(value: float, kept: float, a: Path, tmp_path: Path) -> None:
    change_weights(a, lambda tensors: tensors.update({BIAS: mx.full(tensors[BIAS].shape, value)}))
    mlxbert.convert(a, tmp_path / "b", dtype="float16")
    assert (arrays(tmp_path / "b" / "model.safetensors")[BIAS] == kept).all().item()


def test_modules_are_converted_too(tmp_path: Path) -> None:
    six = mx.ones((6,))
    a = save_st(tmp_path / "a", pooling("mean"), dense(mx.ones((6, 24)), six), layer_norm(six, six), NORMALIZE)
    found = mlxbert.convert(a, tmp_path / "b", dtype="float16")
    for name in ("2_Dense", "3_LayerNorm"):
        stored = safetensors.read_header(tmp_path / "b" / name / "model.safetensors").tensors
        assert {info.dtype for info in stored.values()} == {"F16"}
        assert f"{name}: dtype F32 → F16" in found.changed
    again = mlxbert.convert(tmp_path / "b", tmp_path / "c", dtype="float16")
    assert again.changed == () and again.difference.tensors.rounded == 0
    large = [pooling("mean"), dense(mx.full((6, 24), 1e5))]
    with pytest.raises(CheckpointError, match=r"2_Dense.*tensor.*'linear\.weight'.*100000.*float16"):
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
    assert found.difference.agree and copy in found.left_out
    assert "config.json: tie_word_embeddings removed" in found.changed
    assert mlxbert.load(tmp_path / "b", task="fill-mask").folder == tmp_path / "b"


@MEASURED
def test_what_would_be_another_model_is_not_written(
    a: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    kind = "config"

    def differing(*sides: object) -> Verification:
        said = Difference(kind, "x", 1, 2, "x: 1 and 2")
        outputs = OutputDifferences(texts=9, tolerance=1e-4)
        return Verification(False, "a", "b", (said,), ("a note",), TensorCounts(0, 0, 0, 0), outputs)

    monkeypatch.setattr(convert, "verify", differing)
    with pytest.raises(CheckpointError, match=r"different model \(x: 1 and 2\)"):
        mlxbert.convert(a, tmp_path / "b")
    assert names(tmp_path) == ["a"] and not caplog.records
    kind = "output"
    found = mlxbert.convert(a, tmp_path / "b")
    assert not found.difference.agree and found.difference.notes == ("a note",)
    assert [record.getMessage() for record in caplog.records] == [f"{a}: the outputs of the result differ: x: 1 and 2"]


@MEASURED
def test_nothing_looks_finished_while_it_is_measured(a: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    seen = []

    def look(source: OpenedModel, result: Path) -> Verification:
        partial = tmp_path / "b.partial"
        with pytest.raises(MlxbertError, match=r"no config\.json"):
            mlxbert.load(partial)
        assert mlxbert.load(result, task="fill-mask") and not (partial / "conversion.json").exists()
        seen.append(result)
        return verify.verify(source, result)

    monkeypatch.setattr(convert, "verify", look)
    mlxbert.convert(a, tmp_path / "b")
    (view,) = seen
    assert not view.exists() and not any(path.is_symlink() for path in (tmp_path / "b").rglob("*"))
    assert names(tmp_path / "b") == ["README.md", "config.json", "conversion.json", "model.safetensors", "vocab.txt"]


def test_what_another_conversion_finished_meanwhile_is_not_replaced(
    a: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    plan = save.plan

    def late(*arguments: object) -> object:
        monkeypatch.setattr(save, "plan", plan)
        mlxbert.convert(a, tmp_path / "b", dtype="float16")
        return plan(*arguments)  # type: ignore[arg-type]

    monkeypatch.setattr(save, "plan", late)
    with pytest.raises(ArgumentError, match="already exists"):
        mlxbert.convert(a, tmp_path / "b")
    assert names(tmp_path) == ["a", "b"]
    stored = safetensors.read_header(tmp_path / "b" / "model.safetensors").tensors
    assert {info.dtype for info in stored.values()} == {"F16"}


def test_a_disk_without_room_is_told_before_anything_is_written(
    a: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    size = sum(tensor.nbytes for tensor in arrays(a / "model.safetensors").values())
    usage = shutil.disk_usage(tmp_path)
    monkeypatch.setattr(shutil, "disk_usage", lambda place: usage._replace(free=size - 1))
    call("convert", str(a), str(tmp_path / "x" / "b")).fails(1, f"{size:,} bytes", f"{size - 1:,} bytes are free")
    assert names(tmp_path) == ["a"]
    monkeypatch.setattr(shutil, "disk_usage", lambda place: usage._replace(free=size))
    assert call("convert", str(a), str(tmp_path / "x" / "b")).status == 0


def test_a_vocabulary_that_is_missing_is_told_before_anything_is_written(
    a: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (a / "vocab.txt").unlink()
    monkeypatch.setattr(save, "write_weights", None)
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
    front, text = "---\nlicense: mit\nlibrary_name: transformers\n---", "\n\n# A model\n\nIts text.\n"
    (a / "README.md").write_text(front + text)
    ways: tuple[dict[str, Any], ...] = ({"dtype": "float16"}, {"quantize": 8, "group_size": 32}, {"dtype": "float32"})
    fronts = (front, front.replace("transformers", "mlx"), "---\nlicense: mit\n---")
    for source, target, way, said in zip("abc", "bcd", ways, fronts, strict=True):
        mlxbert.convert(tmp_path / source, tmp_path / target, **way)
        card = (tmp_path / target / "README.md").read_text()
        assert card.startswith(f"{said}\n\n") and text in card and card.count("Converted from") == 1
        assert f"Converted from {source} by mlxbert" in card and str(tmp_path) not in card
        assert ("cannot open them" in card) == ("quantize" in way)


@UNMEASURED
def test_arguments_of_another_type_are_refused(a: Path, tmp_path: Path) -> None:
    sources: tuple[Any, ...] = (None, 3, b"a", ["a"], mlxbert.load(a))
    for source in sources:
        with pytest.raises(ArgumentError, match=f"source.*{type(source).__name__}"):
            mlxbert.convert(source, tmp_path / "b")
    nowhere: Any = None
    with pytest.raises(ArgumentError, match="`folder` is None"):
        mlxbert.convert(a, nowhere)


@MEASURED
def test_what_is_put_into_a_folder_while_it_is_replaced_stays(
    a: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    b = tmp_path / "b"
    mlxbert.convert(a, b)

    def look(source: OpenedModel, result: Path) -> Verification:
        (b / "notes.txt").write_text("mine")
        return verify.verify(source, result)

    monkeypatch.setattr(convert, "verify", look)
    before = snapshot(b)
    with pytest.raises(ArgumentError, match=r"'notes\.txt'"):
        mlxbert.convert(a, b, dtype="float16", overwrite=True)
    assert snapshot(b) == before | {"notes.txt": b"mine"} and names(tmp_path) == ["a", "b"]


def test_what_was_edited_since_is_not_replaced(a: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    b = tmp_path / "b"
    mlxbert.convert(a, b)
    (b / ".DS_Store").write_bytes(b"a Mac's")
    mlxbert.convert(a, b, overwrite=True)
    (b / "README.md").write_text("my card")
    monkeypatch.setattr(save, "write_weights", None)  # it is told before anything is done
    with pytest.raises(ArgumentError, match=r"'README\.md'.*changed"):
        mlxbert.convert(a, b, overwrite=True)
    assert (b / "README.md").read_text() == "my card" and names(tmp_path) == ["a", "b"]


def test_a_folder_that_the_source_links_into_is_not_replaced(a: Path, tmp_path: Path) -> None:
    mlxbert.convert(a, tmp_path / "b")
    (a / "model.safetensors").unlink()
    (a / "model.safetensors").symlink_to(tmp_path / "b" / "model.safetensors")
    with pytest.raises(ArgumentError, match=r"model\.safetensors.*link"):
        mlxbert.convert(a, tmp_path / "b", overwrite=True, dtype="float16")
    assert mlxbert.load(a, task="fill-mask")


def test_a_lock_that_another_conversion_has_let_go_of_is_none(
    a: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    partial, flock = tmp_path / "b.partial", fcntl.flock

    def late(*arguments: Any) -> None:
        """Behind its back one conversion ends and another begins."""
        shutil.rmtree(partial)
        partial.mkdir()
        (partial / ".unfinished").touch()
        (partial / "theirs").touch()
        flock(*arguments)

    monkeypatch.setattr(fcntl, "flock", late)
    with pytest.raises(ArgumentError, match=r"b\.partial.*another"):
        mlxbert.convert(a, tmp_path / "b")
    assert names(partial) == [".unfinished", "theirs"]


def test_what_a_killed_run_left_is_taken_or_replaced(a: Path, tmp_path: Path) -> None:
    (tmp_path / "b.partial").mkdir()
    mlxbert.convert(a, tmp_path / "b")
    assert names(tmp_path) == ["a", "b"]
    (tmp_path / "b" / ".unfinished").touch()
    mlxbert.convert(a, tmp_path / "b", overwrite=True)
    assert ".unfinished" not in names(tmp_path / "b")


def test_a_module_without_a_folder_of_its_own_and_a_transformer_in_one(tmp_path: Path) -> None:
    a = save_st(tmp_path / "a", pooling("mean"), NORMALIZE)
    modules = json.loads((a / "modules.json").read_text())
    modules[2]["path"] = ""
    (a / "modules.json").write_text(json.dumps(modules))
    assert mlxbert.convert(a, tmp_path / "b").difference.agree
    (inner := a / "0_T").mkdir()
    for name in ("config.json", "model.safetensors", "vocab.txt"):
        (a / name).rename(inner / name)
    (inner / "LICENSE").write_text("terms")  # they go along
    modules[0]["path"] = "0_T"
    (a / "modules.json").write_text(json.dumps(modules))
    mlxbert.convert(a, tmp_path / "c")
    assert (tmp_path / "c" / "0_T" / "LICENSE").read_text() == "terms"


def test_numbers_in_8_bits_that_float16_does_not_hold_are_refused(tmp_path: Path) -> None:
    a = tiny_model(tmp_path / "a", hidden_size=32)
    name = "bert.encoder.layer.0.attention.self.query.weight"
    change_weights(a, lambda tensors: tensors.update({name: mx.full((32, 32), 80_000.0)}))
    mlxbert.convert(a, tmp_path / "q", quantize=8, group_size=32)
    said = rf"model\.safetensors: tensor {name!r} holds 80000, more than float16 can hold"
    for source in ("a", "q"):
        with pytest.raises(CheckpointError, match=said):
            mlxbert.convert(tmp_path / source, tmp_path / "b", dtype="float16")
    assert names(tmp_path) == ["a", "q"]


CARDS = (
    "Plain description without any heading.", "Usage\n=====\n\nText.", "```\n# code\n```\n\nText.",
    "# T\n\n### Conversion\n\nConverted from x by y.\n\n## Conversion\n\nMine.", "# T\n\na\n\n---\n\nb\n\n---\n", "",
)  # fmt: skip
FRONTS = (
    "", "---\nlicense: mit\n---\n\n", "---  \r\nlicense: mit\r\n---\r\n", "\ufeff---\nlicense: mit\n---\n",
)  # fmt: skip


@UNMEASURED
@together(("front", "text"), product(FRONTS, CARDS))
def test_no_line_of_a_card_is_lost(front: str, text: str, tmp_path_factory: pytest.TempPathFactory) -> None:
    tmp_path = tmp_path_factory.mktemp("cards")
    for name in "abcd":
        (tmp_path / name).mkdir()
    (tmp_path / "a" / "README.md").write_bytes((front + text).encode())
    for old, new in ("ab", "bc", "cd"):
        opener = "mlx" if new == "b" else None
        note = card.describe(old, ("weights",), opener)
        card.write(tmp_path / old, tmp_path / new, new, note, opener or "transformers", opener)
        if new == "c":
            with (tmp_path / "c" / "README.md").open("a") as file:
                file.write("\nMy last line.\n")
    found = (tmp_path / "d" / "README.md").read_text()
    assert found.count("by mlxbert ") == 1 and "Converted from c by mlxbert" in found
    assert found.startswith("---\nlicense: mit\n---\n") == bool(front)
    assert text.strip() in found and "My last line." in found


@UNMEASURED
@pytest.mark.parametrize(("opener", "ours", "theirs"), [
    (None, True, True), ("mlx", True, False), ("onnx", False, False),
])  # fmt: skip
def test_the_examples_of_a_card_are_those_that_still_hold(
    opener: str | None, ours: bool, theirs: bool, tmp_path: Path
) -> None:
    for name in "ab":
        (tmp_path / name).mkdir()
    lines = card.examples("classify", "a", "transformers")
    front = "---\nlanguage: en\nlibrary_name: peft\nlicense: mit\n---"
    note = "This is an adapter in PEFT's format, for x: it needs that model."
    (tmp_path / "a" / "README.md").write_text("\n".join([front, "", "# a", "", note, "", *lines, "The end."]))
    card.write(tmp_path / "a", tmp_path / "b", "b", "NOTE", opener or "transformers", opener)
    found = (tmp_path / "b" / "README.md").read_text()
    assert ('mlxbert.load("b")' in found, 'model="b"' in found, '"a"' in found) == (ours, theirs, False)
    assert f"language: en\nlibrary_name: {opener or 'transformers'}\nlicense: mit\n---\n" in found
    assert "NOTE" in found and "The end." in found and "PEFT" not in found


@UNMEASURED
def test_the_card_of_a_merged_adapter_states_the_license_of_its_base(tmp_path: Path) -> None:
    for name, front in (("a", "language: en"), ("b", "language: de\nlicense: mit\ndatasets: [x]"), ("c", "")):
        (tmp_path / name).mkdir()
        (tmp_path / name / "README.md").write_text(f"---\n{front}\n---\n\n# {name}")
    card.write(tmp_path / "a", tmp_path / "c", "c", "NOTE", "transformers", None, tmp_path / "b")
    assert (tmp_path / "c" / "README.md").read_text().startswith('---\nlanguage: en\nlicense: "mit"\n---\n\n# a')


@MEASURED
def test_a_model_without_numbers_is_told(a: Path, tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    change_weights(a, lambda tensors: tensors.update({BIAS: tensors[BIAS] * mx.nan}))
    found = mlxbert.convert(a, tmp_path / "b")
    assert "NaN in the weights encoder.layers.0" in caplog.text and found.difference.outputs.texts is None
