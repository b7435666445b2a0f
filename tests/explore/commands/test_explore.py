"""`mlxbert dedupe`, `cluster`, `map` and `attention`: their input, output and errors."""

import base64
import csv
import json
import re
import subprocess
import sys
import zlib
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from mlxbert.explore.pages.attention import write
from mlxbert.explore.results import Attention
from mlxbert.results.text_results import Token
from mlxbert.search.index_stores import open_store
from mlxbert.search.sqlite import SqliteStore
from tests.helpers.browser import browsing, chromium
from tests.helpers.program import call, terminal
from tests.search.test_store import ABOUT

pytestmark = pytest.mark.usefixtures("counted_cores", "loaded_once")
COMMANDS = ("dedupe", "cluster", "map")
ROWS = [
    {"id": 1, "text": "It rains.", "tags": ["a"]},
    {"id": 2, "text": "it  RAINS.", "tags": []},
    {"id": 3, "text": "Snow is cold, and white.", "tags": None},
    {"id": 4, "text": "Rain falls.", "tags": ["b", "c"]},
    {"id": 5, "text": "Snow is cold and white!", "tags": ["d"]},
]


@pytest.fixture
def rows(tmp_path: Path) -> str:
    """A file of records, with two groups of duplicates."""
    path = tmp_path / "rows.jsonl"
    path.write_text("".join(json.dumps(row) + "\n" for row in ROWS))
    return str(path)


def vectors_of(path: Path, vectors: Any) -> str:
    np.save(path, np.array(vectors))
    return str(path)


@pytest.fixture
def given(rows: str, tmp_path: Path) -> list[str]:
    """The file of records, with vectors: the third and the fifth text are similar."""
    near = [[1, 0, 0], [1, 0, 0], [0, 1, 0], [0.5, 0, 1], [0, 1, 0.1]]
    return ["--input", rows, "--vectors", vectors_of(tmp_path / "given.npy", near)]


def test_groups_in_a_pipe_and_in_a_terminal(rows: str) -> None:
    found = call("dedupe", "--input", rows).lines
    assert [group["kept"] for group in found] == [
        {"index": 0, "id": 1, "text": "It rains."}, {"index": 2, "id": 3, "text": "Snow is cold, and white."},
    ]  # fmt: skip
    (equal,), (similar,) = (group["duplicates"] for group in found)
    assert equal == {"score": 1.0, "index": 1, "id": 2, "text": "it  RAINS."}
    assert (similar["index"], similar["id"]) == (4, 5) and 0.9 <= similar["score"] < 1
    exact = call("dedupe", "--input", rows, "--exact").lines
    assert [group["kept"]["index"] for group in exact] == [0]
    outcome, shown = terminal("dedupe", "--input", rows)
    assert outcome.status == 0 and "it RAINS." in shown and "2 groups" in shown
    (piped,) = call("dedupe", "--exact", "--json", stdin=b"a b\nc\nA  B\n").lines
    assert (piped["kept"]["text"], piped["duplicates"][0]["text"]) == ("a b", "A  B")


@pytest.mark.parametrize("prefer", ["first", "longest"])
def test_kept_rows_have_all_columns(given: list[str], tmp_path: Path, prefer: str) -> None:
    output, rows = tmp_path / "kept.jsonl", given[1]
    outcome = call("dedupe", *given, "--output", str(output), "--prefer", prefer)
    assert outcome.lines == [{"output": str(output), "texts": 5, "kept": 3, "groups": 2}]
    assert "2 duplicates in 2 groups" in outcome.err and "--output" in outcome.err
    kept = {"first": [0, 2, 3], "longest": [1, 2, 3]}[prefer]
    assert [json.loads(line) for line in output.read_text().splitlines()] == [ROWS[number] for number in kept]
    call("dedupe", "--input", rows, "--output", str(output)).fails(2, "exists")
    call("dedupe", "--input", rows, "--output", rows, "--overwrite").fails(2, "also an input")


