"""The command line of search: indexes found, made and kept up to date, passages as they are shown, and its screen."""

import contextlib
import io
import itertools
import json
import os
import re
import shlex
import signal
import sqlite3
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any
from unittest import mock

import pytest
from prompt_toolkit.data_structures import Size
from prompt_toolkit.input import PipeInput, create_pipe_input
from prompt_toolkit.output import DummyOutput
from prompt_toolkit.output.vt100 import Vt100_Output
from rich.cells import cell_len

from mlxbert.cli.shared_options import OutputOptions
from mlxbert.cli.views import console
from mlxbert.errors import InputError, MlxbertError
from mlxbert.other_libraries import install_command
from mlxbert.search import views
from mlxbert.search.commands import index_updates, interactive_search as module
from mlxbert.search.commands.index_updates import update_index
from mlxbert.search.commands.interactive_search import SearchScreen, SearchThread, editor_command, open_in_editor
from mlxbert.search.commands.search import _passages
from mlxbert.search.hit import Hit, SimilarPassage
from mlxbert.search.index import Index, open_index
from mlxbert.search.index_writer import IndexWriter
from mlxbert.search.schema import locked
from mlxbert.search.views import HitList
from tests.cli.test_terminal import plain
from tests.helpers.answering import save_answering
from tests.helpers.cases import together
from tests.helpers.program import TERMINALS, Outcome, Terminal, call, command, environment, terminal, tiny_model
from tests.helpers.screen import Screen
from tests.helpers.token_folders import bge_m3
from tests.whole.test_help import completed
from tests.whole.test_narrow import _shown

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


def test_nothing_to_read_is_an_error_and_makes_no_index(run: Run, tmp_path: Path, files: Path) -> None:
    (tmp_path / "none").mkdir()
    for given in (["index", tmp_path / "none"], ["search", "w", tmp_path / "none"]):
        outcome = run(*given)
        outcome.fails(1, "none: there are no files")
        assert outcome.out == "" and "hint" not in outcome.err
    assert run("indexes", "list").lines[0]["indexes"] == []
    run("search", "w7", files / "c" / "e.bin").fails(1, "no file could be read", "--verbose")
    run("search", "w7", files / "none").fails(1, "none")
    run("search", " ", files).fails(2, "query")
    run("index", files / "c" / "e.bin", "--index", files.parent / "own.db").fails(1, "no file could be read")
    assert not [*files.parent.rglob("*.db*")]
    run("index", files, "--index", files).fails(2, "is a folder")
    no_head = run("search", "w7", files, "--rerank", "builtin")
    no_head.fails(1, "no classification head", "hint: rerank needs a cross-enc")


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
def test_unreadable_files_are_named_once_without_a_hit(run: Run, files: Path, monkeypatch: pytest.MonkeyPatch) -> None:
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
        ("dedupe files", "mlxbert index files"), ("cluster --input files", "--index files"),
        ("map files --output m.html", "--index files"), ("similarity cat --input files", "mlxbert search QUERY files"),
        ("tokenize files", "mlxbert search QUERY files"),
        ("answer who? --index files", "mlxbert search QUERY files --answer MODEL"),
        ("search the cat sat files", "mlxbert search 'the cat sat' files"),
        ("search the cat", "mlxbert search 'the cat'"), ("search cat --index files", "`mlxbert search QUERY files`"),
        ("mcp --index files", "among the paths"),
        ("answer who? --context-file files", "`mlxbert search QUERY files` searches"),
    ],
)  # fmt: skip
def test_who_has_a_folder_is_told_what_to_type(
    run: Run, files: Path, monkeypatch: pytest.MonkeyPatch, typed: str, hint: str
) -> None:
    monkeypatch.chdir(files.parent)
    outcome = run(*typed.split())
    assert outcome.status and hint in outcome.err.partition("hint: ")[2]


def test_a_query_after_the_path_and_waiting_without_watching_are_seen(run: Run, files: Path) -> None:
    run("index", files, "--when", "plugged-in").fails(2, "--watch")
    assert "notes/*.md" in run("tokenize", "notes/*.md").err and not run("tokenize", "a * b.").err  # fits no file
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


