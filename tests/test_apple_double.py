"""On volumes without extended attributes (exFAT, FAT, some network volumes) macOS writes `._x` next to each `x`."""

import errno
import json
import os
import re
from pathlib import Path
from typing import Any
from unittest.mock import Mock

import numpy as np
import pytest

import mlxbert
from mlxbert.cli.output import formats
from mlxbert.cli.output.resumable_file import PART, FileOutput
from mlxbert.durable_files import remove_folder, write_record
from mlxbert.errors import ArgumentError, InputError
from mlxbert.folders.fingerprint import hash_folder
from mlxbert.mac_files import is_from_system, is_system_file
from mlxbert.results.embed import Embedding
from mlxbert.weights.formats import npz
from mlxbert.weights.formats.weight_files import has_weights
from mlxbert.weights.hub.cache import Snapshot
from tests.helpers.apple_double import CONTENT, imitate, plant
from tests.helpers.program import names, tiny_model
from tests.helpers.rooms import needs
from tests.helpers.tf_files import entry, write_index


def test_a_file_is_known_by_its_name_and_by_its_content_where_it_would_be_lost(tmp_path: Path) -> None:
    assert all(map(is_system_file, (".DS_Store", ".localized", "Icon\r", "._x", "._.unfinished")))
    assert not any(map(is_system_file, ("x", ".x", "Icon", "_x", "x._y", ".gitignore", "..x")))
    for name, content in (("._a", CONTENT), ("._b", b""), (".DS_Store", b"x")):
        (tmp_path / name).write_bytes(content)
        assert is_from_system(tmp_path / name)
    assert is_from_system(tmp_path / "._vanished")
    (tmp_path / "._folder").mkdir()
    (tmp_path / "._link").symlink_to(tmp_path / "nothing")
    for name, content in (("._c", b"my notes"), ("._d", CONTENT[:3]), ("e", CONTENT)):
        (tmp_path / name).write_bytes(content)
    assert not any(is_from_system(tmp_path / name) for name in ("._c", "._d", "e", "._folder", "._link"))


