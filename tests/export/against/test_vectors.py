"""`verify_vectors` names the fault of vectors, and none if there is none, in every format that holds vectors."""

import json
import random
import sqlite3
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import mlxbert
from mlxbert.errors import InputError, MlxbertError
from mlxbert.export.against.recipes import RecipeRunner
from mlxbert.model import Model
from mlxbert.search.schema import locked
from tests.helpers.cases import together
from tests.helpers.program import call
from tests.helpers.tiny import VOCAB
from tests.helpers.wrong_vectors import FAULTS, LIMIT, TEXTS, Vectors, save_embedder, vectors


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return save_embedder(tmp_path_factory.mktemp("against") / "model")


@pytest.fixture(scope="module")
def model(folder: Path) -> Model:
    return mlxbert.load(folder)


@pytest.fixture(scope="module")
def found(model: Model) -> Vectors:
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


def test_another_number_of_vectors_is_not_read(model: Model, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    np.save(tmp_path / "x.npy", np.ones((70, 24), np.float32))

    def norm(*given: Any) -> Any:
        raise AssertionError("a vector is read")

    monkeypatch.setattr(np.linalg, "norm", norm)
    with pytest.raises(InputError, match=f"70 vectors for {len(TEXTS)} texts"):
        mlxbert.verify_vectors(model, tmp_path / "x.npy", TEXTS)


def test_an_index_is_read_and_not_changed(folder: Path, model: Model, tmp_path: Path) -> None:
    (tmp_path / "texts").mkdir()
    for number, text in enumerate(TEXTS):
        (tmp_path / "texts" / f"{number}.md").write_text(f"# {text[:7]}\n\n{text}\n\nthe cat sat on the mat .\n")
    path = tmp_path / "i.db"
    with mlxbert.open_index(path, model=str(folder), paths=[tmp_path / "texts"]) as index:
        assert [*index.update()]
        index.add({"id": "1", "text": TEXTS[0]} for _ in range(1))
    before = path.read_bytes()
    with locked(str(path)):  # another process updates it
        result = mlxbert.verify_vectors(model, path)
    assert result.agrees and result.texts > len(TEXTS) and path.read_bytes() == before


def test_a_record_without_a_vector_is_named(model: Model, tmp_path: Path) -> None:
    rows = [{"text": TEXTS[0], "embedding": None}, {"text": TEXTS[1], "embedding": [1.0] * 24}]
    (tmp_path / "x.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    for column in (None, "embedding"):
        with pytest.raises(InputError, match=r"line 1.*'embedding' is None"):
            mlxbert.verify_vectors(model, tmp_path / "x.jsonl", vector_column=column)


def test_the_order_of_many_vectors_is_found(model: Model, found: Vectors, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("mlxbert.export.against.causes._ROWS", 6)
    for stored in (found, FAULTS["int8"][1](model), FAULTS["binary"][1](model)):
        result = mlxbert.verify_vectors(model, stored[::-1], TEXTS, max_texts=7)
        assert result.causes[0].kind == "order" and "reverse" in result.causes[0].text


@pytest.mark.parametrize(("name", "options", "width"), [
    ("v.parquet", ["--prompt-name", "query"], 24), ("v.sqlite", ["--prompt-name", "query"], 24), ("v.npy", [], 24),
    ("v.sqlite", ["--dimensions", "12"], 12), ("v.sqlite", ["--dimensions", "6"], 6),
], ids=str)  # fmt: skip
def test_a_file_of_embed(name: str, options: list[str], width: int, folder: Path, model: Model, tmp_path: Path) -> None:
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
def test_options_that_embed_never_writes_are_errors(options: str, model: Model, found: Vectors, tmp_path: Path) -> None:
    pa, pq = pytest.importorskip("pyarrow"), pytest.importorskip("pyarrow.parquet")
    table = pa.table({"text": TEXTS, "embedding": found.tolist()})
    pq.write_table(table.replace_schema_metadata({"options": options}), tmp_path / "x.parquet")
    with pytest.raises(InputError, match="options"):
        mlxbert.verify_vectors(model, tmp_path / "x.parquet")


def _npy(shape: str) -> bytes:
    header = f"{{'descr': '<f4', 'fortran_order': False, 'shape': {shape}}}\n".encode()
    return b"\x93NUMPY\x01\x00" + len(header).to_bytes(2, "little") + header + bytes(32)


def _written(path: Path, content: Any) -> Path:
    """Writes bytes, an array, a command for a database, or nothing."""
    if isinstance(content, bytes):
        path.write_bytes(content)
    elif isinstance(content, str):
        with sqlite3.connect(path) as database:
            database.execute(content)
        database.close()
    elif content is not None:
        np.save(path, content)
    return path


WIDE = np.ones((len(TEXTS), 24), np.float32)
NAN, ZERO, LARGE = WIDE.copy(), WIDE.copy(), WIDE.astype(np.float64)
NAN[3, 2], ZERO[3], LARGE[3] = np.nan, 0, 1e300
RECORD = b'{"text": "a", "embedding": [1, 2]}\n'
HOSTILE: dict[str, tuple[str, Any, str]] = {
    "missing": ("none.npy", None, "none.npy"), "no array": ("x.npy", b"nothing", "cannot be read"),
    "objects": ("x.npy", np.array([{}, []], object), "cannot be read"),
    "one row too few": ("x.npy", WIDE[1:], f"{len(TEXTS) - 1} vectors for {len(TEXTS)} texts"),
    **{shape: ("x.npy", _npy(shape), "cannot be read") for shape in (f"({10**30}, 4)", "(-1, 4)", "(2, 4")},
    "NaN": ("x.npy", NAN, "text 3"), "zero": ("x.npy", ZERO, "text 3"), "too large": ("x.npy", LARGE, "text 3"),
    "another width": ("x.npy", np.ones((len(TEXTS), 1536)), "1,536 values"),
    "three dimensions": ("x.npy", np.ones((len(TEXTS), 2, 24)), "shape"),
    "extension": ("x.bin", b"", "the extension is '.bin'"), "empty": ("x.jsonl", b"", "no records"),
    "no vector": ("x.jsonl", b'{"text": "a"}\n', "no column has a vector"),
    "ragged": ("x.jsonl", RECORD + b'{"text": "b", "embedding": [1, 2, 3]}\n', "2 to 3 values"),
    "no text in a record": ("x.jsonl", RECORD + b'{"embedding": [1, 3]}\n', "line 2"),
    "broken JSON": ("x.jsonl", RECORD[:-3], "line 1"), "no database": ("x.db", b"nothing" * 100, "cannot be read"),
    "no tables": ("x.db", "PRAGMA user_version = 1", "no table has both texts and vectors"),
    "no table with vectors": ("x.db", "CREATE TABLE a (text TEXT)", "no table has both texts and vectors"),
}  # fmt: skip


@together("case", HOSTILE)
def test_a_hostile_file(case: str, tmp_path_factory: pytest.TempPathFactory, model: Model) -> None:
    name, content, part = HOSTILE[case]
    path = _written(tmp_path_factory.mktemp("hostile") / name, content)
    with pytest.raises(MlxbertError) as caught:
        mlxbert.verify_vectors(model, path, TEXTS if path.suffix == ".npy" else None)
    assert part in caught.value.message, caught.value.message


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


def test_lowercased_texts_of_a_cased_model(tmp_path: Path) -> None:
    model = mlxbert.load(save_embedder(tmp_path / "model", cased=True))
    assert mlxbert.verify_vectors(model, vectors(model), TEXTS)
    (cause,) = mlxbert.verify_vectors(model, vectors(model, change=str.lower), TEXTS).causes
    assert (cause.kind, cause.texts) == ("case", sum(text != text.lower() for text in TEXTS))


def test_a_cause_of_most_texts_is_named_the_others_are_counted_and_texts_that_show_none_noted(model: Model) -> None:
    found = vectors(model, pool=lambda hidden: hidden[0])
    found[2] = vectors(model, ["he bought milk"])[0]
    result = mlxbert.verify_vectors(model, found, TEXTS)
    assert [cause.kind for cause in result.causes] == ["pooling"] and not result
    assert result.notes[0].startswith("1 of 20 ") and result.cosine_explained is not None
    assert result.cosine_explained.lowest < 0.99
    texts = ["a dog", "the cat"]
    result = mlxbert.verify_vectors(model, vectors(model, texts), texts)
    assert result.agrees
    assert sum(part in note for note in result.notes for part in ("4 tokens", "same number", "capital letters")) == 3
    long = next(text for text in TEXTS if len(model.tokenizer.pieces(text)) > 24)
    assert not mlxbert.verify_vectors(model, vectors(model, [*TEXTS, long]), [*TEXTS, long]).notes


def test_vectors_of_another_model_have_no_cause_and_take_few_inputs(
    model: Model, monkeypatch: pytest.MonkeyPatch
) -> None:
    own, noise = vectors(model), np.random.RandomState(3).randn(len(TEXTS), 24)
    for found in (-own, own + noise * 0.05):
        result = mlxbert.verify_vectors(model, found, TEXTS)
        assert not result and result.differ > 10 and result.causes == () and result.cause is None
        assert sum(band.texts for band in result.cosine.ranges) == len(TEXTS)
    tokens, compute = 0, RecipeRunner._compute

    def counted(runner: Any, reading: Any, pooled: Any, windows: Any) -> Any:
        nonlocal tokens
        tokens += sum(len(each.encoding) for text in windows for each in text)
        return compute(runner, reading, pooled, windows)

    monkeypatch.setattr(RecipeRunner, "_compute", counted)
    result = mlxbert.verify_vectors(model, np.random.RandomState(3).randn(len(TEXTS), 24), TEXTS)
    most = 4 * sum(min(len(model.tokenizer.pieces(text)) + 2, LIMIT) for text in TEXTS)
    assert result.tried > 100 and tokens < most and not result and result.causes == ()


@pytest.mark.parametrize("fault", FAULTS)
def test_a_fault_is_named(fault: str, model: Model) -> None:
    kinds, make = FAULTS[fault]
    result = mlxbert.verify_vectors(model, make(model), TEXTS)
    assert tuple(cause.kind for cause in result.causes) == kinds and result.alternatives == ()
    assert result.agrees == bool(result) == (result.cause is None) == (not kinds)
    if result.cosine_explained is not None:
        assert result.cosine_explained.lowest > (0.97 if fault == "binary" else 0.998 if "int8" in fault else 0.9999)


def test_windows_and_a_common_prompt_that_the_files_do_not_state(model: Model) -> None:
    texts = [" ".join([text] * 6) for text in TEXTS[:12]]
    found = np.stack([mlxbert.embed(model, text, overflow="window") for text in texts])
    result = mlxbert.verify_vectors(model, found, texts)
    assert [cause.kind for cause in result.causes] == ["windows"]
    assert result.cosine_explained is not None and result.cosine_explained.lowest > 1 - 1e-6
    prompt = "Represent this sentence for searching relevant passages: "
    result = mlxbert.verify_vectors(model, mlxbert.embed(model, [prompt + text for text in TEXTS]), TEXTS)
    assert [cause.kind for cause in result.causes] == ["prompt"] and result.alternatives == ()
    assert result.cause is not None and repr(prompt) in result.cause


def test_a_limit_below_all_texts_is_found_in_vectors_of_few_bits(model: Model) -> None:
    rng = random.Random(459)
    words = [word for word in VOCAB if word.isalpha()]
    texts = [" ".join(rng.choices(words, k=rng.randint(24, 30))) for _ in range(40)]
    for limit in (12, 23):
        packed = np.packbits(vectors(model, texts, limit=limit) > 0, axis=1)
        result = mlxbert.verify_vectors(model, packed, texts)
        assert result.cause is not None and f"truncated at {limit} tokens: 40 of 40 texts" in result.cause
