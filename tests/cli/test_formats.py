"""Formats of `--output`: what is written is what the library computes, and parts are never held together."""

import csv
import io
import itertools
import json
import sqlite3
import sys
import tracemalloc
import zipfile
from collections.abc import Callable, Sequence
from contextlib import closing
from dataclasses import replace
from pathlib import Path
from typing import Any
from unittest import mock

import numpy as np
import pytest

import mlxbert
from mlxbert.cli.output import formats
from mlxbert.cli.output.formats import OutputFormat
from mlxbert.cli.output.numpy_files import Npy, Npz
from mlxbert.cli.output.parquet import Parquet
from mlxbert.cli.output.resumable_file import check_output
from mlxbert.errors import ArgumentError, InputError, MlxbertError
from mlxbert.other_libraries import install_command
from mlxbert.results.embed import Embedding, SparseEmbedding
from mlxbert.results.result import Failure
from mlxbert.results.text_results import Classification, Label
from mlxbert.text.batch import WINDOW
from tests.helpers.cases import fast, together
from tests.helpers.program import Outcome, call
from tests.helpers.rooms import needs
from tests.helpers.sparse_folder import TEXTS as SPARSE_TEXTS, save_splade
from tests.helpers.tiny import CONFIG

ENDINGS = pytest.mark.parametrize("ending", formats.VECTORS)
Run = Callable[..., Outcome]
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


def write(form: OutputFormat, path: Path, results: Sequence[Any], *cuts: int, kept: Any = None) -> bytes:
    """Writes a file of the parts between cuts."""
    kept, parts = kept or [{}] * len(results), list[Path]()
    for start, end in itertools.pairwise((0, *cuts, len(results))):
        parts.append(path.with_name(f"{start}{form.part_ending}"))
        with parts[-1].open("wb") as file:
            form.write_part(file, results[start:end], kept[start:end])
            assert not file.closed
    with path.open("wb") as file:
        form.assemble(file, parts, len(results))
        assert not file.closed
    return path.read_bytes()


@ENDINGS
def test_the_same_results_are_the_same_bytes(ending: str, tmp_path: Path) -> None:
    form, path, all_results = chosen(ending), tmp_path / "x", results(11)
    whole = write(form, path, all_results, 4, 8)
    assert write(form, path, all_results, 4, 8) == whole
    if ending != ".parquet":  # whose row groups are the parts
        assert write(form, path, all_results, 2, 3, 9) == whole


@pytest.mark.sampled
@ENDINGS
def test_parts_are_never_in_memory_together(ending: str, tmp_path: Path) -> None:
    count, rows = (30, 16) if ending in (".csv", ".sqlite") else (80, 128)  # tables are slow
    form, part = chosen(ending, width=256), tmp_path / "part"
    with part.open("wb") as file:
        some = [replace(embedding(number, 256), text="short") for number in range(rows)]
        form.write_part(file, some, [{}] * rows)
    if ending == ".parquet":
        import pyarrow as pa

        before, pool = pa.default_memory_pool(), pa.proxy_memory_pool(pa.default_memory_pool())
        pa.set_memory_pool(pool)
    tracemalloc.start()
    with (tmp_path / "whole").open("wb") as file:
        form.assemble(file, [part] * count, count * rows)
    size = (tmp_path / "whole").stat().st_size
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert size > count * rows * 256 * 4 and peak < size / 5
    if ending == ".parquet":
        pa.set_memory_pool(before)
        assert pool.max_memory() < size / 5


@together(
    "ending,content,said",
    [(".npy", bytes(4 * WIDTH + 3), "damaged"), (".parquet", b"no Arrow file", "pyarrow: "), (".npz", b"", "damaged")],
)
def test_a_damaged_part_is_an_error_of_writing(ending: str, content: bytes, said: str, tmp_path: Path) -> None:
    form, part = Npz(VOCABULARY, kind="sparse") if ending == ".npz" else chosen(ending), tmp_path / "part"
    if ending == ".npz":
        with part.open("wb") as file:
            form.write_part(file, sparse_results(), [{}] * 5)
        content = part.read_bytes()[:-1]
    part.write_bytes(content)
    with pytest.raises(OSError, match=said):
        form.assemble(io.BytesIO(), [part], 5)


