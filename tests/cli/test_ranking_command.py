"""`similarity` and `rerank`: their lines, texts from files, what is bad, and vectors that `embed` has written."""

import json
import re
import shutil
import sqlite3
from collections.abc import Callable
from contextlib import closing
from pathlib import Path
from typing import Any
from unittest import mock

import numpy as np
import pytest

import mlxbert
from mlxbert.cli.output.formats import VECTORS
from mlxbert.tasks.query_ranking import Ranking, Scored
from tests.cli.test_terminal import plain
from tests.helpers.cases import together
from tests.helpers.program import Outcome, call, terminal, tiny_model
from tests.tasks.test_rerank import QUERY as CATS, TEXTS as PETS
from tests.tasks.test_reranker import language_model

pytestmark = pytest.mark.usefixtures("loaded_once")

Run = Callable[..., Outcome]
QUERY = "the cat sat on the mat"
TEXTS = ["a dog", "paris , tokyo !", QUERY, "mat", "he bought milk in the largest store"]


@pytest.fixture
def similarity(unit_folder: Path) -> Run:
    given = ("similarity", "--model", str(unit_folder), "--dtype", "float32")
    return lambda *arguments, **named: call(*given, *arguments, **named)


def ranked(outcome: Outcome) -> list[dict[str, Any]]:
    """The lines without what differs between arguments and files: what texts are compared with, and where they are."""
    assert outcome.status == 0
    left_out = ("query", "path", "line")
    return [{name: value for name, value in line.items() if name not in left_out} for line in outcome.lines]


@together(
    "given,options",
    [
        (["--prompt", ""], {"prompt": ""}),
        (["--pooling", "cls"], {"pooling": "cls"}),
        (["--prompt-name", "passage"], {"prompt_name": "passage"}),
        (["--batch-tokens", "1"], {"batch_tokens": 1}),
    ],
)
def test_lines_are_those_of_the_library_the_nearest_first(
    given: list[str], options: dict[str, Any], similarity: Run, unit: mlxbert.Model
) -> None:
    texts = [*TEXTS, "cat " * 40]
    expected = [found.to_dict() for found in mlxbert.similarity(unit, QUERY, texts, **options)]
    found = similarity(QUERY, *texts, *given).lines
    assert found == expected and [line["text"] for line in found] == [texts[line["index"]] for line in found]
    assert [list(line) for line in found] == [["query", "rank", "index", "score", "text"]] * len(texts)
    assert similarity(QUERY, *texts, *given, "--top-k", "3").lines == expected[:3]


def test_the_prompts_of_the_model_are_used_and_named(similarity: Run, unit: mlxbert.Model) -> None:
    outcome = similarity(QUERY, "a dog")
    query, text = mlxbert.embed(unit, QUERY, prompt="man is : "), mlxbert.embed(unit, "a dog", prompt="in ")
    assert abs(outcome.lines[0]["score"] - float(query @ text)) < 1e-5
    assert "query" in outcome.err and "passage" in outcome.err and "--prompt" in outcome.err
    named = similarity(QUERY, "a dog", "--query-prompt-name", "query", "--prompt-name", "passage")
    assert (named.out, named.err) == (outcome.out, "")


def test_pairs_are_rows_of_two_texts(similarity: Run, unit: mlxbert.Model, tmp_path: Path) -> None:
    (tmp_path / "in.csv").write_text(f"a,b\n{QUERY},a dog\n{QUERY},{QUERY}\n")
    outcome = similarity("--pairs", "--input", str(tmp_path / "in.csv"), "--quiet")
    pairs = [(QUERY, "a dog"), (QUERY, QUERY)]
    assert (outcome.status, outcome.err) == (0, "")
    assert outcome.lines == [found.to_dict() for found in mlxbert.similarity_pairs(unit, pairs)]
    assert [list(line) for line in outcome.lines] == [["a", "b", "score"]] * 2
    alone = pytest.approx(outcome.lines[0]["score"], abs=1e-6)  # batches of other sizes have other last digits
    assert similarity("--pairs", QUERY, "a dog").lines == [outcome.lines[0] | {"score": alone}]


