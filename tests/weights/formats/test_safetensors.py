"""Headers of safetensors files: a sound one is read, a damaged one is refused in words, whatever the damage."""

import json
import struct
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from mlxbert.errors import CheckpointError
from mlxbert.machine.device import mx
from mlxbert.weights.formats.safetensors import find_files, load_arrays, read_header
from tests.helpers.cases import together

ARRAYS = {"a": mx.arange(6, dtype=mx.float32).reshape(2, 3), "b": mx.ones(4, mx.float16), "c": mx.zeros((0, 5))}
ENTRIES: dict[str, Any] = {
    "a": {"dtype": "F32", "shape": [2, 3], "data_offsets": [0, 24]},
    "b": {"dtype": "F16", "shape": [4], "data_offsets": [24, 32]},
}
DATA = bytes(32)


def write(path: Path, header: object, data: bytes = DATA) -> Path:
    """A file of this header, JSON or raw bytes, and this data."""
    raw = header if isinstance(header, bytes) else json.dumps(header).encode()
    path.unlink(missing_ok=True)  # a file that is overwritten is flushed to the disk, which takes long
    path.write_bytes(struct.pack("<Q", len(raw)) + raw + data)
    return path


def changed(name: str, **values: object) -> dict[str, Any]:
    return ENTRIES | {name: ENTRIES[name] | values}


@pytest.fixture(scope="module")
def whole() -> Iterator[bytes]:
    """The bytes of a sound file."""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "x.safetensors"
        mx.save_safetensors(str(path), ARRAYS, {"format": "pt"})
        yield path.read_bytes()


def test_a_sound_header_is_read(tmp_path: Path, whole: bytes) -> None:
    path = tmp_path / "x.safetensors"
    path.write_bytes(whole)
    header = read_header(path)
    assert header.metadata == {"format": "pt"}
    assert {name: (info.dtype, info.shape) for name, info in header.tensors.items()} == {
        "a": ("F32", (2, 3)),
        "b": ("F16", (4,)),
        "c": ("F32", (0, 5)),
    }
    found = load_arrays(path, header)
    assert found.keys() == ARRAYS.keys()
    assert all(mx.array_equal(found[name], array).item() for name, array in ARRAYS.items())


@pytest.mark.parametrize("header", [ENTRIES, ENTRIES | {"__metadata__": None}, dict(reversed(ENTRIES.items()))])
def test_a_header_written_by_hand_is_read(tmp_path: Path, header: dict[str, Any]) -> None:
    path = write(tmp_path / "x", header)
    assert read_header(path).tensors.keys() == {"a", "b"} and read_header(path).metadata == {}


