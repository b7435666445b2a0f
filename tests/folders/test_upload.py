"""What of a folder is uploaded, and which folders are refused; no hub is asked."""

from pathlib import Path
from typing import Any

import pytest

from mlxbert.errors import ArgumentError, MlxbertError
from mlxbert.folders import upload
from mlxbert.folders.upload import UploadPlan, plan_upload
from mlxbert.machine.device import mx
from mlxbert.weights.hub.file_hashes import AnnouncedFile, git_hash
from mlxbert.weights.hub.upload import UploadTarget
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
    target = UploadTarget("maria/a", "main", listed is not None, False if listed else None, None, listed or {})
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
        ({"folder": 3}, "folder is of type int"),
        ({"folder": "builtin"}, "built-in model"),
        ({"folder": "nowhere"}, "is not a folder"),
        ({"name": "a/b/c"}, "name is 'a/b/c'"),
        ({"name": "../x"}, "name is"),
        ({"name": None}, "name is None"),
        ({"revision": "0" * 40}, "expected a branch"),
        ({"revision": "../x"}, "expected a branch"),
        ({"message": " "}, "message is ' '"),
    ],
)
def test_bad_arguments_are_refused_before_the_hub_is_asked(
    model: Path, monkeypatch: pytest.MonkeyPatch, tmp_path: Path, arguments: dict[str, Any], said: str
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(upload, "find_target", lambda *asked: pytest.fail("the hub was asked"))
    with pytest.raises(ArgumentError, match=said):
        plan_upload(**dict[str, Any](folder=model, name="maria/a") | arguments)