@together(
    "allowed,said", [(formats.JSON_LINES, ".jsonl"), (formats.VECTORS, "one of .jsonl, .csv, .sqlite, .npy, .par")]
)
@together("name", ["x.xls", "x", ".npy", "x.npy.gz", "x.ndjson", "x.db", "x.safetensors"])
def test_an_ending_that_is_not_known_is_refused(name: str, allowed: Sequence[str], said: str, tmp_path: Path) -> None:
    for refuse in (formats.choose, lambda path, allowed: check_output(path, False, allowed)):
        with pytest.raises(ArgumentError, match=f"extension is '.*', expected {said}"):
            refuse(tmp_path / name, allowed)


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


def test_npz_is_a_matrix_of_scipy(tmp_path: Path) -> None:
    path, form = tmp_path / "out.npz", Npz(VOCABULARY, kind="sparse")
    whole = write(form, path, sparse_results())
    with np.load(path, allow_pickle=False) as arrays:
        assert {*arrays.files} == {"indices", "indptr", "format", "shape", "data"}
        assert arrays["format"].item() == b"csr" and arrays["shape"].tolist() == [5, VOCABULARY]
        ends, ids, values = arrays["indptr"], arrays["indices"], arrays["data"]
    rows = [dict(zip(ids[a:b].tolist(), values[a:b].tolist(), strict=True)) for a, b in itertools.pairwise(ends)]
    assert rows == [*ROWS[:2], {}, *ROWS[2:]]
    assert write(form, path, sparse_results(), 1, 4) == whole  # whatever the parts
    assert all(member.date_time == (1980, 1, 1, 0, 0, 0) for member in zipfile.ZipFile(path).infolist())


@pytest.mark.slow
def test_scipy_opens_the_npz(tmp_path: Path) -> None:
    sparse = pytest.importorskip("scipy.sparse")
    write(Npz(VOCABULARY, kind="sparse"), tmp_path / "out.npz", sparse_results(), 2)
    matrix = sparse.load_npz(tmp_path / "out.npz")
    assert matrix.shape == (5, VOCABULARY) and matrix.nnz == 6 and matrix[4, 2] == 3.0


def test_parquet_has_ids_and_values_of_sparse_vectors(tmp_path: Path) -> None:
    parquet = pytest.importorskip("pyarrow.parquet")
    write(Parquet(VOCABULARY, {}, kind="sparse"), tmp_path / "out.parquet", sparse_results(), 3)
    rows = parquet.read_table(tmp_path / "out.parquet").to_pylist()
    assert [dict(zip(row["ids"] or (), row["values"] or (), strict=True)) for row in rows] == [*ROWS[:2], {}, *ROWS[2:]]
    assert rows[2]["error"] == "unusable" and rows[2]["ids"] is None


def test_the_matrix_of_the_command_is_as_wide_as_the_vocabulary(tmp_path: Path) -> None:
    folder, path = save_splade(tmp_path / "m"), tmp_path / "out.npz"
    assert call("embed", *SPARSE_TEXTS[:3], "--model", str(folder), "--output", str(path)).status == 0
    with np.load(path) as arrays:
        assert arrays["shape"].tolist() == [3, CONFIG["vocab_size"]] and len(arrays["data"])


LABELS = (Label("a;b", 0.75), Label('"c"', 0.25))
TABLES = pytest.mark.parametrize("ending", [".csv", ".sqlite"])
ABOUT = {"task": "a-task", "model": "m"}


def rows(path: Path, table: str) -> list[dict[str, Any]]:
    """The rows of a table; what is not a text as text."""
    if path.suffix == ".csv":
        with path.open(newline="", encoding="utf-8") as file:
            return [*csv.DictReader(file)]
    with closing(sqlite3.connect(path)) as base:
        base.row_factory = sqlite3.Row
        found = [dict(row) for row in base.execute(f"SELECT * FROM {table} ORDER BY rowid")]
    return [{name: "" if value is None else str(value) for name, value in row.items()} for row in found]


@TABLES
def test_any_text_and_any_kept_value_comes_back(ending: str, tmp_path: Path) -> None:
    texts = ["a\rb", "line\nbreak,", '"', "", "é 東京 \U0001f469\u200d", "'; DROP TABLE x; --", "=1+1"]
    kept: list[dict[str, Any]] = [{"n": one} for one in (1, 2**70, 0.1, None, {"é": [1]}, "007", [True])]
    path = tmp_path / f"x{ending}"
    write(formats.choose(path, metadata=ABOUT), path, [Classification(text, LABELS) for text in texts], kept=kept)
    found = rows(path, "a_task")
    assert [row["text"] for row in found] == texts
    assert [row["n"] for row in found] == ["1", str(2**70), "0.1", "", '{"é": [1]}', "007", "[true]"]
    assert [list(row) for row in found] == [["n", "text", "labels", "top_label", "top_score", "error"]] * len(texts)
    assert all((row["top_label"], row["top_score"], row["error"]) == ("a;b", "0.75", "") for row in found)
    assert json.loads(found[0]["labels"]) == [{"label": "a;b", "score": 0.75}, {"label": '"c"', "score": 0.25}]