@pytest.fixture(scope="module")
def answering(tmp_path_factory: pytest.TempPathFactory) -> str:
    return str(save_answering(tmp_path_factory.mktemp("answering"), no_answer_threshold=1.0))


def test_an_answer_comes_first_and_without_one_that_nothing_is_close(
    run: Run, files: Path, answering: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    answer, *hits = run("search", "dog sat", files, "--answer", answering).lines
    assert [*answer] == ["query", "answer", "score", "rank", "path", "place", "line", "page", "start", "end", "chunk"]
    hit = hits[answer["rank"] - 1]
    assert hit["text"][answer["start"] : answer["end"]] == answer["answer"] and 0 < answer["score"] < 1
    assert (hit["path"], hit["chunk"], hit["place"]) == (answer["path"], answer["chunk"], answer["place"])
    (nothing,) = run("search", "w40", files, "--mode", "words", "--answer", answering).lines
    assert (nothing["answer"], nothing["score"]) == (None, 0)
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


def test_what_answers_is_a_model_for_that_and_no_answer_is_said(
    run: Run, files: Path, answering: str, tmp_path: Path, variables: dict[str, str]
) -> None:
    named = "for example deepset/roberta-base-squad2"
    run("search", "w7", files, "--answer", "builtin").fails(1, "no question-answering head", named)
    assert run("indexes", "list").lines[0]["indexes"] == []  # not made for a search that cannot be
    run("search", "w7", files, "--answer").fails(2, "--answer has no value, expected MODEL", named)
    run("search", "w1 " * 30, files, "--answer", answering).fails(1, "question has")
    never = str(save_answering(tmp_path / "never", no_answer_threshold=0.0))
    answer, *hits = run("search", "dog sat", files, "--answer", never).lines
    assert answer["answer"] is None and answer["rank"] is None and answer["score"] > 0 and hits
    _, shown = terminal("search", "dog sat", str(files), "--answer", never, **variables)
    assert "no answer" in plain(shown)[0] and f"in {len(hits)} passages" in plain(shown)[0]


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


def test_several_indexes_are_removed_or_none(run: Run, files: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    made = [Path(run("index", files / name).lines[0]["index"]) for name in ("a.md", "b.txt")]
    run("indexes", "remove", files / "a.md", files / "c", "--yes").fails(1, str(files / "c"))
    with locked(str(made[1])):
        run("indexes", "remove", *made, "--yes").fails(1, "another process")
    assert all(file.exists() for file in made)
    removed = run("indexes", "remove", files / "a.md", made[1], made[0], "--yes")
    assert [line["index"] for line in removed.lines] == [*map(str, made)] and not any(file.exists() for file in made)
    monkeypatch.chdir(files)
    for names in (["a.md", "b.txt"], [f"{files / 'a.md'}, {files / 'b.txt'}"]):
        (made,) = run("index", "a.md", "b.txt").lines
        run("indexes", "remove", "b.txt", "--yes").fails(2, "no separate index", "'a.md, b.txt'")
        assert [line["index"] for line in run("indexes", "remove", *names, "--yes").lines] == [made["index"]]
        assert not Path(made["index"]).exists()


def test_what_is_wrong_with_a_table_is_said_once(run: Run, files: Path) -> None:
    (files / "c" / "f.csv").write_text("id,remark\n1,w7 w8\n")  # its column is guessed
    assert [run("search", "w7", files / "c").err.count("remark") for _ in range(2)] == [1, 0]
    own = run("index", files / "c" / "f.csv", "--index", files / "x.db", "--text-column", "remark")
    assert own.status == 0 and "remark" not in own.err and "text" not in own.err
    (files / "n.csv").write_text("a,b\n1,2\n")
    for column, said in (((), "hint: --text-column"), (("--text-column", "no"), "columns: a, b")):
        outcome = run("search", "w7", files / "n.csv", *column)
        outcome.fails(1, said)
        assert outcome.err.partition("error: ")[2].count("n.csv") == 1
    (files / "d.csv").write_text(",\nw7,w8\n")
    for _ in range(2):
        run("index", files / "d.csv").fails(1, "d.csv: ", "no column has a name")


def test_an_index_is_made_anew_with_another_model(run: Run, files: Path) -> None:
    other = tiny_model(files.parent / "other", num_hidden_layers=1)
    (made,) = run("index", files / "b.txt").lines
    outcome = run("index", files / "b.txt", "--model", other)
    outcome.fails(1, "made with the model")
    remove, make = (shlex.split(part) for part in outcome.err.partition("anew: ")[2].split(" && "))
    assert [run(*one[1:]).status for one in (remove, make)] == [0, 0]
    (shown,) = run("indexes", "show", files / "b.txt").lines
    assert (shown["index"], shown["model"], shown["files"]) == (made["index"], str(other), 1)


def test_a_damaged_index_is_listed_and_can_be_removed_but_no_other_database(run: Run, files: Path) -> None:
    file, other = Path(run("index", files).lines[0]["index"]), files / "bookmarks.db"
    file.write_bytes(b"SQLite format 3\0" + bytes(5000))
    outcome = run("indexes", "list")
    assert "problem" in outcome.lines[0]["indexes"][0] and str(file) in outcome.err
    run("search", "w7", files).fails(1, str(file))
    assert run("indexes", "remove", file, "--yes").status == 0 and not file.exists()
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


def test_a_name_does_not_steer_the_terminal(run: Run, files: Path, variables: dict[str, str]) -> None:
    (files / "x\x1b[5A\n.txt").write_text("paris \x1b[5A\u202e", encoding="utf-8")
    (files / "y\x1b[5A\udcff.txt").write_text("")
    _, shown = terminal("search", "paris", str(files), on=("stdout", "stderr"), **variables, NO_COLOR="1")
    left = re.sub(r"\x1b\]8;.*?\x1b\\|\x1b\[[\d;]*m|\x1b\[\?25[hl]|\x1b\[1?[AG]?2?K?|\r", "", shown)
    assert "␛[5A␊.txt" in shown and "\u202e" not in shown and "\x1b[5A" not in left
    (line,) = [line for line in run("indexes", "show", files, "--problems").lines if line["path"].endswith(".txt")]
    assert line["path"] == f"{files}/y\x1b[5A\udcff.txt"
    _, shown = terminal("indexes", "show", str(files), "--problems", **variables)
    assert "y␛[5A" in shown and "\x1b[5A" not in shown


@pytest.mark.slow
@pytest.mark.parametrize("answer", ["y", "n"])
def test_a_terminal_asks_before_the_folder_is_indexed(files: Path, variables: dict[str, str], answer: str) -> None:
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
def test_watching_goes_on_until_ctrl_c(files: Path, variables: dict[str, str], tmp_path: Path, linked: bool) -> None:
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
    unknown = MlxbertError("no answer")  # if pmset fails
    on_battery = mock.Mock(side_effect=itertools.chain([True, unknown, False, unknown, True], itertools.repeat(False)))
    counts, more = list[int](), files.parent / "more"
    more.mkdir()

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
        ("the API", "The api of therapy", ["api"]), ("to be", "to be or not to be", ["to", "be", "to", "be"]),
        ("退款", "我们的退款政策", ["退款"]), ("申请退款流程", "退款流程; 申请", ["退款", "流程", "申请"]),
        ("Αθηνα cafe", "η ΑΘΉΝΑ; two cafés", ["ΑΘΉΝΑ", "cafés"]),
        ("refund office", "re\xadfunds, o\ufb03ce A\u0301 refund", ["re\xadfunds", "o\ufb03ce", "refund"]),
        ("Newton", "Newton's laws", ["Newton"]), ("?!", "what?!", []),
    ],
)  # fmt: skip
def test_words_of_a_query_are_found_in_their_forms(query: str, text: str, found: list[str]) -> None:
    words = views.QueryWords(query)
    assert [text[start:end] for start, end in words.spans(text)] == found
    assert (words.shared(text) > 0) == bool(found)


