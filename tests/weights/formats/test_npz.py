"""NumPy archives: what MLX and NumPy write is read bit by bit; archives that no tool writes are refused in words."""

import functools
import struct
import zipfile
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from mlxbert.errors import CheckpointError
from mlxbert.machine.device import mx
from mlxbert.weights.build import build_network
from mlxbert.weights.checkpoint import open_checkpoint
from mlxbert.weights.formats import npz
from tests.helpers.cases import together
from tests.helpers.tiny import random_network, save, tensors_of, tiny_config

ODD = np.arange(6, dtype=np.float32).reshape(2, 3)


def read(folder: Path) -> dict[str, mx.array]:
    headers = npz.read_headers(folder)
    assert headers is not None
    ((path, header),) = headers.items()
    found = npz.load_arrays(path, header)
    assert {name: array.shape for name, array in found.items()} == {n: i.shape for n, i in header.tensors.items()}
    return dict(found)


def npy(descr: object = "<f4", shape: object = (2, 3), data: bytes = ODD.tobytes(), order: bool = False) -> bytes:
    header = f"{{'descr': {descr!r}, 'fortran_order': {order}, 'shape': {shape!r}}}".encode()
    return b"\x93NUMPY\x01\x00" + struct.pack("<H", len(header)) + header + data


def archive(folder: Path, members: dict[str, bytes], method: int = zipfile.ZIP_STORED) -> Path:
    with zipfile.ZipFile(folder / "weights.npz", "w", method) as file:
        for name, data in members.items():
            file.writestr(name, data)
    return folder


def refusal(folder: Path) -> str:
    with pytest.raises(CheckpointError) as caught:
        read(folder)
    assert caught.value.message.startswith(str(folder))
    return caught.value.message


@pytest.mark.parametrize("write", [mx.savez, mx.savez_compressed])
def test_what_mlx_writes_is_read_bit_by_bit(write: Any, tmp_path: Path) -> None:
    mx.random.seed(1)
    arrays = {
        "a.weight": mx.random.normal((3, 5)), "b": mx.random.normal((4, 2, 3)).astype(mx.bfloat16),
        "c": mx.random.normal((7,)).astype(mx.float16), "d": mx.array([True, False]), "f": mx.array(2.5),
        "e": mx.array([2**40, -1], dtype=mx.int64), "g": mx.zeros((0, 4)), "h": mx.random.normal((3, 5)).T,
    }  # fmt: skip
    write(str(tmp_path / "model.npz"), **arrays)
    found = read(tmp_path)
    assert found.keys() == arrays.keys()
    for name, array in arrays.items():
        assert found[name].dtype == array.dtype and mx.array_equal(found[name], array).item(), name


def test_what_numpy_writes_is_read_whatever_its_order(tmp_path: Path) -> None:
    big = ODD.astype(">f4")
    np.savez_compressed(tmp_path / "a.npz", c=ODD, f=np.asfortranarray(ODD), b=big, bf=np.asfortranarray(big))
    found = read(tmp_path)
    assert len(found) == 4
    assert all(array.dtype == mx.float32 and np.array_equal(np.array(array), ODD) for array in found.values())


def test_a_folder_has_one_archive_or_none(tmp_path: Path) -> None:
    assert npz.read_headers(tmp_path) is None
    np.savez(tmp_path / "a.npz", a=ODD)
    np.savez(tmp_path / "b.npz", a=ODD)
    assert "2 NumPy archives (a.npz, b.npz), expected one" in refusal(tmp_path)


class _Trap:
    def __init__(self, path: Path) -> None:
        self.path = path

    def __reduce__(self) -> tuple[Any, ...]:
        return Path.write_text, (self.path, "executed")


def test_pickled_objects_are_refused_and_not_executed(tmp_path: Path) -> None:
    np.savez(tmp_path / "a.npz", a=np.array([_Trap(tmp_path / "trap")], dtype=object))
    assert "Python objects" in refusal(tmp_path)
    assert not (tmp_path / "trap").exists()
    with np.load(tmp_path / "a.npz", allow_pickle=True) as unsafe:
        unsafe["a"]
    assert (tmp_path / "trap").exists()  # it was a trap


@together(
    ("member", "said"),
    [
        *((npy(data=bytes(20)), "has 20 bytes, expected 24"), (npy(data=bytes(28)), "has 28 bytes, expected 24")),
        (npy(shape=(2**31 - 1, 2**31 - 1)), "expected 18446744056529682436"),
        *((npy(shape=(2**31, 0), data=b""), "has shape"), (npy(shape=(-2, -3)), "has shape")),
        *((npy(shape="x"), "damaged header"), (npy(descr="<c8"), "has dtype complex64")),
        *((npy(descr="<U1"), "has dtype <U1"), (npy(descr=[("a", "<f2")]), "has dtype")),
        *((npy(descr=("<f4", (2,))), "has dtype"), (npy(descr="|O"), "Python objects")),
        (b"\x93NUMPY\x02\x00\x00\x00\x00\x40" + b" " * 2**20, "1073741824 bytes, expected at most 1024"),
        (npy(shape=(0, *[1] * 400)), "expected at most 1024"),
        *(
            (header, "damaged header")
            for header in (
                b"\x93NUMPY\x09\x00" + bytes(20), b"\x93NUMPY\x01\x00\xff\xff" + b"(" * 65535, b"\x93NUMPY\x02\x00\x80",
                b"\x93NUMPY\x01\x00\x88\x13" + b"(" * 5000, b"", b"garbage",
            )
        ),
    ],
)  # fmt: skip
def test_members_that_are_no_arrays_of_numbers_are_refused(member: bytes, said: str, tmp_path: Path) -> None:
    assert said in refusal(archive(tmp_path, {"a.npy": member}))