@TABLES
def test_failures_are_rows_with_an_error(ending: str, tmp_path: Path) -> None:
    path, failure = tmp_path / f"x{ending}", Failure(1, InputError("line 2: \ud800 bad"))
    form = formats.choose(path, metadata=ABOUT)
    write(form, path, [Classification("a", LABELS), failure], kept=[{"id": 1}, {"id": 2}])
    first, second = rows(path, "a_task")
    assert (first["error"], second["id"], second["text"]) == ("", "2", "") and "line 2" in second["error"]
    for found, indices in (([failure], ["1"]), ([], [])):
        write(form, path, found)
        assert [row["index"] for row in rows(path, "a_task")] == indices


@TABLES
@together("name", ["top_label", "Text", "ERROR", "error"])
def test_two_columns_of_one_name_are_refused(name: str, ending: str, tmp_path: Path) -> None:
    path = tmp_path / f"x{ending}"
    with pytest.raises(ArgumentError, match=f"--keep {name}"):
        write(formats.choose(path, metadata=ABOUT), path, [Classification("a", LABELS)], kept=[{name: 1}])


@needs("train")
@TABLES
def test_classify_adds_columns_to_the_table(ending: str, folders: dict[str, Path], tmp_path: Path) -> None:
    source, output = tmp_path / "in.csv", tmp_path / f"x{ending}"
    source.write_bytes(b'Id,review,label,Id\n1,the cat sat,x,7\n2,,y,8\n3,he bought milk,z,"a\rb"\n')
    given = ["classify", "--input", str(source), "-m", str(folders["sentiment"]), "--quiet"]
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


@together("ending", ["-wal", "-journal"])
def test_changes_of_an_earlier_database_do_not_become_those_of_a_new_one(
    ending: str, folders: dict[str, Path], tmp_path: Path
) -> None:
    given = ["classify", "the cat sat", "-m", str(folders["sentiment"]), "-o"]
    path, journal = tmp_path / "x.sqlite", tmp_path / f"x.sqlite{ending}"
    assert call(*given, str(path)).status == 0
    before = path.read_bytes()
    journal.write_bytes(b"changes")
    call(*given, str(path), "--overwrite").fails(2, journal.name, "hint: ", "remove")
    assert path.read_bytes() == before
    journal.unlink()
    assert call(*given, str(path), "--overwrite").status == 0
    path.unlink()


MANY = 2 * WINDOW + 100
OPTIONS = {
    **dict.fromkeys(("dimensions", "kind", "normalize", "pooling", "prompt", "prompt_name")),
    **{"output_dtype": "float32", "overflow": "truncate"},
}


@pytest.fixture
def embed(unit_folder: Path) -> Run:
    return lambda *arguments: call("embed", "--model", str(unit_folder), "--dtype", "float32", *arguments)


WORDS = (
    "the", "cat", "dog", "Zürich, 東京", "\U0001f469\u200d\U0001f467 \U0001f1e8\U0001f1ed", "a\rb",
    "line\nbreak\t\0\x07\x9b",
    '"quoted", \\', "e\u0301", "\u2028\ufeff",
)  # fmt: skip


def texts(count: int) -> list[str]:
    """Different lengths, some too long, some empty, of every script and with every control character."""
    return [
        " ".join(WORDS[(number + n * n) % len(WORDS)] for n in range(number % 37)) + "x" * 20_000 * (number == 5)
        for number in range(count)
    ]


