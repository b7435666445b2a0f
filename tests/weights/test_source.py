"""Names that may be those of folders or of models on the hub."""

import shutil
from pathlib import Path

import pytest

from mlxbert.errors import CheckpointError, HubError, MlxbertError
from mlxbert.weights.hub import cache
from mlxbert.weights.model_source import ModelRef, find_folder


def test_a_name_that_is_no_folder_and_no_model_suggests_a_folder(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("HF_HUB_CACHE", str(tmp_path / "cache"))
    with pytest.raises(HubError, match="no such folder") as caught:
        find_folder(ModelRef("my-model", offline=True))
    assert caught.value.hint and "my-model2" not in caught.value.hint
    (tmp_path / "my-model2").mkdir()
    (tmp_path / "my-model2" / "config.json").write_text("{}")
    with pytest.raises(HubError) as caught:
        find_folder(ModelRef("my-model", offline=True))
    assert caught.value.hint and "my-model2" in caught.value.hint
    for path in ("./my-model", str(tmp_path / "my-model")):
        with pytest.raises(CheckpointError) as refused:
            find_folder(ModelRef(path, offline=True))
        assert refused.value.hint and "my-model2" in refused.value.hint
    with pytest.raises(HubError) as caught:
        find_folder(ModelRef("org/my-model", offline=True))
    assert "folder" not in caught.value.message


@pytest.mark.parametrize("name", ["mine", "out/mine", "./mine", "a/b/mine/"])
def test_an_unfinished_training_is_to_be_resumed(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    Path(f"{name.rstrip('/')}.partial/runs").mkdir(parents=True)
    Path("mine2").mkdir()
    Path("mine2/config.json").touch()
    monkeypatch.setenv("HF_HUB_CACHE", str(tmp_path / "cache"))
    with pytest.raises(MlxbertError) as caught:
        find_folder(ModelRef(name, offline=True))
    assert "unfinished training" in (caught.value.hint or "") and ".partial" in (caught.value.hint or "")


@pytest.mark.parametrize(
    ("name", "whole"),
    [
        ("all-MiniLM-L6-v2", "sentence-transformers/all-MiniLM-L6-v2"),
        ("bge-small-en-v1.5", "BAAI/bge-small-en-v1.5"),
        ("own-model", "someone/Own-Model"),  # in the cache
        ("ownmodel-v2", "someone/Own-Model"),  # is similar
        ("nobody-knows", None),
    ],
)
def test_a_name_without_its_organization_is_answered_with_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str, whole: str | None
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("HF_HUB_CACHE", str(tmp_path / "cache"))
    (tmp_path / "cache" / "models--someone--Own-Model").mkdir(parents=True)
    with pytest.raises(HubError) as caught:
        find_folder(ModelRef(name, offline=True))
    assert caught.value.hint and (whole is None or caught.value.hint.endswith(f" {whole}"))
    assert (whole is None) == ("organization" not in caught.value.hint)


def test_a_name_like_that_of_the_built_in_model_is_answered_with_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HF_HUB_CACHE", str(tmp_path / "cache"))
    with pytest.raises(HubError) as caught:
        find_folder(ModelRef("buildin", offline=True))
    assert caught.value.hint and "builtin" in caught.value.hint


@pytest.mark.parametrize(
    ("address", "said"),
    [
        ("https://huggingface.co/google-bert/bert-base-uncased", "google-bert/bert-base-uncased"),
        ("https://huggingface.co/google-bert/bert-base-uncased/", "google-bert/bert-base-uncased"),
        ("https://huggingface.co/org/name/tree/main", "org/name"),
        ("https://huggingface.co/org/name/blob/v2/config.json", "org/name with `revision='v2'`"),
        ("huggingface.co/org/name?library=transformers", "org/name"),
        ("https://hf.co/bert-base-uncased/tree/main", "bert-base-uncased"),
        ("hf://org/name", "org/name"),
        ("https://huggingface.co/datasets/org/name", None),
        ("folder/org/name", None),
    ],
)
def test_an_address_of_the_hub_is_answered_with_the_name(address: str, said: str | None) -> None:
    with pytest.raises(CheckpointError) as caught:
        find_folder(ModelRef(address, offline=True))
    assert caught.value.hint and caught.value.hint.endswith(f"the name {said}") == (said is not None)


COMMIT, OTHER = "a" * 40, "b" * 40


@pytest.mark.parametrize(
    ("refs", "folders", "revision", "expected", "said"),
    [
        ({"main": COMMIT}, [COMMIT, OTHER], None, COMMIT, False),
        ({"main": "v1"}, ["v1", OTHER], None, "v1", False),
        ({"main": "v1"}, ["v1", OTHER], OTHER, OTHER, False),
        ({}, ["main", OTHER], None, "main", False),
        ({}, ["v1", OTHER], "v1", "v1", False),
        ({}, [COMMIT], None, COMMIT, True),
        ({}, ["copied"], None, "copied", True),
        ({"main": OTHER}, [COMMIT], None, None, False),
        ({"dev": COMMIT}, [COMMIT], None, None, False),
        ({}, [COMMIT, OTHER], None, None, False),
        ({}, [COMMIT], "v1", None, False),
        ({"main": "../../x"}, [COMMIT, OTHER], None, None, False),
        ({"main": ".."}, [COMMIT, OTHER], None, None, False),
        ({"main": ""}, [COMMIT, OTHER], None, None, False),
    ],
)
def test_a_cache_that_somebody_has_filled_is_read(
    refs: dict[str, str],
    folders: list[str],
    revision: str | None,
    expected: str | None,
    said: bool,
    tiny_folder: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    monkeypatch.setenv("HF_HUB_CACHE", str(tmp_path))
    repository = tmp_path / "models--org--tiny"
    (repository / "refs").mkdir(parents=True)
    for name, commit in refs.items():
        (repository / "refs" / name).write_text(commit)
    for name in folders:
        shutil.copytree(tiny_folder, repository / "snapshots" / name)
    if expected is None:
        with pytest.raises(HubError, match="not in the cache"):
            find_folder(ModelRef("org/tiny", revision=revision, offline=True))
        return
    found = find_folder(ModelRef("org/tiny", revision=revision, offline=True))
    assert Path(str(getattr(found, "path", found))) == repository / "snapshots" / expected
    assert ("the only cached commit" in caplog.text) == said
    assert {snapshot.commit for snapshot in cache.snapshots("org/tiny")} == {*folders}
