"""Files: atomic writes, locks and hashes, what stands at a path, names and `._x` of a Mac, what survives power cuts."""

import errno
import fcntl
import hashlib
import io
import json
import os
import re
import shutil
import stat
import subprocess
import sys
import unicodedata
from collections.abc import Callable
from pathlib import Path
from typing import Any
from unittest.mock import Mock

import numpy as np
import pytest

import mlxbert
from mlxbert.cli.output import formats
from mlxbert.cli.output.resumable_file import PART, FileOutput, check_output
from mlxbert.durable_files import (
    DamagedError,
    HashedFile,
    acquire_lock,
    atomic_write,
    check_hash,
    check_space,
    identity,
    read_record,
    remove_folder,
    sha256,
    write_record,
)
from mlxbert.errors import ArgumentError, InputError, MlxbertError
from mlxbert.folders.atomic_folder import check_link_targets, check_target
from mlxbert.folders.fingerprint import hash_folder
from mlxbert.mac_files import is_from_system, is_system_file
from mlxbert.machine.device import mx
from mlxbert.paths import file_to_write, open_regular, replace_file
from mlxbert.readers.input_files import open_source, stamp_of
from mlxbert.readers.vector_files import read_vectors
from mlxbert.results.embed import Embedding
from mlxbert.weights.formats import npz
from mlxbert.weights.formats.weight_files import has_weights
from mlxbert.weights.hub.cache import Snapshot
from tests.helpers.apple_double import CONTENT, imitate, plant
from tests.helpers.cases import together
from tests.helpers.mac import MacDisk, decomposed
from tests.helpers.program import call, names, tiny_model
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


@pytest.mark.slow
def test_processes_without_a_lock_do_not_write_into_each_others_files(tmp_path: Path) -> None:
    """While one process writes, another writes the same file from beginning to end."""
    code = (
        "import sys; from pathlib import Path; from mlxbert.durable_files import atomic_write\n"
        "with atomic_write(Path(sys.argv[1]), locked=False) as file: file.write(b'other')"
    )
    path = tmp_path / "x"
    with atomic_write(path, locked=False) as file:
        file.write(b"whole ")
        file.flush()
        subprocess.run([sys.executable, "-c", code, str(path)], check=True)
        assert path.read_bytes() == b"other"
        file.write(b"content")
    assert path.read_bytes() == b"whole content" and list(tmp_path.iterdir()) == [path]


def test_a_file_appears_whole_and_replaces_another(tmp_path: Path) -> None:
    path = tmp_path / "x"
    path.write_bytes(b"old")
    with atomic_write(path) as file:
        file.write(b"new")
        assert path.read_bytes() == b"old"
        assert (tmp_path / "x.unfinished").exists()
        with pytest.raises(OSError):
            file.seek(0)  # the hash is that of the bytes as they come
    assert [(found.name, found.read_bytes()) for found in tmp_path.iterdir()] == [("x", b"new")]
    assert sha256(path) == file.sha256 == hashlib.sha256(b"new").hexdigest()


def test_a_hash_is_that_of_a_file_or_of_its_beginning(tmp_path: Path) -> None:
    path = tmp_path / "x"
    path.write_bytes(b"abc")
    for size, content in ((None, b"abc"), (3, b"abc"), (2, b"ab"), (0, b"")):
        check_hash(path, hashlib.sha256(content).hexdigest(), size)
        with pytest.raises(DamagedError, match="x"):
            check_hash(path, hashlib.sha256(content + b"?").hexdigest(), size)


VALUES = {"a": [1, 2.5, None, True, "\udcff é"], "nan": float("inf"), "b": {"c": -0.0}}


_CHANGES = [('"a"', '"e"'), ("2.5", "2.6"), ("1,", "1.0,"), ("true", "1"), ("null", "0")]
_RECORDS = [b"", b"{", b"[]", b"1", b"null", b"{}", b"\xff", b'{"digest": 1}', b"[" * 100_000]


