"""The command line of search: indexes that are found, made and kept up to date, and passages as they are shown."""

import itertools
import json
import os
import re
import shlex
import signal
import sqlite3
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from mlxbert.cli.shared_options import OutputOptions
from mlxbert.cli.views import console
from mlxbert.errors import MlxbertError
from mlxbert.search import views
from mlxbert.search.commands import index_updates
from mlxbert.search.commands.index_updates import update_index
from mlxbert.search.index import open_index
from mlxbert.search.index_writer import IndexWriter
from mlxbert.search.schema import locked
from tests.cli.test_terminal import plain
from tests.helpers.answering import save_answering
from tests.helpers.cases import together
from tests.helpers.program import TERMINALS, Outcome, Terminal, call, command, environment, terminal, tiny_model
from tests.helpers.screen import Screen
from tests.helpers.token_folders import bge_m3

pytestmark = pytest.mark.usefixtures("models_once")
Run = Callable[..., Outcome]
KEYS = (
    "query rank score path place start_line end_line page title text fields vector_score word_score rerank_score "
    "token_score chunk is_close duplicates"
)
FILES = {
    "a.md": "# Pets\n\n## Cats\n\nthe cat sat on the mat\n\n## Dogs\n\nthe dog sat . tokyo\n",
    "b.txt": "paris , w1 w2 w3\n\nw4 w5 w6\n",
    "c/d.csv": "id,text,lang\n1,w7 w8,de\n2,w9 w10,fr\n",
    "c/e.bin": "\0\1",
    ".f.txt": "hidden w1",
}


@pytest.fixture
def files(tmp_path: Path) -> Path:
    folder = tmp_path / "files"
    for name, text in FILES.items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text(text, encoding="utf-8")
    return folder


@pytest.fixture
def variables(tmp_path: Path, small: str) -> dict[str, str]:
    return {"MLXBERT_DATA": str(tmp_path / "data"), "MLXBERT_MODEL": small}


@pytest.fixture
def run(variables: dict[str, str]) -> Run:
    return lambda *given: call(*map(str, given), **variables)  # type: ignore[arg-type]


def paths(outcome: Outcome) -> list[str]:
    assert outcome.status == 0, outcome
    return [Path(line["path"]).name for line in outcome.lines]


def test_the_first_search_makes_an_index_and_later_ones_read_only_what_changed(run: Run, files: Path) -> None:
    first = run("search", "paris", files)
    assert [*first.lines[0]] == KEYS.split() and paths(first)[0] == "b.txt"
    assert "left out: 1 hidden, 1 binary" in first.err.replace("1 binary, 1 hidden", "1 hidden, 1 binary")
    assert run("search", "paris", files, "--mode", "words").err == ""
    (files / "g.txt").write_text("paris paris", encoding="utf-8")
    (files / "b.txt").unlink()
    assert paths(run("search", "paris", files, "--no-update"))[0] == "b.txt"
    found = paths(run("search", "paris", files))
    assert found[0] == "g.txt" and "b.txt" not in found


def test_a_folder_without_files_has_no_index(run: Run, tmp_path: Path) -> None:
    (tmp_path / "none").mkdir()
    for given in (["index", tmp_path / "none"], ["search", "w", tmp_path / "none"]):
        outcome = run(*given)
        outcome.fails(1, "none: there are no files")
        assert outcome.out == "" and "hint" not in outcome.err
    assert run("indexes", "list").lines[0]["indexes"] == []


