"""The folder of unfinished work: which command may continue in it, and what is left of one killed at its end."""

import json
import logging
from pathlib import Path
from typing import Any

import pytest

from mlxbert.durable_files import acquire_lock
from mlxbert.errors import ArgumentError
from mlxbert.train.training_folders import Workspace, clean_up

MANIFEST: dict[str, Any] = {"task": "classify", "variants": [{"seed": 0}], "sha256": {"a.csv": "1", "b.csv": "2"}}


def begun(target: Path, manifest: dict[str, Any] = MANIFEST) -> Path:
    """Work that was interrupted; the file that holds its state."""
    workspace = Workspace(target, manifest)
    with workspace.locked(overwrite=False):
        state = workspace.folder / "runs/000/state.json"
        state.parent.mkdir(parents=True, exist_ok=True)
        state.write_text("{}")
    return state


def test_the_same_content_is_the_same_data_whatever_its_path(tmp_path: Path) -> None:
    state = begun(tmp_path / "out")
    moved = {**MANIFEST, "sha256": {"./a.csv": "1", "/data/b.csv": "2"}}
    with Workspace(tmp_path / "out", moved).locked(overwrite=False):
        assert state.is_file()
    for hashes, told in (
        ({"b.csv": "2", "a.csv": "1"}, r"order\)"),
        ({"a.csv": "1", "b.csv": "3"}, r"b.csv has changed\)"),
        ({"./a.csv": "1", "b.csv": "3"}, r"b.csv has changed\)"),
        ({"a.csv": "1"}, r"b.csv is no longer there\)"),
    ):
        with (
            pytest.raises(ArgumentError, match=f"the training data differ, because .*{told}"),
            Workspace(tmp_path / "out", {**MANIFEST, "sha256": hashes}).locked(overwrite=False),
        ):
            pass
    assert state.is_file()


@pytest.fixture
def killed(tmp_path: Path) -> Path:
    """A folder that is complete, next to the work that made it, as if its process was killed in between."""
    state = begun(tmp_path / "out")
    state.with_name("result.json").write_text("{}")
    (tmp_path / "out").mkdir()
    moved = {**MANIFEST, "sha256": {"./a.csv": "1", "./b.csv": "2"}}
    (tmp_path / "out/training.json").write_text(json.dumps({"command": "…", **moved, "metrics": {}}))
    return tmp_path / "out"


def test_work_whose_result_is_there_is_removed_and_said(killed: Path, caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.WARNING, "mlxbert"):
        clean_up(killed)
    assert [path.name for path in killed.parent.iterdir()] == ["out"] and [*killed.iterdir()] != []
    assert "out is complete" in caplog.text
    clean_up(killed)  # nothing is left
    assert len(caplog.records) == 1


@pytest.mark.parametrize("case", ["unfinished", "writing", "another", "none", "damaged", "at work"])
def test_other_work_is_kept(killed: Path, case: str) -> None:
    folder = killed.with_name("out.partial")
    lock = None
    match case:
        case "unfinished":
            (folder / "runs/000/result.json").unlink()
        case "writing":
            (folder / "model").mkdir()
        case "another":
            (killed / "training.json").write_text(json.dumps({**MANIFEST, "task": "regress"}))
        case "none":
            (killed / "training.json").unlink()
        case "damaged":
            (folder / "manifest.json").write_text("[")
        case "at work":
            lock = acquire_lock(folder / "lock", "run")
    clean_up(killed)
    assert folder.is_dir()
    if lock is not None:
        lock.close()
