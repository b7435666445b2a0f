"""Checkpoints that torch wrote: read like torch reads them, without it; refused in words if they are anything else."""

import io
import json
import os
import pickle
import resource
import struct
import subprocess
import sys
import time
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from mlxbert.errors import CheckpointError
from mlxbert.goldens.golden_outputs import GOLDENS
from mlxbert.machine.device import mx
from mlxbert.weights.formats.torch import reader
from tests.helpers.torch_files import (
    DATA,
    PROTOCOL,
    archive,
    edited,
    group,
    named,
    number,
    numbers,
    state,
    storage,
    stream,
    table,
    tensor,
    text,
)

ROOT = Path(__file__).parents[3]
SECONDS, ROOM = 1.0, 256 * 2**20  # for one file


def write(folder: Path, content: bytes) -> Path:
    path = folder / reader.SINGLE
    path.unlink(missing_ok=True)  # a file that is overwritten is flushed to the disk, which takes long
    path.write_bytes(content)
    return path


def loaded(path: Path) -> dict[str, mx.array]:
    return dict(reader.load_arrays(path, reader.read_header(path)))


def values(content: bytes, folder: Path) -> Any:
    return loaded(write(folder, content))["w"].tolist()


CANARY = "executed"  # the file that appears if anything is run
COMMAND = f"touch {CANARY}"


def _directory_field(offset: int, form: str, value: int, member: bytes = b"archive/data/0") -> bytes:
    """Returns a valid archive, except for one value in a member's directory entry."""
    content = bytearray(archive())
    start = content.rindex(member) - 46
    struct.pack_into(form, content, start + offset, value)
    return bytes(content)


def _run(module: str, name: str, argument: str = COMMAND) -> bytes:
    return archive(state(text("w"), named(module, name) + text(argument) + b"\x85R"))


def _with(value: bytes) -> bytes:
    """Returns an archive whose dict holds a valid tensor and this value."""
    return archive(state(text("w"), tensor(), text("x"), value))


def _two_names(module: str, name: str) -> bytes:
    short = b"".join(b"\x8c" + bytes([len(each)]) + each.encode() for each in (module, name))
    return archive(b"\x80\x04" + short + b"\x93\x8c\x04exit\x85R.")


def _overlap() -> bytes:
    content = bytearray(archive(data_1=DATA))
    first, second = content.rindex(b"archive/data/0"), content.rindex(b"archive/data/1")
    content[second - 4 : second] = content[first - 4 : first]  # the offset
    content[second : second + 14] = b"archive/data/0"
    return bytes(content)


def _inside() -> bytes:
    """Returns an archive with a member inside the data of another member."""
    hidden = io.BytesIO()
    with zipfile.ZipFile(hidden, "w") as file:
        file.writestr("archive/data/1", DATA)
    content = archive(data_0=hidden.getvalue()[:68], data_1=DATA)
    start, entry = content.index(b"archive/data/1") - 30, content.rindex(b"archive/data/1")
    return content[: entry - 4] + struct.pack("<I", start) + content[entry:]


def _twice() -> bytes:
    return archive(data_1=DATA).replace(b"archive/data/1", b"archive/data/0")


def _tables(depth: int) -> bytes:
    """Returns the arguments of `depth` nested ordered dicts, each the value of the one before."""
    start, end = b"]]" + text("k") + b"a", b"aa\x85R"
    return start + (b"h\x00" + start) * (depth - 1) + b"N" + end * depth


def _again(function: bytes, arguments: bytes) -> bytes:
    """Returns an archive with thousands of calls whose arguments are the same and stored only once."""
    return _with(group(function + b"q\x00" + arguments + b"q\x01" + b"h\x00h\x01R" * 5000))


def _colliding() -> bytes:
    """Returns a dict whose keys are numbers with the same hash."""
    return table(*(number(index * (2**61 - 1)) + b"N" for index in range(100_000)))


