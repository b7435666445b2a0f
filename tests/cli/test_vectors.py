"""`similarity --vectors`: what `embed` has written is ranked without embedding it again, or refused."""

import json
import shutil
import sqlite3
from collections.abc import Callable
from contextlib import closing
from pathlib import Path
from unittest import mock

import numpy as np
import pytest

import mlxbert
from mlxbert.cli.output.formats import VECTORS
from tests.cli.test_similarity import QUERY, TEXTS
from tests.helpers.program import Outcome, call, terminal

pytestmark = pytest.mark.usefixtures("loaded_once")
ALONE = (".jsonl", ".csv", ".parquet", ".sqlite")  # endings of files that also hold the texts


@pytest.fixture
def run(unit_folder: Path) -> Callable[..., Outcome]:
    return lambda name, *given: call(name, *map(str, given), "--model", str(unit_folder), "--prompt", "")


@pytest.fixture
def texts(tmp_path: Path) -> Path:
    path = tmp_path / "in.csv"
    rows = "".join(f'{number + 40},"{text}"\n' for number, text in enumerate([*TEXTS, ""]))
    path.write_text("id,text\n" + rows)
    return path


@pytest.mark.parametrize("ending", VECTORS)
def test_the_order_and_the_scores_are_those_of_embedding_again(
    ending: str, run: Callable[..., Outcome], texts: Path, tmp_path: Path
) -> None:
    if ending == ".parquet":
        pytest.importorskip("pyarrow")
    expected, stored = run("similarity", QUERY, "-i", texts).lines, tmp_path / f"e{ending}"
    assert run("embed", "-i", texts, "-o", stored).status == 0
    with mock.patch("mlxbert.tasks.embed.EmbedTask.run", side_effect=AssertionError("embedded again")):
        found = run("similarity", QUERY, "--vectors", stored, "-i", texts)
        alone = run("similarity", QUERY, "--vectors", stored) if ending in ALONE else found
    scores = pytest.approx([line["score"] for line in expected], abs=1e-6)
    assert (found.status, "1 empty text" in found.err) == (0, True)
    assert [line["score"] for line in found.lines] == scores == [line["score"] for line in alone.lines]
    for name in ("rank", "index", "text", "path", "line", "id"):
        assert [line[name] for line in found.lines] == [line[name] for line in expected]
    if ending in (".jsonl", ".csv", ".sqlite"):
        assert [line["id"] for line in alone.lines] == [line["id"] for line in expected]
        assert {line["path"] for line in alone.lines} == {str(stored)}
        kept = run("similarity", QUERY, "--vectors", stored, "--keep", "tokens,truncated").lines
        assert all({"tokens", "truncated"} <= line.keys() and "id" not in line for line in kept)


@pytest.mark.parametrize("ending", [".npy", ".sqlite"])
def test_vectors_of_whole_numbers_are_ranked_and_bits_refused(
    ending: str, run: Callable[..., Outcome], texts: Path, tmp_path: Path
) -> None:
    for dtype in ("int8", "binary"):
        run("embed", "-i", texts, "-o", tmp_path / f"{dtype}{ending}", "--output-dtype", dtype)
    found = run("similarity", QUERY, "--vectors", tmp_path / f"int8{ending}", "-i", texts)
    assert [line["score"] for line in found.lines] == pytest.approx(
        [line["score"] for line in run("similarity", QUERY, "-i", texts).lines], abs=0.02
    )
    refused = run("similarity", QUERY, "--vectors", tmp_path / f"binary{ending}", "-i", texts)
    refused.fails(1, "3 values", "24", "binary")
    assert refused.out == ""


def test_what_a_file_of_vectors_does_not_state_is_noted(
    run: Callable[..., Outcome], texts: Path, tmp_path: Path
) -> None:
    for ending, noted in ((".npy", True), (".sqlite", False)):
        run("embed", "-i", texts, "-o", stored := tmp_path / f"e{ending}")
        assert (stored.name in run("similarity", QUERY, "--vectors", stored, "-i", texts).err) == noted


def test_what_does_not_belong_together_is_refused(run: Callable[..., Outcome], texts: Path, tmp_path: Path) -> None:
    stored, output = tmp_path / "e.npy", tmp_path / "x.jsonl"
    run("embed", "-i", texts, "-o", stored)
    given = ("similarity", QUERY, "--vectors", stored, "-i")
    (tmp_path / "few.txt").write_text("a dog\n" * 5)
    run(*given, tmp_path / "few.txt", "-o", output).fails(1, "few.txt", "e.npy", "texts, which end after 5")
    (tmp_path / "many.txt").write_text("a dog\n" * 7)
    run(*given, tmp_path / "many.txt", "-o", output).fails(1, "more texts than vectors, which end after 6", "hint: ")
    run(*given, texts, "--dimensions", "5").fails(1, "24 values", "5")
    run("similarity", "--vectors", stored, "-i", texts).fails(2, "--vectors", "query")
    run("similarity", QUERY, "a dog", "--vectors", stored).fails(2, "exactly one text", "2")
    outcome, shown = terminal("similarity", QUERY, "--vectors", str(stored), on=("stdin", "stderr"))
    assert outcome.status == 2 and "e.npy" in shown and "--input FILE" in shown
    run(*given, texts, "--pairs").fails(2, "--vectors", "pairs")
    run("similarity", QUERY, "--vectors", texts).fails(1, "in.csv", "embedding")
    for name in ("few.txt", "x.db", "x.ndjson", "x.safetensors"):
        run("similarity", QUERY, "--vectors", tmp_path / name).fails(2, f"'{Path(name).suffix}'", ".npy", ".sqlite")
    for name, content in (("none.npy", None), ("bad.npy", b"x"), ("bad.sqlite", b"x" * 200)):
        if content is not None:
            (tmp_path / name).write_bytes(content)
        run("similarity", QUERY, "--vectors", tmp_path / name, "-i", texts).fails(1, name)
    for number, one in enumerate(("x", b"x" * 97, 5)):
        with closing(sqlite3.connect(tmp_path / f"{number}.sqlite")) as base, base:
            base.execute("CREATE TABLE embed (embedding)")
            base.execute("INSERT INTO embed VALUES (?)", (one,))
            base.execute("CREATE TABLE about (name, value)")
            base.execute("INSERT INTO about VALUES (?, ?)", ("options", '{"output_dtype": "float32"}'))
        run("similarity", QUERY, "--vectors", tmp_path / f"{number}.sqlite", "-i", texts).fails(1, f"{number}.sqlite")
    np.savez(tmp_path / "several.npz", a=np.zeros((2, 3)))
    (tmp_path / "several.npz").rename(tmp_path / "several.npy")
    run("similarity", QUERY, "--vectors", tmp_path / "several.npy", "-i", texts).fails(1, "several.npy")
    np.save(tmp_path / "flat.npy", np.zeros(3, np.float32))
    run("similarity", QUERY, "--vectors", tmp_path / "flat.npy", "-i", texts).fails(1, "flat.npy", "(3,)")
    assert not [*tmp_path.glob("x.jsonl*")]


