"""What an output must not cost: the user's files, another program's folder, the input, parts of another run."""

import json
import os
import shutil
from pathlib import Path
from typing import Any

import pytest

from mlxbert.cli.output.resumable_file import PART, FileOutput, check_output
from mlxbert.cli.output.written_paths import check_written
from mlxbert.errors import ArgumentError
from tests.cli.test_resume import FILE, finish, killed, result


def test_a_file_that_came_while_the_run_went_on_is_not_replaced(tmp_path: Path) -> None:
    path = tmp_path / "x.jsonl"
    with pytest.raises(ArgumentError, match="exists"), FileOutput(path, FILE, overwrite=False) as output:
        for number in range(PART):
            output.write(result(number))
        path.write_text("precious")
    assert path.read_text() == "precious"
    path.rename(tmp_path / "kept")
    assert finish(path, FILE, PART) == (PART, 0)


def test_a_folder_with_files_of_somebody_else_is_left_alone(tmp_path: Path) -> None:
    folder = tmp_path / "x.jsonl.partial"
    folder.mkdir()
    (folder / "my notes.md").write_text("mine")
    with pytest.raises(ArgumentError, match=r"x\.jsonl\.partial: contains my notes\.md"):
        finish(tmp_path / "x.jsonl", FILE, 3)
    assert (folder / "my notes.md").read_text() == "mine"
    (folder / "my notes.md").unlink()
    assert finish(tmp_path / "x.jsonl", FILE, 3) == (0, 2)
    assert [path.name for path in tmp_path.iterdir()] == ["x.jsonl"]


def test_the_input_is_no_output(tmp_path: Path) -> None:
    path = tmp_path / "io.jsonl"
    path.write_text("{}")
    (tmp_path / "link.jsonl").symlink_to(path)
    for other in (path, tmp_path / "link.jsonl"):
        with pytest.raises(ArgumentError, match=r"\.jsonl: is also an input"):
            check_output(other, True, sources=[str(path)])
    check_output(path, True, sources=[str(tmp_path / "other.jsonl")])


def test_what_is_no_ordinary_file_is_no_output(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe.jsonl")
    with pytest.raises(ArgumentError, match="is a FIFO, not a regular file") as problem:
        check_output(tmp_path / "pipe.jsonl", True)
    assert problem.value.hint == "without --output results go to stdout"
    with pytest.raises(ArgumentError) as problem:
        check_written("log_file", tmp_path / "pipe.jsonl", "file")
    assert "stderr" in (problem.value.hint or "")


def test_a_link_stays_one_and_what_it_leads_to_is_written(tmp_path: Path) -> None:
    (tmp_path / "far").mkdir()
    link, target = tmp_path / "x.jsonl", tmp_path / "far" / "real.jsonl"
    link.symlink_to(target)
    finish(link, FILE, 3)
    assert link.is_symlink() and len(target.read_text().splitlines()) == 3
    assert [path.name for path in (tmp_path / "far").iterdir()] == ["real.jsonl"]


@pytest.fixture(scope="module")
def work(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A whole file, and what is left of the same work when it is killed."""
    folder = tmp_path_factory.mktemp("work")
    finish(folder / "whole.jsonl", FILE, PART + 3)
    killed(folder / "x.jsonl", FILE)
    return folder


@pytest.mark.parametrize("counts", ["[1]", "{}", '{"bytes": 1}', '{"results": "3"}', "null", "\udcff", "{"])
def test_a_damaged_count_beside_a_part_makes_it_be_made_again(counts: str, work: Path, tmp_path: Path) -> None:
    shutil.copytree(work / "x.jsonl.partial", tmp_path / "x.jsonl.partial")
    nearby = tmp_path / "x.jsonl.partial" / "part-000000.json"
    assert json.loads(nearby.read_text())["results"] == PART
    nearby.write_bytes(counts.encode("utf-8", "surrogateescape"))
    assert finish(tmp_path / "x.jsonl", FILE, PART + 3)[0] == 0
    assert (tmp_path / "x.jsonl").read_bytes() == (work / "whole.jsonl").read_bytes()


def test_a_damaged_manifest_is_another_one(tmp_path: Path) -> None:
    killed(tmp_path / "x.jsonl", FILE)
    (tmp_path / "x.jsonl.partial" / "manifest.json").write_bytes(b"\xff\xfe")
    with pytest.raises(ArgumentError, match="unfinished work of another run"):
        finish(tmp_path / "x.jsonl", FILE, 3)


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"input": "a" * 64}, r"\(another input\)"),
        ({"model": "b" * 64, "options": {"top_k": 3}}, r"\(another model; top_k is 3, was 1\)"),
        ({"options": {"top_k": 3}}, r"\(top_k is 3, was 1\)"),
    ],
)
def test_what_another_run_does_otherwise_is_said(changes: dict[str, Any], said: str, tmp_path: Path) -> None:
    manifest = FILE | {"model": "a", "options": {"top_k": 1}}
    killed(tmp_path / "x.jsonl", manifest)
    with pytest.raises(ArgumentError, match=said):
        finish(tmp_path / "x.jsonl", manifest | changes, 3)