def test_a_csv_stays_a_csv(tmp_path: Path) -> None:
    source, output = tmp_path / "in.csv", tmp_path / "out.csv"
    table = [["n", "body", "note"], ["1", "It rains.", "a,b"], ["2", "it rains.", ""], ["3", 'say "x"\nand y', "z\rz"]]
    with source.open("w", newline="") as file:
        csv.writer(file).writerows(table)
    call("dedupe", "--exact", "--input", str(source), "--text-column", "body", "--output", str(output))
    with output.open(newline="") as file:
        assert [*csv.reader(file)] == [table[0], table[1], table[3]]
    exact = ["dedupe", "--exact", "--text-column"]
    again = call(*exact, "note", "--input", str(output), "--output", str(tmp_path / "o.jsonl"))
    assert again.status == 0 and json.loads((tmp_path / "o.jsonl").read_text().splitlines()[1])["note"] == "z\rz"
    call(*exact, "body", "--input", str(source), "--output", str(tmp_path / "o.txt")).fails(1, "several lines")
    assert not (tmp_path / "o.txt").exists()
    source.write_text("text\n")  # without rows, the header is kept
    call("dedupe", "--exact", "--input", str(source), "--output", str(output), "--overwrite")
    assert output.read_text() == "text\n"


def test_a_parquet_keeps_its_types(tmp_path: Path) -> None:
    pa, pq = pytest.importorskip("pyarrow"), pytest.importorskip("pyarrow.parquet")
    source, output = tmp_path / "in.parquet", tmp_path / "out.parquet"
    kinds = {"day": pa.date32(), "text": pa.large_string(), "n": pa.int8(), "list": pa.list_(pa.float32())}
    days = np.array(["2026-01-01", "2026-01-02", "2026-01-03"], "datetime64[D]").tolist()
    table = pa.table(
        [days, ["It rains.", "IT RAINS.", "Sun"], [1, 2, None], [[1.5], [], None]], schema=pa.schema(kinds)
    )
    pq.write_table(table, source)
    assert call("dedupe", "--exact", "--input", str(source), "--output", str(output)).status == 0
    assert pq.read_table(output).equals(table.take([0, 2]))


@pytest.mark.parametrize("command", COMMANDS)
def test_bad_input_is_named_and_left_out(command: str, tmp_path: Path) -> None:
    source = tmp_path / "rows.jsonl"
    source.write_text('{"text": "the cat"}\n{"text": 5}\n{"text": "THE CAT"}\n')
    more = {"dedupe": ["--exact"], "cluster": ["--clusters", "1"], "map": ["--output", str(tmp_path / "m.html")]}
    outcome = call(command, "--input", str(source), *more[command])
    outcome.fails(1, "input 1", "1 of 3 inputs")
    if command == "dedupe":
        assert outcome.lines[0]["duplicates"][0]["index"] == 2
    (tmp_path / "m.html").unlink(missing_ok=True)
    call(command, "--input", str(source), *more[command], "--strict").fails(1, "input 1")
    assert not (tmp_path / "m.html").exists()


@pytest.mark.parametrize("command", COMMANDS)
def test_empty_and_single_inputs(command: str, tmp_path: Path) -> None:
    (tmp_path / "empty.txt").touch()
    (tmp_path / "one.txt").write_text("one text\n")
    for name in ("empty", "one"):
        more = ["--output", str(tmp_path / f"{name}.html")] if command == "map" else []
        outcome = call(command, "--input", str(tmp_path / f"{name}.txt"), *more)
        assert outcome.status == 0
        assert ("empty" in outcome.err) == (name == "empty")
        assert command == "map" or outcome.out == ""
    open_store(tmp_path / "empty.db", ABOUT).close()
    outcome = call(
        command, "--index", str(tmp_path / "empty.db"), *(["--output", str(tmp_path / "e.html")] * (command == "map"))
    )
    assert outcome.status == 0 and "the input is empty" in outcome.err


