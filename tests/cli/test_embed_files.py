"""`embed --output`: each format holds what the library computes, for any number of texts."""

import hashlib
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import mlxbert
from mlxbert.cli.output import formats
from mlxbert.cli.output.parts import PART
from tests.helpers.program import Outcome, call

ENDINGS = pytest.mark.parametrize("ending", formats.VECTORS)
QUICK = (".npy", ".parquet")  # whose many parts are put together in the fast tests, too
MANY = 2 * PART + 100
OPTIONS = {
    "dimensions": None,
    "kind": None,
    "normalize": None,
    "output_dtype": "float32",
    "overflow": "truncate",
    "pooling": None,
    "prompt": None,
    "prompt_name": None,
}


@pytest.fixture
def embed(unit_folder: Path) -> Callable[..., Outcome]:
    return lambda *arguments: call("embed", "--model", str(unit_folder), "--dtype", "float32", *arguments)


def texts(count: int) -> list[str]:
    """Different lengths, some too long, some empty, not only of ASCII."""
    words = ["the", "cat", "dog", "tokyo", "münchen", "."]
    return [" ".join(words[(number + n * n) % len(words)] for n in range(number % 37)) for number in range(count)]


def read(path: Path) -> dict[str, Any]:
    """What a file holds, by columns."""
    if path.suffix == ".npy":
        found = np.load(path)
        assert found.dtype in (np.dtype("<f4"), np.int8) and found.flags.c_contiguous
        return {"embeddings": found}
    if path.suffix == ".jsonl":
        lines = [json.loads(line) for line in path.read_text(encoding="utf-8").split("\n")[:-1]]
        columns: dict[str, Any] = {name: [line[name] for line in lines] for name in ("text", "tokens", "truncated")}
        return columns | {"embeddings": np.array([line["embedding"] for line in lines], np.float32).reshape(-1, 24)}
    if path.suffix == ".safetensors":
        data = path.read_bytes()
        length = int.from_bytes(data[:8], "little")
        header = json.loads(data[8 : 8 + length])
        kinds = {"F32": "<f4", "I8": "i1", "U8": "u1", "I32": "<i4"}
        columns = {"metadata": header.pop("__metadata__")}
        for name, tensor in header.items():
            start, end = (8 + length + offset for offset in tensor["data_offsets"])
            columns[name] = np.frombuffer(data[start:end], kinds[tensor["dtype"]]).reshape(tensor["shape"])
        assert set(columns) == {"metadata", "embeddings", "text_sha256", "tokens"}
        return columns
    import pyarrow.parquet as pq

    table = pq.read_table(path)
    assert table.column_names == ["text", "embedding", "tokens", "truncated", "error"]
    vectors = table["embedding"].combine_chunks()
    dtype = {"float": np.float32, "int8": np.int8}[str(vectors.type.value_type)]
    columns = {name: table[name].to_pylist() for name in ("text", "tokens", "truncated", "error")}
    embeddings = np.array(vectors.flatten(), dtype).reshape(-1, vectors.type.list_size)
    metadata = {name.decode(): value.decode() for name, value in table.schema.metadata.items()}
    return columns | {"embeddings": embeddings, "metadata": metadata}


