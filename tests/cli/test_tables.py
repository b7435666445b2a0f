"""`--output` as tables: .csv and .sqlite of what is not vectors."""

import csv
import json
import sqlite3
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from mlxbert.cli.output import formats
from mlxbert.errors import ArgumentError, InputError
from mlxbert.results.result import Failure
from mlxbert.results.text_results import Classification, Label
from tests.helpers.classifiers import SENTIMENT, save_classifier
from tests.helpers.program import call
from tests.helpers.rooms import needs

LABELS = (Label("a;b", 0.75), Label('"c"', 0.25))
TABLES = pytest.mark.parametrize("ending", [".csv", ".sqlite"])


def rows(path: Path, table: str) -> list[dict[str, Any]]:
    """The rows of a table; what is not a text as text."""
    if path.suffix == ".csv":
        with path.open(newline="", encoding="utf-8") as file:
            return [*csv.DictReader(file)]
    with closing(sqlite3.connect(path)) as base:
        base.row_factory = sqlite3.Row
        found = [dict(row) for row in base.execute(f"SELECT * FROM {table} ORDER BY rowid")]
    return [{name: "" if value is None else str(value) for name, value in row.items()} for row in found]


def write(path: Path, results: list[Any], kept: list[dict[str, Any]]) -> None:
    form, part = formats.choose(path, metadata={"task": "a-task", "model": "m"}), path.with_name("part")
    with part.open("wb") as file:
        form.write_part(file, results, kept)
    with path.open("wb") as file:
        form.assemble(file, [part], len(results))


@TABLES
def test_any_text_and_any_kept_value_comes_back(ending: str, tmp_path: Path) -> None:
    texts = ["a\rb", "line\nbreak,", '"', "", "é 東京 \U0001f469\u200d", "'; DROP TABLE x; --", "=1+1"]
    kept: list[dict[str, Any]] = [{"n": one} for one in (1, 2**70, 0.1, None, {"é": [1]}, "007", [True])]
    write(tmp_path / f"x{ending}", [Classification(text, LABELS) for text in texts], kept)
    found = rows(tmp_path / f"x{ending}", "a_task")
    assert [row["text"] for row in found] == texts
    assert [row["n"] for row in found] == ["1", str(2**70), "0.1", "", '{"é": [1]}', "007", "[true]"]
    assert [list(row) for row in found] == [["n", "text", "labels", "top_label", "top_score", "error"]] * len(texts)
    assert all((row["top_label"], row["top_score"], row["error"]) == ("a;b", "0.75", "") for row in found)
    assert json.loads(found[0]["labels"]) == [{"label": "a;b", "score": 0.75}, {"label": '"c"', "score": 0.25}]


@TABLES
def test_failures_are_rows_with_an_error(ending: str, tmp_path: Path) -> None:
    failure = Failure(1, InputError("line 2: \ud800 bad"))
    write(tmp_path / f"x{ending}", [Classification("a", LABELS), failure], [{"id": 1}, {"id": 2}])
    first, second = rows(tmp_path / f"x{ending}", "a_task")
    assert (first["error"], second["id"], second["text"]) == ("", "2", "") and "line 2" in second["error"]
    write(tmp_path / f"y{ending}", [failure], [{}])
    assert [row["index"] for row in rows(tmp_path / f"y{ending}", "a_task")] == ["1"]
    write(tmp_path / f"z{ending}", [], [])
    assert rows(tmp_path / f"z{ending}", "a_task") == []


@TABLES
@pytest.mark.parametrize("name", ["top_label", "Text", "ERROR", "error"])
def test_two_columns_of_one_name_are_refused(name: str, ending: str, tmp_path: Path) -> None:
    with pytest.raises(ArgumentError, match=f"--keep {name}"):
        write(tmp_path / f"x{ending}", [Classification("a", LABELS)], [{name: 1}])


@needs("train")
@TABLES
def test_classify_adds_columns_to_the_table(ending: str, tmp_path: Path) -> None:
    source, output = tmp_path / "in.csv", tmp_path / f"x{ending}"
    source.write_bytes(b'Id,review,label,Id\n1,the cat sat,x,7\n2,,y,8\n3,he bought milk,z,"a\rb"\n')
    given = ["classify", "--input", str(source), "-m", str(save_classifier(tmp_path / "c", SENTIMENT)), "--quiet"]
    lines = call(*given).lines
    assert call(*given, "-o", str(output)).status == 0
    found = rows(output, "classify")
    new = ["labels", "top_label", "top_score", "error"]
    assert [*found[0]] == ["Id", "review", "label", "Id_2", *new]
    assert [[*row.values()][:4] for row in found][::2] == [
        ["1", "the cat sat", "x", "7"], ["3", "he bought milk", "z", "a\rb"],
    ]  # fmt: skip
    assert [row["top_label"] for row in found] == [line["labels"][0]["label"] for line in lines]
    assert call(*given, "-o", str(output), "--overwrite", "--keep", "label,Id_2").status == 0
    assert [*rows(output, "classify")[0]] == ["label", "Id_2", "text", *new]
    assert "1 of 3 texts is empty" in call(*given[:-1]).err
    source.write_text("review,Top_label\nthe cat,x\n")
    before = output.read_bytes()
    call(*given, "-o", str(output), "--overwrite").fails(2, "'Top_label'", "hint: ", "--keep")
    assert output.read_bytes() == before and not Path(f"{output}.partial").exists()


@pytest.mark.parametrize("ending", ["-wal", "-journal"])
def test_changes_of_an_earlier_database_do_not_become_those_of_a_new_one(ending: str, tmp_path: Path) -> None:
    given = ["classify", "the cat sat", "-m", str(save_classifier(tmp_path / "c", SENTIMENT)), "-o"]
    path, journal = tmp_path / "x.sqlite", tmp_path / f"x.sqlite{ending}"
    assert call(*given, str(path)).status == 0
    before = path.read_bytes()
    journal.write_bytes(b"changes")
    call(*given, str(path), "--overwrite").fails(2, journal.name, "hint: ", "remove")
    assert path.read_bytes() == before
    journal.unlink()
    assert call(*given, str(path), "--overwrite").status == 0
