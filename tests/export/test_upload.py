"""What of a folder is uploaded, and which folders are refused; no hub is asked."""

import json
import logging
import shutil
from pathlib import Path
from typing import Any

import pytest

import mlxbert
from mlxbert.errors import ArgumentError, MlxbertError
from mlxbert.export import upload
from mlxbert.export.hub_upload import UploadTarget
from mlxbert.export.upload import UploadPlan, plan_upload
from mlxbert.machine.device import mx
from mlxbert.weights.hub.file_hashes import AnnouncedFile, git_hash
from tests.helpers.program import tiny_model
from tests.helpers.st_folder import NORMALIZE, dense, pooling, write_modules

MODEL = {"config.json", "vocab.txt", "model.safetensors"}


@pytest.fixture
def model(tmp_path: Path) -> Path:
    """The folder of a model with a card."""
    folder = tiny_model(tmp_path / "tiny")
    (folder / "README.md").write_text("---\nlicense: mit\n---\n# A\n", encoding="utf-8")
    return folder


def plan(
    monkeypatch: pytest.MonkeyPatch, folder: object, listed: dict[str, AnnouncedFile] | None = None, **options: Any
) -> UploadPlan:
    exists = listed is not None
    target = UploadTarget("maria/a", "main", exists, exists, False if exists else None, None, listed or {})
    monkeypatch.setattr(upload, "find_target", lambda name, revision: target)
    return plan_upload(folder, "maria/a", **options)  # type: ignore[arg-type]


def paths(planned: UploadPlan) -> set[str]:
    return {file.path for file in planned.upload.files}