@together("damaged", [*_CHANGES, *_RECORDS])
def test_a_changed_record_is_damaged(damaged: bytes | tuple[str, str], tmp_path: Path) -> None:
    path = tmp_path / "x.json"
    write_record(path, VALUES, ["owner", 1])
    assert read_record(path, ["owner", 1]) == VALUES
    if isinstance(damaged, tuple):
        assert path.read_text().count(damaged[0]) == 1
        path.write_text(path.read_text().replace(*damaged))
    else:
        path.write_bytes(damaged)
    with pytest.raises(DamagedError, match=r"x\.json"):
        read_record(path, ["owner", 1])


def test_a_record_of_another_owner_or_name_is_damaged(tmp_path: Path) -> None:
    write_record(tmp_path / "x.json", VALUES, "one")
    shutil.copyfile(tmp_path / "x.json", tmp_path / "y.json")
    for name, owner in (("x.json", "other"), ("x.json", None), ("y.json", "one")):
        with pytest.raises(DamagedError):
            read_record(tmp_path / name, owner)
    with pytest.raises(FileNotFoundError):
        read_record(tmp_path / "z.json")


@pytest.mark.parametrize("error", [OSError, KeyboardInterrupt])
def test_nothing_remains_of_a_failed_write(tmp_path: Path, error: type[BaseException]) -> None:
    with pytest.raises(error), atomic_write(tmp_path / "x") as file:
        file.write(b"new")
        raise error
    assert list(tmp_path.iterdir()) == []


def test_a_lock_is_held_until_its_file_is_closed(tmp_path: Path) -> None:
    with acquire_lock(tmp_path / "lock", "run"), pytest.raises(ArgumentError) as caught:
        acquire_lock(tmp_path / "lock", "run", hint="wait")
    assert str(tmp_path) in caught.value.message and caught.value.hint == "wait"
    acquire_lock(tmp_path / "lock", "run").close()


@together("remade", [False, True])
def test_a_lock_whose_file_was_removed_meanwhile_is_not_ours(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, remade: bool
) -> None:
    def finish_first(*given: object) -> None:
        (tmp_path / "lock").unlink()
        if remade:
            (tmp_path / "lock").touch()

    monkeypatch.setattr("fcntl.flock", finish_first)
    with pytest.raises(ArgumentError, match="another"):
        acquire_lock(tmp_path / "lock", "run")


_NO_LOCKS = [errno.ENOTSUP, errno.EOPNOTSUPP, errno.ENOSYS]


@pytest.mark.parametrize("number", [*_NO_LOCKS, errno.EIO, errno.ENOLCK])
def test_a_volume_without_locks_is_used_with_a_warning_and_other_errors_of_locks_are_errors(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture, number: int
) -> None:
    monkeypatch.setattr("fcntl.flock", Mock(side_effect=OSError(number, "Operation not supported")))
    if number not in _NO_LOCKS:
        with pytest.raises(OSError, match="not supported"):
            acquire_lock(tmp_path / "lock", "run")
        return
    with acquire_lock(tmp_path / "lock", "run") as file:
        assert not file.closed
    (record,) = caplog.records
    assert f"{tmp_path}: this volume has no locks (Operation not supported)" in record.getMessage()


@together(
    ("platform", "hint", "expected"),
    [
        ("linux", None, "None"), ("linux", "set X", "set X"), ("darwin", None, "Finder also counts purgeable space"),
        ("darwin", "set X", "set X; Finder also counts purgeable space"),
    ],
)  # fmt: skip
def test_a_full_disk_is_refused_with_a_hint(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, platform: str, hint: str | None, expected: str
) -> None:
    monkeypatch.setattr(sys, "platform", platform)
    check_space(tmp_path / "x", 1, hint=hint)
    with pytest.raises(MlxbertError, match="are free on this disk") as caught:
        check_space(tmp_path / "x", 2**62, hint=hint)
    assert str(caught.value.hint).startswith(expected)


