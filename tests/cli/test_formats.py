"""Output formats by themselves: what is written is what other libraries read, and parts are never held together."""

import io
import itertools
import json
import sys
import tracemalloc
import zipfile
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any
from unittest import mock

import numpy as np
import pytest

from mlxbert.cli.output import formats
from mlxbert.cli.output.formats import OutputFormat
from mlxbert.cli.output.numpy_files import Npy, Npz
from mlxbert.cli.output.parquet import Parquet
from mlxbert.cli.output.resumable_file import check_output
from mlxbert.errors import ArgumentError, InputError, MlxbertError
from mlxbert.other_libraries import install_command
from mlxbert.results.embed import Embedding, SparseEmbedding
from mlxbert.results.result import Failure
from tests.helpers.program import call
from tests.helpers.sparse_folder import TEXTS as SPARSE_TEXTS, save_splade
from tests.helpers.tiny import CONFIG

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
        found[BAD] = Failure(BAD, InputError("the record has no field 'text' (fields: \ud800 é)"))
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


@pytest.mark.sampled
@pytest.mark.parametrize("ending", formats.VECTORS)
def test_parts_are_never_in_memory_together(ending: str, tmp_path: Path) -> None:
    count, rows = (30, 16) if ending in (".csv", ".sqlite") else (80, 128)  # tables are slow
    form, part = chosen(ending, width=256), tmp_path / "part"
    with part.open("wb") as file:
        some = [replace(embedding(number, 256), text="short") for number in range(rows)]
        form.write_part(file, some, [{}] * rows)
    whole = (tmp_path / "whole").open("wb") if ending == ".sqlite" else Counted()
    parts = [part] * count
    if ending == ".parquet":
        import pyarrow as pa

        before, pool = pa.default_memory_pool(), pa.proxy_memory_pool(pa.default_memory_pool())
        pa.set_memory_pool(pool)
    tracemalloc.start()
    form.assemble(whole, parts, count * rows)  # type: ignore[arg-type]
    size = whole.size if isinstance(whole, Counted) else (tmp_path / "whole").stat().st_size
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert size > count * rows * 256 * 4 and peak < size / 5
    if ending == ".parquet":
        pa.set_memory_pool(before)
        assert pool.max_memory() < size / 5


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
    [(formats.JSON_LINES, ".jsonl"), (formats.VECTORS, "one of .jsonl, .csv, .sqlite, .npy, .parquet")],
)
@pytest.mark.parametrize("name", ["x.xls", "x", ".npy", "x.npy.gz", "x.ndjson", "x.db", "x.safetensors"])
def test_an_ending_that_is_not_known_is_refused(name: str, allowed: Sequence[str], said: str, tmp_path: Path) -> None:
    for refuse in (
        lambda: formats.choose(tmp_path / name, allowed),
        lambda: check_output(tmp_path / name, False, allowed),
    ):
        with pytest.raises(ArgumentError, match=f"extension is '.*', expected {said}$"):
            refuse()


def test_an_ending_may_be_in_capitals_and_no_file_is_json_lines() -> None:
    assert isinstance(formats.choose(Path("x.NPY"), formats.VECTORS, width=3), Npy)
    assert isinstance(formats.choose(None, formats.VECTORS), formats.JsonLines)
    assert all(formats.find(Path(f"x{ending}"), formats.VECTORS).ending == ending for ending in formats.VECTORS)


def test_parquet_without_pyarrow_is_refused_at_the_start(tmp_path: Path) -> None:
    with (
        mock.patch.dict(sys.modules, {"pyarrow": None, "pyarrow.parquet": None}),
        pytest.raises(MlxbertError, match="not installed") as caught,
    ):
        check_output(tmp_path / "x.parquet", False, formats.VECTORS)
    assert caught.value.hint == install_command("parquet")
    assert not list(tmp_path.iterdir())


VOCABULARY = 50  # tokens of a sparse vector
ROWS: list[dict[int, float]] = [{3: 0.5, 7: 1.25}, {}, {0: 2.0}, {49: 0.125, 1: 0.25, 2: 3.0}]