@together("part", range(40))
def test_a_truncated_file_is_refused(tmp_path: Path, whole: bytes, part: int) -> None:
    path = tmp_path / "x.safetensors"
    path.write_bytes(whole[: len(whole) * part // 40])
    with pytest.raises(CheckpointError, match=r"x\.safetensors: .* (truncated|damaged)"):
        read_header(path)


@pytest.mark.parametrize("length", [0, 1, 200, 2**31, 100_000_001, 2**63, 2**64 - 1])
def test_an_absurd_length_of_the_header_is_refused(tmp_path: Path, length: int) -> None:
    path = tmp_path / "x"
    path.write_bytes(struct.pack("<Q", length) + b'{"a": 1}' + bytes(100))
    with pytest.raises(CheckpointError, match="truncated or not a safetensors file"):
        read_header(path)


@pytest.mark.parametrize(
    "header", [b"no json", b"\xff\xfe{}", b"{" * 5000, b"[" * 100_000, b'{"a": ' + b"9" * 5000 + b"}", b"  ", b"{}}"]
)
def test_a_header_that_is_no_json_is_refused(tmp_path: Path, header: bytes) -> None:
    with pytest.raises(CheckpointError, match="damaged header"):
        read_header(write(tmp_path / "x", header))


@pytest.mark.parametrize(
    ("header", "said"),
    [
        ([], "is a list, expected a JSON object"),
        ({"a": 5}, "'a' has no valid dtype, shape and data_offsets"),
        ({"a": {"dtype": "F32"}}, "'a' has no valid dtype"),
        (changed("b", data_offsets=[24]), "'b' has no valid dtype"),
        (changed("b", data_offsets=[24.0, 32.0]), "'b' has no valid dtype"),
        (changed("b", data_offsets=["24", "32"]), "'b' has no valid dtype"),
        (changed("b", shape="4"), "'b' has no valid dtype"),
        (changed("b", data_offsets=[20, 28]), "'b' starts at byte 20, expected 24"),
        (changed("b", data_offsets=[25, 33]), "'b' is at bytes 25 to 33 of 32"),
        (changed("b", data_offsets=[32, 24]), "'b' is at bytes 32 to 24"),
        (changed("a", data_offsets=[-24, 0]), "'a' is at bytes -24 to 0"),
        (changed("b", data_offsets=[24, 30]), "'b' of F16 [4] has 6 bytes"),
        (changed("b", shape=[3], data_offsets=[24, 30]), "2 bytes follow the last tensor"),
        (changed("a", shape=[2, 2], data_offsets=[0, 16]), "'b' starts at byte 24, expected 16"),
        (changed("b", dtype="F12"), "'b' has dtype 'F12'"),
        (changed("b", dtype="f16"), "'b' has dtype 'f16'"),
        (changed("b", shape=[-4]), "'b' has the invalid shape [-4]"),
        (changed("b", shape=[-2, -2]), "'b' has the invalid shape [-2, -2]"),
        (changed("b", shape=[True, 4]), "'b' has the invalid shape [True, 4]"),
        (changed("b", shape=[4.0]), "'b' has the invalid shape [4.0]"),
        (changed("b", shape=[2**62, 4]), "has the invalid shape [4611686018427387904, 4]"),
        (changed("a", shape=[0, 2**31], data_offsets=[0, 0]), "has the invalid shape [0, 2147483648]"),
        ({}, "32 bytes follow the last tensor"),
        (ENTRIES | {"__metadata__": {"format": 5}}, "__metadata__ is not an object of strings"),
        (ENTRIES | {"__metadata__": "pt"}, "__metadata__ is not an object of strings"),
    ],
)
def test_a_damaged_header_is_refused_in_words(tmp_path: Path, header: object, said: str) -> None:
    with pytest.raises(CheckpointError) as caught:
        read_header(write(tmp_path / "x.safetensors", header))
    assert said in str(caught.value) and "x.safetensors" in str(caught.value)


def test_a_file_that_cannot_be_read_is_refused(tmp_path: Path) -> None:
    for path in (tmp_path / "nothing", tmp_path):
        with pytest.raises(CheckpointError, match="cannot be read"):
            read_header(path)


def test_a_single_file_is_preferred_to_shards(tmp_path: Path) -> None:
    assert find_files(tmp_path) == []
    write(tmp_path / "x", ENTRIES)
    index = {"weight_map": {"b": "x", "a": "x"}}
    (tmp_path / "model.safetensors.index.json").write_text(json.dumps(index), encoding="utf-8")
    assert find_files(tmp_path) == [tmp_path / "x"]
    write(tmp_path / "model.safetensors", ENTRIES)
    assert find_files(tmp_path) == [tmp_path / "model.safetensors"]


def test_a_pointer_of_git_lfs_is_told_from_a_damaged_file(tmp_path: Path) -> None:
    path = tmp_path / "model.safetensors"
    path.write_text("version https://git-lfs.github.com/spec/v1\noid sha256:0\nsize 440449768\n", encoding="utf-8")
    with pytest.raises(CheckpointError, match="Git LFS pointer") as caught:
        read_header(path)
    assert "git lfs pull" in str(caught.value.hint)
