"""`embed --output`: each format holds what the library computes, for any number of texts."""

import csv
import itertools
import json
import sqlite3
from collections.abc import Callable
from contextlib import closing
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import mlxbert
from mlxbert.cli.output import formats
from mlxbert.text.batch import WINDOW
from tests.helpers.cases import fast, together
from tests.helpers.program import Outcome, call

pytestmark = pytest.mark.usefixtures("loaded_once")

ENDINGS = pytest.mark.parametrize("ending", formats.VECTORS)
MANY = 2 * WINDOW + 100
OPTIONS = {
    **dict.fromkeys(("dimensions", "kind", "normalize", "pooling", "prompt", "prompt_name")),
    **{"output_dtype": "float32", "overflow": "truncate"},
}


@pytest.fixture
def embed(unit_folder: Path) -> Callable[..., Outcome]:
    return lambda *arguments: call("embed", "--model", str(unit_folder), "--dtype", "float32", *arguments)


WORDS = (
    "the", "cat", "dog", "Zürich, 東京", "\U0001f469\u200d\U0001f467 \U0001f1e8\U0001f1ed", "a\rb",
    "line\nbreak\t\0\x07\x9b",
    '"quoted", \\', "e\u0301", "\u2028\ufeff",
)  # fmt: skip
BAD = 3  # which of the records has no text


def texts(count: int) -> list[str]:
    """Different lengths, some too long, some empty, of every script and with every control character."""
    return [
        " ".join(WORDS[(number + n * n) % len(WORDS)] for n in range(number % 37)) + "x" * 20_000 * (number == 5)
        for number in range(count)
    ]