def test_doubles_are_listed_and_not_computed_with(tmp_path: Path) -> None:
    np.savez(tmp_path / "a.npz", a=ODD.astype(np.float64))
    headers = npz.read_headers(tmp_path) or {}
    assert headers[tmp_path / "a.npz"].tensors["a"].dtype == "F64" and "F64" in refusal(tmp_path)


def test_a_directory_of_more_than_a_model_has_is_not_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """An entry of it takes ten times its length as an object of zipfile."""
    end = archive(tmp_path, {"a.npy": npy()}) / "weights.npz"
    monkeypatch.setattr(zipfile, "ZipFile", None)
    entries = b"PK\1\2".ljust(47, b"\0") * 100_000
    end.write_bytes(entries + struct.pack("<4s4H2LH", b"PK\5\6", 0, 0, 9, 9, len(entries), 0, 0))
    assert "4700000 bytes, expected at most 4194304" in refusal(tmp_path)


def test_members_that_are_there_twice_or_lie_over_each_other_are_refused(tmp_path: Path) -> None:
    with pytest.warns(UserWarning, match="Duplicate"), zipfile.ZipFile(tmp_path / "weights.npz", "w") as file:
        file.writestr("a.npy", npy())
        file.writestr("a.npy", npy())
    assert "appears twice" in refusal(tmp_path)
    with zipfile.ZipFile(tmp_path / "weights.npz", "w") as file:
        file.writestr("a.npy", npy())
        file.filelist.append(again := zipfile.ZipInfo("b.npy"))
        for fact in ("CRC", "file_size", "compress_size", "header_offset"):
            setattr(again, fact, getattr(file.filelist[0], fact))
    assert "overlaps another" in refusal(tmp_path)


def test_members_that_are_encrypted_oddly_compressed_or_named_are_refused(tmp_path: Path) -> None:
    for name in ("a.txt", "../a.npy", "b/../a.npy", "/a.npy", "a"):
        assert repr(name) in refusal(archive(tmp_path, {name: npy()}))
    data = (archive(tmp_path, {"a.npy": npy()}) / "weights.npz").read_bytes()
    flags = data.index(b"PK\x01\x02") + 8
    (tmp_path / "weights.npz").write_bytes(data[:flags] + b"\x01" + data[flags + 1 :])
    assert "is encrypted" in refusal(tmp_path)
    assert "is compressed by method 14" in refusal(archive(tmp_path, {"a.npy": npy()}, zipfile.ZIP_LZMA))


def test_a_member_that_unpacks_to_more_or_less_than_it_says_is_refused(tmp_path: Path) -> None:
    """Or to far more than the file is long."""
    data = np.random.default_rng(0).integers(0, 4, 2400).astype(np.uint8).tobytes()
    for declared in (1200, 4800):
        header = npy(shape=(declared // 4,), data=b"")
        archive(tmp_path, {"a.npy": header + data}, zipfile.ZIP_DEFLATED)
        whole = bytearray((tmp_path / "weights.npz").read_bytes())
        for start, place in ((0, 22), (whole.index(b"PK\x01\x02"), 24)):
            struct.pack_into("<I", whole, start + place, len(header) + declared)
        (tmp_path / "weights.npz").write_bytes(whole)
        assert "a" in refusal(tmp_path)
    archive(tmp_path, {"a.npy": npy(shape=(1000, 1000), data=bytes(4_000_000))}, zipfile.ZIP_DEFLATED)
    assert "4000073 unpacked bytes, expected at most 400700" in refusal(tmp_path)


def test_an_empty_or_truncated_file_is_refused(tmp_path: Path) -> None:
    whole = (archive(tmp_path, {"a.npy": npy()}) / "weights.npz").read_bytes()
    for size in range(0, len(whole), 7):
        (tmp_path / "weights.npz").write_bytes(whole[:size])
        assert "damaged" in refusal(tmp_path)


def test_a_wrong_checksum_is_found(tmp_path: Path) -> None:
    long = npy(shape=(25000,), data=bytes(100_000))  # the end is not reached when headers are read
    whole = bytearray((archive(tmp_path, {"a.npy": long}) / "weights.npz").read_bytes())
    whole[50_000] ^= 1
    (tmp_path / "weights.npz").write_bytes(whole)
    assert npz.read_headers(tmp_path) is not None
    assert "Bad CRC-32" in refusal(tmp_path)


# As https://github.com/ml-explore/mlx-examples/blob/main/bert/convert.py has them, in this order.
_MLX = {
    ".layer.": ".layers.", ".self.key.": ".key_proj.", ".self.query.": ".query_proj.", ".self.value.": ".value_proj.",
    ".attention.output.dense.": ".attention.out_proj.", ".attention.output.LayerNorm.": ".ln1.",
    ".output.LayerNorm.": ".ln2.", ".intermediate.dense.": ".linear1.", ".output.dense.": ".linear2.",
    ".LayerNorm.": ".norm.", "pooler.dense.": "pooler.",
}  # fmt: skip


def test_names_of_mlx_tools_are_those_of_the_same_tensors(tmp_path: Path) -> None:
    tensors = tensors_of(random_network(tiny_config(), ()))
    names = {name: functools.reduce(lambda name, pair: name.replace(*pair), _MLX.items(), name) for name in tensors}
    assert not {name for name in tensors if ".layer." in name} & {*names.values()}
    checkpoint = open_checkpoint(save(tmp_path / "mlx", {names[name]: array for name, array in tensors.items()}))
    assert {**checkpoint.names} == names and "pooler" in checkpoint.parts
    for name, array in tensors_of(build_network(checkpoint, checkpoint.parts, mx.float32)).items():
        assert mx.array_equal(array, tensors[name]).item(), name