HOSTILE: dict[str, tuple[Callable[[], bytes], str]] = {
    "os.system": (lambda: _run("os", "system"), "names 'os.system'"),
    "os.system in a stream": (
        lambda: stream(state(text("w"), named("os", "system") + text(COMMAND) + b"\x85R")),
        "os.",
    ),
    "os.system first": (lambda: PROTOCOL + named("os", "system") + text(COMMAND) + b"\x85R.", "names 'os.system'"),
    "eval": (lambda: _run("builtins", "eval", f"open({CANARY!r}, 'w')"), "names 'builtins.eval'"),
    "getattr": (lambda: _run("builtins", "getattr"), "names 'builtins.getattr'"),
    "torch._utils": (lambda: _run("torch._utils", "_import_dotted_name"), "names 'torch._utils._import_dotted_name'"),
    "dotted": (lambda: _two_names("torch._utils", "_rebuild_tensor_v2.__globals__"), "__globals__'"),
    "dotted module": (lambda: _two_names("os", "path.os.system"), "names 'os.path.os.system'"),
    "name of numbers": (lambda: archive(b"\x80\x04K\x01K\x02\x93."), "a name is not a string"),
    "name from the memo": (
        lambda: archive(b"\x80\x04\x8c\x02os\x94\x8c\x06system\x94h\x00h\x01\x93" + text(COMMAND) + b"\x85R."),
        "names 'os.system'",
    ),
    "module": (
        lambda: archive(PROTOCOL + named("torch.nn.modules.linear", "Linear") + b")\x81."),
        "modules.linear.Linear",
    ),
    "INST": (lambda: _with(b"(" + text(COMMAND) + b"ios\nsystem\n"), "the instruction INST"),
    "OBJ": (lambda: _with(b"(" + named("torch", "FloatStorage") + b"o"), "the instruction OBJ"),
    "NEWOBJ": (lambda: _with(named("collections", "OrderedDict") + b")\x81"), "the instruction NEWOBJ"),
    "EXT1": (lambda: _with(b"\x82\x01"), "the instruction EXT1"),
    "PERSID": (lambda: _with(b"P0\n"), "the instruction PERSID"),
    "LONG4": (lambda: _with(b"\x8b\xff\xff\xff\x7f"), "the instruction LONG4"),
    "LONG": (lambda: _with(b"L" + b"9" * 100_000 + b"L\n"), "the instruction LONG"),
    "BINUNICODE8": (lambda: _with(b"\x8d" + b"\xff" * 7 + b"\x7f"), "the instruction BINUNICODE8"),
    "long text": (lambda: _with(b"X\xff\xff\xff\xff"), "the pickle is damaged (BINUNICODE"),
    "long text in a stream": (lambda: stream(PROTOCOL + b"X\xff\xff\xff\xff"), "the pickle is damaged (BINUNICODE"),
    "negative length": (lambda: _with(b"T\xff\xff\xff\xff"), "the pickle is damaged (BINSTRING"),
    "no text": (lambda: _with(b"X\x02\x00\x00\x00\xff\xff"), "the pickle is damaged (BINUNICODE"),
    "no instruction": (lambda: _with(b"\xff"), "is unknown"),
    "name without end": (lambda: archive(PROTOCOL + b"c" + b"a" * 1_000_000), "the pickle is damaged (GLOBAL"),
    "entry 2^32-1 of the memo": (lambda: _with(b"Nr\xff\xff\xff\xffh\x07"), "entry 7 of the memo is missing"),
    "memo of nothing": (lambda: archive(PROTOCOL + b"q\x00."), "a value is missing"),
    "mark missing": (lambda: archive(PROTOCOL + b"t."), "a mark is missing"),
    "below the mark": (lambda: archive(PROTOCOL + b"}(s."), "a value is missing"),
    "key without value": (lambda: archive(PROTOCOL + b"}(Nu."), "a key has no value"),
    "two values": (lambda: archive(PROTOCOL + b"}}."), "exactly one value"),
    "open mark": (lambda: archive(PROTOCOL + b"}(}."), "exactly one value"),
    "no end": (lambda: archive(PROTOCOL + b"}"), "does not end within 3 bytes"),
    "entries of a list": (lambda: _with(b"](NNu"), "entries are added to a list"),
    "items of a table": (lambda: _with(b"}(Ne"), "items are added to a dict"),
    "deep key": (lambda: archive(PROTOCOL + b"})" + b"\x85" * 200_000 + b"Ns."), "a key of type tuple"),
    "list as key": (lambda: archive(PROTOCOL + b"}]Ns."), "a key of type list"),
    "tensor as key": (lambda: archive(state(tensor(), tensor())), "a key of type TorchTensor"),
    "number as name": (lambda: archive(state(number(5), tensor())), "5 is a tensor"),
    "deep lists": (lambda: _with(b"]" * 100_000 + b"a" * 99_999), "'x' is a list"),
    "deep tuples": (lambda: _with(b")" + b"\x85" * 200_000), "'x' is a tuple"),
    "deep tables": (
        lambda: _with(named("collections", "OrderedDict") + b"q\x00" + _tables(20_000)),
        "'x' is a OrderedDict",
    ),
    "list in itself": (lambda: _with(b"]q\x00h\x00a"), "'x' is a list"),
    "doubling": (
        lambda: _with(group(b"]q\x00" + b"](h\x00h\x00eq\x00" * 10_000)),
        "'x' is a tuple",
    ),
    "one list as many tables": (
        lambda: _again(named("collections", "OrderedDict"), b"](" + b"K\x01N\x86" * 60_000 + b"e\x85"),
        "passes more than 300000 items to calls",
    ),
    "one long shape of many tensors": (
        lambda: _again(
            named("torch._utils", "_rebuild_tensor_v2"),
            group(storage(), b"K\x00", b"(" + b"K\x01" * 90_000 + b"tq\x02h\x02\x89}"),
        ),
        "passes more than 300000 items to calls",
    ),
    "arguments without end": (
        lambda: _again(
            named("torch._utils", "_rebuild_tensor_v2"),
            group(storage(), b"K\x00", numbers((2, 3)), numbers((3, 1)), b"N" * 200_000),
        ),
        "arguments that it does not take",
    ),
    "one table under many names": (
        lambda: archive(
            PROTOCOL
            + table(text("a") + table(*(number(i) + b"N" for i in range(50_000))) + b"q\x00")[:-1]
            + b"".join(number(i) + b"h\x00" for i in range(50_000))
            + b"u."
        ),
        "'a' is a dict",
    ),
    "keys with one hash": (lambda: _with(_colliding()), "a key of more than 60 bits"),
    "many instructions": (lambda: archive(PROTOCOL + b"N" * 2_000_000), "more than 300000 instructions"),
    "long pickle": (lambda: archive(PROTOCOL + bytes(17 * 2**20)), "expected at most 16777216"),
    "long pickle in a stream": (lambda: stream(PROTOCOL + b"X\0\0\0\1" + b"a" * 2**24), "damaged (BINUNICODE"),
    "call of a table": (lambda: _with(b"})R"), "not a function"),
    "parameter of nothing": (
        lambda: _with(named("torch._utils", "_rebuild_parameter") + group(b"NNN") + b"R"),
        "calls",
    ),
    "table of no pairs": (lambda: _with(named("collections", "OrderedDict") + b"](K\x01e\x85R"), "not pairs"),
    "BUILD on a tensor": (lambda: _with(tensor() + b"}b"), "sets attributes"),
    "a list": (lambda: archive(PROTOCOL + b"]."), "holds a list"),
    "no tensors": (lambda: archive(PROTOCOL + b"}."), "holds no tensor"),
    "training": (
        lambda: archive(
            state(text("epoch"), b"K\x03", text("optimizer"), b"}", text("model"), table(text("w"), tensor()))
        ),
        "'optimizer' is a dict",
    ),
    "reference to a text": (lambda: _with(text("0") + b"Q"), "a reference to something"),
    "reference to a module": (lambda: _with(group(text("module"), b"NNNN") + b"Q"), "a reference to something"),
    "view": (
        lambda: _with(tensor(of=storage(None, "FloatStorage", 6, group(b"NNN")))),
        "a reference to something",
    ),
    "storage of no kind": (
        lambda: _with(group(text("storage"), named("collections", "OrderedDict"), text("0"), b"NK\x06") + b"Q"),
        "unknown type",
    ),
    "negative storage": (lambda: _with(storage(None, "FloatStorage", -1)), "unknown type or invalid size"),
    "storage of two kinds": (
        lambda: _with(tensor(of=storage(None, "IntStorage"))),
        "two storages with the key 0",
    ),
    "key upwards": (lambda: _with(tensor(of=storage(text("../../etc/passwd")))), "the key '../../etc/passwd'"),
    "key of a missing member": (lambda: _with(tensor(of=storage(text("7")))), "storage 7 with the data of"),
    "storage larger than the file": (
        lambda: archive(state(text("w"), tensor(of=storage(count=2**40)))),
        "24 bytes of data",
    ),
    "storage smaller": (lambda: archive(state(text("w"), tensor((2,), (1,), of=storage(count=2)))), "24 bytes of data"),
    "negated": (
        lambda: archive(state(text("w"), tensor(more=[table(text("neg"), b"\x88")]))),
        "calls torch._utils._rebuild_tensor_v2 with arguments that it does not take",
    ),
    "huge shape": (lambda: archive(state(text("w"), tensor((2**31, 2**31)))), "invalid shape"),
    "huge axes": (lambda: archive(state(text("w"), tensor((2**30, 2**30)))), "extends past its data of 6 numbers"),
    "many axes": (lambda: archive(state(text("w"), tensor((1,) * 50, (1,) * 50))), "invalid shape"),
    "fewer strides": (lambda: archive(state(text("w"), tensor((2, 3), (1,)))), "invalid shape"),
    "expansion": (lambda: archive(state(text("w"), tensor((2**30, 1), (0, 1)))), "expected at most 100 times"),
    "one expansion under many names": (
        lambda: archive(
            state(text("w"), tensor((1000,), (0,)) + b"q\x00", *(text(f"{i}") + b"h\x00" for i in range(1000)))
        ),
        "expected at most 100 times",
    ),
    "negative offset": (lambda: archive(state(text("w"), tensor(offset=-1))), "extends past"),
    "offset beyond": (lambda: archive(state(text("w"), tensor(offset=1))), "extends past"),
    "negative stride": (lambda: archive(state(text("w"), tensor((2, 3), (-3, 1), 3))), "extends past"),
    "huge stride": (lambda: archive(state(text("w"), tensor((2, 3), (2**62, 1)))), "extends past"),
    "empty beyond": (lambda: archive(state(text("w"), tensor((0,), (1,), 2**40))), "extends past"),
    "member upwards": (
        lambda: archive().replace(b"archive/data/0", b"archive/../xy0"),
        "expected a plain relative path",
    ),
    "absolute member": (
        lambda: archive().replace(b"archive/data/0", b"/rchive/data/0"),
        "expected a plain relative path",
    ),
    "two folders": (lambda: archive().replace(b"archive/data/0", b"brchive/data/0"), "in 2 folders"),
    "members that overlap": (_overlap, "it has 'archive/data/0' twice"),
    "member in another": (_inside, "the archive is damaged or truncated ('archive/data"),
    "member twice": (_twice, "it has 'archive/data/0' twice"),
    "compressed": (lambda: archive(method=zipfile.ZIP_DEFLATED, data_0=bytes(2**22)), "compressed or encrypted"),
    "encrypted": (lambda: _directory_field(8, "<H", 1), "compressed or encrypted"),
    "size of a member": (lambda: _directory_field(20, "<L", 25), "compressed or encrypted"),
    "size of 4 GiB": (lambda: _directory_field(24, "<L", 2**32 - 1), "compressed or encrypted"),
    "offset of a member": (lambda: _directory_field(42, "<L", 3), "is not at the offset"),
    "offset past the end": (lambda: _directory_field(42, "<L", 2**31), "is not at the offset"),
    "length of a name": (lambda: _directory_field(28, "<H", 60_000), "expected a plain relative path"),
    "another checksum": (lambda: _directory_field(16, "<L", 1), "does not match its checksum"),
    "checksum of the pickle": (
        lambda: _directory_field(16, "<L", 1, b"archive/data.pkl"),
        "data.pkl does not match its checksum",
    ),
    "changed data": (lambda: edited(archive(), DATA, DATA[::-1]), "does not match its checksum"),
    "size of the directory": (
        lambda: archive()[:-10] + struct.pack("<L", 2**31) + archive()[-6:],
        "2147483648 bytes, expected at most 4194304",
    ),
    "number of members": (lambda: archive()[:-12] + b"\x09\x00" + archive()[-10:], "expected 9 in one"),
    "empty archive": (lambda: b"PK\5\6" + bytes(18), "truncated or not written by torch.save"),
    "no data.pkl": (lambda: archive().replace(b"data.pkl", b"data.pk_"), "without data.pkl"),
    "TorchScript's constants": (lambda: archive(aaaaaaaaaaaaa=b"").replace(b"a" * 13, b"constants.pkl"), "TorchScript"),
    "TorchScript's code": (lambda: archive(code_x=b""), "TorchScript"),
    "big-endian": (lambda: archive(byteorder=b"big"), "big-endian"),
    "big-endian stream": (lambda: stream(little=b"\x89"), "big-endian"),
    "after the pickle": (lambda: archive(state() + b"garbage"), "bytes after the end of its pickle"),
    "after the archive": (lambda: archive() + b"garbage", "does not end with its directory"),
    "after the stream": (lambda: stream() + b"garbage", "7 bytes follow the last storage"),
    "keys of a stream": (lambda: stream(keys=text("1")), "the storage keys"),
    "no keys": (lambda: stream(keys=b""), "32 bytes follow the last storage"),
    "keys twice": (lambda: stream(keys=text("0") * 2, data=(struct.pack("<q", 6) + DATA) * 2), "storage 0 is not at"),
    "count of a stream": (lambda: stream(data=struct.pack("<q", 7) + DATA), "storage 0 is not at"),
    "another number": (lambda: stream().replace(b"M\xe9\x03", b"M\xea\x03"), "a pickle that torch.save did not write"),
    "any pickle": (lambda: PROTOCOL + b"]K\x01a.", "a pickle that torch.save did not write"),
    "tar": (lambda: b"sys_info".ljust(257, b"\0") + b"ustar\x0000" + bytes(760), "tar archive"),
    "pointer": (lambda: b"version https://git-lfs.github.com/spec/v1\noid sha256:0\n", "Git LFS pointer"),
    "empty": (lambda: b"", "truncated or not written by torch.save (0 bytes"),
    "page": (lambda: b"<!doctype html><html></html>", "starting with b'<!doctype html><'"),
}