FULL = 51


@pytest.fixture
def flushed(monkeypatch: pytest.MonkeyPatch) -> list[tuple[str, str]]:
    """How each file and folder was flushed, and renamed, by its name, on a Mac.

    There `F_FULLFSYNC` empties the cache of the whole disk, which takes tens of milliseconds; `os.fsync` hands files to
    the disk and does not wait.
    """
    if not os.path.isdir("/proc/self/fd"):
        pytest.skip("names of open files are read in /proc")
    done: list[tuple[str, str]] = []
    replace = os.replace

    def name(descriptor: int) -> str:
        return os.path.basename(os.readlink(f"/proc/self/fd/{descriptor}"))

    def move(source: Path, target: Path) -> None:
        done.append(("rename", os.path.basename(target)))
        replace(source, target)

    monkeypatch.setattr(sys, "platform", "darwin")
    monkeypatch.setattr(fcntl, "F_FULLFSYNC", FULL, raising=False)
    monkeypatch.setattr(fcntl, "fcntl", lambda file, command: done.append(({FULL: "full"}[command], name(file))))
    monkeypatch.setattr(os, "fsync", lambda file: done.append(("fsync", name(file))))
    monkeypatch.setattr(os, "replace", move)
    return done


@pytest.mark.parametrize("durable", [True, False])
def test_a_file_is_flushed_before_it_has_its_name(
    flushed: list[tuple[str, str]], tmp_path: Path, durable: bool
) -> None:
    how = "full" if durable else "fsync"
    with atomic_write(tmp_path / "x", durable=durable) as file:
        file.write(b"x")
    write_record(tmp_path / "y", {}, durable=durable)
    assert flushed == [
        (how, "x.unfinished"), ("rename", "x"), (how, tmp_path.name),
        (how, "y.unfinished"), ("rename", "y"), (how, tmp_path.name),
    ]  # fmt: skip