def test_one_error_for_a_file_that_is_not_text_or_lacks_the_column(tmp_path: Path) -> None:
    for content, errors in ((b"\xff\n" * 30, 1), (b"a\n" + b"\xff\n" * 9, 2)):
        (tmp_path / "t.txt").write_bytes(content)
        outcome = call("dedupe", "--exact", "--input", str(tmp_path / "t.txt"))
        outcome.fails(1, f"{content.count(0xFF)}", "--encoding")
        assert outcome.err.count("error:") == errors  # the second one counts the inputs that are left out
    (table := tmp_path / "t.csv").write_text("id,body\n1,a\n")
    for column, hint in (("bdy", "did you mean 'body'?"), ("zzz", "one of these columns")):
        call("dedupe", "--exact", "--input", str(table), "--text-column", column).fails(1, "id, body", hint)


def test_vectors_of_other_texts_are_refused(tmp_path: Path) -> None:
    lines, embedded = ["the cat", "paris is a city"], tmp_path / "v.jsonl"
    rows = ({"text": text, "embedding": [n + 1, *[1] * 383]} for n, text in enumerate(lines))
    embedded.write_text("".join(json.dumps(row) + "\n" for row in rows))
    (tmp_path / "same.txt").write_text("\n".join(lines))
    (tmp_path / "other.txt").write_text("\n".join(lines[::-1]))
    for command in ("dedupe --threshold 0.999", "similarity cat"):
        arguments = [*command.split(), "--vectors", str(embedded), "--input"]
        assert call(*arguments, str(tmp_path / "same.txt")).status == 0
        call(*arguments, str(tmp_path / "other.txt")).fails(1, "v.jsonl", "'the cat'", "hint: ")
    assert call("dedupe", "--vectors", str(embedded)).status == 0  # the file has the texts


def test_an_explanation_tells_equal_words_apart_and_says_what_is_not_explained(tiny_folder: Path) -> None:
    where = ["--model", str(tiny_folder), "--steps", "2", "--no-json"]
    found = call("explain", "the cat saw the dog eat [MASK].", *where)
    assert found.status == 0 and "the (1 of 2)" in found.out and "the (2 of 2)" in found.out
    assert "cat (" not in found.out
    long = call("explain", "[MASK] " + "the cat " * 100, "--steps", "2", "--model", str(tiny_folder))
    assert long.status == 0 and "only its beginning is explained" in long.err
    call("explain", "").fails(1, "text is ''")
    call("explain", "the cat", "--task", "similarity").fails(2, "only one text", "hint: ")
    call("explain", "a", "b", "--task", "rerank").fails(1, "hint: rerank needs a cross-encoder")
    call("explain", "a", "b", "--at", "a").fails(2, "--at is given", "omit --at")


def test_a_hint_if_a_topic_has_most_of_the_texts(tmp_path: Path) -> None:
    (tmp_path / "t.txt").write_text("".join(f"text {number}\n" for number in range(30)))
    near = np.random.default_rng(0).normal(0, 0.01, (30, 3)) + ([[1, 0, 0]] * 24 + [[0, 1, 0]] * 6)
    arguments = ["cluster", "--input", str(tmp_path / "t.txt"), "--vectors", vectors_of(tmp_path / "v.npy", near)]
    outcome = call(*arguments, "--clusters", "2")
    assert outcome.status == 0 and "hint: topic 0 has 24 of 30 texts" in outcome.err and "--clusters" in outcome.err
    assert "v.npy" in outcome.err  # the note that the file states no texts
    page = tmp_path / "map.html"
    drawn = call("map", *arguments[1:], "--clusters", "2", "--output", str(page), "--method", "pca")
    assert drawn.status == 0 and "hint: topic 0 has 24 of 30 texts" in drawn.err
    assert "hint:" not in call(*arguments, "--clusters", "1").err


def test_unreadable_indexes_and_vectors(tmp_path: Path) -> None:
    command = "cluster"
    bad, texts = tmp_path / "bad.db", tmp_path / "texts.txt"
    bad.write_bytes(b"SQLite format 3\0" + bytes(200))
    texts.write_text("a\nb\n")
    call(command, "--index", str(bad)).fails(1, "bad.db")
    call(command, "--index", str(tmp_path / "none")).fails(1, "no index")
    call(command, "--index", str(bad), "--input", str(texts)).fails(2, "--index cannot be combined")
    call(command, "--input", str(tmp_path)).fails(2, "folder")
    for vectors, expected in (([[1, 0]], "more texts"), ([[1, 0]] * 3, "more vectors")):
        path = vectors_of(tmp_path / "v.npy", vectors)
        call(command, "--input", str(texts), "--vectors", path).fails(1, expected)
    for unusable in (np.nan, 1e300):
        path = vectors_of(tmp_path / "v.npy", [[1, 0], [unusable, 0]])
        call(command, "--input", str(texts), "--vectors", path, "--clusters", "1").fails(1, "input 1", "1 of 2 inputs")