def _outcome(path: Path) -> dict[str, object]:
    start = time.process_time()
    kind, message = "none", ""
    try:
        arrays = reader.load_arrays(path, reader.read_header(path))
        for name in arrays:
            arrays[name].tolist()
    except CheckpointError as problem:
        kind, message = "CheckpointError", problem.message
    except BaseException as problem:
        kind, message = type(problem).__name__, str(problem)
    return {"kind": kind, "message": message, "seconds": time.process_time() - start}


def read_all(seconds: int, room: int) -> None:
    """Reads every file in the current folder, and prints the outcomes as JSON.

    Args:
        seconds: The maximum processor time for all files together.
        room: The maximum memory in bytes, in addition to the memory in use at the start.
    """
    resource.setrlimit(resource.RLIMIT_CPU, (seconds, seconds))
    if sys.platform == "linux":
        taken = int(Path("/proc/self/statm").read_text(encoding="ascii").split()[0]) * resource.getpagesize()
        resource.setrlimit(resource.RLIMIT_AS, (taken + room, taken + room))
    outcomes = {path.name: _outcome(path) for path in sorted(Path.cwd().glob("*.bin"))}
    print(json.dumps(outcomes))  # noqa: T201


@pytest.fixture(scope="module", params=[pytest.param(None, marks=pytest.mark.slow, id="limited")])
def outcomes(tmp_path_factory: pytest.TempPathFactory) -> dict[str, dict[str, Any]]:
    """What came of the hostile files, read in one process whose memory and time are limited."""
    folder = tmp_path_factory.mktemp("hostile")
    for place, (make, _) in enumerate(HOSTILE.values()):
        (folder / f"{place:03}.bin").write_bytes(make())
    code = f"from {__name__} import read_all; read_all({int(SECONDS * len(HOSTILE))}, {ROOM})"
    command = [sys.executable, "-c", code]
    environment = os.environ | {"PYTHONPATH": str(ROOT)}
    ran = subprocess.run(command, cwd=folder, env=environment, capture_output=True, text=True, check=False)
    assert ran.returncode == 0, ran.stderr
    assert not (folder / CANARY).exists()
    return dict(zip(HOSTILE, json.loads(ran.stdout).values(), strict=True))


