"""Jobs without Ray: which parts there are, which are missing, and what is refused. Parts are computed here."""

import json
import os
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import mlxbert
from mlxbert.errors import ArgumentError, ChangedError, InputError, MlxbertError
from mlxbert.readers.parsing import ReadOptions
from mlxbert.scale.job import MANIFEST, Job, JobPart, PartCounts, PartWriter, PlannedFile, PlannedJob, plan, read_part
from mlxbert.scale.storage import find
from mlxbert.weights.model_source import ModelRef
from tests.helpers.cases import together

pa = pytest.importorskip("pyarrow")
pq = pytest.importorskip("pyarrow.parquet")
TEXTS = [f"w{number} the cat sat on the mat"[: 5 + number % 20] for number in range(50)]


@pytest.fixture
def source(tmp_path: Path) -> Path:
    """A folder with two files of 30 and 20 rows, in row groups of 7; row 33 has no text."""
    folder = tmp_path / "in"
    folder.mkdir()
    texts = [*TEXTS[:33], None, *TEXTS[34:]]
    for number, (first, last) in enumerate([(0, 30), (30, 50)]):
        table = pa.table({"id": [*range(first, last)], "text": texts[first:last], "more": ["x"] * (last - first)})
        pq.write_table(table, folder / f"{number}.parquet", row_group_size=7)
    return folder


Plan = Callable[..., PlannedJob]


@pytest.fixture
def planned(tiny_folder: Path, tmp_path: Path, source: Path) -> Plan:
    def make(rows: int = 8, keep: tuple[str, ...] = ("id",), sources: Any = (source,), **changes: Any) -> PlannedJob:
        model, out = ModelRef(tiny_folder, dtype="float32"), str(tmp_path / "out")
        job = replace(Job("embed", model, {}, {"text": "text"}, (), out, False), **changes)
        return PlannedJob(job, [*map(str, sources)], ReadOptions((*job.texts.values(),), keep=keep), rows)

    return make


def compute(job: PlannedJob, parts: list[JobPart]) -> None:
    writer = PartWriter(job.job)
    for part in parts:
        writer.write(part)


def test_parts_cover_each_row_once_and_their_names_sort_like_rows() -> None:
    files = [PlannedFile("a", 1, 0, 25), PlannedFile("b", 1, 0, 0), PlannedFile("c", 1, 0, 10)]
    parts = plan(files, 10)
    assert [(part.file, part.first, part.rows) for part in parts] == [
        ("a", 0, 10), ("a", 10, 10), ("a", 20, 5), ("c", 0, 10)
    ]  # fmt: skip
    many = plan([PlannedFile("a", 1, 0, 1200)], 1)
    assert sorted(part.name for part in many) == [part.name for part in many]


@together(("first", "rows"), [(0, 30), (0, 1), (6, 2), (7, 7), (13, 15), (29, 1)])
def test_a_part_has_its_rows_wherever_row_groups_end(source: Path, first: int, rows: int) -> None:
    file = source / "0.parquet"
    table = read_part(JobPart(0, str(file), file.stat().st_size, first, rows), ["text", "id"])
    assert table["id"].to_pylist() == [*range(first, first + rows)] and table.schema.names == ["text", "id"]


def test_the_output_has_each_row_once_with_vector_or_error(planned: Plan, tiny_folder: Path, tmp_path: Path) -> None:
    missing = (job := planned()).begin(overwrite=False)
    assert [part.rows for part in missing] == [8, 8, 8, 6, 8, 8, 4]
    assert json.loads((tmp_path / "out" / MANIFEST).read_text())["complete"] is False
    compute(job, missing)
    assert job.finish() == PartCounts(50, 1, 0)
    assert json.loads((tmp_path / "out" / MANIFEST).read_text())["complete"] is True
    rows: list[dict[str, Any]] = pq.read_table(tmp_path / "out").to_pylist()
    assert [row["id"] for row in rows] == [*range(50)] and next(iter(rows[0])) == "text"
    assert [row["id"] for row in rows if row["error"] is not None] == [33]
    assert "1.parquet" in rows[33]["error"] and "row 4" in rows[33]["error"]
    expected = mlxbert.embed(mlxbert.load(tiny_folder, dtype="float32"), TEXTS)
    good = [row["id"] for row in rows if row["id"] != 33]
    assert np.abs(np.array([rows[number]["embedding"] for number in good]) - expected[good]).max() <= 1e-6