def test_an_index_is_read_without_its_model(tmp_path: Path, tiny_folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    names = {"the copy of b.txt": "the cat sat on the mat", "b.txt": "The cat\nsat on the mat", "c.txt": "tokyo"}
    for name, text in names.items():
        (tmp_path / "docs").mkdir(exist_ok=True)
        (tmp_path / "docs" / name).write_text(text)
    index = str(tmp_path / "docs.db")
    monkeypatch.setattr("mlxbert.search.index_writer._SETTLED", 10**15)  # on a slow machine, too, the files are new
    assert call("index", str(tmp_path / "docs"), "--index", index, "--model", str(tiny_folder)).status == 0
    monkeypatch.setattr("mlxbert.loading.load", None)
    (group,) = call("dedupe", "--index", index, "--threshold", "1").lines
    copy = Path(group["duplicates"][0]["path"])
    assert Path(group["kept"]["path"]).name == "b.txt" and copy.name == "the copy of b.txt"
    monkeypatch.chdir(tmp_path)
    _, shown = terminal("dedupe", "--index", index, "--threshold", "1")
    with monkeypatch.context() as patched:  # another process removes a file after its passages are read
        states = iter([SqliteStore.files, lambda _: {}])
        patched.setattr(SqliteStore, "files", lambda store: next(states)(store))
        assert call("dedupe", "--index", index, "--threshold", "1").status == 0
    assert "docs/b.txt:1" in shown and f"docs/{copy.name}:1" in shown
    written = list[list[str]]()
    monkeypatch.setattr("mlxbert.explore.commands.map.write_page", lambda *given: written.append(given[3]))
    assert call("map", "--index", index, "--output", "m.html").status == 0
    assert "docs/c.txt:1\ntokyo" in written[0]
    found = call("cluster", "--index", index, "--clusters", "2", "--typical", "5").lines
    assert {Path(text["path"]).name for topic in found for text in topic["typical"]} == {*names}
    assert "docs/c.txt:1" in terminal("cluster", "--index", index, "--clusters", "2")[1]


def test_topics(tmp_path: Path) -> None:
    texts = ["the goal of the team", "the team and its match", "the bank and its money", "the money of the market"]
    source, output = tmp_path / "t.txt", tmp_path / "topics.csv"
    source.write_text("".join(f"{text}\n" for text in texts))
    vectors = vectors_of(tmp_path / "v.npy", [[1, 0], [1, 0.1], [0, 1], [0.1, 1]])
    arguments = ["cluster", "--input", str(source), "--vectors", vectors, "--clusters", "2"]
    first, second = call(*arguments, "--output", str(output), "--words", "1").lines
    assert (first["topic"], first["size"], second["size"]) == (0, 2, 2)
    assert [topic["words"][0]["word"] for topic in (first, second)] == ["team", "money"]
    with output.open(newline="") as file:
        assert [*csv.reader(file)] == [["text", "cluster"], *([text, str(n // 2)] for n, text in enumerate(texts))]
    outcome, shown = terminal(*arguments)
    assert outcome.status == 0 and "topic 1" in shown and "money" in shown
    call(*arguments[:-1], "5").fails(2, "--clusters is 5", "4")
    outcome = call(*arguments[:-2])
    assert (outcome.status, outcome.out) == (0, "") and "--min-size" in outcome.err


@pytest.mark.parametrize(("command", "column"), [("cluster", "cluster"), ("map", "cluster"), ("map", "x")])
def test_no_column_is_replaced(command: str, column: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    source = tmp_path / "rows.jsonl"
    source.write_text(f'{{"text": "a", "{column}": 5}}\n')
    output = tmp_path / "o.parquet"
    monkeypatch.setattr("mlxbert.loading.load", None)  # it is said before anything is computed
    call(command, "--input", str(source), "--output", str(output)).fails(2, repr(column))
    assert not output.exists()


def test_a_table_for_embedding_atlas(tmp_path: Path, given: list[str]) -> None:
    pq = pytest.importorskip("pyarrow.parquet")
    output = tmp_path / "map.parquet"
    arguments = ["map", *given, "--method", "pca", "--output", str(output), "--neighbors", "2"]
    assert call(*arguments, "--clusters", "2").status == 0
    table = pq.read_table(output).to_pylist()
    assert [{name: row[name] for name in ROWS[0]} for row in table] == ROWS
    assert all(isinstance(row["x"], float) and isinstance(row["y"], float) for row in table)
    assert {row["cluster"] for row in table} == {0, 1}
    assert table[2]["neighbors"]["ids"][0] == 4 and table[0]["neighbors"]["ids"][0] == 1
    assert len(table[0]["neighbors"]["distances"]) == 2


def test_wrong_options_of_a_map(tmp_path: Path, rows: str, monkeypatch: pytest.MonkeyPatch) -> None:
    page, table = str(tmp_path / "m.html"), str(tmp_path / "m.parquet")
    call("map", "--input", rows, "--output", str(tmp_path / "m.png")).fails(2, ".html", ".parquet")
    call("map", "--input", rows, "--output", page, "--label", "none").fails(2, "--label none", "id, text, tags")
    call("map", "--input", rows, "--output", table, "--label", "id").fails(2, "--label")
    call("map", "--input", rows, "--output", page, "--neighbors", "3").fails(2, "--neighbors")
    for option in (("--typical", "2"), ("--words", "3"), ("--clusters", "2"), ("--min-size", "7")):
        call("map", "--input", rows, "--output", page, "--label", "id", *option).fails(2, option[0], "--label")
    monkeypatch.setattr("mlxbert.explore.commands.map.MOST", 4)
    call("map", "--input", rows, "--output", page).fails(1, "5 texts", "at most 4", ".parquet")
    assert not Path(page).exists() and not Path(table).exists()


def test_without_packages(given: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    where = ["map", *given, "--overwrite", "--output", str(tmp_path / "m.html")]
    pytest.importorskip("openTSNE")
    assert call(*where, "--method", "tsne").lines[0]["method"] == "pca"  # of few texts
    for name in ("sklearn", "openTSNE"):
        monkeypatch.setitem(sys.modules, name, None)
    call("cluster", *given).fails(1, "scikit-learn", "hint: ", "pip install")
    assert call("dedupe", *given).status == 0
    assert call(*where).lines[0]["method"] == "pca"
    call(*where, "--method", "tsne").fails(1, "openTSNE", "pip install")


@pytest.mark.slow
def test_the_page_in_a_browser(tmp_path: Path) -> None:
    """Points at a text, chooses a group, finds words, zooms; nothing is loaded from anywhere."""
    source, output = tmp_path / "rows.jsonl", tmp_path / "map.html"
    kinds, coordinates = ["</script>", "b"], [[0, 0], [0, 1], [1, 0], [1, 1]]
    texts = [f"text {number} <b>&</b>" for number in range(4)]
    source.write_text("".join(json.dumps({"text": text, "kind": kinds[n % 2]}) + "\n" for n, text in enumerate(texts)))
    vectors = vectors_of(tmp_path / "v.npy", [[*place, 1] for place in coordinates])
    arguments = ["--input", str(source), "--vectors", vectors, "--label", "kind", "--method", "pca"]
    assert call("map", *arguments, "--output", str(output)).status == 0
    assert "http" not in output.read_text().replace("http-equiv", "")
    with browsing() as browser:
        for dark in (False, True):
            browser.look(900, dark=dark)
            browser.open(output.as_uri())
            browser.wait(lambda: browser.texts("#said") == ["4 texts"])
            assert browser.texts("#legend span") == kinds and browser.texts("#legend small") == ["2", "2"]
            for number in range(4):
                browser.run(
                    "const b = canvas.getBoundingClientRect(); canvas.dispatchEvent(new PointerEvent('pointermove',"
                    "{clientX: b.x + px(arguments[0]) + 3, clientY: b.y + py(arguments[0]), bubbles: true}))",
                    number,
                )
                assert browser.texts("#tip") == [f"{kinds[number % 2]}\n{texts[number]}"]
            before = browser.run("return view.scale")
            browser.all("#closer")[0].click()
            assert browser.run("return view.scale") > before and browser.texts("#tip") == []
            browser.all("#legend button")[1].click()
            assert browser.texts("#said") == ["2 of 4 texts"]
            browser.all("#find")[0].send_keys("TEXT 3")
            assert browser.texts("#said") == ["1 of 4 texts"]
            browser.all("#all")[0].click()
            assert browser.texts("#said") == ["4 texts"] and browser.run("return view.scale") == before
        assert browser.complaints() == []


TEXT = "the cat sat on the mat ."


def test_a_pipe_has_all_weights(tiny_folder: Path, tmp_path: Path) -> None:
    outcome = call("attention", TEXT, "--pair", "paris", "--model", str(tiny_folder), "--layer", "-1", "--head", "0")
    (found,) = outcome.lines
    assert found["layers"] == [1] and found["heads"] == [0] and found["pair"] == "paris"
    assert np.abs(np.array(found["attention"]).sum(-1) - 1).max() < 1e-5
    assert len(found["tokens"]) == len(found["attention"][0][0])
    wrong = ["attention", TEXT, "--model", str(tiny_folder)]
    call(*wrong, "--output", str(tmp_path / "out.csv")).fails(2, "--output")
    call(*wrong, "--layer", "7").fails(2, "--layer is 7", "a number from")


@pytest.mark.parametrize("width", ["40", "120"])
def test_a_table_fits_and_names_tokens(tiny_folder: Path, width: str) -> None:
    outcome, shown = terminal("attention", TEXT, "--model", str(tiny_folder), COLUMNS=width)
    assert outcome.status == 0 and "cat" in shown
    lines = re.sub(r"\x1b\[[0-9;]*m", "", shown).splitlines()
    assert max(map(len, lines)) <= int(width)
    assert ("→" in shown) == (width == "40")  # too narrow for a row of all tokens


@pytest.mark.parametrize("ending", ["html", "json", "npz"])
def test_files(tiny_folder: Path, tmp_path: Path, ending: str) -> None:
    path = tmp_path / f"out.{ending}"
    command = ["attention", "the </script> <!-- cat", "--model", str(tiny_folder), "--output", str(path)]
    outcome = call(*command)
    assert (outcome.status, outcome.out) == (0, "") and sorted(tmp_path.iterdir()) == [path]
    if ending == "npz":
        assert np.load(path)["attention"].shape[:2] == (2, 3)
    elif ending == "json":
        assert json.loads(path.read_text())["heads"] == [0, 1, 2]
    else:
        page = path.read_text()
        assert not re.search(r"(src|href)=|https?://(?!www\.w3\.org)|@import", page) and "default-src 'none'" in page
        assert page.count("</script>") == 1 and "<!--" not in page
        assert '"tokens": ["[CLS]"' in page
    call(*command).fails(2, str(path), "--overwrite")
    assert call(*command, "--overwrite").status == 0


def unpacked(path: Path) -> tuple[dict[str, Any], Any]:
    """The data of a page, and its weights: the mean first, then those of each head."""
    match = re.search(r"^const data = (.*);$", path.read_text(), re.MULTILINE)
    assert match is not None
    data: dict[str, Any] = json.loads(match[1])
    levels = np.frombuffer(zlib.decompress(base64.b64decode(data["weights"])), np.uint8)
    return data, (levels.reshape(-1, len(data["tokens"]), len(data["tokens"])) / 255.0) ** 2


def weighed(length: int, layers: int, heads: int) -> Attention:
    """Random weights as those of a trained model: most are small, some are large."""
    rng = np.random.default_rng(0)
    powers = np.exp(2.5 * rng.standard_normal((layers, heads, length, length), np.float32))
    tokens = tuple(Token(f"t{number}", number, 0, number, number, number + 1) for number in range(length))
    names = tuple(range(layers)), tuple(range(heads))
    return Attention("text", None, tokens, *names, powers / powers.sum(-1, keepdims=True))


def test_a_page_has_the_weights(tmp_path: Path) -> None:
    result = weighed(24, 2, 3)
    write(result, tmp_path / "page.html", "model")
    data, levels = unpacked(tmp_path / "page.html")
    assert data["least"] == 0
    assert np.abs(levels[0] - result.mean).max() < 0.005
    assert np.abs(levels[1:] - result.weights.reshape(6, 24, 24)).max() < 0.005


@pytest.mark.weekly
@pytest.mark.slow
def test_a_page_of_512_tokens_of_a_large_model_has_less_than_3_mb(tmp_path: Path) -> None:
    result = weighed(512, 12, 12)
    write(result, path := tmp_path / "page.html", "model")
    assert path.stat().st_size <= 3_000_000
    data, levels = unpacked(path)
    assert 0 < data["least"] <= 0.05 and np.abs(levels[0] - result.mean).max() < 0.005
    weights = result.weights.reshape(-1, 512, 512)
    kept = weights >= data["least"]
    assert kept.any(-1).mean() > 0.9 and (levels[1:][~kept] == 0).all()
    assert np.abs(levels[1:][kept] - weights[kept]).max() < 0.005


def test_a_rollout_in_a_pipe_a_table_and_a_page(tiny_folder: Path, tmp_path: Path) -> None:
    command = ["attention", TEXT, "--model", str(tiny_folder), "--rollout"]
    (found,) = call(*command).lines
    assert found["rollout"] is True and np.array(found["attention"]).shape[:2] == (2, 1)
    _, shown = terminal(*command, COLUMNS="120")
    assert "cat" in shown and "rollout" in shown
    assert call(*command, "--output", str(tmp_path / "out.html")).status == 0
    data, levels = unpacked(tmp_path / "out.html")
    assert data["special"] == [token in ("[CLS]", "[SEP]") for token in data["tokens"]] and any(data["special"])
    assert data["heads"] == [] and np.abs(levels[1:] - np.array(found["attention"])[:, 0]).max() < 0.005
    call(*command, "--head", "0").fails(2, "--head")


_CLICKS = """<script>setTimeout(() => {
  const squares = document.querySelectorAll("#heads td"), left = document.querySelectorAll(".left");
  const lines = () => document.querySelectorAll("line").length, found = [squares.length, left.length, lines()];
  squares[4].click(); left[2].click(); left[2].onmouseleave();
  found.push(document.getElementById("said").textContent, lines(), document.querySelectorAll(".left.on").length);
  left[2].click(); left[2].onmouseleave(); squares[4].onmouseleave(); document.getElementById("mean").click();
  document.getElementById("hide").click();
  found.push(lines(), [...left].filter((one) => getComputedStyle(one).visibility === "hidden").length);
  document.title = "found " + JSON.stringify(found);
}, 500)</script></body>"""


@pytest.mark.slow
def test_a_head_and_a_token_are_chosen_by_clicking(tiny_folder: Path, tmp_path: Path) -> None:
    browser = chromium()
    if browser is None:
        pytest.skip("needs Chromium or Chrome")
    path = tmp_path / "out.html"
    assert call("attention", "the <script> cat", "--model", str(tiny_folder), "--output", str(path)).status == 0
    path.write_text(path.read_text().replace("</body>", _CLICKS))
    own = ("--headless", "--no-sandbox", "--no-first-run", f"--user-data-dir={tmp_path / 'browser'}")
    command = [browser, *own, "--virtual-time-budget=4000", "--dump-dom", path.as_uri()]
    shown = subprocess.run(command, capture_output=True, text=True, timeout=60).stdout
    found = re.search("<title>found (.*)</title>", shown)
    assert found, shown
    squares, tokens, lines, said, fewer, kept, of_words, hidden = json.loads(found[1])
    assert (squares, tokens, said, kept) == (6, 7, "Layer 1, head 1", 1) and 0 < fewer <= tokens < lines
    assert hidden == 2 and 0 < of_words <= (tokens - 2) ** 2 < tokens**2
