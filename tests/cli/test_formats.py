"""Output formats by themselves: what is written is what other libraries read, and parts are never held together."""

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
from mlxbert.cli.output.numpy_files import Npy
from mlxbert.cli.output.output_format import OutputFormat
from mlxbert.cli.output.resumable_file import check_output
from mlxbert.errors import ArgumentError, InputError, MlxbertError
from mlxbert.other_libraries import install_command
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
    [
        (formats.JSON_LINES, ".jsonl"),
        (formats.VECTORS, "one of .jsonl, .csv, .sqlite, .npy, .parquet"),
    ],
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