def test_the_first_text_of_a_file_is_compared_with_the_others(similarity: Run, tmp_path: Path) -> None:
    expected = ranked(similarity(QUERY, *TEXTS))
    alone, others = (("".join(f"{text}\n" for text in some)).encode() for some in ([QUERY, *TEXTS], TEXTS))
    (tmp_path / "in.txt").write_bytes(alone)
    (tmp_path / "in.csv").write_text("body\n" + "".join(f'"{text}"\n' for text in [QUERY, *TEXTS]))
    (tmp_path / "others.txt").write_bytes(others)
    for name, given, stdin in (
        ("in.txt", (), b""), ("in.csv", ("--text-column", "body"), b""), ("-", (), alone), ("", (), alone),
        ("others.txt", (QUERY,), b""), ("", (QUERY,), others),
    ):  # fmt: skip
        source = ("--input", name if name == "-" else str(tmp_path / name)) if name else ()
        assert ranked(similarity(*source, *given, stdin=stdin)) == expected, (name, given)
    found = similarity("--input", str(tmp_path / "in.txt")).lines
    assert "query" not in found[0] and {line["path"] for line in found} == {str(tmp_path / "in.txt")}
    assert [line["line"] for line in found] == [line["index"] + 2 for line in expected]


def test_texts_that_were_cut_are_counted(similarity: Run) -> None:
    said = "note: 1 of 3 inputs was too long for the model and was truncated; see --overflow\n"
    none = ["--prompt", ""]
    assert similarity(QUERY, "a dog", "cat " * 40, *none).err == said
    assert similarity(QUERY, "a dog", "cat " * 40, "--quiet").err == ""
    assert similarity("cat " * 40, "a dog", "a cat", *none).err == said  # the first text is one of them
    assert similarity(QUERY, QUERY, "cat " * 40, "--top-k", "1", *none).err == said  # shown or not


@together(
    "name,content,given,status,said",
    [
        ("", "", [QUERY], 1, ["no text to rank"]),
        ("", "", [QUERY, "", " "], 1, ["no text to rank"]),
        ("", "", ["", QUERY, "a dog"], 1, ["the text is ''", "query"]),  # and not replaced by the next text
        ("", "", ["cat " * 40, "a dog", "--overflow", "error", "--prompt", ""], 1, ["42 tokens", "32"]),
        ("", "", ["--pairs", QUERY, "a dog", "cat"], 2, ["exactly two texts", "3"]),
        ("", "", ["--pairs", QUERY, "a dog", "--top-k", "1"], 2, ["--top-k", "--pairs"]),
        ("", "", [QUERY, "a", "--query-prompt-name", "doc"], 2, ["--query-prompt-name", "'doc'", "'query'"]),
        ("in.txt", f"{QUERY}\n", [], 1, ["in.txt", "text"]),
        ("in.txt", "", [], 1, ["in.txt: the input has no text"]),
        ("in.txt", f"\n{QUERY}\na dog\n", [], 1, ["in.txt, line 1", "the text is ''", "query"]),
        ("in.txt", f"{QUERY}\na dog\n", [" "], 1, ["the query is ' '"]),
        ("in.txt", "a dog\n", [QUERY, "a dog"], 2, ["--input cannot be combined with"]),
        ("in.jsonl", '{"n": 1}\n{"text": "a dog"}\n', [], 1, ["in.jsonl, line 1: ", "field", "'text'", "query"]),
    ],
)
def test_what_cannot_be_ranked_is_refused(
    name: str, content: str, given: list[str], status: int, said: list[str], similarity: Run,
    tmp_path: Path,
) -> None:  # fmt: skip
    if name:
        (tmp_path / name).write_text(content)
    outcome = similarity(*given, *(["--input", str(tmp_path / name)] if name else []))
    outcome.fails(status, *said)
    assert outcome.out == ""


def test_one_text_alone_at_a_terminal_is_refused() -> None:
    outcome, shown = terminal("similarity", QUERY, on=("stdin", "stderr"))
    assert outcome.status == 2 and "error:" in shown


