"""Headers of safetensors files: a sound one is read, a damaged one is refused in words, whatever the damage."""

import json
import struct
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
    raw = header if isinstance(header, bytes) else json.dumps(header).encode()
    path.unlink(missing_ok=True)  # a file that is overwritten is flushed to the disk, which takes long
    path.write_bytes(struct.pack("<Q", len(raw)) + raw + data)
    return path


def changed(name: str, **values: object) -> dict[str, Any]:
    return ENTRIES | {name: ENTRIES[name] | values}


@pytest.fixture
def whole(tmp_path: Path) -> Path:
    mx.save_safetensors(str(tmp_path / "x.safetensors"), ARRAYS, {"format": "pt"})
    return tmp_path / "x.safetensors"


def test_a_sound_header_is_read(whole: Path) -> None:
    header = read_header(whole)
    assert header.metadata == {"format": "pt"}
    named = {"a": ("F32", (2, 3)), "b": ("F16", (4,)), "c": ("F32", (0, 5))}
    assert {name: (info.dtype, info.shape) for name, info in header.tensors.items()} == named
    found = load_arrays(whole, header)
    assert found.keys() == ARRAYS.keys()
    assert all(mx.array_equal(found[name], array).item() for name, array in ARRAYS.items())


def test_a_header_written_by_hand_is_read(tmp_path: Path) -> None:
    for header in (ENTRIES, ENTRIES | {"__metadata__": None}, dict(reversed(ENTRIES.items()))):
        found = read_header(write(tmp_path / "x", header))
        assert found.tensors.keys() == {"a", "b"} and found.metadata == {}


def test_a_truncated_file_is_refused(whole: Path) -> None:
    content = whole.read_bytes()
    for part in range(40):
        whole.unlink()
        whole.write_bytes(content[: len(content) * part // 40])
        with pytest.raises(CheckpointError, match=r"x\.safetensors: .* (truncated|damaged)"):
            read_header(whole)


@together("length", [0, 1, 200, 2**31, 100_000_001, 2**63, 2**64 - 1])
def test_an_absurd_length_of_the_header_is_refused(tmp_path: Path, length: int) -> None:
    (tmp_path / "x").write_bytes(struct.pack("<Q", length) + b'{"a": 1}' + bytes(100))
    with pytest.raises(CheckpointError, match="truncated or not a safetensors file"):
        read_header(tmp_path / "x")


@together(
    ("header", "said"),
    [
        *(
            (header, "damaged header")
            for header in (
                b"no json", b"\xff\xfe{}", b"{" * 5000, b"[" * 100_000, b'{"a": ' + b"9" * 5000 + b"}", b"  ", b"{}}",
            )
        ),
        ([], "is a list, expected a JSON object"),
        ({"a": 5}, "'a' has no valid dtype, shape and data_offsets"),
        ({"a": {"dtype": "F32"}}, "'a' has no valid dtype"),
        *(
            (changed("b", **{key: value}), "'b' has no valid dtype")
            for key, value in (
                ("data_offsets", [24]), ("data_offsets", [24.0, 32.0]), ("data_offsets", ["24", "32"]), ("shape", "4"),
            )
        ),
        (changed("b", data_offsets=[20, 28]), "'b' starts at byte 20, expected 24"),
        (changed("b", data_offsets=[25, 33]), "'b' is at bytes 25 to 33 of 32"),
        (changed("b", data_offsets=[32, 24]), "'b' is at bytes 32 to 24"),
        (changed("a", data_offsets=[-24, 0]), "'a' is at bytes -24 to 0"),
        (changed("b", data_offsets=[24, 30]), "'b' of F16 [4] has 6 bytes"),
        (changed("b", shape=[3], data_offsets=[24, 30]), "2 bytes follow the last tensor"),
        (changed("a", shape=[2, 2], data_offsets=[0, 16]), "'b' starts at byte 24, expected 16"),
        *((changed("b", dtype=dtype), f"'b' has dtype '{dtype}'") for dtype in ("F12", "f16")),
        *(
            (changed("b", shape=shape), f"'b' has the invalid shape {shape}")
            for shape in ([-4], [-2, -2], [True, 4], [4.0], [2**62, 4])
        ),
        (changed("a", shape=[0, 2**31], data_offsets=[0, 0]), "has the invalid shape [0, 2147483648]"),
        ({}, "32 bytes follow the last tensor"),
        *(
            (ENTRIES | {"__metadata__": value}, "__metadata__ is not an object of strings")
            for value in ({"format": 5}, "pt")
        ),
    ],
)  # fmt: skip
def test_a_damaged_header_is_refused_in_words(tmp_path: Path, header: object, said: str) -> None:
    with pytest.raises(CheckpointError) as caught:
        read_header(write(tmp_path / "x.safetensors", header))
    assert said in str(caught.value) and "x.safetensors" in str(caught.value)


def test_a_file_that_cannot_be_read_is_refused(tmp_path: Path) -> None:
    for path in (tmp_path / "nothing", tmp_path):
        with pytest.raises(CheckpointError, match="cannot be read"):
            read_header(path)
    (tmp_path / "pointer").write_text("version https://git-lfs.github.com/spec/v1\noid sha256:0\nsize 4404\n")
    with pytest.raises(CheckpointError, match="Git LFS pointer") as caught:
        read_header(tmp_path / "pointer")
    assert "git lfs pull" in str(caught.value.hint)


def test_a_single_file_is_preferred_to_shards(tmp_path: Path) -> None:
    assert find_files(tmp_path) == []
    write(tmp_path / "x", ENTRIES)
    index = {"weight_map": {"b": "x", "a": "x"}}
    (tmp_path / "model.safetensors.index.json").write_text(json.dumps(index), encoding="utf-8")
    assert find_files(tmp_path) == [tmp_path / "x"]
    write(tmp_path / "model.safetensors", ENTRIES)
    assert find_files(tmp_path) == [tmp_path / "model.safetensors"]
