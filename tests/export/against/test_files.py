"""`verify_vectors` with files: every format that holds vectors, and files that hold something else."""

import json
import sqlite3
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import mlxbert
from mlxbert.errors import InputError, MlxbertError
from mlxbert.model import Model
from mlxbert.search.schema import locked
from tests.helpers.cases import together
from tests.helpers.program import call
from tests.helpers.wrong_vectors import FAULTS, TEXTS, Vectors, save_embedder, vectors


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return save_embedder(tmp_path_factory.mktemp("against") / "model")


@pytest.fixture(scope="module")
def model(folder: Path) -> Model:
    return mlxbert.load(folder)


@pytest.fixture(scope="module")
def found(model: Model) -> Vectors:
    """The vectors of the texts, without a fault."""
    return vectors(model)


def _records(path: Path, rows: Any) -> None:
    lines = [
        {"id": n, "content": text, "vec": row.tolist()} for n, (text, row) in enumerate(zip(TEXTS, rows, strict=True))
    ]
    path.write_text("".join(json.dumps(line) + "\n" for line in lines))


def _parquet(path: Path, rows: Any) -> None:
    pa, pq = pytest.importorskip("pyarrow"), pytest.importorskip("pyarrow.parquet")
    pq.write_table(pa.table({"text": TEXTS, "embedding": rows.tolist()}), path)


def _csv(path: Path, rows: Any) -> None:
    lines = [f'"{text}","{row.tolist()}"\n' for text, row in zip(TEXTS, rows, strict=True)]
    path.write_text("text,vector\n" + "".join(lines))


def _sqlite(path: Path, rows: Any) -> None:
    with sqlite3.connect(path) as database:
        database.execute("CREATE TABLE notes (note TEXT)")
        database.execute("CREATE TABLE items (id INTEGER, body TEXT, emb BLOB)")
        database.executemany(
            "INSERT INTO items VALUES (?, ?, ?)",
            [(n, text, row.tobytes()) for n, (text, row) in enumerate(zip(TEXTS, rows, strict=True))],
        )
    database.close()


WRITERS: dict[str, Callable[[Path, Any], None]] = {
    "x.jsonl": _records, "x.parquet": _parquet, "x.csv": _csv, "x.db": _sqlite,
    "x.sqlite": lambda path, rows: _sqlite(path, rows.astype(np.float16)),
}  # fmt: skip


@together("name", WRITERS)
def test_a_file_with_texts(name: str, tmp_path_factory: pytest.TempPathFactory, model: Model, found: Vectors) -> None:
    path = tmp_path_factory.mktemp("file") / name
    WRITERS[name](path, found)
    result = mlxbert.verify_vectors(model, path)
    assert result.agrees and result.texts == len(TEXTS)


def test_the_rows_of_a_large_file_are_sampled_and_a_shift_among_all_is_seen(model: Model, found: Vectors) -> None:
    result = mlxbert.verify_vectors(model, np.roll(found, 1, axis=0), TEXTS, max_texts=7)
    assert [cause.kind for cause in result.causes] == ["order"] and result.texts == 7
    assert any(f"7 of {len(TEXTS)} texts" in note for note in result.notes)