def test_bad_records_come_behind_the_others(similarity: Run, tmp_path: Path) -> None:
    records = [f'{{"text": "{QUERY}"}}', '{"n": 1}', '{"text": "a dog"}', "no JSON", '{"text": "cat"}']
    (tmp_path / "in.jsonl").write_text("\n".join(records))
    given = ["--input", str(tmp_path / "in.jsonl")]
    outcome = similarity(*given)
    outcome.fails(1, "2 of 4", "failed")
    assert [line["index"] for line in outcome.lines[2:]] == [0, 2]
    assert "no field 'text'" in outcome.lines[2]["error"] and "not valid JSON" in outcome.lines[3]["error"]
    assert [line["rank"] for line in outcome.lines[:2]] == [1, 2]
    assert {line["index"]: line["text"] for line in outcome.lines[:2]} == {1: "a dog", 3: "cat"}
    strict = similarity(*given, "--strict")
    strict.fails(1, f"input 0: {tmp_path / 'in.jsonl'}, line 2: the record has no field 'text'")
    assert strict.out == ""


def test_a_file_shows_its_first_20_at_a_terminal_and_a_bar(unit_folder: Path, tmp_path: Path) -> None:
    (tmp_path / "in.txt").write_text("".join(f"cat {'w ' * (number % 9)}\n" for number in range(40)))
    given = ["similarity", QUERY, "--input", str(tmp_path / "in.txt"), "-m", str(unit_folder)]
    outcome, shown = terminal(*given)
    assert len(plain(shown)[:-1]) == 20 and "40 texts" in outcome.err and "--top-k" in outcome.err
    outcome, shown = terminal(*given, "--top-k", "30")
    assert len(plain(shown)[:-1]) == 30 and "--top-k" not in outcome.err
    assert len(call(*given).lines) == 40
    assert re.search(r"\d+ done", terminal(*given, on=["stderr"])[1])
    assert "done" not in terminal(*given, "--quiet", on=["stderr"])[1]


def test_scores_of_equal_texts_are_equal_where_batches_round_differently() -> None:
    ranking = Ranking(2)
    for index, (text, score) in enumerate([("a", 0.5), ("b", 0.4), ("a", 0.5000001), ("c", 0.6)]):
        ranking.add(index, Scored(score, text))
    assert [(one.rank, one.number, one.score) for one in ranking.sorted()] == [(1, 3, 0.6), (2, 0, 0.5)]
    ranking.add(4, Scored(0.7, "a"))  # one with this text is still kept
    ranking.add(5, Scored(0.65, "d"))
    assert [(one.text, one.number) for one in ranking.sorted()] == [("d", 5), ("c", 3)]
    ranking.add(6, Scored(0.7, "a"))
    assert [(one.text, one.score) for one in ranking.sorted()] == [("a", 0.7), ("d", 0.65)]


def test_a_ranking_keeps_columns_and_leaves_out_empty_texts(similarity: Run, tmp_path: Path) -> None:
    rows = ["id,text,shelf,line", f"a,{QUERY},x,7", "b,,y,8", "c,a dog,z,9", "d,   ,w,10"]
    (tmp_path / "in.csv").write_text("\n".join(rows))
    given = [QUERY, "--input", str(tmp_path / "in.csv")]
    outcome = similarity(*given)
    assert [(line["id"], line["index"], line["line"]) for line in outcome.lines] == [("a", 0, 2), ("c", 2, 4)]
    assert "2 empty texts" in outcome.err and outcome.status == 0
    kept = similarity(*given, "--keep", "shelf", "--keep", "line").lines
    assert [(line["shelf"], line["line"], line.get("id")) for line in kept] == [("x", "7", None), ("z", "9", None)]
    similarity(*given, "--keep", "text").fails(2, "--keep text")
    (tmp_path / "in.txt").write_text(f"{QUERY}\n\na dog\n")
    [line] = similarity("--input", str(tmp_path / "in.txt")).lines
    assert (line["text"], line["line"], line["index"]) == ("a dog", 3, 1)
    (tmp_path / "in.csv").write_text("text,Path,line\na dog,x,7\n")
    given += ["--keep", "Path,line"]
    assert similarity(*given, "--output", str(tmp_path / "x.sqlite")).status == 0  # which ignores the case of names
    [line] = similarity(*given).lines
    assert (line["Path"], line["line"], "path" in line) == ("x", "7", False)


