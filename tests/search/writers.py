"""Indexes as rows of `tests/test_kills.py`."""

import os
import shutil
import time
from collections import Counter
from pathlib import Path

import pytest

import mlxbert
from mlxbert.search import index_writer
from mlxbert.search.index import Index, open_index
from tests.helpers.indexes import QUERIES, Contents, build, check_same, contents, copy_files, passage, write_files
from tests.helpers.kills import Writer, changing
from tests.helpers.tiny import save

FILES = 8
Inputs = tuple[Path, mlxbert.Model]


def prepare(folder: Path) -> Inputs:
    """Files of which parts are left out, and a model."""
    docs = write_files(folder / "docs", FILES)
    (docs / "spoiled.jsonl").write_text('{"text": "the dog"}\n{"text": \n' * 20)
    (docs / "empty.txt").write_text("")
    _age(docs)
    return docs, mlxbert.load(save(folder / "model"), task="embed", dtype="float32")


def _age(docs: Path) -> None:
    for file in docs.iterdir():
        os.utime(file, (time.time() - 1000,) * 2)


def _prepare_update(folder: Path) -> Inputs:
    """Files that were changed, moved, copied, added and removed after an index of them was built."""
    docs, model = prepare(folder)
    build(folder / "before.db", docs, model).close()
    for number in range(0, FILES, 4):
        (docs / f"{number:03}.md").write_text(f"# New\n\n{passage(('changed', number))}\n")
    (docs / "001.md").rename(docs / "moved.md")
    shutil.copy(docs / "002.md", docs / "copy.md")
    (docs / "spoiled.jsonl").write_text('{"text": "the dog"}\n{"text": 3}\n' * 9)
    for number in (3, 5, 6):
        (docs / f"{number:03}.md").unlink()
    for number in range(4):
        (docs / f"added{number}.md").write_text(passage(("added", number), 50))
    _age(docs)
    return docs, model


def check_hits(index: Index) -> None:
    """Nothing that is found is twice."""
    hits = index.search(QUERIES[0], top_k=1000, all_chunks=True)
    seen = Counter((hit.path, hit.place, hit.start_line, hit.text) for hit in hits)
    assert len({hit.chunk for hit in hits}) == len(hits) and all(count == 1 for count in seen.values())


def _statement(cursor: object, sql: str, values: object) -> bool:
    if not sql.lstrip().upper().startswith(("SELECT", "PRAGMA")):
        changing()
    return True


def _update(inputs: Inputs, folder: Path) -> None:
    """Few chunks are in memory, and few vectors wait for their file; the index is searched meanwhile."""
    docs, model = inputs
    with pytest.MonkeyPatch.context() as patch, open_index(folder / "x.db", model=model, paths=[docs]) as index:
        index.store._connection.set_exec_trace(_statement)  # type: ignore[attr-defined]
        patch.setattr(index_writer, "_GROUP", 5)
        patch.setattr(index_writer, "_SPOOL_BYTES", 200)
        for number, _ in enumerate(index.update()):
            if number % 8 == 4:
                with open_index(folder / "x.db", model=model) as reader:
                    check_hits(reader)


def _look(inputs: Inputs, folder: Path) -> None:
    if (folder / "x.db").exists():
        with open_index(folder / "x.db", model=inputs[1], paths=[inputs[0]]) as index:
            index.check()
            check_hits(index)


def _result(folder: Path) -> tuple[tuple[int, ...], Contents]:
    with open_index(folder / "x.db") as index:
        index.check()
        now = index.stats()
        return (now.files, now.documents, now.chunks), contents(index)


def same(found: tuple[tuple[int, ...], Contents], expected: tuple[tuple[int, ...], Contents]) -> None:
    assert found[0] == expected[0]
    check_same(found[1], expected[1])


def _before(inputs: Inputs, folder: Path) -> None:
    copy_files(inputs[0].parent / "before.db", folder / "x.db")


WRITERS = {
    "index": Writer(prepare, _update, _result, check=same, look=_look, errors=False),
    "updated index": Writer(_prepare_update, _update, _result, check=same, look=_look, begin=_before, errors=False),
}