def test_a_file_with_another_number_of_vectors_is_not_read(
    model: Model, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    np.save(tmp_path / "x.npy", np.ones((70, 24), np.float32))

    def norm(*given: Any) -> Any:
        raise AssertionError("a vector is read")

    monkeypatch.setattr(np.linalg, "norm", norm)
    with pytest.raises(InputError, match=f"70 vectors for {len(TEXTS)} texts"):
        mlxbert.verify_vectors(model, tmp_path / "x.npy", TEXTS)


def test_an_index_is_read_and_not_changed(model: Model, tmp_path: Path) -> None:
    path = tmp_path / "index.db"
    with mlxbert.open_index(path, model=model) as index:
        index.add({"id": str(number), "text": text} for number, text in enumerate(TEXTS[:5]))
    before = path.read_bytes()
    with locked(str(path)):  # another process updates it
        assert mlxbert.verify_vectors(model, path)
    assert path.read_bytes() == before


def test_a_record_without_a_vector_is_named(model: Model, tmp_path: Path) -> None:
    rows = [{"text": TEXTS[0], "embedding": None}, {"text": TEXTS[1], "embedding": [1.0] * 24}]
    (tmp_path / "x.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    for column in (None, "embedding"):
        with pytest.raises(InputError, match=r"line 1.*'embedding' is None"):
            mlxbert.verify_vectors(model, tmp_path / "x.jsonl", vector_column=column)


def test_the_order_among_many_vectors_is_found_in_blocks(
    model: Model, found: Vectors, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("mlxbert.export.against.causes._ROWS", 6)
    for stored in (found, FAULTS["int8"][1](model), FAULTS["binary"][1](model)):
        result = mlxbert.verify_vectors(model, stored[::-1], TEXTS, max_texts=7)
        assert result.causes[0].kind == "order" and "reverse" in result.causes[0].text


@pytest.mark.parametrize(("name", "options", "width"), [
    ("v.parquet", ["--prompt-name", "query"], 24), ("v.sqlite", ["--prompt-name", "query"], 24), ("v.npy", [], 24),
    ("v.sqlite", ["--dimensions", "12"], 12), ("v.sqlite", ["--dimensions", "6"], 6),
], ids=str)  # fmt: skip
def test_a_file_of_embed_with_its_options(
    name: str, options: list[str], width: int, folder: Path, model: Model, tmp_path: Path
) -> None:
    if name == "v.parquet":
        pytest.importorskip("pyarrow")
    (tmp_path / "t.txt").write_text("\n".join(TEXTS) + "\n")
    path = tmp_path / name
    assert call("embed", "-i", str(tmp_path / "t.txt"), "-m", str(folder), "-o", str(path), *options).status == 0
    result = mlxbert.verify_vectors(model, path, TEXTS if name == "v.npy" else None)
    assert result.texts == len(TEXTS) and result.cosine.lowest > 0.9999 and result.theirs.width == width
    assert result.agrees or width < 24


@pytest.mark.parametrize("dtype", ["<f4", "<f2", "<f8"])
@pytest.mark.parametrize("width", [24, 12])
def test_the_dtype_of_bytes_is_guessed(dtype: str, width: int, model: Model, found: Vectors, tmp_path: Path) -> None:
    rows = found[:, :width].astype(dtype)
    _sqlite(tmp_path / "x.db", rows)
    assert mlxbert.verify_vectors(model, tmp_path / "x.db").cosine.lowest > 0.9999
    pa, pq = pytest.importorskip("pyarrow"), pytest.importorskip("pyarrow.parquet")
    pq.write_table(pa.table({"text": TEXTS, "embedding": [row.tobytes() for row in rows]}), tmp_path / "x.parquet")
    assert mlxbert.verify_vectors(model, tmp_path / "x.parquet").cosine.lowest > 0.9999


@pytest.mark.parametrize("options", ["foo", "[1]", '{"dimensions": "x"}'])
def test_options_that_embed_does_not_write_are_an_error(
    options: str, model: Model, found: Vectors, tmp_path: Path
) -> None:
    pa, pq = pytest.importorskip("pyarrow"), pytest.importorskip("pyarrow.parquet")
    table = pa.table({"text": TEXTS, "embedding": found.tolist()})
    pq.write_table(table.replace_schema_metadata({"options": options}), tmp_path / "x.parquet")
    with pytest.raises(InputError, match="options"):
        mlxbert.verify_vectors(model, tmp_path / "x.parquet")


def test_an_index(folder: Path, model: Model, tmp_path: Path) -> None:
    (tmp_path / "texts").mkdir()
    for number, text in enumerate(TEXTS):
        (tmp_path / "texts" / f"{number}.md").write_text(f"# {text[:7]}\n\n{text}\n\nthe cat sat on the mat .\n")
    path = tmp_path / "i.db"
    index = mlxbert.open_index(path, model=str(folder), paths=[tmp_path / "texts"])
    for _ in index.update():
        pass
    index.close()
    result = mlxbert.verify_vectors(model, path)
    assert result.agrees and result.texts >= len(TEXTS)


def _broken(name: str, content: bytes = b"") -> Callable[[Path], Path]:
    def make(folder: Path) -> Path:
        (folder / name).write_bytes(content)
        return folder / name

    return make


def _array(rows: Any) -> Callable[[Path], Path]:
    def make(folder: Path) -> Path:
        np.save(folder / "x.npy", rows)
        return folder / "x.npy"

    return make


def _npy(shape: str) -> bytes:
    header = f"{{'descr': '<f4', 'fortran_order': False, 'shape': {shape}}}\n".encode()
    return b"\x93NUMPY\x01\x00" + len(header).to_bytes(2, "little") + header + bytes(32)


def _table(command: str) -> Callable[[Path], Path]:
    def make(folder: Path) -> Path:
        with sqlite3.connect(folder / "x.db") as database:
            database.execute(command)
        database.close()
        return folder / "x.db"

    return make


WIDE = np.ones((len(TEXTS), 24), np.float32)
NAN, ZERO, LARGE = WIDE.copy(), WIDE.copy(), WIDE.astype(np.float64)
NAN[3, 2], ZERO[3], LARGE[3] = np.nan, 0, 1e300
RECORD = b'{"text": "a", "embedding": [1, 2]}\n'
HOSTILE: dict[str, tuple[Callable[[Path], Path], str]] = {
    "missing": (lambda folder: folder / "none.npy", "none.npy"),
    "no array": (_broken("x.npy", b"nothing"), "cannot be read"),
    "objects": (_array(np.array([{}, []], object)), "cannot be read"),
    "one row too few": (_array(WIDE[1:]), f"{len(TEXTS) - 1} vectors for {len(TEXTS)} texts"),
    **{shape: (_broken("x.npy", _npy(shape)), "cannot be read") for shape in (f"({10**30}, 4)", "(-1, 4)", "(2, 4")},
    "NaN": (_array(NAN), "text 3"), "zero": (_array(ZERO), "text 3"), "too large": (_array(LARGE), "text 3"),
    "another width": (_array(np.ones((len(TEXTS), 1536))), "1,536 values"),
    "three dimensions": (_array(np.ones((len(TEXTS), 2, 24))), "shape"),
    "extension": (_broken("x.bin"), "the extension is '.bin'"), "empty": (_broken("x.jsonl"), "no records"),
    "no vector": (_broken("x.jsonl", b'{"text": "a"}\n'), "no column has a vector"),
    "ragged": (_broken("x.jsonl", RECORD + b'{"text": "b", "embedding": [1, 2, 3]}\n'), "2 to 3 values"),
    "no text in a record": (_broken("x.jsonl", RECORD + b'{"embedding": [1, 3]}\n'), "line 2"),
    "broken JSON": (_broken("x.jsonl", RECORD[:-3]), "line 1"),
    "no database": (_broken("x.db", b"nothing" * 100), "cannot be read"),
    "no tables": (_table("PRAGMA user_version = 1"), "no table has both texts and vectors"),
    "no table with vectors": (_table("CREATE TABLE a (text TEXT)"), "no table has both texts and vectors"),
}  # fmt: skip


@together("name", HOSTILE)
def test_a_hostile_file(name: str, tmp_path_factory: pytest.TempPathFactory, model: Model) -> None:
    make, part = HOSTILE[name]
    path = make(tmp_path_factory.mktemp("hostile"))
    texts = TEXTS if path.suffix == ".npy" else None
    with pytest.raises(MlxbertError) as caught:
        mlxbert.verify_vectors(model, path, texts)
    assert part in caught.value.message, caught.value.message


def test_texts_that_do_not_show_a_cause_are_named(model: Model) -> None:
    texts = ["a dog", "the cat"]
    result = mlxbert.verify_vectors(model, vectors(model, texts), texts)
    assert result.agrees
    assert sum(part in note for note in result.notes for part in ("4 tokens", "same number", "capital letters")) == 3
    long = next(text for text in TEXTS if len(model.tokenizer.pieces(text)) > 24)
    assert not mlxbert.verify_vectors(model, vectors(model, [*TEXTS, long]), [*TEXTS, long]).notes


def test_the_command(folder: Path, model: Model, found: Vectors, tmp_path: Path) -> None:
    (tmp_path / "t.txt").write_text("\n".join(TEXTS) + "\n")
    arguments = ["verify", str(folder), "--against", str(tmp_path / "v.npy"), "-i", str(tmp_path / "t.txt")]
    np.save(tmp_path / "v.npy", found)
    same = call(*arguments)
    assert same.status == 0 and same.lines[0]["agrees"] is True and same.lines[0]["cause"] is None
    np.save(tmp_path / "v.npy", vectors(model, limit=17))
    (told,) = (outcome := call(*arguments)).lines
    assert outcome.status == 1 and told["agrees"] is False and "17 tokens" in told["cause"]
    assert told["texts"] == len(TEXTS) and told["cosine"]["lowest"] < 0.99 < told["cosine_explained"]["lowest"]
    assert told["worst"][0]["cosine"] == pytest.approx(told["cosine"]["lowest"], abs=1e-5)
    call("verify", str(folder), str(folder), "--against", str(tmp_path / "v.npy")).fails(2, "B cannot be combined")
    call("verify", str(folder)).fails(2, "B is missing")
    call("verify", str(folder), str(folder), "--max-texts", "3").fails(2, "--max-texts works only with --against")
    call("verify", str(folder), "--against", str(tmp_path / "v.npy")).fails(2, "without their texts", "--input")