def test_a_ranking_is_written_to_a_file(similarity: Run, tmp_path: Path) -> None:
    (tmp_path / "in.jsonl").write_text('{"text": "a dog", "id": 5}\n{"n": 1}\n{"text": "cat"}\n{"text": "mat"}\n')
    given, path = [QUERY, "--input", str(tmp_path / "in.jsonl"), "--top-k", "2"], tmp_path / "x.jsonl"
    outcome = similarity(*given, "--output", str(path))
    outcome.fails(1, "1 of 4 inputs failed")
    assert outcome.out == "" and sorted(one.name for one in tmp_path.iterdir()) == ["in.jsonl", path.name]
    found, printed = [json.loads(line) for line in path.read_text().splitlines()], similarity(*given).lines
    assert len(found) == len(printed) == 3 and all(
        line.items() <= row.items() for row, line in zip(found, printed, strict=True)
    )
    assert [row.get("query") for row in found[:2]] == [QUERY] * 2 and "line 2" in found[2]["error"]
    similarity(*given, "--output", str(path)).fails(2, "exists")


def test_texts_of_unknown_tokens_alone_are_counted(similarity: Run, unit_folder: Path, tmp_path: Path) -> None:
    outcome = similarity(QUERY, "\u518d \u89c1", "a dog \u518d", "a dog")
    assert "1 of 4 texts" in outcome.err and "unknown" in outcome.err
    assert {line["text"]: line.get("unknown_tokens", 0) for line in outcome.lines} == {
        "a dog": 0, "a dog \u518d": 1, "\u518d \u89c1": 2,
    }  # fmt: skip
    assert "unknown" in similarity("\u4f60\u597d", "a dog").err
    embedded = call("embed", "\u518d \u89c1", "a dog", "-m", str(unit_folder), "--prompt", "a man : ")
    filled = call("fill-mask", "\u518d [MASK] \u89c1", "[MASK]", "-m", str(tiny_model(tmp_path / "tiny")))
    for outcome in (embedded, filled):
        assert "1 of 2 texts" in outcome.err
        assert [line.get("unknown_tokens") for line in outcome.lines] == [2, None]


ALONE = (".jsonl", ".csv", ".parquet", ".sqlite")  # endings of files that also hold the texts


@pytest.fixture
def run(unit_folder: Path) -> Run:
    return lambda name, *given: call(name, *map(str, given), "--model", str(unit_folder), "--prompt", "")


@pytest.fixture
def texts(tmp_path: Path) -> Path:
    rows = "".join(f'{number + 40},"{text}"\n' for number, text in enumerate([*TEXTS, ""]))
    (tmp_path / "in.csv").write_text("id,text\n" + rows)
    return tmp_path / "in.csv"


@pytest.mark.parametrize("ending", VECTORS)
def test_the_order_and_the_scores_are_those_of_embedding_again(
    ending: str, run: Run, texts: Path, tmp_path: Path
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
    ending: str, run: Run, texts: Path, tmp_path: Path
) -> None:
    for dtype in ("int8", "binary"):
        run("embed", "-i", texts, "-o", tmp_path / f"{dtype}{ending}", "--output-dtype", dtype)
    found = run("similarity", QUERY, "--vectors", tmp_path / f"int8{ending}", "-i", texts)
    assert [line["score"] for line in found.lines] == pytest.approx(
        [line["score"] for line in run("similarity", QUERY, "-i", texts).lines], abs=0.02
    )
    refused = run("similarity", QUERY, "--vectors", tmp_path / f"binary{ending}", "-i", texts)
    refused.fails(1, "3 values", "24", "binary")
    assert (f"int8{ending}" in found.err) == (ending == ".npy")  # which does not state its model