def sparse_results() -> list[Any]:
    results: list[Any] = [
        SparseEmbedding(
            f"text {number}", np.array(sorted(row), np.int32), np.array([row[i] for i in sorted(row)], np.float32),
            tuple(f"token {i}" for i in sorted(row)), 5,
        )
        for number, row in enumerate(ROWS)
    ]  # fmt: skip
    return [*results[:2], Failure(2, InputError("unusable")), *results[2:]]


def write_sparse(form: OutputFormat, path: Path, *cuts: int) -> bytes:
    results, parts = sparse_results(), []
    for number, (start, end) in enumerate(zip((0, *cuts), (*cuts, len(results)), strict=True)):
        part = path.with_name(f"{number}{form.part_ending}")
        with part.open("wb") as file:
            form.write_part(file, results[start:end], [{}] * (end - start))
        parts.append(part)
    with path.open("wb") as file:
        form.assemble(file, parts, len(results))
    return path.read_bytes()


def test_npz_is_a_matrix_of_scipy(tmp_path: Path) -> None:
    path = tmp_path / "out.npz"
    whole = write_sparse(Npz(VOCABULARY, kind="sparse"), path)
    with np.load(path, allow_pickle=False) as arrays:
        assert {*arrays.files} == {"indices", "indptr", "format", "shape", "data"}
        assert arrays["format"].item() == b"csr" and arrays["shape"].tolist() == [5, VOCABULARY]
        ends, ids, values = arrays["indptr"], arrays["indices"], arrays["data"]
    rows = [dict(zip(ids[a:b].tolist(), values[a:b].tolist(), strict=True)) for a, b in itertools.pairwise(ends)]
    assert rows == [*ROWS[:2], {}, *ROWS[2:]]
    assert write_sparse(Npz(VOCABULARY, kind="sparse"), path, 1, 4) == whole  # whatever the parts
    assert all(member.date_time == (1980, 1, 1, 0, 0, 0) for member in zipfile.ZipFile(path).infolist())


@pytest.mark.slow
def test_scipy_opens_the_npz(tmp_path: Path) -> None:
    sparse = pytest.importorskip("scipy.sparse")
    write_sparse(Npz(VOCABULARY, kind="sparse"), tmp_path / "out.npz", 2)
    matrix = sparse.load_npz(tmp_path / "out.npz")
    assert matrix.shape == (5, VOCABULARY) and matrix.nnz == 6 and matrix[4, 2] == 3.0


def test_a_damaged_part_of_sparse_vectors_is_an_error(tmp_path: Path) -> None:
    form, part = Npz(VOCABULARY, kind="sparse"), tmp_path / "0.rows"
    with part.open("wb") as file:
        form.write_part(file, sparse_results(), [{}] * 5)
    part.write_bytes(part.read_bytes()[:-1])
    with (tmp_path / "out.npz").open("wb") as file, pytest.raises(OSError, match="damaged"):
        form.assemble(file, [part], 5)


def test_parquet_has_ids_and_values_of_sparse_vectors(tmp_path: Path) -> None:
    parquet = pytest.importorskip("pyarrow.parquet")
    write_sparse(Parquet(VOCABULARY, {}, kind="sparse"), tmp_path / "out.parquet", 3)
    rows = parquet.read_table(tmp_path / "out.parquet").to_pylist()
    assert [dict(zip(row["ids"] or (), row["values"] or (), strict=True)) for row in rows] == [*ROWS[:2], {}, *ROWS[2:]]
    assert rows[2]["error"] == "unusable" and rows[2]["ids"] is None


def test_the_matrix_of_the_command_is_as_wide_as_the_vocabulary(tmp_path: Path) -> None:
    folder, path = save_splade(tmp_path / "m"), tmp_path / "out.npz"
    assert call("embed", *SPARSE_TEXTS[:3], "--model", str(folder), "--output", str(path)).status == 0
    with np.load(path) as arrays:
        assert arrays["shape"].tolist() == [3, CONFIG["vocab_size"]] and len(arrays["data"])