def test_an_index_that_cannot_be_written_is_searched_as_it_is(
    run: Run, files: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run("index", files)
    usual = os.access
    monkeypatch.setattr(os, "access", lambda path, mode, **more: mode != os.W_OK and usual(path, mode, **more))
    found = run("search", "paris", files)
    assert paths(found)[0] == "b.txt" and "read-only" in found.err
    (tmp_path / "other.txt").write_text("paris")
    (index,) = run("indexes", "list").lines[0]["indexes"]
    run("search", "paris", tmp_path / "other.txt", "--index", index["index"]).fails(1, "read-only")


def test_only_what_lies_under_the_paths_and_fits_the_conditions_is_found(run: Run, files: Path) -> None:
    run("index", files)
    assert {*paths(run("search", "w7", files / "c"))} == {"d.csv"}
    assert {*paths(run("search", "w7", files, "--where", "path=*.md"))} == {"a.md"}
    (line,) = run("search", "w7", files, "--where", "lang=fr", "--explain", "--context", "1").lines
    assert line["fields"]["lang"] == "fr" and line["word_rank"] is None and line["vector_rank"] == 1
    assert (line["before"], line["after"]) == ([], [])
    assert len(run("search", "cat", files, "--mode", "words").lines) == 1
    assert run("search", "w40", files, "--mode", "words").err == "note: nothing was found\n"
    run("search", "w7", files, "--where", "x").fails(2, "--where")


@together(
    ("given", "said"),
    [
        (["--where", "lang==de"], "hint: --where matches 0 of 4 documents; "),
        (["--where", "lang=DE"], "matches 0 of 4 "),
        (["--where", "lang=de", "--mode", "words"], "matches 1 of 4 documents\n"),
        (["--min-score", "99"], "hint: the best score is "),
        (["--where", "nosuch=1"], "no document has the field 'nosuch'"),
    ],
)
def test_what_a_filter_leaves_nothing_of_is_said(run: Run, files: Path, given: list[str], said: str) -> None:
    outcome = run("search", "paris", files, *given)
    assert outcome.lines == [] and outcome.err.count("hint: ") == 1 and said in outcome.err


@pytest.mark.slow
def test_files_that_cannot_be_read_are_named_once_when_nothing_is_close(
    run: Run, files: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("mlxbert.search.index_writer._SETTLED", 0)
    damaged = files / "damaged.docx"
    damaged.write_bytes(b"PK\3\4 no archive")
    assert run("search", "zebra", files, "--mode", "words").err.count("damaged.docx") == 1
    outcome = run("search", "zebra", files, "--mode", "words")
    assert outcome.lines == [] and outcome.err.count("damaged.docx") == 1
    damaged.unlink()
    assert "could not" not in run("search", "zebra", files, "--mode", "words").err


@together(
    ("typed", "hint"),
    [
        ("dedupe files", "mlxbert index files"),
        ("cluster --input files", "--index files"),
        ("map files --output m.html", "--index files"),
        ("similarity cat --input files", "mlxbert search QUERY files"),
        ("tokenize files", "mlxbert search QUERY files"),
        ("answer who? --index files", "mlxbert search QUERY files --answer MODEL"),
        ("search the cat sat files", "mlxbert search 'the cat sat' files"),
        ("search the cat", "mlxbert search 'the cat'"),
        ("search cat --index files", "`mlxbert search QUERY files`"),
        ("mcp --index files", "among the paths"),
        ("answer who? --context-file files", "`mlxbert search QUERY files` searches"),
    ],
)
def test_who_has_a_folder_is_told_what_to_type(
    run: Run, files: Path, monkeypatch: pytest.MonkeyPatch, typed: str, hint: str
) -> None:
    monkeypatch.chdir(files.parent)
    outcome = run(*typed.split())
    assert outcome.status and hint in outcome.err.partition("hint: ")[2]


def test_a_pattern_that_no_file_fits_is_taken_as_a_text_but_said() -> None:
    assert "notes/*.md" in call("tokenize", "notes/*.md").err and not call("tokenize", "a * b.").err


def test_a_query_after_the_path_and_waiting_without_watching_are_seen(run: Run, files: Path) -> None:
    run("index", files, "--when", "plugged-in").fails(2, "--watch")
    run("search", files, "where is the cat").fails(1, "where is the cat", "hint: ", "mlxbert search QUERY PATH")
    assert "QUERY" not in run("search", "cat", files / "none").err


def test_without_a_path_the_current_folder_is_searched(run: Run, files: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(files / "c")
    run("search", "w7").fails(2, "no index covers", "hint: ")
    run("search", "w7", files, "--no-update").fails(2, "no index covers")
    run("index", files)
    assert [line["path"] for line in run("search", "w7").lines] == ["d.csv"] * 2


def test_token_vectors_are_kept_and_used_unless_the_user_declines(run: Run, files: Path, tmp_path: Path) -> None:
    model, own = bge_m3(tmp_path / "model"), tmp_path / "own.db"
    run("index", files, "--index", own, "--model", model)
    assert run("indexes", "show", own).lines[0]["token_vectors"] == "binary"
    assert all(line["token_score"] is not None for line in run("search", "the cat", "--index", own).lines)
    for options in (["--no-rerank"], ["--mode", "words"]):
        assert all(line["token_score"] is None for line in run("search", "the cat", "--index", own, *options).lines)
    run("search", "the cat", "--index", own, "--no-rerank", "--rerank", model).fails(2, "--no-rerank")
    run("search", "the cat", "--index", own, "--no-rerank", "--candidates", "9").fails(2, "cannot be combined")
    run("search", "the cat", "--index", tmp_path / "new.db", files, "--candidates", "9").fails(2, "is 9, expected")
    assert not (tmp_path / "new.db").exists()
    words = run("search", "the cat", "--index", own, "--mode", "words", "--candidates", "20")
    words.fails(2, "a search by words", "hint: ", "--rerank", "--candidates")
    run("search", "the cat", "--index", own, "--no-token-vectors").fails(2, "--no-token-vectors")
    dense = tmp_path / "dense.db"
    run("index", files, "--index", dense, "--model", model, "--no-token-vectors")
    shown = run("indexes", "show", dense).lines[0]
    assert shown["vectors"] == "dense" and shown["token_vectors"] is shown["query_prompt"] is shown["prompt"] is None


def test_an_index_of_ones_own_is_searched_whole_and_keeps_what_it_was_made_with(run: Run, files: Path) -> None:
    own = files.parent / "own.db"
    run("search", "w7", "--index", own).fails(2, "own.db")
    assert run("index", files, "--index", own, "--include", "*.md", "--chunk-tokens", "16").lines[0]["files"] == 1
    assert {*paths(run("search", "w7", "--index", own))} == {"a.md"}
    run("search", "w7", "--index", own, "--include", "*.txt").fails(2, "--include is *.txt, but", "the value *.md\n")
    run("search", "w7", "--index", own, "--exclude", "x", "--exclude", "y").fails(2, "is x, y, but", "the value none\n")
    run("search", "w7", "--index", own, "--text-column", "a").fails(2, "--text-column is a, but", "the value none\n")
    run("search", "w7", "--index", own, "--encoding", "gbk").fails(2, "--encoding is gb18030, but", "the value none\n")
    run("search", "w7", "--index", own, "--prompt", "in ").fails(2, "--prompt is 'in ', but", "the value none\n")
    run("search", "w7", "--index", own, "--model", "builtin").fails(1, "builtin")
    assert not (files.parent / "data").exists()


def test_the_encoding_of_files_without_a_label_is_chosen(run: Run, tmp_path: Path) -> None:
    folder = tmp_path / "archive"
    folder.mkdir()
    (folder / "a.txt").write_bytes("возврат".encode("cp866"))
    (folder / "b.txt").write_bytes("возврат".encode())
    run("index", folder, "--encoding", "nosuch").fails(2, "--encoding is 'nosuch', expected", "hint: ")
    run("index", folder, "--encoding", "IBM866")
    assert {line["text"] for line in run("search", "возврат", folder).lines} == {"возврат"}
    (line,) = run("search", "возврат", folder, "--encoding", "cp866").lines
    assert {Path(place["path"]).name for place in (line, *line["duplicates"])} == {"a.txt", "b.txt"}
    run("search", "возврат", folder, "--encoding", "koi8-r").fails(2, "--encoding is koi8-r, but", "the value cp866\n")


def test_a_new_index_with_another_model_than_that_of_its_path_is_said(
    run: Run, files: Path, variables: dict[str, str], tmp_path: Path
) -> None:
    (tmp_path / "second").mkdir()
    (tmp_path / "second" / "b.txt").write_text("w1 w2")
    other = str(tiny_model(tmp_path / "other", hidden_act="relu"))
    run("index", files, "--model", other)
    same = run("index", files, tmp_path / "second", "--model", other, "--index", tmp_path / "x.db")
    assert "--model" not in same.err and same.lines[0]["files"] == 4
    said = run("index", files, tmp_path / "second")
    assert said.lines[0]["files"] == 4 and f"the index of {files} has {other}" in said.err
    assert f"with the model {variables['MLXBERT_MODEL']}" in said.err and f"--model {other}" in said.err
    assert "hint: " not in run("index", files, tmp_path / "second").err  # it has its model now


def test_what_happens_to_other_paths_of_an_index_is_said(run: Run, files: Path, tmp_path: Path) -> None:
    (other := tmp_path / "other").mkdir()
    (other / "o.txt").write_text("w11 w12")
    own = tmp_path / "own.db"
    assert "note: the index" not in run("index", files, other, "--index", own).err
    (other / "p.txt").write_text("w13 w14")
    said = run("index", files, "--index", own)
    assert "also covers" in said.err and str(other) in said.err and said.lines[0]["files"] == 5
    other.rename(tmp_path / "away")
    said = run("index", files, "--index", own)
    assert said.status == 0 and "missing" in said.err and said.lines[0]["files"] == 5
    searched = run("search", "w11", tmp_path / "away", "--index", own)
    assert "note: the index now covers " in searched.err and {"o.txt", "p.txt"} & {*paths(searched)}
    assert "now covers" not in run("search", "w11", tmp_path / "away", "--index", own).err
    assert run("index", files, "--index", own).lines[0]["files"] == 7
    run("search", "w7", "--index", own, "--device", "gpu").fails(1, "GPU")


def test_nothing_to_read_is_an_error(run: Run, files: Path) -> None:
    run("search", "w7", files / "c" / "e.bin").fails(1, "no file could be read", "--verbose")
    run("search", "w7", files / "none").fails(1, "none")
    run("search", " ", files).fails(2, "query")
    run("index", files / "c" / "e.bin", "--index", files.parent / "own.db").fails(1, "no file could be read")
    assert not [*files.parent.rglob("*.db*")]
    run("index", files, "--index", files).fails(2, "is a folder")
    no_head = run("search", "w7", files, "--rerank", "builtin")
    no_head.fails(1, "no classification head", "hint: rerank needs a cross-enc")


@pytest.fixture(scope="module")
def answering(tmp_path_factory: pytest.TempPathFactory) -> str:
    return str(save_answering(tmp_path_factory.mktemp("answering"), no_answer_threshold=1.0))


def test_the_answer_comes_first_with_its_place(run: Run, files: Path, answering: str) -> None:
    answer, *hits = run("search", "dog sat", files, "--answer", answering).lines
    assert [*answer] == ["query", "answer", "score", "rank", "path", "place", "line", "page", "start", "end", "chunk"]
    hit = hits[answer["rank"] - 1]
    assert hit["text"][answer["start"] : answer["end"]] == answer["answer"] and 0 < answer["score"] < 1
    assert (hit["path"], hit["chunk"], hit["place"]) == (answer["path"], answer["chunk"], answer["place"])
    (nothing,) = run("search", "w40", files, "--mode", "words", "--answer", answering).lines
    assert (nothing["answer"], nothing["score"]) == (None, 0)


def test_that_there_is_no_answer_is_said(
    run: Run, files: Path, answering: str, tmp_path: Path, variables: dict[str, str]
) -> None:
    never = str(save_answering(tmp_path / "never", no_answer_threshold=0.0))
    answer, *hits = run("search", "dog sat", files, "--answer", never).lines
    assert answer["answer"] is None and answer["rank"] is None and answer["score"] > 0 and hits
    _, shown = terminal("search", "dog sat", str(files), "--answer", never, **variables)
    assert "no answer" in plain(shown)[0] and f"in {len(hits)} passages" in plain(shown)[0]


def test_nothing_close_is_said_but_not_beside_an_answer(
    run: Run, files: Path, answering: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("mlxbert.search.rank_fusion._OFFSET", -100.0)
    alone = run("search", "dog sat", files)
    assert "nothing close" in alone.err and not any(line["is_close"] for line in alone.lines)
    answer, *hits = run("search", "dog sat", files, "--answer", answering).lines
    assert answer["answer"] and not any(hit["is_close"] for hit in hits)
    assert "nothing close" not in run("search", "dog sat", files, "--answer", answering).err
    assert "nothing close" not in run("search", "dog sat", files, "--mode", "vectors").err


@pytest.mark.parametrize("columns", ["50", "120"])
def test_a_terminal_shows_the_answer_above_the_passages(
    run: Run, files: Path, answering: str, variables: dict[str, str], columns: str
) -> None:
    answer = run("search", "dog sat", files, "--answer", answering).lines[0]
    given = ("search", "dog sat", str(files), "--answer", answering)
    _, shown = terminal(*given, **variables | {"COLUMNS": columns})
    lines = plain(re.sub(r"\x1b\]8;.*?\x1b\\", "", shown))
    assert lines[0].strip() == " ".join(answer["answer"].split()) and all(len(line) <= int(columns) for line in lines)
    place = "".join(lines[1:4])
    assert f"{Path(answer['path']).name}:{answer['line']}" in place and f"{answer['score']:.1%}" in place
    assert any(line.startswith("2  ") or line == "2" for line in lines)


def test_what_answers_is_a_question_answering_model(run: Run, files: Path, answering: str) -> None:
    named = "for example deepset/roberta-base-squad2"
    run("search", "w7", files, "--answer", "builtin").fails(1, "no question-answering head", named)
    assert run("indexes", "list").lines[0]["indexes"] == []  # not made for a search that cannot be
    run("search", "w7", files, "--answer").fails(2, "--answer has no value, expected MODEL", named)
    run("search", "w1 " * 30, files, "--answer", answering).fails(1, "question has")


@pytest.fixture
def lossy(files: Path) -> Path:
    """The files, and a few of which parts are left out or guessed."""
    (files / "c" / "five.jsonl").write_text('{"text": "w1"}\n' * 2 + '{"text": \n' + '{"text": "w2"}\n' * 2)
    (files / "c" / "semi.csv").write_text("id;text\n1;the cat, and a dog\n")
    (files / "c" / "lost.csv").write_text("text,id\n" + "the lamp, please,1\nmilk, please, 2\n" + "w3,3\n")
    (files / "c" / "empty.md").write_text("")
    return files


LOST = [
    ("c/e.bin", "", "left out"), ("c/empty.md", "", "left out"), ("c/five.jsonl", "line 3", "left out"),
    ("c/lost.csv", "line 2", "left out"), ("c/lost.csv", "line 3", "left out"), ("c/semi.csv", "", "guessed"),
]  # fmt: skip


def test_what_was_left_out_is_the_same_everywhere(run: Run, lossy: Path, variables: dict[str, str]) -> None:
    made = run("index", lossy)
    (summary,) = made.lines
    listed = run("indexes", "show", lossy, "--problems").lines
    assert [(str(Path(line["path"]).relative_to(lossy)), line["place"], line["kind"]) for line in listed] == LOST
    with open_index(summary["index"]) as index:
        assert [vars(problem) for problem in index.problems()] == listed
        assert index.stats().problems == {"left out": 5, "guessed": 1}
    assert sum(group["count"] for group in summary["problems"]) == len(LOST) and "failed" not in summary
    assert summary["problems"] == run("indexes", "show", lossy).lines[0]["problems"]
    assert summary["problems"][0] == {
        "kind": "left out", "reason": listed[3]["reason"], "count": 2, "path": listed[3]["path"], "place": "line 2",
    }  # fmt: skip
    assert f"mlxbert indexes show {lossy} --problems" in made.err and f"{listed[3]['reason']} (2)" in made.err
    _, shown = terminal("indexes", "show", str(lossy), "--problems", **variables, COLUMNS="300")
    text = "\n".join(plain(shown))
    for path, place, _ in LOST:
        assert path in text and place in text
    assert all(line["reason"] in text for line in listed) and text.count(listed[3]["reason"]) == 1


def test_problems_are_noted_after_an_update_that_changed_something(run: Run, lossy: Path) -> None:
    assert "--problems" in run("search", "paris", lossy).err
    assert run("search", "paris", lossy, "--mode", "words").err == ""
    (lossy / "b.txt").write_text("paris")
    assert "--problems" not in run("search", "paris", lossy / "b.txt").err  # the problems are elsewhere
    (lossy / "bad.ipynb").write_bytes(b"{no")
    own = run("index", lossy, "--index", lossy.parent / "own.db", "--verbose")
    assert f"mlxbert indexes show {lossy.parent / 'own.db'} --problems" in own.err
    assert "left out: is not valid JSON" in own.err and "bad.ipynb: " in own.err and own.lines[0]["files"] > 3
    clean = run("index", lossy / "a.md", "--index", lossy.parent / "clean.db")
    assert clean.err.count("\n") == 1 and "pooling is assumed" in clean.err and clean.lines[0]["problems"] == []
    none = run("indexes", "show", lossy.parent / "clean.db", "--problems")
    assert none.lines == [] and "no problems" in none.err


def test_a_problem_of_a_file_with_any_name_is_shown(run: Run, files: Path, variables: dict[str, str]) -> None:
    (files / "x\x1b[5A\udcff.txt").write_text("")
    run("index", files)
    (line,) = [line for line in run("indexes", "show", files, "--problems").lines if line["path"].endswith(".txt")]
    assert line["path"] == f"{files}/x\x1b[5A\udcff.txt"
    _, shown = terminal("indexes", "show", str(files), "--problems", **variables)
    assert "x␛[5A" in shown and "\x1b[5A" not in shown


def test_indexes_are_listed_shown_moved_and_removed(run: Run, files: Path, variables: dict[str, str]) -> None:
    run("index", files)
    (found,) = run("indexes", "list").lines
    (one,) = found["indexes"]
    assert found["folder"] == str(Path(one["index"]).parent)
    assert one == run("indexes", "show", files / "c").lines[0]
    assert (one["covers"], one["files"], one["documents"]) == ([str(files)], 3, 4)
    _, shown = terminal("indexes", "list", **variables)
    assert "covers" in shown and "3" in shown
    run("indexes", "remove", files).fails(2, "terminal", "hint: --yes")
    run("indexes", "remove", files / "c", "--yes").fails(2, str(files))
    moved = files.rename(files.parent / "moved")
    (now,) = run("indexes", "move", files, moved).lines
    assert now["covers"] == [str(moved)]
    assert run("index", moved).lines[0]["embedded"] == 0
    assert paths(run("search", "paris", moved, "--no-update"))[0] == "b.txt"
    assert run("indexes", "remove", moved, "--yes").status == 0
    assert run("indexes", "list").lines[0]["indexes"] == []
    run("indexes", "show", moved).fails(1, "no index", "indexes list")


def test_a_folder_that_has_an_index_gets_no_other_one(run: Run, files: Path, tmp_path: Path) -> None:
    (tmp_path / "other").mkdir()
    (tmp_path / "other" / "x.txt").write_text("w9")
    made = [run("index", folder).lines[0]["index"] for folder in (files, tmp_path / "other")]
    run("indexes", "move", files, tmp_path / "other").fails(1, "index of its own", "hint: remove it")
    listed = run("indexes", "list").lines[0]["indexes"]
    assert {one["index"] for one in listed} == {*made}
    assert {path for one in listed for path in one["covers"]} == {str(files), str(tmp_path / "other")}


def test_an_index_outside_the_data_folder_is_moved_by_its_file(run: Run, files: Path, tmp_path: Path) -> None:
    at = tmp_path / "own.db"
    assert run("index", files / "c", files / "b.txt", "--index", at).status == 0
    before = at.read_bytes()
    run("indexes", "move", at, at).fails(2, str(files / "c"), "hint: ", "--index")  # none of its folders is missing
    assert at.read_bytes() == before
    moved = (files / "c").rename(tmp_path / "d")
    (now,) = run("indexes", "move", at, moved).lines
    assert now["index"] == str(at) and {*now["covers"]} == {str(moved), str(files / "b.txt")}
    assert run("index", moved, "--index", at).lines[0]["embedded"] == 0
    again, file = moved.rename(tmp_path / "e"), (files / "b.txt").rename(tmp_path / "f.txt")
    run("indexes", "move", at, again).fails(2, str(moved), str(files / "b.txt"), "hint: ")  # which of the two?
    run("index", again)  # has an index in the data folder, too
    for old, new in ((moved, again), (files / "b.txt", file)):
        (now,) = run("indexes", "move", old, new, "--index", at).lines
    assert {*now["covers"]} == {str(again), str(file)}


def test_an_index_that_another_process_creates_meanwhile_is_not_removed(
    run: Run, files: Path, tmp_path: Path, small: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    def other(_: float) -> None:
        lock.__exit__(None, None, None)
        open_index(at, model=small, paths=[files]).close()

    at, lock = tmp_path / "own.db", locked(str(tmp_path / "own.db"))
    (tmp_path / "none").mkdir()
    lock.__enter__()
    with monkeypatch.context() as patched:
        patched.setattr("time.sleep", other)
        run("search", "x", tmp_path / "none", "--index", at).fails(1, "there are no files")
    assert str(files) in run("indexes", "show", at).lines[0]["covers"]


def test_several_indexes_are_removed_or_none(run: Run, files: Path) -> None:
    made = [Path(run("index", files / name).lines[0]["index"]) for name in ("a.md", "b.txt")]
    run("indexes", "remove", files / "a.md", files / "c", "--yes").fails(1, str(files / "c"))
    with locked(str(made[1])):
        run("indexes", "remove", *made, "--yes").fails(1, "another process")
    assert all(file.exists() for file in made)
    removed = run("indexes", "remove", files / "a.md", made[1], made[0], "--yes")
    assert [line["index"] for line in removed.lines] == [*map(str, made)] and not any(file.exists() for file in made)


def test_an_index_of_several_paths_is_removed_by_all_their_names(
    run: Run, files: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(files)
    for names in (["a.md", "b.txt"], [f"{files / 'a.md'}, {files / 'b.txt'}"]):
        (made,) = run("index", "a.md", "b.txt").lines
        run("indexes", "remove", "b.txt", "--yes").fails(2, "no separate index", "'a.md, b.txt'")
        assert [line["index"] for line in run("indexes", "remove", *names, "--yes").lines] == [made["index"]]
        assert not Path(made["index"]).exists()


def test_a_column_that_was_guessed_is_named_once(run: Run, files: Path) -> None:
    (files / "c" / "f.csv").write_text("id,remark\n1,w7 w8\n")
    assert run("search", "w7", files).err.count("remark") == 1
    assert "remark" not in run("search", "w7", files).err
    own = run("index", files / "c" / "f.csv", "--index", files / "x.db", "--text-column", "remark")
    assert own.status == 0 and "remark" not in own.err and "text" not in own.err


@pytest.mark.parametrize(("column", "said"), [((), "hint: --text-column"), (("--text-column", "no"), "columns: a, b")])
def test_a_table_without_its_column_is_named_once(run: Run, files: Path, column: tuple[str, ...], said: str) -> None:
    (files / "n.csv").write_text("a,b\n1,2\n")
    outcome = run("search", "w7", files / "n.csv", *column)
    outcome.fails(1, said)
    assert outcome.err.partition("error: ")[2].count("n.csv") == 1


def test_an_index_is_made_anew_with_another_model(run: Run, files: Path) -> None:
    other = tiny_model(files.parent / "other", num_hidden_layers=1)
    (made,) = run("index", files / "b.txt").lines
    outcome = run("index", files / "b.txt", "--model", other)
    outcome.fails(1, "made with the model")
    remove, make = (shlex.split(part) for part in outcome.err.partition("anew: ")[2].split(" && "))
    assert [run(*one[1:]).status for one in (remove, make)] == [0, 0]
    (shown,) = run("indexes", "show", files / "b.txt").lines
    assert (shown["index"], shown["model"], shown["files"]) == (made["index"], str(other), 1)


def test_what_is_wrong_with_the_only_file_is_said(run: Run, files: Path) -> None:
    (files / "c" / "f.csv").write_text(",\nw7,w8\n")
    for _ in range(2):
        run("index", files / "c" / "f.csv").fails(1, "f.csv: ", "no column has a name")


def test_a_damaged_index_is_listed_with_its_problem_and_can_be_removed(run: Run, files: Path) -> None:
    file = Path(run("index", files).lines[0]["index"])
    file.write_bytes(b"SQLite format 3\0" + bytes(5000))
    outcome = run("indexes", "list")
    assert "problem" in outcome.lines[0]["indexes"][0] and str(file) in outcome.err
    run("search", "w7", files).fails(1, str(file))
    assert run("indexes", "remove", file, "--yes").status == 0 and not file.exists()


def test_a_database_of_another_program_is_not_removed(run: Run, tmp_path: Path) -> None:
    other = tmp_path / "bookmarks.db"
    sqlite3.connect(other).executescript("CREATE TABLE a (b); PRAGMA user_version = 1").close()
    run("indexes", "remove", other, "--yes").fails(1, "is not an index")
    assert other.exists()


@TERMINALS
def test_a_terminal_shows_links_bars_and_the_words(show: Terminal, files: Path, variables: dict[str, str]) -> None:
    outcome, shown = show("search", "where is paris", str(files), "--explain", "--mode", "words", **variables)
    assert outcome.status == 0
    link = re.search(r"\x1b\]8;[^;]*;file://([^\x1b]*)\x1b\\", shown)
    assert link and link[1] == f"{files}/b.txt#1"
    text = "\n".join(plain(re.sub(r"\x1b\]8;.*?\x1b\\", "", shown)))
    assert re.search(r"^1  .*b\.txt:1$", text, re.MULTILINE) and "█" in text and "words: rank 1" in text
    assert re.search(r"\x1b\[[\d;]*1[;\d]*m\x1b?\[?[\d;]*m?paris", shown)


def test_a_name_does_not_steer_the_terminal(files: Path, variables: dict[str, str]) -> None:
    (files / "x\x1b[5A\n.txt").write_text("paris \x1b[5A\u202e", encoding="utf-8")
    _, shown = terminal("search", "paris", str(files), on=("stdout", "stderr"), **variables, NO_COLOR="1")
    left = re.sub(r"\x1b\]8;.*?\x1b\\|\x1b\[[\d;]*m|\x1b\[\?25[hl]|\x1b\[1?[AG]?2?K?|\r", "", shown)
    assert "␛[5A␊.txt" in shown and "\u202e" not in shown and "\x1b[5A" not in left


@pytest.mark.slow
@pytest.mark.parametrize("answer", ["y", "n"])
def test_a_terminal_asks_before_the_current_folder_is_indexed(
    files: Path, variables: dict[str, str], answer: str
) -> None:
    with Screen() as screen:
        running = subprocess.Popen(
            command("search", "paris"), env=environment(**variables, TERM="xterm"), cwd=files, stdin=screen.inner,
            stderr=screen.inner, stdout=subprocess.PIPE,
        )  # fmt: skip
        screen.wait_for(b"[y/N]: ")
        screen.type(answer.encode() + b"\n")
        out, _ = running.communicate(timeout=60)
        shown = screen.shown()
    assert str(files).encode() in shown and bool(out) == (answer == "y") and running.returncode == 0


@pytest.mark.slow
@pytest.mark.parametrize("linked", [False, True])
def test_watching_follows_changes_until_ctrl_c(
    files: Path, variables: dict[str, str], tmp_path: Path, linked: bool
) -> None:
    named = files
    if linked:  # to a folder below a hidden one
        (tmp_path / ".vault").mkdir()
        files = files.rename(tmp_path / ".vault" / "files")
        named.symlink_to(files)
    watching = subprocess.Popen(
        command("index", str(named), "--watch"), env=environment(**variables), stdout=subprocess.PIPE, text=True
    )
    assert watching.stdout is not None
    assert '"files": 3' in watching.stdout.readline()
    if sys.platform == "linux":
        threads = Path(f"/proc/{watching.pid}/task").iterdir()
        assert min(os.getpriority(os.PRIO_PROCESS, int(thread.name)) for thread in threads) >= 10
    (files / "new.txt").write_text("w20 w21", encoding="utf-8")
    assert json.loads(watching.stdout.readline())["read"] == [str((files / "new.txt").resolve())]
    (files / ".hidden").write_text("w20 w21", encoding="utf-8")
    (files / "b.txt").unlink()
    assert json.loads(watching.stdout.readline())["removed"] == [str((files / "b.txt").resolve())]
    assert paths(call("search", "w20", str(files), "--no-update", **variables))[0] == "new.txt"  # type: ignore[arg-type]
    time.sleep(0.2)
    watching.send_signal(signal.SIGINT)
    assert watching.wait(30) == 130


def test_watching_waits_on_battery_and_loses_no_change(
    files: Path, small: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    answers = itertools.chain([True, None, False, None, True], itertools.repeat(False))  # none if pmset fails
    counts, more = list[int](), files.parent / "more"
    more.mkdir()

    def on_battery() -> bool:
        if (answer := next(answers)) is None:
            raise MlxbertError("no answer")
        return answer

    def watch(*roots: str, **options: object) -> Iterator[set[str]]:
        for _ in range(2):
            yield set()
            counts.append(index.stats().files)
        (files / "new.txt").write_text("w20 w21", encoding="utf-8")
        yield {"new.txt"}
        counts.append(index.stats().files)
        yield set()
        counts.append(index.stats().files)

    monkeypatch.setattr("watchfiles.watch", watch)
    monkeypatch.setattr(index_updates, "_POWER_SECONDS", 0)
    monkeypatch.setattr(index_updates, "on_battery", on_battery)
    with open_index(files.parent / "i.db", model=small, paths=[files]) as index:
        index_updates.watch_files(index, [str(files), str(more)], "plugged-in", OutputOptions())
    captured = capsys.readouterr()
    assert counts[:2] == [0, 0] and counts[2] < counts[3] == 4
    assert captured.err.count("now covers") == 1
    assert captured.err.count("runs on battery") == 2 and captured.out.count('"files": 4') == 1


@pytest.mark.parametrize("drawn", [True, False])
def test_watching_prints_a_line_for_each_change(
    files: Path, small: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], drawn: bool
) -> None:
    printed = list[str]()

    def watch(*roots: str, **options: object) -> Iterator[set[str]]:
        yield set()
        printed.append(capsys.readouterr().out)
        (files / "new.txt").write_text("w20 w21", encoding="utf-8")
        (files / "b.txt").unlink()
        yield {"new.txt"}
        printed.append(capsys.readouterr().out)

    monkeypatch.chdir(files)
    monkeypatch.setattr("watchfiles.watch", watch)
    monkeypatch.setattr(console, "draws", lambda _: drawn)
    with open_index(files.parent / "i.db", model=small, paths=[files]) as index:
        index_updates.watch_files(index, [str(files)], "always", OutputOptions())
    (line,) = printed[1].splitlines()
    if drawn:
        assert len(printed[0].splitlines()) > 1 and "new.txt read" in line and "b.txt removed" in line
    else:
        changes = json.loads(line)
        assert [*map(os.path.basename, changes["read"] + changes["removed"])] == ["new.txt", "b.txt"]
        assert json.loads(printed[0])["files"] == 3 and "files" not in changes


@together(
    ("query", "text", "found"),
    [
        ("how do refunds work", "A refund works. How?", ["refund", "works"]),
        ("the API", "The api of therapy", ["api"]),
        ("to be", "to be or not to be", ["to", "be", "to", "be"]),
        ("退款", "我们的退款政策", ["退款"]),
        ("申请退款流程", "退款流程; 申请", ["退款", "流程", "申请"]),
        ("Αθηνα cafe", "η ΑΘΉΝΑ; two cafés", ["ΑΘΉΝΑ", "cafés"]),
        ("refund office", "re\xadfunds, o\ufb03ce A\u0301 refund", ["re\xadfunds", "o\ufb03ce", "refund"]),
        ("Newton", "Newton's laws", ["Newton"]),
        ("?!", "what?!", []),
    ],
)
def test_words_of_a_query_are_found_in_their_forms(query: str, text: str, found: list[str]) -> None:
    words = views.QueryWords(query)
    assert [text[start:end] for start, end in words.spans(text)] == found
    assert (words.shared(text) > 0) == bool(found)


def test_folders_with_an_index_are_completed(run: Run, files: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from tests.whole.test_help import completed

    run("index", files)
    monkeypatch.setenv("MLXBERT_DATA", str(files.parent / "data"))
    assert completed("indexes", "show", str(files)[:4]) == [str(files)]
    assert completed("search", "--mode", "w") == ["words"]


def test_an_interrupt_keeps_what_is_done_and_says_so(
    files: Path, small: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    usual = IndexWriter._write_ready

    def ready(writer: IndexWriter) -> None:
        usual(writer)
        if writer._embedded == 3:
            raise KeyboardInterrupt

    (files / "c" / "d.csv").write_text("".join(f"w{number}\n" for number in range(9)))
    with open_index(files.parent / "i.db", model=small, paths=[files / "c", files]) as index:
        with monkeypatch.context() as patch, pytest.raises(KeyboardInterrupt):
            patch.setattr(IndexWriter, "_write_ready", ready)
            update_index(index, None)
        assert index.stats().vectors == 3
        said = capsys.readouterr().err
        assert said.startswith("note: interrupted: 0 of 4 files ") and said.count("\n") == 1
        assert (finished := update_index(index, None).finished) and (finished.reused, finished.files) == (3, 3)


def test_a_hybrid_score_is_a_bar_without_a_number_and_repeated_passages_are_counted() -> None:
    from mlxbert.search.hit import SimilarPassage
    from tests.whole.test_narrow import _shown

    same = tuple(SimilarPassage(f"/{name}.md", "", 7, None, 9, "x") for name in ("b", "c"))
    drawn = replace(_passage(is_close=True, duplicates=same), share=0.83)
    for duplicates in (False, True):
        shown = str(_shown(views.draw(drawn, views.QueryWords("x"), explain=None, duplicates=duplicates)))
        assert "and 2 more like it" in shown and ("/c.md:7" in shown) == duplicates
        assert "\u2588" in shown and not re.search(r"\u2588.*\d", shown)


def test_words_that_count_as_other_forms_are_named() -> None:
    from tests.whole.test_narrow import _shown

    drawn = _passage()
    drawn = replace(drawn, hit=replace(drawn.hit, query="lines texts"))
    for mode in ("hybrid", "vectors"):
        shown = " ".join(str(_shown(views.draw(drawn, views.QueryWords("x"), explain=mode))).split())
        assert ("other forms of its words: line, text" in shown) == (mode == "hybrid")


def _passage(**given: Any) -> views.DrawnPassage:
    from mlxbert.search.hit import Hit

    text = "\n".join(f"line {number} of the text." for number in range(40))
    known = {"path": "/a.md", "place": "", "start_line": 1, "end_line": 40, "page": None, "title": ""}
    hit = Hit("text", 1, 0.5, text=text, fields={}, **(known | given))  # type: ignore[arg-type]
    start = text.index("line 20")
    return views.DrawnPassage(hit, text, (start, start + 20), views.LINES, 1.0, 21)


def test_the_front_matter_is_no_sentence_of_a_passage() -> None:
    from mlxbert.search.commands.search import _passages

    front = "---\ntitle: text about x\ntags: [text]\n---\n"
    hit = replace(_passage().hit, text=f"{front}# Heading\n\nNothing here.\n\nThe text is here.")
    (shown,) = _passages(None, [hit], 0, None)  # type: ignore[arg-type]
    assert hit.text[slice(*shown.sentence)].strip() == "The text is here." and shown.line == 9
    alone = replace(hit, text=front)
    assert [one.sentence[0] for one in _passages(None, [alone], 0, None)] == [0]  # type: ignore[arg-type]


@pytest.mark.parametrize("width", ["50", "120"])
def test_a_few_lines_around_the_sentence_are_shown(width: str, monkeypatch: pytest.MonkeyPatch) -> None:
    from tests.whole.test_narrow import _shown

    monkeypatch.setenv("COLUMNS", width)
    lines = _shown(views.draw(_passage(), views.QueryWords("text"), explain=None)).rstrip().split("\n")
    assert lines[0] == "1  /a.md:21" and len(lines) == 2 + views.LINES
    assert "line 20 of" in " ".join(map(str.strip, lines)) and max(map(len, map(str.rstrip, lines))) <= int(width)