def test_what_does_not_belong_together_is_refused(run: Run, texts: Path, tmp_path: Path) -> None:
    stored, output = tmp_path / "e.npy", tmp_path / "x.jsonl"
    run("embed", "-i", texts, "-o", stored)
    given = ("similarity", QUERY, "--vectors", stored, "-i")
    for count, said in ((5, "texts, which end after 5"), (7, "more texts than vectors, which end after 6")):
        (tmp_path / "other.txt").write_text("a dog\n" * count)
        run(*given, tmp_path / "other.txt", "-o", output).fails(1, "other.txt", "e.npy", said)
    run(*given, texts, "--dimensions", "5").fails(1, "24 values", "5")
    run("similarity", "--vectors", stored, "-i", texts).fails(2, "--vectors", "query")
    run("similarity", QUERY, "a dog", "--vectors", stored).fails(2, "exactly one text", "2")
    outcome, shown = terminal("similarity", QUERY, "--vectors", str(stored), on=("stdin", "stderr"))
    assert outcome.status == 2 and "e.npy" in shown and "--input FILE" in shown
    run(*given, texts, "--pairs").fails(2, "--vectors", "pairs")
    run("similarity", QUERY, "--vectors", texts).fails(1, "in.csv", "embedding")
    for name in ("other.txt", "x.db", "x.ndjson", "x.safetensors"):
        run("similarity", QUERY, "--vectors", tmp_path / name).fails(2, f"'{Path(name).suffix}'", ".npy", ".sqlite")
    (tmp_path / "bad.npy").write_bytes(b"x")
    (tmp_path / "bad.sqlite").write_bytes(b"x" * 200)
    np.savez(tmp_path / "several.npz", a=np.zeros((2, 3)))
    (tmp_path / "several.npz").rename(tmp_path / "several.npy")
    np.save(tmp_path / "flat.npy", np.zeros(3, np.float32))
    for name, said in (
        *((name, "") for name in ("none.npy", "bad.npy", "bad.sqlite", "several.npy")),
        ("flat.npy", "(3,)"),
    ):
        run("similarity", QUERY, "--vectors", tmp_path / name, "-i", texts).fails(1, name, said)
    for number, one in enumerate(("x", b"x" * 97, 5)):
        with closing(sqlite3.connect(tmp_path / f"{number}.sqlite")) as base, base:
            base.execute("CREATE TABLE embed (embedding)")
            base.execute("INSERT INTO embed VALUES (?)", (one,))
            base.execute("CREATE TABLE about (name, value)")
            base.execute("INSERT INTO about VALUES (?, ?)", ("options", '{"output_dtype": "float32"}'))
        run("similarity", QUERY, "--vectors", tmp_path / f"{number}.sqlite", "-i", texts).fails(1, f"{number}.sqlite")
    assert not [*tmp_path.glob("x.jsonl*")]