def read(path: Path) -> tuple[list[dict[str, Any]], "np.ndarray[Any, Any]", dict[str, str]]:
    """The rows of a file, of which .npy has none; their vectors, those of failures NaN; and what it says of them."""
    found, about, kind = list[dict[str, Any]](), dict[str, str](), np.dtype("<f4")
    columns = ["text", "embedding", "tokens", "truncated", "error"]
    if path.suffix == ".npy":
        vectors = np.load(path, allow_pickle=False)
        assert vectors.dtype in (np.dtype("<f4"), np.int8) and vectors.flags.c_contiguous
        return [], vectors, {}
    if path.suffix == ".jsonl":
        found = [json.loads(line) for line in path.read_text(encoding="utf-8").split("\n")[:-1]]
    elif path.suffix == ".csv":
        for row in rows(path, ""):
            assert [*row] == columns
            known = {name: json.loads(row[name] or "null") for name in columns[1:4]}
            found.append(known | {"text": None if row["error"] else row["text"], "error": row["error"] or None})
    elif path.suffix == ".sqlite":
        with closing(sqlite3.connect(path)) as base:
            base.row_factory = sqlite3.Row
            assert base.execute("PRAGMA integrity_check").fetchone()[0] == "ok"
            found = [dict(row) for row in base.execute("SELECT * FROM embed ORDER BY rowid")]
            about = dict(map(tuple, base.execute("SELECT * FROM about")))
        kind = np.dtype("<f4" if json.loads(about["options"])["output_dtype"] == "float32" else "i1")
        found = [row | {"embedding": row["embedding"] and [*np.frombuffer(row["embedding"], kind)]} for row in found]
    else:
        table = pytest.importorskip("pyarrow.parquet").read_table(path)
        about = {name.decode(): value.decode() for name, value in table.schema.metadata.items()}
        float32 = json.loads(about["options"])["output_dtype"] == "float32"
        assert str(table["embedding"].type.value_type) == ("float" if float32 else "int8")
        assert table.column_names == columns
        assert table["embedding"].type.list_size > 0 and table["embedding"].null_count == 0  # NaN or 0 of a failure
        found = table.to_pylist()
    width = max((len(row["embedding"]) for row in found if row.get("embedding")), default=24)
    filled = [row.get("embedding") or [np.nan] * width for row in found]
    return found, np.array(filled, np.float32).reshape(-1, width), about


@pytest.mark.parametrize(
    ("ending", "count"),
    fast(
        itertools.product(formats.VECTORS, (0, 9, MANY)),
        *((ending, 9) for ending in formats.VECTORS), (".npy", 0), (".parquet", 0),
    ),
)  # fmt: skip
def test_a_file_holds_what_the_library_computes(
    ending: str, count: int, embed: Run, unit: mlxbert.Model, unit_folder: Path, tmp_path: Path
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
    (found, vectors, about), expected = read(path), list(mlxbert.embed_stream(unit, given, on_error="return"))
    wanted = [getattr(one, "embedding", np.full(24, np.nan, np.float32)) for one in expected]
    assert np.array_equal(vectors, np.array(wanted, np.float32).reshape(-1, 24), equal_nan=True)
    assert len(found) == (0 if ending == ".npy" else count)
    for row, text, one in zip(found, given, expected, strict=False):
        assert (row.get("error") is not None) == (text == 5)
        for name in ("text", "tokens", "truncated"):
            assert row.get(name) == getattr(one, name, None)
    if about:
        assert (about["format"], about["model"]) == ("mlxbert embeddings", str(unit_folder))
        assert json.loads(about["options"]) == OPTIONS


@ENDINGS
@together(
    "options,typed",
    [
        (
            {"pooling": "cls+mean", "dimensions": 24, "normalize": False, "prompt": "é"},
            "--pooling cls+mean --dimensions 24 --no-normalize --prompt é",
        ),
        ({"output_dtype": "int8"}, "--output-dtype int8"),
        ({"output_dtype": "binary"}, "--output-dtype binary"),
    ],
)
def test_options_decide_the_vectors_and_are_written_down(
    options: dict[str, Any], typed: str, ending: str, embed: Run, unit: mlxbert.Model, tmp_path: Path
) -> None:
    if ending == ".parquet":
        pytest.importorskip("pyarrow")
    (tmp_path / "in.jsonl").write_text('{"text": "the cat"}\n{"n": 1}\n{"text": "a dog"}\n')
    path, whole_numbers = tmp_path / f"x{ending}", "output_dtype" in options
    outcome = embed("-i", str(tmp_path / "in.jsonl"), *typed.split(), "--overwrite", "--output", str(path))
    outcome.fails(1, "1 of 3 inputs failed", *(["row of 0"] if ending == ".npy" and whole_numbers else []))
    found, vectors, about = read(path)
    assert np.array_equal(vectors[[0, 2]], mlxbert.embed(unit, ["the cat", "a dog"], **options))
    assert ending == ".npy" or "error" in found[1]
    assert ending != ".npy" or (vectors.dtype == np.int8, (vectors[1] == 0).all()) == (whole_numbers, whole_numbers)
    assert ending != ".parquet" or (vectors[1] == 0).all() == whole_numbers == (not np.isnan(vectors[1]).any())
    assert not about or json.loads(about["options"]) == OPTIONS | options
