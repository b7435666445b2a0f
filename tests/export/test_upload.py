"""What of a folder is uploaded, and which folders are refused; no hub is asked."""

import json
import logging
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import mlxbert
from mlxbert.errors import ArgumentError, MlxbertError
from mlxbert.export import upload
from mlxbert.export.upload import Repository, Upload, plan_upload
from mlxbert.machine.device import mx
from mlxbert.weights.hub.cache import AnnouncedFile, git_hash
from tests.helpers.program import tiny_model
from tests.helpers.st_folder import NORMALIZE, dense, pooling, write_modules

MODEL = {"config.json", "vocab.txt", "model.safetensors"}
EXPORTS = {"onnx/model.onnx", "onnx/model.onnx_data", "onnx/model_qint8_avx512.onnx"}
CARD = "---\nlicense: mit\n---\n"
Plan = Callable[..., Upload]


@pytest.fixture
def model(tmp_path: Path) -> Path:
    folder = tiny_model(tmp_path / "tiny")
    (folder / "README.md").write_text(CARD, encoding="utf-8")
    return folder


@pytest.fixture(scope="module")
def converted(tmp_path_factory: pytest.TempPathFactory) -> Path:
    pytest.importorskip("onnxruntime")
    folder = tmp_path_factory.mktemp("onnx") / "model"
    mlxbert.convert(tiny_model(folder.parent / "tiny"), folder, to="onnx")
    return folder


@pytest.fixture
def exported(converted: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(converted, tmp_path / "exported"))


@pytest.fixture
def plan(monkeypatch: pytest.MonkeyPatch) -> Plan:
    """Plans the upload of a folder to a repository with some files; by default, the repository does not exist."""

    def planned(folder: Path, listed: dict[str, AnnouncedFile] | None = None, **options: Any) -> Upload:
        known: tuple[Any, ...] = () if listed is None else (True, False, "0" * 40, listed)
        target = Repository("maria/a", "https://x/maria/a", "main", *known)
        monkeypatch.setattr(upload, "find_repository", lambda name, revision: target)
        return plan_upload(folder, "maria/a", **options).upload

    return planned


def paths(planned: Upload) -> set[str]:
    return {file.path for file in planned.files}


def write(folder: Path, *names: str) -> None:
    for name in names:
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text(name, encoding="utf-8")


def test_only_files_of_the_model_are_sent_with_those_in_onnx(model: Path, plan: Plan) -> None:
    write(model, *EXPORTS, "onnx/quantize.log", "old/onnx/model.onnx", "model.onnx", "NOTICE", "pytorch_model.bin")
    write(model, "._config.json", ".env", "training.json", "1_Pooling/x", "a/b/c", "a/d")
    planned = plan(model)
    assert paths(planned) == MODEL | EXPORTS | {"README.md", "NOTICE"}
    left_out = {".env", "1_Pooling/", "a/", "pytorch_model.bin", "training.json"}
    assert {*planned.left_out} == left_out | {"model.onnx", "old/", "onnx/quantize.log"}
    assert planned.bytes == sum((model / path).stat().st_size for path in paths(planned))


def test_modules_of_an_embedder_are_sent(model: Path, plan: Plan) -> None:
    write_modules(model, [pooling("mean", embedding_dimension=16), dense(mx.ones((8, 16))), NORMALIZE])
    inner = {path.relative_to(model).as_posix() for path in model.rglob("*") if path.is_file()}
    assert paths(plan(model)) == inner and any(path.startswith("2_") for path in inner)


def test_what_the_repository_has_is_not_sent_again(model: Path, plan: Plan) -> None:
    hashes = {"config.json": git_hash(model / "config.json"), "vocab.txt": "0" * 40, "README.md": None}
    listed = {name: AnnouncedFile((model / name).stat().st_size, hash) for name, hash in hashes.items()}
    planned = plan(model, listed | {"other": AnnouncedFile(1, "0" * 40)})
    changes = {"config.json": "same", "vocab.txt": "changed", "README.md": "changed", "model.safetensors": "new"}
    assert {file.path: file.change for file in planned.files} == changes and planned.kept == ("other",)
    with pytest.raises(ArgumentError, match="is private"):
        plan(model, {}, public=True)


def test_paths_of_this_machine_and_a_missing_card_are_noted(model: Path, plan: Plan) -> None:
    here = model.parent / "secret.csv"
    (model / "README.md").write_text(f"{CARD}`--train {here}`, /a/b, https://x/y\n", encoding="utf-8-sig")
    assert plan(model).notes == ()
    here.touch()
    (note,) = plan(model).notes
    assert "README.md" in note and str(here) in note
    (model / "README.md").unlink()
    (note,) = plan(model).notes
    assert "README.md" in note