def test_folders_with_an_index_are_completed(run: Run, files: Path, monkeypatch: pytest.MonkeyPatch) -> None:
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


def test_a_hybrid_score_is_a_bar_and_other_forms_and_repeated_passages_are_named() -> None:
    same = tuple(SimilarPassage(f"/{name}.md", "", 7, None, 9, "x") for name in ("b", "c"))
    drawn = replace(_passage(is_close=True, duplicates=same), share=0.83)
    for duplicates in (False, True):
        shown = str(_shown(views.draw(drawn, views.QueryWords("x"), explain=None, duplicates=duplicates)))
        assert "and 2 more like it" in shown and ("/c.md:7" in shown) == duplicates
        assert "\u2588" in shown and not re.search(r"\u2588.*\d", shown)
    drawn = _passage()
    drawn = replace(drawn, hit=replace(drawn.hit, query="lines texts"))
    for mode in ("hybrid", "vectors"):
        shown = " ".join(str(_shown(views.draw(drawn, views.QueryWords("x"), explain=mode))).split())
        assert ("other forms of its words: line, text" in shown) == (mode == "hybrid")


def _passage(**given: Any) -> views.DrawnPassage:
    text = "\n".join(f"line {number} of the text." for number in range(40))
    known = {"path": "/a.md", "place": "", "start_line": 1, "end_line": 40, "page": None, "title": ""}
    hit = Hit("text", 1, 0.5, text=text, fields={}, **(known | given))  # type: ignore[arg-type]
    start = text.index("line 20")
    return views.DrawnPassage(hit, text, (start, start + 20), views.LINES, 1.0, 21)