@pytest.mark.parametrize(
    ("ending", "count"),
    [
        pytest.param(ending, count, marks=pytest.mark.slow if count > 1 and ending not in QUICK else ())
        for ending in formats.VECTORS
        for count in (0, 1, PART, MANY)
    ],
)
def test_a_file_holds_what_the_library_computes(
    ending: str, count: int, embed: Callable[..., Outcome], unit: mlxbert.Model, unit_folder: Path, tmp_path: Path
) -> None:
    if ending == ".parquet":
        pytest.importorskip("pyarrow")
    given = texts(count)
    (tmp_path / "in.txt").write_text("".join(f"{text}\n" for text in given), encoding="utf-8")
    path = tmp_path / f"x{ending}"
    outcome = embed("--input", str(tmp_path / "in.txt"), "--output", str(path))
    assert (outcome.status, outcome.out) == (0, "")
    assert ("note: the input is empty\n" in outcome.err) is (count == 0)
    assert sorted(entry.name for entry in tmp_path.iterdir()) == ["in.txt", path.name]
    found, expected = read(path), list(mlxbert.embed_stream(unit, given))
    assert found["embeddings"].shape == (count, 24)
    assert np.array_equal(found["embeddings"], np.array([one.embedding for one in expected]).reshape(-1, 24))
    for name in {"text", "tokens", "truncated"} & set(found):
        assert list(found[name]) == [getattr(one, name) for one in expected]
    if "text_sha256" in found:
        hashes = [hashlib.sha256(text.encode()).digest() for text in given]
        assert [row.tobytes() for row in found["text_sha256"]] == hashes
    if "error" in found:
        assert found["error"] == [None] * count
    if "metadata" in found:
        about = found["metadata"]
        assert (about["format"], about["model"]) == ("mlxbert embeddings", str(unit_folder))
        assert json.loads(about["options"]) == OPTIONS


def test_lines_in_a_file_are_those_of_stdout(embed: Callable[..., Outcome], tmp_path: Path) -> None:
    (tmp_path / "in.txt").write_text("\n".join(texts(600)), encoding="utf-8")
    given = ["--input", str(tmp_path / "in.txt")]
    assert embed(*given, "--output", str(tmp_path / "x.jsonl")).status == 0
    assert (tmp_path / "x.jsonl").read_text(encoding="utf-8") == embed(*given).out


@ENDINGS
def test_options_decide_the_width_and_are_written_down(
    ending: str, embed: Callable[..., Outcome], unit: mlxbert.Model, tmp_path: Path
) -> None:
    if ending == ".parquet":
        pytest.importorskip("pyarrow")
    path, options = tmp_path / f"x{ending}", ["--pooling", "cls+mean", "--dimensions", "24", "--no-normalize"]
    assert embed("the cat", "a dog", *options, "--output", str(path)).status == 0
    found = read(path)
    given = {"pooling": "cls+mean", "dimensions": 24, "normalize": False}
    assert np.array_equal(found["embeddings"], mlxbert.embed(unit, ["the cat", "a dog"], **given))  # type: ignore[arg-type]
    if "metadata" in found:
        assert json.loads(found["metadata"]["options"]) == OPTIONS | given


@ENDINGS
@pytest.mark.parametrize("dtype", ["int8", "binary"])
def test_vectors_in_fewer_bits_are_those_of_the_library(
    dtype: str, ending: str, embed: Callable[..., Outcome], unit: mlxbert.Model, tmp_path: Path
) -> None:
    if ending == ".parquet":
        pytest.importorskip("pyarrow")
    (tmp_path / "in.jsonl").write_text('{"text": "the cat"}\n{"n": 1}\n{"text": "a dog"}\n')
    path = tmp_path / f"x{ending}"
    outcome = embed("-i", str(tmp_path / "in.jsonl"), "--output-dtype", dtype, "--output", str(path))
    outcome.fails(1, "1 of 3 inputs failed", *(["row of 0"] if ending in (".npy", ".safetensors") else []))
    expected = mlxbert.embed(unit, ["the cat", "a dog"], output_dtype=dtype)
    if ending == ".jsonl":
        lines = [json.loads(line) for line in path.read_text().splitlines()]
        assert [lines[0]["embedding"], lines[2]["embedding"]] == expected.tolist() and "error" in lines[1]
        return
    found = read(path)["embeddings"]
    assert found.dtype == np.int8 and (found[[0, 2]] == expected).all() and (found[1] == 0).all()


def test_arguments_can_be_written_to_a_file(embed: Callable[..., Outcome], unit: mlxbert.Model, tmp_path: Path) -> None:
    path = tmp_path / "X.NPY"
    assert embed("the cat", "--output", str(path)).status == 0
    assert np.array_equal(np.load(path), mlxbert.embed(unit, ["the cat"]))
    assert [entry.name for entry in path.parent.iterdir()] == ["X.NPY"]
