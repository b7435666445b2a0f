"""`mlxbert mine`: its file."""

import json
from pathlib import Path
from typing import Any
from unittest import mock

import pytest

from mlxbert.train import mine
from tests.helpers.program import call

PAIRS = [("the cat", "a cat"), ("the dog", "a dog"), ("it rains", "rain falls"), ("she runs", "a run")]


@pytest.fixture
def arguments(tmp_path: Path, unit_folder: Path) -> list[str]:
    pairs = tmp_path / "pairs.jsonl"
    pairs.write_text("".join(json.dumps({"anchor": a, "positive": b}) + "\n" for a, b in PAIRS))
    where = ["--model", str(unit_folder), "--output", str(tmp_path / "hard.jsonl")]
    return ["mine", str(pairs), *where, "--margin=-1", "--negatives", "1"]


def test_a_file_that_appears_meanwhile_is_kept(tmp_path: Path, arguments: list[str]) -> None:
    target, real = tmp_path / "hard.jsonl", mine.mine

    def slow(*given: Any, **options: Any) -> Any:
        found = real(*given, **options)
        target.write_text("of another program")
        return found

    with mock.patch.object(mine, "mine", slow):
        call(*arguments).fails(2, "exists")
        assert target.read_text() == "of another program"
        assert sorted(path.name for path in tmp_path.iterdir()) == ["hard.jsonl", "pairs.jsonl"]
        assert call(*arguments, "--overwrite").status == 0
    assert len(target.read_text().splitlines()) == len(PAIRS)


def test_a_link_stays_a_link(tmp_path: Path, arguments: list[str]) -> None:
    real, link = tmp_path / "real.jsonl", tmp_path / "hard.jsonl"
    real.write_text("old")
    link.symlink_to(real)
    assert call(*arguments, "--overwrite").status == 0
    assert link.is_symlink() and len(real.read_text().splitlines()) == len(PAIRS)
