"""Output formats by themselves: what is written is what other libraries read, and parts are never held together."""

import hashlib
import io
import json
import sys
import tracemalloc
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from unittest import mock

import numpy as np
import pytest

from mlxbert.cli.output import formats
from mlxbert.cli.output.base import OutputFormat
from mlxbert.cli.output.columns import Npy
from mlxbert.cli.output.file import check_output
from mlxbert.errors import ArgumentError, InputError, MlxbertError
from mlxbert.machine.device import mx
from mlxbert.results.embed import Embedding
from mlxbert.results.result import Failure

WIDTH = 5
TEXTS = (
    "the cat", "", "Zürich, 東京", "👩‍👩‍👧 🇨🇭", "a\rb", "line\nbreak\t\x00\x07\x7f\x9b", "\u2028\ufeff", "x" * 300_000,
    '"quoted", \\', "e\u0301",
)  # fmt: skip
METADATA = {"model": "ein Modell, 模型", "options": json.dumps({"pooling": "mean", "prompt": "é"})}
BAD = 3  # which of the results failed


def embedding(number: int, width: int = WIDTH) -> Embedding:
    vector = np.random.default_rng(number).standard_normal(width).astype(np.float32)
    return Embedding(TEXTS[number % len(TEXTS)], vector, tokens=number + 2, truncated=number % 4 == 1)


def results(total: int) -> list[Embedding | Failure]:
    found: list[Embedding | Failure] = [embedding(number) for number in range(total)]
    if total > BAD:
        found[BAD] = Failure(BAD, InputError("no field 'text', the record has: \ud800 é"))
    return found


def chosen(ending: str, width: int = WIDTH) -> OutputFormat:
    if ending == ".parquet":
        pytest.importorskip("pyarrow")
    return formats.choose(Path("x" + ending), formats.VECTORS, width=width, metadata=METADATA)


def written(folder: Path, ending: str, total: int, part: int = 4) -> Path:
    """A file made of parts of a few results each."""
    folder.mkdir(exist_ok=True)
    form, all_results, parts = chosen(ending), results(total), []
    for start in range(0, total, part):
        parts.append(folder / f"part-{start}")
        with parts[-1].open("wb") as file:
            some = all_results[start : start + part]
            form.write_part(file, some, [{}] * len(some))
            assert not file.closed
    whole = folder / f"whole{ending}"
    with whole.open("wb") as file:
        form.assemble(file, parts, total)
        assert not file.closed
    return whole


def same_vectors(found: np.ndarray, total: int) -> None:
    assert found.shape == (total, WIDTH) and found.dtype == np.float32
    for row, result in zip(found, results(total), strict=True):
        if isinstance(result, Failure):
            assert np.isnan(row).all()
        else:
            assert row.tobytes() == result.embedding.tobytes()


TOTALS = pytest.mark.parametrize("total", [0, 1, 4, 11])


@TOTALS
def test_npy_is_what_numpy_reads(total: int, tmp_path: Path) -> None:
    path = written(tmp_path, ".npy", total)
    found = np.load(path, allow_pickle=False)
    assert found.flags.c_contiguous
    same_vectors(found, total)
    same_vectors(np.asarray(np.load(path, mmap_mode="r")) if total else found, total)


@TOTALS
def test_jsonl_has_an_object_for_each_result(total: int, tmp_path: Path) -> None:
    text = written(tmp_path, ".jsonl", total).read_bytes().decode("utf-8")
    lines = [json.loads(line) for line in text.split("\n")[:-1]]
    assert lines == [result.to_dict() for result in results(total)]


def read_safetensors(path: Path) -> tuple[dict[str, np.ndarray], dict[str, str]]:
    """The file by the letter of its format."""
    data = path.read_bytes()
    length = int.from_bytes(data[:8], "little")
    assert length % 8 == 0
    header = json.loads(data[8 : 8 + length])
    metadata, end, found = header.pop("__metadata__"), 8 + length, {}
    for name, tensor in header.items():
        start, stop = (8 + length + offset for offset in tensor["data_offsets"])
        assert start == end  # in the order of the header, without gaps
        dtype = {"F32": "<f4", "U8": "u1", "I32": "<i4"}[tensor["dtype"]]
        found[name], end = np.frombuffer(data[start:stop], dtype).reshape(tensor["shape"]), stop
    assert end == len(data)
    return found, metadata


@TOTALS
def test_safetensors_hold_vectors_hashes_and_tokens(total: int, tmp_path: Path) -> None:
    path = written(tmp_path, ".safetensors", total)
    found, metadata = read_safetensors(path)
    assert metadata == {"format": "mlxbert embeddings"} | METADATA
    assert {name: value.shape for name, value in found.items()} == {
        "embeddings": (total, WIDTH), "text_sha256": (total, 32), "tokens": (total,),
    }  # fmt: skip
    same_vectors(found["embeddings"], total)
    for number, result in enumerate(results(total)):
        good = isinstance(result, Embedding)
        text_hash = hashlib.sha256(result.text.encode()).digest() if isinstance(result, Embedding) else bytes(32)
        assert found["text_sha256"][number].tobytes() == text_hash
        assert found["tokens"][number] == (number + 2 if good else 0)
    theirs = mx.load(str(path))
    assert isinstance(theirs, dict)
    for name, value in found.items():
        np.testing.assert_array_equal(np.array(theirs[name]), value, strict=True)