def test_a_resumed_job_computes_only_parts_that_are_missing_or_damaged(planned: Plan, tmp_path: Path) -> None:
    job, out = planned(), tmp_path / "out"
    parts = job.begin(overwrite=False)
    compute(job, parts[:4])
    times = {part.name: (out / part.name).stat().st_mtime_ns for part in parts[:4]}
    (out / parts[1].name).write_bytes((out / parts[1].name).read_bytes()[:-20])
    (out / f"{parts[5].name}.123.unfinished").write_bytes(b"of a process that was killed")
    again = planned()
    missing = again.begin(overwrite=False)
    assert [part.number for part in missing] == [1, 4, 5, 6]
    assert not [*out.glob("*.unfinished")]
    compute(again, missing)
    assert again.finish().rows == 50
    assert all((out / name).stat().st_mtime_ns == time for name, time in times.items() if name != parts[1].name)


def test_a_part_of_another_job_does_not_count(planned: Plan, tmp_path: Path) -> None:
    parts = (job := planned()).begin(overwrite=False)
    compute(job, parts[:1])
    other = planned(output=str(tmp_path / "other"), options={"normalize": True})
    compute(other, other.begin(overwrite=False)[:2])
    (tmp_path / "other" / parts[1].name).rename(tmp_path / "out" / parts[1].name)
    assert [part.number for part in planned().begin(overwrite=False)] == [1, 2, 3, 4, 5, 6]


def test_a_complete_job_is_kept_unless_it_lost_a_part_or_is_overwritten(planned: Plan, tmp_path: Path) -> None:
    compute(job := planned(), job.begin(overwrite=False))
    job.finish()
    with pytest.raises(ArgumentError, match="complete"):
        planned().begin(overwrite=False)
    (tmp_path / "out" / job.parts[2].name).unlink()
    assert planned().begin(overwrite=False) == [job.parts[2]]
    assert json.loads((tmp_path / "out" / MANIFEST).read_text())["complete"] is False
    with pytest.raises(MlxbertError, match="part-00000002"):
        job.finish()
    compute(job, [job.parts[2]])
    job.finish()
    assert len(planned().begin(overwrite=True)) == 7


@pytest.mark.parametrize(("changes", "name"), [
    ({"rows": 9}, "part rows"), ({"options": {"normalize": True}}, "options"), ({"strict": True}, "options"),
    ({"keep": ("more",)}, "columns"),
], ids=str)  # fmt: skip
def test_another_job_does_not_go_on_in_the_same_folder(planned: Plan, changes: dict[str, Any], name: str) -> None:
    compute(job := planned(), job.begin(overwrite=False)[:1])
    with pytest.raises(ArgumentError, match=name):
        planned(**changes).begin(overwrite=False)
    assert len(planned(**changes).begin(overwrite=True)) >= 6
    with pytest.raises(ArgumentError, match=name):
        planned().begin(overwrite=False)


def test_a_changed_input_is_another_job(planned: Plan, source: Path) -> None:
    parts = (job := planned()).begin(overwrite=False)
    table = pq.read_table(source / "0.parquet")
    pq.write_table(table.slice(1), source / "0.parquet")
    with pytest.raises(ArgumentError, match="input"):
        planned().begin(overwrite=False)
    with pytest.raises(ChangedError):
        compute(job, parts[:1])


def test_machines_with_another_model_or_disk_compute_nothing(planned: Plan, tiny_folder: Path, tmp_path: Path) -> None:
    job = planned()
    job.begin(overwrite=False)
    os.utime(tiny_folder / "model.safetensors", (0, 0))  # a copy on another machine
    PartWriter(job.job)
    with pytest.raises(MlxbertError, match="other files of the model"):
        PartWriter(replace(job.job, fingerprint="0" * 64))
    with pytest.raises(MlxbertError, match="does not see"):
        PartWriter(replace(job.job, output=str(tmp_path / "elsewhere")))