@pytest.mark.parametrize("ending", [".parquet", ".sqlite"])
def test_a_file_that_names_its_model_and_options_is_held_to_them(
    ending: str, run: Run, texts: Path, tmp_path: Path, unit_folder: Path
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


@pytest.mark.parametrize("ending", [".npy", ".sqlite", ".csv"])
def test_a_text_that_failed_has_no_score(ending: str, run: Run, tmp_path: Path) -> None:
    texts, stored = tmp_path / "in.jsonl", tmp_path / f"e{ending}"
    for bad in ("cat " * 40, 5):
        texts.write_text("".join(json.dumps({"text": text}) + "\n" for text in ["a dog", bad, "mat"]))
        run("embed", "-i", texts, "-o", stored, "--overflow", "error", "--overwrite").fails(1, "1 of 3")
        found = run("similarity", QUERY, "--vectors", stored, "-i", texts)
        found.fails(1, "1 of 3 inputs failed")
        assert [line["index"] for line in found.lines][2] == 1 and "line 2" in found.lines[2]["error"]
        if ending in ALONE:
            alone = run("similarity", QUERY, "--vectors", stored)
            alone.fails(1, "1 of 3 inputs failed", "hint: check whether embed failed")
            assert "empty text" not in alone.err


def test_vectors_of_a_database_stay_in_the_order_of_their_texts(run: Run, texts: Path, tmp_path: Path) -> None:
    texts.write_text("rowid,text\n" + "".join(f'{9 - number},"{text}"\n' for number, text in enumerate(TEXTS)))
    assert run("embed", "-i", texts, "-o", tmp_path / "e.sqlite", "--keep", "rowid").status == 0
    with closing(sqlite3.connect(tmp_path / "e.sqlite")) as base, base:
        base.execute("CREATE INDEX by_vector ON embed (embedding)")
    found = run("similarity", QUERY, "--vectors", tmp_path / "e.sqlite", "-i", texts).lines
    assert [line["text"] for line in found] == [line["text"] for line in run("similarity", QUERY, "-i", texts).lines]
    alone = run("similarity", QUERY, "--vectors", tmp_path / "e.sqlite").lines
    assert [(line["text"], line["score"]) for line in alone] == [(line["text"], line["score"]) for line in found]


def test_lines_of_rerank_are_those_of_the_library(folders: dict[str, Path], tmp_path: Path) -> None:
    model = ["--model", str(folders["rerank"]), "--dtype", "float32"]
    loaded = mlxbert.load(folders["rerank"], task="classify", dtype="float32")
    expected = [one.to_dict() for one in mlxbert.rerank(loaded, CATS, PETS)]
    outcome = call("rerank", CATS, *PETS, *model)
    assert (outcome.status, outcome.err, outcome.lines) == (0, "", expected)
    shown = plain(terminal("rerank", CATS, *PETS, *model)[1])
    assert [line.split()[0] for line in shown if line.strip()] == ["1", "2", "3", "4"]
    path = tmp_path / "in.csv"
    path.write_text("id,body\n" + "".join(f'{number},"{text}"\n' for number, text in enumerate(PETS)))
    given = [*model, "--input", str(path), "--text-column", "body", "--quiet"]
    placed = [{"id": str(one["index"]), "path": str(path), "line": one["index"] + 2, **one} for one in expected]
    without_query = [{name: value for name, value in line.items() if name != "query"} for line in placed]
    assert call("rerank", CATS, *given).lines == without_query
    assert call("rerank", CATS, *given, "--top-k", "2").lines == without_query[:2]
    assert call("rerank", CATS, *given, "--output", str(tmp_path / "x.jsonl")).status == 0
    assert [json.loads(line) for line in (tmp_path / "x.jsonl").read_text().splitlines()] == placed
    piped = call("rerank", *model, stdin="\n".join([CATS, *PETS]).encode())
    assert [line | {"path": str(path), "id": str(line["index"])} for line in piped.lines] == without_query


def test_a_model_that_does_not_rank_and_missing_texts_are_refused(folders: dict[str, Path], tmp_path: Path) -> None:
    model = ["--model", str(folders["rerank"])]
    call("rerank", CATS, *PETS, "--model", str(folders["emotions"])).fails(1, "4 scores", "classify")
    call("rerank", CATS, *PETS).fails(1, "no classification head", "hint: rerank needs a cross-encoder")
    call("rerank", CATS, *model).fails(1, "no text to rank")
    call("rerank", CATS, *model, "--input", str(tmp_path / "none.txt")).fails(1, "none.txt")
    outcome = call("rerank", "the cat " * 40, *PETS, "--overflow", "window", *model)
    outcome.fails(1, "the query has 80 tokens", "hint: ")  # which is to blame once
    assert outcome.out == "" and outcome.err.count("error: ") == 1


def test_an_instruction_is_for_models_that_take_one(folders: dict[str, Path], tmp_path: Path) -> None:
    judge, prompt = str(language_model(tmp_path / "m")), ("--prompt", "Find pets")
    lines = [call("rerank", CATS, *PETS, "--model", judge, *more).lines for more in ((), prompt)]
    assert lines[0] != lines[1]
    call("rerank", CATS, *PETS, "--model", str(folders["rerank"]), *prompt).fails(2, "--prompt is 'Find pets'")