@pytest.fixture
def volume(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder on such a volume."""
    imitate(monkeypatch, tmp_path)
    return tmp_path


def test_a_folder_is_removed_although_files_vanish_from_it(volume: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for folder in (volume / "x", volume / "y"):
        (folder / "b" / "c").mkdir(parents=True)
        for name in ("a", "z", "b/a", "b/c/a"):
            (folder / name).write_bytes(b"x")
        plant(folder)
    remove_folder(volume / "x")
    assert not (volume / "x").exists()
    monkeypatch.setattr(os, "unlink", Mock(side_effect=PermissionError(13, "Permission denied")))
    with pytest.raises(PermissionError):
        remove_folder(volume / "y")


def output(path: Path, options: str = "") -> FileOutput:
    manifest = {"task": "embed", "model": "m", "input": "a hash", "options": options}
    format = formats.choose(path, formats.VECTORS, width=2, metadata={})
    return FileOutput(path, manifest, overwrite=bool(options), format=format)


def result(number: int) -> Embedding:
    return Embedding(f"text {number}", np.full(2, number, np.float32), tokens=3, truncated=False)


def interrupt(path: Path) -> None:
    with pytest.raises(RuntimeError), output(path) as out:
        for number in range(3 * PART - 1):
            out.write(result(number))
        raise RuntimeError
    plant(path.parent)


def finish(path: Path, options: str = "") -> int:
    with output(path, options) as out:
        done = out.done
        for number in range(done, 3 * PART + 5):
            out.write(result(number))
    return done


def test_an_output_is_resumed_and_dropped(volume: Path) -> None:
    assert finish(volume / "whole.npy") == 0
    interrupt(volume / "x.npy")
    assert finish(volume / "x.npy") == 2 * PART
    assert (volume / "x.npy").read_bytes() == (volume / "whole.npy").read_bytes()
    interrupt(volume / "y.npy")
    assert finish(volume / "y.npy", "other") == 0
    assert not [name for name in names(volume) if name.endswith(".partial")]


MANIFEST = {"task": "classify", "variants": [{}]}


@needs("train")
def test_a_training_is_resumed_and_dropped(volume: Path) -> None:
    from mlxbert.train.training_folders import Workspace, clean_up

    for changes, overwrite in (({}, False), ({"task": "regress"}, True)):
        workspace = Workspace(volume / "out", MANIFEST | changes)
        with workspace.locked(overwrite=overwrite) as dropped:
            assert (dropped is not None) == overwrite
            if not overwrite:
                (workspace.folder / "runs/000").mkdir(parents=True)
                (workspace.folder / "runs/000/state-00000001.safetensors").touch()
                write_record(workspace.folder / "runs/000/state.json", {})
            plant(volume)
        assert (workspace.folder / "runs/000/state.json").exists() != overwrite
    with workspace.locked(overwrite=False):
        workspace.finish(0, {"score": 1.0}, {})
        plant(volume)
        with workspace.model() as model:
            plant(volume)
            (model / "training.json").write_text(json.dumps(workspace.manifest))
        os.replace(model, volume / "out")
        plant(volume)
    clean_up(volume / "out")  # as after a kill
    assert not workspace.folder.exists()


@needs("train")
def test_only_a_system_file_is_nothing_to_resume_and_a_file_of_the_user_is_none(volume: Path) -> None:
    from mlxbert.train.training_folders import Workspace

    workspace = Workspace(volume / "out", MANIFEST)
    with workspace.locked(overwrite=False):
        (workspace.folder / "runs/000").mkdir(parents=True)
        (workspace.folder / "runs/000/._state.json").touch()
    other = Workspace(volume / "out", MANIFEST | {"task": "tag"})
    with other.locked(overwrite=False) as dropped:
        assert dropped is None
    (other.folder / "._notes").write_text("mine")
    with pytest.raises(ArgumentError, match=r"contains \._notes"), other.locked(overwrite=True):
        pass


def test_a_saved_or_converted_folder_is_replaced_and_a_killed_conversion_cleaned_up(
    volume: Path, measurement: object, monkeypatch: pytest.MonkeyPatch
) -> None:
    source, target = tiny_model(volume / "a"), volume / "b"
    for kill in (False, False, True):
        if kill:
            (volume / "b.partial" / "onnx").mkdir(parents=True)
            for name in (".unfinished", "vocab.txt", "onnx/x"):
                (volume / "b.partial" / name).touch()
        plant(volume)
        written = mlxbert.convert(source, target, overwrite=True).written
        assert not any(is_system_file(Path(name).name) for name in written)
    model = mlxbert.load(target, task="fill-mask")
    for _ in range(2):
        plant(volume)
        mlxbert.save(model, volume / "saved", overwrite=True)
    for name in ("notes.txt", "._notes"):
        (target / name).write_text("mine")
        with pytest.raises(ArgumentError, match=f"'{re.escape(name)}'"):
            mlxbert.convert(source, target, overwrite=True)
        (target / name).unlink()


def test_a_conversion_where_there_are_no_links(
    tmp_path: Path, measurement: object, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Nothing is renamed from the volume to others, or from them to it."""
    source = tiny_model(tmp_path / "a")

    def refusing(real: Any, kind: int) -> Any:
        def call(first: Any, second: Any, *more: Any, **named: Any) -> None:
            inside = [Path(path).is_relative_to(tmp_path) for path in (first, second)]
            if inside[0] != inside[1] if kind == errno.EXDEV else inside[1]:
                raise OSError(kind, os.strerror(kind))
            real(first, second, *more, **named)

        return call

    for name, kind in (("symlink", errno.EOPNOTSUPP), ("rename", errno.EXDEV), ("replace", errno.EXDEV)):
        monkeypatch.setattr(os, name, refusing(getattr(os, name), kind))
    monkeypatch.setattr("tempfile.tempdir", str(Path(os.environ.get("TMPDIR", "/tmp")).resolve()))
    written = mlxbert.convert(source, tmp_path / "b").written
    assert "config.json" in written and {*names(tmp_path / "b")} == {*written, "conversion.json"}


@needs("search", "train", "export")
def test_readers_do_not_see_them(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from mlxbert.export.tensorflow import reader
    from mlxbert.search.index_stores import list_indexes
    from mlxbert.train.data.retrieval import read_beir

    model = tiny_model(tmp_path / "model")
    before = hash_folder(model)
    (tmp_path / "npz").mkdir()
    np.savez(tmp_path / "npz" / "x.npz", a=np.zeros(2, np.float32))
    (tmp_path / "tf").mkdir()
    write_index(tmp_path / "tf", {"a": entry()})
    (tmp_path / "qrels").mkdir()
    (tmp_path / "qrels" / "dev.tsv").touch()
    (tmp_path / "indexes").mkdir()
    (tmp_path / "indexes" / "a.db").touch()
    monkeypatch.setenv("MLXBERT_DATA", str(tmp_path))
    index = reader.find_index(tmp_path / "tf")
    plant(tmp_path)
    assert hash_folder(model) == before
    assert [path.name for path in npz.read_headers(tmp_path / "npz") or ()] == ["x.npz"]
    assert reader.find_index(tmp_path / "tf") == index is not None
    assert [path.name for path in list_indexes()] == ["a.db"]
    with pytest.raises(InputError, match=r"another split.*: dev$"):
        read_beir(tmp_path, "test")
    os.remove(tmp_path / "npz" / "x.npz")
    assert not has_weights(tmp_path / "npz")
    unknown = Snapshot("org/tiny", "0" * 40, model).check()["unknown"]
    assert not any(is_system_file(name) for name in unknown) and "config.json" in unknown
