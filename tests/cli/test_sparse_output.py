"""`embed` writes sparse vectors: JSON lines, SciPy's .npz, .parquet; resumed runs write the same bytes."""

import itertools
import zipfile
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from mlxbert.cli.output.numpy_files import Npz
from mlxbert.cli.output.output_format import OutputFormat
from mlxbert.cli.output.parquet import Parquet
from mlxbert.errors import InputError
from mlxbert.results.embed import SparseEmbedding
from mlxbert.results.result import Failure
from tests.helpers.program import call
from tests.helpers.sparse_folder import TEXTS, save_splade
from tests.helpers.tiny import CONFIG

WIDTH = 50
ROWS: list[dict[int, float]] = [{3: 0.5, 7: 1.25}, {}, {0: 2.0}, {49: 0.125, 1: 0.25, 2: 3.0}]


def _results() -> list[Any]:
    results: list[Any] = [
        SparseEmbedding(
            f"text {number}", np.array(sorted(row), np.int32), np.array([row[i] for i in sorted(row)], np.float32),
            tuple(f"token {i}" for i in sorted(row)), 5,
        )
        for number, row in enumerate(ROWS)
    ]  # fmt: skip
    return [*results[:2], Failure(2, InputError("unusable")), *results[2:]]


def _write(format: OutputFormat, path: Path, *cuts: int) -> bytes:
    results, parts = _results(), []
    for number, (start, end) in enumerate(zip((0, *cuts), (*cuts, len(results)), strict=True)):
        part = path.with_name(f"{number}{format.part_ending}")
        with part.open("wb") as file:
            format.write_part(file, results[start:end], [{}] * (end - start))
        parts.append(part)
    with path.open("wb") as file:
        format.assemble(file, parts, len(results))
    return path.read_bytes()


def test_npz_is_a_matrix_of_scipy(tmp_path: Path) -> None:
    path = tmp_path / "out.npz"
    whole = _write(Npz(WIDTH, kind="sparse"), path)
    with np.load(path, allow_pickle=False) as arrays:
        assert {*arrays.files} == {"indices", "indptr", "format", "shape", "data"}
        assert arrays["format"].item() == b"csr" and arrays["shape"].tolist() == [5, WIDTH]
        ends, ids, values = arrays["indptr"], arrays["indices"], arrays["data"]
    rows = [dict(zip(ids[a:b].tolist(), values[a:b].tolist(), strict=True)) for a, b in itertools.pairwise(ends)]
    assert rows == [*ROWS[:2], {}, *ROWS[2:]]
    assert _write(Npz(WIDTH, kind="sparse"), path, 1, 4) == whole  # whatever the parts
    assert all(member.date_time == (1980, 1, 1, 0, 0, 0) for member in zipfile.ZipFile(path).infolist())


@pytest.mark.slow
def test_scipy_opens_the_npz(tmp_path: Path) -> None:
    sparse = pytest.importorskip("scipy.sparse")
    _write(Npz(WIDTH, kind="sparse"), tmp_path / "out.npz", 2)
    matrix = sparse.load_npz(tmp_path / "out.npz")
    assert matrix.shape == (5, WIDTH) and matrix.nnz == 6 and matrix[4, 2] == 3.0


def test_a_damaged_part_is_an_error(tmp_path: Path) -> None:
    format, part = Npz(WIDTH, kind="sparse"), tmp_path / "0.rows"
    with part.open("wb") as file:
        format.write_part(file, _results(), [{}] * 5)
    part.write_bytes(part.read_bytes()[:-1])
    with (tmp_path / "out.npz").open("wb") as file, pytest.raises(OSError, match="damaged"):
        format.assemble(file, [part], 5)


def test_parquet_has_ids_and_values(tmp_path: Path) -> None:
    parquet = pytest.importorskip("pyarrow.parquet")
    _write(Parquet(WIDTH, {}, kind="sparse"), tmp_path / "out.parquet", 3)
    rows = parquet.read_table(tmp_path / "out.parquet").to_pylist()
    assert [dict(zip(row["ids"] or (), row["values"] or (), strict=True)) for row in rows] == [*ROWS[:2], {}, *ROWS[2:]]
    assert rows[2]["error"] == "unusable" and rows[2]["ids"] is None


def test_the_matrix_of_the_command_is_as_wide_as_the_vocabulary(tmp_path: Path) -> None:
    folder, path = save_splade(tmp_path / "m"), tmp_path / "out.npz"
    assert call("embed", *TEXTS[:3], "--model", str(folder), "--output", str(path)).status == 0
    with np.load(path) as arrays:
        assert arrays["shape"].tolist() == [3, CONFIG["vocab_size"]] and len(arrays["data"])