def read(path: Path) -> dict[str, Any]:
    """What a file holds, by columns; of lines and rows also those of failures."""
    if path.suffix == ".npy":
        found = np.load(path, allow_pickle=False)
        assert found.dtype in (np.dtype("<f4"), np.int8) and found.flags.c_contiguous
        return {"embeddings": found}
    names = ("text", "tokens", "truncated", "error")
    if path.suffix == ".jsonl":
        lines = [json.loads(line) for line in path.read_text(encoding="utf-8").split("\n")[:-1]]
        vectors = np.array([line.get("embedding", [np.nan] * 24) for line in lines], np.float32).reshape(-1, 24)
        return {name: [line.get(name) for line in lines] for name in names} | {"embeddings": vectors}
    if path.suffix == ".csv":
        with path.open(newline="", encoding="utf-8") as file:
            cells = [*csv.DictReader(file)]
        assert all(list(row) == ["text", "embedding", "tokens", "truncated", "error"] for row in cells)
        numbers: list[Any] = [json.loads(row["embedding"] or "null") for row in cells]
        width = max((len(one) for one in numbers if one), default=24)
        columns: dict[str, list[Any]] = {
            "text": [None if row["error"] else row["text"] for row in cells],
            "tokens": [int(row["tokens"]) if row["tokens"] else None for row in cells],
            "truncated": [row["truncated"] == "true" if row["truncated"] else None for row in cells],
            "error": [row["error"] or None for row in cells],
        }
        filled = [one or [np.nan] * width for one in numbers]
        return columns | {"embeddings": np.array(filled, np.float32).reshape(-1, width)}
    if path.suffix == ".sqlite":
        with closing(sqlite3.connect(path)) as base:
            base.row_factory = sqlite3.Row
            assert base.execute("PRAGMA integrity_check").fetchone()[0] == "ok"
            rows = [dict(row) for row in base.execute("SELECT * FROM embed ORDER BY rowid")]
            about = dict(map(tuple, base.execute("SELECT * FROM about")))
        kind: Any = np.dtype("<f4" if json.loads(about["options"])["output_dtype"] == "float32" else "i1")
        blobs: list[Any] = [row.get("embedding") for row in rows]
        width = next((len(blob) // kind.itemsize for blob in blobs if blob), 24)
        empty = np.full(width, np.nan if kind.kind == "f" else 0, kind)
        stacked = np.array([np.frombuffer(blob, kind) if blob else empty for blob in blobs], kind)
        lists = {name: [row[name] for row in rows] for name in names}
        return lists | {"embeddings": stacked.reshape(-1, width), "metadata": about}
    import pyarrow.parquet as pq

    table = pq.read_table(path)
    assert table.column_names == ["text", "embedding", "tokens", "truncated", "error"]
    column = table["embedding"].combine_chunks()
    dtype = {"float": np.float32, "int8": np.int8}[str(column.type.value_type)]
    embeddings = np.array(column.flatten(), dtype).reshape(-1, column.type.list_size)
    metadata = {name.decode(): value.decode() for name, value in table.schema.metadata.items()}
    return {name: table[name].to_pylist() for name in names} | {"embeddings": embeddings, "metadata": metadata}


@pytest.mark.parametrize(
    ("ending", "count"),
    fast(
        itertools.product(formats.VECTORS, (0, 9, MANY)),
        *((ending, 9) for ending in formats.VECTORS), (".npy", 0), (".parquet", 0), (".npy", MANY),
    ),
)  # fmt: skip
def test_a_file_holds_what_the_library_computes(
    ending: str, count: int, embed: Callable[..., Outcome], unit: mlxbert.Model, unit_folder: Path, tmp_path: Path
) -> None:
    if ending == ".parquet":
        pytest.importorskip("pyarrow")
    given: list[Any] = texts(count)
    given[BAD : BAD + 1] = [5] * (count > BAD)
    records = ({"n": 1} if text == 5 else {"text": text} for text in given)
    (tmp_path / "in.jsonl").write_text("".join(json.dumps(record) + "\n" for record in records))
    path = tmp_path / f"x{ending}"
    outcome = embed("--input", str(tmp_path / "in.jsonl"), "--output", str(path))
    assert (outcome.status, outcome.out) == (int(count > BAD), "")
    assert ("note: the input is empty\n" in outcome.err) is (count == 0)
    assert sorted(entry.name for entry in tmp_path.iterdir()) == ["in.jsonl", path.name]
    found, expected = read(path), list(mlxbert.embed_stream(unit, given, on_error="return"))
    vectors = [getattr(one, "embedding", np.full(24, np.nan, np.float32)) for one in expected]
    assert np.array_equal(found["embeddings"], np.array(vectors, np.float32).reshape(-1, 24), equal_nan=True)
    for name in {"text", "tokens", "truncated"} & set(found):
        assert list(found[name]) == [getattr(one, name, None) for one in expected]
    if "error" in found:
        assert [error is not None for error in found["error"]] == [text == 5 for text in given]
    if "metadata" in found:
        about = found["metadata"]
        assert (about["format"], about["model"]) == ("mlxbert embeddings", str(unit_folder))
        assert json.loads(about["options"]) == OPTIONS


@ENDINGS
def test_options_decide_the_width_and_are_written_down(
    ending: str, embed: Callable[..., Outcome], unit: mlxbert.Model, tmp_path: Path
) -> None:
    if ending == ".parquet":
        pytest.importorskip("pyarrow")
    path, options = (
        tmp_path / f"x{ending}",
        ["--pooling", "cls+mean", "--dimensions", "24", "--no-normalize", "--prompt", "é "],
    )
    assert embed("the cat", "a dog", *options, "--output", str(path)).status == 0
    found = read(path)
    given = {"pooling": "cls+mean", "dimensions": 24, "normalize": False, "prompt": "é "}
    assert np.array_equal(found["embeddings"], mlxbert.embed(unit, ["the cat", "a dog"], **given))  # type: ignore[arg-type]
    if "metadata" in found:
        assert json.loads(found["metadata"]["options"]) == OPTIONS | given


@ENDINGS
@together("dtype", ["int8", "binary"])
def test_vectors_in_fewer_bits_are_those_of_the_library(
    dtype: Any, ending: str, embed: Callable[..., Outcome], unit: mlxbert.Model, tmp_path: Path
) -> None:
    if ending == ".parquet":
        pytest.importorskip("pyarrow")
    (tmp_path / "in.jsonl").write_text('{"text": "the cat"}\n{"n": 1}\n{"text": "a dog"}\n')
    path = tmp_path / f"x{ending}"
    outcome = embed("-i", str(tmp_path / "in.jsonl"), "--output-dtype", dtype, "--overwrite", "--output", str(path))
    outcome.fails(1, "1 of 3 inputs failed", *(["row of 0"] if ending == ".npy" else []))
    expected = mlxbert.embed(unit, ["the cat", "a dog"], output_dtype=dtype)
    if ending == ".csv":
        assert (read(path)["embeddings"][[0, 2]] == expected).all()
        return
    if ending == ".jsonl":
        lines = [json.loads(line) for line in path.read_text().splitlines()]
        assert [lines[0]["embedding"], lines[2]["embedding"]] == expected.tolist() and "error" in lines[1]
        return
    found = read(path)["embeddings"]
    assert found.dtype == np.int8 and (found[[0, 2]] == expected).all() and (found[1] == 0).all()
