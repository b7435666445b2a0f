"""`mlxbert embed --words`: a vector for each word."""

import json
import re
from pathlib import Path

import numpy as np
import pytest

import mlxbert
from mlxbert.results.embed import Words
from tests.helpers.cases import together
from tests.helpers.program import call, terminal

pytestmark = pytest.mark.usefixtures("loaded_once")

TEXTS = ["the cat sat on the mat .", "paris ! the dog", ""]


@pytest.fixture
def wanted(tiny_folder: Path) -> list[Words]:
    model = mlxbert.load(tiny_folder, dtype="float32")
    return [mlxbert.embed_words(model, text, layer=1) for text in TEXTS]


def options(folder: Path) -> list[str]:
    return ["embed", "--words", "--layer", "1", "--model", str(folder), "--dtype", "float32"]


def test_a_parquet_has_a_row_per_word(tiny_folder: Path, tmp_path: Path, wanted: list[Words]) -> None:
    records = [*({"text": text, "id": f"n{number}"} for number, text in enumerate(TEXTS)), {"id": "bad"}]
    source, path = tmp_path / "in.jsonl", tmp_path / "out.parquet"
    source.write_text("".join(json.dumps(record) + "\n" for record in records))
    given = ["--input", str(source), "--keep", "id", "--output", str(path)]
    parquet = pytest.importorskip("pyarrow.parquet")
    call(*options(tiny_folder), *given).fails(1, "1 of 4")
    rows = parquet.read_table(path).to_pylist()
    words = [(f"n{number}", word) for number, result in enumerate(wanted) for word in result.words]
    assert [row["id"] for row in rows] == [*(name for name, _ in words), "bad"] and rows[-1]["error"]
    assert parquet.ParquetFile(path).schema_arrow.metadata[b"model"] == str(tiny_folder).encode()
    for row, (_, word) in zip(rows, words, strict=False):
        assert (row["word"], row["start"], row["end"], row["tokens"]) == (word.word, word.start, word.end, word.tokens)
        assert row["error"] is None and np.abs(np.float32(row["embedding"]) - word.embedding).max() <= 1e-5


def test_a_file_without_words(tiny_folder: Path, tmp_path: Path) -> None:
    parquet = pytest.importorskip("pyarrow.parquet")
    path = tmp_path / "out.parquet"
    assert call(*options(tiny_folder), "", "  ", "--output", str(path)).status == 0
    assert parquet.read_table(path).num_rows == 0


@together("width", ["20", "80", "120"])
def test_a_terminal_shows_words_and_compares_those_that_occur_again(tiny_folder: Path, width: str) -> None:
    outcome, shown = terminal(*options(tiny_folder), "the cat sat on mat", "a Cat !", COLUMNS=width)
    lines = re.sub(r"\x1b\[[0-9;]*m", "", shown).splitlines()
    assert outcome.status == 0 and max(map(len, lines)) <= int(width)
    if width != "20":
        assert sum("cat (1)" in line for line in lines) == sum("Cat (2)" in line for line in lines) == 1
        assert "1.00" in shown and "mat (1)" not in shown