@TOTALS
@pytest.mark.slow
def test_safetensors_are_what_their_library_reads(total: int, tmp_path: Path) -> None:
    library = pytest.importorskip("safetensors.numpy")
    path = written(tmp_path, ".safetensors", total)
    for name, value in library.load_file(path).items():
        np.testing.assert_array_equal(value, read_safetensors(path)[0][name], strict=True)


@TOTALS
def test_parquet_is_a_table_with_a_row_group_for_each_part(total: int, tmp_path: Path) -> None:
    pq = pytest.importorskip("pyarrow.parquet")
    path = written(tmp_path, ".parquet", total)
    table = pq.read_table(path)
    assert [f"{field.name}: {field.type}" for field in table.schema] == [
        "text: string", f"embedding: fixed_size_list<element: float>[{WIDTH}]",
        "tokens: int32", "truncated: bool", "error: string",
    ]  # fmt: skip
    assert pq.read_metadata(path).num_row_groups == -(-total // 4)
    assert table.schema.metadata[b"options"].decode() == METADATA["options"]
    for row, result in zip(table.to_pylist(), results(total), strict=True):
        if isinstance(result, Failure):
            assert row.pop("error") == "no field 'text', the record has: \\ud800 é"
            assert np.isnan(row.pop("embedding")).all()
            assert set(row.values()) == {None}
        else:
            assert np.array(row.pop("embedding"), np.float32).tobytes() == result.embedding.tobytes()
            assert row == {"text": result.text, "tokens": result.tokens, "truncated": result.truncated, "error": None}


@pytest.mark.parametrize("ending", formats.VECTORS)
def test_the_same_results_are_the_same_bytes(ending: str, tmp_path: Path) -> None:
    assert written(tmp_path / "a", ending, 11).read_bytes() == written(tmp_path / "b", ending, 11).read_bytes()
    if ending != ".parquet":  # whose row groups are the parts
        assert written(tmp_path / "c", ending, 11, part=2).read_bytes() == (tmp_path / f"a/whole{ending}").read_bytes()


class Counted(io.RawIOBase):
    """A file that keeps nothing."""

    def __init__(self) -> None:
        self.size = 0

    def writable(self) -> bool:
        return True

    def write(self, data: object) -> int:
        self.size += (length := memoryview(data).nbytes)  # type: ignore[arg-type]
        return length


@pytest.mark.parametrize("ending", formats.VECTORS)
def test_parts_are_never_in_memory_together(ending: str, tmp_path: Path) -> None:
    form, part = chosen(ending, width=256), tmp_path / "part"
    with part.open("wb") as file:
        some = [replace(embedding(number, 256), text="short") for number in range(128)]
        form.write_part(file, some, [{}] * len(some))
    whole, parts = Counted(), [part] * 200
    if ending == ".parquet":
        import pyarrow as pa

        before, pool = pa.default_memory_pool(), pa.proxy_memory_pool(pa.default_memory_pool())
        pa.set_memory_pool(pool)
    tracemalloc.start()
    form.assemble(whole, parts, 200 * 128)  # type: ignore[arg-type]
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert whole.size > 20_000_000 and peak < 5_000_000
    if ending == ".parquet":
        pa.set_memory_pool(before)
        assert pool.max_memory() < 5_000_000


def test_a_part_that_lost_its_end_is_not_assembled(tmp_path: Path) -> None:
    part = tmp_path / "part"
    part.write_bytes(bytes(4 * WIDTH + 3))
    with pytest.raises(OSError, match="damaged"):
        chosen(".npy").assemble(io.BytesIO(), [part], 2)


def test_errors_of_pyarrow_become_errors_of_writing(tmp_path: Path) -> None:
    part = tmp_path / "part"
    part.write_bytes(b"no Arrow file")
    with pytest.raises(OSError, match="pyarrow: "):
        chosen(".parquet").assemble(io.BytesIO(), [part], 2)


@pytest.mark.parametrize(
    ("allowed", "said"),
    [(formats.JSON_LINES, ".jsonl"), (formats.VECTORS, "one of .jsonl, .npy, .safetensors, .parquet")],
)
@pytest.mark.parametrize("name", ["x.csv", "x", ".npy", "x.npy.gz"])
def test_an_ending_that_is_not_known_is_refused(name: str, allowed: Sequence[str], said: str, tmp_path: Path) -> None:
    for refuse in (
        lambda: formats.choose(tmp_path / name, allowed),
        lambda: check_output(tmp_path / name, False, allowed),
    ):
        with pytest.raises(ArgumentError, match=f"extension '.*', expected {said}$"):
            refuse()


def test_an_ending_may_be_in_capitals_and_no_file_is_json_lines() -> None:
    assert isinstance(formats.choose(Path("x.NPY"), formats.VECTORS, width=3), Npy)
    assert isinstance(formats.choose(None, formats.VECTORS), formats.JsonLines)
    assert set(formats.VECTORS) == set(formats.FORMATS)


def test_parquet_without_pyarrow_is_refused_at_the_start(tmp_path: Path) -> None:
    with (
        mock.patch.dict(sys.modules, {"pyarrow": None, "pyarrow.parquet": None}),
        pytest.raises(MlxbertError, match="not installed") as caught,
    ):
        check_output(tmp_path / "x.parquet", False, formats.VECTORS)
    assert caught.value.hint and "mlxbert[parquet]" in caught.value.hint
    assert not list(tmp_path.iterdir())