def test_only_files_of_the_model_are_sent(model: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in (
        "NOTICE",
        "pytorch_model.bin",
        "._config.json",
        ".env",
        "training.json",
        "1_Pooling/x",
        "a/b/c",
        "a/d",
    ):
        (model / name).parent.mkdir(parents=True, exist_ok=True)
        (model / name).write_text("x", encoding="utf-8")
    planned = plan(monkeypatch, model)
    assert paths(planned) == MODEL | {"README.md", "NOTICE"}
    assert planned.upload.left_out == (".env", "1_Pooling/", "a/", "pytorch_model.bin", "training.json")
    assert planned.upload.bytes == sum((model / path).stat().st_size for path in paths(planned))


def test_modules_of_an_embedder_are_sent(model: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write_modules(model, [pooling("mean", embedding_dimension=16), dense(mx.ones((8, 16))), NORMALIZE])
    inner = {path.relative_to(model).as_posix() for path in model.rglob("*") if path.is_file()}
    assert paths(plan(monkeypatch, model)) == inner and any(path.startswith("2_") for path in inner)


def test_what_the_repository_has_is_not_sent_again(model: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    listed = {
        "config.json": AnnouncedFile((model / "config.json").stat().st_size, git_hash(model / "config.json")),
        "vocab.txt": AnnouncedFile((model / "vocab.txt").stat().st_size, "0" * 40),
        "README.md": AnnouncedFile((model / "README.md").stat().st_size, None),
        "other": AnnouncedFile(1, "0" * 40),
    }
    planned = plan(monkeypatch, model, listed)
    changes = {file.path: file.change for file in planned.upload.files}
    assert changes == {
        "config.json": "same",
        "vocab.txt": "changed",
        "README.md": "changed",
        "model.safetensors": "new",
    }
    assert planned.upload.kept == ("other",)


def test_paths_of_this_machine_and_a_missing_card_are_noted(model: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert plan(monkeypatch, model).upload.notes == ()
    here = model.parent / "secret.csv"
    (model / "README.md").write_text(f"---\nlicense: mit\n---\n`--train {here}`, /a/b, https://x/y\n", encoding="utf-8")
    assert plan(monkeypatch, model).upload.notes == ()
    here.touch()
    (note,) = plan(monkeypatch, model).upload.notes
    assert "README.md" in note and str(here) in note
    (model / "README.md").unlink()
    (note,) = plan(monkeypatch, model).upload.notes
    assert "README.md" in note


@pytest.mark.parametrize("text", ["# A\n", "---\n---\n# A\n", ""])
def test_a_card_without_front_matter_is_noted(
    model: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture, text: str
) -> None:
    monkeypatch.setattr(logging.getLogger("huggingface_hub"), "propagate", True)
    (model / "README.md").write_text(text, encoding="utf-8")
    planned = plan(monkeypatch, model)
    (note,) = planned.upload.notes
    assert "README.md" in note and "license" in note and "README.md" in paths(planned)
    assert caplog.records == []


def test_front_matter_after_a_byte_order_mark_is_read(model: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (model / "README.md").write_text("---\nlicense: mit\n---\n# A\n", encoding="utf-8-sig")
    assert plan(monkeypatch, model).upload.notes == ()


EXPORTS = {"onnx/model.onnx", "onnx/model.onnx_data", "onnx/model_qint8_avx512.onnx"}


def _write(folder: Path, *names: str) -> None:
    for name in names:
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text(name, encoding="utf-8")


def test_files_in_onnx_are_sent_with_the_weights(model: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    _write(model, *EXPORTS, "onnx/quantize.log", "old/onnx/model.onnx", "model.onnx")
    planned = plan(monkeypatch, model)
    assert paths(planned) == MODEL | {"README.md"} | EXPORTS
    assert planned.upload.left_out == ("model.onnx", "old/", "onnx/quantize.log")


@pytest.fixture(scope="module")
def converted(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The model of a folder that `convert` wrote in ONNX, and its manifest."""
    pytest.importorskip("onnxruntime")
    folder = tmp_path_factory.mktemp("onnx") / "model"
    mlxbert.convert(tiny_model(folder.parent / "tiny"), folder, to="onnx")
    return folder


@pytest.fixture
def exported(converted: Path, tmp_path: Path) -> Path:
    """A copy of the folder, for changes."""
    return Path(shutil.copytree(converted, tmp_path / "exported"))


def test_a_folder_in_onnx_is_sent_as_it_was_written(exported: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    written = set(json.loads((exported / "conversion.json").read_text(encoding="utf-8"))["written"])
    assert {"config.json", "vocab.txt", "onnx/model.onnx", "README.md"} <= written
    (exported / "README.md").write_text("---\nlicense: mit\n---\nMine.\n", encoding="utf-8")
    _write(exported, "LICENSE", ".env", "onnx/other.onnx")
    planned = plan(monkeypatch, exported)
    assert paths(planned) == written | {"LICENSE"}
    assert planned.upload.left_out == (".env", "conversion.json", "onnx/other.onnx")


def test_weights_next_to_an_export_are_sent_too(exported: Path, model: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    shutil.copy(model / "model.safetensors", exported)
    assert {"model.safetensors", "onnx/model.onnx"} <= paths(plan(monkeypatch, exported))


@pytest.mark.parametrize("name", ["onnx/model.onnx", "config.json", "vocab.txt"])
@pytest.mark.parametrize("missing", [True, False])
def test_a_folder_in_onnx_that_is_not_whole_is_refused(
    exported: Path, monkeypatch: pytest.MonkeyPatch, name: str, missing: bool
) -> None:
    if missing:
        (exported / name).unlink()
    else:
        (exported / name).write_bytes((exported / name).read_bytes()[:-4])
    with pytest.raises(ArgumentError, match=name):
        plan(monkeypatch, exported)


def test_a_file_in_onnx_without_a_manifest_is_no_model(exported: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for manifest in (None, '{"written": ["onnx/model.onnx"]}', '{"written": {"config.json": "0"}}'):
        if manifest is None:
            (exported / "conversion.json").unlink()
        else:
            (exported / "conversion.json").write_text(manifest, encoding="utf-8")
        with pytest.raises(MlxbertError, match="safetensors"):
            plan(monkeypatch, exported)


def _truncated(folder: Path) -> None:
    path = folder / "model.safetensors"
    path.write_bytes(path.read_bytes()[:-4])


def _linked(folder: Path) -> None:
    (folder.parent / "vocab.txt").write_bytes((folder / "vocab.txt").read_bytes())
    (folder / "vocab.txt").unlink()
    (folder / "vocab.txt").symlink_to(folder.parent / "vocab.txt")


DAMAGE = {
    "truncated": (_truncated, "model.safetensors"),
    "no weights": (lambda folder: (folder / "model.safetensors").unlink(), "weights|safetensors"),
    "no vocabulary": (lambda folder: (folder / "vocab.txt").unlink(), "tokenizer|vocab"),
    "no configuration": (lambda folder: (folder / "config.json").unlink(), "config"),
    "unfinished": (lambda folder: (folder / ".unfinished").touch(), "unfinished"),
    "card": (lambda folder: (folder / "README.md").write_text("---\nlicense: [a\n---\n"), "front matter"),
    "list in the card": (lambda folder: (folder / "README.md").write_text("---\n- a\n---\n"), "front matter"),
    "card in another encoding": (lambda folder: (folder / "README.md").write_bytes(b"\xff\xfe"), "front matter"),
    "link": (_linked, "outside the folder"),
}


@pytest.mark.parametrize("damage", DAMAGE)
def test_a_folder_that_is_not_a_whole_model_is_refused(
    model: Path, monkeypatch: pytest.MonkeyPatch, damage: str
) -> None:
    change, said = DAMAGE[damage]
    change(model)
    with pytest.raises(MlxbertError, match=said):
        plan(monkeypatch, model)


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        ({"folder": 3}, "`folder` is of type int"),
        ({"folder": "builtin"}, "built-in model"),
        ({"folder": "nowhere"}, "is not a folder"),
        ({"name": "a/b/c"}, "`name` is 'a/b/c'"),
        ({"name": "../x"}, "`name` is"),
        ({"name": None}, "`name` is None"),
        ({"revision": "0" * 40}, "expected a branch"),
        ({"revision": "../x"}, "expected a branch"),
        ({"message": " "}, "`message` is ' '"),
    ],
)
def test_bad_arguments_are_refused_before_the_hub_is_asked(
    model: Path, monkeypatch: pytest.MonkeyPatch, tmp_path: Path, arguments: dict[str, Any], said: str
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(upload, "find_target", lambda *asked: pytest.fail("the hub was asked"))
    with pytest.raises(ArgumentError, match=said):
        plan_upload(**dict[str, Any](folder=model, name="maria/a") | arguments)
