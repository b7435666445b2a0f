"""A hub that lies: nothing that it says becomes a path outside of the cache."""

import json
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from mlxbert.weights.hub.guard import guard_library, metadata_problem
from tests.helpers.fake_hub import FakeHub, client_settings
from tests.helpers.hub_machine import NAME, Machine


@pytest.mark.parametrize(
    "lies",
    [
        *({"ETag": '"../../../../evil.pth"'}, {"ETag": "{outside}/evil.pth"}),
        *({"X-Linked-ETag": '"../../../../evil.pth"'}, {"ETag": ".."}, {"ETag": ""}, {"ETag": "a" * 300}),
        {"X-Repo-Commit": "../../../../evil"},
        {"X-Repo-Commit": "0" * 40},  # a commit, and not the one that was asked for
        *({"X-Linked-Size": "-5"}, {"sha": "../../../evil"}, {"sha": None}, {"size": -7}, {"size": "many"}),
        {"size": 1e300},
    ],
)
def test_what_a_hub_says_is_checked_before_it_is_a_path(machine: Machine, tmp_path: Path, lies: dict[str, Any]) -> None:
    outside = tmp_path / "outside"
    outside.mkdir()
    machine.repository.lies = {
        key: value.replace("{outside}", str(outside)) if isinstance(value, str) else value
        for key, value in lies.items()
    }
    machine.download().fails(1, NAME)
    found = [path for path in tmp_path.rglob("*") if "evil" in path.name]
    assert not found and not list(outside.iterdir())
    assert not list(tmp_path.rglob("snapshots/*/*"))


def test_an_etag_does_not_link_a_file_of_this_machine(machine: Machine, tmp_path: Path) -> None:
    secret = tmp_path / "secret"
    secret.write_text("mine")
    machine.repository.lies = {"ETag": f'"{secret}"'}
    machine.download().fails(1, NAME)
    assert not [path for path in (tmp_path / "home").rglob("*") if path.is_file() and path.read_bytes() == b"mine"]


def test_a_commit_of_a_missing_file_is_checked_too(machine: Machine, tmp_path: Path) -> None:
    """huggingface_hub would make an empty file in a folder named by that header."""
    repository = machine.repository
    repository.listed, repository.lies = ("tokenizer.json",), {"X-Repo-Commit": f"{tmp_path}/evil"}
    machine.download().fails(1, NAME)
    assert not (tmp_path / "evil").exists()


@pytest.mark.parametrize(
    "etag", ["../x", "/x", "a/b", "a\\b", "..", ".", "", "C:x", "a\0", "a.lock", None, "a" * 129, "a\n"]
)
def test_an_etag_is_a_hash(etag: str | None) -> None:
    found = SimpleNamespace(commit_hash="0" * 40, etag=etag, size=5)
    assert metadata_problem(found)
    for good in ("0" * 40, "a" * 64, "d41d8cd98f00b204e9800998ecf8427e-12", "CJ+_4w=="):
        assert metadata_problem(SimpleNamespace(commit_hash="0" * 40, etag=good, size=None)) is None


@pytest.mark.parametrize("lie", ["ETag", "X-Repo-Commit", "missing"])
def test_other_packages_that_download_are_guarded(
    hub: FakeHub, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, lie: str
) -> None:
    import huggingface_hub
    from huggingface_hub import HfApi, errors, file_download

    for place, name in ((file_download, "get_hf_file_metadata"), (HfApi, "dataset_info")):
        monkeypatch.setattr(place, name, getattr(place, name))  # so that all is as before after the test
    guard_library()
    repository = hub.repositories[NAME]
    repository.lies = {"X-Repo-Commit" if lie == "missing" else lie: f"{tmp_path}/evil"}
    with client_settings(str(tmp_path / "home"), hub.url, ""), pytest.raises(errors.LocalEntryNotFoundError):
        huggingface_hub.hf_hub_download(NAME, "none" if lie == "missing" else "config.json", cache_dir=tmp_path / "hub")
    assert not list(tmp_path.rglob("evil*"))


def test_so_is_the_commit_of_a_data_set(monkeypatch: pytest.MonkeyPatch) -> None:
    from huggingface_hub import HfApi, errors, file_download

    monkeypatch.setattr(file_download, "get_hf_file_metadata", lambda *given, **options: None)  # not guarded yet
    monkeypatch.setattr(HfApi, "dataset_info", lambda self, name: SimpleNamespace(sha=name))
    guard_library()
    assert HfApi().dataset_info("0" * 40).sha == "0" * 40
    with pytest.raises(errors.FileMetadataError, match="evil"):
        HfApi().dataset_info("../evil")


def test_a_list_in_the_cache_names_no_file_elsewhere(machine: Machine, tmp_path: Path) -> None:
    """huggingface_hub keeps what a hub lists without a check, and names files in Xet after it without asking again."""
    large = {"lfs_sha256": "../../../../evil", "lfs_size": 7, "xet_hash": "0" * 64}
    listing = machine.folder / "trees" / f"{machine.commit}.json"
    listing.parent.mkdir(parents=True)
    files = {"model.safetensors": {"size": 7, "blob_id": "0" * 40, **large}}
    listing.write_text(json.dumps({"format_version": 1, "files": files}), encoding="utf-8")
    machine.variables["HF_HUB_DISABLE_XET"] = ""
    outcome = machine.run_anew("models", "download", NAME)
    assert not list(tmp_path.rglob("*evil*"))
    assert outcome.status == 0 and "evil" not in listing.read_text(encoding="utf-8")
