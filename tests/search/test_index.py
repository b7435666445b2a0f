"""An index of files that change, what it finds, its problems, and answers in its passages."""

import json
import math
import os
import shutil
import time
from collections import Counter
from collections.abc import Generator, Iterable, Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any
from unittest import mock

import numpy as np
import pytest

import mlxbert
from mlxbert.cli.views.option_spelling import to_options
from mlxbert.errors import ArgumentError, BusyError, InputError, MissingHeadError, StoreError
from mlxbert.labels.labels import Labels
from mlxbert.nn.encoder import Batch
from mlxbert.results.text_results import Answer, Span
from mlxbert.search import file_walk, index_writer, schema, update_events
from mlxbert.search.answers import _margin, answer_from
from mlxbert.search.chunks import Chunk
from mlxbert.search.commands.indexed_texts import stored_passages
from mlxbert.search.documents.document import Document, ReadProblem
from mlxbert.search.documents.document_kinds import KINDS, DocumentKind, read_documents
from mlxbert.search.hit import Hit, SimilarPassage
from mlxbert.search.index import MODES, Index, Mode, open_index
from mlxbert.search.index_problems import ProblemList, grouped, pattern_of
from mlxbert.search.sqlite import SqliteStore
from mlxbert.search.store import IndexProblem
from mlxbert.search.update_events import Event
from mlxbert.tasks.answer import HEAD, AnswerTask
from mlxbert.text.batch import make_batch
from tests.helpers import token_folders
from tests.helpers.answering import save_answering
from tests.helpers.cases import together
from tests.helpers.classifiers import NLI, STARS, save_classifier, save_saturated
from tests.helpers.indexes import LONG_AGO, build, check_same, contents, passage, write
from tests.helpers.object_storage import NEEDS_LANCE
from tests.helpers.tiny import save, with_nan


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """Three files that were changed long ago."""
    for name, text in {"a.md": "# The city\n\nthe cat sat\n", "b.txt": "dog milk", "sub/c.txt": "largest city"}.items():
        write(tmp_path / "docs" / name, text)
    return tmp_path / "docs"


@pytest.fixture
def index(tmp_path: Path, folder: Path, model: mlxbert.Model) -> Iterator[Index]:
    with open_index(tmp_path / "index.db", model=model, paths=[folder]) as made:
        run(made)
        yield made


@together(
    ("given", "error", "said"),
    [
        *((given, ArgumentError, "expected") for given in (
            {"text": ["a"]}, {"text": 5}, {"fields": [1]}, {"fields": 5}, {"include": [5]}, {"exclude": [None]},
            {"paths": 5}, {"paths": [5]},
        )),
        ({"encoding": "no-such"}, ArgumentError, "no-such"), ({"paths": ["none"]}, InputError, "none: no such file"),
    ],
)  # fmt: skip
def test_wrong_arguments_make_no_file(
    given: dict[str, Any], error: type[Exception], said: str, tmp_path: Path, model: mlxbert.Model
) -> None:
    with pytest.raises(error, match=said):
        open_index(tmp_path / "new.db", model=model, **given)
    assert not [*tmp_path.iterdir()]
    with pytest.raises(ArgumentError, match="is a folder") as caught:
        open_index(tmp_path, model=model)
    assert "among the paths" in (caught.value.hint or "")


def test_an_index_that_another_process_is_creating_is_opened_when_it_is_there(
    tmp_path: Path, model: mlxbert.Model, monkeypatch: pytest.MonkeyPatch
) -> None:
    path, waits = tmp_path / "new.db", 0

    def other(seconds: float) -> None:
        nonlocal waits
        waits += 1
        if waits == 2:
            lock.__exit__(None, None, None)
            open_index(path, model=model).close()

    lock = schema.locked(str(path))
    lock.__enter__()
    monkeypatch.setattr("time.sleep", other)
    with open_index(path, model=model) as index:
        assert index.stats().files == 0 and not index.store.is_new
    assert waits == 2


def test_an_index_that_another_process_creates_with_other_settings_is_refused(
    tmp_path: Path, model: mlxbert.Model, monkeypatch: pytest.MonkeyPatch
) -> None:
    path, absent = tmp_path / "new.db", iter([False])
    with open_index(path, model=model, tokens=20) as index:
        assert index.store.is_new
    monkeypatch.setattr("mlxbert.search.index_stores.exists", lambda location: next(absent))
    with pytest.raises(StoreError, match="titles, exclude"):
        open_index(path, model=model, tokens=20, titles=False, exclude="b*")


def run(index: Index, *paths: Path) -> list[Event]:
    return [*index.update(paths or None)]


def counts(happened: list[Event]) -> dict[str, int]:
    """How many events there were of those that say what became of a file."""
    names = Counter(type(event).__name__ for event in happened)
    return {name: names[name] for name in ("FileIndexed", "FileFailed", "FileRemoved", "FileLeftOut") if names[name]}


def last(happened: list[Event]) -> update_events.IndexUpdated:
    assert isinstance(happened[-1], update_events.IndexUpdated)
    return happened[-1]


def texts(index: Index, query: str = "dog cat city milk man", **options: Any) -> list[str]:
    return sorted(hit.text for hit in index.search(query, **options))


def denied(usual: Any, ending: str) -> Any:
    """A function that may do what it does for all paths but those with an ending."""

    def call(path: Any, *more: Any, **named: Any) -> Any:
        if os.fsdecode(getattr(path, "path", path)).endswith(ending):
            raise PermissionError(13, "Permission denied")
        return usual(path, *more, **named)

    return call


def test_a_new_index(index: Index, folder: Path) -> None:
    stats = index.stats()
    assert (stats.files, stats.documents, stats.chunks, stats.vectors, stats.failed) == (3, 3, 3, 3, ())
    first, *_ = index.search("the cat sat")
    assert (first.rank, first.path, first.start_line, first.title) == (1, str(folder / "a.md"), 1, "The city")
    assert first.text == "# The city\n\nthe cat sat" and first.end_line == 3 and first.phrase_rank == 1
    assert first.vector_score and first.word_score and json.dumps(first.to_dict(why=True))
    assert len(index.search("dog")) == 3 and len(index.search("dog", mode="words")) == 1
    index.check()


def _steps(happened: list[Event]) -> str:
    """The events of an update after its scan, each as its first letter; `E` means that chunks were embedded."""
    letters = {"FileStarted": "s", "FileRead": "r", "Embedded": "E", "FileIndexed": "i", "FileRemoved": "x"}
    return "".join(letters.get(type(event).__name__, "") for event in happened)


@pytest.mark.parametrize(
    ("first", "turn", "steps"),
    [(1, 9.0, "sriEsriEsriE"), (2, 9.0, "srsriEiEsriE"), (9, -1.0, "sriEsriEsriE")],  # the last: reading takes long
)
def test_files_are_read_and_embedded_alternately(
    index: Index, folder: Path, monkeypatch: pytest.MonkeyPatch, first: int, turn: float, steps: str
) -> None:
    monkeypatch.setattr(index_writer, "_FIRST", first)
    monkeypatch.setattr(index_writer, "_GROWTH", 1)
    monkeypatch.setattr(index_writer, "_TURN", turn)
    (folder / "b.txt").unlink()
    for name in ("d.txt", "e.txt", "f.txt"):
        write(folder / name, f"milk {name}")
    assert _steps(run(index)) == f"x{steps}"  # what is gone leaves the index first