@pytest.mark.parametrize("ending", [".parquet", ".sqlite"])
def test_a_file_that_names_its_model_and_options_is_held_to_them(
    ending: str, run: Callable[..., Outcome], texts: Path, tmp_path: Path, unit_folder: Path
) -> None:
    if ending == ".parquet":
        pytest.importorskip("pyarrow")
    stored, given = tmp_path / f"e{ending}", ["--pooling", "cls", "--dimensions", "5"]
    run("embed", "-i", texts, "-o", stored, *given)
    found = run("similarity", QUERY, "--vectors", stored, "-i", texts)  # the query is embedded in the same way
    again = run("similarity", QUERY, "-i", texts, *given).lines
    assert [line["score"] for line in found.lines] == pytest.approx([line["score"] for line in again], abs=1e-6)
    other = call("similarity", QUERY, "--vectors", str(stored), "-i", str(texts))
    other.fails(1, f"e{ending}", "builtin", "hint: ", "--model")
    given = ["similarity", QUERY, "--vectors", str(stored), "-i", str(texts), "--prompt", "", "--model"]
    copy = shutil.copytree(unit_folder, tmp_path / "copy", copy_function=shutil.copyfile)  # has other times
    assert call(*given, str(copy)).lines == found.lines
    model = mlxbert.load(copy, dtype="bfloat16")  # which nothing else loads
    model.network.encoder.embeddings.word.weight *= 2
    changed = mlxbert.save(model, tmp_path / unit_folder.name)
    call(*given, str(changed)).fails(1, f"e{ending}", unit_folder.name, "hint: ", "again")


@pytest.mark.parametrize("ending", [".npy", ".sqlite", ".jsonl"])
def test_a_text_that_failed_has_no_score(ending: str, run: Callable[..., Outcome], tmp_path: Path) -> None:
    texts, stored = tmp_path / "in.jsonl", tmp_path / f"e{ending}"
    texts.write_text("".join(json.dumps({"text": text}) + "\n" for text in ["a dog", "cat " * 40, "mat"]))
    run("embed", "-i", texts, "-o", stored, "--overflow", "error").fails(1, "1 of 3")
    found = run("similarity", QUERY, "--vectors", stored, "-i", texts)
    found.fails(1, "1 of 3 inputs failed")
    assert [line["index"] for line in found.lines][2] == 1 and "line 2" in found.lines[2]["error"]


@pytest.mark.parametrize("ending", [".csv", ".sqlite"])
def test_a_failed_text_of_the_file_of_vectors_is_no_empty_text(
    ending: str, run: Callable[..., Outcome], tmp_path: Path
) -> None:
    texts, stored = tmp_path / "in.jsonl", tmp_path / f"e{ending}"
    texts.write_text("".join(json.dumps({"text": text}) + "\n" for text in ["a dog", 5, "mat"]))
    run("embed", "-i", texts, "-o", stored).fails(1, "1 of 3")
    found = run("similarity", QUERY, "--vectors", stored)
    found.fails(1, "1 of 3 inputs failed", "hint: check whether embed failed")
    assert "empty text" not in found.err


def test_vectors_of_a_database_stay_in_the_order_of_their_texts(
    run: Callable[..., Outcome], texts: Path, tmp_path: Path
) -> None:
    texts.write_text("rowid,text\n" + "".join(f'{9 - number},"{text}"\n' for number, text in enumerate(TEXTS)))
    assert run("embed", "-i", texts, "-o", tmp_path / "e.sqlite", "--keep", "rowid").status == 0
    with closing(sqlite3.connect(tmp_path / "e.sqlite")) as base, base:
        base.execute("CREATE INDEX by_vector ON embed (embedding)")
    found = run("similarity", QUERY, "--vectors", tmp_path / "e.sqlite", "-i", texts).lines
    assert [line["text"] for line in found] == [line["text"] for line in run("similarity", QUERY, "-i", texts).lines]
    alone = run("similarity", QUERY, "--vectors", tmp_path / "e.sqlite").lines
    assert [(line["text"], line["score"]) for line in alone] == [(line["text"], line["score"]) for line in found]