@pytest.mark.parametrize("text", ["# A\n", "---\n---\n# A\n", ""])
def test_a_card_without_front_matter_is_noted(
    model: Path, plan: Plan, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture, text: str
) -> None:
    monkeypatch.setattr(logging.getLogger("huggingface_hub"), "propagate", True)
    (model / "README.md").write_text(text, encoding="utf-8")
    planned = plan(model)
    (note,) = planned.notes
    assert "README.md" in note and "license" in note and "README.md" in paths(planned)
    assert caplog.records == []


def test_a_folder_in_onnx_is_sent_as_it_was_written(exported: Path, model: Path, plan: Plan) -> None:
    written = set(json.loads((exported / "conversion.json").read_text(encoding="utf-8"))["written"])
    assert {"config.json", "vocab.txt", "onnx/model.onnx", "README.md"} <= written
    (exported / "README.md").write_text(CARD + "Mine.\n", encoding="utf-8")
    write(exported, "LICENSE", ".env", "onnx/other.onnx")
    planned = plan(exported)
    assert paths(planned) == written | {"LICENSE"}
    assert planned.left_out == (".env", "conversion.json", "onnx/other.onnx")
    shutil.copy(model / "model.safetensors", exported)
    assert {"model.safetensors", "onnx/model.onnx"} <= paths(plan(exported))


@pytest.mark.parametrize("name", ["onnx/model.onnx", "config.json"])
@pytest.mark.parametrize("missing", [True, False])
def test_a_folder_in_onnx_that_is_not_whole_is_refused(exported: Path, plan: Plan, name: str, missing: bool) -> None:
    data = (exported / name).read_bytes()
    (exported / name).unlink()
    if not missing:
        (exported / name).write_bytes(data[:-4])
    with pytest.raises(ArgumentError, match=name):
        plan(exported)


@pytest.mark.parametrize("manifest", ["", '{"written": ["onnx/model.onnx"]}', '{"written": {"config.json": "0"}}'])
def test_a_file_in_onnx_without_a_manifest_is_no_model(exported: Path, plan: Plan, manifest: str) -> None:
    (exported / "conversion.json").write_text(manifest, encoding="utf-8")
    with pytest.raises(MlxbertError, match="safetensors"):
        plan(exported)


def _linked(folder: Path) -> None:
    (folder / "vocab.txt").rename(folder.parent / "vocab.txt")
    (folder / "vocab.txt").symlink_to(folder.parent / "vocab.txt")


@pytest.mark.parametrize(("damage", "said"), [
    (lambda model: (model / "model.safetensors").write_bytes(b"x"), "model.safetensors"),
    (lambda model: (model / "model.safetensors").unlink(), "weights|safetensors"),
    (lambda model: (model / "vocab.txt").unlink(), "tokenizer|vocab"),
    (lambda model: (model / "config.json").unlink(), "config"),
    (lambda model: (model / ".unfinished").touch(), "unfinished"),
    (lambda model: (model / "README.md").write_text("---\nlicense: [a\n---\n"), "front matter"),
    (lambda model: (model / "README.md").write_text("---\n- a\n---\n"), "front matter"),
    (lambda model: (model / "README.md").write_bytes(b"\xff\xfe"), "front matter"), (_linked, "outside the folder"),
])  # fmt: skip
def test_a_folder_that_is_not_a_whole_model_is_refused(model: Path, plan: Plan, damage: Any, said: str) -> None:
    damage(model)
    with pytest.raises(MlxbertError, match=said):
        plan(model)


@pytest.mark.parametrize(("arguments", "said"), [
    ({"folder": 3}, "`folder` is of type int"), ({"folder": "builtin"}, "built-in model"),
    ({"folder": "nowhere"}, "is not a folder"), ({"name": "a/b/c"}, "`name` is 'a/b/c'"),
    ({"name": "../x"}, "`name` is"), ({"name": None}, "`name` is None"), ({"revision": "0" * 40}, "expected a branch"),
    ({"revision": "../x"}, "expected a branch"), ({"message": " "}, "`message` is ' '"),
])  # fmt: skip
def test_bad_arguments_are_refused_before_the_hub_is_asked(
    model: Path, monkeypatch: pytest.MonkeyPatch, tmp_path: Path, arguments: dict[str, Any], said: str
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(upload, "find_repository", lambda *asked: pytest.fail("the hub was asked"))
    with pytest.raises(ArgumentError, match=said):
        plan_upload(**dict[str, Any](folder=model, name="maria/a") | arguments)