def test_unchanged_files_are_not_read(index: Index, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(index_writer, "_content", lambda found, _: pytest.fail(found.path))
    happened = run(index)
    assert counts(happened) == {} and last(happened).embedded == 0
    assert [event.changed for event in happened if isinstance(event, update_events.Scanned)] == [0]


def test_changed_moved_copied_and_removed_files(index: Index, folder: Path) -> None:
    write(folder / "b.txt", "man milk", LONG_AGO + 1)
    happened = run(index)
    assert counts(happened) == {"FileIndexed": 1} and last(happened).embedded == 1
    assert texts(index) == ["# The city\n\nthe cat sat", "largest city", "man milk"] and index.stats().vectors == 3
    shutil.copy(folder / "b.txt", folder / "copy.txt")
    (folder / "a.md").rename(folder / "sub" / "moved.md")
    happened = run(index)
    assert counts(happened) == {"FileIndexed": 2, "FileRemoved": 1}
    assert last(happened).embedded == 0 and last(happened).reused == 2
    hit, other = index.search("man milk", mode="vectors", top_k=2)
    assert {hit.path, *(same.path for same in hit.duplicates)} == {str(folder / "b.txt"), str(folder / "copy.txt")}
    assert other.text == "largest city" and index.stats().chunks == 4
    shutil.rmtree(folder / "sub")
    (folder / "b.txt").unlink()
    assert counts(run(index)) == {"FileRemoved": 3}
    assert texts(index) == ["man milk"] and index.stats().vectors == 1
    index.check()


def test_a_file_that_was_touched_is_read_and_nothing_else(index: Index, folder: Path) -> None:
    write(folder / "b.txt", "dog milk")
    happened = run(index)
    assert counts(happened) == {}
    (scanned,) = (event for event in happened if isinstance(event, update_events.Scanned))
    (read,) = (event for event in happened if isinstance(event, update_events.FileRead))
    assert read.size == scanned.size  # for a bar
    assert not [event for event in run(index) if isinstance(event, update_events.FileRead)]


def test_other_content_with_the_size_and_the_time_of_before_is_read(index: Index, folder: Path) -> None:
    write(folder / "b.txt", "man milk")  # as `touch -r` and `cp -p` do
    write(folder / "d.txt", "two milk")
    assert counts(run(index)) == {"FileIndexed": 2}
    for before, after in (("b.txt", "e"), ("d.txt", "b.txt"), ("e", "d.txt")):
        (folder / before).rename(folder / after)
    assert counts(run(index)) == {"FileIndexed": 2}
    hits = {Path(hit.path or "").name: hit.text for hit in index.search("milk")}
    assert (hits["b.txt"], hits["d.txt"]) == ("two milk", "man milk")


def test_a_time_of_this_moment_does_not_count(index: Index, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    now = time.time_ns()
    monkeypatch.setattr(index_writer, "_SETTLED", 2 * 10**9)
    for module in (index_writer, file_walk):
        monkeypatch.setattr(module, "change_time", lambda _: now)
    write(folder / "b.txt", "dog cat")
    run(index)
    write(folder / "b.txt", "man cat")  # the same size and time
    assert counts(run(index)) == {"FileIndexed": 1}
    assert "man cat" in texts(index) and "dog cat" not in texts(index)


def test_files_that_fail_and_are_mended(index: Index, folder: Path) -> None:
    write(folder / "b.txt", "x" * 10, LONG_AGO + 1)
    write(folder / "rows.jsonl", '{"text": ')
    write(folder / "note.ipynb", "{}")
    happened = run(index)
    assert counts(happened) == {"FileIndexed": 1, "FileFailed": 2} and last(happened).failed == 2
    assert [Path(path).name for path, _ in index.stats().failed] == ["note.ipynb", "rows.jsonl"]
    assert counts(run(index)) == {"FileFailed": 2} and last(run(index)).failed == 2  # said again, not read
    write(folder / "rows.jsonl", '{"text": ', LONG_AGO + 5)
    assert counts(run(index)) == {"FileFailed": 2}  # touched
    write(folder / "rows.jsonl", '{"text": "milk", "year": 2020}\n', LONG_AGO + 1)
    assert counts(run(index)) == {"FileIndexed": 1, "FileFailed": 1}
    assert [Path(path).name for path, _ in index.stats().failed] == ["note.ipynb"]
    assert "milk\n\nyear: 2020" in texts(index)
    index.check()


def test_a_file_without_permission_is_tried_again(index: Index, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write(folder / "x.bin.txt", b"\0\1\2" * 100)
    monkeypatch.setattr(index_writer, "_content", denied(index_writer._content, ".bin.txt"))
    assert [counts(run(index)) for _ in range(2)] == [{"FileFailed": 1}] * 2
    monkeypatch.undo()
    happened = run(index)
    assert counts(happened) == {"FileLeftOut": 1} and last(happened).failed == 0


def test_what_is_left_out_is_counted(index: Index, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(index_writer, "MAX_BYTES", 10_000)
    write(folder / "big.txt", "dog " * 3000)
    write(folder / "binary", b"\0\1\2" * 50)
    write(folder / ".hidden", "dog")
    for happened in (run(index), run(index)):
        assert last(happened).left_out == {"too large": 1, "binary": 1, "hidden": 1}
        assert counts(happened) == {"FileLeftOut": 3}
    assert index.stats().files == 3 and index.stats().failed == ()
    write(folder / "binary", "dog dog", LONG_AGO + 1)
    write(folder / "b.txt", b"\0" * 50, LONG_AGO + 1)
    run(index)
    assert "dog dog" in texts(index) and "dog milk" not in texts(index)


def test_a_file_changed_meanwhile_is_read_again(index: Index, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    usual = read_documents

    def changing(path: str, *more: Any, **how: Any) -> Iterator[Document]:
        yield from usual(path, *more, **how)
        write(Path(path), "cat cat", LONG_AGO + 9)

    write(folder / "b.txt", "dog dog", LONG_AGO + 9)
    with monkeypatch.context() as patch:
        patch.setattr("mlxbert.search.documents.document_kinds.read_documents", changing)
        write(folder / "b.txt", "dog dog", LONG_AGO + 8)
        run(index)
    assert "dog dog" in texts(index)
    run(index)
    assert "cat cat" in texts(index) and "dog dog" not in texts(index)


def test_a_text_of_a_file_that_failed_or_vanished_is_embedded_for_the_next(
    index: Index, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    usual = read_documents

    def failing(path: str, *more: Any, **how: Any) -> Iterator[Document]:
        yield from usual(path, *more)
        if path.endswith("d.txt"):
            raise InputError("damaged")
        if path.endswith("e.txt"):
            Path(path).unlink()

    for name in ("d.txt", "e.txt", "f.txt"):
        write(folder / name, "man went to tokyo")
    monkeypatch.setattr("mlxbert.search.documents.document_kinds.read_documents", failing)
    assert counts(run(index)) == {"FileIndexed": 1, "FileFailed": 1}
    assert [hit.path for hit in index.search("man went to tokyo", mode="words")] == [str(folder / "f.txt")]
    index.check()


def test_a_folder_that_is_gone_loses_nothing(index: Index, folder: Path) -> None:
    folder.rename(folder.with_name("away"))
    with pytest.raises(InputError):
        run(index)
    assert len(texts(index)) == 3
    folder.with_name("away").rename(folder)
    write(folder / "b.txt", "changed", LONG_AGO + 1)
    for event in index.update():
        if isinstance(event, update_events.Scanned):
            folder.rename(folder.with_name("away"))
    assert len(texts(index)) == 3
    index.check()


def test_one_folder_that_is_gone_does_not_hold_up_the_others(index: Index, folder: Path, tmp_path: Path) -> None:
    write(tmp_path / "more" / "d.txt", "milk")
    run(index, tmp_path / "more")
    folder.rename(folder.with_name("away"))
    write(tmp_path / "more" / "e.txt", "cat")
    assert update_events.FileLeftOut(str(folder), "vanished") in run(index)
    assert len(texts(index)) == 5


def test_a_file_covered_by_name_leaves_when_it_is_gone(tmp_path: Path, folder: Path, model: mlxbert.Model) -> None:
    with open_index(tmp_path / "files.db", model=model, paths=[folder / "a.md", folder / "b.txt"]) as index:
        run(index)
        (folder / "a.md").unlink()
        run(index)
        assert index.about.roots == (str(folder / "b.txt"),)
        assert [*index.store.files()] == [str(folder / "b.txt")]
        shutil.rmtree(folder)  # a disk that is not there, perhaps
        with pytest.raises(InputError):
            run(index)
        assert [*index.store.files()] == [str(folder / "b.txt")]


def test_a_folder_without_permission_loses_nothing(index: Index, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "scandir", denied(os.scandir, "sub"))
    (folder / "b.txt").unlink()
    assert counts(run(index)) == {"FileRemoved": 1, "FileLeftOut": 1}
    assert "largest city" in texts(index)


def test_a_part_of_what_is_covered_and_more(index: Index, folder: Path, tmp_path: Path) -> None:
    write(folder / "a.md", "went to paris", LONG_AGO + 1)
    write(folder / "sub" / "c.txt", "went to tokyo", LONG_AGO + 1)
    assert counts(run(index, folder / "sub")) == {"FileIndexed": 1}
    assert [*index.about.roots] == [str(folder)]
    write(tmp_path / "more" / "d.txt", "more milk")
    assert counts(run(index, tmp_path / "more")) == {"FileIndexed": 1}
    assert [*index.about.roots] == [str(folder), str(tmp_path / "more")]
    write(tmp_path / ".hidden" / "e.txt", "hidden milk")
    run(index, tmp_path / ".hidden")
    run(index, tmp_path)  # the walk through it passes the hidden folder by
    assert [*index.about.roots] == [str(tmp_path / ".hidden"), str(tmp_path)]
    assert {str(tmp_path / ".hidden" / "e.txt"), str(folder / "a.md")} <= {*index.store.files()}
    with pytest.raises(InputError):
        run(index, tmp_path / "missing")


def test_paths_that_another_process_added_are_kept(index: Index, tmp_path: Path, model: mlxbert.Model) -> None:
    write(tmp_path / "more" / "d.txt", "more milk")
    with open_index(index.path, model=model) as other:
        run(other, tmp_path / "more")
    write(tmp_path / "docs" / "b.txt", "changed", LONG_AGO + 1)
    run(index)
    assert str(tmp_path / "more") in index.about.roots
    with open_index(index.path, model=model) as again:
        assert again.about.roots == index.about.roots


def test_records_of_files_have_fields(index: Index, folder: Path) -> None:
    rows = [{"text": f"city {passage(year, 5)}", "year": year, "lang": "de" if year % 2 else None} for year in range(8)]
    write(folder / "rows.jsonl", "".join(f"{json.dumps(row)}\n" for row in rows))
    write(folder / "table.csv", "text,price\ndog,3.5\ncat,20\n")
    run(index)
    hits = index.search("city", where=["year>=3", "lang=de"])
    assert sorted(hit.fields["year"] for hit in hits) == [3, 5, 7]
    assert {hit.place for hit in hits} == {"line 4", "line 6", "line 8"} and hits[0].path == str(folder / "rows.jsonl")
    assert texts(index, "cat", where=["price>4"]) == ["cat\n\nprice: 20"]
    assert len(index.search("city", where={"year": 4})) == 1
    write(folder / "note.md", "---\ntitle: >-\n  Harbour\n  plans\ntags: [tide]\n---\n# Piers\n\nthe city\n")
    run(index)
    for condition in ("title=Harbour*", "tags=*tide"):
        assert [hit.title for hit in index.search("city", where=[condition])] == ["Harbour plans > Piers"]
    assert [hit.title for hit in index.search("city", where=["title=The*"])] == ["The city"]  # its first heading
    assert {hit.path for hit in index.search("city", paths=[folder / "sub"])} == {str(folder / "sub" / "c.txt")}
    with pytest.raises(ArgumentError):
        index.search("city", where=["year"])


def test_an_unfinished_update_keeps_its_vectors(index: Index, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(index_writer, "_GROUP", 3)
    monkeypatch.setattr(index_writer, "_SPOOL_BYTES", 100)  # bytes: what is read waits on disk
    monkeypatch.setattr("mlxbert.tasks.task.Task.window", 4)
    write(folder / "rows.jsonl", "".join(f'{{"text": "milk {passage(row, 5)}"}}\n' for row in range(20)))
    update = index.update()
    for event in update:
        if isinstance(event, update_events.Embedded) and event.chunks == 8:
            break
    update.close()  # type: ignore[attr-defined]
    assert index.stats().vectors == 3 + 6 and texts(index, "milk", top_k=99) == texts(index, "dog", top_k=99)
    index.check()
    assert index.search("milk", mode="words", top_k=99, all_chunks=True)[0].path == str(folder / "b.txt")
    end = last(run(index))
    assert (end.embedded, end.reused, end.chunks) == (14, 6, 23) and index.stats().documents == 23
    assert len(index.search("milk", all_chunks=True, top_k=99)) == 23
    index.check()


def test_records_that_are_added(index: Index) -> None:
    assert index.add({"id": number, "text": f"milk {number}", "n": number, "title": "Top"} for number in range(3)) == 3
    (hit,) = index.search("milk 2", where=["n=2"])
    assert (hit.path, hit.place, hit.title, hit.fields) == (None, "2", "Top", {"id": 2, "n": 2})
    assert index.add([{"id": "2", "text": "bought"}, {"id": "2", "text": "store"}]) == 2
    assert texts(index, "milk bought store", mode="words", where=["id>="]) == ["milk 0", "milk 1", "store"]
    assert counts(run(index)) == {} and index.stats().files == 3 and index.stats().documents == 6
    assert index.remove(["2", "9"]) == 1 and index.stats().documents == 5
    no_mappings: tuple[Any, ...] = ("abc", {"id": "1", "text": "b"}, ["abc"], 5)
    for wrong in no_mappings:
        with pytest.raises(InputError, match="expected a"):
            index.add(wrong)
    with pytest.raises(InputError):
        index.add([{"id": "5", "text": "kept"}, {"text": "no id"}])
    assert texts(index, "kept", where=["id=5"], mode="words") == ["kept"] and index.remove(["5"]) == 1
    odd = {"id": "\ud800", "text": "half \udfff", "title": "\ud800\0", "x": "\ud800", "nan": float("nan")}
    assert index.add([odd]) == 1
    assert texts(index, "half", where=["nan=", "id=*"], mode="words") == ["half \ufffd"]
    index.check()


def test_what_no_database_stores_is_replaced_in_files(index: Index, folder: Path) -> None:
    cell = {"cell_type": "markdown", "source": "# Low \ud800\n\nhalf \udfff of it\0"}
    write(folder / "n.ipynb", json.dumps({"cells": [cell]}))
    run(index)
    (hit,) = index.search("half", mode="words")
    assert hit.text.endswith("half \ufffd of it\ufffd") and "Low \ufffd" in hit.title
    write(folder / "rows.jsonl", '{"text": "a dog", "na\\ud800me": "quarter \\ud800\\u0000"}\n{"text": "a cat"}\n')
    assert counts(run(index)) == {"FileIndexed": 1}
    (hit,) = index.search("quarter", mode="words")
    assert hit.text == "a dog\n\nna\ufffdme: quarter \ufffd\ufffd"


def test_files_follow_a_move(index: Index, folder: Path) -> None:
    before = {hit.text: hit.score for hit in index.search("city")}
    folder.rename(folder.with_name("new"))
    assert index.move(folder, folder.with_name("new")) == 3
    assert index.about.roots == (str(folder.with_name("new")),)
    assert {hit.text: hit.score for hit in index.search("city")} == before and counts(run(index)) == {}
    inside = folder.with_name("new")
    for old, new in ((folder, folder.with_name("third")), (inside / "a.md", inside / "b.txt")):
        with pytest.raises(ArgumentError):
            index.move(old, new)
    write(inside / "sub" / "sub" / "c.txt", "largest city")
    run(index)
    assert index.move(inside / "sub", inside / "sub" / "sub") == 2
    assert index.move(inside / "sub" / "sub", inside / "sub") == 2
    moved = {os.path.relpath(path, inside) for path in index.store.files()}
    assert moved == {"a.md", "b.txt", "sub/c.txt", "sub/sub/c.txt"}


def test_what_moves_out_is_covered_there(index: Index, folder: Path) -> None:
    (folder / "sub").rename(folder.with_name("out"))
    assert index.move(folder / "sub", folder.with_name("out")) == 1
    assert index.about.roots == (str(folder), str(folder.with_name("out")))
    write(folder.with_name("out") / "c.txt", "changed", LONG_AGO + 1)
    assert counts(run(index)) == {"FileIndexed": 1}


def test_another_model_is_refused_with_both_names(index: Index, tmp_path: Path, builtin: mlxbert.Model) -> None:
    for other in (builtin, "builtin"):
        with pytest.raises(StoreError, match=r"tiny.*builtin|builtin.*tiny") as caught:
            open_index(index.path, model=other)
        assert caught.value.hint and to_options(caught.value.hint).endswith("index.db --model builtin")
    index.store._connection.execute("UPDATE about SET value = '\"other\"' WHERE name = 'hash'")  # type: ignore[attr-defined]
    with open_index(index.path) as changed, pytest.raises(StoreError, match="current files"):
        changed.search("city")


def test_an_index_is_searched_by_words_when_its_model_is_gone(tmp_path: Path, folder: Path, tiny_folder: Path) -> None:
    own = shutil.copytree(tiny_folder, tmp_path / "own")
    with open_index(tmp_path / "own.db", model=own, paths=[folder]) as index:
        run(index)
    shutil.rmtree(own)
    with open_index(tmp_path / "own.db") as index:
        assert index.stats().files == 3
        assert [hit.path for hit in index.search("milk", mode="words")] == [str(folder / "b.txt")]
        with pytest.raises(mlxbert.CheckpointError):
            index.search("milk")


def test_what_cannot_be_written_is_read(
    tmp_path: Path, model: mlxbert.Model, monkeypatch: pytest.MonkeyPatch, index: Index
) -> None:
    for place in ("pathlib.Path.mkdir", "mlxbert.search.schema.acquire_lock"):
        with monkeypatch.context() as patch:
            patch.setattr(place, denied(None, ""))
            with pytest.raises(StoreError, match="Permission denied"):
                open_index(tmp_path / "new" / "index.db", model=model)
    expected = contents(index)
    monkeypatch.setattr(os, "access", lambda path, mode: False)
    with open_index(index.path, model=model) as other:
        check_same(contents(other), expected)
        for change in (lambda: run(other), lambda: other.add([{"id": "1", "text": "x"}]), lambda: other.remove(["1"])):
            with pytest.raises(StoreError, match="cannot be written"):
                change()


def test_a_second_builder_is_told(index: Index, folder: Path, model: mlxbert.Model) -> None:
    write(folder / "b.txt", "changed", LONG_AGO + 1)
    first = index.update()
    assert isinstance(first, Generator) and next(first)
    with open_index(index.path, model=model) as other:
        for change in (lambda: run(other), lambda: other.add([]), lambda: other.move(folder, folder / "x")):
            with pytest.raises(BusyError):
                change()
        assert len(texts(other)) == 3
        first.close()
        assert counts(run(other)) == {"FileIndexed": 1}


def test_chunks_of_one_document(index: Index, folder: Path) -> None:
    write(folder / "long.txt", "\n\n".join(passage(number, 40) for number in range(5)))
    run(index)
    path = str(folder / "long.txt")
    one, every = (index.search("dog", top_k=50, all_chunks=all_chunks) for all_chunks in (False, True))
    assert sum(hit.path == path for hit in one) == 1 and sum(hit.path == path for hit in every) > 5
    assert len(one) == 4 and len(every) == index.stats().chunks
    chunk = min(hit.chunk for hit in every if hit.path == path)
    whole = index.read(chunk, around=100)
    assert whole.text.split() == (folder / "long.txt").read_text().split() and whole.path == path
    assert (whole.first_line, whole.last_line) == (1, 9)
    alone, more = index.read(chunk + 2, around=0), index.read(chunk + 2)
    assert alone.text in more.text and more.text in whole.text and len(more.text) > len(alone.text)
    for wrong in (10**6, -1, 2**70, "1", True, None):
        with pytest.raises(ArgumentError):
            index.read(wrong)  # type: ignore[arg-type]


def test_scores_and_the_rankings_of_each_mode(index: Index) -> None:
    hits = index.search("city", mode="vectors", top_k=3)
    assert [hit.rank for hit in hits] == [1, 2, 3] and hits[0].score >= hits[1].score >= hits[2].score
    some = index.search("city", mode="vectors", min_score=hits[1].score)
    assert [hit.text for hit in some] == [hit.text for hit in hits[:2]]
    assert index.search("city", min_score=10) == [] and len(index.search("city", top_k=1)) == 1
    ranks = {"hybrid": {"vector_rank", "word_rank", "phrase_rank"}, "vectors": {"vector_rank"}, "words": {"word_rank"}}
    assert (*ranks,) == MODES
    for mode in MODES:
        hits = index.search("cat sat", mode=mode)
        assert {rank for rank in ranks["hybrid"] for hit in hits if getattr(hit, rank) is not None} == ranks[mode]


def test_the_score_of_a_passage_does_not_depend_on_the_number_of_hits(
    index: Index, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Passages that one ranking has are compared in every way."""
    queries = ["dog", "milk", "cat", "sat", "largest city"]
    found = [(query, hit) for query in queries for hit in index.search(query, top_k=20)]
    every = {(query, hit.chunk): (hit.score, hit.vector_score) for query, hit in found}
    monkeypatch.setattr("mlxbert.search.index._MIN_DEPTH", 1)
    monkeypatch.setattr("mlxbert.search.index._PER_HIT", 1)
    hits = [(query, hit) for query in queries for hit in index.search(query, top_k=1)]
    assert any(hit.vector_rank is None for _, hit in hits) and len(hits) == len(queries)
    for query, hit in hits:
        assert (hit.score, hit.vector_score) == pytest.approx(every[query, hit.chunk], abs=1e-6)


def test_the_phrase_counts_in_all_passages_that_have_it(tmp_path: Path, model: mlxbert.Model) -> None:
    with open_index(tmp_path / "many.db", model=model) as index:
        index.add([{"id": str(number), "text": f"the cat sat in city {number}"} for number in range(130)])
        hits = index.search("the cat sat", top_k=60, all_chunks=True)
        assert sum(hit.phrase_rank is None for hit in hits) < len(hits) == 60
        few = index.search("the cat sat", top_k=3, all_chunks=True)
        assert [hit.score for hit in few] == pytest.approx([hit.score for hit in hits[:3]])
        (scattered,) = index.search("sat the cat", top_k=1)
        assert scattered.score < min(hit.score for hit in hits)


@pytest.mark.parametrize("table", ["windows", "vectors"])
def test_a_passage_without_a_vector_is_a_damage(index: Index, table: str) -> None:
    assert isinstance(index.store, SqliteStore)
    index.store._connection.execute(f"DELETE FROM {table}")
    assert len(index.search("dog", mode="words")) == 1
    with pytest.raises(StoreError, match="no vector"):
        index.search("dog")


def test_reranking(index: Index, tmp_path: Path) -> None:
    reranker = save_classifier(tmp_path / "reranker", STARS)
    hits = index.search("city", rerank=str(reranker))
    pairs = mlxbert.rerank(mlxbert.load(reranker, task="classify"), "city", ["The city\n# The city\n\nthe cat sat"])
    assert [hit.score for hit in hits] == [hit.rerank_score for hit in hits] and len(hits) == 3
    assert pairs[0].score == pytest.approx(next(hit.score for hit in hits if hit.title), abs=1e-5)
    assert len(index.search("city", rerank=str(reranker), candidates=2, top_k=2)) == 2
    with pytest.raises(mlxbert.ArgumentError, match=r"`candidates` is 1, expected .* 2"):
        index.search("city", rerank=str(reranker), candidates=1, top_k=2)
    assert index.search("nothing", mode="words", rerank=str(reranker)) == []
    with pytest.raises(mlxbert.errors.MlxbertError):
        index.search("city", rerank=str(save_classifier(tmp_path / "other", NLI)))


def test_late_interaction_reranks_more_passages(index: Index, tmp_path: Path) -> None:
    folder = token_folders.PYLATE["usual"](tmp_path / "tokens")
    hits = index.search("city", rerank=str(folder))
    model = mlxbert.load(folder)
    texts = [f"{hit.title}\n{hit.text}" if hit.title else hit.text for hit in hits]
    query = np.asarray(mlxbert.embed_tokens(model, "city", kind="query"))
    scores = mlxbert.maxsim(query, mlxbert.embed_tokens(model, texts))
    assert len(hits) == 3 and [hit.rerank_score for hit in hits] == pytest.approx(scores.tolist(), abs=1e-4)
    assert sorted(scores.tolist(), reverse=True) == scores.tolist()
    with mock.patch.object(Index, "_distinct", autospec=True, side_effect=Index._distinct) as distinct:
        for candidates in (None, 7):
            index.search("city", rerank=model, candidates=candidates, top_k=2)
    assert [call.args[5] for call in distinct.call_args_list] == [200, 7]


def test_equal_probabilities_of_a_reranker_do_not_lose_its_order(index: Index, tmp_path: Path) -> None:
    plain = index.search("city", rerank=str(save_classifier(tmp_path / "plain", Labels(("LABEL_0",), None))))
    hits = index.search("city", rerank=str(save_saturated(tmp_path / "saturated")))
    assert [hit.chunk for hit in hits] == [hit.chunk for hit in plain] != [hit.chunk for hit in index.search("city")]
    assert {hit.rerank_score for hit in hits} == {1.0}


def test_unknown_fields_and_paths_are_said(index: Index, tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    assert index.search("city", where=["nosuch=1"]) == [] == index.search("cat", paths=[tmp_path / "absent"])
    assert "nosuch" in caplog.text and "path" in caplog.text and "absent" in caplog.text


def test_an_updated_index_ranks_as_a_new_one(model: mlxbert.Model, tmp_path: Path) -> None:
    folder, records = tmp_path / "docs", [{"id": f"{number:02}", "text": "the cat sat"} for number in range(6)]
    folder.mkdir()
    texts = "the cat sat on the mat", "a dog went", "# paris\n\na dog went\n\n# tokyo\n\na dog went"
    for number in range(140):  # more equal ones than are fused
        (folder / f"{number:03}.md").write_text(texts[number % 7 % 3])
    (folder / "rows.jsonl").write_text('{"text": "a dog went"}\n' * 12)
    new = build(tmp_path / "new.db", folder, model)
    new.add(records)
    updated = open_index(tmp_path / "updated.db", model=model, paths=[folder])
    for number in range(139, -1, -20):
        [*updated.update([folder / f"{one:03}.md" for one in range(number, max(number - 20, -1), -1)])]
    for text in ("another text", texts[0]):
        (folder / "000.md").write_text(text)
        [*updated.update()]
    updated.add(records[::-1])
    [*new.update()]

    def found(index: Index, query: str, mode: Mode, more: Any) -> tuple[list[Any], list[float]]:
        hits = index.search(query, mode=mode, **more)
        alike = [[(one.path, one.place, one.start_line) for one in hit.duplicates] for hit in hits]
        where = [(hit.path, hit.place, hit.start_line, hit.vector_rank, hit.word_rank) for hit in hits]
        return [*zip(where, alike, strict=True)], [hit.score for hit in hits]

    for mode in MODES:
        for query in ("the cat sat", "dog", "a dog went"):
            for more in ({"top_k": 20}, {"top_k": 200, "all_chunks": True}, {"where": ["path=*3.md"]}):
                (first, scores), (second, others) = (found(index, query, mode, more) for index in (new, updated))
                assert first == second and sum(1 + len(alike) for _, alike in first) > 5
                assert scores == pytest.approx(others, abs=1e-6)


def test_half_of_a_surrogate_pair_is_no_damage(index: Index, tmp_path: Path) -> None:
    half = str(tmp_path / "x\ud800")
    for refused in (
        lambda: index.search("city", paths=[half]),
        lambda: [*index.update([half])],
        lambda: index.move(half, tmp_path),
        lambda: index.move(tmp_path, half),
        lambda: open_index(f"{half}.db"),
        lambda: open_index(paths=[half]),
        lambda: open_index(f"{tmp_path}/\0.db"),
    ):
        with pytest.raises(ArgumentError):
            refused()
    assert index.add([{"id": "a\ud800", "text": "a dog"}]) == index.remove(["a\ud800"]) == 1
    index.check()


def test_queries(index: Index, caplog: pytest.LogCaptureFixture) -> None:
    for query in ("the cat " * 500, '"', "NEAR(", "*", "-", "dog\0cat", "é" * 300, 'a "b" c"'):
        assert len(index.search(query)) == 3, query
    assert "too long" in caplog.text
    for mode in ("hybrid", "vectors", "words"):
        with pytest.raises(InputError):
            index.search("  \n", mode=mode)
    for wrong in ({"mode": "other"}, {"top_k": 0}, {"candidates": 0}, {"where": "a=b"}):
        with pytest.raises(ArgumentError):
            index.search("city", **wrong)
    with pytest.raises(InputError):
        index.search("\ud800 city")
    assert len(index.search("\ud800 city", mode="words")) == 2


def test_an_empty_index(tmp_path: Path, model: mlxbert.Model) -> None:
    with open_index(tmp_path / "index.db", model=model) as index:
        assert index.search("city") == [] == index.search("city", where=["a=b"]) == index.search("city", mode="words")
        assert last(run(index)).files == 0 and index.add([]) == 0
        (tmp_path / "docs").mkdir()
        write(tmp_path / "docs" / "empty.txt", "")
        write(tmp_path / "docs" / "space.md", " \n")
        assert counts(run(index, tmp_path / "docs")) == {"FileIndexed": 2}
        assert index.search("city") == [] and index.stats().chunks == 0
        index.check()
    with pytest.raises(ArgumentError):
        open_index()


def test_one_value_needs_no_list_and_an_index_is_no_file_of_it(
    tmp_path: Path, folder: Path, model: mlxbert.Model
) -> None:
    with open_index(tmp_path / "i.db", model=model, paths=str(folder), include="*.md", fields="lang") as index:
        run(index)
        assert (index.about.roots, index.about.include, index.about.fields) == ((str(folder),), ("*.md",), ("lang",))
        assert index.search("cat", paths=folder / "a.md") and not index.search("cat", paths=str(folder / "b.txt"))
    with open_index(folder / "own.db", model=model, paths=[folder]) as index:
        assert counts(run(index)) == {"FileIndexed": 3} and counts(run(index)) == {}


def test_an_encoding_is_kept_with_the_index(tmp_path: Path, model: mlxbert.Model) -> None:
    write(tmp_path / "docs" / "a.txt", "возврат".encode("cp866"))
    with open_index(tmp_path / "i.db", model=model, paths=tmp_path / "docs", encoding="ibm866") as index:
        assert index.about.encoding == "cp866"
    with open_index(tmp_path / "i.db", model=model) as index:
        run(index)
        assert [hit.text for hit in index.search("возврат", mode="words")] == ["возврат"]


def test_prompts_and_a_splitter_of_ones_own(tmp_path: Path, folder: Path, unit: mlxbert.Model) -> None:
    class Lines:
        def __call__(self, document: Document) -> list[Chunk]:
            return [Chunk(0, len(document.text), (), None, None, None)]

        def embedded(self, document: Document, chunk: Chunk) -> Sequence[str]:
            return [document.text.split()[-1]]

    with open_index(tmp_path / "index.db", model=unit, paths=[folder]) as index:
        index.splitter = Lines()
        run(index)
        assert index.about.prompts == ("man is : ", "in ")
        query = mlxbert.embed(unit, ["cat"], prompt="query")[0]
        scores = {hit.text: hit.vector_score for hit in index.search("cat")}
        for text, last_word in {"largest city": "city", "dog milk": "milk"}.items():
            vector = mlxbert.embed(unit, [last_word], prompt="passage")[0]
            assert scores[text] == pytest.approx(float(vector @ query), abs=2e-3)
    with open_index(tmp_path / "stated.db", model=unit, prompts=("the cat : ", None)) as index:
        index.add([{"id": "1", "text": "milk"}])
        score = unit.embed("dog", prompt="the cat : ") @ unit.embed("milk", prompt="in ")
        assert index.search("dog")[0].vector_score == pytest.approx(float(score), abs=2e-3)


def test_texts_that_cannot_be_embedded(index: Index, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    usual = index.splitter

    class Long:
        def __call__(self, document: Document) -> list[Chunk]:
            return [*usual(document)]

        def embedded(self, document: Document, chunk: Chunk) -> Sequence[str]:
            return ["dog " * 100] if "too" in document.text else usual.embedded(document, chunk)

    index.splitter = Long()
    for name in ("d.txt", "e.txt"):
        write(folder / name, "too long")
    write(folder / "f.txt", "man went")
    happened = run(index)
    assert counts(happened) == {"FileIndexed": 1, "FileFailed": 2} and last(happened).failed == 2
    index.splitter = usual
    assert counts(run(index)) == {"FileIndexed": 1, "FileFailed": 1}  # the one that had the text of the other
    index.check()


@pytest.mark.parametrize("made", [save, token_folders.bge_m3])
def test_a_text_without_numbers_costs_only_its_file(made: Any, tmp_path: Path, folder: Path) -> None:
    model = mlxbert.load(with_nan(made(tmp_path / "model"), "tokyo"), task="embed", dtype="float32")
    write(folder / "mad.txt", "a dog in tokyo")
    with build(tmp_path / "mad.db", folder, model) as index:
        ((path, reason),) = index.stats().failed
        assert Path(path).name == "mad.txt" and "not finite" in reason
        assert [Path(str(hit.path)).name for hit in index.search("the cat sat", top_k=1)] == ["a.md"]
        index.check()


def test_index_of_paths(tmp_path: Path, folder: Path, model: mlxbert.Model, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MLXBERT_DATA", str(tmp_path / "data"))
    with open_index(paths=[folder], model=model) as index:
        run(index)
        assert Path(index.path).is_relative_to(tmp_path / "data")
    (tmp_path / "data" / "indexes" / "broken.db").write_text("x")
    for paths in ([folder / "sub"], [folder / "a.md", folder]):
        with open_index(paths=paths) as again:
            assert again.path == index.path and again.about.roots == (str(folder),)
    with open_index(paths=[folder.parent], model=model) as other:
        assert other.path != index.path
    with open_index(paths=[folder / "sub"]) as again:
        assert again.path == index.path


@pytest.mark.parametrize("prefix", ["", pytest.param("lance:", marks=NEEDS_LANCE)])
def test_stored_passages_have_their_vectors(prefix: str, tmp_path: Path, folder: Path, model: mlxbert.Model) -> None:
    with build(f"{prefix}{tmp_path}/i", folder / "b.txt", model, titles=False) as index:
        index.add([{"id": "7", "text": "paris , tokyo", "lang": "en"}])
        (rows, vectors) = zip(*stored_passages(index.store), strict=True)
        assert len(rows) == index.store.size() == 2
    assert [row["text"] for row in rows] == ["dog milk", "paris , tokyo"]
    assert rows[0]["path"] == str(folder / "b.txt") and rows[0]["start_line"] == 1
    assert rows[1]["path"] is None and rows[1]["place"] == "7" and rows[1]["fields"]["lang"] == "en"
    expected = mlxbert.embed(model, [row["text"] for row in rows], normalize=True)
    assert np.allclose(np.stack(vectors), expected, atol=2e-3)


FIVE = b'{"text": "the cat"}\n{"text": "a dog"}\n{"text": \n{"text": "paris"}\n{"text": "tokyo"}\n'
FILES = {
    "five.jsonl": FIVE,
    "binary": b"\0\1\2",
    "broken.ipynb": b"{",
    "empty.txt": b"",
    "guessed.csv": b"id,remark\n1,the cat sat\n2,\n",
    "lost.csv": b"text,id\nthe lamp is broken, please,1\nmilk,2\n",
    "good.md": b"# The city\n\nthe cat sat\n",
    ".hidden": b"the cat",
    "space.md": b" \n\n",
}
EXPECTED = {
    ("binary", "", "left out"), ("broken.ipynb", "", "left out"), ("empty.txt", "", "left out"),
    ("space.md", "", "left out"), ("five.jsonl", "line 3", "left out"), ("guessed.csv", "", "guessed"),
    ("guessed.csv", "line 3", "left out"), ("lost.csv", "line 2", "left out"),
}  # fmt: skip


@pytest.fixture
def lossy_folder(tmp_path: Path) -> Path:
    """Files of which parts are left out or guessed."""
    for name, data in FILES.items():
        write(tmp_path / "lossy" / name, data)
    return tmp_path / "lossy"


@pytest.fixture
def lossy(tmp_path: Path, lossy_folder: Path, model: mlxbert.Model) -> Iterator[Index]:
    with build(tmp_path / "lossy_folder.db", lossy_folder, model) as made:
        yield made


def places(index: Index) -> set[tuple[str, str, str]]:
    return {(Path(problem.path or "").name, problem.place, problem.kind) for problem in index.problems()}


def test_everything_that_was_left_out_or_guessed_is_a_problem(lossy: Index, tmp_path: Path) -> None:
    assert places(lossy) == EXPECTED
    assert all(problem.reason and problem.more == 0 for problem in lossy.problems())
    assert [problem.path for problem in lossy.problems()] == sorted(problem.path or "" for problem in lossy.problems())
    for happened in (last(run(lossy)), last(run(lossy))):
        assert happened.problems == {"left out": 7, "guessed": 1} == lossy.stats().problems
    assert lossy.stats().documents == 4 + 1 + 1 + 1  # those without a chunk are none
    lossy.check()


def test_problems_follow_their_file(lossy: Index, lossy_folder: Path) -> None:
    (lossy_folder / "five.jsonl").write_bytes(FIVE.replace(b'{"text": \n', b"\n"))
    (lossy_folder / "binary").write_bytes(b"the dog")
    (lossy_folder / "lost.csv").unlink()
    (lossy_folder / "good.md").write_bytes(b"\0")
    run(lossy)
    changed = {"five.jsonl", "binary", "lost.csv"}
    assert places(lossy) == {entry for entry in EXPECTED if entry[0] not in changed} | {("good.md", "", "left out")}
    lossy_folder.rename(lossy_folder.with_name("moved"))
    lossy.move(lossy_folder, lossy_folder.with_name("moved"))
    assert {Path(problem.path or "").parent.name for problem in lossy.problems()} == {"moved"}
    assert last(run(lossy)).problems == lossy.stats().problems and lossy.stats().problems["left out"] == 5
    lossy.check()


def test_a_file_without_a_document_is_a_problem(tmp_path: Path, model: mlxbert.Model, monkeypatch: Any) -> None:
    read, file = list[Document](), write(tmp_path / "docs" / "a.mine", "x")
    left_out = Document("", "The subject", place="message 1", problems=(ReadProblem("left out", "an attachment"),))
    monkeypatch.setitem(KINDS, "mine", DocumentKind(lambda data, name: iter(read), (".mine",)))
    with open_index(tmp_path / "index.db", model=model, paths=[file.parent]) as index:
        assert [event.documents for event in run(index) if isinstance(event, update_events.FileIndexed)] == [0]
        assert places(index) == {("a.mine", "", "left out")}
        read += [left_out, Document("the cat", place="message 2", problems=(ReadProblem("cut", "a \ud800 picture"),))]
        write(file, "xy")
        assert [event.documents for event in run(index) if isinstance(event, update_events.FileIndexed)] == [1]
        assert places(index) == {("a.mine", "message 1", "left out"), ("a.mine", "message 2", "cut")}


def test_texts_without_tokens_and_reasons_that_cannot_be_stored_are_problems(lossy: Index, lossy_folder: Path) -> None:
    (lossy_folder / "dropped.jsonl").write_text('{"text": "\\u200b\\u200d"}\n{"text": "the cat"}\n')
    (lossy_folder / "half.jsonl").write_text('{"\\ud800": 3}\n')
    run(lossy)
    assert {("dropped.jsonl", "line 1", "left out"), ("half.jsonl", "", "left out")} <= places(lossy)
    lossy.check()


def test_problems_of_added_records(lossy: Index) -> None:
    before = lossy.stats().documents
    assert lossy.add([{"id": "a", "text": ""}, {"id": "b", "text": "milk"}, {"id": "c", "text": " "}]) == 3
    added = [problem for problem in lossy.problems() if problem.path is None]
    assert [(problem.place, problem.kind) for problem in added] == [("a", "left out"), ("c", "left out")]
    lossy.add([{"id": "x" * 1000, "text": ""}])
    assert len(lossy.problems()) == len(EXPECTED) + 3 and lossy.remove(["x" * 1000]) == 1
    lossy.add([{"id": "a", "text": ""}, {"id": "a", "text": "milk"}])
    assert lossy.remove(["c"]) == 1 and lossy.stats().documents == before + 2
    assert not [problem for problem in lossy.problems() if problem.path is None]


def test_problems_are_bounded_whatever_their_reasons() -> None:
    same, listed = ProblemList("/a"), ProblemList("/a")
    for number in range(500):
        same.add(f"line {number}", ReadProblem("left out", f"the row has {number} columns"))
    assert [(problem.place, problem.more) for problem in same.kept()][98:] == [("line 98", 0), ("line 99", 400)]
    for number in range(3000):
        word = "".join(chr(ord("a") + int(digit)) for digit in str(number))
        listed.add(f"line {number}", ReadProblem("left out", f"{word} " + "x" * 1000))
    kept = listed.kept()
    assert len(kept) == 99 + 1 + 100 and sum(1 + problem.more for problem in kept) == 3000
    assert max(len(problem.reason) for problem in kept) <= 500


def test_groups() -> None:
    problems = [
        IndexProblem("/a", "line 2", "left out", "the row has 3 columns, but the header has 2"),
        IndexProblem("/b", "", "guessed", "the column of the text is probably 'body'"),
        IndexProblem("/a", "line 9", "left out", "the row has 4 columns, but the header has 2", 5),
    ]
    first, second = grouped(problems)
    assert (first.kind, first.reason, first.count) == ("left out", "the row has … columns, but the header has …", 7)
    assert (second.reason, second.count) == ("the column of the text is probably 'body'", 1)
    assert pattern_of("byte 0xe9 at offset 12, line 3: no") == pattern_of("byte 0x81 at offset 7, line 45: no")


def test_a_damaged_problem_is_refused(lossy: Index) -> None:
    for change in ("kind = x'61'", "more = 'x'", "reason = CAST(x'6100' AS TEXT)"):
        with pytest.raises(StoreError), lossy.store.writing():
            lossy.store._connection.execute(f"UPDATE problems SET {change}")  # type: ignore[attr-defined]
            lossy.problems()
    with lossy.store.writing():
        lossy.store._connection.execute("UPDATE problems SET file = 99999")  # type: ignore[attr-defined]
    with pytest.raises(StoreError, match="problem"):
        lossy.check()


TEXTS = ("the cat sat on the mat\n\nthe largest city", "dog milk\nman", "paris is a city in the land of milk")


@pytest.fixture(scope="module")
def answering_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return save_answering(tmp_path_factory.mktemp("answering"))


@pytest.fixture(scope="module")
def answerer(answering_folder: Path) -> mlxbert.Model:
    return mlxbert.load(answering_folder, task="answer", dtype="float32")


def hits_of(*texts: str) -> list[Hit]:
    """Hits with these texts, which begin on line 10 of their files."""
    return [
        Hit("q", rank, 1.0, f"/{rank}.md", "", 10, 20, None, "", text, {}, chunk=100 + rank)
        for rank, text in enumerate(texts, 1)
    ]


def answering(monkeypatch: pytest.MonkeyPatch, scores: dict[str, tuple[float, float]]) -> None:
    """Makes the model answer each text with its second word; the scores are those of that span and of "no answer"."""

    def run(task: AnswerTask, items: Iterable[tuple[str, str]]) -> Iterator[Answer]:
        for question, text in items:
            score, none = scores[text]
            start = text.index(" ") + 1 if " " in text else 0
            span = Span(text[start:].split()[0], start, start + len(text[start:].split()[0]), score)
            found = Answer(question, span.answer, span.start, span.end, score, none, (span,), text)
            has_none = none / (none + score) > 0.5
            yield replace(found, answer=None, start=None, end=None) if has_none else found

    monkeypatch.setattr(AnswerTask, "run", run)


def test_passages_are_compared_by_the_raw_scores(answerer: mlxbert.Model) -> None:
    """The margin of a passage is the best sum of two logits above that of "no answer", whatever the other spans get."""
    for text in TEXTS:
        answer = mlxbert.answer(answerer, "the city", context=text)
        encoding = answerer.tokenizer.encode("the city", text, overflow="error")
        batch: Batch = make_batch([encoding], answerer.config)
        first, last = np.array(answerer.network.logits(HEAD, batch))[0].astype(np.float64).T
        inside = [place for place, part in enumerate(encoding.sequence_ids) if part == 1]
        best = max(first[start] + last[end] for start in inside for end in inside if start <= end)
        assert _margin(answer) == pytest.approx(best - first[0] - last[0], abs=1e-3)


def test_the_passage_that_is_surest_has_the_answer(answerer: mlxbert.Model, monkeypatch: pytest.MonkeyPatch) -> None:
    answering(monkeypatch, {"one two": (0.9, 0.09), "a\n\n b": (0.3, 0.001), "x": (0.0, 1.0)})
    answer = answer_from(hits_of("one two", "x", "a\n\n b"), "who?", answerer)
    assert (answer.answer, answer.rank, answer.path, answer.line, answer.chunk) == ("b", 3, "/3.md", 12, 103)
    assert answer.hits[2].text[answer.start : answer.end] == "b" and answer.score == pytest.approx(300 / 301)
    assert "hits" not in answer.to_dict() and answer.to_dict()["line"] == 12
    answering(monkeypatch, {"one two": (0.5, 0.1), "three four": (0.5, 0.1)})  # of equally sure ones, the first
    assert answer_from(hits_of("one two", "three four"), "who?", answerer).answer == "two"


def test_the_copies_of_a_passage_are_read(answerer: mlxbert.Model, monkeypatch: pytest.MonkeyPatch) -> None:
    answering(monkeypatch, {"one two": (0.5, 0.4), "One\nTwo x": (0.9, 0.01), "three four": (0.6, 0.4)})
    texts = enumerate(("one two", "One\nTwo x"))
    copies = tuple(SimilarPassage(f"/copy{n}.md", "", 7, None, n, text) for n, text in texts)
    first, second = hits_of("one two", "three four")
    answer = answer_from([replace(first, duplicates=copies), second], "who?", answerer)
    assert (answer.answer, answer.rank, answer.path, answer.line, answer.chunk) == ("x", 1, "/copy1.md", 8, 1)
    answering(monkeypatch, {"one two": (0.5, 0.4), "One\nTwo x": (0.1, 0.8), "three four": (0.3, 0.4)})
    answer = answer_from([replace(first, duplicates=copies), second], "who?", answerer)
    assert (answer.answer, answer.path, answer.line) == ("two", "/1.md", 10)  # of equal texts, the hit itself


def test_there_is_no_answer_if_no_passage_has_one(answerer: mlxbert.Model, monkeypatch: pytest.MonkeyPatch) -> None:
    answering(monkeypatch, {"one two": (0.1, 0.3), "x": (0.0, 1e-9), "a b": (1e-200, 1.0)})
    answer = answer_from(hits_of("one two", "a b"), "who?", answerer)
    assert (answer.answer, answer.rank, answer.line) == (None, None, None) and answer.score == pytest.approx(0.25)
    assert [hit.rank for hit in answer.hits] == [1, 2]
    assert answer_from(hits_of("a b"), "who?", answerer).score < 1e-100
    assert answer_from([], "who?", answerer).answer is None and answer_from(hits_of(" \n"), "who?", answerer).score == 0
    assert math.isfinite(answer_from(hits_of("x"), "who?", answerer).score)


def test_an_index_answers_with_a_span_and_its_place(answering_folder: Path, tiny_folder: Path, tmp_path: Path) -> None:
    for number, text in enumerate(TEXTS):
        (tmp_path / f"{number}.txt").write_text(text)
    with open_index(tmp_path / "i.db", model=str(tiny_folder), paths=[*tmp_path.glob("*.txt")]) as index:
        assert [*index.update()]
        answer = index.answer("the city", model=str(answering_folder))
        assert answer.answer is not None and answer.rank is not None and answer.line is not None
        hit = answer.hits[answer.rank - 1]
        assert hit.text[answer.start : answer.end] == answer.answer
        assert (hit.path, hit.chunk) == (answer.path, answer.chunk)
        assert answer.answer.split("\n")[0] in Path(hit.path or "").read_text().split("\n")[answer.line - 1]
        others = [replace(hit, text="dog milk") for hit in index.search("milk", top_k=1)]
        assert len(index.answer("the city", model=str(answering_folder), hits=others).hits) == 1
        with pytest.raises(MissingHeadError):
            index.answer("the city", model=str(tiny_folder))
        for query in ("", " ", "city " * 400):
            with pytest.raises(InputError):
                index.answer(query, model=str(answering_folder), hits=others)