def test_an_input_may_have_no_rows_and_a_strict_job_ends_at_one_that_fails(planned: Plan, tmp_path: Path) -> None:
    pq.write_table(pa.table({"text": pa.array([], pa.string())}), tmp_path / "empty.parquet")
    job = planned(sources=[tmp_path / "empty.parquet"], keep=(), output=str(tmp_path / "none"))
    assert job.begin(overwrite=False) == [] and job.finish() == PartCounts(0, 0, 0)
    parts = (job := planned(strict=True)).begin(overwrite=False)
    with pytest.raises(InputError, match="row 4"):
        compute(job, parts)
    assert len([*(tmp_path / "out").glob("part-*")]) == 4


def test_hostile_inputs(planned: Plan, source: Path, tmp_path: Path) -> None:
    for sources, message in [
        ([tmp_path / "nowhere"], "no .parquet file"),
        ([source / "*.csv"], "no .parquet file"),
        ([source, source / "0.parquet"], "already an input"),
        (["s4://bucket/x"], "s4://bucket"),
    ]:
        with pytest.raises(MlxbertError, match=message):
            planned(sources=sources)
    wrong: list[tuple[dict[str, Any], str]] = [
        ({"texts": {"text": "body"}}, "'body'"), ({"keep": ("nothing",)}, "'nothing'"),
        ({"texts": {"text": "id"}, "keep": ()}, "int64"),
    ]  # fmt: skip
    for given, said in wrong:
        with pytest.raises(InputError, match=said):
            planned(**given)
    pq.write_table(pa.table({"text": ["cat"], "tokens": [1]}), source.parent / "one.parquet")
    with pytest.raises(ArgumentError, match="tokens"):  # the name of a result
        planned(sources=[source.parent / "one.parquet"], keep=("tokens",))
    (source / "2.parquet").write_bytes(b"PAR1 damaged PAR1")
    with pytest.raises(InputError, match=r"2\.parquet"):
        planned()


def test_files_must_have_the_same_columns_but_for_null(planned: Plan, source: Path) -> None:
    never = pa.schema([pa.field("id", pa.int64(), nullable=False), pa.field("text", pa.string(), nullable=False)])
    pq.write_table(pa.table({"id": [50], "text": ["cat"]}, schema=never), source / "2.parquet")
    compute(job := planned(), job.begin(overwrite=False))
    assert job.finish().rows == 51
    pq.write_table(pa.table({"id": ["a"], "text": ["cat"]}), source / "2.parquet")
    with pytest.raises(InputError, match=r"2\.parquet.*string.*int64"):
        planned()


def test_the_output_is_no_input_and_holds_no_other_file_nor_damage(planned: Plan, source: Path, tmp_path: Path) -> None:
    for sources, output in [([source], source), ([tmp_path / "*" / "*.parquet"], tmp_path / "out")]:
        with pytest.raises(ArgumentError, match="also an input"):
            planned(sources=sources, output=str(output))
    (tmp_path / "out").mkdir()
    (tmp_path / "out" / "notes.txt").write_text("precious")
    with pytest.raises(ArgumentError, match=r"notes\.txt"):
        planned().begin(overwrite=True)
    assert (tmp_path / "out" / "notes.txt").read_text() == "precious"
    (tmp_path / "out" / "notes.txt").unlink()
    (tmp_path / "out" / MANIFEST).write_text("{")
    with pytest.raises(MlxbertError, match="damaged"):
        planned().begin(overwrite=False)


def test_a_pattern_and_a_folder_find_files_at_their_own_depth(source: Path, tmp_path: Path) -> None:
    deep = source / "deep"
    deep.mkdir()
    for path in (deep / "3.parquet", source / "_hidden.parquet", source / ".tmp.parquet"):
        path.write_bytes((source / "0.parquet").read_bytes())

    def names(*sources: Path) -> list[str]:
        return [file.path.rpartition("/")[2] for file, _ in find([*map(str, sources)])]

    assert names(source) == ["0.parquet", "1.parquet"]
    assert names(tmp_path / "i*" / "[1-9].parquet") == ["1.parquet"]
    assert names(tmp_path / "*" / "d*" / "*.parquet", source / "1.parquet") == ["3.parquet", "1.parquet"]