def test_a_volume_that_cannot_empty_the_cache_is_written_all_the_same(
    tmp_path: Path, flushed: list[tuple[str, str]], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(fcntl, "fcntl", Mock(side_effect=OSError("not on this file system")))
    with atomic_write(tmp_path / "b") as file:
        file.write(b"y")
    assert (tmp_path / "b").read_bytes() == b"y"


def full(flushed: list[tuple[str, str]]) -> list[str]:
    return [name for how, name in flushed if how == "full"]


@pytest.mark.parametrize("parts", [1, 4])
def test_an_output_of_any_size_empties_the_cache_of_the_disk_five_times(
    flushed: list[tuple[str, str]], tmp_path: Path, parts: int
) -> None:
    with output(tmp_path / "x.npy") as out:
        for number in range(parts * PART):
            out.write(result(number))
    partial = "x.npy.partial"
    expected = ["manifest.json.unfinished", partial, "whole.unfinished", partial, tmp_path.name]
    assert full(flushed) == expected
    assert [name for how, name in flushed if how == "fsync" and name != partial] == [
        f"part-{part:06}.{kind}.unfinished" for part in range(parts) for kind in ("rows", "json")
    ]
    interrupt(tmp_path / "y.npy")
    del flushed[:]
    with output(tmp_path / "y.npy") as out:
        out.write(result(out.done))
    assert len(full(flushed)) == 3


@needs("train")
def test_arrays_are_on_the_disk_before_the_state_that_names_them(
    flushed: list[tuple[str, str]], tmp_path: Path
) -> None:
    """Flushing `state.json` empties the cache of the disk, in which the arrays are, before it has its name."""
    from mlxbert.train.loop.adamw import AdamW
    from mlxbert.train.loop.saved_run import Progress, RunState, RunStore
    from mlxbert.train.training_folders import Workspace

    arrays = {"a": mx.zeros((2,))}
    best = Progress(step=1, best_step=1)
    RunStore(tmp_path, "owner").save(RunState(best, arrays, AdamW(arrays, arrays), best=arrays))
    folder = tmp_path.name
    assert flushed == [
        *(("fsync", "best-00000001.safetensors.unfinished"), ("rename", "best-00000001.safetensors")),
        ("fsync", folder),
        *(("fsync", "state-00000001.safetensors.unfinished"), ("rename", "state-00000001.safetensors")),
        ("fsync", folder),
        *(("full", "state.json.unfinished"), ("rename", "state.json"), ("full", folder)),
    ]
    del flushed[:]
    Workspace(tmp_path / "out", {}).finish(0, {}, arrays)
    assert full(flushed) == ["result.json.unfinished", "000"]


def _new(path: Path) -> Path:
    path.write_text("new")
    return path


def _append(path: Path) -> None:
    with open(path, "ab", opener=open_regular):
        pass


WRITES: dict[str, Callable[[Path], object]] = {
    "write_record": lambda path: write_record(path, {}),
    "HashedFile": lambda path: HashedFile(path).close(),
    "acquire_lock": lambda path: acquire_lock(path, "test").close(),
    "replace_file": lambda path: replace_file(_new(path.with_name("new")), path),
    "append": _append,
}


@pytest.mark.parametrize("write", WRITES.values(), ids=WRITES)
def test_a_fifo_is_neither_replaced_nor_waited_for(write: Callable[[Path], object], tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "mine")
    before = (tmp_path / "mine").stat().st_ino
    with pytest.raises(OSError, match="FIFO, not a regular file"):
        write(tmp_path / "mine")
    assert (tmp_path / "mine").stat().st_ino == before


def test_what_came_while_a_file_was_written_stays(tmp_path: Path) -> None:
    with pytest.raises(OSError, match="FIFO"), atomic_write(tmp_path / "x") as file:
        file.write(b"content")
        os.mkfifo(tmp_path / "x")
    assert stat.S_ISFIFO((tmp_path / "x").stat().st_mode) and [*tmp_path.iterdir()] == [tmp_path / "x"]


def test_a_link_stays_and_its_file_is_replaced_where_it_lies(tmp_path: Path) -> None:
    (tmp_path / "far").mkdir()
    (tmp_path / "x").symlink_to("far/real")
    for content in (b"first", b"second"):
        with atomic_write(tmp_path / "x") as file:
            file.write(content)
        assert (tmp_path / "x").is_symlink() and (tmp_path / "far" / "real").read_bytes() == content
    assert file_to_write(tmp_path / "x") == (tmp_path / "far" / "real").resolve()
    assert {path.name for path in tmp_path.rglob("*")} == {"far", "real", "x"}


def test_nothing_is_written_through_a_link_or_a_fifo_with_the_name_of_an_unfinished_file(tmp_path: Path) -> None:
    (tmp_path / "x.unfinished").symlink_to("other")
    (tmp_path / "other").write_text("precious")
    os.mkfifo(tmp_path / "y.unfinished")
    for name, what in (("x", "link"), ("y", "FIFO")):
        with pytest.raises(OSError, match=what):
            write_record(tmp_path / name, {})
    assert (tmp_path / "other").read_text() == "precious" and stat.S_ISFIFO((tmp_path / "y.unfinished").stat().st_mode)


def test_a_pipe_that_a_link_of_the_system_names_is_not_a_new_file() -> None:
    read, write = os.pipe()
    with open(read), open(write, "w"), pytest.raises(OSError, match="FIFO"):
        file_to_write(f"/dev/fd/{write}")


def test_a_file_that_becomes_a_fifo_before_it_is_opened_is_not_waited_for(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path, opening = _new(tmp_path / "x"), os.open

    def swapped(name: str, flags: int, mode: int = 0o777, *, dir_fd: int | None = None) -> int:
        path.unlink()
        os.mkfifo(path)
        return opening(path, flags, mode, dir_fd=dir_fd)

    monkeypatch.setattr(os, "open", swapped)
    with pytest.raises(OSError, match="FIFO, not a regular file"):
        sha256(path)


@needs("train", "search")
def test_a_file_that_becomes_a_fifo_before_a_reader_opens_it_is_an_error(tmp_path: Path) -> None:
    from mlxbert.train.data.labelled_rows import LabelFolder

    path = tmp_path / "labels" / "a" / "x.txt"
    path.parent.mkdir(parents=True)
    stamp = stamp_of(_new(path))  # it was hashed before
    folder = LabelFolder(tmp_path / "labels", "labels", "utf-8")
    path.unlink()
    for name in (path, tmp_path / "x.npy"):
        os.mkfifo(name)
    for opening in (
        lambda: open_source(path, stamp=stamp),
        lambda: [*folder],
        lambda: read_vectors(tmp_path / "x.npy"),
    ):
        with pytest.raises(InputError, match="is a FIFO"):
            opening()
    call("indexes", "show", str(tmp_path / "x.npy"), MLXBERT_DATA=str(tmp_path)).fails(1, "no index")


def test_files_are_opened_as_always(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError):
        sha256(tmp_path / "x")
    with pytest.raises(IsADirectoryError):
        sha256(tmp_path)
    with open(tmp_path / "x", "wb", opener=open_regular) as file:
        assert isinstance(file, io.BufferedWriter)
        file.write(b"content")
    assert (tmp_path / "x").read_bytes() == b"content"


LABELS = ("Zürich", "ergänzt", "plain", "é")


def label_folder(folder: Path, form: Any) -> Path:
    """Texts for each label, in folders and files whose names are in a Unicode form."""
    for label in LABELS:
        for name in ("a.txt", "ä.txt", "b.txt"):
            path = folder / unicodedata.normalize(form, f"{label}/{name}")
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(f"{label} {name}", encoding="utf-8")
    return folder


@needs("train")
def test_labels_and_their_order_are_the_same_in_each_unicode_form(tmp_path: Path) -> None:
    from mlxbert.train.data.labelled_rows import read_rows

    composed, other = (read_rows(label_folder(tmp_path / form, form)) for form in ("NFC", "NFD"))
    assert [row.values for row in other] == [row.values for row in composed]
    assert {row.values["label"] for row in other} == {*LABELS}
    assert [*other.sha256.values()] == [*composed.sha256.values()]
    assert os.path.isdir(tmp_path / "NFD" / decomposed("é"))  # the file system kept the form


@needs("train")
def test_a_file_under_another_name_is_the_same(tmp_path: Path) -> None:
    from mlxbert.train.data.labelled_rows import read_rows
    from mlxbert.train.event_outputs import EventLog

    path, link = tmp_path / "x.jsonl", tmp_path / decomposed("é.jsonl")
    path.write_text('{"text": "a", "label": "b"}\n')
    os.link(path, link)
    with pytest.raises(ArgumentError, match="is also an input"):
        check_output(link, True, sources=[str(path)])
    with pytest.raises(ArgumentError, match="is also an input"):
        EventLog(link, [str(path)])
    with pytest.raises(ArgumentError, match="named twice"):
        read_rows([path, link])
    assert path.read_text() == '{"text": "a", "label": "b"}\n'


def test_a_folder_in_another_spelling_is_the_source(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    mac = MacDisk(tmp_path, monkeypatch).folder
    source = mac / "Modèle" / "weights"
    source.mkdir(parents=True)
    other = mac / decomposed("modÈle")
    assert identity(other / "WEIGHTS") == identity(source) != identity(mac)
    for target, said in (
        (other / "Weights", "is the folder of the source"),
        (other / "weights" / "b", "is inside the folder of the source"),
        (other, "contains the folder of the source"),
    ):
        with pytest.raises(ArgumentError, match=said):
            check_target(target, source, overwrite=True)
    with pytest.raises(ArgumentError, match="is a link into the folder to write"):
        check_link_targets(other, [source / "model.safetensors"])
    assert check_target(mac / "other", source, overwrite=True) == mac / "other"
