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
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from mlxbert.errors import CheckpointError
from mlxbert.goldens.golden_outputs import GOLDENS
from mlxbert.machine.device import mx
from mlxbert.weights.formats.torch import reader
from tests.helpers.cases import together
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
    hidden = io.BytesIO()
    with zipfile.ZipFile(hidden, "w") as file:
        file.writestr("archive/data/1", DATA)
    content = archive(data_0=hidden.getvalue()[:68], data_1=DATA)
    start, entry = content.index(b"archive/data/1") - 30, content.rindex(b"archive/data/1")
    return content[: entry - 4] + struct.pack("<I", start) + content[entry:]


def _tables(depth: int) -> bytes:
    """The arguments of `depth` nested ordered dicts, each the value of the one before."""
    start, end = b"]]" + text("k") + b"a", b"aa\x85R"
    return start + (b"h\x00" + start) * (depth - 1) + b"N" + end * depth


def _again(function: bytes, arguments: bytes) -> bytes:
    """Thousands of calls whose arguments are the same and stored only once."""
    return _with(group(function + b"q\x00" + arguments + b"q\x01" + b"h\x00h\x01R" * 5000))


_REFERENCE = "a reference to something"
_V2 = named("torch._utils", "_rebuild_tensor_v2")
_ORDERED = named("collections", "OrderedDict")
# Values next to a valid tensor.
_BESIDE: dict[str, tuple[bytes, str]] = {
    "INST": (b"(" + text(COMMAND) + b"ios\nsystem\n", "the instruction INST"),
    "OBJ": (b"(" + named("torch", "FloatStorage") + b"o", "the instruction OBJ"),
    "NEWOBJ": (_ORDERED + b")\x81", "the instruction NEWOBJ"),
    "EXT1": (b"\x82\x01", "the instruction EXT1"),
    "PERSID": (b"P0\n", "the instruction PERSID"),
    "LONG4": (b"\x8b\xff\xff\xff\x7f", "the instruction LONG4"),
    "LONG": (b"L" + b"9" * 100_000 + b"L\n", "the instruction LONG"),
    "BINUNICODE8": (b"\x8d" + b"\xff" * 7 + b"\x7f", "the instruction BINUNICODE8"),
    "long text": (b"X\xff\xff\xff\xff", "the pickle is damaged (BINUNICODE"),
    "negative length": (b"T\xff\xff\xff\xff", "the pickle is damaged (BINSTRING"),
    "no text": (b"X\x02\x00\x00\x00\xff\xff", "the pickle is damaged (BINUNICODE"),
    "no instruction": (b"\xff", "is unknown"),
    "entry 2^32-1 of the memo": (b"Nr\xff\xff\xff\xffh\x07", "entry 7 of the memo is missing"),
    "entries of a list": (b"](NNu", "entries are added to a list"),
    "items of a table": (b"}(Ne", "items are added to a dict"),
    "deep lists": (b"]" * 100_000 + b"a" * 99_999, "'x' is a list"),
    "deep tuples": (b")" + b"\x85" * 200_000, "'x' is a tuple"),
    "deep tables": (_ORDERED + b"q\x00" + _tables(20_000), "'x' is a OrderedDict"),
    "list in itself": (b"]q\x00h\x00a", "'x' is a list"),
    "doubling": (group(b"]q\x00" + b"](h\x00h\x00eq\x00" * 10_000), "'x' is a tuple"),
    "call of a table": (b"})R", "not a function"),
    "parameter of nothing": (named("torch._utils", "_rebuild_parameter") + group(b"NNN") + b"R", "calls"),
    "table of no pairs": (_ORDERED + b"](K\x01e\x85R", "not pairs"),
    "BUILD on a tensor": (tensor() + b"}b", "sets attributes"),
    "reference to a text": (text("0") + b"Q", _REFERENCE),
    "reference to a module": (group(text("module"), b"NNNN") + b"Q", _REFERENCE),
    "view": (tensor(of=storage(None, "FloatStorage", 6, group(b"NNN"))), _REFERENCE),
    "storage of no kind": (group(text("storage"), _ORDERED, text("0"), b"NK\x06") + b"Q", "unknown type"),
    "negative storage": (storage(None, "FloatStorage", -1), "unknown type or invalid size"),
    "storage of two kinds": (tensor(of=storage(None, "IntStorage")), "two storages with the key 0"),
    "key upwards": (tensor(of=storage(text("../../etc/passwd"))), "the key '../../etc/passwd'"),
    "key of a missing member": (tensor(of=storage(text("7"))), "storage 7 with the data of"),
}
# Pickles, without the two bytes that they begin with.
_PICKLES: dict[str, tuple[bytes, str]] = {
    "module": (named("torch.nn.modules.linear", "Linear") + b")\x81.", "modules.linear.Linear"),
    "name without end": (b"c" + b"a" * 1_000_000, "the pickle is damaged (GLOBAL"),
    "memo of nothing": (b"q\x00.", "a value is missing"),
    "mark missing": (b"t.", "a mark is missing"),
    "below the mark": (b"}(s.", "a value is missing"),
    "key without value": (b"}(Nu.", "a key has no value"),
    "two values": (b"}}.", "exactly one value"),
    "open mark": (b"}(}.", "exactly one value"),
    "no end": (b"}", "does not end within 3 bytes"),
    "deep key": (b"})" + b"\x85" * 200_000 + b"Ns.", "a key of type tuple"),
    "list as key": (b"}]Ns.", "a key of type list"),
    "many instructions": (b"N" * 2_000_000, "more than 300000 instructions"),
    "a list": (b"].", "holds a list"),
    "no tensors": (b"}.", "holds no tensor"),
}
# Tensors by shape, strides and offset.
_TENSORS: dict[str, tuple[bytes, str]] = {
    "storage larger than the file": (tensor(of=storage(count=2**40)), "24 bytes of data"),
    "storage smaller": (tensor((2,), (1,), of=storage(count=2)), "24 bytes of data"),
    "negated": (tensor(more=[table(text("neg"), b"\x88")]), "calls torch._utils._rebuild_tensor_v2 with arguments"),
    "huge shape": (tensor((2**31, 2**31)), "invalid shape"),
    "huge axes": (tensor((2**30, 2**30)), "extends past its data of 6 numbers"),
    "many axes": (tensor((1,) * 50, (1,) * 50), "invalid shape"),
    "fewer strides": (tensor((2, 3), (1,)), "invalid shape"),
    "expansion": (tensor((2**30, 1), (0, 1)), "expected at most 100 times"),
    "negative offset": (tensor(offset=-1), "extends past"),
    "offset beyond": (tensor(offset=1), "extends past"),
    "negative stride": (tensor((2, 3), (-3, 1), 3), "extends past"),
    "huge stride": (tensor((2, 3), (2**62, 1)), "extends past"),
    "empty beyond": (tensor((0,), (1,), 2**40), "extends past"),
}
# One field of a member's entry in the directory: its place and its new value.
_FIELDS: dict[str, tuple[int, str, int, str]] = {
    "encrypted": (8, "<H", 1, "compressed or encrypted"),
    "size of a member": (20, "<L", 25, "compressed or encrypted"),
    "size of 4 GiB": (24, "<L", 2**32 - 1, "compressed or encrypted"),
    "offset of a member": (42, "<L", 3, "is not at the offset"),
    "offset past the end": (42, "<L", 2**31, "is not at the offset"),
    "length of a name": (28, "<H", 60_000, "expected a plain relative path"),
    "another checksum": (16, "<L", 1, "does not match its checksum"),
}
HOSTILE: dict[str, tuple[Callable[[], bytes], str]] = {
    **{name: (partial(_with, value), said) for name, (value, said) in _BESIDE.items()},
    **{name: (partial(archive, PROTOCOL + value), said) for name, (value, said) in _PICKLES.items()},
    **{name: (partial(archive, state(text("w"), value)), said) for name, (value, said) in _TENSORS.items()},
    **{name: (partial(_directory_field, at, form, value), said) for name, (at, form, value, said) in _FIELDS.items()},
    **{
        f"{module}.{name}": (partial(_run, module, name), f"names '{module}.{name}'")
        for module, name in (
            ("os", "system"),
            ("builtins", "eval"),
            ("builtins", "getattr"),
            ("torch._utils", "_import_dotted_name"),
        )
    },
    "os.system in a stream": (
        lambda: stream(state(text("w"), named("os", "system") + text(COMMAND) + b"\x85R")),
        "os.",
    ),
    "os.system first": (lambda: PROTOCOL + named("os", "system") + text(COMMAND) + b"\x85R.", "names 'os.system'"),
    "dotted": (lambda: _two_names("torch._utils", "_rebuild_tensor_v2.__globals__"), "__globals__'"),
    "dotted module": (lambda: _two_names("os", "path.os.system"), "names 'os.path.os.system'"),
    "name of numbers": (lambda: archive(b"\x80\x04K\x01K\x02\x93."), "a name is not a string"),
    "name from the memo": (
        lambda: archive(b"\x80\x04\x8c\x02os\x94\x8c\x06system\x94h\x00h\x01\x93" + text(COMMAND) + b"\x85R."),
        "names 'os.system'",
    ),
    "long text in a stream": (lambda: stream(PROTOCOL + b"X\xff\xff\xff\xff"), "the pickle is damaged (BINUNICODE"),
    "tensor as key": (lambda: archive(state(tensor(), tensor())), "a key of type TorchTensor"),
    "number as name": (lambda: archive(state(number(5), tensor())), "5 is a tensor"),
    "one list as many tables": (
        lambda: _again(_ORDERED, b"](" + b"K\x01N\x86" * 60_000 + b"e\x85"),
        "passes more than 300000 items to calls",
    ),
    "one long shape of many tensors": (
        lambda: _again(_V2, group(storage(), b"K\x00", b"(" + b"K\x01" * 90_000 + b"tq\x02h\x02\x89}")),
        "passes more than 300000 items to calls",
    ),
    "arguments without end": (
        lambda: _again(_V2, group(storage(), b"K\x00", numbers((2, 3)), numbers((3, 1)), b"N" * 200_000)),
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
    "keys with one hash": (
        lambda: _with(table(*(number(index * (2**61 - 1)) + b"N" for index in range(100_000)))),
        "a key of more than 60 bits",
    ),
    "long pickle": (lambda: archive(PROTOCOL + bytes(17 * 2**20)), "expected at most 16777216"),
    "long pickle in a stream": (lambda: stream(PROTOCOL + b"X\0\0\0\1" + b"a" * 2**24), "damaged (BINUNICODE"),
    "training": (
        lambda: archive(
            state(text("epoch"), b"K\x03", text("optimizer"), b"}", text("model"), table(text("w"), tensor()))
        ),
        "'optimizer' is a dict",
    ),
    "one expansion under many names": (
        lambda: archive(
            state(text("w"), tensor((1000,), (0,)) + b"q\x00", *(text(f"{i}") + b"h\x00" for i in range(1000)))
        ),
        "expected at most 100 times",
    ),
    **{
        name: (partial(archive().replace, b"archive/data/0", to), said)
        for name, to, said in (
            ("member upwards", b"archive/../xy0", "expected a plain relative path"),
            ("absolute member", b"/rchive/data/0", "expected a plain relative path"),
            ("two folders", b"brchive/data/0", "in 2 folders"),
        )
    },
    "members that overlap": (_overlap, "it has 'archive/data/0' twice"),
    "member in another": (_inside, "the archive is damaged or truncated ('archive/data"),
    "member twice": (
        lambda: archive(data_1=DATA).replace(b"archive/data/1", b"archive/data/0"),
        "it has 'archive/data/0' twice",
    ),
    "compressed": (lambda: archive(method=zipfile.ZIP_DEFLATED, data_0=bytes(2**22)), "compressed or encrypted"),
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
    """Reads every file in the current folder, within CPU seconds and bytes of memory; prints the outcomes as JSON."""
    resource.setrlimit(resource.RLIMIT_CPU, (seconds, seconds))
    if sys.platform == "linux":
        taken = int(Path("/proc/self/statm").read_text(encoding="ascii").split()[0]) * resource.getpagesize()
        resource.setrlimit(resource.RLIMIT_AS, (taken + room, taken + room))
    print(json.dumps({path.name: _outcome(path) for path in sorted(Path.cwd().glob("*.bin"))}))  # noqa: T201


@pytest.mark.slow
def test_a_hostile_file_is_refused_in_words_and_nothing_runs(tmp_path: Path) -> None:
    """All in one process whose memory and time are limited."""
    for place, (make, _) in enumerate(HOSTILE.values()):
        (tmp_path / f"{place:03}.bin").write_bytes(make())
    code = f"from {__name__} import read_all; read_all({int(SECONDS * len(HOSTILE))}, {ROOM})"
    environment = os.environ | {"PYTHONPATH": str(ROOT)}
    ran = subprocess.run([sys.executable, "-c", code], cwd=tmp_path, env=environment, capture_output=True, check=True)
    assert not (tmp_path / CANARY).exists()
    outcomes = json.loads(ran.stdout)
    assert len(outcomes) == len(HOSTILE)
    wrong = {
        name: outcome
        for (name, (_, said)), outcome in zip(HOSTILE.items(), outcomes.values(), strict=True)
        if outcome["kind"] != "CheckpointError" or said not in outcome["message"]
        or len(outcome["message"]) >= 1000 or outcome["seconds"] >= SECONDS
    }  # fmt: skip
    assert not wrong


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


def test_a_model_of_5000_tensors_is_read(tmp_path: Path) -> None:
    many = [part for number in range(5000) for part in (text(f"encoder.layer.{number}.weight"), tensor())]
    assert len(reader.read_header(write(tmp_path, archive(state(*many)))).tensors) == 5000


def test_which_files_of_a_folder_are_read(tmp_path: Path) -> None:
    (tmp_path / "model.bin").write_bytes(archive())
    assert reader.read_headers(tmp_path) is None
    (tmp_path / "a.bin").write_bytes(archive())
    (tmp_path / "b.bin").write_bytes(archive(state(text("v"), tensor())))
    (tmp_path / reader.INDEX).write_text(json.dumps({"weight_map": {"w": "a.bin", "v": "b.bin"}}), encoding="utf-8")
    headers = reader.read_headers(tmp_path) or {}
    assert [(path.name, *header.tensors) for path, header in headers.items()] == [("a.bin", "w"), ("b.bin", "v")]
    path = write(tmp_path, archive())
    assert list(reader.read_headers(tmp_path) or ()) == [path]


@together("shard", ["../../etc/passwd", "/etc/passwd", "..", "", "a/b.bin", "missing.bin", "a\0b", "x" * 5000])
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


@pytest.mark.parametrize("protocol", [2, 4, 5])
@pytest.mark.parametrize("zipped", [True, False])
@pytest.mark.slow
def test_it_is_what_torch_loads(tmp_path: Path, zipped: bool, protocol: int) -> None:
    torch = pytest.importorskip("torch")
    path = tmp_path / reader.SINGLE
    torch.save(_state_of_torch(), path, _use_new_zipfile_serialization=zipped, pickle_protocol=protocol)
    expected, header = torch.load(path, weights_only=False), reader.read_header(path)
    arrays = reader.load_arrays(path, header)
    assert list(header.tensors) == list(expected)
    for name, theirs in expected.items():
        assert header.tensors[name].shape == arrays[name].shape == tuple(theirs.shape)
        assert str(arrays[name].dtype).split(".")[-1].removesuffix("_") == str(theirs.dtype).split(".")[-1]
        found = np.array(arrays[name].astype(mx.float32) if arrays[name].dtype == mx.bfloat16 else arrays[name])
        wide = theirs.to(torch.float32) if theirs.dtype == torch.bfloat16 else theirs
        assert np.array_equal(found, wide.detach().numpy())


@pytest.mark.parametrize("zipped", [True, False])
@pytest.mark.slow
def test_the_state_of_a_module_is_read_and_the_module_is_not(tmp_path: Path, zipped: bool) -> None:
    torch = pytest.importorskip("torch")
    module = torch.nn.Sequential(torch.nn.Linear(3, 4), torch.nn.LayerNorm(4))
    path = tmp_path / reader.SINGLE
    torch.save(module.state_dict(), path, _use_new_zipfile_serialization=zipped)
    assert {name: array.tolist() for name, array in loaded(path).items()} == {
        name: array.tolist() for name, array in module.state_dict().items()
    }
    for value, said in (
        (module, r"names 'torch\.nn\.modules\.container\.Sequential'"),
        ({"epoch": 1, "state_dict": module.state_dict()}, "'state_dict' is a OrderedDict"),
        (None, "TorchScript"),
    ):
        if value is None:
            torch.jit.save(torch.jit.script(module), str(path))
        else:
            torch.save(value, path, _use_new_zipfile_serialization=zipped)
        with pytest.raises(CheckpointError, match=said):
            reader.read_header(path)