@pytest.mark.parametrize("name", HOSTILE)
def test_a_hostile_file_is_refused_in_words_and_nothing_runs(outcomes: dict[str, dict[str, Any]], name: str) -> None:
    outcome = outcomes[name]
    assert outcome["kind"] == "CheckpointError", outcome
    assert HOSTILE[name][1] in outcome["message"] and len(outcome["message"]) < 1000
    assert outcome["seconds"] < SECONDS


def test_the_hostile_pickles_would_run_elsewhere(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    pickle.loads(HOSTILE["os.system first"][0]())
    assert (tmp_path / CANARY).exists()


@pytest.mark.parametrize("make", [archive, stream])
def test_a_file_written_by_hand_is_read(tmp_path: Path, make: Any) -> None:
    assert values(make(), tmp_path) == [[0, 1, 2], [3, 4, 5]]
    transposed = state(text("w"), tensor((3, 2), (1, 3)), text("epoch"), b"K\x03", text("note"), b"N")
    assert values(make(transposed), tmp_path) == [[0, 3], [1, 4], [2, 5]]
    assert reader.read_header(tmp_path / reader.SINGLE).skipped == ("epoch", "note")
    assert values(make(state(text("w"), tensor((2, 1), (3, 1), 2))), tmp_path) == [[2], [5]]
    assert values(make(state(text("w"), tensor((), (), 4))), tmp_path) == 4
    assert values(make(state(text("w"), tensor((0, 7), (7, 1)))), tmp_path) == []
    assert values(make(state(text("w"), tensor((2, 2), (1, 1), 1))), tmp_path) == [[1, 2], [2, 3]]
    assert values(make(state(text("w"), tensor((4, 2), (0, 1), 2))), tmp_path) == [[2, 3]] * 4
    assert values(make(state(text("w"), tensor((1, 2, 1), (2**62, 3, 2**99), 1))), tmp_path) == [[[1], [4]]]


@pytest.mark.parametrize("make", [archive, stream])
def test_a_truncated_file_is_refused(tmp_path: Path, make: Any) -> None:
    whole = make()
    for size in range(len(whole)):
        with pytest.raises(CheckpointError, match=r"truncated|damaged"):
            reader.read_header(write(tmp_path, whole[:size]))


def test_a_model_of_5000_tensors_is_read(tmp_path: Path) -> None:
    many = [part for number in range(5000) for part in (text(f"encoder.layer.{number}.weight"), tensor())]
    assert len(reader.read_header(write(tmp_path, archive(state(*many)))).tensors) == 5000


def test_an_archive_of_more_than_4_gib_is_read(tmp_path: Path) -> None:
    """The file has a hole of 5 GiB before its last member and takes no room on disk."""
    path = tmp_path / reader.SINGLE
    with zipfile.ZipFile(path, "w") as file:
        file.writestr("archive/data.pkl", state())
        assert file.fp is not None
        file.fp.seek(5 * 2**30)
        file.start_dir = file.fp.tell()
        file.writestr("archive/data/0", DATA)
    assert path.stat().st_size > 5 * 2**30
    assert loaded(path)["w"].tolist() == [[0, 1, 2], [3, 4, 5]]


def test_a_tensor_in_64_bits_is_named(tmp_path: Path) -> None:
    doubles = state(text("w"), tensor((3,), (1,), of=storage(kind="DoubleStorage", count=3)))
    path = write(tmp_path, archive(doubles))
    header = reader.read_header(path)
    assert header.tensors["w"].dtype == "F64"
    with pytest.raises(CheckpointError, match="'w' has dtype F64"):
        reader.load_arrays(path, header)["w"]


def test_a_file_that_changed_is_refused(tmp_path: Path) -> None:
    path = write(tmp_path, archive())
    header = reader.read_header(path)
    write(tmp_path, archive(state(text("v"), tensor())))
    with pytest.raises(CheckpointError, match="changed while"):
        reader.load_arrays(path, header)


def test_which_files_of_a_folder_are_read(tmp_path: Path) -> None:
    (tmp_path / "model.bin").write_bytes(archive())
    assert reader.read_headers(tmp_path) is None
    (tmp_path / "a.bin").write_bytes(archive())
    (tmp_path / "b.bin").write_bytes(archive(state(text("v"), tensor())))
    index = tmp_path / reader.INDEX
    index.write_text(json.dumps({"weight_map": {"w": "a.bin", "v": "b.bin"}}), encoding="utf-8")
    headers = reader.read_headers(tmp_path)
    assert headers is not None
    assert [(path.name, list(header.tensors)) for path, header in headers.items()] == [
        ("a.bin", ["w"]),
        ("b.bin", ["v"]),
    ]
    path = write(tmp_path, archive())
    assert list(reader.read_headers(tmp_path) or ()) == [path]


@pytest.mark.parametrize(
    "shard", ["../../etc/passwd", "/etc/passwd", "..", "", "a/b.bin", "missing.bin", "a\0b", "x" * 5000]
)
def test_an_index_that_points_elsewhere_is_refused(tmp_path: Path, shard: str) -> None:
    (tmp_path / reader.INDEX).write_text(json.dumps({"weight_map": {"w": shard}}), encoding="utf-8")
    with pytest.raises(CheckpointError, match=r"index\.json: (a )?shard"):
        reader.read_headers(tmp_path)


@pytest.mark.parametrize(
    "name", ["torch-1.4-python-2.7-stream", "torch-1.6-python-3.7-stream", "torch-1.6-python-3.7-zip"]
)
def test_what_old_torch_wrote_is_read(name: str) -> None:
    """How the files were written, and with what in them, is said next to them."""
    path = GOLDENS / "torch" / f"{name}.bin"
    header = reader.read_header(path)
    arrays = reader.load_arrays(path, header)
    found = {key: (info.dtype, arrays[key].tolist()) for key, info in header.tensors.items() if info.dtype != "F64"}
    weight, ones, zeros = [[0.0, 1.0, 2.0], [3.0, 4.0, 5.0]], [1.0, 1.0], [0.0, 0.0]
    assert found == {
        "dense.weight": ("F32", weight), "dense.bias": ("F32", [1.0, -1.0]),
        "norm.weight": ("F32", ones), "norm.bias": ("F32", zeros), "norm.running_mean": ("F32", zeros),
        "norm.running_var": ("F32", ones), "norm.num_batches_tracked": ("I64", 0),
        "tied.weight": ("F32", weight), "tied.bias": ("F32", [0.5, 0.25]),
        "transposed": ("F32", [[0, 4, 8], [1, 5, 9], [2, 6, 10], [3, 7, 11]]), "sliced": ("F32", [[5, 6], [9, 10]]),
        "half": ("F16", [0, 1, 1]), "bfloat16": ("BF16", [0, 1, 1]), "bool": ("BOOL", [False, True, True]),
        "long": ("I64", [0, 1, 1]), "int": ("I32", [0, 1, 1]), "short": ("I16", [0, 1, 1]),
        "char": ("I8", [0, 1, 1]), "byte": ("U8", [0, 1, 1]),
        "scalar": ("F32", 2.5), "empty": ("F32", []), "param": ("F32", ones),
    }  # fmt: skip
    assert header.tensors["double"].dtype == "F64" and header.tensors["empty"].shape == (0, 4)


def _state_of_torch() -> dict[str, Any]:
    """Tensors of every dtype, and views of every kind, some of one storage."""
    import torch

    torch.manual_seed(0)
    base = torch.randn(4, 6, 5)
    dtypes = (torch.float16, torch.bfloat16, torch.int64, torch.int32, torch.int16, torch.int8, torch.uint8, torch.bool)
    found = {str(dtype): (base * 3).to(dtype) for dtype in dtypes}
    found |= {"base": base, "again": base, "parameter": torch.nn.Parameter(base[0].clone())}
    found |= {"permuted": base.permute(2, 0, 1), "steps": base[::2, 1:5:3], "scalar": base[1, 2, 3]}
    found |= {"empty": torch.zeros(3, 0), "window": base[3, 2:], "unfolded": torch.arange(19.0).unfold(0, 4, 5)}
    found |= {"expanded": torch.arange(3.0)[:, None].expand(3, 50), "row": torch.arange(3.0).expand(1, 3)}
    return found | {"quelle façon": torch.ones(1)}


def _check_equal(path: Path, expected: dict[str, Any]) -> None:
    import torch

    header = reader.read_header(path)
    arrays = reader.load_arrays(path, header)
    assert list(header.tensors) == list(expected)
    for name, theirs in expected.items():
        assert header.tensors[name].shape == arrays[name].shape == tuple(theirs.shape)
        assert str(arrays[name].dtype).split(".")[-1].removesuffix("_") == str(theirs.dtype).split(".")[-1]
        found = np.array(arrays[name].astype(mx.float32) if arrays[name].dtype == mx.bfloat16 else arrays[name])
        wide = theirs.to(torch.float32) if theirs.dtype == torch.bfloat16 else theirs
        assert np.array_equal(found, wide.detach().numpy())


@pytest.mark.parametrize("protocol", [2, 4, 5])
@pytest.mark.parametrize("zipped", [True, False])
@pytest.mark.slow
def test_it_is_what_torch_loads(tmp_path: Path, zipped: bool, protocol: int) -> None:
    torch = pytest.importorskip("torch")
    path = tmp_path / reader.SINGLE
    torch.save(_state_of_torch(), path, _use_new_zipfile_serialization=zipped, pickle_protocol=protocol)
    _check_equal(path, torch.load(path, weights_only=False))


@pytest.mark.parametrize("zipped", [True, False])
@pytest.mark.slow
def test_the_state_of_a_module_is_read_and_the_module_is_not(tmp_path: Path, zipped: bool) -> None:
    torch = pytest.importorskip("torch")
    module = torch.nn.Sequential(torch.nn.Linear(3, 4), torch.nn.LayerNorm(4))
    path = tmp_path / reader.SINGLE
    torch.save(module.state_dict(), path, _use_new_zipfile_serialization=zipped)
    _check_equal(path, module.state_dict())
    torch.save(module, path, _use_new_zipfile_serialization=zipped)
    with pytest.raises(CheckpointError, match=r"names 'torch\.nn\.modules\.container\.Sequential'"):
        reader.read_header(path)
    torch.save({"epoch": 1, "state_dict": module.state_dict()}, path, _use_new_zipfile_serialization=zipped)
    with pytest.raises(CheckpointError, match="'state_dict' is a OrderedDict"):
        reader.read_header(path)
    scripted = torch.jit.script(module)
    torch.jit.save(scripted, str(path))
    with pytest.raises(CheckpointError, match="TorchScript"):
        reader.read_header(path)
