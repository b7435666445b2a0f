"""Names that may be those of folders or of models on the hub."""

import shutil
from pathlib import Path
from typing import Any

import pytest

from mlxbert.errors import CheckpointError, HubError, MlxbertError
from mlxbert.weights.hub import cache
from mlxbert.weights.model_source import ModelRef, find_folder
from tests.helpers.cases import together


@pytest.fixture(autouse=True)
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("HF_HUB_CACHE", str(tmp_path / "cache"))


def refusal(name: str, **options: Any) -> MlxbertError:
    with pytest.raises(MlxbertError) as caught:
        find_folder(ModelRef(name, offline=True, **options))
    return caught.value


def test_a_name_that_is_no_folder_and_no_model_suggests_a_folder(tmp_path: Path) -> None:
    found = refusal("my-model")
    assert isinstance(found, HubError) and "no such folder" in found.message
    assert found.hint and "my-model2" not in found.hint
    (tmp_path / "my-model2").mkdir()
    (tmp_path / "my-model2" / "config.json").write_text("{}")
    assert "my-model2" in (refusal("my-model").hint or "")
    for path in ("./my-model", str(tmp_path / "my-model")):
        found = refusal(path)
        assert isinstance(found, CheckpointError) and "my-model2" in (found.hint or "")
    assert "folder" not in refusal("org/my-model").message


@pytest.mark.parametrize("name", ["mine", "out/mine", "./mine", "a/b/mine/"])
def test_an_unfinished_training_is_to_be_resumed(name: str) -> None:
    Path(f"{name.rstrip('/')}.partial/runs").mkdir(parents=True)
    Path("mine2").mkdir()
    Path("mine2/config.json").touch()
    hint = refusal(name).hint or ""
    assert "unfinished training" in hint and ".partial" in hint


@together(
    ("name", "ending"),
    [
        ("all-MiniLM-L6-v2", " sentence-transformers/all-MiniLM-L6-v2"),
        ("bge-small-en-v1.5", " BAAI/bge-small-en-v1.5"),
        ("own-model", " someone/Own-Model"), ("ownmodel-v2", " someone/Own-Model"),  # in the cache, and similar
        ("nobody-knows", None), ("buildin", "builtin"),
        *(
            (f"{place}{name}{rest}", f"the name {name}")
            for place, name, rest in (
                ("https://huggingface.co/", "google-bert/bert-base-uncased", ""), ("hf://", "org/name", ""),
                ("https://huggingface.co/", "google-bert/bert-base-uncased", "/"),
                ("https://huggingface.co/", "org/name", "/tree/main"),
                ("https://hf.co/", "bert-base-uncased", "/tree/main"),
                ("huggingface.co/", "org/name", "?library=transformers"),
            )
        ),
        ("https://huggingface.co/org/name/blob/v2/config.json", "the name org/name with `revision='v2'`"),
        ("https://huggingface.co/datasets/org/name", None), ("folder/org/name", None),
    ],
)  # fmt: skip
def test_a_name_or_an_address_that_is_like_that_of_a_model_is_answered_with_it(
    tmp_path: Path, name: str, ending: str | None
) -> None:
    (tmp_path / "cache" / "models--someone--Own-Model").mkdir(parents=True, exist_ok=True)
    hint = refusal(name).hint
    assert hint
    if ending is None:
        assert "organization" not in hint and "the name " not in hint
    else:
        assert hint.endswith(ending) or (ending == "builtin" and "builtin" in hint)
        assert ("organization" in hint) == ending.startswith(" ")


COMMIT, OTHER = "a" * 40, "b" * 40


@pytest.mark.parametrize(
    ("refs", "folders", "revision", "expected"),
    [
        ({"main": COMMIT}, [COMMIT, OTHER], None, COMMIT),
        ({"main": "v1"}, ["v1", OTHER], None, "v1"),
        ({"main": "v1"}, ["v1", OTHER], OTHER, OTHER),
        ({}, ["main", OTHER], None, "main"),
        ({}, ["v1", OTHER], "v1", "v1"),
        ({}, [COMMIT], None, COMMIT),
        ({}, ["copied"], None, "copied"),
        ({"main": OTHER}, [COMMIT], None, None),
        ({"dev": COMMIT}, [COMMIT], None, None),
        ({}, [COMMIT, OTHER], None, None),
        ({}, [COMMIT], "v1", None),
        *(({"main": name}, [COMMIT, OTHER], None, None) for name in ("../../x", "..", "")),
    ],
)
def test_a_cache_that_somebody_has_filled_is_read(
    refs: dict[str, str], folders: list[str], revision: str | None, expected: str | None, tiny_folder: Path,
    tmp_path: Path, caplog: pytest.LogCaptureFixture,
) -> None:  # fmt: skip
    repository = tmp_path / "cache" / "models--org--tiny"
    (repository / "refs").mkdir(parents=True)
    for name, commit in refs.items():
        (repository / "refs" / name).write_text(commit)
    for name in folders:
        shutil.copytree(tiny_folder, repository / "snapshots" / name)
    if expected is None:
        assert "not in the cache" in refusal("org/tiny", revision=revision).message
        return
    found = find_folder(ModelRef("org/tiny", revision=revision, offline=True))
    assert Path(str(getattr(found, "path", found))) == repository / "snapshots" / expected
    alone = not refs and revision is None and len(folders) == 1
    assert ("the only cached commit" in caplog.text) == alone
    assert {snapshot.commit for snapshot in cache.snapshots("org/tiny")} == {*folders}