def test_the_front_matter_is_no_sentence_of_a_passage() -> None:
    front = "---\ntitle: text about x\ntags: [text]\n---\n"
    hit = replace(_passage().hit, text=f"{front}# Heading\n\nNothing here.\n\nThe text is here.")
    (shown,) = _passages(None, [hit], 0, None)  # type: ignore[arg-type]
    assert hit.text[slice(*shown.sentence)].strip() == "The text is here." and shown.line == 9
    alone = replace(hit, text=front)
    assert [one.sentence[0] for one in _passages(None, [alone], 0, None)] == [0]  # type: ignore[arg-type]


@pytest.mark.parametrize("width", ["50", "120"])
def test_a_few_lines_around_the_sentence_are_shown(width: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", width)
    lines = _shown(views.draw(_passage(), views.QueryWords("text"), explain=None)).rstrip().split("\n")
    assert lines[0] == "1  /a.md:21" and len(lines) == 2 + views.LINES
    assert "line 20 of" in " ".join(map(str.strip, lines)) and max(map(len, map(str.rstrip, lines))) <= int(width)


WIDTHS = (50, 120)
ENTER, ESCAPE, INTERRUPT, UP, DOWN = "\r", "\x1b", "\x03", "\x1b[A", "\x1b[B"


def hit(number: int, text: str = "the cat sat on the mat", path: str | None = None, title: str = "Pets") -> Hit:
    path = f"/notes/{number}.md" if path is None else path
    return Hit("cat", number, 1.0, path or None, "" if path else f"r{number}", 10, 12, None, title, text, {})


HITS = [hit(number, f"Sentence {number} is not it.\nThe cat {number} sat.") for number in range(1, 9)]


class FakeIndex:
    """An index whose searches give the same hits."""

    model = None

    def close(self) -> None:
        pass


@pytest.fixture
def pipe() -> Iterator[PipeInput]:
    with create_pipe_input() as made:
        yield made


@pytest.fixture(autouse=True)
def _no_editor(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("EDITOR", raising=False)


Find = Callable[[Index, str], list[Hit]]


def noting(queries: list[str]) -> Find:
    """A search that notes its queries and always gives the same hits."""

    def find(_: Index, query: str) -> list[Hit]:
        queries.append(query)
        return HITS

    return find


Step = tuple[Callable[[SearchScreen], bool], str]


def show(
    pipe: PipeInput, steps: list[Step], find: Find = lambda index, query: HITS, width: int = 80
) -> tuple[Hit | None, SearchScreen, str]:
    """Shows the screen, and types each text as soon as its condition holds; returns the result and what was drawn."""
    drawn = io.StringIO()
    output = Vt100_Output(drawn, lambda: Size(rows=12, columns=width), term="xterm-256color", enable_cpr=False)
    thread = SearchThread(FakeIndex, find)  # type: ignore[arg-type]
    screen = SearchScreen(thread, input=pipe, output=output, refresh_interval=0.02)
    steps = [*steps]

    def rendered(_: object) -> None:
        if steps and steps[0][0](screen):
            pipe.send_text(steps.pop(0)[1])

    screen.app.after_render += rendered
    hanging = threading.Timer(20, lambda: pipe.send_text(INTERRUPT))
    hanging.start()
    try:
        return screen.run(), screen, drawn.getvalue()
    finally:
        hanging.cancel()
        thread.close()
        assert not steps


def always(screen: SearchScreen) -> bool:
    return True


def has_hits(screen: SearchScreen) -> bool:
    return bool(screen.list.hits)


def text_of(lines: list[Any]) -> list[str]:
    return ["".join(text for _, text in line) for line in lines]


@pytest.mark.parametrize("width", WIDTHS)
@pytest.mark.parametrize("height", [3, 10])
def test_the_selected_hit_is_on_the_screen_with_more_of_its_passage(width: int, height: int) -> None:
    listed = HitList()
    listed.show("cat", [hit(number, "One more sentence. " * 20 + "The cat is here. " * 20) for number in range(1, 6)])
    for number in [*range(5), *reversed(range(5))]:
        lines = text_of(listed.lines(width, height))
        assert len(lines) <= height and all(cell_len(line) <= width for line in lines[1:] if line[:1] != ">")
        (place,) = (place for place, line in enumerate(lines) if line.startswith("> "))
        assert lines[place] == f"> /notes/{listed.selected + 1}.md:10  Pets" and "cat" in "".join(lines[place:])
        shown = next((end for end, line in enumerate(lines[place + 1 :]) if "/notes/" in line), None)
        assert shown is None or shown > 1
        listed.move(1 if number < 4 else -1)
    listed.move(-100)
    assert listed.selected == 0
    listed.move(100)
    assert listed.selected == 4


@pytest.mark.parametrize("width", WIDTHS)
def test_names_and_passages_do_not_steer_the_terminal(width: int) -> None:
    listed = HitList()
    odd = "\x1b[5A\u202e\n\r\x07\x9b"
    long = "/a folder with a long name" * 9
    listed.show(
        "cat \x1b[5A", [hit(1, f"{odd} cat {odd}", f"{long}/x{odd}.md", f"T{odd}"), hit(2, "猫" * 200, "", "猫")]
    )
    lines = text_of(listed.lines(width, 40))
    assert all(line.isprintable() for line in lines) and "␛[5A" in lines[0] and lines[0].startswith("> …")
    assert any(line.startswith("  r2:10  猫") for line in lines)
    assert cell_len(lines[0].split("  ")[0]) <= width
    listed.show("cat", [hit(1, title="a long title " * 20)])
    (head,) = [line for line in text_of(listed.lines(width, 9)) if line.startswith("> ")]
    assert head.startswith("> /notes/1.md:10  a long title") and head.endswith("…") and cell_len(head) == width
    assert HitList().lines(width, 5) == []


def test_equal_texts_and_that_nothing_is_close_are_said() -> None:
    listed = HitList()
    duplicates = (SimilarPassage(None, "r1", None, None, 7, "cat"),) * 9
    listed.show("cat", [replace(hit(1), is_close=True, duplicates=duplicates), replace(hit(2), is_close=False)])
    assert text_of(listed.lines(80, 20))[0] == "> /notes/1.md:10  +9 duplicates  Pets"
    assert listed.message == "2 passages"
    listed.show("cat", [replace(hit(2), is_close=False)])
    assert listed.message == "nothing close; the nearest"
    listed.show("cat", [])
    assert listed.message == "nothing was found"


def test_it_searches_as_one_types_or_pastes_a_line_and_enter_gives_the_place(pipe: PipeInput) -> None:
    queries = list[str]()
    steps: list[Step] = [
        (always, "cat"),
        (has_hits, DOWN + DOWN + UP),
        (lambda screen: screen.list.selected == 1, ENTER),
    ]
    result, screen, drawn = show(pipe, steps, noting(queries))
    assert result is HITS[1] and queries == ["cat"]  # not once for each letter
    assert screen.list.line_of(HITS[1]) == 11 and "8 passages" in drawn
    queries, pasted = list[str](), "\x1b[200~first\r\nsecond\tline\n\x1b[201~"
    show(pipe, [(always, pasted), (has_hits, ESCAPE)], noting(queries))
    assert queries == ["first second line"]


@pytest.mark.parametrize("key", [ESCAPE, INTERRUPT, INTERRUPT + ENTER + INTERRUPT])
def test_keys_leave(pipe: PipeInput, key: str) -> None:
    assert show(pipe, [(always, ENTER + "cat"), (has_hits, key)])[0] is None


def test_the_end_of_the_input_leaves(pipe: PipeInput) -> None:
    thread = SearchThread(FakeIndex, lambda index, query: HITS)  # type: ignore[arg-type]
    screen = SearchScreen(thread, input=pipe, output=DummyOutput())
    pipe.close()
    assert screen.run() is None
    thread.close()


@pytest.mark.parametrize("width", WIDTHS)
def test_the_screen_fits(pipe: PipeInput, width: int) -> None:
    odd = [hit(1, "the cat \x1b[5A", "/a\x1b[5A.md"), *HITS]
    _, _, drawn = show(pipe, [(always, "cat"), (has_hits, ESCAPE)], lambda index, query: odd, width)
    assert "\x1b[5A" not in drawn and "␛[5A.md" in drawn
    plain = re.sub(r"\x1b\[[0-9;?]*[A-Za-z]|\x1b[()>=][A-Z0-9]?", "", drawn)
    assert "search: " in plain and "Esc leaves" in plain and "9 passages" in plain


@pytest.mark.parametrize("width", [10, 30])
def test_the_way_out_is_always_said(pipe: PipeInput, width: int) -> None:
    far = [replace(one, is_close=False) for one in HITS]
    _, screen, _ = show(pipe, [(always, "cat"), (has_hits, ESCAPE)], lambda index, query: far, width)
    status = screen._status()[0][1]
    assert "Esc" in status and cell_len(status) <= width


def test_typing_does_not_wait_for_a_search(pipe: PipeInput) -> None:
    typed, queries = threading.Event(), list[str]()

    def find(_: Index, query: str) -> list[Hit]:
        queries.append(query)
        assert query != "c" or typed.wait(10)
        return HITS if query == "cats" else []

    def took(text: str) -> Callable[[SearchScreen], bool]:
        return lambda screen: screen._buffer.text == text and bool(queries)

    def finish(screen: SearchScreen) -> bool:
        if screen._buffer.text == "cats":
            typed.set()
        return has_hits(screen)

    result, *_ = show(pipe, [(always, "c"), (took("c"), "at"), (took("cat"), "s"), (finish, ENTER)], find)
    assert result is HITS[0] and queries[0] == "c" and queries[-1] == "cats"


def test_what_is_wrong_with_a_search_is_shown(pipe: PipeInput) -> None:
    steps: list[Step] = [(always, "cat"), (lambda screen: "no " in screen.list.message, ESCAPE)]
    _, screen, drawn = show(pipe, steps, mock.Mock(side_effect=InputError("no cat")))
    assert screen.list.message == "no cat" and "no cat" in drawn


def test_enter_opens_the_editor_and_comes_back(pipe: PipeInput, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("EDITOR", "vim -R")
    monkeypatch.setattr(module, "open_in_editor", opened := mock.Mock(return_value="done"))
    result, screen, _ = show(pipe, [(always, "cat"), (has_hits, ENTER), (lambda _: opened.called, ESCAPE)])
    opened.assert_called_once_with("vim -R", "/notes/1.md", 11)
    assert result is None and screen.list.hits


@together(
    ("editor", "line", "expected"),
    [
        ("vim", 7, ["vim", "+7", "/a b.md"]), ("/usr/bin/nvim -R", 7, ["/usr/bin/nvim", "-R", "+7", "/a b.md"]),
        ("emacs -nw", 7, ["emacs", "-nw", "+7", "/a b.md"]), ("nano", None, ["nano", "/a b.md"]),
        ("code --wait", 7, ["code", "--wait", "--goto", "/a b.md:7"]), ("code", None, ["code", "/a b.md"]),
        ("'my editor'", 7, ["my editor", "/a b.md"]),
    ],
)  # fmt: skip
def test_editors_get_the_line_in_their_way(editor: str, line: int | None, expected: list[str]) -> None:
    assert editor_command(editor, "/a b.md", line) == expected


def test_what_keeps_an_editor_from_opening_is_said(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    file = tmp_path / "a.md"
    file.write_text("x")
    assert "gone" in open_in_editor("vim", str(tmp_path / "none"), 1)
    assert "quotation" in open_in_editor("vim '", str(file), 1)
    for status, said in ((0, ""), (3, "vim ended with status 3")):
        monkeypatch.setattr(subprocess, "run", mock.Mock(return_value=subprocess.CompletedProcess("vim", status)))
        assert open_in_editor("vim", str(file), 1) == said
    missing = FileNotFoundError(2, "No such file or directory", "no-such")
    monkeypatch.setattr(subprocess, "run", mock.Mock(side_effect=missing))
    assert open_in_editor("no-such -R", str(file), 1).startswith("EDITOR is 'no-such -R', ")


def test_without_a_query_only_a_terminal_is_searched(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    everywhere = ("stdin", "stdout", "stderr")
    call("search").fails(2, "QUERY is missing", "for example: mlxbert search ")
    call("search", "", str(tmp_path)).fails(2, "QUERY is missing")
    assert "QUERY is missing" in terminal("search", "--json", on=everywhere)[1]
    assert "--answer works only with a query" in terminal("search", "--answer", "x", on=everywhere)[1]
    monkeypatch.setitem(sys.modules, "prompt_toolkit", None)
    _, shown = terminal("search", on=everywhere)
    assert "prompt_toolkit is not installed" in shown and install_command("interactive") in shown


@pytest.mark.slow
def test_a_real_terminal_shows_and_opens_what_is_found(tmp_path: Path, small: str) -> None:
    (tmp_path / "notes").mkdir()
    for name, text in (("a.md", "the cat sat\n"), ("b.md", "w1 w2\n\nparis w3\n")):
        (tmp_path / "notes" / name).write_text(text)
    opened = tmp_path / "opened"
    editor = tmp_path / "vim"
    editor.write_text(f'#!/bin/sh\necho "$@" > {opened}\n')
    editor.chmod(0o755)
    variables = {"MLXBERT_DATA": str(tmp_path / "data"), "MLXBERT_MODEL": small, "TERM": "xterm", "EDITOR": str(editor)}
    with Screen() as screen:
        running = subprocess.Popen(
            command("search", "", str(tmp_path / "notes")), env=environment(**variables), stdin=screen.inner,
            stdout=screen.inner, stderr=screen.inner,
        )  # fmt: skip
        try:
            screen.wait_for(b"search:")
            screen.type(b"paris")
            screen.wait_for(b"b.md:")  # the number of the line may be drawn apart
            screen.type(b"\r")
            while not opened.exists() or not opened.read_text().endswith("\n"):
                assert running.poll() is None
                time.sleep(0.01)
            assert opened.read_text() == f"+3 {tmp_path}/notes/b.md\n"
            for _ in range(6):  # a key is lost while the terminal is handed back by the editor
                screen.type(b"\x03")
                with contextlib.suppress(subprocess.TimeoutExpired):
                    assert running.wait(10) == 0
                    break
            assert running.poll() == 0
        finally:
            running.kill()
        assert b"Traceback" not in screen.shown()
